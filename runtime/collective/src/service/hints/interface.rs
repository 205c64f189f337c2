//! The interface by which other hosts reach this one, and its rate.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Routes and addresses of the network namespace of this process.
const ROUTES: &str = "/proc/self/net/route";
const ADDRESSES: &str = "/proc/self/net/if_inet6";

/// Returns the interface that has this address, or leads to its network.
pub(super) fn of(address: IpAddr) -> Option<String> {
    match address {
        IpAddr::V4(address) => on_route(&std::fs::read_to_string(ROUTES).ok()?, address),
        IpAddr::V6(address) => with_address(&std::fs::read_to_string(ADDRESSES).ok()?, address),
    }
}

/// A line has the interface, then network, gateway, flags, and as the eighth word the mask. Addresses are hexadecimal numbers of their
/// bytes in memory.
fn on_route(routes: &str, address: Ipv4Addr) -> Option<String> {
    let number = |text: &str| Some(u32::from_be_bytes(u32::from_str_radix(text, 16).ok()?.to_ne_bytes()));
    let route = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let field = |at: usize| words.get(at).and_then(|text| number(text));
        let (network, gateway, mask) = (field(1)?, field(2)?, field(7)?);
        let is_near = gateway == 0 && mask != 0 && u32::from(address) & mask == network;
        is_near.then(|| Some((mask, (*words.first()?).to_owned())))?
    };
    routes.lines().skip(1).filter_map(route).max_by_key(|(mask, _)| *mask).map(|(_, name)| name)
}

/// A line has the address as 32 hexadecimal digits, four figures, and the interface.
fn with_address(addresses: &str, address: Ipv6Addr) -> Option<String> {
    let ours = format!("{:032x}", u128::from(address));
    let line = addresses.lines().find(|line| line.starts_with(&ours))?;
    line.split_whitespace().nth(5).map(str::to_owned)
}

/// Returns the rate of an interface in each direction, in bytes per second; none: it has none, such as loopback.
pub(super) fn rate(name: &str) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?;
    let megabits: f64 = text.trim().parse().ok()?;
    (megabits > 0.0).then_some(megabits * 1e6 / 8.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_network_leads_to_the_interface() {
        // Written as this machine would: numbers of the bytes in memory.
        let hex = |address: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(address));
        let line = |name: &str, network, gateway, mask| {
            format!("{name}\t{}\t{}\t0001\t0\t0\t0\t{}\t0\t0\t0\n", hex(network), hex(gateway), hex(mask))
        };
        let routes = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
            .to_owned()
            + &line("eth0", [0; 4], [10, 0, 0, 254], [0; 4])
            + &line("eth0", [10, 0, 0, 0], [0; 4], [255, 0, 0, 0])
            + &line("fibre", [10, 1, 2, 0], [0; 4], [255, 255, 255, 0])
            + &line("far", [10, 1, 2, 0], [10, 0, 0, 9], [255, 255, 255, 128]);
        let found = |address: [u8; 4]| on_route(&routes, address.into());
        assert_eq!(found([10, 1, 2, 3]).as_deref(), Some("fibre"));
        assert_eq!(found([10, 1, 3, 3]).as_deref(), Some("eth0"));
        assert_eq!(found([192, 168, 0, 1]), None, "not by the default route");
        assert_eq!(on_route("Iface\nbroken line\n", [10, 0, 0, 1].into()), None);
    }

    #[test]
    fn addresses_of_six_have_their_interface() {
        let text = "fd000007000000000000000000000009 03 40 00 80     eth1\n\
                    00000000000000000000000000000001 01 80 10 80       lo\n";
        assert_eq!(with_address(text, "fd00:7::9".parse().unwrap()).as_deref(), Some("eth1"));
        assert_eq!(with_address(text, "fd00:7::8".parse().unwrap()), None);
        assert_eq!(rate("no such one"), None);
    }
}
