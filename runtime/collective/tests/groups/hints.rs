//! Services that count, report and answer.
use crate::place::{PATIENCE, Place, until};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use tidemill_collective::client::{Error, Group};
use tidemill_collective::element::{Element, Reduction};
use tidemill_collective::hints::{Counted, Export, Given, LinkView, Origin, Settings, View, Way};
use tidemill_collective::protocol::{Answer, Question};
use tidemill_collective::service::Options;
use tidemill_collective::topology::Host;
use tidemill_hints::collect::{Counter, SocketError};
use tidemill_link::remote::Address;

/// A flow to another rack whose bytes grow with each look, while it is open.
#[derive(Default)]
struct Flow {
    sent: AtomicU64,
    is_open: AtomicBool,
}

impl Flow {
    fn counters(self: &Arc<Self>) -> Given {
        let flow = Arc::clone(self);
        Given::new(move || {
            let more = if flow.is_open.load(Ordering::Relaxed) { 10_000 } else { 0 };
            let sent = flow.sent.fetch_add(more, Ordering::Relaxed) + more;
            Ok(vec![Counter {
                id: 1,
                local: [10, 0, 0, 1].into(),
                peer: [10, 9, 0, 1].into(),
                sent,
                received: 0,
            }])
        })
    }
}

fn settings() -> Settings {
    Settings {
        rate: Some([125e6; 2]),
        rack_rate: Some([12.5e6; 2]),
        export: Export::Tenant,
        ..Settings::default()
    }
}

fn place(name: &str, rack: &str, conductor: Option<&Place>, counters: Given) -> Place {
    let folder = tempfile::tempdir().unwrap();
    let host = Host { name: name.to_owned(), rack: rack.to_owned(), ..Host::default() };
    let options = Options {
        listen: Some(Address::tcp("127.0.0.1:0")),
        conductor: conductor.map(Place::address),
        silence: PATIENCE / 2,
        hints: settings(),
        counters: Some(counters),
        ..Options::new(folder.path().join("net.sock"), host)
    };
    let mut place = Place { folder, service: None, options };
    place.start();
    place
}

fn quiet() -> Given {
    Given::new(|| Ok(Vec::new()))
}

fn view(place: &Place) -> View {
    match place.ask(Question::Hints { group: None, flows: 1 }) {
        Answer::Hints(view) => *view,
        other => panic!("{other:?}"),
    }
}

fn link(view: &View, host: Option<&str>, rack: &str, way: Way) -> Option<LinkView> {
    let is_meant = |link: &&LinkView| link.host.as_deref() == host && link.rack == rack && link.way == way;
    view.links.iter().find(is_meant).cloned()
}

fn leader(view: &View, rack: &str) -> Option<String> {
    view.racks.iter().find(|of| of.name == rack)?.leader.clone()
}

#[test]
fn hosts_count_and_another_one_leads_when_the_leader_ends() {
    let flow = Arc::<Flow>::default();
    flow.is_open.store(true, Ordering::Relaxed);
    let hub = place("hub", "east", None, quiet());
    let mut first = place("w1", "west", Some(&hub), quiet());
    let second = place("w2", "west", Some(&hub), flow.counters());
    let busy = |view: &View| {
        let up = link(view, Some("w2"), "west", Way::Up);
        let rack = link(view, None, "west", Way::Up);
        let is_busy = |link: Option<LinkView>| {
            link.is_some_and(|link| link.load.residual < link.load.total && link.load.sharers > 0.9)
        };
        is_busy(up) && is_busy(rack)
    };
    until("all report, and the flow is seen", || {
        let view = view(&hub);
        view.hosts.iter().filter(|host| host.reports).count() == 3 && busy(&view)
    });
    let seen = view(&hub);
    assert_eq!(leader(&seen, "west").as_deref(), Some("w1"));
    let down = link(&seen, Some("w2"), "west", Way::Down).unwrap();
    assert_eq!((down.load.residual, down.load.total, down.total_from), (125e6, 125e6, Origin::Stated));
    assert!(
        seen.hosts.iter().all(|host| host.counted == Some(Counted::Sockets { interface: None })),
        "{seen:?}"
    );
    // The leader ends. The other host leads, and its flow is still seen.
    first.service = None;
    until("w2 leads", || leader(&view(&hub), "west").as_deref() == Some("w2"));
    flow.is_open.store(false, Ordering::Relaxed);
    until("the flow has ended for the new leader", || {
        let view = view(&hub);
        link(&view, None, "west", Way::Up)
            .is_some_and(|link| link.load.residual > 12.499e6 && link.load.sharers < 0.1)
    });
    // And back.
    first.start();
    until("w1 leads again", || leader(&view(&hub), "west").as_deref() == Some("w1"));
    flow.is_open.store(true, Ordering::Relaxed);
    until("the flow is seen again", || busy(&view(&hub)));
    drop(second);
}

