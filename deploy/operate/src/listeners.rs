//! Listening sockets of a Linux machine, for machines that are reached by ssh.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The files with sockets of both families; a kernel without IPv6 has only the first.
pub(crate) const FILES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// State of a listening socket, in the column `st`.
const LISTENS: &str = "0A";

/// Parses the listening addresses, in the order of the lines; skips other lines.
pub(crate) fn read(text: &str) -> Vec<(IpAddr, u16)> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let (local, state) = (words.nth(1)?, words.nth(1)?);
        let (address, port) = local.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        (state == LISTENS).then_some((address_of(address)?, port))
    };
    text.lines().filter_map(line).collect()
}

/// Parses words of 32 bits in the machine's byte order; all supported machines are little-endian.
fn address_of(text: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let digits = text.get(at..at + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_le_bytes)
    };
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let bytes = [word(0)?, word(8)?, word(16)?, word(24)?].concat();
            Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical())
        }
        _ => None,
    }
}

/// Whether these listeners prevent another one at an address of the machine.
pub(crate) fn take(listeners: &[(IpAddr, u16)], address: &str, port: u16) -> bool {
    let wanted: Option<IpAddr> = address.trim_matches(['[', ']']).parse().ok();
    listeners.iter().filter(|(_, taken)| *taken == port).any(|(address, _)| {
        // A host name is one of the machine's addresses; which one is unknown.
        address.is_unspecified() || wanted.is_some_and(|wanted| wanted.is_unspecified() || wanted == *address)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOCKETS: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1CFC 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:1CFD 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 20 4 30 10 -1
  sl  local_address                         remote_address                        st tx_queue rx_queue
   0: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 00000000:00000000
   1: 0000000000000000FFFF00000100007F:0050 00000000000000000000000000000000:0000 0A 00000000:00000000
";

    #[test]
    fn sockets_that_listen_are_read() {
        let local = IpAddr::from(Ipv4Addr::LOCALHOST);
        let all = [(local, 7420), (Ipv6Addr::UNSPECIFIED.into(), 22), (local, 80)];
        assert_eq!(read(SOCKETS), all);
        assert_eq!(read("cat: /proc/net/tcp: No such file or directory"), []);
        assert_eq!(read("0: é00007F:1CFC x 0A\n1: 0100007F x 0A"), []);
    }

    #[test]
    fn an_address_is_taken_by_who_listens_there_or_everywhere() {
        let listeners = read(SOCKETS);
        let taken = |address: &str, port: u16| take(&listeners, address, port);
        assert!(taken("127.0.0.1", 7420) && taken("0.0.0.0", 7420) && taken("[::]", 7420));
        assert!(taken("10.0.0.1", 22) && !taken("10.0.0.1", 7420) && !taken("127.0.0.1", 7421));
    }

    /// A socket of this machine is found.
    #[test]
    fn own_listeners_are_found() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let text: String = FILES.iter().filter_map(|file| std::fs::read_to_string(file).ok()).collect();
        assert!(take(&read(&text), "127.0.0.1", port), "{text}");
        drop(listener);
        let text = std::fs::read_to_string(FILES[0]).unwrap();
        assert!(!take(&read(&text), "127.0.0.1", port), "{text}");
    }
}
