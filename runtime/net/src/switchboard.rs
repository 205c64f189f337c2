//! The programs of a host, the ends of their channels, and the policies between them.
use crate::attached::{Attached, Owner};
use crate::edge::{Edge, Parted};
use crate::edge_name::EdgeName;
use crate::keeping::{Changed, Kept, KeptChange, KeptPolicy};
use crate::legs::{Dialling, Leg, Legs};
use crate::policy::{self, Site};
use crate::protocol::{
    Answer, EdgeCounts, EdgeView, Listing, Peer, PolicySpec, Program, ProgramChannel, Route, Routes,
};
use crate::rpc::{Calls, Context};
use crate::urgency::Urgency;
use crossbeam_channel::Sender;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tidemill_link::remote::{Address, Connection, Incoming, Purpose, RemoteError, Role};

/// Pause after a policy could not judge a frame, before its channel is joined again.
const PAUSE: Duration = Duration::from_millis(500);
/// Policies that users may attach to one host.
const MOST_POLICIES: usize = 256;
/// Channels that a program may have, and programs.
const MOST_CHANNELS: usize = 65_536;
const MOST_PROGRAMS: usize = 1024;

/// Why an end is refused that has not heard yet that its channel goes elsewhere.
const NOT_SERVED: &str = "this channel does not go through the service";

/// A channel of a run of a user. Nothing of one user is ever joined with something of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) user: u32,
    pub(crate) run: u128,
    pub(crate) channel: u64,
}

/// A program that is connected.
struct Registered {
    user: u32,
    run: u128,
    program: Program,
    channels: HashMap<u64, usize>,
    peers: HashMap<(u64, Role), Peer>,
    counts: BTreeMap<EdgeName, EdgeCounts>,
    routes: Option<Routes>,
    answers: Sender<Answer>,
}

impl Registered {
    fn channel(&self, key: Key) -> Option<&ProgramChannel> {
        let is_own = self.user == key.user && self.run == key.run;
        self.channels.get(&key.channel).filter(|_| is_own).map(|at| &self.program.channels[*at])
    }
}

/// A joined channel.
struct Joined {
    key: Key,
    edge: Edge,
}

/// Facts about the service itself.
pub(crate) struct Own {
    /// The user that it runs as.
    pub(crate) user: u32,
    pub(crate) folder: PathBuf,
    /// Where other hosts reach it.
    pub(crate) public: Option<Address>,
    pub(crate) started: Instant,
}

pub(crate) struct Switchboard {
    own: Own,
    epoll: OwnedFd,
    programs: BTreeMap<u64, Registered>,
    policies: Vec<Rc<Attached>>,
    /// Changes to policies of plans, by user, run and id: they hold as long as the run.
    changed: HashMap<(u32, u128, String), Changed>,
    legs: Legs,
    pub(crate) calls: Calls,
    joined: BTreeMap<u64, Joined>,
    by_key: HashMap<Key, u64>,
    /// Rows that policies took out of channels that are not joined any more.
    rejected: HashMap<Key, u64>,
    /// Channels that have more to move: each has its turn.
    busy: BTreeSet<u64>,
    /// Channels that are not joined before this time.
    paused: HashMap<Key, Instant>,
    urgent: Urgency,
    next: u64,
}

impl Switchboard {
    pub(crate) fn new(own: Own, epoll: OwnedFd, legs: Legs, calls: Calls) -> Self {
        Self {
            own,
            epoll,
            programs: BTreeMap::new(),
            policies: Vec::new(),
            changed: HashMap::new(),
            legs,
            calls,
            joined: BTreeMap::new(),
            by_key: HashMap::new(),
            rejected: HashMap::new(),
            busy: BTreeSet::new(),
            paused: HashMap::new(),
            urgent: Urgency::default(),
            next: 1,
        }
    }

