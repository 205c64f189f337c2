//! `tidemill health`: whether a controller, an agent or a device is well, by the metrics that it serves.
use crate::answer;
use crate::arguments::{HealthArguments, OutputForm};
use crate::exit::Exit;
use serde_json::json;
use std::io::{Error, ErrorKind, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::metrics::device;
use tidemill_cluster::metrics::{AGENT_CONTROLLER, AGENT_INFO, CONTROLLER_INFO};
use tidemill_http::{Answer, Call, CallError, Caller, Place, Repeat};

/// Kind of server that answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Controller,
    Agent { is_reached: bool },
    Device,
}

/// Asks, and prints the answer.
pub(crate) fn health(arguments: &HealthArguments) -> anyhow::Result<Exit> {
    arguments.addresses.iter().try_for_each(|address| check(address))?;
    let mut told = (false, None, String::new());
    for address in &arguments.addresses {
        told = judged(address, arguments);
        if told.0 {
            break;
        }
    }
    let (is_well, what, text) = told;
    let mut out = answer::out();
    match arguments.output {
        OutputForm::Table => writeln!(out, "{text}")?,
        OutputForm::Json => {
            let told = json!({"version": 1, "ok": is_well, "what": what, "text": text});
            writeln!(out, "{told:#}")?;
        }
    }
    Ok(if is_well { Exit::Success } else { Exit::No })
}

/// Checks the form of the address, without a look-up of the name.
fn check(address: &str) -> Result<(), Failure> {
    let is_one = match address.rsplit_once(':') {
        Some((host, port)) => !host.is_empty() && port.parse::<u16>().is_ok(),
        None => false,
    };
    match is_one {
        true => Ok(()),
        false => Err(Failure::new(Kind::Usage, format!("`{address}` is not an address"))
            .with_help("write an address and a port, such as `127.0.0.1:9464`")),
    }
}

/// Addresses of a name.
fn resolve(address: &str) -> std::io::Result<Vec<SocketAddr>> {
    Ok(address.to_socket_addrs()?.map(reachable).collect())
}

/// Whether the one at an address or a name is well, what it is, and both in words. A name that leads nowhere gives no answer: of a service
/// that has just been started, or has ended.
fn judged(address: &str, arguments: &HealthArguments) -> (bool, Option<&'static str>, String) {
    let answer = resolve(address).and_then(|addresses| ask(&addresses, arguments.timeout));
    match answer {
        Err(reason) => (false, None, format!("no answer: {reason}")),
        Ok(answer) => match found(&answer) {
            Some(Found::Controller) => (true, Some("controller"), "the controller is healthy".to_owned()),
            Some(Found::Agent { is_reached: false }) if arguments.ready => {
                (false, Some("agent"), "the controller does not answer this agent".to_owned())
            }
            Some(Found::Agent { .. }) => (true, Some("agent"), "the agent is healthy".to_owned()),
            Some(Found::Device) => (true, Some("device"), "the device is healthy".to_owned()),
            None => {
                let text = "neither a controller nor an agent in a cluster nor a device answers there";
                (false, None, text.to_owned())
            }
        },
    }
}

/// Replaces the unspecified address by the machine's own.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(100);

#[expect(clippy::disallowed_methods, reason = "an answer is waited for in real time")]
fn instant() -> Instant {
    Instant::now()
}

