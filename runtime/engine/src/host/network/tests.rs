#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
use super::*;
use crate::clock::ManualClock;
use crossbeam_channel::{Receiver, unbounded};
use std::sync::Mutex;
use std::sync::atomic::AtomicU32;
use tidemill_link::remote::{Listener, Serving};

const CHANNEL: ChannelId = 0;
const MILLISECOND: Nanoseconds = 1_000_000;

/// A host whose threads begin when the test starts them.
struct Case {
    network: Network,
    clock: Arc<ManualClock>,
    events: Receiver<HostEvent>,
    /// Number of threads that the system refuses, number of requested ones, and the work of those that it gave.
    refused: Arc<AtomicU32>,
    asked: Arc<AtomicU32>,
    works: Arc<Mutex<Vec<Work>>>,
}

fn schema() -> SchemaRef {
    Arc::new(arrow_schema::Schema::empty())
}

fn greeting(role: Role) -> Greeting {
    let purpose = Purpose::Channel { channel: 0, role, incarnation: 1, schema: schema_hash(&schema()) };
    Greeting { run: 7, plan_version: 0, purpose }
}

impl Case {
    /// Makes a host with a receiver, whose sender is on another host.
    fn new(peer: Address) -> Self {
        let (events_of_host, events) = unbounded();
        let clock = Arc::new(ManualClock::new());
        let mut network = Network::new(
            (7, 0),
            Security::none(),
            false,
            ([("hub".to_owned(), peer)].into(), BTreeMap::new()),
            1,
            (Met::default(), Arc::clone(&clock) as Arc<dyn Clock>),
            events_of_host,
        );
        let (refused, asked, works) =
            (Arc::<AtomicU32>::default(), Arc::<AtomicU32>::default(), Arc::<Mutex<Vec<Work>>>::default());
        let of_network = (Arc::clone(&refused), Arc::clone(&asked), Arc::clone(&works));
        network.spawn = Box::new(move |work| {
            let (refused, asked, works) = &of_network;
            asked.fetch_add(1, Ordering::Relaxed);
            if refused.load(Ordering::Relaxed) > 0 {
                refused.fetch_sub(1, Ordering::Relaxed);
                return Err(io::ErrorKind::WouldBlock.into());
            }
            works.lock().unwrap().push(work);
            Ok(())
        });
        Self { network, clock, events, refused, asked, works }
    }

    fn open(&mut self) {
        let command = self.network.open(CHANNEL, Role::Receiver, 1, "hub", (&schema(), None));
        assert!(command.is_none(), "nobody has dialled");
    }

    fn works(&self) -> Vec<Work> {
        std::mem::take(&mut *self.works.lock().unwrap())
    }

    /// Runs the work of a thread: it has dialled, and the slot has a link.
    fn connects(&mut self) -> Box<dyn LinkReceiver> {
        let mut works = self.works();
        assert_eq!(works.len(), 1, "one thread dials");
        works.pop().unwrap()();
        match self.follow() {
            Some(Command::AttachReceiver(CHANNEL, link, 1)) => link,
            _ => panic!("no link"),
        }
    }

    fn follow(&mut self) -> Option<Command> {
        let HostEvent::Network(event) = self.events.try_recv().unwrap() else { panic!("of the network") };
        self.network.follow(event).map(|(_, _, command)| command)
    }

    fn pause(&self) -> u128 {
        self.network.ends[&CHANNEL].pause().as_millis()
    }
}

fn nowhere() -> Address {
    Address::unix("@tidemill-nothing-listens-here")
}

#[test]
fn a_thread_that_cannot_be_started_is_asked_for_again_after_a_while() {
    let mut case = Case::new(nowhere());
    case.refused.store(3, Ordering::Relaxed);
    case.open();
    for (tries, pause) in [(1, 10), (2, 20), (3, 40)] {
        // The fault: there was no thread.
        assert!(case.works().is_empty());
        assert_eq!(case.asked.load(Ordering::Relaxed), tries);
        let due = case.clock.now() + pause * MILLISECOND;
        assert_eq!(case.network.next_try(), Some(due));
        case.clock.advance(pause * MILLISECOND - 1);
        case.network.try_again();
        assert_eq!(case.asked.load(Ordering::Relaxed), tries, "not before its time");
        case.clock.advance(1);
        case.network.try_again();
    }
    assert_eq!((case.asked.load(Ordering::Relaxed), case.works().len()), (4, 1));
    assert_eq!(case.network.next_try(), None);
    assert!(case.network.ends[&CHANNEL].is_told);
}

