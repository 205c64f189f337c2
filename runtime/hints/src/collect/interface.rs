//! Bytes that the interfaces of this host have sent and received.
use std::io;

/// A reason why the counters of an interface cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// The kernel has no list of interfaces.
    #[error("{FILE} cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// There is no such interface.
    #[error("this host has no interface `{0}`")]
    Unknown(String),
}

/// The interfaces of the network namespace of this process.
const FILE: &str = "/proc/self/net/dev";

/// Returns the bytes that an interface has sent and received since it exists.
pub fn interface_bytes(name: &str) -> Result<[u64; 2], InterfaceError> {
    let text = std::fs::read_to_string(FILE)?;
    found(&text, name).ok_or_else(|| InterfaceError::Unknown(name.to_owned()))
}

/// A line of the list: the name, eight figures of what was received, eight of what was sent.
fn found(text: &str, name: &str) -> Option<[u64; 2]> {
    let (_, figures) =
        text.lines().filter_map(|line| line.split_once(':')).find(|(one, _)| one.trim() == name)?;
    let mut figures = figures.split_whitespace();
    let received = figures.next()?.parse().ok()?;
    let sent = figures.nth(7)?.parse().ok()?;
    Some([sent, received])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_the_kernel_is_read() {
        let text = "Inter-|   Receive                          |  Transmit\n \
                    face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed\n    \
                    lo: 11 1 0 0 0 0 0 0 12 1 0 0 0 0 0 0\n  eth0:1500 10 0 0 0 0 0 0 700 9 0 0 0 0 0 0\n";
        assert_eq!(found(text, "eth0"), Some([700, 1_500]));
        assert_eq!(found(text, "lo"), Some([12, 11]));
        assert_eq!(found(text, "eth"), None);
        assert!(matches!(interface_bytes("no such one"), Err(InterfaceError::Unknown(_))));
        assert!(interface_bytes("lo").is_ok());
    }
}
