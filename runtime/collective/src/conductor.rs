//! The conductor: introduces the ranks of groups to each other and chooses strategies. Pure: messages in, messages out.
mod hints;

use crate::cost::Network;
use crate::hints::Export;
use crate::peers::{Formed, FromConductor, Key, Place, ToConductor, Token};
use crate::policies::{Cluster, Policy, PolicyError};
use crate::protocol::{
    Answer, Failure, FailureKind, Figures, GroupState, GroupView, MOST_GROUPS, Measured, NO_USER,
};
use crate::strategy::Strategy;
use crate::topology::{self, Host, Priority};
use counting::{Past, Trace};
use explained::Explained;
use questions::Benching;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidemill_link::remote::Address;

mod claims;
mod counting;
mod explained;
mod questions;
mod registering;
mod windows;

/// The number of the connection of a service.
pub(crate) type Link = u64;
/// Messages to send.
pub(crate) type Messages = Vec<(Link, FromConductor)>;
/// Strategies by the names of groups, or why there are none.
type Plans = Result<BTreeMap<String, (Strategy, Explained)>, String>;

struct Registered {
    host: Host,
    address: Option<Address>,
}

struct Group {
    size: u32,
    priority: Priority,
    /// Ranks that are there, and the service of each; none: its connection is lost, and it may come back.
    ranks: BTreeMap<u32, (Option<Link>, String)>,
    /// Ranks that wait for the next formation.
    ready: BTreeSet<u32>,
    /// Ranks that joined since it was formed last.
    came: BTreeSet<u32>,
    /// The next formation has all ranks again: one of them waits for the lost ones.
    is_whole: bool,
    formed: Option<Formed>,
    /// Why it is broken.
    broken: Option<Failure>,
    /// The name of the policy, where a person chose it.
    policy: Option<String>,
    /// The strategy that was ordered last.
    strategy: Option<Strategy>,
    /// When it was ordered, until all hosts have it.
    ordered: Option<Duration>,
    explained: Explained,
    figures: BTreeMap<Link, Figures>,
    past: Past,
    /// When the times were made at which it yields.
    retimed: Duration,
    traces: BTreeMap<Link, Trace>,
}

impl Group {
    fn new(size: u32, priority: Priority) -> Self {
        Self {
            size,
            priority,
            ranks: BTreeMap::new(),
            ready: BTreeSet::new(),
            came: BTreeSet::new(),
            is_whole: false,
            formed: None,
            broken: None,
            policy: None,
            strategy: None,
            ordered: None,
            explained: Explained::default(),
            figures: BTreeMap::new(),
            past: Past::default(),
            retimed: Duration::ZERO,
            traces: BTreeMap::new(),
        }
    }

    fn links(&self) -> BTreeSet<Link> {
        self.ranks.values().filter_map(|(link, _)| *link).collect()
    }

    /// Ranks without which it does not form. Fewer than all are enough only where some of before continue: a program that joins wants
    /// all.
    fn missing(&self) -> Vec<u32> {
        let is_missing = |rank: &u32| !self.ready.contains(rank);
        let continues = self.formed.is_some() && self.ranks.keys().any(|rank| !self.came.contains(rank));
        if continues && !self.is_whole {
            self.ranks.keys().copied().filter(is_missing).collect()
        } else {
            (0..self.size).filter(is_missing).collect()
        }
    }

    /// Returns whether a rank is of the service with this connection.
    fn is_of(&self, rank: u32, link: Link) -> bool {
        self.ranks.get(&rank).is_some_and(|(of, _)| *of == Some(link))
    }

    /// Returns how many ranks that service has.
    fn count_of(&self, link: Link) -> usize {
        self.ranks.values().filter(|(of, _)| *of == Some(link)).count()
    }

    /// Another strategy is on its way.
    fn ordered(&mut self, strategy: Strategy, now: Duration) {
        (self.strategy, self.ordered) = (Some(strategy), Some(now));
    }

    fn state(&self) -> GroupState {
        if self.broken.is_some() {
            return GroupState::Broken;
        }
        let Some(strategy) = self.strategy.as_ref().filter(|_| self.formed.is_some()) else {
            return GroupState::Joining;
        };
        let links = self.links();
        let is_there = |link: &Link| self.figures.get(link).is_some_and(|of| of.epoch >= strategy.epoch);
        if links.iter().all(is_there) { GroupState::Running } else { GroupState::Switching }
    }

