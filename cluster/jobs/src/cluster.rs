//! Machines of a simulation: `15x4`, a table, or an infrastructure.
use crate::table::{Column, Table, column, read};
use crate::{Machine, Resources};
use std::path::Path;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::infrastructure::{Infrastructure, WorkerType, numbered_machine};

/// Most machines of a simulated cluster.
const MOST: u32 = 100_000;

/// Columns of a table of machines; the last ones are of the tables published with Tiresias.
const COLUMNS: &[Column] = &[
    column("machine", "machine's name"),
    column("machines", "number of machines"),
    column("slots", "slots"),
    column("num_switch", "switches"),
    column("num_node_p_switch", "number of machines"),
    column("num_gpu_p_node", "slots"),
    column("num_cpu_p_node", ""),
    column("mem_p_node", ""),
];

/// Creates `count` equal machines, `m00`, `m01` and so on.
pub fn equal_machines(count: u32, slots: u32) -> Vec<Machine> {
    numbered("m", count, slots)
}

fn numbered(prefix: &str, count: u32, slots: u32) -> Vec<Machine> {
    let width = count.saturating_sub(1).to_string().len();
    let machine =
        |index| Machine::new(format!("{prefix}{index:0width$}"), Resources::of_slots(u64::from(slots)));
    (0..count).map(machine).collect()
}

/// Reads `15x4`: 15 machines of 4 slots. None: the text has another form.
///
/// ```
/// use tidemill_jobs::cluster::product;
/// assert_eq!(product("15x4").map(|machines| machines.len()), Some(15));
/// assert_eq!(product("cluster.csv"), None);
/// ```
pub fn product(text: &str) -> Option<Vec<Machine>> {
    let (count, slots) = text.split_once('x')?;
    let (count, slots) = (count.parse().ok()?, slots.parse().ok()?);
    ((1..=MOST).contains(&count) && slots >= 1).then(|| equal_machines(count, slots))
}

/// Reads the machines of a file: an infrastructure if its name ends in `.yaml` or `.yml`, else a table.
///
/// # Errors
/// All findings, with line and column.
pub fn load(path: &Path) -> Result<Vec<Machine>, Diagnostics> {
    let is_yaml = path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
    match is_yaml {
        true => of_infrastructure(&Infrastructure::load(path)?),
        false => parse(&read(path)?, &path.display().to_string()),
    }
}

/// Reads a table of machines.
///
/// ```
/// use tidemill_jobs::cluster::parse;
/// assert_eq!(parse("machine,slots\nbig,8\nsmall,2\n", "c.csv")?.len(), 2);
/// assert_eq!(parse("machines,slots\n15,4\n", "c.csv")?.len(), 15);
/// let published = "num_switch,num_node_p_switch,num_gpu_p_node,num_cpu_p_node,mem_p_node\n2,32,4,40,256\n";
/// assert_eq!(parse(published, "c.csv")?.len(), 64);
/// # Ok::<(), tidemill_spec::diagnostic::Diagnostics>(())
/// ```
///
/// # Errors
/// All findings, with line and column.
pub fn parse(text: &str, name: &str) -> Result<Vec<Machine>, Diagnostics> {
    let mut table = Table::parse(text, name, COLUMNS)?;
    table.require("slots", "add a column `slots`");
    if !table.has("machine") {
        table.require("number of machines", "add a column `machine` with names, or `machines` with numbers");
    }
    let mut names = std::collections::BTreeSet::new();
    let (mut all, mut total) = (0, 0u32);
    let groups = table.rows(|row| {
        let slots = row.needed("slots")?.count(1)?;
        let line = all;
        all += 1;
        if let Some(name) = row.cell("machine's name") {
            if !names.insert(name.text.clone()) {
                return Err(name.wrong(format!("a second machine `{}`", name.text), "give each its own name"));
            }
            return Ok(vec![Machine::new(name.text.clone(), Resources::of_slots(u64::from(slots)))]);
        }
        let cell = row.needed("number of machines")?;
        let switches = row.cell("switches").map_or(Ok(1), |cell| cell.count(1))?;
        let count = cell.count(1)?.saturating_mul(switches);
        total = count.saturating_add(total);
        if total > MOST {
            return Err(cell.wrong(format!("{total} machines; at most {MOST} are simulated"), "write fewer"));
        }
        let prefix = if line == 0 { "m".to_owned() } else { format!("m{line}-") };
        Ok(numbered(&prefix, count, slots))
    })?;
    Ok(groups.concat())
}