    /// Attaches the policies that users attached before the service was started again.
    pub(crate) fn restore(&mut self, kept: Kept) {
        self.changed = kept.changed.into_iter().map(|of| ((of.user, of.run, of.id), of.change)).collect();
        for KeptPolicy { policy: spec, user } in kept.policies {
            let id = spec.id.clone();
            let owner = Owner::User { user, any: self.is_trusted(user) };
            match Attached::new(spec, owner, &self.site(&id, user)) {
                Ok(policy) => self.policies.push(policy),
                Err(error) => tracing::error!("policy {id} cannot be attached again: {error}"),
            }
        }
    }

    /// Everything that users have changed, for the next start.
    pub(crate) fn kept(&self) -> Kept {
        let kept = |policy: &Rc<Attached>| match policy.owner.get() {
            Owner::User { user, .. } => Some(KeptPolicy { policy: policy.spec.borrow().clone(), user }),
            Owner::Plan { .. } => None,
        };
        let changed = self.changed.iter().map(|((user, run, id), change)| KeptChange {
            user: *user,
            run: *run,
            id: id.clone(),
            change: change.clone(),
        });
        Kept { policies: self.policies.iter().filter_map(kept).collect(), changed: changed.collect() }
    }

    pub(crate) fn programs(&self) -> usize {
        self.programs.len()
    }

    pub(crate) fn is_trusted(&self, user: u32) -> bool {
        user == 0 || user == self.own.user
    }

    fn site(&self, id: &str, user: u32) -> Site {
        let may_load = self.is_trusted(user);
        // Files of two users have different names.
        let id = if may_load { id.to_owned() } else { format!("user-{user}-{id}") };
        Site { id, folder: self.own.folder.clone(), may_load }
    }

    /// A program says what it is.
    pub(crate) fn register(
        &mut self,
        id: u64,
        (user, run): (u32, u128),
        program: Program,
        answers: Sender<Answer>,
        now: Instant,
    ) -> Result<(), String> {
        if program.version != crate::protocol::VERSION {
            return Err(format!(
                "the program speaks version {} of the protocol, this service version {}",
                program.version,
                crate::protocol::VERSION
            ));
        }
        if self.programs.len() >= MOST_PROGRAMS || program.channels.len() > MOST_CHANNELS {
            return Err("this host has too many programs or channels".to_owned());
        }
        let channels = program.channels.iter().enumerate().map(|(at, of)| (of.channel, at)).collect();
        let policies = program.policies.clone();
        let registered = Registered {
            user,
            run,
            program,
            channels,
            peers: HashMap::new(),
            counts: BTreeMap::new(),
            routes: None,
            answers,
        };
        self.programs.insert(id, registered);
        let mut made = Vec::new();
        for mut spec in policies {
            match self.changed.get(&(user, run, spec.id.clone())) {
                Some(Changed::Detached) => continue,
                Some(Changed::Set(options)) => spec.options = options.clone(),
                None => {}
            }
            // Those of one plan come with each of its programs.
            let is_same = |policy: &Rc<Attached>| {
                matches!(policy.owner.get(), Owner::Plan { user: own, program } if own == user
                    && self.programs.get(&program).is_some_and(|other| other.run == run))
                    && policy.spec.borrow().id == spec.id
            };
            if self.policies.iter().any(is_same) {
                continue;
            }
            if spec.edges.workflow.is_none() {
                spec.edges.workflow = self.programs.get(&id).map(|of| of.program.workflow.clone());
            }
            let name = spec.id.clone();
            let site = self.site(&name, user);
            let policy = policy::check_id(&name)
                .and_then(|()| Attached::new(spec, Owner::Plan { program: id, user }, &site))
                .map_err(|error| format!("policy {name} of the plan: {error}"));
            match policy {
                Ok(policy) => made.push(policy),
                Err(error) => {
                    self.programs.remove(&id);
                    return Err(error);
                }
            }
        }
        // Those of plans look first.
        let users = self.policies.iter().position(|policy| matches!(policy.owner.get(), Owner::User { .. }));
        let at = users.unwrap_or(self.policies.len());
        self.policies.splice(at..at, made);
        self.route(now);
        Ok(())
    }

