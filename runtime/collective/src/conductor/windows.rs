//! Groups that yield to others: when they do is made anew from newer traces.
use super::{Conductor, Group, Messages};
use crate::peers::{FromConductor, Key};
use crate::policies::Policy;
use crate::policies::ts;
use crate::protocol::GroupState;
use crate::strategy::Strategy;
use std::collections::BTreeSet;

impl Conductor {
    /// Makes the times anew at which groups yield, where the policy is `ts` and the last ones are old.
    pub(super) fn retime(&mut self) -> Messages {
        let now = self.now;
        let is_timed = |name: &&String| matches!(name.parse(), Ok(Policy::Ts { .. }));
        let is_due = |group: &&Group| now.saturating_sub(group.retimed) >= ts::REMADE && is_ready(group);
        let due = self.groups.values().filter(is_due).filter_map(|group| group.policy.as_ref());
        let names: BTreeSet<String> = due.filter(is_timed).cloned().collect();
        names.iter().flat_map(|name| self.retime_by(name)).collect()
    }

    /// The same for the groups with the policy of this name.
    fn retime_by(&mut self, name: &str) -> Messages {
        let now = self.now;
        let at_us = self.traces().iter().flat_map(|(_, trace)| trace).map(|span| span.end_us).max();
        // Those that are due soon are made with the others.
        let keys: Vec<(Key, Strategy)> = (self.groups.iter())
            .filter(|(_, group)| group.policy.as_deref() == Some(name) && is_ready(group))
            .filter(|(_, group)| now.saturating_sub(group.retimed) >= ts::REMADE / 2)
            .filter_map(|(key, group)| Some((key.clone(), group.strategy.clone()?)))
            .collect();
        let planned = self.plans(name, None, |name, _| keys.iter().any(|(key, _)| key.to_string() == name));
        let mut planned = planned.unwrap_or_default();
        let mut out = Messages::new();
        for (key, before) in keys {
            let Some(group) = self.groups.get_mut(&key) else { continue };
            group.retimed = now;
            let Some((next, explained)) = planned.remove(&key.to_string()) else { continue };
            if !ts::differ(&before, &next, at_us.unwrap_or(0)) {
                continue;
            }
            // Rings and paths stay, so that no wire is exchanged.
            let Strategy { windows, yields, .. } = next;
            let next = Strategy { epoch: before.epoch + 1, windows, yields, same_wires: true, ..before };
            (group.strategy, group.explained) = (Some(next.clone()), explained);
            let tell = |link| (link, FromConductor::Order { key: key.clone(), strategy: next.clone() });
            out.extend(group.links().into_iter().map(tell));
        }
        out
    }
}

/// Whether all hosts have the wires of the strategy that was ordered last. Where one still connects, it would take other wires
/// than the others keep.
fn is_ready(group: &Group) -> bool {
    group.state() == GroupState::Running
}
