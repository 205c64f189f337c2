//! Services that lie: to the one that introduces ranks, and to the other hosts of a group.
use crate::place::{PATIENCE, Place, until};
use std::sync::mpsc::{Receiver, channel};
use tidemill_collective::barrier::{Message, Order, Position};
use tidemill_collective::client::{Group, JoinOptions};
use tidemill_collective::operation::{Numbered, Operation};
use tidemill_collective::peers::{Between, Formed, FromConductor, Key, Running, ToConductor};
use tidemill_collective::protocol::{Failure, FailureKind, Figures};
use tidemill_collective::strategy::Strategy;
use tidemill_collective::topology::{Host, Priority};
use tidemill_link::remote::{
    Address, Connection, Greeting, GroupLane, Incoming, Listener, MessageReader, MessageWriter, Purpose,
    Security, Serving, dial,
};

fn greeting(run: u128, group: &str, lane: GroupLane) -> Greeting {
    Greeting {
        run,
        plan_version: 0,
        purpose: Purpose::Group { host: "liar".to_owned(), group: group.to_owned(), lane },
    }
}

/// A service that is none: it says what a test wants.
struct Liar {
    writer: MessageWriter,
    reader: MessageReader,
    /// Others that connect to it.
    comes: Receiver<Incoming>,
    serving: Serving,
}

impl Liar {
    fn at(place: &Place) -> Self {
        let listener = Listener::bind(&Address::tcp("127.0.0.1:0"), &Security::none()).unwrap();
        let (to, comes) = channel();
        let serving = listener.serve(move |incoming| drop(to.send(incoming))).unwrap();
        let greeting = greeting(0, "", GroupLane::Registration);
        let connection = dial(&place.address(), &Security::none(), &greeting, PATIENCE).unwrap();
        let (writer, reader) = connection.into_messages().unwrap();
        Self { writer, reader, comes, serving }
    }

    fn registered(place: &Place) -> Self {
        let liar = Self::at(place);
        liar.say(&liar.registration(Vec::new()));
        liar
    }

    fn registration(&self, running: Vec<Running>) -> ToConductor {
        let host = Host { name: "liar".to_owned(), ..Host::default() };
        ToConductor::Register { host, address: Some(self.serving.address().clone()), running }
    }

    fn say(&self, message: &ToConductor) {
        self.writer.send(&serde_json::to_vec(message).unwrap()).unwrap();
    }

    fn joins(&self, name: &str, rank: u32, size: u32) {
        let key = Key { user: rustix::process::getuid().as_raw(), name: name.to_owned() };
        self.say(&ToConductor::Join { key, rank, size, priority: Priority::Normal });
    }

    fn formed(&mut self) -> Formed {
        loop {
            let bytes = self.reader.receive().unwrap();
            if let FromConductor::Formed(formed) = serde_json::from_slice(&bytes).unwrap() {
                return *formed;
            }
        }
    }

    /// The connection of messages that the other host of the group makes. Those for bytes are left open.
    fn control(&self, formed: &Formed) -> (Connection, Vec<Incoming>) {
        let mut others = Vec::new();
        loop {
            let incoming = self.comes.recv_timeout(PATIENCE).unwrap();
            if !matches!(incoming.greeting.purpose, Purpose::Group { lane: GroupLane::Control, .. }) {
                others.push(incoming);
                continue;
            }
            let run = u128::from_str_radix(&formed.token, 16).unwrap();
            let own = greeting(run, &formed.key.to_string(), GroupLane::Control);
            return (incoming.accept(&own).unwrap(), others);
        }
    }
}

/// Joins a group with a liar, which says these things to the other host. Returns the error of the honest one.
fn lied_to(place: &Place, liar: &mut Liar, name: &str, lies: &[Between]) -> String {
    std::thread::scope(|scope| {
        let honest = scope.spawn(|| Group::join(&place.options(name, 0, 2)));
        until("the honest one has come", || place.group(name).is_some());
        liar.joins(name, 1, 2);
        let formed = liar.formed();
        let (connection, _wires) = liar.control(&formed);
        let (writer, _reader) = connection.into_messages().unwrap();
        for lie in lies {
            writer.send(&serde_json::to_vec(lie).unwrap()).unwrap();
        }
        let error = honest.join().unwrap().unwrap_err().to_string();
        liar.say(&ToConductor::Leave { key: formed.key, rank: 1 });
        error
    })
}

