//! Paths that fail under lanes.
use crate::relay::{Mode, Relay};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{ErrorKind, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tidemill_link::transport::{Acceptor, Class, Line, Stream, Transport};
use tidemill_session::{Health, Hellos, Options, PathFigures, Policy, SessionTransport, Sessions};

const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a round trip.
const BYTES: usize = 100_000;

fn options() -> Options {
    let ms = Duration::from_millis;
    let hellos = Hellos { every: ms(50), idle: ms(50), misses: 3, trial: ms(100) };
    Options { hellos, ..Options::default() }
}

/// Two processes with two paths between them.
struct Lab {
    near: SessionTransport,
    far: SessionTransport,
    acceptor: Box<dyn Acceptor>,
    paths: Vec<Relay>,
    place: String,
}

impl Lab {
    fn new(names: &[&str], options: Options) -> Self {
        let of = |options| SessionTransport(Sessions::new(options).unwrap());
        let (near, far) = (of(options.clone()), of(options));
        let acceptor = far.listen("127.0.0.1:0").unwrap();
        let paths: Vec<Relay> = names.iter().map(|_| Relay::to(&acceptor.place())).collect();
        let doors = names.iter().zip(&paths).map(|(name, relay)| format!("{name}={}", relay.at));
        let place = doors.collect::<Vec<_>>().join(",");
        Self { near, acceptor, paths, place, far }
    }

    fn connect(&self) -> (Box<dyn Stream>, Box<dyn Stream>) {
        let dialled = self.near.dial(&self.place, PATIENCE).unwrap();
        loop {
            match self.acceptor.accept() {
                Ok(accepted) => return (dialled, accepted),
                Err(error) if error.kind() == ErrorKind::WouldBlock => wait(self.acceptor.readable()),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn figures(&self, path: &str) -> PathFigures {
        self.near.0.figures().into_iter().find(|figures| figures.path == path).unwrap()
    }

    /// Waits until the figures of a path are so.
    fn until(&self, path: &str, is_so: impl Fn(&PathFigures) -> bool) {
        for _ in 0..60_000 {
            if is_so(&self.figures(path)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("it never is: {:?}", self.near.0.figures());
    }
}

fn wait(descriptor: std::os::fd::BorrowedFd<'_>) {
    let timeout = PATIENCE.try_into().unwrap();
    let came = poll(&mut [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)], Some(&timeout)).unwrap();
    assert!(came > 0, "nothing came");
}

fn write_all(stream: &mut dyn Stream, mut bytes: &[u8]) -> std::io::Result<()> {
    let line = stream.line();
    while !bytes.is_empty() {
        match stream.write(&[IoSlice::new(bytes)]) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(line.writable().unwrap()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn read_exactly(stream: &mut dyn Stream, into: &mut [u8]) -> std::io::Result<()> {
    let (line, mut done) = (stream.line(), 0);
    while done < into.len() {
        match stream.read(&mut into[done..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(line.readable()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn pattern(round: u64) -> Vec<u8> {
    (0..BYTES as u64).map(|n| (n.wrapping_mul(round + 7) % 251) as u8).collect()
}

/// Sends round trips in both directions until it is stopped, and checks each byte. Counts them.
struct Traffic {
    rounds: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<Box<dyn Stream>>>,
}

impl Traffic {
    fn over((one, other): (Box<dyn Stream>, Box<dyn Stream>)) -> Self {
        let (rounds, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (counted, stopped) = (Arc::clone(&rounds), Arc::clone(&stop));
        let asks = move || {
            let (mut stream, mut read) = (one, vec![0; BYTES]);
            let mut round = 0;
            while !stopped.load(Ordering::Acquire) {
                write_all(&mut *stream, &[1]).unwrap();
                write_all(&mut *stream, &pattern(round)).unwrap();
                read_exactly(&mut *stream, &mut read).unwrap();
                assert!(read == pattern(round + 1), "round {round} reads something else");
                round += 1;
                counted.store(round, Ordering::Release);
            }
            write_all(&mut *stream, &[0]).unwrap();
            stream
        };
        let answers = move || {
            let (mut stream, mut read, mut goes_on) = (other, vec![0; BYTES], [0]);
            let mut round = 0;
            loop {
                read_exactly(&mut *stream, &mut goes_on).unwrap();
                if goes_on == [0] {
                    return stream;
                }
                read_exactly(&mut *stream, &mut read).unwrap();
                assert!(read == pattern(round), "round {round} is something else");
                round += 1;
                write_all(&mut *stream, &pattern(round)).unwrap();
            }
        };
        Self { rounds, stop, threads: vec![std::thread::spawn(asks), std::thread::spawn(answers)] }
    }

    /// Waits for some more round trips.
    fn more(&self) {
        let begin = self.rounds.load(Ordering::Acquire);
        while self.rounds.load(Ordering::Acquire) < begin + 3 {
            assert!(self.threads.iter().all(|thread| !thread.is_finished()), "a side has ended");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads {
            drop(thread.join().unwrap());
        }
    }
}

fn survives(fault: Mode) {
    let lab = Lab::new(&["fibre", "lte"], options());
    let traffic = Traffic::over(lab.connect());
    traffic.more();
    lab.until("lte", |lte| lte.health == Health::Up);
    assert_eq!(lab.figures("fibre").lanes, 1);
    lab.paths[0].set(fault);
    lab.until("lte", |lte| lte.lanes == 1);
    traffic.more();
    let fibre = lab.figures("fibre");
    assert!(fibre.silences == 1 && fibre.moves == 1 && fibre.health == Health::Silent, "{fibre:?}");
    assert!(lab.paths[1].passed() > BYTES as u64);
    traffic.end();
}

#[test]
fn a_lane_continues_over_another_path() {
    survives(Mode::Drops);
}

#[test]
fn a_path_that_drops_what_is_sent_is_left() {
    survives(Mode::DropsForth);
}

#[test]
fn a_path_that_drops_what_is_answered_is_left() {
    survives(Mode::DropsBack);
}

#[test]
fn a_connection_that_breaks_is_made_again_on_the_only_path() {
    let lab = Lab::new(&["only"], options());
    let traffic = Traffic::over(lab.connect());
    for _ in 0..5 {
        traffic.more();
        lab.until("only", |only| only.health == Health::Up);
        let before = lab.figures("only");
        lab.paths[0].reset();
        lab.until("only", |only| only.health == Health::Up && only.silences > before.silences);
    }
    traffic.more();
    traffic.end();
}

#[test]
fn a_lane_goes_back_to_the_path_that_is_preferred() {
    let lab = Lab::new(&["fibre", "lte"], options());
    let traffic = Traffic::over(lab.connect());
    lab.until("fibre", |fibre| fibre.health == Health::Up);
    lab.paths[0].set(Mode::Drops);
    lab.until("lte", |lte| lte.lanes == 1);
    traffic.more();
    lab.paths[0].set(Mode::Passes);
    lab.until("fibre", |fibre| fibre.lanes == 1);
    traffic.more();
    assert_eq!(lab.figures("lte").moves, 1);
    traffic.end();
}

#[test]
fn a_drained_path_carries_nothing_until_it_is_wanted_again() {
    let lab = Lab::new(&["fibre", "lte"], options());
    let traffic = Traffic::over(lab.connect());
    lab.until("fibre", |fibre| fibre.health == Health::Up);
    lab.near.0.drain(vec!["fibre".into()]);
    lab.until("lte", |lte| lte.lanes == 1);
    traffic.more();
    let fibre = lab.figures("fibre");
    assert!(fibre.is_drained && fibre.health == Health::Up && fibre.silences == 0, "{fibre:?}");
    // New lanes avoid it, too.
    let (_one, _other) = lab.connect();
    assert_eq!((lab.figures("fibre").lanes, lab.figures("lte").lanes), (0, 2));
    lab.near.0.drain(Vec::new());
    lab.until("fibre", |fibre| fibre.lanes == 2);
    traffic.more();
    traffic.end();
}

#[test]
fn the_side_that_accepted_drains_a_path_too() {
    let lab = Lab::new(&["fibre", "lte"], options());
    let traffic = Traffic::over(lab.connect());
    lab.until("fibre", |fibre| fibre.health == Health::Up);
    lab.far.0.drain(vec!["fibre".into()]);
    lab.until("lte", |lte| lte.lanes == 1);
    assert!(lab.figures("fibre").is_drained);
    traffic.more();
    lab.far.0.drain(Vec::new());
    lab.until("fibre", |fibre| fibre.lanes == 1);
    traffic.end();
}

#[test]
fn lanes_are_spread_over_the_paths_that_work() {
    let lab = Lab::new(&["a", "b"], Options { policy: Policy::Spread, ..options() });
    let first = lab.connect();
    lab.until("a", |a| a.health == Health::Up);
    lab.until("b", |b| b.health == Health::Up);
    let mut others: Vec<_> = (0..9).map(|_| lab.connect()).collect();
    lab.until("a", |a| a.lanes == 5);
    lab.until("b", |b| b.lanes == 5);
    lab.paths[0].set(Mode::Drops);
    lab.until("b", |b| b.lanes == 10);
    others.push(first);
    for (one, other) in &mut others {
        write_all(&mut **one, b"still here").unwrap();
        let mut read = [0; 10];
        read_exactly(&mut **other, &mut read).unwrap();
        assert_eq!(&read, b"still here");
    }
}

/// The last path: records are told at once, messages wait.
#[test]
fn a_cut_ends_a_lane_of_records_and_control_waits() {
    let lab = Lab::new(&["fibre", "lte"], options());
    let (mut records, _other) = lab.connect();
    let (mut control, mut answers) = lab.connect();
    for stream in [&mut control, &mut answers] {
        stream.classify(Class::Control);
    }
    let traffic = Traffic::over((control, answers));
    lab.until("fibre", |fibre| fibre.health == Health::Up);
    lab.until("lte", |lte| lte.health == Health::Up);
    traffic.more();
    lab.paths.iter().for_each(|path| path.set(Mode::Drops));
    let error = read_exactly(&mut *records, &mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(lab.near.0.figures().iter().all(|path| path.silences == 1), "{:?}", lab.near.0.figures());
    lab.paths[1].set(Mode::Passes);
    lab.until("lte", |lte| lte.lanes == 1);
    traffic.more();
    traffic.end();
}

/// A process that is gone ends its connections: nobody waits for a path to it, and a message is no exception.
#[test]
fn a_process_that_is_gone_is_noticed_at_once_by_the_side_that_accepted() {
    let mut lab = Lab::new(&["fibre", "lte"], options());
    let (_control, mut answers) = lab.connect();
    answers.classify(Class::Control);
    lab.until("fibre", |fibre| fibre.health == Health::Up);
    lab.until("lte", |lte| lte.health == Health::Up);
    // The system closes the sockets of a process that was killed.
    lab.paths.drain(..).for_each(drop);
    assert!(read_exactly(&mut *answers, &mut [0]).is_err());
}

/// A new connection shows that a path works before its hellos do.
#[test]
fn a_lane_that_is_dialled_after_a_cut_lives() {
    let lab = Lab::new(&["only"], options());
    for _ in 0..5 {
        let (mut one, _other) = lab.connect();
        lab.until("only", |only| only.health == Health::Up);
        lab.paths[0].set(Mode::Drops);
        assert!(read_exactly(&mut *one, &mut [0]).is_err());
        assert_eq!(lab.figures("only").health, Health::Silent);
        lab.paths[0].set(Mode::Passes);
        let traffic = Traffic::over(lab.connect());
        traffic.more();
        lab.until("only", |only| only.health == Health::Up);
        traffic.more();
        traffic.end();
    }
}

#[test]
fn what_was_written_before_the_end_survives_the_path() {
    let lab = Lab::new(&["fibre", "lte"], options());
    let (one, mut other) = lab.connect();
    lab.until("fibre", |fibre| fibre.health == Health::Up);
    lab.until("lte", |lte| lte.health == Health::Up);
    lab.paths[0].set(Mode::Drops);
    let (mut one, sent) = (one, pattern(1));
    write_all(&mut *one, &sent).unwrap();
    drop(one);
    let mut read = vec![0; BYTES];
    read_exactly(&mut *other, &mut read).unwrap();
    assert!(read == sent);
    assert_eq!(read_exactly(&mut *other, &mut [0]).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert_eq!((lab.figures("lte").moves, lab.figures("fibre").moves), (0, 1));
}

/// Each path in turn, while bytes go both ways.
#[test]
fn chaos_of_paths_loses_and_doubles_nothing() {
    let rounds = std::env::var("TIDEMILL_CHAOS_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    let lab = Lab::new(&["fibre", "lte"], options());
    let traffic: Vec<_> = (0..3).map(|_| Traffic::over(lab.connect())).collect();
    for round in 0..rounds {
        let (name, index) = [("fibre", 0), ("lte", 1)][round % 2];
        for path in ["fibre", "lte"] {
            lab.until(path, |path| path.health == Health::Up);
        }
        let before = lab.figures(name).silences;
        match round % 3 {
            0 => lab.paths[index].set(Mode::Drops),
            1 => lab.paths[index].reset(),
            _ => lab.paths[index].set(Mode::DropsBack),
        }
        lab.until(name, |path| path.silences > before);
        traffic.iter().for_each(Traffic::more);
        lab.paths[index].set(Mode::Passes);
    }
    traffic.into_iter().for_each(Traffic::end);
}

/// Bytes that a lane has read ahead are as good as bytes that its carrier has.
#[test]
fn a_lane_is_readable_while_something_was_read_ahead() {
    let lab = Lab::new(&["only"], options());
    let (mut one, mut other) = lab.connect();
    let line = other.line();
    for _ in 0..200 {
        write_all(&mut *one, b"one").unwrap();
        write_all(&mut *one, b"two").unwrap();
        for expected in [b"one", b"two"] {
            wait(line.readable());
            let mut read = [0; 3];
            read_exactly(&mut *other, &mut read).unwrap();
            assert_eq!(&read, expected);
        }
    }
}

/// A write that looks for acknowledgements finds records, and those who wait by edges to read them are woken.
#[test]
fn a_write_wakes_those_who_wait_for_what_it_has_read() {
    use rustix::event::epoll;
    let lab = Lab::new(&["only"], options());
    let (mut one, mut other) = lab.connect();
    let line = one.line();
    let both = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&both, line.readable(), epoll::EventData::new_u64(0), flags).unwrap();
    assert_eq!(one.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    write_all(&mut *other, b"a credit").unwrap();
    wait(line.readable());
    // Far enough for it to look.
    write_all(&mut *one, &vec![1; 600 << 10]).unwrap();
    let mut events = [std::mem::MaybeUninit::<epoll::Event>::uninit(); 4];
    let patience = PATIENCE.try_into().unwrap();
    assert_eq!(epoll::wait(&both, &mut events, Some(&patience)).unwrap().0.len(), 1);
    let mut read = [0; 8];
    read_exactly(&mut *one, &mut read).unwrap();
    assert_eq!(&read, b"a credit");
}

/// Who does not know the number of a session cannot continue its lanes, and the lane does not notice.
#[test]
fn a_stranger_cannot_resume_a_lane() {
    use std::io::{Read, Write};
    let lab = Lab::new(&["only"], options());
    let traffic = Traffic::over(lab.connect());
    traffic.more();
    for (session, asks) in [(7u8, 2u8), (0, 2), (255, 2)] {
        let mut stranger = std::net::TcpStream::connect(lab.acceptor.place()).unwrap();
        let mut preamble = [0; 104];
        preamble[..7].copy_from_slice(b"TMSESSN");
        preamble[7] = 1 << 4 | asks;
        preamble[8..24].fill(session);
        // Lane 1, a later epoch, the only path.
        (preamble[24], preamble[28], preamble[40]) = (1, 9, 4);
        preamble[41..45].copy_from_slice(b"only");
        stranger.write_all(&preamble).unwrap();
        let mut answer = [0; 32];
        stranger.read_exact(&mut answer).unwrap();
        assert_eq!(answer[0], 6, "refused");
    }
    traffic.more();
    assert_eq!(lab.figures("only").silences, 0);
    traffic.end();
}

/// Lines outlive their streams.
#[test]
fn a_line_may_be_used_after_its_stream() {
    let lab = Lab::new(&["only"], options());
    let (one, other) = lab.connect();
    let line: Arc<dyn Line> = one.line();
    drop((one, other));
    wait(line.readable());
    line.hang_up();
}