    /// A program is gone.
    pub(crate) fn gone(&mut self, id: u64, now: Instant) {
        let Some(gone) = self.programs.remove(&id) else { return };
        let is_run_left = self.programs.values().any(|of| of.user == gone.user && of.run == gone.run);
        if !is_run_left {
            self.changed.retain(|(user, run, _), _| (*user, *run) != (gone.user, gone.run));
            self.rejected.retain(|key, _| (key.user, key.run) != (gone.user, gone.run));
        }
        let heir = self.programs.iter().find(|(_, of)| of.user == gone.user && of.run == gone.run);
        if heir.is_none() {
            let is_its = |policy: &Rc<Attached>| matches!(policy.owner.get(), Owner::Plan { program, .. } if program == id);
            self.policies.retain(|policy| !is_its(policy));
        } else if let Some((heir, of)) = heir {
            // Policies of the plan belong to another program of the run now.
            let (heir, user) = (*heir, of.user);
            for policy in &self.policies {
                if matches!(policy.owner.get(), Owner::Plan { program, .. } if program == id) {
                    policy.owner.set(Owner::Plan { program: heir, user });
                }
            }
        }
        self.route(now);
    }

    pub(crate) fn peers(&mut self, id: u64, peers: Vec<Peer>) {
        if let Some(of) = self.programs.get_mut(&id) {
            of.peers.extend(peers.into_iter().map(|peer| ((peer.channel, peer.role), peer)));
        }
    }

    pub(crate) fn counts(&mut self, id: u64, counts: Vec<EdgeCounts>) -> Vec<(EdgeName, u64)> {
        let Some(of) = self.programs.get_mut(&id) else { return Vec::new() };
        of.counts = counts.into_iter().map(|of| (of.edge.clone(), of)).collect();
        let Some(of) = self.programs.get(&id) else { return Vec::new() };
        let sends = |channel: &ProgramChannel| channel.roles.contains(&Role::Sender);
        let mut all: BTreeMap<EdgeName, u64> = BTreeMap::new();
        for channel in &of.program.channels {
            let key = Key { user: of.user, run: of.run, channel: channel.channel };
            // Its sender counts, where that is here.
            let is_other = |other: &Registered| other.channel(key).is_some_and(sends);
            let rejected = self.rejected_of(key);
            if rejected > 0 && (sends(channel) || !self.programs.values().any(is_other)) {
                *all.entry(channel.edge.clone()).or_default() += rejected;
            }
        }
        all.into_iter().collect()
    }

    /// Rows that policies took out of a channel.
    fn rejected_of(&self, key: Key) -> u64 {
        let now =
            self.by_key.get(&key).and_then(|token| self.joined.get(token)).map_or(0, |of| of.edge.rejected);
        now + self.rejected.get(&key).copied().unwrap_or(0)
    }

    /// The policies that look at the frames of a channel, in their order.
    fn policies_of(&self, key: Key) -> Vec<Rc<Attached>> {
        let ends: Vec<&ProgramChannel> = self.programs.values().filter_map(|of| of.channel(key)).collect();
        let concerns = |policy: &&Rc<Attached>| {
            let spec = policy.spec.borrow();
            policy.owner.get().may_concern(key.user)
                && ends
                    .iter()
                    .any(|end| spec.edges.matches(&end.edge) && end.roles.contains(&spec.side.role()))
        };
        self.policies.iter().filter(concerns).cloned().collect()
    }

