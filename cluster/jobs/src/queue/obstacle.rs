//! The resource that keeps a gang from any start, in words.
use crate::Resources;

/// Returns why a gang does not fit into empty machines; none: it fits.
///
/// ```
/// use tidemill_jobs::{Resources, obstacle};
/// let cores = |millicores| Resources { millicores, ..Resources::default() };
/// let machines = [cores(1000), cores(2000)];
/// let text = obstacle(&machines, &cores(16_000), 1).ok_or("it does not fit")?;
/// assert_eq!(text, "asks for 16 cores in each task; no machine has more than 2 cores for jobs");
/// assert_eq!(obstacle(&machines, &cores(1000), 3), None);
/// # Ok::<(), &str>(())
/// ```
pub fn obstacle(machines: &[Resources], demand: &Resources, tasks: u32) -> Option<String> {
    let room = |demand: &Resources| {
        machines.iter().fold(0u64, |sum, machine| sum.saturating_add(machine.tasks(demand)))
    };
    let most = room(demand);
    if most >= u64::from(tasks) {
        return None;
    }
    if machines.is_empty() {
        return Some("no machine is there for jobs".to_owned());
    }
    let parts = parts(demand);
    if let Some((part, _)) = parts.iter().find(|(part, _)| room(part) == 0) {
        let most = machines.iter().map(|machine| same_part(machine, part)).max_by_key(size);
        let most = match most.filter(|most| size(most) > 0) {
            Some(most) => format!("more than {most}"),
            None => "any".to_owned(),
        };
        return Some(format!("asks for {part} in each task; no machine has {most} for jobs"));
    }
    if most == 0 {
        return Some(format!("asks for {demand} in each task; no machine has all of that for jobs"));
    }
    let scarce = parts.iter().min_by_key(|(part, _)| room(part)).map_or("", |(_, name)| name.as_str());
    Some(format!("needs {tasks} tasks at once; without other jobs {most} would fit: too few {scarce}"))
}

/// A demand by resource, and the name of each.
fn parts(demand: &Resources) -> Vec<(Resources, String)> {
    let none = Resources::default;
    let mut all = vec![
        (Resources { slots: demand.slots, ..none() }, "slots".to_owned()),
        (Resources { millicores: demand.millicores, ..none() }, "cores".to_owned()),
        (Resources { memory: demand.memory, ..none() }, "bytes of memory".to_owned()),
        (Resources { places: demand.places, ..none() }, "places for tasks".to_owned()),
    ];
    for (kind, count) in &demand.devices {
        let devices = [(kind.clone(), *count)].into();
        all.push((Resources { devices, ..none() }, format!("devices `{kind}`")));
    }
    all.retain(|(part, _)| size(part) > 0);
    all
}

/// Amount of a part.
fn size(part: &Resources) -> u64 {
    let devices: u64 = part.devices.values().sum();
    part.slots.max(part.millicores).max(part.memory).max(part.places).max(devices)
}

/// The same resource of a machine, with memory in whole megabytes.
fn same_part(machine: &Resources, part: &Resources) -> Resources {
    let of = |has: u64, needs: u64| if needs > 0 { has } else { 0 };
    let devices = part.devices.keys().map(|kind| (kind.clone(), machine.device(kind)));
    Resources {
        slots: of(machine.slots, part.slots),
        millicores: of(machine.millicores, part.millicores),
        memory: of(machine.memory, part.memory) / 1_000_000 * 1_000_000,
        places: of(machine.places, part.places),
        devices: devices.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(millicores: u64, memory: u64, places: u64) -> Resources {
        Resources { millicores, memory, places, ..Resources::default() }
    }

    #[test]
    fn the_scarce_resource_is_named() {
        let machines = [machine(2000, 2_076_180_480, 12), machine(8000, 500_000_000, 36)];
        let why = |demand: Resources, tasks| obstacle(&machines, &demand, tasks).unwrap();
        let memory = why(machine(1000, 4_000_000_000, 1), 1);
        assert_eq!(memory, "asks for 4GB in each task; no machine has more than 2076MB for jobs");
        let device = Resources { devices: [("h100".to_owned(), 1)].into(), ..Resources::default() };
        assert_eq!(why(device, 1), "asks for 1 h100 in each task; no machine has any for jobs");
        let both = why(machine(4000, 1_000_000_000, 1), 1);
        assert_eq!(both, "asks for 4 cores, 1GB in each task; no machine has all of that for jobs");
        let wide = why(machine(1, 1, 1), 1000);
        assert!(wide.contains("without other jobs 48 would fit: too few places for tasks"), "{wide}");
        assert!(why(machine(4000, 1, 1), 4).contains("too few cores"));
        assert_eq!(obstacle(&[], &machine(1, 1, 1), 1).unwrap(), "no machine is there for jobs");
    }
}
