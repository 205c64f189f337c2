//! Groups of programs over all workers: names the worker whose transport service introduces their ranks.
//!
//! It stays the same until that worker leaves the cluster, also after a restart of the controller: a move ends the groups that run.
use super::racks::{pod_of, rack_of};
use super::{LiveWorker, Shared, locked};
use crate::api::GroupDuties;

/// Of workers and their machines the first one on the controller's machine, or else the first one.
fn chosen<'a>(workers: impl Iterator<Item = (&'a str, &'a str)> + Clone, machine: &str) -> Option<&'a str> {
    let own = workers.clone().find(|(_, of)| *of == machine);
    own.or_else(|| workers.clone().next()).map(|(name, _)| name)
}

impl Shared {
    /// How the service of a worker takes part in groups; none: as before.
    pub(super) fn group_duties(&self, name: &str) -> Option<GroupDuties> {
        let leader = self.group_leader()?;
        let workers = locked(&self.workers);
        let live = workers.get(name)?;
        let at = workers.get(&leader)?.heartbeat.groups_at.clone()?;
        let labels = &live.heartbeat.labels;
        let rack = self.facts.look(|document| rack_of(labels, document.workers.get(name)));
        Some(GroupDuties { rack, pod: pod_of(labels), conductor: (leader != name).then_some(at) })
    }

    /// The worker whose service introduces ranks.
    fn group_leader(&self) -> Option<String> {
        let known = |document: &crate::facts::Document| {
            document.workers.iter().find(|(_, facts)| facts.introduces_ranks).map(|(name, _)| name.clone())
        };
        if let Some(leader) = self.facts.look(known) {
            return Some(leader);
        }
        let leader = {
            let workers = locked(&self.workers);
            let is_reached = |live: &LiveWorker| live.is_alive && live.heartbeat.groups_at.is_some();
            let reached = workers.iter().filter(|(_, live)| is_reached(live));
            let machines = reached.map(|(name, live)| (name.as_str(), live.heartbeat.machine.as_str()));
            chosen(machines, &tidemill_machine::host_name())?.to_owned()
        };
        let kept = self.facts.change(|document| {
            if let Some(leader) = known(document) {
                return Some((leader, false));
            }
            document.workers.get_mut(&leader)?.introduces_ranks = true;
            Some((leader.clone(), true))
        });
        match kept {
            Ok(Some((leader, is_new))) => {
                if is_new {
                    let text =
                        format!("the transport service of worker {leader} introduces the ranks of groups");
                    self.tell("groups_led", None, Some(&leader), &text);
                }
                Some(leader)
            }
            Ok(None) => None,
            Err(error) => {
                tracing::error!("{error}");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controllers_own_machine_comes_first() {
        let workers = [("a", "edge-box"), ("b", "hub-box"), ("c", "hub-box")];
        assert_eq!(chosen(workers.into_iter(), "hub-box"), Some("b"));
        assert_eq!(chosen(workers.into_iter(), "elsewhere"), Some("a"));
        assert_eq!(chosen([].into_iter(), "elsewhere"), None);
    }
}
