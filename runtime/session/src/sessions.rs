//! All sessions of a process, and the thread that keeps them.
use crate::Options;
use crate::clock::now;
use crate::dialling;
use crate::door::{Arrival, Door};
use crate::header::{Asks, BYTES, Header, Kind, Preamble};
use crate::lane::{Lane, LaneStream, Search, Under};
use crate::place::Place;
use crate::session::{LaneEntry, Session, TRY, introduce};
use ring::rand::{SecureRandom, SystemRandom};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tidemill_link::transport::{Class, Health, Line, PEER_TIMEOUT, PathFigures, Stream, tcp_stream};
use tidemill_link::wake::Waker;

/// Time that a session without lanes is kept.
const KEPT: Duration = Duration::from_secs(10);
/// Time that the side that accepted waits for a lane that lost its carrier while its path works.
const COMES_BACK: Duration = Duration::from_secs(3);
/// Time that a lane that others dialled waits, after its stream was dropped, for its first acknowledgement.
const STRANGER: Duration = Duration::from_secs(3);
/// Time that a lane waits for a process that ended all its connections.
const GONE: Duration = Duration::from_millis(300);
/// Pause between two searches of one lane.
const SEARCH_AGAIN: Duration = Duration::from_millis(50);
/// Sessions that others may have with this process.
const ACCEPTED: usize = 1024;
/// Lateness of the thread from which on paths are excused: it stood still, and what came waits to be read.
const LATE: Duration = Duration::from_millis(20);

struct State {
    options: Options,
    doors: Vec<Weak<Door>>,
    sessions: Vec<Session>,
    /// The thread runs.
    is_kept: bool,
}

/// All sessions of a process.
pub struct Sessions {
    state: Mutex<State>,
    waker: Arc<Waker>,
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sessions").finish_non_exhaustive()
    }
}

/// What a lane needs next.
enum Step {
    Dial { make_before_break: bool },
    Fail(ErrorKind),
    Drop,
    Work,
    None,
}