/// Where the slot restarts, or has ended, the dialling for the former one stops.
#[test]
fn what_is_not_wanted_any_more_is_not_dialled() {
    let mut case = Case::new(nowhere());
    case.refused.store(1, Ordering::Relaxed);
    case.open();
    assert!(case.network.next_try().is_some());
    case.network.finish(CHANNEL);
    assert_eq!(case.network.next_try(), None);
    case.clock.advance(1000 * MILLISECOND);
    case.network.try_again();
    assert_eq!(case.asked.load(Ordering::Relaxed), 1);
}

/// Over the next connection it would be as large.
#[test]
fn a_frame_that_is_too_large_is_told_and_cuts_nothing() {
    let (events_of_host, events) = unbounded();
    let has_heard = Arc::default();
    let mut tell = CutReporter {
        of: Watched { channel: CHANNEL, through: None, generation: 1, has_heard, events: events_of_host },
        told: false,
    };
    let large = tell.check::<()>(Err(LinkError::TooLarge(5)));
    assert!(matches!(large, Err(LinkError::TooLarge(5))) && events.is_empty());
    let damaged = tell.check::<()>(Err(LinkError::Damaged("x".into())));
    assert!(matches!(damaged, Err(LinkError::Lost)) && events.len() == 1);
}

/// A host that accepts connections for the channel, sends something over each and ends it.
fn peer(say: impl Fn(&mut dyn LinkSender) + Send + Sync + 'static) -> Serving {
    let listener = Listener::bind(&Address::unix("@"), &Security::none()).unwrap();
    let serve = move |incoming: Incoming| {
        let connection = incoming.accept(&greeting(Role::Sender)).unwrap();
        say(&mut *connection.into_sender(schema()).unwrap());
    };
    listener.serve(serve).unwrap()
}

/// Receives until the link is cut. Returns whether anything came.
fn until_it_is_cut(mut link: Box<dyn LinkReceiver>) -> bool {
    let mut came = false;
    loop {
        link.clear();
        link.look();
        match link.receive() {
            Ok(Some(_)) => came = true,
            Ok(None) => std::thread::yield_now(),
            Err(_) => return came,
        }
    }
}

#[test]
fn a_channel_over_which_nothing_comes_is_dialled_less_and_less() {
    let speaks = Arc::new(AtomicBool::new(false));
    let is_speaking = Arc::clone(&speaks);
    let serving = peer(move |sender| {
        if is_speaking.load(Ordering::Acquire) {
            let header = crate::frame::Header { incarnation: 1, sequence: 0, sent_at: 0, cost: 0 };
            let content = crate::frame::Content::Frontier { epoch: 0, rows: 0, steps: Vec::new() };
            sender.send(Frame { header, content }).unwrap();
        }
    });
    let mut case = Case::new(serving.address().clone());
    case.open();
    let mut pauses = Vec::new();
    for _ in 0..3 {
        let link = case.connects();
        // The fault: it is cut before anything has come.
        assert!(!until_it_is_cut(link));
        assert!(case.follow().is_none());
        pauses.push(case.pause());
    }
    assert_eq!(pauses, [10, 20, 40]);
    speaks.store(true, Ordering::Release);
    let link = case.connects();
    assert!(until_it_is_cut(link));
    assert!(case.follow().is_none());
    assert_eq!(case.pause(), 5, "it is a connection that was cut, as happens");
}

#[test]
fn pauses_have_an_end() {
    let mut case = Case::new(nowhere());
    case.open();
    let end = case.network.ends.get_mut(&CHANNEL).unwrap();
    end.failures = u32::MAX;
    end.failed();
    assert_eq!(end.pause(), LONGEST_PAUSE);
}
