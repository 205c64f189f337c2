//! Calls to and from other hosts: a connection between the two services for each binding.
use super::board::{Binding, Calls, Context, Lane};
use super::calling::{Target, monotonic};
use super::letter::Letter;
use super::wire::{Body, Frame, Hello, WAITING, Wire, frame};
use crate::protocol::Side;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_link::remote::{Address, Connection, Incoming, RemoteError};
use tidemill_rpc::protocol::{ToProgram, kind};
use tidemill_rpc::{Code, Status};
use tidemill_shm::descriptor::Descriptor;

/// Pauses before another host is dialled again.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Hosts of one binding.
const MOST_HOSTS: usize = 64;
/// Connections with other hosts.
const MOST_WIRES: usize = 4096;
/// Bytes of frames that are written at once, and not together with others of the same turn.
const TOGETHER: usize = 128 << 10;
/// Frames of one connection before others have their turn.
const QUOTA: usize = 64;

/// Dials another host on a thread of its own, and reports with [`Dialled`].
pub(crate) type Dial = Arc<dyn Fn(Lane, usize, Address) + Send + Sync>;

/// The outcome of dialling.
pub(crate) struct Dialled {
    pub(crate) lane: Lane,
    pub(crate) at: usize,
    pub(crate) outcome: Result<Connection, RemoteError>,
}

/// Another host that a binding goes to.
pub(super) struct RemoteEnd {
    pub(super) address: Address,
    pub(super) wire: Option<u64>,
    pub(super) is_bound: bool,
    failed: Option<Status>,
    again: Option<Instant>,
    pause: Duration,
}

enum Role {
    /// A binding of a program here, and the number of the host among its own.
    Client(Lane, usize),
    /// A binding of a program on another host; none: it has not said yet what it wants.
    Server(Option<Hello>),
}

struct Line {
    wire: Wire,
    role: Role,
    calls: usize,
}

pub(super) struct Remote {
    lines: HashMap<u64, Line>,
    dial: Dial,
    again: Option<Instant>,
    /// Connections with frames that were posted in this turn.
    unwritten: Vec<u64>,
}

impl Remote {
    pub(super) fn new(dial: Dial) -> Self {
        Self { lines: HashMap::new(), dial, again: None, unwritten: Vec::new() }
    }

    pub(super) fn has(&self, token: u64) -> bool {
        self.lines.contains_key(&token)
    }

    pub(super) fn calls_of(&self, wire: u64) -> usize {
        self.lines.get(&wire).map_or(0, |line| line.calls)
    }

    pub(super) fn less(&mut self, wire: u64) {
        if let Some(line) = self.lines.get_mut(&wire) {
            line.calls = line.calls.saturating_sub(1);
        }
    }

    pub(super) fn forget(&mut self, wire: u64, call: u64) {
        if let Some(line) = self.lines.get_mut(&wire) {
            line.wire.forget(call);
        }
    }

    /// Returns when a host is dialled again.
    pub(super) fn again(&self) -> Option<Instant> {
        self.again
    }
}

fn damaged(text: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text.to_owned())
}

impl Calls {
    /// Bytes of a binding that wait to be written.
    pub(super) fn waiting_of(&self, lane: Lane) -> u64 {
        let remote = self.bindings.get(&lane).into_iter().flat_map(|of| of.remote.iter().flatten());
        let waiting = remote.filter_map(|of| Some(self.remote.lines.get(&of.wire?)?.wire.waiting as u64));
        waiting.sum()
    }

    /// The bindings with other hosts, and the bytes of each that wait to be written.
    pub(super) fn waiting_lanes(&self) -> Vec<(u64, u64)> {
        let lanes = self.bindings.keys();
        lanes.map(|lane| (super::calling::channel_of(*lane), self.waiting_of(*lane))).collect()
    }

    /// Dials all hosts of a new binding.
    pub(super) fn dial_all(
        &mut self,
        lane: Lane,
        user: u32,
        at: &[String],
    ) -> Result<Vec<RemoteEnd>, Status> {
        if !self.is_trusted(user) {
            // Its certificate is this host's: programs of other users do not speak in its name.
            let text = "the service dials other hosts for programs of its own user only";
            return Err(Status::new(Code::PermissionDenied, text));
        }
        if at.len() > MOST_HOSTS {
            return Err(Status::invalid_argument(format!("{} hosts, {MOST_HOSTS} are the most", at.len())));
        }
        let addresses = at.iter().map(|at| {
            at.parse::<Address>()
                .map_err(|error| Status::invalid_argument(format!("`{at}` is no address: {error}")))
        });
        let addresses: Vec<Address> = addresses.collect::<Result<_, _>>()?;
        for (number, address) in addresses.iter().enumerate() {
            (self.remote.dial)(lane, number, address.clone());
        }
        let end = |address| RemoteEnd {
            address,
            wire: None,
            is_bound: false,
            failed: None,
            again: None,
            pause: PAUSE,
        };
        Ok(addresses.into_iter().map(end).collect())
    }

