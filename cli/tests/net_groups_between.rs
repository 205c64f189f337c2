//! Groups between machines through `tidemill net serve`: certificates, paths, priorities, and an upgrade.
use crate::device_tls::Files;
use crate::live::until;
use crate::net_groups::{PATIENCE, Served};
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use tidemill_collective::client::{Error, Group, JoinOptions};
use tidemill_collective::element::{Element, Reduction};
use tidemill_collective::topology::Priority;

fn strs(owned: &[String]) -> Vec<&str> {
    owned.iter().map(String::as_str).collect()
}

fn sum(group: &Group) -> Result<i64, Error> {
    let buffer = group.buffer(Element::I64, 20_000)?;
    buffer.write(0, &vec![i64::from(group.rank()) + 1; 20_000])?;
    group.all_reduce(&buffer, Reduction::Sum)?.wait()?;
    Ok(buffer.to_vec::<i64>()?[19_999])
}

fn hosts(listing: &Value) -> usize {
    listing["hosts"].as_array().map_or(0, Vec::len)
}

#[test]
fn services_with_certificates_of_one_authority_compute_and_others_are_turned_away() {
    let (own, foreign) =
        (Files::new("groups-own", &["hub", "edge"]), Files::new("groups-foreign", &["other"]));
    let hub = Served::start("hub", &strs(&own.options("", "hub")));
    let address = hub.address();
    let at = ["--groups-at", &address];
    let edge = Served::start("edge", &[&strs(&own.options("", "edge"))[..], &at].concat());
    hub.until("both are registered", |listing| hosts(listing) == 2);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| sum(&edge.join("secret", 1, 2)).unwrap());
        assert_eq!((sum(&hub.join("secret", 0, 2)).unwrap(), other.join().unwrap()), (3, 3));
    });

    // Believes in another authority.
    let stranger = Served::start("stranger", &[&strs(&foreign.options("", "other"))[..], &at].concat());
    until(|| stranger.log().contains("TLS: the certificate of the peer is refused"));
    until(|| hub.log().contains("the peer refuses the certificate of this side: it is of another authority"));
    let (code, _, stderr) = stranger.tidemill(&["collective", "ls"]);
    assert_ne!(code, Some(0));
    assert!(stderr.contains("is not reached now: TLS: the certificate of the peer is refused"), "{stderr}");

    // Believes in that of the hub, and has a certificate of another one.
    let mut mixed = foreign.options("", "other");
    let authority = own.options("", "edge").pop().unwrap();
    *mixed.last_mut().unwrap() = authority;
    let mixed = Served::start("mixed", &[&strs(&mixed)[..], &at].concat());
    until(|| hub.log().contains("a peer is turned away: TLS: the certificate of the peer is refused"));
    until(|| mixed.log().contains("the peer refuses the certificate of this side"));

    // Has none.
    let plain = Served::start("plain", &at);
    until(|| plain.log().contains("the peer uses certificates, and this side has none"));
    until(|| hub.log().contains("the peer does not speak TLS"));

    // The other way around.
    let open = Served::start("open", &[]);
    let open_address = open.address();
    let of_edge = own.options("", "edge");
    let closed = Served::start("closed", &[&strs(&of_edge)[..], &["--groups-at", &open_address]].concat());
    until(|| closed.log().contains("the peer does not speak TLS"));
    until(|| open.log().contains("the peer uses certificates, and this side has none"));
    hub.until("only those of its authority are registered", |listing| hosts(listing) == 2);
}

#[test]
fn a_service_ends_in_order_while_the_one_that_introduces_ranks_never_answers() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut served = Served::start("edge", &["--groups-at", &silent.local_addr().unwrap().to_string()]);
    let socket = served.socket();
    let sockets = [tidemill_collective::protocol::socket_of(&socket), socket];
    until(|| sockets.iter().all(|socket| socket.exists()));
    // It has dialled, and waits for the answer.
    let dialled = silent.accept().unwrap();
    served.end();
    // A process that has to be killed leaves its sockets.
    assert!(!sockets.iter().any(|socket| socket.exists()), "{}", served.log());
    drop(dialled);
}

/// Local addresses and ports of connections to a port of loopback.
fn connections(port: u16) -> Vec<(String, u16)> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let place = |text: &str| {
        let (address, port) = text.split_once(':')?;
        let address = u32::from_str_radix(address, 16).ok()?.swap_bytes();
        Some((std::net::Ipv4Addr::from(address).to_string(), u16::from_str_radix(port, 16).ok()?))
    };
    let line = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (local, remote) = (place(words.next()?)?, place(words.next()?)?);
        (remote.1 == port && words.next() == Some("01")).then_some(local)
    };
    table.lines().filter_map(line).collect()
}

