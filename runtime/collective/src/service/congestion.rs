//! The congestion control of the connections between ranks.
//!
//! A ring advances at the pace of its slowest connection at each moment. BBR, which some systems have as the usual one, sends less than
//! its share at times to find out what a link has, and cannot make up for it where the next piece has not come yet.
use super::Options;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, socket, sockopt};
use std::fs;
use std::io;
use std::os::fd::AsFd;

const SYSTEM: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// Returns what is wrong with the congestion control for this process, with the fix; or says what the system has, where none was chosen.
pub(super) fn check(options: &Options) -> Result<(), String> {
    let read = |file| fs::read_to_string(file).unwrap_or_default().trim().to_owned();
    let Some(name) = options.congestion.as_deref() else {
        let meets_others = options.listen.is_some() || options.conductor.is_some();
        if meets_others && read(SYSTEM) == "bbr" {
            tracing::info!(
                "groups use bbr, the congestion control of this system: rings get less of full links by it than by cubic \
                 (`--group-congestion cubic`)"
            );
        }
        return Ok(());
    };
    let tried = socket(AddressFamily::INET, SocketType::STREAM, None);
    match tried.and_then(|socket| sockopt::set_tcp_congestion(socket, name)) {
        Ok(()) => Ok(()),
        Err(Errno::NOENT) => Err(format!(
            "this system has no congestion control {name}, only {}; `modprobe tcp_{name}` may bring it",
            read(AVAILABLE)
        )),
        Err(Errno::PERM) => Err(format!(
            "congestion control {name} needs root, or `sysctl -w net.ipv4.tcp_allowed_congestion_control=\"{} {name}\"`",
            read(ALLOWED)
        )),
        Err(error) => Err(format!("congestion control {name}: {error}")),
    }
}

/// Gives a connection this congestion control. What is not TCP keeps its own.
pub(super) fn set(connection: impl AsFd, name: &str) -> io::Result<()> {
    match sockopt::set_tcp_congestion(connection, name) {
        Err(Errno::OPNOTSUPP | Errno::NOPROTOOPT | Errno::NOTSOCK) => Ok(()),
        result => Ok(result?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn checked(name: Option<&str>) -> Result<(), String> {
        let options = Options::new("/nowhere", crate::topology::Host::default());
        check(&Options { congestion: name.map(str::to_owned), ..options })
    }

    #[test]
    fn connections_get_what_was_chosen() {
        assert_eq!(checked(None), Ok(()));
        // Each process may have this one.
        assert_eq!(checked(Some("reno")), Ok(()));
        let connection = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        set(&connection, "reno").unwrap();
        assert_eq!(sockopt::tcp_congestion(&connection).unwrap(), "reno");
        let (one, _other) = UnixStream::pair().unwrap();
        set(&one, "reno").unwrap();
    }

    #[test]
    fn one_that_is_not_there_is_named_with_those_that_are() {
        let error = checked(Some("nosuch")).unwrap_err();
        assert!(error.contains("no congestion control nosuch") && error.contains("reno"), "{error}");
    }
}