    /// Says to each program which channels go through the service, where that has changed.
    fn route(&mut self, now: Instant) {
        let mut through: HashMap<Key, bool> = HashMap::new();
        for of in self.programs.values() {
            for channel in of.channels.keys() {
                let key = Key { user: of.user, run: of.run, channel: *channel };
                through.entry(key).or_insert_with(|| !self.policies_of(key).is_empty());
            }
        }
        for of in self.programs.values_mut() {
            let key = |channel: &u64| Key { user: of.user, run: of.run, channel: *channel };
            let goes = |channel: &&u64| through.get(&key(channel)).is_some_and(|through| *through);
            let routes = Routes {
                through: of.channels.keys().filter(goes).copied().collect(),
                public: self.own.public.clone(),
            };
            if of.routes.as_ref() != Some(&routes) {
                of.routes = Some(routes.clone());
                // One whose connection is full is ended by its thread.
                let _ = of.answers.try_send(Answer::Routes(routes));
            }
        }
        let mut context = Context { policies: &self.policies, urgent: &mut self.urgent, now };
        self.calls.policies_changed(&mut context);
        // Ends that wait for one that will not come.
        for (key, role) in self.legs.waiting() {
            if self.policies_of(key).is_empty() {
                self.legs.refuse(key, role, NOT_SERVED);
            }
        }
        let tokens: Vec<(u64, Key)> = self.joined.iter().map(|(token, of)| (*token, of.key)).collect();
        for (token, key) in tokens {
            let policies = self.policies_of(key);
            if let Some(of) = self.joined.get_mut(&token) {
                // Without any, the programs part it themselves, and are connected with each other then.
                of.edge.follow(policies, now);
                of.edge.ready();
            }
            self.pump(token, now);
        }
    }

    pub(crate) fn attach(&mut self, spec: PolicySpec, user: u32, now: Instant) -> Result<(), String> {
        if self
            .policies
            .iter()
            .any(|policy| policy.spec.borrow().id == spec.id && policy.owner.get().may_concern(user))
        {
            return Err(format!(
                "there is a policy {} already: `set` changes it, `detach` takes it away",
                spec.id
            ));
        }
        if self.policies.len() >= MOST_POLICIES {
            return Err(format!("this host has {MOST_POLICIES} policies already"));
        }
        policy::check_id(&spec.id)?;
        let owner = Owner::User { user, any: self.is_trusted(user) };
        let site = self.site(&spec.id, user);
        let policy = Attached::new(spec, owner, &site)?;
        self.calls.fits(&policy)?;
        let spec = policy.spec.borrow().clone();
        for of in self.programs.values().filter(|of| owner.may_concern(of.user)) {
            for channel in of.program.channels.iter().filter(|of| spec.edges.matches(&of.edge)) {
                policy.fits(&channel.columns).map_err(|error| format!("edge {}: {error}", channel.edge))?;
            }
            if let (Some(_), Some(_), Some(inner)) = (
                &spec.edges.from,
                &spec.edges.to,
                of.program.inner.iter().find(|edge| spec.edges.matches(edge)),
            ) {
                return Err(format!(
                    "edge {inner} of {} is within one thread and has no channel: declare the policy in the workflow's `policies`, which gives the edge one",
                    of.program.workflow
                ));
            }
        }
        self.policies.push(policy);
        self.route(now);
        Ok(())
    }

    /// Finds a policy that a user may change.
    fn find(&self, id: &str, user: u32) -> Result<usize, String> {
        let may = |policy: &Rc<Attached>| match policy.owner.get() {
            Owner::Plan { user: of, .. } | Owner::User { user: of, .. } => {
                of == user || self.is_trusted(user)
            }
        };
        let found = self.policies.iter().position(|policy| policy.spec.borrow().id == id && may(policy));
        found.ok_or_else(|| {
            let ids: Vec<String> = self
                .policies
                .iter()
                .filter(|policy| may(policy))
                .map(|of| of.spec.borrow().id.clone())
                .collect();
            match ids.is_empty() {
                true => format!("there is no policy {id}, and no other one"),
                false => format!("there is no policy {id}; there are {}", ids.join(", ")),
            }
        })
    }