impl Sessions {
    /// Makes the sessions of a process; nothing runs before one listens or dials.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new(options: Options) -> io::Result<Arc<Self>> {
        let state = State { options, doors: Vec::new(), sessions: Vec::new(), is_kept: false };
        Ok(Arc::new(Self { state: Mutex::new(state), waker: Arc::new(Waker::new()?) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the options of sessions from now on; the drained paths also of those that exist.
    pub fn configure(&self, options: Options) {
        let mut state = self.state();
        for session in &mut state.sessions {
            session.drain(&options.drained);
        }
        state.options = options;
        self.waker.wake();
    }

    /// Returns the options.
    pub fn options(&self) -> Options {
        self.state().options.clone()
    }

    /// Moves lanes off these paths where another one works, and back to all others.
    pub fn drain(&self, paths: Vec<String>) {
        let mut options = self.options();
        options.drained = paths;
        self.configure(options);
    }

    /// Returns the figures of all paths that this process dials, by place and in their order.
    pub fn figures(&self) -> Vec<PathFigures> {
        let state = self.state();
        let mut dialled: Vec<&Session> = state.sessions.iter().filter(|one| one.is_dialled()).collect();
        dialled.sort_by(|a, b| a.place.cmp(&b.place));
        dialled.into_iter().flat_map(Session::figures).collect()
    }

    /// Returns the number of sessions, with those that others dialled.
    pub fn count(&self) -> usize {
        self.state().sessions.len()
    }

    /// Keeps the paths to a place as long as the process lives, also without lanes.
    ///
    /// # Errors
    /// When the text is no place, or a name in it has no address.
    pub fn watch(self: &Arc<Self>, text: &str) -> io::Result<()> {
        let place = crate::transport::place(text)?;
        let addresses = resolve(&place)?;
        let mut state = self.state();
        self.keep(&mut state)?;
        let mut session = Session::dialled(random()?, text, &place, &state.options, now());
        session.resolved(&addresses);
        session.dialling += 1;
        state.sessions.push(session);
        self.waker.wake();
        Ok(())
    }

    pub(crate) fn listen(self: &Arc<Self>, place: &Place) -> io::Result<Arc<Door>> {
        let mut state = self.state();
        let door = Arc::new(Door::open(place, &state.options.paths, Arc::clone(&self.waker))?);
        state.doors.retain(|door| door.strong_count() > 0);
        state.doors.push(Arc::downgrade(&door));
        self.keep(&mut state)?;
        drop(state);
        self.waker.wake();
        Ok(door)
    }

    /// Starts the thread that keeps the sessions.
    fn keep(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        if !state.is_kept {
            let (all, waker) = (Arc::downgrade(self), Arc::clone(&self.waker));
            let keep = move || keep(&all, &waker);
            std::thread::Builder::new().name("tm-session".into()).spawn(keep)?;
            state.is_kept = true;
        }
        Ok(())
    }

    /// Connects a new lane.
    pub(crate) fn dial(
        self: &Arc<Self>,
        text: &str,
        place: &Place,
        timeout: Duration,
    ) -> io::Result<LaneStream> {
        let addresses = resolve(place)?;
        let (id, number, candidates) = {
            let mut state = self.state();
            self.keep(&mut state)?;
            let session = match state.sessions.iter().position(|one| one.place.as_deref() == Some(text)) {
                Some(index) => &mut state.sessions[index],
                None => {
                    let new = Session::dialled(random()?, text, place, &state.options, now());
                    state.sessions.push(new);
                    state.sessions.last_mut().ok_or(ErrorKind::Other)?
                }
            };
            session.resolved(&addresses);
            session.dialling += 1;
            let number = session.next_lane;
            session.next_lane += 1;
            (session.id, number, session.candidates(number, now()))
        };
        self.waker.wake();
        let connected = dialling::first(&candidates, timeout);
        let mut state = self.state();
        let Some(session) = state.sessions.iter_mut().find(|one| one.id == id) else {
            return Err(ErrorKind::ConnectionAborted.into());
        };
        session.dialling -= 1;
        session.empty_since = now();
        let (index, socket) = connected?;
        let path = session.paths[index].route.id.clone();
        let preamble = Preamble { asks: Asks::New, session: id, lane: number, epoch: 0, sequence: 0, path };
        let stream = introduce(socket, &preamble)?;
        let under = Under { stream, path: index, traffic: Arc::clone(&session.paths[index].traffic) };
        let lane = Arc::new(Lane::new(number, under, Arc::clone(&self.waker))?);
        let entry = LaneEntry { lane: Arc::clone(&lane), next_search: Duration::ZERO };
        session.lanes.insert(number, entry);
        drop(state);
        self.waker.wake();
        Ok(LaneStream(lane))
    }

    /// Dials for a lane of a session until one path answers or all have failed.
    fn search(
        self: &Arc<Self>,
        (id, lane): (u128, Arc<Lane>),
        candidates: Vec<dialling::Candidate>,
        names: Vec<String>,
    ) {
        let all = Arc::clone(self);
        let (epoch, taken) = lane.begin_search();
        let searching = Arc::clone(&lane);
        let work = move || {
            let found = dialling::first(&candidates, TRY).and_then(|(path, socket)| {
                let name = names.get(path).cloned().unwrap_or_default();
                let asks = Asks::Resume;
                let lane = searching.number;
                let preamble = Preamble { asks, session: id, lane, epoch, sequence: taken, path: name };
                let mut stream = introduce(socket, &preamble)?;
                Ok((path, answer(&mut *stream)?, stream))
            });
            let is_refused = match found {
                Ok((path, Some(taken), stream)) => {
                    let before = searching.look().last_path;
                    let traffic = {
                        let mut state = all.state();
                        let session = state.sessions.iter_mut().find(|one| one.id == id);
                        session.and_then(|session| {
                            if let Some(left) = session.paths.get_mut(before).filter(|_| before != path) {
                                left.moves += 1;
                            }
                            session.paths.get(path).map(|path| Arc::clone(&path.traffic))
                        })
                    };
                    let adopted = traffic.is_some_and(|traffic| {
                        searching.adopt(Under { stream, path, traffic }, epoch, taken)
                    });
                    if adopted {
                        return;
                    }
                    true
                }
                Ok((_, None, _)) => true,
                Err(error) => error.kind() == ErrorKind::ConnectionRefused,
            };
            searching.end_search(is_refused);
        };
        if std::thread::Builder::new().name("tm-path".into()).spawn(work).is_err() {
            // Tried again after a pause.
            lane.end_search(false);
        }
    }

    /// Takes what has arrived at the doors.
    fn receive(&self, state: &mut State, time: Duration) {
        let doors: Vec<Arc<Door>> = state.doors.iter().filter_map(Weak::upgrade).collect();
        for door in doors {
            for Arrival { preamble, stream } in door.arrivals(time) {
                let known = state.sessions.iter().position(|one| one.id == preamble.session);
                let index = match known {
                    Some(index) if state.sessions[index].is_dialled() => {
                        // This process dialled itself: the sides need sessions of their own.
                        let accepted = |one: &Session| one.id == !preamble.session && !one.is_dialled();
                        state.sessions.iter().position(accepted)
                    }
                    other => other,
                };
                let is_own = known.is_some_and(|index| state.sessions[index].is_dialled());
                let index = index.or_else(|| {
                    let accepted = || state.sessions.iter().enumerate().filter(|(_, one)| !one.is_dialled());
                    if preamble.asks == Asks::Resume {
                        return None;
                    }
                    if accepted().count() >= ACCEPTED {
                        // Anybody can begin a session; one that carries something stays.
                        let empty = accepted().filter(|(_, one)| one.lanes.is_empty());
                        let oldest = empty.min_by_key(|(_, one)| one.empty_since).map(|(index, _)| index)?;
                        state.sessions.remove(oldest);
                    }
                    let id = if is_own { !preamble.session } else { preamble.session };
                    state.sessions.push(Session::accepted(id, &state.options, time));
                    Some(state.sessions.len() - 1)
                });
                let session = index.and_then(|index| state.sessions.get_mut(index));
                self.admit(session, &door, preamble, stream, time);
            }
        }
    }

    fn admit(
        &self,
        session: Option<&mut Session>,
        door: &Door,
        preamble: Preamble,
        mut stream: Box<dyn Stream>,
        time: Duration,
    ) {
        let path = session.and_then(|session| session.path_named(&preamble.path).map(|path| (session, path)));
        let Some((session, path)) = path else {
            refuse(&mut *stream, preamble.lane);
            return;
        };
        session.empty_since = time;
        let traffic = Arc::clone(&session.paths[path].traffic);
        match preamble.asks {
            Asks::Hello => session.greeted(path, stream, time),
            Asks::New => {
                let under = Under { stream, path, traffic };
                let Ok(lane) = Lane::new(preamble.lane, under, Arc::clone(&self.waker)) else { return };
                if session.lanes.contains_key(&preamble.lane) {
                    return;
                }
                let lane = Arc::new(lane);
                let entry = LaneEntry { lane: Arc::clone(&lane), next_search: Duration::ZERO };
                session.lanes.insert(preamble.lane, entry);
                door.deliver(LaneStream(lane));
            }
            Asks::Resume => {
                let lane = session.lanes.get(&preamble.lane).map(|entry| Arc::clone(&entry.lane));
                let is_newer = |lane: &Arc<Lane>| preamble.epoch > lane.look().epoch;
                let Some(lane) = lane.filter(is_newer) else {
                    refuse(&mut *stream, preamble.lane);
                    return;
                };
                // Nothing is read from the carrier before after this.
                lane.give_up_carrier();
                let answer = word(Kind::Resumed, preamble.lane, lane.taken());
                let sent = stream.write(&[IoSlice::new(&answer)]);
                let is_sent = sent.is_ok_and(|count| count == BYTES);
                if is_sent {
                    // Acknowledgements may have overtaken what it says.
                    let taken = preamble.sequence.max(lane.acknowledged());
                    lane.adopt(Under { stream, path, traffic }, preamble.epoch, taken);
                }
            }
        }
    }

    /// Does what is due. Returns when to look again at the latest.
    fn look(self: &Arc<Self>, late: Duration) -> Duration {
        let time = now();
        let mut state = self.state();
        let state = &mut *state;
        self.receive(state, time);
        let mut next = time + Duration::from_secs(5);
        for paused in state.doors.iter().filter_map(Weak::upgrade).filter_map(|door| door.pauses(time)) {
            next = next.min(paused);
        }
        for session in &mut state.sessions {
            session.keep_paths(time, late);
            next = next.min(self.keep_lanes(session, time));
            if !session.lanes.is_empty() || session.dialling > 0 {
                session.empty_since = time;
            } else if session.is_dialled() || !session.has_greetings() {
                next = next.min(session.empty_since + KEPT);
            }
            next = next.min(session.next_look(time));
        }
        state.sessions.retain(|session| {
            let is_left = session.lanes.is_empty()
                && session.dialling == 0
                && time >= session.empty_since + KEPT
                && (session.is_dialled() || !session.has_greetings());
            !is_left
        });
        state.doors.retain(|door| door.strong_count() > 0);
        next.max(time + Duration::from_millis(1))
    }

    /// Does what the lanes of a session need. Returns when to look at them again at the latest.
    fn keep_lanes(self: &Arc<Self>, session: &mut Session, time: Duration) -> Duration {
        let mut next = time + Duration::from_secs(5);
        let cut = session.cut_since().filter(|since| time >= *since);
        let numbers: Vec<u32> = session.lanes.keys().copied().collect();
        for number in numbers {
            let Some(entry) = session.lanes.get(&number) else { continue };
            let lane = Arc::clone(&entry.lane);
            match step(session, number, entry, cut, time) {
                Step::None if entry.next_search > time => next = next.min(entry.next_search),
                Step::None => {}
                Step::Work => lane.work(),
                Step::Fail(why) => {
                    tracing::debug!(number, "a lane ends: {why}");
                    lane.fail(why);
                }
                Step::Drop => drop(session.lanes.remove(&number)),
                Step::Dial { make_before_break } => {
                    if !make_before_break {
                        lane.give_up_carrier();
                    }
                    let candidates = session.candidates(number, time);
                    let names = session.paths.iter().map(|path| path.route.id.clone()).collect();
                    tracing::debug!(number, make_before_break, "a lane dials");
                    if let Some(entry) = session.lanes.get_mut(&number) {
                        entry.next_search = time + SEARCH_AGAIN;
                    }
                    self.search((session.id, lane), candidates, names);
                }
            }
        }
        next
    }

    /// Everything that the thread waits for.
    fn waits(&self) -> Vec<(Wait, PollFlags)> {
        let state = self.state();
        let mut waits = Vec::new();
        for door in state.doors.iter().filter_map(Weak::upgrade) {
            waits.extend(door.waits().into_iter().map(|wait| (wait, PollFlags::IN)));
        }
        for session in &state.sessions {
            let (lines, connecting) = session.lines();
            waits.extend(lines.into_iter().map(|line| (Wait::Line(line), PollFlags::IN)));
            waits.extend(connecting.into_iter().map(|socket| (Wait::Socket(socket), PollFlags::OUT)));
            for entry in session.lanes.values() {
                let look = entry.lane.look();
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::OUT, look.must_send);
                flags.set(PollFlags::IN, look.left_at.is_some());
                if let Some(line) = entry.lane.line().filter(|_| !flags.is_empty()) {
                    waits.push((Wait::Line(line), flags));
                }
            }
        }
        waits
    }
}

/// What the next step of a lane is.
fn step(session: &Session, number: u32, entry: &LaneEntry, cut: Option<Duration>, time: Duration) -> Step {
    let look = entry.lane.look();
    if look.is_over {
        return Step::Drop;
    }
    if look.has_failed {
        return Step::None;
    }
    // A stranger who is sent away acknowledges nothing; a peer does so at the end at the latest.
    let lingers = if session.is_dialled() || look.is_acknowledged { PEER_TIMEOUT } else { STRANGER };
    if look.left_at.is_some_and(|left| time > left + lingers) {
        return Step::Fail(ErrorKind::TimedOut);
    }
    if look.search == Search::Refused {
        return Step::Fail(ErrorKind::ConnectionReset);
    }
    let health = |path: usize| session.paths[path].detector.health();
    let is_silent = look.path.is_none_or(|path| health(path) == Health::Silent);
    if let Some(since) = cut.filter(|_| is_silent) {
        // A carrier that is newer than the silence shows that the path works: hellos follow.
        let silent_since = look.path.map(|path| session.paths[path].detector.silent_since());
        let own = match silent_since {
            None => look.lost_at,
            Some(silent) if look.carried_since > silent => look.carried_since + TRY,
            Some(_) => since,
        };
        let since = since.max(own);
        let hold = if session.is_gone() { look.hold.min(GONE) } else { look.hold };
        if time >= since + hold {
            return Step::Fail(ErrorKind::TimedOut);
        }
    }
    let may_dial = session.is_dialled() && look.search != Search::Dials && time >= entry.next_search;
    match look.path {
        None if look.search == Search::Wanted && may_dial => Step::Dial { make_before_break: false },
        None if !session.is_dialled() && cut.is_none() && time > look.lost_at + COMES_BACK.max(look.hold) => {
            Step::Fail(ErrorKind::TimedOut)
        }
        None => Step::None,
        Some(path) if may_dial => {
            let best = session.order(number, time)[0];
            let can = best != path && health(best) == Health::Up;
            if can && is_silent {
                Step::Dial { make_before_break: false }
            } else if can
                && session.paths[best].is_worth_a_move(&session.paths[path], time)
                && !look.is_ending
            {
                Step::Dial { make_before_break: true }
            } else if look.must_send || look.left_at.is_some() {
                Step::Work
            } else {
                Step::None
            }
        }
        Some(_) if look.must_send || look.left_at.is_some() => Step::Work,
        Some(_) => Step::None,
    }
}

/// Something that the thread waits for.
pub(crate) enum Wait {
    Line(Arc<dyn Line>),
    Socket(Arc<OwnedFd>),
    Listener(Arc<std::net::TcpListener>),
}

impl Wait {
    fn poll(&self, flags: PollFlags) -> PollFd<'_> {
        match self {
            Self::Line(line) => PollFd::from_borrowed_fd(line.readable(), flags),
            Self::Socket(socket) => PollFd::from_borrowed_fd(socket.as_fd(), flags),
            Self::Listener(listener) => PollFd::from_borrowed_fd(listener.as_fd(), flags),
        }
    }
}

/// Keeps the sessions until they are dropped.
fn keep(all: &Weak<Sessions>, waker: &Waker) {
    let mut late = Duration::ZERO;
    loop {
        waker.clear();
        let Some(sessions) = all.upgrade() else { return };
        let begun = now();
        let next = sessions.look(late);
        let looked = now().saturating_sub(begun);
        let waits = sessions.waits();
        drop(sessions);
        let left = next.saturating_sub(now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut fds: Vec<PollFd<'_>> = waits.iter().map(|(wait, flags)| wait.poll(*flags)).collect();
        fds.push(PollFd::new(waker, PollFlags::IN));
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                tracing::error!("cannot wait for the paths of sessions: {error}");
                std::thread::sleep(LATE);
            }
        }
        let beyond = now().saturating_sub(next);
        let beyond = beyond.max(looked);
        late = if beyond > LATE { beyond } else { Duration::ZERO };
    }
}

