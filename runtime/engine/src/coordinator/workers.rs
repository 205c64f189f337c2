//! The workers of a plan, and each one's part.
use crate::alignment::Groups;
use crate::failure::RunError;
use crate::graph::{Graph, Program};
use crate::metrics::Own;
use std::collections::BTreeSet;

/// The workers of a plan.
pub(crate) struct Workers {
    pub(crate) names: Vec<String>,
    /// The part of the plan that each has.
    pub(crate) own: Vec<Own>,
    /// Number of the worker, by slot.
    pub(crate) of_slots: Vec<usize>,
    /// Number of instances of each slot.
    pub(crate) instances: Vec<usize>,
    /// Number of channels of the plan.
    pub(crate) channels: usize,
}

impl Workers {
    /// Returns the workers of a plan.
    ///
    /// # Errors
    /// Sources of several workers would have to be read side by side.
    pub(crate) fn of(program: &Program, graph: &Graph) -> Result<Self, RunError> {
        let mut names: Vec<String> = Vec::new();
        let mut of_slots = Vec::new();
        for slot in &graph.slots {
            let known = names.iter().position(|name| *name == slot.worker);
            of_slots.push(known.unwrap_or_else(|| {
                names.push(slot.worker.clone());
                names.len() - 1
            }));
        }
        let own: Vec<Own> = names.iter().map(|name| Own::of(program, graph, name)).collect();
        for group in Groups::members(program) {
            let worker_of = |source: &String| {
                let stage = program.plan.stages.iter().find(|stage| stage.operator == *source);
                stage.map(|stage| stage.worker.as_str())
            };
            let workers: BTreeSet<_> = group.iter().filter_map(worker_of).collect();
            if workers.len() > 1 {
                let group =
                    group.iter().map(|source| format!("'{source}'")).collect::<Vec<_>>().join(" and ");
                return Err(RunError::Plan(format!(
                    "sources {group} meet in a stateful operator and have no rate, so they are read side by side by event \
                     time, which this version does within one process only: give each a `rate`, or put them on one worker"
                )));
            }
        }
        let instances = graph.slots.iter().map(|slot| slot.instances.len()).collect();
        Ok(Self { names, own, of_slots, instances, channels: graph.channels.len() })
    }
}
