//! Services on loopback, and programs, which are threads.
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tidemill_collective::client::{Group, JoinOptions, ask};
use tidemill_collective::protocol::{Answer, GroupView, Listing, Question};
use tidemill_collective::service::{Collectives, Options};
use tidemill_collective::topology::Host;
use tidemill_link::remote::Address;

/// Time after which a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A host with a service.
pub(crate) struct Place {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) service: Option<Collectives>,
    pub(crate) options: Options,
}

impl Place {
    /// A host that listens on loopback. Without a conductor it is the conductor.
    pub(crate) fn new(name: &str, conductor: Option<&Self>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let host = Host { name: name.to_owned(), ..Host::default() };
        let options = Options {
            listen: Some(Address::tcp("127.0.0.1:0")),
            conductor: conductor.map(Self::address),
            // A busy machine is no silent host.
            silence: Duration::from_secs(30),
            ..Options::new(folder.path().join("net.sock"), host)
        };
        let mut place = Self { folder, service: None, options };
        place.start();
        place
    }

    pub(crate) fn start(&mut self) {
        self.service = Some(Collectives::start(self.options.clone()).unwrap());
    }

    pub(crate) fn address(&self) -> Address {
        self.service.as_ref().unwrap().address().unwrap()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.options.socket.clone()
    }

    pub(crate) fn options(&self, group: &str, rank: u32, size: u32) -> JoinOptions {
        JoinOptions { service: self.socket(), deadline: PATIENCE, ..JoinOptions::new(group, rank, size) }
    }

    pub(crate) fn join(&self, group: &str, rank: u32, size: u32) -> Group {
        Group::join(&self.options(group, rank, size)).unwrap()
    }

    pub(crate) fn ask(&self, question: Question) -> Answer {
        ask(&self.socket(), question, PATIENCE).unwrap()
    }

    pub(crate) fn listing(&self) -> Listing {
        match self.ask(Question::List) {
            Answer::Listing(listing) => listing,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn group(&self, name: &str) -> Option<GroupView> {
        self.listing().groups.into_iter().find(|group| group.name == name)
    }
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs each rank in a thread of its own. Rank r is at place r modulo their number.
pub(crate) fn with_ranks<T: Send>(
    places: &[&Place],
    group: &str,
    size: u32,
    act: impl Fn(Group) -> T + Sync,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let start = |rank: u32| {
            let act = &act;
            scope.spawn(move || act(places[rank as usize % places.len()].join(group, rank, size)))
        };
        let threads: Vec<_> = (0..size).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
