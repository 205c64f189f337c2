//! Programs that call or serve, and what they are bound to.
use super::calling::{Call, Held};
use super::end::{End, Given, user_of};
use super::remote::{Dial, RemoteEnd};
use super::schemas::{Columns, Known, Schemas};
use crate::attached::Attached;
use crate::edge_name::EdgeName;
use crate::protocol::{CallCounts, Side};
use crate::urgency::Urgency;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tidemill_rpc::protocol::{self, ToProgram, ToService, kind, socket_of};
use tidemill_rpc::{Code, Status};

/// Begins the tokens of calls in epoll; those of channels are lower.
const FIRST: u64 = 1 << 63;
/// The token of the socket that programs connect to.
const DOOR: u64 = FIRST;
/// Programs that are connected, those of one user, and bindings of one program.
const MOST_PROGRAMS: usize = 1024;
const MOST_OF_USER: usize = 256;
const MOST_BINDINGS: usize = 1024;
/// Pause before descriptors that found no place are tried again.
const FULL: Duration = Duration::from_micros(200);
/// Messages of one program before others have their turn.
const QUOTA: usize = 64;
const QUOTA_BYTES: usize = 4 << 20;
const PACKETS: usize = 16;

/// The rest of the service, as calls need it.
pub(crate) struct Context<'a> {
    pub(crate) policies: &'a [Rc<Attached>],
    pub(crate) urgent: &'a mut Urgency,
    pub(crate) now: Instant,
}

/// A method of a binding, as policies and people see it.
pub(super) struct Method {
    pub(super) edge: EdgeName,
    pub(super) input: usize,
    pub(super) output: usize,
    columns: Option<Rc<Columns>>,
    pub(super) policies: Option<(u64, Rc<Vec<Rc<Attached>>>)>,
    pub(super) calls: u64,
    pub(super) failed: u64,
}

/// A binding: a program that calls a service, here or on another host.
pub(super) struct Binding {
    pub(super) service: String,
    pub(super) known: Rc<Known>,
    pub(super) methods: Vec<Method>,
    pub(super) user: u32,
    /// Its side of the policies.
    pub(super) side: Side,
    /// Connections with other hosts; none: it is served here.
    pub(super) remote: Option<Vec<RemoteEnd>>,
    /// The answer that the program waits for.
    pub(super) asked: Option<u64>,
}

/// The policies that look at the calls of a method, and the columns of its requests.
pub(super) type Judges = (Rc<Vec<Rc<Attached>>>, Rc<Columns>);

/// A program that serves.
pub(super) struct Server {
    pub(super) token: u64,
    pub(super) lane: u32,
    pub(super) user: u32,
    pub(super) known: Rc<Known>,
    /// Calls that wait for it.
    pub(super) waiting: usize,
    /// Calls that it was given.
    pub(super) calls: u64,
}

/// A program, or a service of another host, with the number of a binding.
pub(super) type Lane = (u64, u32);

/// Calls of this host.
pub(crate) struct Calls {
    pub(super) epoll: OwnedFd,
    door: Option<(OwnedFd, PathBuf)>,
    own_user: u32,
    pub(super) ends: HashMap<u64, End>,
    /// Bells and sockets, by their token: the token of their program.
    of_program: HashMap<u64, u64>,
    pub(super) bindings: HashMap<Lane, Binding>,
    pub(super) servers: BTreeMap<String, Vec<Server>>,
    pub(super) schemas: Schemas,
    pub(super) calls: HashMap<u64, Call>,
    /// Calls by who made them.
    pub(super) origins: BTreeMap<(u64, u64), u64>,
    pub(super) held: VecDeque<Held>,
    pub(super) remote: super::remote::Remote,
    pub(super) counts: CallCounts,
    /// Programs that have more to take, and those with more packets.
    busy: Vec<u64>,
    with_packets: Vec<u64>,
    pub(super) version: u64,
    next: u64,
    started: Instant,
}

