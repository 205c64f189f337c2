//! Answers about hints: the table for the operator, the own links for a program.
use super::super::{Conductor, Group, USUAL};
use super::Known;
use super::planning::machines;
use crate::hints::{Export, GroupView, HostView, LinkView, OwnHints, RackView, View, ms};
use crate::peers::Key;
use std::collections::BTreeSet;
use tidemill_hints::estimate::{Guarantee, bandwidth};

impl Conductor {
    /// Everything about links, or about those of one group. `flows`: how many more flows the estimates are for.
    pub(in crate::conductor) fn hints_view(&self, group: Option<&str>, flows: u32) -> Result<View, String> {
        let only = group.map(|group| self.meant(group, |_| true)).transpose()?;
        let now = self.now;
        let hints = &self.hints;
        let followed = |key: &Key, group: &Group| {
            let followed = hints.followed.get(key)?;
            Some(GroupView {
                name: key.name.clone(),
                user: key.user,
                policy: group.policy.clone().unwrap_or_else(|| USUAL.to_owned()),
                decision: followed.decision.to_string(),
                note: followed.note.clone(),
                replans: followed.replans,
                between_changes_ms: followed.between_changes().map(ms),
                hosts: followed.hosts.iter().map(|(host, _)| host.clone()).collect(),
            })
        };
        let groups: Vec<GroupView> = (self.groups.iter())
            .filter(|(key, _)| only.as_ref().is_none_or(|only| only == *key))
            .filter_map(|(key, group)| followed(key, group))
            .collect();
        if let (Some(key), true) = (&only, groups.is_empty()) {
            return Err(format!("group {} has no ranks on several hosts now: it needs no hints", key.name));
        }
        let hosts: Option<BTreeSet<String>> =
            only.as_ref().map(|_| groups.iter().flat_map(|group| group.hosts.iter().cloned()).collect());
        let is_meant = |host: &str| hosts.as_ref().is_none_or(|hosts| hosts.contains(host));
        let mut view =
            View { groups, between_changes_ms: hints.changes.between().map(ms), ..View::default() };
        for (number, rack) in hints.racks.iter().enumerate() {
            let there =
                || rack.machines.iter().filter(|machine| machine.link.is_some() && is_meant(&machine.host));
            if there().next().is_none() {
                continue;
            }
            let state = hints.observer.state(number as u64, now).filter(|state| !state.entries.is_empty());
            let leader =
                rack.machines.iter().find(|machine| machine.link.is_some() && machine.link == rack.leader);
            view.racks.push(RackView {
                name: rack.name.clone(),
                leader: leader.map(|machine| machine.host.clone()),
                age_ms: state.as_ref().map(|state| ms(state.age)),
            });
            for (number, machine) in rack.machines.iter().enumerate() {
                if machine.link.is_none() || !is_meant(&machine.host) {
                    continue;
                }
                let reports = |state: &tidemill_hints::message::Aggregate| {
                    state.entries.iter().any(|entry| entry.link / 2 == number as u64)
                };
                view.hosts.push(HostView {
                    name: machine.host.clone(),
                    rack: rack.name.clone(),
                    counted: Some(machine.facts.counted.clone()),
                    reports: state.as_ref().is_some_and(reports),
                });
            }
        }
        // Those whose services are older, or listen nowhere.
        let counts = |name: &str| hints.place(name).is_some();
        let silent =
            self.hosts.values().map(|of| &of.host).filter(|host| !counts(&host.name) && is_meant(&host.name));
        view.hosts.extend(silent.map(|host| HostView {
            name: host.name.clone(),
            rack: host.rack.clone(),
            counted: None,
            reports: false,
        }));
        let racks: BTreeSet<String> = view.racks.iter().map(|rack| rack.name.clone()).collect();
        let is_shown = |link: &Known<'_>| match link.host {
            Some(host) => is_meant(host),
            None => racks.contains(link.rack),
        };
        view.links = (hints.links(now).into_iter().filter(is_shown))
            .map(|link| LinkView {
                rack: link.rack.to_owned(),
                host: link.host.map(str::to_owned),
                way: link.way,
                load: link.load,
                total_from: link.total_from,
                estimate: bandwidth(link.load, f64::from(flows), Guarantee::None),
            })
            .collect();
        Ok(view)
    }

    /// The links between the machines of a program's own group, by numbers.
    pub(in crate::conductor) fn own_hints(
        &mut self,
        user: Option<u32>,
        group: &str,
        rank: u32,
    ) -> Result<OwnHints, String> {
        if self.hints.export != Export::Tenant {
            return Err("the operator keeps hints for the service: programs get them where the service that introduces \
                        ranks was started with `--export-hints tenant`"
                .to_owned());
        }
        let key = self.meant(group, |key| user.is_none_or(|user| user == key.user))?;
        let none = || format!("group {} has no rank {rank} now", key.name);
        let group = self.groups.get(&key).filter(|group| group.formed.is_some()).ok_or_else(none)?;
        let strategy = group.strategy.as_ref().filter(|of| of.members.contains(&rank)).ok_or_else(none)?;
        let (hosts, machines) = machines(group, strategy);
        let found = self.hints.ask(&format!("rank {rank} of group {key}"), &hosts, self.now);
        let found = found.map_err(|reason| reason.to_program())?;
        let between = self.hints.followed.get(&key).and_then(super::planning::Followed::between_changes);
        Ok(OwnHints {
            racks: (0..found.tree.machines()).map(|machine| found.tree.rack_of(machine)).collect(),
            machines,
            age_us: u64::try_from(found.age.as_micros()).unwrap_or(u64::MAX),
            between_changes_ms: between.map(ms),
            links: found.loads,
        })
    }

    /// The group of a name, or of `USER/NAME`.
    fn meant(&self, group: &str, is_visible: impl Fn(&Key) -> bool) -> Result<Key, String> {
        let is_meant = |key: &&Key| is_visible(key) && (key.name == group || key.to_string() == group);
        let meant: Vec<&Key> = self.groups.keys().filter(is_meant).collect();
        match meant[..] {
            [key] => Ok(key.clone()),
            [] => Err(format!("there is no group {group}; `tidemill net collective ls` lists them")),
            [first, ..] => Err(format!("several users have a group {group}: write {first}")),
        }
    }
}