    fn remote_end(&mut self, lane: Lane, at: usize) -> Option<&mut RemoteEnd> {
        self.bindings.get_mut(&lane)?.remote.as_mut()?.get_mut(at)
    }

    /// A host was dialled, or could not be.
    pub(crate) fn dialled(&mut self, Dialled { lane, at, outcome }: Dialled, now: Instant) {
        let Some(binding) = self.bindings.get(&lane) else { return };
        let hello = Hello {
            service: binding.service.clone(),
            schema: binding.known.digest.clone(),
            program: self.ends.get(&lane.0).map(|end| end.program.clone()).unwrap_or_default(),
        };
        match outcome.map_err(|error| error.to_string()).and_then(|connection| {
            self.watch(connection, Role::Client(lane, at)).map_err(|error| error.to_string())
        }) {
            Ok(wire) => {
                if let Some(end) = self.remote_end(lane, at) {
                    end.wire = Some(wire);
                }
                let last = Descriptor { kind: frame::BIND, ..Descriptor::default() };
                let hello = serde_json::to_vec(&hello).unwrap_or_default();
                self.post(wire, last, Letter::own(hello), 0, None);
            }
            Err(error) => {
                let address =
                    self.remote_end(lane, at).map(|end| end.address.to_string()).unwrap_or_default();
                self.unreachable(lane, at, Status::unavailable(format!("{address}: {error}")), now);
            }
        }
    }

    fn watch(&mut self, connection: Connection, role: Role) -> io::Result<u64> {
        let wire = Wire::new(connection.into_bytes());
        let token = self.number();
        wire.watch(self.epoll.as_fd(), token)?;
        self.remote.lines.insert(token, Line { wire, role, calls: 0 });
        Ok(token)
    }

    /// A host cannot be reached, or does not want: it is dialled again later.
    fn unreachable(&mut self, lane: Lane, at: usize, status: Status, now: Instant) {
        let Some(end) = self.remote_end(lane, at) else { return };
        (end.wire, end.is_bound) = (None, false);
        end.failed = Some(status.clone());
        let again = now + end.pause;
        end.again = Some(again);
        end.pause = (2 * end.pause).min(LONGEST_PAUSE);
        self.remote.again = Some(self.remote.again.map_or(again, |other| other.min(again)));
        let Some(binding) = self.bindings.get_mut(&lane) else { return };
        let all_failed = binding.remote.iter().flatten().all(|of| of.failed.is_some() && !of.is_bound);
        if all_failed && let Some(id) = binding.asked.take() {
            self.unbind(lane);
            // A program that does not read is gone soon.
            let _ = self.answer(lane.0, id, Err(status));
        }
    }

    /// Dials the hosts again whose time has come.
    pub(super) fn dial_again(&mut self, now: Instant) {
        if self.remote.again.is_none_or(|again| again > now) {
            return;
        }
        let mut next = None;
        for (lane, binding) in &mut self.bindings {
            for (at, end) in binding.remote.iter_mut().flatten().enumerate() {
                match end.again {
                    Some(again) if again <= now => {
                        end.again = None;
                        (self.remote.dial)(*lane, at, end.address.clone());
                    }
                    later => next = next.into_iter().chain(later).min(),
                }
            }
        }
        self.remote.again = next;
    }

    /// The service of another host has connected.
    pub(crate) fn incoming(&mut self, incoming: Incoming) {
        if self.remote.lines.len() >= MOST_WIRES {
            return incoming.refuse("this host has too many connections");
        }
        let greeting = incoming.greeting.clone();
        let connected = incoming.accept(&greeting).map_err(|error| error.to_string());
        let watched = connected.and_then(|connection| {
            self.watch(connection, Role::Server(None)).map_err(|error| error.to_string())
        });
        if let Err(error) = watched {
            tracing::debug!("another host was lost at once: {error}");
        }
    }