fn sum(group: &Group) -> i64 {
    let buffer = group.buffer(Element::I64, 1000).unwrap();
    buffer.write(0, &[1_i64; 1000]).unwrap();
    group.all_reduce(&buffer, Reduction::Sum).unwrap().wait().unwrap();
    buffer.to_vec::<i64>().unwrap()[999]
}

/// Counters that stop to answer when they are told to.
#[derive(Default)]
struct Stuck {
    is_stuck: Mutex<bool>,
    changed: Condvar,
    /// Whether somebody waits for an answer.
    is_waited_for: AtomicBool,
}

impl Stuck {
    fn set(&self, stuck: bool) {
        *self.is_stuck.lock().unwrap() = stuck;
        self.changed.notify_all();
    }

    fn counters(self: &Arc<Self>) -> Given {
        let stuck = Arc::clone(self);
        Given::new(move || {
            let mut is_stuck = stuck.is_stuck.lock().unwrap();
            while *is_stuck {
                stuck.is_waited_for.store(true, Ordering::Relaxed);
                is_stuck = stuck.changed.wait(is_stuck).unwrap();
            }
            Ok(Vec::new())
        })
    }
}

#[test]
fn operations_go_on_when_a_source_of_hints_is_silent() {
    let stuck = Arc::<Stuck>::default();
    let hub = place("hub", "east", None, quiet());
    let other = place("w1", "west", Some(&hub), stuck.counters());
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| other.join("training", 1, 2));
        (hub.join("training", 0, 2), second.join().unwrap())
    });
    let both = || {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| sum(&second));
            assert_eq!((sum(&first), other.join().unwrap()), (2, 2));
        });
    };
    let decision = || match hub.ask(Question::Hints { group: Some("training".into()), flows: 1 }) {
        Answer::Hints(view) => view.groups[0].decision.clone(),
        // It is looked at within a period.
        Answer::Refused(_) => String::new(),
        other => panic!("{other:?}"),
    };
    until("there are hints", || {
        both();
        decision().starts_with("topology")
    });
    stuck.set(true);
    until("hints have ended", || {
        both();
        decision() == "defaults: nothing is heard of the leader of rack \"west\""
    });
    assert!(stuck.is_waited_for.load(Ordering::Relaxed), "it was the source");
    stuck.set(false);
    until("they are back", || decision().starts_with("topology"));
    both();
}

#[test]
fn programs_ask_for_their_own_links() {
    let flow = Arc::<Flow>::default();
    let hub = place("hub", "east", None, quiet());
    let other = place("w1", "west", Some(&hub), flow.counters());
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| other.join("training", 1, 2));
        (hub.join("training", 0, 2), second.join().unwrap())
    });
    let mut own = None;
    until("there are hints", || {
        own = first.hints().ok();
        own.is_some()
    });
    let own = own.unwrap();
    assert_eq!((&own.racks[..], own.links.len()), (&[0, 1][..], 8));
    assert_eq!((own.machines[&0], own.machines[&1]), (0, 1));
    assert_eq!(own.links[0].total, 125e6);
    flow.is_open.store(true, Ordering::Relaxed);
    until("the flow of the other host is seen", || {
        second.hints().is_ok_and(|own| own.links[2].residual < own.links[2].total)
    });
    until("who asks again at once is refused", || {
        let answers = [first.hints(), first.hints()];
        answers
            .iter()
            .any(|answer| matches!(answer, Err(Error::Refused(reason)) if reason.contains("at least 50ms")))
    });
}

#[test]
fn hosts_whose_sockets_are_not_told_count_their_wires() {
    let refuse = || -> Result<Vec<Counter>, SocketError> {
        Err(SocketError::Refused(std::io::Error::from(std::io::ErrorKind::PermissionDenied)))
    };
    let hub = place("hub", "east", None, Given::new(refuse));
    let other = place("w1", "west", Some(&hub), Given::new(refuse));
    until("both say so", || {
        let is_told = |counted: &Option<Counted>| matches!(counted, Some(Counted::Wires { reason }) if reason.contains("denied"));
        view(&hub).hosts.iter().filter(|host| is_told(&host.counted)).count() == 2
    });
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| other.join("training", 1, 2));
        (hub.join("training", 0, 2), second.join().unwrap())
    });
    until("the wires of the group are counted", || {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| sum(&second));
            assert_eq!((sum(&first), other.join().unwrap()), (2, 2));
        });
        let view = view(&hub);
        [("hub", "east"), ("w1", "west")].iter().all(|(host, rack)| {
            let up = link(&view, Some(host), rack, Way::Up);
            let rack = link(&view, None, rack, Way::Up);
            [up, rack].iter().flatten().filter(|link| link.load.residual < link.load.total).count() == 2
        })
    });
}