/// Asks until an answer comes or the time is over. A closed port fails at once; a connection that breaks says nothing about the server.
fn ask(addresses: &[SocketAddr], timeout: Duration) -> std::io::Result<String> {
    let until = instant() + timeout;
    loop {
        let (mut last, mut broke) = (Error::other("the name has no address"), false);
        for address in addresses {
            match ask_at(*address, until.saturating_duration_since(instant()).max(PAUSE)) {
                Ok(Answer { status: 200, body }) => return Ok(String::from_utf8_lossy(&body).into_owned()),
                Ok(_) => return Err(Error::other("the program at this address serves no metrics")),
                Err(error) => {
                    broke |= is_broken(&error);
                    last = match error {
                        CallError::Unreachable { source, .. } | CallError::Broken { source, .. } => source,
                        other => Error::other(other),
                    };
                }
            }
        }
        if !broke || instant() + PAUSE >= until {
            return Err(last);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether a connection was there, and ended before the answer.
fn is_broken(error: &CallError) -> bool {
    let kinds = [
        ErrorKind::BrokenPipe,
        ErrorKind::ConnectionAborted,
        ErrorKind::ConnectionReset,
        ErrorKind::Interrupted,
        ErrorKind::UnexpectedEof,
    ];
    matches!(error, CallError::Broken { source, .. } if kinds.contains(&source.kind()))
}

fn ask_at(address: SocketAddr, timeout: Duration) -> Result<Answer, CallError> {
    let caller = Arc::new(Caller::new(Place::Tcp(address.to_string())));
    caller.send(&Call::get("/metrics"), timeout, Repeat::Refused)
}

/// Finds the kind of server by its text.
fn found(text: &str) -> Option<Found> {
    let value = |name: &str| {
        let lines = text.lines().filter_map(|line| line.strip_prefix(name));
        let samples = lines.filter(|rest| rest.starts_with([' ', '{']));
        samples.filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok()).next()
    };
    if value(CONTROLLER_INFO.name).is_some() {
        return Some(Found::Controller);
    }
    if value(device::SLOTS.name).is_some() {
        return Some(Found::Device);
    }
    value(AGENT_INFO.name)?;
    Some(Found::Agent { is_reached: value(AGENT_CONTROLLER.name) == Some(1.0) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn who_answers_is_told_by_its_metrics() {
        let agent = "tidemill_agent_info{version=\"1\"} 1.0\ntidemill_agent_controller_reached 1.0\n";
        assert_eq!(found(agent), Some(Found::Agent { is_reached: true }));
        let lost = agent.replace("reached 1.0", "reached 0.0");
        assert_eq!(found(&lost), Some(Found::Agent { is_reached: false }));
        assert_eq!(found("tidemill_controller_info{version=\"1\"} 1.0\n"), Some(Found::Controller));
        assert_eq!(found("tidemill_device_slots{device=\"gpu\"} 1\n"), Some(Found::Device));
        assert_eq!(found("tidemill_agent_information 1\nother 2\n"), None);
        assert_eq!(found(""), None);
    }

    #[test]
    fn an_address_has_a_port() {
        for address in ["127.0.0.1:9464", "[::1]:80", "no-such-name.invalid:9464"] {
            assert!(check(address).is_ok(), "{address}");
        }
        for address in ["localhost", "127.0.0.1", ":9464", "localhost:http", "localhost:70000", ""] {
            assert_eq!(check(address).unwrap_err().kind(), Kind::Usage, "{address}");
        }
    }

    #[test]
    fn all_addresses_mean_this_machine() {
        let of = |text: &str| reachable(text.parse().unwrap()).to_string();
        assert_eq!(of("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(of("[::]:80"), "[::1]:80");
        assert_eq!(of("10.0.0.1:80"), "10.0.0.1:80");
    }

    #[test]
    fn whoever_serves_no_metrics_is_not_well() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let other = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            stream.write_all(b"HTTP/1.1 404 Not Found\r\n\r\nnothing").unwrap();
        });
        assert!(ask(&[address], Duration::from_secs(30)).is_err());
        other.join().unwrap();
        assert!(ask(&[], Duration::from_secs(1)).is_err());
    }

    /// A connection that breaks does not show an unhealthy server.
    #[test]
    fn a_connection_that_breaks_is_tried_again() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let other = std::thread::spawn(move || {
            // Closed with what came unread: reset.
            drop(listener.accept().unwrap());
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            drop(stream); // closed without an answer
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\ntidemill_controller_info 1.0\n").unwrap();
        });
        let answer = ask(&[address], Duration::from_secs(30)).unwrap();
        assert_eq!(found(&answer), Some(Found::Controller));
        other.join().unwrap();
        // The port is closed now: that is known at once.
        let refused = ask(&[address], Duration::from_secs(3600)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
}