    /// Posts a frame. Deadlines are by the clock of this host before, and as what is left of them after.
    pub(super) fn post(
        &mut self,
        token: u64,
        last: Descriptor,
        letter: Letter,
        call: u64,
        taken: Option<(u64, u64)>,
    ) {
        let Some(line) = self.remote.lines.get_mut(&token) else {
            if let Some((program, number)) = taken {
                self.took(program, number, 0);
            }
            return;
        };
        let deadline = match last.deadline {
            0 => 0,
            deadline => deadline.saturating_sub(monotonic()).max(1),
        };
        line.wire.post(Descriptor { deadline, lane: 0, ..last }, letter, call, taken);
        if line.wire.waiting >= TOGETHER {
            self.flush_wire(token);
        } else if !self.remote.unwritten.contains(&token) {
            self.remote.unwritten.push(token);
        }
    }

    /// Posts a call.
    pub(super) fn post_call(&mut self, id: u64, wire: u64, last: Descriptor, letter: Letter) {
        if let Some(call) = self.calls.get_mut(&id) {
            call.target = Some(Target::Wire(wire));
        }
        if let Some(line) = self.remote.lines.get_mut(&wire) {
            line.calls += 1;
        }
        self.post(wire, last, letter, id, None);
    }

    /// Writes what was posted in this turn: frames of several calls go with one call of the system.
    pub(super) fn flush_wires(&mut self) {
        for token in std::mem::take(&mut self.remote.unwritten) {
            self.flush_wire(token);
        }
    }

    fn flush_wire(&mut self, token: u64) {
        let Some(line) = self.remote.lines.get_mut(&token) else { return };
        match line.wire.flush() {
            Ok(taken) => {
                taken.into_iter().for_each(|(program, number, bytes)| self.took(program, number, bytes))
            }
            Err(error) => {
                tracing::debug!("another host is lost: {error}");
                // A read finds it, too.
                self.more_of_wire(token);
            }
        }
    }

    /// Ends a connection and its calls.
    pub(super) fn drop_wire(&mut self, token: u64) {
        let Some(line) = self.remote.lines.remove(&token) else { return };
        line.wire.unwatch(&self.epoll);
        let (body, taken) = line.wire.abandon();
        if let Some(body) = body {
            self.unused(body);
        }
        taken.into_iter().for_each(|(program, number, bytes)| self.took(program, number, bytes));
        self.bindings.remove(&(token, 0));
        self.end_calls_with(token);
    }

    fn lost(&mut self, token: u64, error: &io::Error, now: Instant) {
        let role = self.remote.lines.get(&token).map(|line| match line.role {
            Role::Client(lane, at) => Some((lane, at)),
            Role::Server(_) => None,
        });
        if error.kind() == ErrorKind::InvalidData {
            tracing::warn!("a connection with another host is cut: {error}");
        }
        self.drop_wire(token);
        if let Some(Some((lane, at))) = role {
            self.unreachable(lane, at, Status::unavailable(format!("the other host is lost: {error}")), now);
        }
    }

    pub(super) fn ready_wire(&mut self, token: u64, is_over: bool, context: &mut Context<'_>) {
        if let Some(line) = self.remote.lines.get_mut(&token) {
            line.wire.ready(is_over);
        }
        self.flush_wire(token);
        self.read_wire(token, context);
    }

    pub(super) fn read_wire(&mut self, token: u64, context: &mut Context<'_>) {
        for _ in 0..QUOTA {
            // Taken out while memory for what comes is looked for.
            let Some(mut line) = self.remote.lines.remove(&token) else { return };
            if matches!(line.role, Role::Server(_)) && line.wire.waiting > WAITING {
                // It takes no calls while their replies wait. That the other side reads is an event.
                self.remote.lines.insert(token, line);
                return;
            }
            let received = line.wire.receive(&mut |head| self.place(token, &line.role, head, context));
            self.remote.lines.insert(token, line);
            match received {
                Ok(Some(frame)) => {
                    if let Err(error) = self.follow(token, frame, context) {
                        return self.lost(token, &error, context.now);
                    }
                }
                Ok(None) => return,
                Err(error) => return self.lost(token, &error, context.now),
            }
        }
        self.more_of_wire(token);
    }

    /// Finds memory for a message: of the program that it is for, if nothing has to be done with it before.
    fn place(&mut self, token: u64, role: &Role, head: &Descriptor, context: &Context<'_>) -> Body {
        let length = head.length as usize;
        let program = match (head.kind, role) {
            (kind::ITEM | kind::REPLY, Role::Client(lane, _)) => Some(lane.0),
            (kind::CALL, Role::Server(Some(_))) => {
                let method = usize::try_from(head.sequence).unwrap_or(usize::MAX);
                let is_judged =
                    self.judges((token, 0), method, context.policies).is_none_or(|(of, _)| !of.is_empty());
                if is_judged { None } else { self.only_server((token, 0), method) }
            }
            _ => None,
        };
        let room = program.and_then(|program| {
            let end = self.ends.get_mut(&program).filter(|end| !end.is_blocked())?;
            Some(Body::Room(program, end.room(length.max(1))?))
        });
        room.unwrap_or_else(|| Body::Own(vec![0; length]))
    }

