//! Readers of packets and messages of groups, for tests with arbitrary bytes: each function says whether the bytes
//! are accepted.
use crate::barrier::{Action, Barrier, Message, Order, Position};
use crate::conductor::{Conductor, Link};
use crate::operation::{Numbered, Operation};
use crate::peers::{Between, Formed, FromConductor, Key, Place, Running, ToConductor};
use crate::policies::Policy;
use crate::policies::ts::Span;
use crate::protocol::{
    Answer, Bench, Call, Failure, FailureKind, Figures, Question, ToProgram, ToService, VERSION,
};
use crate::service::{doubt, order_of};
use crate::strategy::Strategy;
use crate::topology::{Host, Path, Priority};
use crate::type_name::TypeName;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidemill_link::remote::Address;

fn again<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(bytes).ok()?;
    let written = serde_json::to_vec(&value).expect("plain data");
    assert_eq!(serde_json::from_slice::<T>(&written).expect("what was written"), value);
    Some(value)
}

/// A packet of a program or to one, or the answer to a person.
pub fn packet(bytes: &[u8]) -> bool {
    again::<ToService>(bytes).is_some()
        | again::<ToProgram>(bytes).is_some()
        | again::<Answer>(bytes).is_some()
}

/// Lines of a link and a message of a service, all to one conductor that knows two hosts.
pub fn services(bytes: &[u8]) -> bool {
    let mut conductor = Conductor::new(|number| format!("{number:032x}"));
    for link in [1, 2] {
        conductor.hear(link, registration(link, Vec::new()));
    }
    let mut taken = 0;
    for line in bytes.split(|byte| *byte == b'\n') {
        let Some((link, message)) = again::<(Link, ToConductor)>(line) else { continue };
        taken += 1;
        for (_, told) in conductor.hear(link, message) {
            let strategy = match &told {
                FromConductor::Formed(formed) => &formed.strategy,
                FromConductor::Order { strategy, .. } => strategy,
                _ => continue,
            };
            strategy.check().expect("services get strategies that they can follow");
        }
    }
    for link in [1, 2] {
        conductor.lost(link);
    }
    taken > 0
}

/// Lines of the number of a host and its message to another host of its group.
pub fn hosts(bytes: &[u8]) -> bool {
    let formed = formed();
    let mut barrier = Barrier::new(0, order_of(&formed, formed.strategy.clone()));
    let mut taken = 0;
    for line in bytes.split(|byte| *byte == b'\n') {
        let Some((host, between)) = again::<(u32, Between)>(line) else { continue };
        taken += 1;
        let Between::Barrier(message) = between else { continue };
        if doubt(&formed, host, &message).is_some() {
            continue;
        }
        for action in barrier.receive(message) {
            if let Action::Switch(order) = action {
                order.strategy.check().expect("a strategy that can be followed");
                barrier.switched();
            }
        }
        let next = barrier.last() + 1;
        if barrier.may_launch(next) {
            barrier.launched(next);
            barrier.finished(next);
        }
    }
    taken > 0
}