/// Names of the paths of the rings of a group.
fn paths(served: &Served, group: &str) -> BTreeSet<String> {
    let shown = served.json(&["collective", "show", group]).expect("it is there");
    let channels = shown["group"]["strategy"]["channels"].as_array().expect("it has a strategy").clone();
    let names = channels.iter().flat_map(|channel| channel["paths"].as_array().expect("a list").clone());
    names.filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

#[test]
fn bytes_take_the_paths_that_strategies_name_and_priorities_share_them() {
    let of_hub =
        ["--rack", "left", "--group-path", "fibre=127.0.0.2,1Gbps", "--group-path", "lte=127.0.0.3,900Mbps"];
    let of_edge = [
        "--rack",
        "right",
        "--group-path",
        "fibre=21000-21499,1Gbps",
        "--group-path",
        "lte=21500-21999,900Mbps",
    ];
    let hub = Served::start("hub", &of_hub);
    let address = hub.address();
    let edge = Served::start("edge", &[&of_edge[..], &["--groups-at", &address]].concat());
    let listing = hub.until("both are registered", |listing| hosts(listing) == 2);
    let port = |host: &str| {
        let hosts = listing["hosts"].as_array().unwrap();
        let address = hosts.iter().find(|of| of["name"] == host).unwrap()["address"].as_str().unwrap();
        address.rsplit_once(':').unwrap().1.parse::<u16>().unwrap()
    };
    let (to_hub, to_edge) = (port("hub"), port("edge"));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (name, priority) in [("first", Priority::High), ("later", Priority::Normal)] {
            for (rank, served) in [(0, &hub), (1, &edge)] {
                let is_over = &is_over;
                scope.spawn(move || {
                    let group = served.join_as(JoinOptions { priority, ..JoinOptions::new(name, rank, 2) });
                    let over = group.buffer(Element::I64, 1).unwrap();
                    loop {
                        assert_eq!(sum(&group).unwrap(), 3);
                        over.write(0, &[i64::from(is_over.load(Ordering::Acquire))]).unwrap();
                        group.all_reduce(&over, Reduction::Max).unwrap().wait().unwrap();
                        if over.to_vec::<i64>().unwrap()[0] > 0 {
                            break;
                        }
                    }
                });
            }
        }
        hub.until("both groups run", |listing| {
            listing["groups"].as_array().is_some_and(|groups| {
                groups.len() == 2 && groups.iter().all(|group| group["state"] == "running")
            })
        });
        for policy in ["pfa", "ts", "pfa:lte"] {
            for group in ["later", "first"] {
                let (code, _, stderr) = hub.tidemill(&["collective", "strategy", group, policy]);
                assert_eq!(code, Some(0), "{stderr}");
            }
            let (own, others) = if policy == "pfa:lte" { ("lte", "fibre") } else { ("fibre", "lte") };
            assert_eq!(paths(&hub, "later"), BTreeSet::from([others.to_owned()]), "{policy}");
            assert!(paths(&hub, "first").contains(own), "{policy}");
            hub.until("both have changed", |listing| {
                let groups = listing["groups"].as_array().unwrap();
                groups.iter().all(|group| group["state"] == "running")
            });
            let (from_hub, from_edge) = (connections(to_edge), connections(to_hub));
            for path in ["fibre", "lte"] {
                let (address, ports) = if path == "fibre" {
                    ("127.0.0.2", 21_000..=21_499)
                } else {
                    ("127.0.0.3", 21_500..=21_999)
                };
                assert!(from_hub.iter().any(|(from, _)| from == address), "{policy}: {path} of {from_hub:?}");
                assert!(
                    from_edge.iter().any(|(_, from)| ports.contains(from)),
                    "{policy}: {path} of {from_edge:?}"
                );
            }
        }
        is_over.store(true, Ordering::Release);
    });
}

#[test]
fn programs_join_again_after_an_upgrade() {
    let hub = Served::start("hub", &[]);
    let address = hub.address();
    let edge = Served::start("edge", &["--groups-at", &address]);
    hub.until("both are registered", |listing| hosts(listing) == 2);
    let is_upgraded = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ranks = [(0, &hub), (1, &edge), (2, &edge)].map(|(rank, served)| {
            let is_upgraded = &is_upgraded;
            scope.spawn(move || {
                let group = served.join("stays", rank, 3);
                let error = loop {
                    match sum(&group) {
                        Ok(sum) => assert_eq!(sum, 6),
                        Err(error) => break error,
                    }
                };
                assert!(error.to_string().contains("upgraded"), "{error}");
                assert!(is_upgraded.load(Ordering::Acquire), "{error}");
                let group = group.rejoin(PATIENCE).unwrap();
                assert_eq!(sum(&group).unwrap(), 6);
            })
        });
        hub.until("they compute", |listing| listing["groups"][0]["figures"]["operations"].as_u64() > Some(0));
        is_upgraded.store(true, Ordering::Release);
        let (code, _, stderr) = edge.tidemill(&["upgrade"]);
        assert_eq!(code, Some(0), "{stderr}");
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    });
}
