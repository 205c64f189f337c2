//! Questions of people: what there is, other strategies for groups, and benchmarks.
use super::{Conductor, Link, Messages, claims};
use crate::peers::{FromConductor, Key};
use crate::policies::Policy;
use crate::protocol::{Answer, Bench, GroupView, HostView, Listing, Question};
use std::collections::{BTreeMap, BTreeSet};

/// Begins the names of groups of benchmarks.
const BENCH: &str = "bench-";

/// A benchmark that runs.
pub(super) struct Benching {
    pub(super) asker: (Link, u64),
    pub(super) first: Link,
    pub(super) bench: Bench,
    pub(super) hosts: u32,
}

impl Conductor {
    pub(super) fn answer(&mut self, from: Link, id: u64, user: Option<u32>, question: Question) -> Messages {
        let answer = match question {
            Question::List => {
                let hosts = self.hosts.values().map(|of| HostView {
                    host: of.host.clone(),
                    address: of.address.as_ref().map(ToString::to_string),
                });
                let seen = self.groups.iter().filter(|(key, _)| user.is_none_or(|user| user == key.user));
                // Reasons speak of links.
                let reasons = |view: GroupView| match user {
                    None => view,
                    Some(_) => GroupView { reasons: Vec::new(), ..view },
                };
                let groups = seen.map(|(key, group)| reasons(group.view(key, self.now))).collect();
                // Which hosts and paths there are is not for tenants.
                let hosts = if user.is_none() { hosts.collect() } else { Vec::new() };
                Answer::Listing(Listing { hosts, groups })
            }
            // Each service answers for itself.
            Question::Counts => Answer::Counts(Vec::new()),
            Question::Hints { .. } if user.is_some() => {
                Answer::Refused("only root and the user of the service see the links of all hosts".to_owned())
            }
            Question::Hints { group, flows } => match self.hints_view(group.as_deref(), flows) {
                Ok(view) => Answer::Hints(Box::new(view)),
                Err(reason) => Answer::Refused(reason),
            },
            Question::OwnHints { group, rank } => match self.own_hints(user, &group, rank) {
                Ok(hints) => Answer::OwnHints(hints),
                Err(reason) => Answer::Refused(reason),
            },
            Question::Strategy { group, strategy } => return self.order(from, id, user, &group, &strategy),
            Question::Bench(bench) => match self.bench((from, id), user, bench) {
                Ok(out) => return out,
                Err(reason) => Answer::Refused(reason),
            },
        };
        vec![(from, FromConductor::Answer { id, answer })]
    }

    /// Returns why the paths that a policy names cannot be meant, if so.
    fn unknown_path(&self, policy: &str) -> Option<String> {
        let (Policy::Pfa { reserved } | Policy::Ts { reserved }) = policy.parse().ok()? else { return None };
        let paths = self.hosts.values().flat_map(|of| &of.host.paths).map(|path| path.name.as_str());
        let paths: BTreeSet<&str> = paths.collect();
        let unknown = reserved.iter().find(|name| !paths.contains(name.as_str()))?;
        let known: Vec<&str> = paths.into_iter().collect();
        Some(match &known[..] {
            [] => format!(
                "there is no path {unknown}: no service has paths; `net serve --group-path` names them"
            ),
            known => format!("there is no path {unknown}; paths are {}", known.join(", ")),
        })
    }

    fn order(&mut self, from: Link, id: u64, user: Option<u32>, group: &str, name: &str) -> Messages {
        let refused =
            |reason: String| vec![(from, FromConductor::Answer { id, answer: Answer::Refused(reason) })];
        if user.is_some() {
            return refused("only root and the user of the service choose strategies".to_owned());
        }
        let is_meant = |key: &&Key| key.name == group || key.to_string() == group;
        let meant: Vec<Key> = self.groups.keys().filter(is_meant).cloned().collect();
        let [key] = &meant[..] else {
            return refused(match meant.len() {
                0 => format!("there is no group {group}; `tidemill net collective ls` lists them"),
                _ => format!("several users have a group {group}: write {}", meant[0]),
            });
        };
        let Some(before) = self.groups.get(key).and_then(|group| {
            group.strategy.clone().filter(|_| group.formed.is_some() && group.broken.is_none())
        }) else {
            return refused(format!("group {group} does not run now"));
        };
        if let Some(reason) = self.unknown_path(name) {
            return refused(reason);
        }
        let (strategy, explained) = match self.plan(key, name, before.epoch + 1, before.members) {
            Ok(planned) => planned,
            Err(reason) => return refused(reason),
        };
        let Some(group) = self.groups.get_mut(key) else { return Messages::new() };
        group.ordered(strategy.clone(), self.now);
        group.policy = Some(name.to_owned());
        group.explained = explained;
        let tell = |link| (link, FromConductor::Order { key: key.clone(), strategy: strategy.clone() });
        let mut out: Messages = group.links().into_iter().map(tell).collect();
        let answer = Answer::Done(Box::new(group.view(key, self.now)));
        out.extend(self.settle(key));
        out.push((from, FromConductor::Answer { id, answer }));
        out
    }

    fn bench(&mut self, asker: (Link, u64), user: Option<u32>, bench: Bench) -> Result<Messages, String> {
        if user.is_some() {
            return Err("only root and the user of the service measure".to_owned());
        }
        if bench.ranks == 0 || bench.ranks > crate::protocol::MOST_RANKS || bench.bytes == 0 {
            return Err(format!(
                "a benchmark has 1 to {} ranks, and some bytes",
                crate::protocol::MOST_RANKS
            ));
        }
        if self.benches.len() >= claims::MOST_BENCHES || self.hosts.is_empty() {
            return Err("too many benchmarks run now, or no host is registered: try again later".to_owned());
        }
        self.next += 1;
        let name = format!("{BENCH}{}", self.next);
        let links: Vec<Link> = self.hosts.keys().copied().collect();
        let count = (bench.ranks as usize).min(links.len()).max(1);
        if let Some(strategy) = &bench.strategy {
            strategy.parse::<Policy>().map_err(|error| error.to_string())?;
        }
        let mut ranks: BTreeMap<Link, Vec<u32>> = BTreeMap::new();
        for rank in 0..bench.ranks {
            // Neighbours are on one host where there are fewer hosts than ranks.
            let position = rank as usize * count / bench.ranks as usize;
            ranks.entry(links[position.min(links.len() - 1)]).or_default().push(rank);
        }
        let first = *ranks.iter().find(|(_, ranks)| ranks.contains(&0)).ok_or("no host is registered")?.0;
        self.benches
            .insert(name.clone(), Benching { asker, first, bench: bench.clone(), hosts: ranks.len() as u32 });
        let tell =
            |(link, ranks)| (link, FromConductor::Bench { group: name.clone(), ranks, bench: bench.clone() });
        Ok(ranks.into_iter().map(tell).collect())
    }
}