    /// Returns its state for people. `now`: since the conductor began.
    fn view(&self, key: &Key, now: Duration) -> GroupView {
        let state = self.state();
        let listed = |ranks: Vec<u32>| ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let why = match (&self.broken, state) {
            (Some(failure), _) => failure.text.clone(),
            (None, GroupState::Joining) => format!("waits for ranks {}", listed(self.missing())),
            _ => String::new(),
        };
        GroupView {
            name: key.name.clone(),
            user: key.user,
            state,
            why,
            size: self.size,
            ranks: self.ranks.iter().map(|(rank, (_, host))| (*rank, host.clone())).collect(),
            priority: self.priority,
            strategy: self.strategy.clone(),
            policy: self.policy.clone().unwrap_or_else(|| USUAL.to_owned()),
            reasons: self.explained.reasons.clone(),
            predicted: self.explained.predicted.clone(),
            figures: self.figures(),
            minute: self.past.minute(self.figures(), now),
        }
    }
}

/// The policy where nobody chose one.
const USUAL: &str = "ffa";

/// The state of the conductor.
#[derive(Default)]
pub(crate) struct Conductor {
    hosts: BTreeMap<Link, Registered>,
    groups: BTreeMap<Key, Group>,
    benches: BTreeMap<String, Benching>,
    next: u64,
    /// Makes secrets.
    token: Option<fn(u64) -> Token>,
    hints: hints::Hints,
    /// Time since any moment: hints age.
    now: Duration,
}

impl Conductor {
    /// `token` makes secrets of numbers.
    pub(crate) fn new(token: fn(u64) -> Token) -> Self {
        Self { token: Some(token), ..Self::default() }
    }

    /// Takes the time, and who gets hints, before messages of that time.
    pub(crate) fn set(&mut self, now: Duration, export: Export) {
        (self.now, self.hints.export) = (now, export);
    }

    /// A message came.
    pub(crate) fn hear(&mut self, from: Link, message: ToConductor) -> Messages {
        // One that was turned away comes again.
        if !self.hosts.contains_key(&from) && !matches!(message, ToConductor::Register { .. }) {
            return Messages::new();
        }
        match message {
            ToConductor::Register { host, address, running } => self.register(from, host, address, running),
            ToConductor::Join { key, rank, size, priority } => self.join(from, &key, rank, size, priority),
            ToConductor::Leave { key, rank } => self.leave(from, &key, rank),
            ToConductor::Broken { key, token, failure, last } => self.broken(&key, &token, &failure, last),
            ToConductor::Shrink { key, rank, whole } => {
                let group = self.groups.get_mut(&key).filter(|group| group.is_of(rank, from));
                let Some(group) = group else {
                    let reason = format!("group {} has continued without rank {rank}: join again", key.name);
                    return vec![(from, FromConductor::Refused { key, rank, reason })];
                };
                group.ready.insert(rank);
                group.is_whole |= whole;
                self.form(&key)
            }
            ToConductor::Figures { key, figures, trace } => {
                self.count(from, &key, figures, trace);
                self.retime()
            }
            ToConductor::Hints(facts) => self.counts(from, facts),
            ToConductor::Loads(aggregate) => {
                self.hints.hear(from, aggregate, self.now);
                Messages::new()
            }
            ToConductor::Ask { id, user, question } => self.answer(from, id, user, question),
            ToConductor::Measured { group, outcome } => {
                if self.benches.get(&group).is_none_or(|bench| bench.first != from) {
                    return Messages::new();
                }
                let Some(bench) = self.benches.remove(&group) else { return Messages::new() };
                let hosts = bench.hosts;
                let answer = match outcome {
                    Ok(measured) => Answer::Measured(Measured { hosts, ..measured }),
                    Err(reason) => Answer::Refused(reason),
                };
                vec![(bench.asker.0, FromConductor::Answer { id: bench.asker.1, answer })]
            }
        }
    }