    /// The program that serves a method, if there is one only and its schema has the same messages.
    pub(super) fn only_server(&mut self, lane: Lane, method: usize) -> Option<u64> {
        let binding = self.bindings.get(&lane)?;
        let (service, known) = (binding.service.clone(), Rc::clone(&binding.known));
        let mut servers = self.reachable(&service, u32::MAX);
        let server = servers.next()?;
        let (token, of_server) = (server.token, Rc::clone(&server.known));
        if servers.next().is_some() {
            return None;
        }
        drop(servers);
        let fits = self.schemas.fits(&known, &of_server, &service);
        let fit = fits.as_ref().as_ref().ok()?.get(method)?;
        (fit.server_method.is_some() && fit.request.is_identity()).then_some(token)
    }

    fn follow(&mut self, token: u64, frame: Frame, context: &mut Context<'_>) -> io::Result<()> {
        let Frame { head, metadata, body } = frame;
        let is_client = match self.remote.lines.get(&token).map(|line| &line.role) {
            Some(Role::Client(lane, at)) => Some((*lane, *at)),
            Some(Role::Server(_)) => None,
            None => return Ok(()),
        };
        match (head.kind, is_client) {
            (frame::BIND | frame::SCHEMA, None) if self.bindings.contains_key(&(token, 0)) => {
                return Err(damaged("it is bound already"));
            }
            (frame::BIND, None) => {
                let hello: Hello =
                    serde_json::from_slice(&own(body)?).map_err(|_| damaged("no greeting of a binding"))?;
                self.bind_wire(token, hello);
            }
            (frame::SCHEMA, None) => {
                let bytes = own(body)?;
                self.schemas.add(&bytes, u32::MAX).map_err(|error| damaged(&error))?;
                let hello = match self.remote.lines.get_mut(&token).map(|line| &mut line.role) {
                    Some(Role::Server(hello)) => hello.take(),
                    _ => None,
                };
                let hello = hello.ok_or_else(|| damaged("a schema that nobody wants"))?;
                self.bind_wire(token, hello);
            }
            (frame::UNKNOWN, Some((lane, _))) => {
                let bytes = self.bindings.get(&lane).map(|of| of.known.schema.bytes().to_vec());
                let last = Descriptor { kind: frame::SCHEMA, ..Descriptor::default() };
                self.post(token, last, Letter::own(bytes.unwrap_or_default()), 0, None);
            }
            (frame::BOUND, Some((lane, at))) => {
                if let Some(end) = self.remote_end(lane, at) {
                    (end.is_bound, end.failed, end.pause) = (true, None, PAUSE);
                }
                if let Some(id) = self.bindings.get_mut(&lane).and_then(|of| of.asked.take()) {
                    self.answer(lane.0, id, Ok(Some(ToProgram::Bound { id, lane: lane.1 })))?;
                }
            }
            (frame::REFUSED, Some((lane, at))) => {
                let reason = String::from_utf8_lossy(&own(body)?).into_owned();
                self.drop_wire(token);
                let status = Status::new(Code::from_number(head.class), reason);
                self.unreachable(lane, at, status, context.now);
            }
            (kind::CALL, None) => {
                let deadline = match head.deadline {
                    0 => 0,
                    left => monotonic().saturating_add(left),
                };
                let head = Descriptor { deadline, lane: 0, ..head };
                match body {
                    Body::Own(bytes) => {
                        let letter = Letter { metadata, ..Letter::own(bytes) };
                        self.called(token, &head, letter, context);
                    }
                    Body::Room(program, buffer) => {
                        self.called_in_room(&head, metadata, (token, program, buffer), context);
                    }
                }
            }
            (kind::CANCEL, None) => self.cancelled(token, &head),
            (kind::MORE, None) => self.more(token, head.tag, head.sequence),
            (kind::ITEM | kind::REPLY | kind::END, Some((lane, _))) => {
                self.answered_far(token, lane, &head, metadata, body);
            }
            (other, _) => return Err(damaged(&format!("a frame of kind {other}"))),
        }
        Ok(())
    }

