//! Machines that are reached without a router, from the routes of the kernel: traffic with them stays at the site.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tidemill_hints::collect::Prefix;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Routes {
    near: Vec<Prefix>,
    interface: Option<String>,
}

impl Routes {
    /// Reads them. `site` is near, too.
    pub(super) fn read(site: &[Prefix]) -> Self {
        let text = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
        Self::of(&text("/proc/self/net/route"), &text("/proc/self/net/ipv6_route"), site)
    }

    fn of(four: &str, six: &str, site: &[Prefix]) -> Self {
        let mut found = Self { near: site.to_vec(), interface: None };
        for line in four.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (Some(interface), Some(to), Some(by), Some(mask)) =
                (fields.first(), address(&fields, 1), address(&fields, 2), address(&fields, 7))
            else {
                continue;
            };
            let bits = u32::from(mask).count_ones();
            if bits == 0 {
                // The first one has the least metric.
                found.interface.get_or_insert_with(|| (*interface).to_owned());
            } else if by.is_unspecified() {
                found.near.extend(format!("{to}/{bits}").parse::<Prefix>());
            }
        }
        for line in six.lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let hexadecimal =
                |place: usize| fields.get(place).and_then(|text| u128::from_str_radix(text, 16).ok());
            if let (Some(to), Some(bits @ 1..=127), Some(0)) =
                (hexadecimal(0), hexadecimal(1), hexadecimal(4))
            {
                found.near.extend(format!("{}/{bits}", Ipv6Addr::from(to)).parse::<Prefix>());
            }
        }
        found
    }

    /// Whether an address is reached without a router.
    pub(super) fn is_near(&self, peer: IpAddr) -> bool {
        self.near.iter().any(|prefix| prefix.holds(peer))
    }

    /// The interface by which all others are reached.
    pub(super) fn interface(&self) -> Option<&str> {
        self.interface.as_deref()
    }
}

/// An address in the byte order of the machine, as the kernel writes it.
fn address(fields: &[&str], place: usize) -> Option<Ipv4Addr> {
    let value = u32::from_str_radix(fields.get(place)?, 16).ok()?;
    Some(Ipv4Addr::from(value.to_ne_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_without_a_router_lead_to_the_site() {
        let four = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
                    eth0 00000000 010010AC 0003 0 0 0 00000000 0 0 0\n\
                    eth0 000010AC 00000000 0001 0 0 0 0000FFFF 0 0 0\n\
                    wlan0 00000000 0101A8C0 0003 0 0 600 00000000 0 0 0\n";
        let six = "fd000007000000000000000000000000 20 00000000000000000000000000000000 00 \
                   00000000000000000000000000000000 00000100 00000001 00000000 00000001 eth0\n\
                   00000000000000000000000000000000 00 00000000000000000000000000000000 00 \
                   fe800000000000000000000000000001 00000400 00000001 00000000 00000003 eth0\n";
        let found = Routes::of(four, six, &["192.168.7.0/24".parse().unwrap()]);
        let is_near = |text: &str| found.is_near(text.parse().unwrap());
        assert!(is_near("172.16.200.1") && is_near("fd00:7::9") && is_near("192.168.7.3"));
        assert!(!is_near("8.8.8.8") && !is_near("fd00:8::9") && !is_near("192.168.8.3"));
        assert_eq!(found.interface(), Some("eth0"));
        assert_eq!(Routes::of("", "", &[]), Routes::default());
    }
}