impl Calls {
    /// Takes the socket of programs, beside that of the service.
    pub(crate) fn new(
        epoll: OwnedFd,
        (own_user, started): (u32, Instant),
        service: &Path,
        dial: Dial,
    ) -> io::Result<Self> {
        let path = socket_of(service);
        // One of a service that is gone; that of the service itself is taken before.
        let _ = std::fs::remove_file(&path);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let door = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&door, &SocketAddrUnix::new(&path)?)?;
        crate::service::open_to_all(&path)?;
        listen(&door, 128)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &door, epoll::EventData::new_u64(DOOR), flags)?;
        Ok(Self {
            epoll,
            door: Some((door, path)),
            own_user,
            ends: HashMap::new(),
            of_program: HashMap::new(),
            bindings: HashMap::new(),
            servers: BTreeMap::new(),
            schemas: Schemas::default(),
            calls: HashMap::new(),
            origins: BTreeMap::new(),
            held: VecDeque::new(),
            remote: super::remote::Remote::new(dial),
            counts: CallCounts::default(),
            busy: Vec::new(),
            with_packets: Vec::new(),
            version: 0,
            next: DOOR,
            started,
        })
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn is_trusted(&self, user: u32) -> bool {
        user == 0 || user == self.own_user
    }

    /// Returns whether a token in epoll is of calls.
    pub(crate) fn owns(token: u64) -> bool {
        token >= FIRST
    }

    /// Policies were attached, changed or taken away.
    pub(crate) fn policies_changed(&mut self, context: &mut Context<'_>) {
        self.version += 1;
        for held in &mut self.held {
            held.until = context.now;
        }
        self.judge_held(context);
    }

    /// Its descriptor was ready.
    pub(crate) fn ready(&mut self, token: u64, is_over: bool, context: &mut Context<'_>) {
        if token == DOOR {
            return self.open();
        }
        if self.remote.has(token) {
            return self.ready_wire(token, is_over, context);
        }
        let Some(program) = self.of_program.get(&token).copied() else { return };
        if token == program {
            if let Err(error) = self.packets(program, context) {
                self.lose(program, &error);
            }
            return;
        }
        if !self.ends.get_mut(&program).is_some_and(End::woke) {
            return self.lose(program, &io::ErrorKind::ConnectionReset.into());
        }
        self.take(program, context);
    }

    /// Programs that have connected.
    fn open(&mut self) {
        loop {
            let Some((door, _)) = &self.door else { return };
            let end = match accept_with(door, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(end) => end,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                // It is tried again with the next program.
                Err(error) => return tracing::warn!("a program cannot connect for calls: {error}"),
            };
            let Ok(user) = user_of(&end) else { continue };
            let of_user = self.ends.values().filter(|of| of.user == user).count();
            if self.ends.len() >= MOST_PROGRAMS || of_user >= MOST_OF_USER {
                let reason =
                    format!("this host has {} programs that call, {of_user} of this user", self.ends.len());
                let code = Code::ResourceExhausted as u8;
                let _ =
                    tidemill_rpc::packets::send(&end, &ToProgram::Refused { id: None, code, reason }, &[]);
                continue;
            }
            if let Err(error) = self.come(end, user) {
                tracing::warn!("a program cannot connect for calls: {error}");
            }
        }
    }

    fn come(&mut self, socket: OwnedFd, user: u32) -> io::Result<()> {
        let token = self.number();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(token), flags)?;
        self.of_program.insert(token, token);
        self.ends.insert(token, End::new(socket, user)?);
        Ok(())
    }

    /// Ends everything of a program that is gone, or does what no program may.
    pub(super) fn lose(&mut self, token: u64, error: &io::Error) {
        let Some(end) = self.ends.remove(&token) else { return };
        if error.kind() == io::ErrorKind::InvalidData {
            tracing::warn!("calls of {} (user {}) are cut off: {error}", end.program, end.user);
        }
        let _ = epoll::delete(&self.epoll, end.setup());
        let _ = epoll::delete(&self.epoll, end.bell());
        self.of_program.retain(|_, program| *program != token);
        drop(end);
        let lanes: Vec<Lane> = self.bindings.keys().filter(|lane| lane.0 == token).copied().collect();
        lanes.into_iter().for_each(|lane| self.unbind(lane));
        for servers in self.servers.values_mut() {
            servers.retain(|server| server.token != token);
        }
        self.servers.retain(|_, servers| !servers.is_empty());
        self.end_calls_with(token);
    }

    pub(super) fn unbind(&mut self, lane: Lane) {
        self.end_calls_of(lane);
        let Some(binding) = self.bindings.remove(&lane) else { return };
        for remote in binding.remote.into_iter().flatten() {
            if let Some(wire) = remote.wire {
                self.drop_wire(wire);
            }
        }
    }

    fn packets(&mut self, token: u64, context: &mut Context<'_>) -> io::Result<()> {
        for _ in 0..PACKETS {
            let Some(end) = self.ends.get_mut(&token) else { return Ok(()) };
            let Some((packet, files)) = end.packet()? else { return Ok(()) };
            let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
            match packet {
                ToService::Hello { version, program } if !end.is_welcome() => {
                    if version != protocol::VERSION {
                        let reason = format!(
                            "the program speaks version {version} of the language of calls, this service version {}",
                            protocol::VERSION
                        );
                        let code = Code::FailedPrecondition as u8;
                        end.answer(&ToProgram::Refused { id: None, code, reason })?;
                        return Err(invalid("another version"));
                    }
                    end.program = program.chars().take(64).collect();
                    end.welcome(context.now.saturating_duration_since(self.started))?;
                    let bell = self.number();
                    self.of_program.insert(bell, token);
                    if let Some(end) = self.ends.get(&token) {
                        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
                        epoll::add(&self.epoll, end.bell(), epoll::EventData::new_u64(bell), flags)?;
                    }
                    self.take(token, context);
                }
                _ if !end.is_welcome() => return Err(invalid("a program does not say what it is")),
                ToService::Hello { .. } => return Err(invalid("a program says twice what it is")),
                ToService::Region => end.add_region(files)?,
                ToService::Schema { region, offset, length } => {
                    let bytes = end.copy(region, offset, length)?;
                    if let Err(error) = self.schemas.add(&bytes, end.user) {
                        // The question after it is answered with `unknown` again.
                        tracing::warn!("a schema of user {}: {error}", end.user);
                    }
                }
                ToService::Bind { id, service, schema, at } => {
                    let answer = self.bind(token, id, &service, &schema, &at);
                    self.answer(token, id, answer)?;
                }
                ToService::Serve { id, service, schema } => {
                    let answer = self.serve((token, id), &service, &schema);
                    self.answer(token, id, answer)?;
                }
                ToService::Describe { id, service } => {
                    let answer = self.describe(token, id, &service);
                    self.answer(token, id, answer)?;
                }
                ToService::Leave { lane } => {
                    self.unbind((token, lane));
                    for servers in self.servers.values_mut() {
                        servers.retain(|server| (server.token, server.lane) != (token, lane));
                    }
                    self.servers.retain(|_, servers| !servers.is_empty());
                }
            }
        }
        // Others have their turn.
        self.with_packets.push(token);
        Ok(())
    }

    /// None: the answer comes later.
    pub(super) fn answer(
        &mut self,
        token: u64,
        id: u64,
        answer: Result<Option<ToProgram>, Status>,
    ) -> io::Result<()> {
        let Some(end) = self.ends.get_mut(&token) else { return Ok(()) };
        match answer {
            Ok(None) => Ok(()),
            Ok(Some(answer)) => end.answer(&answer),
            Err(status) => {
                let (code, reason) = (status.code as u8, status.message.chars().take(4096).collect());
                end.answer(&ToProgram::Refused { id: Some(id), code, reason })
            }
        }
    }

    /// The methods of a service in a schema.
    pub(super) fn methods(known: &Known, program: &str, service: &str) -> Result<Vec<Method>, Status> {
        let found = known.schema.service(service);
        let found =
            found.ok_or_else(|| Status::unimplemented(format!("the schema has no service {service}")))?;
        let method = |method: &tidemill_schema::Method| Method {
            edge: EdgeName {
                workflow: "rpc".into(),
                from: program.to_owned(),
                to: format!("{service}/{}", method.name),
            },
            input: method.input,
            output: method.output,
            columns: None,
            policies: None,
            calls: 0,
            failed: 0,
        };
        Ok(found.methods.iter().map(method).collect())
    }

    fn lane(&mut self, token: u64) -> Result<u32, Status> {
        let bound = self.bindings.keys().filter(|lane| lane.0 == token).count();
        let served = self.servers.values().flatten().filter(|server| server.token == token).count();
        if bound + served >= MOST_BINDINGS {
            let text = format!("a program has at most {MOST_BINDINGS} bindings");
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        let end = self.ends.get_mut(&token).ok_or_else(|| Status::unavailable("the program is gone"))?;
        end.next_lane = end.next_lane.wrapping_add(1);
        Ok(end.next_lane)
    }

    fn bind(
        &mut self,
        token: u64,
        id: u64,
        service: &str,
        digest: &str,
        at: &[String],
    ) -> Result<Option<ToProgram>, Status> {
        let Some(known) = self.schemas.get(digest) else { return Ok(Some(ToProgram::Unknown { id })) };
        let (program, user) = match self.ends.get(&token) {
            Some(end) => (end.program.clone(), end.user),
            None => return Ok(None),
        };
        let methods = Self::methods(&known, &program, service)?;
        if at.is_empty() {
            let servers: Vec<_> = self.reachable(service, user).map(|of| Rc::clone(&of.known)).collect();
            let fits: Vec<_> = servers.iter().map(|of| self.schemas.fits(&known, of, service)).collect();
            match fits.first().map(|fits| fits.as_ref()) {
                None => return Err(Status::unavailable(self.nobody(service, user))),
                // One of several that fits is enough.
                Some(Err(error)) if fits.iter().all(|fits| fits.is_err()) => {
                    return Err(Status::new(Code::FailedPrecondition, error.clone()));
                }
                Some(_) => {}
            }
        }
        let lane = self.lane(token)?;
        let remote = match at.is_empty() {
            true => None,
            false => Some(self.dial_all((token, lane), user, at)?),
        };
        let asked = remote.is_some().then_some(id);
        let service = service.to_owned();
        let side = Side::Sender;
        let binding = Binding { service, known, methods, user, side, remote, asked };
        self.bindings.insert((token, lane), binding);
        Ok(asked.is_none().then_some(ToProgram::Bound { id, lane }))
    }

    /// The servers of a service that a program of this user may call: its own ones, and those of users whom all trust.
    /// Programs of users whom all trust are served by others only where none of these serves it.
    pub(super) fn reachable(&self, service: &str, user: u32) -> impl Iterator<Item = &Server> {
        let servers = self.servers.get(service).map(Vec::as_slice).unwrap_or_default();
        let sees_all = self.is_trusted(user) && !servers.iter().any(|server| self.is_trusted(server.user));
        let may = move |server: &&Server| sees_all || server.user == user || self.is_trusted(server.user);
        servers.iter().filter(may)
    }

    pub(super) fn nobody(&self, service: &str, user: u32) -> String {
        let is_there = |name: &&String| self.reachable(name, user).next().is_some();
        let names: Vec<&str> = self.servers.keys().filter(is_there).map(String::as_str).collect();
        match names.is_empty() {
            true => format!("no program of this host serves {service}, or any other service"),
            false => format!("no program of this host serves {service}; served are {}", names.join(", ")),
        }
    }

    fn serve(
        &mut self,
        (token, id): (u64, u64),
        service: &str,
        digest: &str,
    ) -> Result<Option<ToProgram>, Status> {
        let Some(known) = self.schemas.get(digest) else { return Ok(Some(ToProgram::Unknown { id })) };
        Self::methods(&known, "", service)?;
        let lane = self.lane(token)?;
        let user = self.ends.get(&token).map_or(u32::MAX, |end| end.user);
        let server = Server { token, lane, user, known, waiting: 0, calls: 0 };
        self.servers.entry(service.to_owned()).or_default().push(server);
        Ok(Some(ToProgram::Bound { id, lane }))
    }

    fn describe(&mut self, token: u64, id: u64, service: &str) -> Result<Option<ToProgram>, Status> {
        let user = self.ends.get(&token).map_or(u32::MAX, |end| end.user);
        let known = self.reachable(service, user).next().map(|server| Rc::clone(&server.known));
        let known = known.ok_or_else(|| Status::unavailable(self.nobody(service, user)))?;
        let at = self.ends.get_mut(&token).and_then(|end| end.show(known.schema.bytes()));
        let at = at.ok_or_else(|| Status::new(Code::ResourceExhausted, "no memory for the schema"))?;
        let (region, offset, length, lease) = (at.region, at.offset, at.length, at.lease);
        Ok(Some(ToProgram::Described { id, region, offset, length, lease }))
    }

    /// The policies and columns of a method.
    pub(super) fn judges(&mut self, lane: Lane, method: usize, policies: &[Rc<Attached>]) -> Option<Judges> {
        let version = self.version;
        let binding = self.bindings.get_mut(&lane)?;
        let (user, side) = (binding.user, binding.side);
        let is_local = binding.remote.is_none() && side == Side::Sender;
        let known = Rc::clone(&binding.known);
        let method = binding.methods.get_mut(method)?;
        let columns = method.columns.get_or_insert_with(|| Rc::new(Columns::new(known, method.input)));
        let columns = Rc::clone(columns);
        match &method.policies {
            Some((of, policies)) if *of == version => Some((Rc::clone(policies), columns)),
            _ => {
                let concerns = |policy: &&Rc<Attached>| {
                    let spec = policy.spec.borrow();
                    policy.owner.get().may_concern(user)
                        && spec.edges.matches(&method.edge)
                        && (is_local || spec.side == side)
                };
                let policies: Rc<Vec<_>> = Rc::new(policies.iter().filter(concerns).cloned().collect());
                method.policies = Some((version, Rc::clone(&policies)));
                Some((policies, columns))
            }
        }
    }

    /// Checks that a policy can judge the calls that it is for.
    pub(crate) fn fits(&mut self, policy: &Attached) -> Result<(), String> {
        let spec = policy.spec.borrow().clone();
        for binding in self.bindings.values().filter(|of| policy.owner.get().may_concern(of.user)) {
            for method in binding.methods.iter().filter(|of| spec.edges.matches(&of.edge)) {
                let columns = Columns::new(Rc::clone(&binding.known), method.input);
                policy.fits(&columns.stream).map_err(|error| format!("calls {}: {error}", method.edge))?;
            }
        }
        let from = spec.edges.from.clone().unwrap_or_default();
        for (service, server) in self.matching(policy) {
            for method in Self::methods(&server, &from, &service).unwrap_or_default() {
                if spec.edges.matches(&method.edge) {
                    let columns = Columns::new(Rc::clone(&server), method.input);
                    let fits = policy.fits(&columns.stream);
                    fits.map_err(|error| format!("calls of {}: {error}", method.edge.to))?;
                }
            }
        }
        Ok(())
    }

    /// The services whose calls a policy may look at.
    fn matching(&self, policy: &Attached) -> Vec<(String, Rc<Known>)> {
        let owner = policy.owner.get();
        let servers = self.servers.iter().flat_map(|(name, of)| of.iter().map(move |server| (name, server)));
        let may = |server: &Server| owner.may_concern(server.user) || self.is_trusted(server.user);
        let found = servers.filter(|(_, server)| may(server));
        found.map(|(name, server)| (name.clone(), Rc::clone(&server.known))).collect()
    }

    /// Returns the number of methods, served here or called from here, whose calls a policy looks at.
    pub(crate) fn methods_of(&self, policy: &Attached) -> u64 {
        let spec = policy.spec.borrow();
        let from = spec.edges.from.clone().unwrap_or_default();
        let mut names = std::collections::BTreeSet::new();
        for (service, server) in self.matching(policy) {
            for method in Self::methods(&server, &from, &service).unwrap_or_default() {
                names.insert(method.edge);
            }
        }
        for binding in self.bindings.values().filter(|of| policy.owner.get().may_concern(of.user)) {
            names.extend(
                binding.methods.iter().map(|method| EdgeName { from: from.clone(), ..method.edge.clone() }),
            );
        }
        names.iter().filter(|edge| spec.edges.matches(edge)).count() as u64
    }

    /// Takes what a program gave.
    fn take(&mut self, token: u64, context: &mut Context<'_>) {
        let (mut has_room, mut bytes) = (false, 0);
        for _ in 0..QUOTA {
            if bytes > QUOTA_BYTES {
                break;
            }
            let Some(end) = self.ends.get_mut(&token) else { return };
            let given = end.take();
            if let Ok(Some(Given::Letter(_, letter))) = &given {
                bytes += letter.length();
            }
            match given {
                Ok(Some(Given::Room)) => has_room = true,
                Ok(Some(Given::Letter(descriptor, letter))) => match descriptor.kind {
                    _ if end.is_deaf() => {
                        let text = "it does not read what it is sent".to_owned();
                        return self.lose(token, &io::Error::new(io::ErrorKind::InvalidData, text));
                    }
                    kind::CALL => self.called(token, &descriptor, letter, context),
                    kind::ITEM | kind::REPLY | kind::END => self.answered(token, &descriptor, letter),
                    kind::CANCEL => self.cancelled(token, &descriptor),
                    kind::MORE => self.more(token, descriptor.tag, descriptor.sequence),
                    other => {
                        let text = format!("a descriptor of kind {other}");
                        return self.lose(token, &io::Error::new(io::ErrorKind::InvalidData, text));
                    }
                },
                Ok(None) => match end.may_sleep() {
                    Ok(true) => {
                        self.busy.retain(|of| *of != token);
                        if has_room {
                            self.has_room(token);
                        }
                        return;
                    }
                    Ok(false) => {}
                    Err(error) => return self.lose(token, &error),
                },
                Err(error) => return self.lose(token, &error),
            }
        }
        if has_room {
            self.has_room(token);
        }
        if !self.busy.contains(&token) {
            self.busy.push(token);
        }
    }

    fn has_room(&mut self, token: u64) {
        if let Some(end) = self.ends.get_mut(&token).filter(|end| end.is_blocked()) {
            end.unblock();
        }
    }

    /// A connection has more to read: it has its turn again.
    pub(super) fn more_of_wire(&mut self, token: u64) {
        if !self.busy.contains(&token) {
            self.busy.push(token);
        }
    }

    /// Does what is due. Returns the time until something is.
    pub(crate) fn look(&mut self, context: &mut Context<'_>) -> Option<Duration> {
        for token in std::mem::take(&mut self.busy) {
            match self.remote.has(token) {
                true => self.read_wire(token, context),
                false => self.take(token, context),
            }
        }
        for token in std::mem::take(&mut self.with_packets) {
            if let Err(error) = self.packets(token, context) {
                self.lose(token, &error);
            }
        }
        self.judge_held(context);
        self.dial_again(context.now);
        self.flush_wires();
        if !context.policies.is_empty() {
            for (lane, waiting) in self.waiting_lanes() {
                context.urgent.waits(lane, waiting);
            }
        }
        let mut is_full = false;
        for end in self.ends.values_mut().filter(|end| end.is_full()) {
            is_full |= end.flush();
        }
        if !self.busy.is_empty() || !self.with_packets.is_empty() {
            return Some(Duration::ZERO);
        }
        let held = self.held.iter().map(|held| held.until).min();
        let next = held.into_iter().chain(self.remote.again()).min();
        let next = next.map(|at| at.saturating_duration_since(context.now));
        is_full.then_some(FULL).into_iter().chain(next).min()
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        if let Some((_, path)) = self.door.take() {
            let _ = std::fs::remove_file(path);
        }
    }
}