#[test]
fn a_host_that_lies_ends_its_group_and_is_named() {
    let place = Place::new("a", None);
    let mut liar = Liar::registered(&place);
    until("it is registered", || place.listing().hosts.len() == 2);
    let order =
        |epoch, members: Vec<u32>, hosts| Order { strategy: Strategy::rank_order(epoch, members), hosts };
    let said = |host, launched, order| {
        Between::Barrier(Message { host, position: Position { launched, under: 1, broken: false }, order })
    };
    let mut long_ring = order(2, vec![0, 1], vec![0, 1]);
    long_ring.strategy.channels[0].ring = vec![0; 1_000_000];
    for (number, (lie, word)) in [
        (said(0, 0, order(2, vec![0, 1], vec![0, 1])), "speaks for host 0"),
        (said(1, u64::MAX, order(2, vec![0, 1], vec![0, 1])), "operation 18446744073709551615"),
        (said(1, 0, order(u64::MAX, vec![0, 1], vec![0, 1])), "highest"),
        (said(1, 0, order(2, vec![0, 1, 2], vec![0, 1, 1])), "other hosts"),
        (said(1, 0, long_ring), "each member once"),
    ]
    .into_iter()
    .enumerate()
    {
        let error = lied_to(&place, &mut liar, &format!("lied-{number}"), &[lie]);
        assert!(error.contains(word) && error.contains("liar"), "{error}");
    }
    // Many words are cut, and what is only strange does no harm.
    let operation = Operation::Broadcast { root: u32::MAX };
    let element = tidemill_collective::element::Element::F16;
    let numbered = Numbered::new(u64::MAX, operation, element, u64::MAX);
    let arrived = (0..100_000).map(|rank| (rank, u64::MAX)).collect();
    let failure = Failure {
        kind: FailureKind::Wrong,
        rank: Some(u32::MAX),
        host: "x".repeat(1 << 20),
        text: "y".repeat(1 << 20),
    };
    let lies =
        [Between::Hello { arrived, current: Some(numbered) }, Between::Broken { failure, last: u64::MAX }];
    let error = lied_to(&place, &mut liar, "lied-to", &lies);
    assert!(error.starts_with('y') && error.len() <= 1024, "{} characters", error.len());
    let options = JoinOptions { deadline: PATIENCE, ..place.options("honest", 0, 1) };
    Group::join(&options).unwrap();
}

#[test]
fn a_service_that_lies_harms_no_group_of_others() {
    let place = Place::new("a", None);
    let honest = place.join("honest", 0, 1);
    let key = Key { user: rustix::process::getuid().as_raw(), name: "honest".to_owned() };
    let mut liar = Liar::registered(&place);
    let formed = {
        liar.joins("own", 0, 1);
        liar.formed()
    };
    let mut claimed = Formed { key: key.clone(), ..formed };
    claimed.strategy.epoch = u64::MAX;
    let running = Running {
        key: key.clone(),
        size: u32::MAX,
        priority: Priority::High,
        ranks: (0..100_000).collect(),
        formed: Some(claimed),
    };
    let failure = Failure { kind: FailureKind::Lost, rank: None, host: String::new(), text: "no".to_owned() };
    for message in [
        ToConductor::Leave { key: key.clone(), rank: 0 },
        ToConductor::Broken { key: key.clone(), token: "0".to_owned(), failure, last: 0 },
        ToConductor::Shrink { key: key.clone(), rank: 0, whole: true },
        ToConductor::Figures { key: key.clone(), figures: Figures::default(), trace: Vec::new() },
        ToConductor::Join { key: key.clone(), rank: u32::MAX, size: u32::MAX, priority: Priority::Normal },
        liar.registration(vec![running]),
    ] {
        liar.say(&message);
    }
    // It is read in order, so everything before has been.
    liar.joins("last", 0, 1);
    assert_eq!(liar.formed().key.name, "last");
    let buffer = honest.buffer(tidemill_collective::element::Element::I32, 10).unwrap();
    honest.broadcast(&buffer, 0).unwrap().wait().unwrap();
    let view = place.group("honest").unwrap();
    assert_eq!((view.ranks, view.strategy.unwrap().epoch), (vec![(0, "a".to_owned())], 1));
}

#[test]
fn words_that_are_none_end_the_connection_of_who_says_them() {
    let place = Place::new("a", None);
    for bytes in [&b"{}"[..], b"\xff\xfe", b"[[[[[[[[", b"{\"join\":{}}", &[b'['; 1 << 20]] {
        let mut liar = Liar::registered(&place);
        liar.writer.send(bytes).unwrap();
        while liar.reader.receive().is_ok() {}
    }
    let mut large = Liar::registered(&place);
    // Refused by its length, before so much has come.
    let sent = large.writer.send(&vec![b' '; 17 << 20]);
    assert!(sent.is_err() || large.reader.receive().is_err());
    until("all are forgotten", || place.listing().hosts.len() == 1);
    Group::join(&place.options("good", 0, 1)).unwrap();
}