    fn join(&mut self, from: Link, key: &Key, rank: u32, size: u32, priority: Priority) -> Messages {
        let refused =
            |reason: String| vec![(from, FromConductor::Refused { key: key.clone(), rank, reason })];
        let Some(registered) = self.hosts.get(&from) else { return Messages::new() };
        if let Some(reason) = claims::of_rank(key, rank, size) {
            return refused(reason);
        }
        let of_host = self.groups.values().map(|group| group.count_of(from)).sum::<usize>();
        if of_host >= claims::MOST_RANKS_OF_HOST {
            return refused(format!("a host has {} ranks at most", claims::MOST_RANKS_OF_HOST));
        }
        let of_user = self.groups.keys().filter(|other| other.user == key.user).count();
        if of_user >= MOST_GROUPS && !self.groups.contains_key(key) {
            return refused(format!("a user has {MOST_GROUPS} groups at most; end one of them"));
        }
        let group = self.groups.entry(key.clone()).or_insert_with(|| Group::new(size, priority));
        if group.size != size {
            let text = format!("group {} has {} ranks, and rank {rank} says {size}", key.name, group.size);
            return refused(text);
        }
        if let Some((_, host)) = group.ranks.get(&rank) {
            return refused(format!("another program is rank {rank} of group {}, on host {host}", key.name));
        }
        group.ranks.insert(rank, (Some(from), registered.host.name.clone()));
        group.ready.insert(rank);
        group.came.insert(rank);
        self.form(key)
    }

    fn leave(&mut self, from: Link, key: &Key, rank: u32) -> Messages {
        let group = self.groups.get_mut(key).filter(|group| group.is_of(rank, from));
        let Some(group) = group else { return Messages::new() };
        let Some((_, host)) = group.ranks.remove(&rank) else { return Messages::new() };
        group.ready.remove(&rank);
        group.came.remove(&rank);
        let is_member = group.strategy.as_ref().is_some_and(|strategy| strategy.members.contains(&rank));
        if is_member && group.formed.is_some() && group.broken.is_none() {
            let text = format!("rank {rank} on host {host} is gone");
            group.broken = Some(Failure { kind: FailureKind::Lost, rank: Some(rank), host, text });
        }
        self.form(key)
    }

    fn broken(&mut self, key: &Key, token: &str, failure: &Failure, last: u64) -> Messages {
        let Some(group) = self.groups.get_mut(key) else { return Messages::new() };
        let Some(formed) = group.formed.as_ref().filter(|formed| formed.token == token) else {
            return Messages::new();
        };
        let failure = failure.shortened();
        group.broken.get_or_insert_with(|| failure.clone());
        let token = formed.token.clone();
        let tell = |link| {
            let (key, token, failure) = (key.clone(), token.clone(), failure.clone());
            (link, FromConductor::Broken { key, token, failure, last })
        };
        let mut out: Messages = group.links().into_iter().map(tell).collect();
        out.extend(self.form(key));
        out
    }

    /// A connection of a service ended. Its groups continue among themselves; those that were forming lose its ranks.
    pub(crate) fn lost(&mut self, link: Link) -> Messages {
        self.hosts.remove(&link);
        let mut out = self.hints.lost(link);
        let lost: Vec<String> = (self.benches.iter())
            .filter(|(_, bench)| bench.first == link || bench.asker.0 == link)
            .map(|(name, _)| name.clone())
            .collect();
        for bench in lost.iter().filter_map(|name| self.benches.remove(name)) {
            let answer = Answer::Refused("the host of rank 0 is lost".to_owned());
            out.push((bench.asker.0, FromConductor::Answer { id: bench.asker.1, answer }));
        }
        let keys: Vec<Key> = self.groups.keys().cloned().collect();
        for key in keys {
            let Some(group) = self.groups.get_mut(&key) else { continue };
            group.figures.remove(&link);
            group.traces.remove(&link);
            let is_formed = group.formed.is_some();
            let of_link = group.ranks.iter_mut().filter(|(_, (of, _))| *of == Some(link));
            let mut ranks = Vec::new();
            for (rank, (of, _)) in of_link {
                *of = None;
                ranks.push(*rank);
            }
            if ranks.is_empty() {
                continue;
            }
            group.ready.retain(|rank| !ranks.contains(rank));
            if !is_formed {
                group.ranks.retain(|rank, _| !ranks.contains(rank));
            }
            out.extend(self.form(&key));
        }
        out
    }

