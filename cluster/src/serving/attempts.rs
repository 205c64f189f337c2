//! Limits wrong tokens by peer. A token has 160 random bits and cannot be guessed; the limit bounds the cost of tries: time, and lines of
//! the log.
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Wrong tokens at once.
pub(super) const AT_ONCE: u32 = 30;
/// Time after which one more try is allowed.
pub(super) const PAUSE: Duration = Duration::from_secs(2);
/// Addresses that are remembered; of more, the one that is forgiven first is forgotten.
const ADDRESSES: usize = 4096;

/// Wrong tokens by address.
#[derive(Default)]
pub(super) struct Attempts {
    /// When all are forgiven.
    forgiven: Mutex<HashMap<IpAddr, Instant>>,
}

/// Returns the network of an address: the owner of one IPv6 address has 2^64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        address => address,
    }
}

impl Attempts {
    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Instant>> {
        self.forgiven.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time until the address may try again; none: it may.
    pub(super) fn is_over(&self, address: IpAddr) -> Option<Duration> {
        let forgiven = *self.lock().get(&network(address))?;
        let left = forgiven.saturating_duration_since(Instant::now());
        let most = PAUSE * (AT_ONCE - 1);
        (left > most).then(|| left - most)
    }

    /// A token was wrong.
    pub(super) fn failed(&self, address: IpAddr) {
        let now = Instant::now();
        let mut forgiven = self.lock();
        if forgiven.len() >= ADDRESSES {
            forgiven.retain(|_, at| *at > now);
        }
        if forgiven.len() >= ADDRESSES
            && let Some(first) = forgiven.iter().min_by_key(|(_, at)| **at).map(|(address, _)| *address)
        {
            forgiven.remove(&first);
        }
        let at = forgiven.entry(network(address)).or_insert(now);
        *at = (*at).max(now) + PAUSE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_at_once_and_then_one_after_the_other() {
        let attempts = Attempts::default();
        let (one, other) = (address("10.0.0.7"), address("10.0.0.8"));
        for _ in 0..AT_ONCE {
            assert_eq!(attempts.is_over(one), None);
            attempts.failed(one);
        }
        assert_eq!(attempts.is_over(one), Some(PAUSE));
        assert_eq!(attempts.is_over(other), None);
        tokio::time::advance(PAUSE).await;
        assert_eq!(attempts.is_over(one), None);
        attempts.failed(one);
        assert_eq!(attempts.is_over(one), Some(PAUSE));
        tokio::time::advance(PAUSE * AT_ONCE).await;
        assert_eq!(attempts.is_over(one), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_network_of_version_6_is_one_address_and_few_are_remembered() {
        let attempts = Attempts::default();
        for n in 0..AT_ONCE {
            attempts.failed(address(&format!("2001:db8::{n:x}")));
        }
        assert!(attempts.is_over(address("2001:db8::ffff")).is_some());
        assert!(attempts.is_over(address("2001:db8:1::1")).is_none());
        // An address in both of its forms.
        (0..AT_ONCE).for_each(|_| attempts.failed(address("::ffff:10.0.0.7")));
        assert!(attempts.is_over(address("10.0.0.7")).is_some());
        for n in 0..ADDRESSES as u32 + 100 {
            attempts.failed(IpAddr::V4((n + 1_000).into()));
        }
        assert!(attempts.lock().len() <= ADDRESSES);
        assert!(attempts.is_over(address("10.0.0.7")).is_some(), "who tried most is forgotten last");
    }
}