/// Returns the machines of an infrastructure. The slots of a machine are its accelerators; if no machine has any, its whole processors.
///
/// # Errors
/// A machine without a number of processors, where these are its slots.
pub fn of_infrastructure(infrastructure: &Infrastructure) -> Result<Vec<Machine>, Diagnostics> {
    let types = || infrastructure.tiers.iter().flat_map(|tier| tier.workers.iter());
    let accelerators =
        |of: &WorkerType| of.accelerators.iter().map(|one| u64::from(one.count.value)).sum::<u64>();
    let has_accelerators = types().any(|of| accelerators(of) > 0);
    let mut found = Diagnostics::new();
    let mut machines = Vec::new();
    for tier in &infrastructure.tiers {
        let locations: Vec<Option<&str>> = match tier.locations.is_empty() {
            true => vec![None],
            false => tier.locations.iter().map(|location| Some(location.as_str())).collect(),
        };
        for of in tier.workers.iter() {
            let slots = match (has_accelerators, &of.vcpu) {
                (true, _) => accelerators(of),
                (false, Some(vcpu)) => vcpu.value as u64,
                (false, None) => {
                    let message = format!("the machines `{}` have no `vcpu`", of.worker_type.as_str());
                    let missing = Diagnostic::error("E0104", message).at(of.worker_type.span.clone());
                    found.push(
                        missing.with_help("add `vcpu: 4`: without accelerators these are the slots of jobs"),
                    );
                    continue;
                }
            };
            for location in locations.iter().copied().filter(|location| of.is_at(*location)) {
                let names = of.names_at(tier, location);
                let name = |index: u32| match names.get(index as usize) {
                    Some(name) => name.value.clone(),
                    None => numbered_machine(tier.id.as_str(), location, of.worker_type.as_str(), index),
                };
                machines.extend(
                    (0..of.count.value).map(|index| Machine::new(name(index), Resources::of_slots(slots))),
                );
            }
        }
    }
    machines.retain(|machine| machine.capacity.slots > 0);
    found.into_result(machines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn infrastructure(workers: &str) -> Infrastructure {
        let text = format!(
            "version: 1\nname: t\ntiers:\n  - id: hub\n    locations: [a, b]\n    workers: [{workers}]\n"
        );
        Infrastructure::parse(&text, "i.yaml").unwrap()
    }

    #[test]
    fn slots_of_an_infrastructure_are_accelerators_or_processors() {
        let plain = infrastructure("{type: small, count: 2, vcpu: 2.5, price: 1 $/h}");
        let machines = of_infrastructure(&plain).unwrap();
        assert_eq!((machines.len(), machines[3].name.as_str()), (4, "hub-b-small-1"));
        assert_eq!(machines[0].capacity.slots, 2);
        let mixed = infrastructure(
            "{type: small, vcpu: 2, price: 1 $/h}, {type: big, price: 1 $/h, accelerators: [{type: gpu, count: 4}]}",
        );
        let slots: Vec<u64> =
            of_infrastructure(&mixed).unwrap().iter().map(|machine| machine.capacity.slots).collect();
        assert_eq!(slots, [4, 4]);
        let unknown = infrastructure("{type: small, price: 1 $/h}");
        assert!(of_infrastructure(&unknown).unwrap_err().to_string().contains("have no `vcpu`"));
    }

    #[test]
    fn mistakes_have_their_place_and_a_correction() {
        let wrong = |text| parse(text, "c.csv").unwrap_err().to_string();
        assert!(wrong("machine,slots\na,4\na,4\n").contains("a second machine `a`"));
        assert!(wrong("machine\na\n").contains("no column for the slots"));
        assert!(wrong("slots\n4\n").contains("no column for the number of machines"));
        assert!(wrong("machines,slots\n1000000,4\n").contains("at most 100000"));
        assert_eq!(product("0x4"), None);
    }

    #[test]
    fn machines_keep_their_order_by_name() {
        let names: Vec<String> = equal_machines(11, 4).into_iter().map(|machine| machine.name).collect();
        assert!(names.is_sorted(), "{names:?}");
    }
}