    /// Forms a group if all ranks wait for it.
    fn form(&mut self, key: &Key) -> Messages {
        let Some(group) = self.groups.get_mut(key) else { return Messages::new() };
        if group.broken.is_some() {
            group.ranks.retain(|_, (link, _)| link.is_some());
        }
        if group.links().is_empty() {
            // Of one that runs, the ranks come back when their services register again.
            if group.formed.is_none() || group.ranks.is_empty() || group.broken.is_some() {
                self.groups.remove(key);
            }
            return Messages::new();
        }
        let missing = group.missing();
        if !missing.is_empty() {
            let tell = |link| (link, FromConductor::Missing { key: key.clone(), ranks: missing.clone() });
            return if group.ready.is_empty() {
                Messages::new()
            } else {
                group.links().into_iter().map(tell).collect()
            };
        }
        let members: Vec<u32> = group.ranks.keys().copied().collect();
        let links = group.links();
        let mut hosts = Vec::new();
        for link in &links {
            let Some(registered) = self.hosts.get(link) else { continue };
            let of_link = group.ranks.iter().filter(|(_, (of, _))| *of == Some(*link));
            hosts.push(Place {
                host: registered.host.clone(),
                address: registered.address.clone(),
                ranks: of_link.map(|(rank, _)| *rank).collect(),
            });
        }
        if hosts.len() > 1
            && let Some(place) = hosts.iter().find(|place| place.address.is_none())
        {
            let reason = format!(
                "host {} does not listen for other hosts: start its service with `--listen HOST:PORT`",
                place.host.name
            );
            let refuse = |(rank, (link, _)): (&u32, &(Option<Link>, String))| {
                let refused =
                    FromConductor::Refused { key: key.clone(), rank: *rank, reason: reason.clone() };
                link.map(|link| (link, refused))
            };
            let out = group.ranks.iter().filter_map(refuse).collect();
            self.groups.remove(key);
            return out;
        }
        let (formed, strategy) = (group.formed.is_some(), group.strategy.clone());
        let policy = match key.user {
            NO_USER => self.benches.get(&key.name).and_then(|bench| bench.bench.strategy.clone()),
            // One that names ranks may not fit those that are left.
            _ => group
                .policy
                .clone()
                .filter(|name| !formed || !name.starts_with("ring:") && !name.starts_with("tree:")),
        };
        let epoch = strategy.map_or(0, |strategy| strategy.epoch) + 1;
        self.next += 1;
        let number = self.next;
        let planned = self.plan(key, policy.as_deref().unwrap_or(USUAL), epoch, members.clone());
        let Some(group) = self.groups.get_mut(key) else { return Messages::new() };
        // That of a benchmark was checked before.
        let (strategy, explained) =
            planned.unwrap_or_else(|_| (Strategy::rank_order(epoch, members), Explained::default()));
        group.policy = policy;
        group.explained = explained;
        let token = self.token.map_or_else(String::new, |token| token(number));
        let formed = Formed { key: key.clone(), token, hosts, strategy: strategy.clone() };
        group.ready.clear();
        group.came.clear();
        group.is_whole = false;
        group.broken = None;
        group.figures.clear();
        (group.past, group.traces) = (Past::default(), BTreeMap::new());
        (group.strategy, group.ordered) = (Some(strategy), None);
        group.formed = Some(formed.clone());
        let tell = |link| (link, FromConductor::Formed(Box::new(formed.clone())));
        let mut out: Messages = links.into_iter().map(tell).collect();
        out.extend(self.settle(key));
        out
    }

    /// Gives other groups other paths, where their policy wants that now that one group has changed.
    fn settle(&mut self, changed: &Key) -> Messages {
        let mut out = Messages::new();
        let others: Vec<Key> = self.groups.keys().filter(|key| *key != changed).cloned().collect();
        // A policy makes the strategies of all groups at once.
        let mut by_name = BTreeMap::new();
        for key in others {
            let Some(group) = self.groups.get(&key) else { continue };
            let name = group.policy.clone().unwrap_or_else(|| USUAL.to_owned());
            let is_shared = matches!(name.parse(), Ok(Policy::Ffa | Policy::Pfa { .. } | Policy::Ts { .. }));
            let runs = group.formed.is_some() && group.broken.is_none();
            let Some(before) = group.strategy.clone().filter(|_| runs && is_shared) else { continue };
            // Only those that would change are kept.
            let all: &mut Plans = by_name.entry(name).or_insert_with_key(|name| {
                self.plans(name, None, |name, next| {
                    let of = |(key, group): (&Key, &Group)| {
                        (key.to_string() == name).then(|| group.strategy.clone()).flatten()
                    };
                    let before = self.groups.iter().find_map(of);
                    before.is_some_and(|before| {
                        next.channels != before.channels || next.gives_way() != before.gives_way()
                    })
                })
            });
            let planned = all.as_mut().ok().and_then(|all| all.remove(&key.to_string()));
            let Some((next, explained)) = planned else { continue };
            let next = Strategy { epoch: before.epoch + 1, ..next };
            if let Some(group) = self.groups.get_mut(&key) {
                group.explained = explained;
                let tell = |link| (link, FromConductor::Order { key: key.clone(), strategy: next.clone() });
                out.extend(group.links().into_iter().map(tell));
                group.ordered(next.clone(), self.now);
            }
        }
        out
    }