    pub(crate) fn set(&mut self, id: &str, options: Value, user: u32, now: Instant) -> Result<(), String> {
        let policy = Rc::clone(&self.policies[self.find(id, user)?]);
        let spec = policy.spec.borrow().clone();
        let columns: Vec<_> = self
            .programs
            .values()
            .filter(|of| policy.owner.get().may_concern(of.user))
            .flat_map(|of| &of.program.channels)
            .filter(|channel| spec.edges.matches(&channel.edge))
            .map(|channel| &channel.columns)
            .collect();
        policy.set(options.clone(), &self.site(id, user), &columns)?;
        self.note(&policy, Changed::Set(options));
        // A frame that it holds is looked at again.
        self.route(now);
        Ok(())
    }

    pub(crate) fn detach(&mut self, id: &str, user: u32, now: Instant) -> Result<(), String> {
        let at = self.find(id, user)?;
        let policy = self.policies.remove(at);
        self.note(&policy, Changed::Detached);
        self.route(now);
        Ok(())
    }

    /// Notes a change to a policy of a plan: programs that register later bring it as the plan has it.
    fn note(&mut self, policy: &Attached, change: Changed) {
        if let Owner::Plan { program, user } = policy.owner.get()
            && let Some(of) = self.programs.get(&program)
        {
            self.changed.insert((user, of.run, policy.spec.borrow().id.clone()), change);
        }
    }

    /// An end of a channel has come: from a program here (`user`), or from another host.
    pub(crate) fn incoming(&mut self, incoming: Incoming, user: Option<u32>, now: Instant) {
        if let Purpose::Calls { .. } = incoming.greeting.purpose {
            return self.calls.incoming(incoming);
        }
        let Purpose::Channel { channel, role, .. } = incoming.greeting.purpose else {
            return incoming.refuse("the service takes channels and requests here");
        };
        let run = incoming.greeting.run;
        let (key, is_local) = match user {
            Some(user) => (Key { user, run, channel }, true),
            None => match self.awaited(run, channel, role, incoming.peer_name()) {
                Ok(key) => (key, false),
                Err(reason) => return incoming.refuse(&reason),
            },
        };
        let registered = self.programs.values().find_map(|of| {
            let own = if is_local { role } else { opposite(role) };
            of.channel(key)
                .filter(|channel| channel.roles.contains(&own))
                .map(|channel| (of, channel.edge.clone()))
        });
        let Some((of, _)) = registered else {
            return incoming.refuse("no program here has registered this channel");
        };
        if self.policies_of(key).is_empty() {
            return incoming.refuse(NOT_SERVED);
        }
        if self.paused.get(&key).is_some_and(|until| *until > now) {
            return incoming
                .refuse("a policy could not judge a frame of this channel; it is tried again in a moment");
        }
        self.paused.remove(&key);
        let peer = of.peers.get(&(channel, role)).filter(|_| is_local).cloned();
        if let Some(token) = self.by_key.get(&key).copied() {
            self.part(token);
        }
        let number = self.next();
        let greeting = incoming.greeting.clone();
        self.legs.come(key, role, Leg::Incoming(Box::new(incoming)), number, now);
        if let Some(address) = peer.as_ref().and_then(|peer| peer.dial.clone())
            && !self.is_here(key, opposite(role))
        {
            // Its certificate is this host's: programs of other users do not speak in its name.
            if self.is_trusted(key.user) {
                let identity = peer.and_then(|peer| peer.identity);
                self.legs.dial(Dialling { key, role, number, greeting, address, identity });
            } else {
                let reason = "the service dials other hosts for programs of its own user only";
                self.legs.refuse(key, role, reason);
            }
        }
        self.join(key, now);
    }

    /// Returns whether a program here has this end of a channel.
    fn is_here(&self, key: Key, role: Role) -> bool {
        self.programs.values().any(|of| of.channel(key).is_some_and(|channel| channel.roles.contains(&role)))
    }