/// Looks up the names of a place: those that have an address now.
///
/// # Errors
/// When none has.
fn resolve(place: &Place) -> io::Result<BTreeMap<String, Vec<SocketAddr>>> {
    let mut addresses = BTreeMap::new();
    let mut failure = None;
    for door in &place.0 {
        match dialling::resolve(&door.at) {
            Ok(found) => drop(addresses.insert(door.at.clone(), found)),
            Err(error) => failure = Some(error),
        }
    }
    failure.filter(|_| addresses.is_empty()).map_or(Ok(addresses), Err)
}

fn random() -> io::Result<u128> {
    let mut bytes = [0; 16];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| io::Error::other("the system gives no random numbers"))?;
    Ok(u128::from_le_bytes(bytes))
}

fn word(kind: Kind, lane: u32, sequence: u64) -> [u8; BYTES] {
    let class = Class::Control;
    Header { kind, class, route: 0, length: 0, lane, epoch: 0, sequence, deadline: 0 }.to_bytes()
}

fn refuse(stream: &mut dyn Stream, lane: u32) {
    // A side that has gone needs no answer.
    let _ = stream.write(&[IoSlice::new(&word(Kind::Refused, lane, 0))]);
}

/// Waits for the answer of the other side: what it has taken; none: it does not know the lane.
fn answer(stream: &mut dyn Stream) -> io::Result<Option<u64>> {
    let (line, until) = (stream.line(), now() + TRY);
    let (mut bytes, mut come) = ([0; BYTES], 0);
    while come < BYTES {
        match stream.read(&mut bytes[come..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => come += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let left = until.saturating_sub(now());
                if left.is_zero() {
                    return Err(ErrorKind::TimedOut.into());
                }
                let timeout =
                    Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
                match poll(&mut [PollFd::from_borrowed_fd(line.readable(), PollFlags::IN)], Some(&timeout)) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error),
        }
    }
    let header = Header::from_bytes(&bytes)?;
    Ok((header.kind == Kind::Resumed).then_some(header.sequence))
}

/// Makes a stream of a socket that was accepted.
pub(crate) fn accepted(socket: std::net::TcpStream) -> io::Result<Box<dyn Stream>> {
    tcp_stream(socket.into())
}
