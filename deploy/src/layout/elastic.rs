//! Elastic limits: workers of a machine whose workflow has `resources: {mode: elastic}`.
use super::{Site, Unit};
use std::time::Duration;
use tidemill_spec::units::Bytes;
use tidemill_spec::workflow::{ResourceMode, Resources, Workflow};

/// The container that moves processors and memory between the workers of a machine.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Elastic {
    /// The label value of these workers.
    pub(crate) name: String,
    /// Their total processors.
    pub(crate) processors: f64,
    pub(crate) memory: Bytes,
    pub(crate) period: Duration,
}

/// Returns the workflow's resources, if they are elastic.
pub(crate) fn wanted(workflow: Option<&Workflow>) -> Option<&Resources> {
    workflow?.resources.as_ref().filter(|resources| resources.mode.value == ResourceMode::Elastic)
}

/// Returns a run's share of a worker, limited by its machine.
fn part(resources: &Resources, unit: &Unit) -> Option<(f64, u64)> {
    let processors = resources.processors.as_ref()?.value;
    let memory = resources.memory.as_ref()?.value.0;
    Some((
        unit.processors.map_or(processors, |has| has.min(processors)),
        unit.memory.map_or(memory, |has| has.0.min(memory)),
    ))
}

/// Assigns an agent to each machine, at the first of its locations with workers. Workers of one machine share one cap, the
/// sum of their limits; machines cannot lend to each other.
pub(super) fn assign(workflow: Option<&Workflow>, is_one_machine: bool, project: &str, sites: &mut [Site]) {
    let Some(resources) = wanted(workflow) else { return };
    let mut machines: Vec<(Option<String>, usize)> = Vec::new();
    for index in 0..sites.len() {
        let host = sites[index].host.clone().filter(|_| !is_one_machine);
        let parts: Vec<(f64, u64)> =
            sites[index].workers.iter().filter_map(|unit| part(resources, unit)).collect();
        if parts.is_empty() {
            continue;
        }
        let first = machines.iter().find(|(machine, _)| *machine == host).map(|(_, first)| *first);
        let first = first.unwrap_or_else(|| {
            machines.push((host, index));
            index
        });
        let name = format!("{project}-{}", sites[first].name);
        for unit in &mut sites[index].workers {
            unit.elastic = Some(name.clone());
        }
        let elastic = sites[first].elastic.get_or_insert_with(|| Elastic {
            name,
            processors: 0.0,
            memory: Bytes(0),
            period: Duration::from_nanos(resources.period().0),
        });
        for (processors, memory) in parts {
            elastic.processors += processors;
            elastic.memory.0 += memory;
        }
    }
}