    /// Finds the channel that another host dials for.
    fn awaited(&self, run: u128, channel: u64, role: Role, identity: Option<String>) -> Result<Key, String> {
        let own = opposite(role);
        let mut ends = self.programs.values().filter(|of| of.run == run && self.is_trusted(of.user));
        let found = ends.find_map(|of| {
            let key = Key { user: of.user, run, channel };
            let has = of.channel(key).is_some_and(|channel| channel.roles.contains(&own));
            has.then(|| (key, of.peers.get(&(channel, own)).and_then(|peer| peer.identity.clone())))
        });
        let (key, wanted) = found.ok_or("no program here has registered this channel")?;
        match wanted {
            Some(wanted) if identity.as_ref() != Some(&wanted) => {
                let found = identity.unwrap_or_else(|| "somebody who does not say who it is".to_owned());
                Err(format!("this channel is with {wanted}, and the certificate is of {found}"))
            }
            _ => Ok(key),
        }
    }

    /// The other end of a channel was dialled, or could not be.
    pub(crate) fn dialled(
        &mut self,
        (key, role, number): (Key, Role, u64),
        dialled: Result<Connection, RemoteError>,
        now: Instant,
    ) {
        if !self.legs.is_current(key, role, number) {
            return;
        }
        match dialled {
            Ok(connection) => {
                self.legs.come(key, opposite(role), Leg::Dialled(Box::new(connection)), number, now);
                self.join(key, now);
            }
            // It has come to this host meanwhile, and dials the service itself.
            Err(_) if self.is_here(key, opposite(role)) => {}
            Err(error) => {
                self.legs.refuse(key, role, &format!("the other end cannot be reached: {error}"));
            }
        }
    }

    /// Joins both ends, if they are there.
    fn join(&mut self, key: Key, now: Instant) {
        let Some(ends) = self.legs.take_both(key) else { return };
        let name = self.programs.values().find_map(|of| of.channel(key)).map(|of| of.edge.clone());
        let Some(name) = name else { return };
        let policies = self.policies_of(key);
        let edge = match ends.connect() {
            Ok(ends) => Edge::new((name, key.channel), ends, policies),
            Err(error) => return tracing::debug!(channel = key.channel, "an end was lost at once: {error}"),
        };
        let token = self.next();
        if let Err(error) = edge.watch(self.epoll.as_fd(), token) {
            return tracing::error!("cannot wait for a channel: {error}");
        }
        self.joined.insert(token, Joined { key, edge });
        self.by_key.insert(key, token);
        self.ready(token, false, now);
    }

    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Parts the ends of a channel, which are dialled again by the programs.
    fn part(&mut self, token: u64) {
        if let Some(Joined { key, edge }) = self.joined.remove(&token) {
            self.by_key.remove(&key);
            if edge.rejected > 0 {
                *self.rejected.entry(key).or_default() += edge.rejected;
            }
            self.urgent.waits(key.channel, 0);
            edge.unwatch(self.epoll.as_fd());
        }
    }

    /// A channel's descriptors were ready.
    pub(crate) fn ready(&mut self, token: u64, is_over: bool, now: Instant) {
        if Calls::owns(token) {
            let mut context = Context { policies: &self.policies, urgent: &mut self.urgent, now };
            return self.calls.ready(token, is_over, &mut context);
        }
        if let Some(of) = self.joined.get(&token) {
            of.edge.ready();
            self.pump(token, now);
        }
    }

    fn pump(&mut self, token: u64, now: Instant) {
        let Some(of) = self.joined.get_mut(&token) else { return };
        match of.edge.pump(now, &mut self.urgent) {
            Ok(true) => drop(self.busy.insert(token)),
            Ok(false) => {}
            Err(parted) => {
                let (key, name) = (of.key, of.edge.name.clone());
                match parted {
                    Parted::Lost => {}
                    Parted::Failed => drop(self.paused.insert(key, now + PAUSE)),
                    Parted::Damaged(text) => tracing::warn!("an end of a channel of {name} is cut: {text}"),
                }
                self.part(token);
            }
        }
    }

