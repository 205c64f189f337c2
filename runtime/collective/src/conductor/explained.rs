//! Reasons for strategies, and times that operations should take with them.
use super::{Conductor, Group};
use crate::cost::{Network, Predicted, predicted, reasons};
use crate::peers::Key;
use crate::policies::{Chosen, Cluster, hints};
use crate::strategy::Strategy;
use crate::topology;
use std::collections::BTreeMap;

/// An explanation of the strategy of a group, as of the time when it was chosen.
#[derive(Debug, Clone, Default)]
pub(super) struct Explained {
    pub(super) reasons: Vec<String>,
    pub(super) predicted: Vec<Predicted>,
}

impl Conductor {
    /// Explains the choice for a group of the cluster, beside the other groups as they are.
    pub(super) fn explain(&self, name: &str, cluster: &Cluster<'_>, chosen: &Chosen) -> Explained {
        let strategy = &chosen.strategy;
        let Some(group) = cluster.groups.iter().find(|group| group.name == name) else {
            return Explained::default();
        };
        let ordered = |(key, group): (&Key, &Group)| Some((key.to_string(), group.strategy.clone()?));
        let ordered: BTreeMap<String, Strategy> = self.groups.iter().filter_map(ordered).collect();
        let others = cluster.groups.iter().filter(|group| group.name != name);
        let others: Vec<(&topology::Group, &Strategy)> =
            others.filter_map(|group| Some((group, ordered.get(&group.name)?))).collect();
        let network =
            Network { loads: cluster.loads.filter(|loads| hints::are_fresh(loads)), ..cluster.network };
        let mut why = vec![chosen.why.clone()];
        why.extend(reasons(&network, group, strategy, &others));
        let mean =
            self.groups.iter().find(|(key, _)| key.to_string() == name).and_then(|(_, group)| group.mean());
        Explained { reasons: why, predicted: predicted(&network, group, strategy, &others, mean) }
    }
}

impl Group {
    /// The mean size of its buffers.
    fn mean(&self) -> Option<u64> {
        let figures = self.figures();
        figures.bytes.checked_div(figures.operations)
    }
}