/// The name of a policy.
pub fn policy(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    match text.parse::<Policy>() {
        Ok(policy) => {
            let named = policy.to_string();
            assert_eq!(named.parse::<Policy>().expect("its own name"), policy);
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

fn registration(link: Link, running: Vec<Running>) -> ToConductor {
    let paths = ["fibre", "lte"].map(|name| Path { name: name.to_owned(), rate: 1e8, ..Path::default() });
    let host =
        Host { name: format!("h{link}"), rack: format!("r{link}"), paths: paths.to_vec(), ..Host::default() };
    ToConductor::Register { host, address: Some(Address::tcp("10.0.0.1:7470")), running }
}

fn key() -> Key {
    Key { user: 7, name: "g".to_owned() }
}

fn formed() -> Formed {
    let place = |number: u32| Place {
        host: Host { name: format!("h{number}"), ..Host::default() },
        address: Some(Address::tcp("10.0.0.1:7470")),
        ranks: vec![number],
    };
    let strategy = Strategy::rank_order(1, vec![0, 1, 2]);
    let hosts = (0..3).map(place).collect();
    Formed { key: key(), token: format!("{:032x}", 1), hosts, strategy }
}

fn line(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("plain data")
}

fn lines(values: &[impl Serialize]) -> Vec<u8> {
    values.iter().map(line).collect::<Vec<_>>().join(&b'\n')
}

fn failure() -> Failure {
    Failure {
        kind: FailureKind::Lost,
        rank: Some(1),
        host: "h2".to_owned(),
        text: "rank 1 is gone".to_owned(),
    }
}

/// Returns messages of this version, by the function that reads them.
pub fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let call = Call {
        number: 1,
        operation: Operation::AllReduce { reduction: crate::element::Reduction::Sum },
        element: crate::element::Element::Bf16,
        type_name: TypeName::default(),
        length: 1 << 20,
        buffer: 1,
        offset: 0,
        deadline_ms: 300_000,
        after: true,
        ended: false,
    };
    let join = ToService::Join {
        version: VERSION,
        group: "training".to_owned(),
        rank: 0,
        size: 2,
        deadline_ms: 300_000,
        priority: Priority::High,
    };
    let bench = Bench { ranks: 4, bytes: 1 << 20, time_ms: 10, strategy: Some("locality".to_owned()) };
    let packets = [
        line(&join),
        line(&ToService::Call(call)),
        line(&ToService::Shrink { deadline_ms: 1, whole: true }),
        line(&ToService::Ask { version: VERSION, question: Question::Bench(bench.clone()) }),
        line(&ToProgram::Joined { members: vec![0, 1, 2], epoch: 1 }),
        line(&ToProgram::Ended { number: 3, failure: Some(failure()) }),
        line(&Answer::Refused("no".to_owned())),
    ];
    let join = |link: Link, rank| {
        (link, ToConductor::Join { key: key(), rank, size: 2, priority: Priority::Normal })
    };
    let ask = |link: Link, user, question| (link, ToConductor::Ask { id: 1, user, question });
    let strategy = |name: &str| Question::Strategy { group: "g".to_owned(), strategy: name.to_owned() };
    let trace = (0..8).map(|n| Span { start_us: n * 10_000, end_us: n * 10_000 + 2_000 }).collect();
    let figures = Figures { operations: 8, epoch: 1, ..Figures::default() };
    let token = format!("{:032x}", 1);
    let services = [
        lines(&[
            join(1, 0),
            join(2, 1),
            (1, ToConductor::Figures { key: key(), figures, trace }),
            ask(1, None, strategy("ts:fibre")),
            ask(2, None, strategy("ring:1,0")),
            ask(2, Some(7), Question::List),
            (1, ToConductor::Broken { key: key(), token, failure: failure(), last: 2 }),
            (2, ToConductor::Leave { key: key(), rank: 1 }),
            (1, ToConductor::Shrink { key: key(), rank: 0, whole: false }),
        ]),
        lines(&[
            (
                3,
                registration(
                    3,
                    vec![Running {
                        key: key(),
                        size: 3,
                        priority: Priority::Bulk,
                        ranks: Vec::new(),
                        formed: Some(formed()),
                    }],
                ),
            ),
            ask(1, None, Question::Bench(bench)),
            (1, ToConductor::Measured { group: "bench-1".to_owned(), outcome: Err("no".to_owned()) }),
        ]),
    ];
    let said = |host, epoch| {
        let position = Position { launched: 0, under: 1, broken: false };
        let order: Order = order_of(&formed(), Strategy::rank_order(epoch, vec![0, 1, 2]));
        (host, Between::Barrier(Message { host, position, order }))
    };
    let operation = Operation::Broadcast { root: 0 };
    let current = Numbered {
        type_name: TypeName::new("float64").expect("a name"),
        ..Numbered::new(1, operation, crate::element::Element::I32, 5)
    };
    let hosts = [
        lines(&[
            (1, Between::Hello { arrived: vec![(1, 4)], current: Some(current) }),
            said(1, 2),
            said(2, 2),
            said(1, 3),
            said(2, 3),
        ]),
        line(&(2, Between::Broken { failure: failure(), last: 7 })),
    ];
    let policies = crate::policies::POLICIES
        .map(|(name, _)| name.replace("[:PATH,...]", ":a,b").replace("RANK,...", "1,0"));
    let of = |name: &'static str, samples: Vec<Vec<u8>>| samples.into_iter().map(move |bytes| (name, bytes));
    of("packet", packets.to_vec())
        .chain(of("services", services.to_vec()))
        .chain(of("hosts", hosts.to_vec()))
        .chain(of("policy", policies.map(String::into_bytes).to_vec()))
        .collect()
}