    /// Does what is due. Returns the time until something is.
    pub(crate) fn look(&mut self, now: Instant) -> Option<Duration> {
        for token in std::mem::take(&mut self.busy) {
            self.pump(token, now);
        }
        let due = |of: &Joined| of.edge.until().is_some_and(|until| until <= now);
        let tokens: Vec<u64> =
            self.joined.iter().filter(|(_, of)| due(of)).map(|(token, _)| *token).collect();
        tokens.into_iter().for_each(|token| self.pump(token, now));
        self.paused.retain(|_, until| *until > now);
        let old = self.legs.drop_old(now);
        let mut context = Context { policies: &self.policies, urgent: &mut self.urgent, now };
        let calls = self.calls.look(&mut context);
        if !self.busy.is_empty() {
            return Some(Duration::ZERO);
        }
        let next = self.joined.values().filter_map(|of| of.edge.until()).min();
        let next = next.into_iter().chain(old).min().map(|at| at.saturating_duration_since(now));
        next.into_iter().chain(calls).min()
    }

    /// Everything that this user may see.
    pub(crate) fn list(&self, user: u32, now: Instant) -> Listing {
        let may = |of: u32| of == user || self.is_trusted(user);
        let mut edges = Vec::new();
        for of in self.programs.values().filter(|of| may(of.user)) {
            let names: BTreeSet<&EdgeName> =
                of.program.channels.iter().map(|channel| &channel.edge).collect();
            edges.extend(of.program.inner.iter().map(|edge| (of, edge, true)));
            edges.extend(names.into_iter().map(|edge| (of, edge, false)));
        }
        let view = |(of, name, is_inner): (&Registered, &EdgeName, bool)| {
            let keys = of.program.channels.iter().filter(|channel| channel.edge == *name);
            let keys: Vec<Key> =
                keys.map(|channel| Key { user: of.user, run: of.run, channel: channel.channel }).collect();
            let policies = keys.first().map(|key| self.policies_of(*key)).unwrap_or_default();
            let joined: Vec<&Joined> =
                keys.iter().filter_map(|key| self.joined.get(self.by_key.get(key)?)).collect();
            let counts = of.counts.get(name).cloned().unwrap_or_default();
            EdgeView {
                edge: name.clone(),
                worker: of.program.worker.clone(),
                process: of.program.process,
                user: of.user,
                route: match () {
                    () if is_inner => Route::Inner,
                    () if policies.is_empty() => Route::Direct,
                    () if joined.len() == keys.len() => Route::Service,
                    () => Route::Waits,
                },
                records: counts.records,
                bytes: counts.bytes,
                waiting: counts.waiting,
                policies: policies.iter().map(|policy| policy.spec.borrow().id.clone()).collect(),
                held: joined.iter().filter(|of| of.edge.is_held()).count() as u64,
                rejected: keys.iter().map(|key| self.rejected_of(*key)).sum(),
            }
        };
        let edges: Vec<EdgeView> = edges.into_iter().map(view).collect();
        let used = |policy: &Rc<Attached>| {
            let names: BTreeSet<&EdgeName> = (self.joined.values())
                .filter(|of| of.edge.policies.iter().any(|other| Rc::ptr_eq(other, policy)))
                .map(|of| &of.edge.name)
                .collect();
            names.len() as u64 + self.calls.methods_of(policy)
        };
        let of_user = |policy: &&Rc<Attached>| match policy.owner.get() {
            Owner::Plan { user, .. } | Owner::User { user, .. } => may(user),
        };
        let (calls, services) = self.calls.list(user);
        Listing {
            calls,
            services,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            process: std::process::id(),
            seconds: now.saturating_duration_since(self.own.started).as_secs_f64(),
            programs: self.programs.len(),
            edges,
            policies: self.policies.iter().filter(of_user).map(|policy| policy.view(used(policy))).collect(),
        }
    }
}

/// The role of the other end.
pub(crate) fn opposite(role: Role) -> Role {
    match role {
        Role::Sender => Role::Receiver,
        Role::Receiver => Role::Sender,
    }
}