    /// The service of another host says what it wants.
    fn bind_wire(&mut self, token: u64, hello: Hello) {
        let refuse = |calls: &mut Self, code: Code, reason: &str| {
            let last = Descriptor { kind: frame::REFUSED, class: code as u8, ..Descriptor::default() };
            calls.post(token, last, Letter::own(reason.as_bytes().to_vec()), 0, None);
        };
        let Some(known) = self.schemas.get(&hello.schema) else {
            if let Some(line) = self.remote.lines.get_mut(&token) {
                line.role = Role::Server(Some(hello));
            }
            let last = Descriptor { kind: frame::UNKNOWN, ..Descriptor::default() };
            return self.post(token, last, Letter::default(), 0, None);
        };
        let methods = match Self::methods(&known, &hello.program, &hello.service) {
            Ok(methods) => methods,
            Err(status) => return refuse(self, status.code, &status.message),
        };
        let servers: Vec<_> =
            self.reachable(&hello.service, u32::MAX).map(|server| Rc::clone(&server.known)).collect();
        let fits: Vec<_> =
            servers.iter().map(|server| self.schemas.fits(&known, server, &hello.service)).collect();
        match fits.first().map(|fits| fits.as_ref()) {
            None => {
                let reason = self.nobody(&hello.service, u32::MAX);
                return refuse(self, Code::Unavailable, &reason);
            }
            Some(Err(error)) if fits.iter().all(|fits| fits.is_err()) => {
                return refuse(self, Code::FailedPrecondition, &error.clone());
            }
            Some(_) => {}
        }
        // It is for programs of users whom all trust, and policies of these look at its calls.
        let user = servers_user(self, &hello.service);
        let binding = Binding {
            service: hello.service.clone(),
            known,
            methods,
            user,
            side: Side::Receiver,
            remote: None,
            asked: None,
        };
        self.bindings.insert((token, 0), binding);
        if let Some(line) = self.remote.lines.get_mut(&token) {
            line.role = Role::Server(Some(hello));
        }
        let last = Descriptor { kind: frame::BOUND, ..Descriptor::default() };
        self.post(token, last, Letter::default(), 0, None);
    }

    /// A reply, or the end of a call, came from another host.
    fn answered_far(&mut self, token: u64, lane: Lane, head: &Descriptor, metadata: Vec<u8>, body: Body) {
        let id = head.tag;
        let is_its = self.calls.get(&id).is_some_and(|call| call.target == Some(Target::Wire(token)));
        let Some((method, tag)) = self.calls.get(&id).map(|call| (call.method, call.tag)).filter(|_| is_its)
        else {
            // It was cancelled.
            return self.unused(body);
        };
        let last = Descriptor { kind: head.kind, class: head.class, tag, ..Descriptor::default() };
        if head.kind != kind::ITEM {
            self.ended(id, head.class != 0);
        }
        match body {
            Body::Own(bytes) => {
                self.hand_back(lane, method, last, Letter { metadata, ..Letter::own(bytes) }, id);
            }
            Body::Room(_, buffer) => {
                let binding = self.bindings.get(&lane);
                let of = binding.and_then(|of| Some((Rc::clone(&of.known), of.methods.get(method)?.output)));
                let (Some((known, output)), Some(end)) = (of, self.ends.get_mut(&lane.0)) else { return };
                let length = head.length as usize;
                match known.schema.message(output).check(&known.schema, &buffer[..length]) {
                    Ok(()) => {
                        end.hand_over(last, &metadata, buffer, length);
                        self.counts.marshalled += 1;
                    }
                    Err(error) => {
                        end.unused(buffer);
                        self.tell_cancelled(id);
                        self.ended(id, true);
                        let Some(end) = self.ends.get_mut(&lane.0) else { return };
                        let text = format!("the reply: {error}");
                        let kind = kind::END;
                        let last =
                            Descriptor { kind, class: Code::Internal as u8, tag, ..Descriptor::default() };
                        end.notice(last, &[], text.as_bytes());
                    }
                }
            }
        }
    }

    pub(super) fn unused(&mut self, body: Body) {
        if let Body::Room(program, buffer) = body
            && let Some(end) = self.ends.get_mut(&program)
        {
            end.unused(buffer);
        }
    }
}

fn own(body: Body) -> io::Result<Vec<u8>> {
    match body {
        Body::Own(bytes) => Ok(bytes),
        Body::Room(..) => Err(damaged("a frame at the wrong time")),
    }
}

/// The user whose policies look at calls to a service from other hosts.
fn servers_user(calls: &Calls, service: &str) -> u32 {
    calls.reachable(service, u32::MAX).map(|server| server.user).next().unwrap_or(u32::MAX)
}
