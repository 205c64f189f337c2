//! Connections of hosts that greet before this one knows the formation of the group.
//!
//! It is not known yet whether they are members: their secret is that of a formation to come. So all of them wait for a while, as many as
//! there is room for, and the room is shared by the addresses that they come from: a newcomer takes the place of the oldest one of the
//! address that has most, unless that is its own. So a stranger that connects again and again keeps out itself alone.
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

/// Connections that wait, at most.
const MOST: usize = 1024;
/// Bits of an IPv6 address that one side has: it chooses the others.
const PREFIX: u128 = !0 << 64;

/// Connections, oldest first.
#[derive(Debug)]
pub(super) struct Early<T>(Vec<Waiting<T>>);

#[derive(Debug)]
struct Waiting<T> {
    connection: T,
    from: Option<IpAddr>,
    until: Instant,
}

impl<T> Default for Early<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// The part of an address that tells sides apart.
fn side(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & PREFIX).into()),
        address => address,
    }
}

impl<T> Early<T> {
    /// Keeps a connection until then. `from`: its address; none: it has none, such as of a Unix socket. Returns the one that has no room.
    pub(super) fn keep(&mut self, connection: T, from: Option<IpAddr>, until: Instant) -> Option<T> {
        let from = from.map(side);
        let mut refused = None;
        if self.0.len() >= MOST {
            let mut counts: BTreeMap<Option<IpAddr>, usize> = BTreeMap::new();
            self.0.iter().for_each(|one| *counts.entry(one.from).or_default() += 1);
            let own = counts.get(&from).copied().unwrap_or_default();
            let most = counts.into_iter().max_by_key(|(_, count)| *count);
            let busiest = most.filter(|(_, count)| own < *count).map(|(of, _)| of);
            let oldest = busiest.and_then(|of| self.0.iter().position(|one| one.from == of));
            match oldest {
                Some(position) => refused = Some(self.0.remove(position).connection),
                None => return Some(connection),
            }
        }
        self.0.push(Waiting { connection, from, until });
        refused
    }

    /// Takes those that are meant out.
    pub(super) fn take(&mut self, is_meant: impl Fn(&T) -> bool) -> Vec<T> {
        self.0.extract_if(.., |one| is_meant(&one.connection)).map(|one| one.connection).collect()
    }

    /// Drops those whose time is over.
    pub(super) fn tidy(&mut self, now: Instant) {
        self.0.retain(|one| now < one.until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::now;
    use std::time::Duration;

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn a_stranger_that_connects_again_and_again_keeps_no_member_out() {
        let (mut early, until) = (Early::default(), now() + Duration::from_secs(60));
        let stranger = address("10.0.0.66");
        for number in 0..MOST {
            assert_eq!(early.keep(number, stranger, until), None, "there is room for all");
        }
        assert_eq!(early.keep(MOST, stranger, until), Some(MOST), "its own have no more room");
        // Members come meanwhile: each takes the place of the oldest one of the stranger, and stays.
        for member in 0..300 {
            let from = address(&format!("10.0.1.{}", member % 3));
            assert_eq!(early.keep(2000 + member, from, until), Some(member));
            assert_eq!(early.keep(9999, stranger, until), Some(9999));
        }
        // One without an address, too.
        assert_eq!(early.keep(2300, None, until), Some(300));
        let mut members = early.take(|number| *number >= 2000);
        members.sort_unstable();
        assert_eq!(members, (2000..=2300).collect::<Vec<_>>());
        assert_eq!(early.0.len(), MOST - 301);
    }

    #[test]
    fn addresses_of_one_network_of_ipv6_are_one_side() {
        let (mut early, until) = (Early::default(), now() + Duration::from_secs(60));
        for number in 0..MOST {
            assert_eq!(early.keep(number, address(&format!("2001:db8::{number:x}")), until), None);
        }
        assert_eq!(early.keep(MOST, address("2001:db8::ffff"), until), Some(MOST));
        assert_eq!(early.keep(MOST, address("2001:db8:0:1::1"), until), Some(0));
        assert_eq!(side("::ffff:10.0.0.1".parse().unwrap()), side("10.0.0.1".parse().unwrap()));
    }

    #[test]
    fn they_wait_for_a_while() {
        let (mut early, begun) = (Early::default(), now());
        early.keep(1, None, begun + Duration::from_secs(1));
        early.keep(2, None, begun + Duration::from_secs(2));
        early.tidy(begun + Duration::from_secs(1));
        assert_eq!(early.take(|_| true), [2]);
    }
}