    /// Makes the strategy of a group by the policy of this name, with knowledge of all other groups, and explains it.
    fn plan(
        &self,
        key: &Key,
        name: &str,
        epoch: u64,
        members: Vec<u32>,
    ) -> Result<(Strategy, Explained), String> {
        let own = key.to_string();
        let mut all = self.plans(name, Some((key, &members)), |name, _| name == own)?;
        let (strategy, explained) = all.remove(&own).ok_or("the group has no ranks")?;
        Ok((Strategy { epoch, ..strategy }, explained))
    }

    /// Makes the strategies of all groups that run, and of this one with these members. Explains those that are wanted, and returns
    /// no others.
    fn plans(
        &self,
        name: &str,
        with: Option<(&Key, &[u32])>,
        is_wanted: impl Fn(&str, &Strategy) -> bool,
    ) -> Plans {
        let policy: Policy = name.parse().map_err(|error: PolicyError| error.to_string())?;
        self.in_cluster(&policy, with, |cluster| {
            let mut all = policy.choose(cluster).map_err(|error| error.to_string())?;
            all.retain(|name, chosen| is_wanted(name, &chosen.strategy));
            let explained = all.into_iter().map(|(name, chosen)| {
                let explained = self.explain(&name, cluster, &chosen);
                (name, (chosen.strategy, explained))
            });
            Ok(explained.collect())
        })
    }

    /// Does something with everything that a policy may know: the groups that run, and this one with these members.
    fn in_cluster<T>(
        &self,
        policy: &Policy,
        with: Option<(&Key, &[u32])>,
        act: impl FnOnce(&Cluster<'_>) -> T,
    ) -> T {
        let hosts: Vec<Host> = self.hosts.values().map(|registered| registered.host.clone()).collect();
        let facts = |(of, group): (&Key, &Group)| topology::Group {
            name: of.to_string(),
            ranks: (group.ranks.iter())
                .filter(|(rank, _)| match (with, &group.strategy) {
                    (Some((key, members)), _) if of == key => members.contains(rank),
                    (_, Some(strategy)) => strategy.members.contains(rank),
                    (_, None) => false,
                })
                .map(|(rank, (_, host))| (*rank, host.clone()))
                .collect(),
            priority: group.priority,
        };
        // Ranks are named of one group. Others count where their hosts are known and they have begun.
        let is_of_one = matches!(policy, Policy::Ring(_) | Policy::Tree(_));
        let is_known = |group: &Group| group.links().iter().all(|link| self.hosts.contains_key(link));
        let counts = |(of, group): &(&Key, &Group)| {
            with.is_some_and(|(key, _)| key == *of)
                || !is_of_one && group.formed.is_some() && group.broken.is_none() && is_known(group)
        };
        let groups: Vec<topology::Group> = self.groups.iter().filter(counts).map(facts).collect();
        let groups: Vec<topology::Group> =
            groups.into_iter().filter(|group| !group.ranks.is_empty()).collect();
        let totals = self.hints.totals();
        let network = Network { hosts: &hosts, totals: Some(&totals), ..Network::default() };
        let traces = if matches!(policy, Policy::Ts { .. }) { self.traces() } else { Vec::new() };
        // Hints are of the hosts of one group.
        let loads = with.filter(|_| *policy == Policy::Hints).and_then(|(key, _)| self.hints.loads(key));
        act(&Cluster { network, groups: &groups, traces: &traces, loads: loads.as_ref() })
    }
}

#[cfg(test)]
mod tests;
