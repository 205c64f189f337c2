//! Describes joined workers as an infrastructure: tiers with named machines, their free capacity, and links.
use super::Taken;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_spec::infrastructure::{Accelerator, Direction, Infrastructure, Link, Tier, WorkerType};
use tidemill_spec::span::Located;
use tidemill_spec::units::{Bandwidth, Bytes, HourlyPrice, Percent, TimeSpan, TransferPrice};

/// Common tier names, nearest to the sources first. Others stand before the last.
const NEAREST: [&str; 4] = ["device", "edge", "hub", "fog"];
const FARTHEST: &str = "cloud";
/// Tier used if no worker names one.
const ONLY_TIER: &str = "cluster";
/// Location of workers without one in a tier where others have one.
const NO_LOCATION: &str = "elsewhere";
/// Less memory counts as none.
const LEAST_MEMORY: u64 = 1 << 20;

/// A worker that can be planned with.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) tier: Option<String>,
    pub(crate) location: Option<String>,
    pub(crate) worker_type: Option<String>,
    /// $/h.
    pub(crate) price: Option<f64>,
    pub(crate) processors: f64,
    pub(crate) memory_bytes: u64,
    /// Type name of each.
    pub(crate) accelerators: Vec<String>,
}

/// Measurements of the link from one worker to another.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LinkFact {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) delay_seconds: f64,
    pub(crate) bits_per_second: Option<f64>,
}

/// Whether an infrastructure file accepts the name; `more` lists further allowed characters.
fn is_identifier(text: &str, more: &str) -> bool {
    let follows =
        |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-' || more.contains(c);
    text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(follows)
}

/// Rounds up to a hundredth of a percent, so that usage is never understated.
fn percent(part: f64) -> Percent {
    Percent(((part * 1e4 - 1e-9).ceil() / 100.0).clamp(0.0, 100.0))
}

/// A worker with its location.
struct Placed<'a> {
    machine: &'a Machine,
    tier: &'a str,
    location: Option<&'a str>,
    worker_type: &'a str,
}

/// Describes the workers as an infrastructure, with omissions and assumptions. A worker that another run uses
/// (`taken`) is already paid for. Prices of links are unknown and set to 0.
///
/// # Errors
/// No worker can be planned with; the reason.
pub(crate) fn infrastructure(
    machines: &[Machine],
    taken: &BTreeMap<String, Taken>,
    links: &[LinkFact],
) -> Result<(Infrastructure, Vec<String>), String> {
    let mut notes = Vec::new();
    let placed = placed(machines, &mut notes);
    if placed.is_empty() {
        let what = match machines.is_empty() {
            true => "no worker to plan for: `tidemill workers` lists those that have joined".to_owned(),
            false => format!("no worker is usable for a plan:\n  {}", notes.join("\n  ")),
        };
        return Err(what);
    }
    let without_price: Vec<&str> =
        placed.iter().filter(|of| of.machine.price.is_none()).map(|of| of.machine.name.as_str()).collect();
    if !without_price.is_empty() {
        notes.push(format!("{} has no price (`worker --price`): counted as 0 $/h", without_price.join(", ")));
    }
    let mut names: Vec<&str> = placed.iter().map(|of| of.tier).collect();
    names.sort_by_key(|name| (rank(name), *name));
    names.dedup();
    let tiers: Vec<Tier> = names.iter().map(|name| tier(name, &placed, taken, &mut notes)).collect();
    let tiers: Vec<Tier> = tiers.into_iter().filter(|tier| !tier.workers.is_empty()).collect();
    if tiers.is_empty() {
        return Err(format!("the workers have no free capacity:\n  {}", notes.join("\n  ")));
    }
    let links = between(&tiers, links);
    let infrastructure = Infrastructure {
        version: 1.into(),
        name: "joined-workers".into(),
        tiers,
        links,
        sources: Vec::new(),
        hosts: Vec::new(),
        policies: Vec::new(),
    };
    infrastructure.check().into_result(()).map_err(|found| found.to_string())?;
    Ok((infrastructure, notes))
}

/// The order of tiers by their names, nearest to the sources first.
pub(crate) fn rank(tier: &str) -> usize {
    match NEAREST.iter().position(|known| *known == tier) {
        Some(position) => position,
        None if tier == FARTHEST => NEAREST.len() + 1,
        None => NEAREST.len(),
    }
}

/// Workers with tier and type. Others are left out with a note.
fn placed<'a>(machines: &'a [Machine], notes: &mut Vec<String>) -> Vec<Placed<'a>> {
    let tiers_are_known = machines.iter().any(|machine| machine.tier.is_some());
    let mut all = Vec::new();
    for machine in machines {
        let mut leave_out = |why: String| notes.push(format!("worker {} is left out: {why}", machine.name));
        let tier = match &machine.tier {
            Some(tier) => tier.as_str(),
            None if tiers_are_known => {
                leave_out("others have a tier, but it has none (`worker --tier`)".to_owned());
                continue;
            }
            None => ONLY_TIER,
        };
        let Some(worker_type) = machine.worker_type.as_deref() else {
            leave_out("it has no type, as profiles name it (`worker --type`)".to_owned());
            continue;
        };
        let location = machine.location.as_deref();
        let odd =
            [(machine.name.as_str(), "."), (tier, ""), (worker_type, "."), (location.unwrap_or("a"), "")];
        if let Some((odd, _)) = odd.into_iter().find(|(text, more)| !is_identifier(text, more)) {
            leave_out(format!(
                "`{odd}` cannot be in a plan: write a letter first, then lower-case letters, digits, `-` and `_`"
            ));
            continue;
        }
        all.push(Placed { machine, tier, location, worker_type });
    }
    // In a tier with locations every worker has one.
    let with_locations: BTreeSet<&str> =
        all.iter().filter(|of| of.location.is_some()).map(|of| of.tier).collect();
    for of in &mut all {
        if of.location.is_none() && with_locations.contains(of.tier) {
            of.location = Some(NO_LOCATION);
        }
    }
    all
}

fn tier(name: &str, placed: &[Placed<'_>], taken: &BTreeMap<String, Taken>, notes: &mut Vec<String>) -> Tier {
    // Machines of a type are planned alike: use the least that one of them has.
    let least = |worker_type: &str, of: &dyn Fn(&Machine) -> f64| {
        let same = placed.iter().filter(|other| other.worker_type == worker_type);
        same.map(|other| of(other.machine)).fold(f64::INFINITY, f64::min)
    };
    let here: Vec<&Placed<'_>> = placed.iter().filter(|of| of.tier == name).collect();
    let locations: BTreeSet<&str> = here.iter().filter_map(|of| of.location).collect();
    let mut groups: BTreeMap<(&str, &str, u64, u64, u64), Vec<&str>> = BTreeMap::new();
    for of in here {
        let machine = of.machine;
        let memory = least(of.worker_type, &|machine| machine.memory_bytes as f64) as u64;
        let (mut price, mut left, mut busy) = (machine.price.unwrap_or(0.0), memory, 0.0);
        if let Some(taken) = taken.get(&machine.name) {
            left = memory.saturating_sub(taken.memory_bytes);
            busy = percent(taken.time).0;
            if left < LEAST_MEMORY {
                notes.push(format!(
                    "worker {} is left out, its memory is used: {}",
                    machine.name,
                    taken.text()
                ));
                continue;
            }
            // The other run pays for it.
            price = 0.0;
            notes.push(format!("worker {} is shared and costs nothing more: {}", machine.name, taken.text()));
        }
        let key = (of.location.unwrap_or_default(), of.worker_type, price.to_bits(), busy.to_bits(), left);
        groups.entry(key).or_default().push(&machine.name);
    }
    let workers = groups.into_iter().map(|((location, worker_type, price, busy, memory), names)| {
        let busy = f64::from_bits(busy);
        WorkerType {
            worker_type: worker_type.into(),
            count: u32::try_from(names.len()).unwrap_or(u32::MAX).into(),
            vcpu: Some(least(worker_type, &|machine| machine.processors).into()),
            memory: Some(Bytes(memory).into()),
            accelerators: accelerators(placed, worker_type),
            devices: Vec::new(),
            price: HourlyPrice(f64::from_bits(price)).into(),
            names: names.into_iter().map(Located::from).collect(),
            locations: (!location.is_empty()).then(|| location.into()).into_iter().collect(),
            busy: (busy > 0.0).then(|| Percent(busy).into()),
        }
    });
    Tier {
        id: name.into(),
        locations: locations.into_iter().map(Located::from).collect(),
        workers: workers.collect::<Vec<_>>().into(),
    }
}

/// Accelerators that every machine of a type has.
fn accelerators(placed: &[Placed<'_>], worker_type: &str) -> Vec<Accelerator> {
    let same = || placed.iter().filter(|other| other.worker_type == worker_type);
    let names: BTreeSet<&String> = same().flat_map(|of| &of.machine.accelerators).collect();
    let all = names.into_iter().filter(|name| is_identifier(name, ".")).filter_map(|name| {
        let of = |placed: &Placed<'_>| placed.machine.accelerators.iter().filter(|own| *own == name).count();
        let count = same().map(of).min().filter(|count| *count > 0)?;
        let count = u32::try_from(count).unwrap_or(u32::MAX).into();
        Some(Accelerator { accelerator_type: name.as_str().into(), count, memory: None })
    });
    all.collect()
}

/// Names of the machines of a tier.
fn names_of(tier: &Tier) -> BTreeSet<&str> {
    tier.workers.iter().flat_map(|worker| worker.names.iter().map(|name| name.as_str())).collect()
}

/// The link between two tiers as measured between their workers: longest delay and lowest rate.
fn measured(from: &Tier, to: &Tier, links: &[LinkFact]) -> (Option<f64>, Option<f64>) {
    let (senders, receivers) = (names_of(from), names_of(to));
    let of = |link: &&LinkFact| senders.contains(link.from.as_str()) && receivers.contains(link.to.as_str());
    let here: Vec<&LinkFact> = links.iter().filter(of).collect();
    let delay = here.iter().map(|link| link.delay_seconds).reduce(f64::max);
    (delay, here.iter().filter_map(|link| link.bits_per_second).reduce(f64::min))
}

fn set(link: &mut Link, (delay, rate): (Option<f64>, Option<f64>)) {
    if let Some(delay) = delay {
        // Measurements are no finer than microseconds.
        link.delay = TimeSpan((delay * 1e6).round() as u64 * 1000).into();
    }
    if let Some(rate) = rate.filter(|rate| *rate >= 1000.0) {
        link.bandwidth = Some(Bandwidth((rate / 1000.0).round() as u64 * 1000).into());
    }
}

/// Links in both directions between all tiers, and between the locations of a tier.
fn between(tiers: &[Tier], facts: &[LinkFact]) -> Vec<Link> {
    let mut all = Vec::new();
    for from in tiers {
        for to in tiers {
            if from.id == to.id && from.locations.len() < 2 {
                continue;
            }
            let mut link = Link {
                from: from.id.clone(),
                to: to.id.clone(),
                price: TransferPrice(0.0).into(),
                bandwidth: None,
                delay: TimeSpan(0).into(),
                direction: Direction::Forward,
            };
            set(&mut link, measured(from, to, facts));
            all.push(link);
        }
    }
    all
}

/// The names of machines of a type, with their locations. Unnamed ones have those that a plan gives them (`edge-small-0`).
pub(crate) fn machine_names(tier: &Tier, worker: &WorkerType) -> Vec<(String, Option<String>)> {
    let sites: Vec<Option<String>> = match (&worker.locations[..], &tier.locations[..]) {
        ([], []) => vec![None],
        ([], all) => all.iter().map(|site| Some(site.value.clone())).collect(),
        (some, _) => some.iter().map(|site| Some(site.value.clone())).collect(),
    };
    let count = worker.count.value as usize;
    let names = sites.into_iter().enumerate().flat_map(|(number, site)| {
        (0..count).map(move |index| {
            let place = site.as_ref().map_or_else(String::new, |site| format!("-{site}"));
            let own = worker.names.get(number * count + index).map(|name| name.value.clone());
            let name = own.unwrap_or_else(|| format!("{}{place}-{}-{index}", tier.id, worker.worker_type));
            (name, site.clone())
        })
    });
    names.collect()
}

/// Reduces an infrastructure file to the machines that have joined. Unnamed machines get the names that a plan gives them (`edge-small-0`).
/// Subtracts usage by other runs, and takes measured figures for links where they exist.
///
/// # Errors
/// None of its machines has joined.
pub(crate) fn named(
    file: &Infrastructure,
    machines: &[Machine],
    taken: &BTreeMap<String, Taken>,
    facts: &[LinkFact],
) -> Result<(Infrastructure, Vec<String>), String> {
    let mut notes = Vec::new();
    let (mut asked, mut result) = (Vec::new(), file.clone());
    for tier in &mut result.tiers {
        let mut kept: Vec<WorkerType> = Vec::new();
        for worker in tier.workers.iter() {
            for (name, site) in machine_names(tier, worker) {
                if machines.iter().any(|machine| machine.name == name) {
                    kept.extend(one(worker, &name, site.as_deref(), taken.get(&name), &mut notes));
                }
                asked.push(name);
            }
        }
        tier.workers.value = kept;
    }
    let gone: BTreeSet<String> = result
        .tiers
        .iter()
        .filter(|tier| tier.workers.is_empty())
        .map(|tier| tier.id.value.clone())
        .collect();
    result.tiers.retain(|tier| !tier.workers.is_empty());
    result.links.retain(|link| !gone.contains(&link.from.value) && !gone.contains(&link.to.value));
    if let Some(source) = result.sources.iter().find(|source| gone.contains(&source.tier.value)) {
        return Err(format!(
            "source `{}` is in tier `{}`, of which no machine has joined",
            source.id, source.tier
        ));
    }
    if result.tiers.is_empty() {
        let joined: Vec<&str> = machines.iter().map(|machine| machine.name.as_str()).collect();
        return Err(format!(
            "no machine of the infrastructure has joined: its machines have the names {}, the workers {}; \
             give the machines the names of the workers (`names: [...]`), or the workers those of the \
             machines (`worker --name`)",
            asked.join(", "),
            if joined.is_empty() { "-".to_owned() } else { joined.join(", ") }
        ));
    }
    let missing: Vec<&String> =
        asked.iter().filter(|name| machines.iter().all(|machine| machine.name != **name)).collect();
    if !missing.is_empty() {
        let all: Vec<&str> = missing.iter().map(|name| name.as_str()).collect();
        notes.push(format!("these machines of the infrastructure have not joined: {}", all.join(", ")));
    }
    let tiers = result.tiers.clone();
    let of = |id: &str| tiers.iter().find(|tier| tier.id == *id);
    let mut ways = Vec::new();
    for link in std::mem::take(&mut result.links) {
        let both = link.direction == Direction::Both && link.from != link.to;
        let mut forward = Link { direction: Direction::Forward, ..link };
        let mut back = Link { from: forward.to.clone(), to: forward.from.clone(), ..forward.clone() };
        for way in [Some(&mut forward), both.then_some(&mut back)].into_iter().flatten() {
            if let (Some(from), Some(to)) = (of(way.from.as_str()), of(way.to.as_str())) {
                set(way, measured(from, to, facts));
            }
        }
        ways.push(forward);
        ways.extend(both.then_some(back));
    }
    result.links = ways;
    Ok((result, notes))
}

/// One machine of a type, with its free capacity.
fn one(
    worker: &WorkerType,
    name: &str,
    site: Option<&str>,
    taken: Option<&Taken>,
    notes: &mut Vec<String>,
) -> Option<WorkerType> {
    let mut one = WorkerType {
        count: 1.into(),
        names: vec![name.into()],
        locations: site.map(Located::from).into_iter().collect(),
        ..worker.clone()
    };
    let Some(taken) = taken else { return Some(one) };
    if let Some(memory) = &one.memory {
        let left = memory.0.saturating_sub(taken.memory_bytes);
        if left < LEAST_MEMORY {
            notes.push(format!("worker {name} is left out, its memory is taken: {}", taken.text()));
            return None;
        }
        one.memory = Some(Bytes(left).into());
    }
    let before = one.busy.as_ref().map_or(0.0, |busy| busy.0 / 100.0);
    one.busy = Some(percent(before + taken.time).into());
    one.price = HourlyPrice(0.0).into();
    notes.push(format!("worker {name} is shared and costs nothing more: {}", taken.text()));
    Some(one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replanning::Use;

    fn machine(name: &str, tier: &str, worker_type: &str, price: f64) -> Machine {
        Machine {
            name: name.to_owned(),
            tier: (!tier.is_empty()).then(|| tier.to_owned()),
            location: None,
            worker_type: (!worker_type.is_empty()).then(|| worker_type.to_owned()),
            price: (price > 0.0).then_some(price),
            processors: 2.0,
            memory_bytes: 8 << 30,
            accelerators: Vec::new(),
        }
    }

    fn has(time: f64, memory_bytes: u64) -> Taken {
        let by = vec![("first".to_owned(), Use { time, memory_bytes }, true)];
        Taken { time, memory_bytes, by }
    }

    #[test]
    fn workers_become_tiers_that_a_plan_can_use() {
        let mut north = machine("north", "edge", "small", 0.01);
        north.memory_bytes = 4 << 30;
        let machines = [
            machine("big", "cloud", "large", 0.5),
            north,
            machine("south", "edge", "small", 0.01),
            machine("west", "edge", "small", 0.02),
            machine("odd", "hub", "", 0.01),
            machine("7th", "hub", "small", 0.01),
        ];
        let links = [
            LinkFact {
                from: "north".into(),
                to: "big".into(),
                delay_seconds: 0.02,
                bits_per_second: Some(5e7),
            },
            LinkFact {
                from: "south".into(),
                to: "big".into(),
                delay_seconds: 0.01,
                bits_per_second: Some(9e7),
            },
            LinkFact { from: "big".into(), to: "south".into(), delay_seconds: 0.03, bits_per_second: None },
        ];
        let (found, notes) = infrastructure(&machines, &BTreeMap::new(), &links).unwrap();
        let tiers: Vec<&str> = found.tiers.iter().map(|tier| tier.id.as_str()).collect();
        assert_eq!(tiers, ["edge", "cloud"]);
        let edge = &found.tiers[0].workers;
        let names: Vec<Vec<&str>> =
            edge.iter().map(|worker| worker.names.iter().map(|name| name.as_str()).collect()).collect();
        assert_eq!(names, [vec!["north", "south"], vec!["west"]], "the same price, the same machines");
        assert!(
            edge.iter().all(|worker| worker.memory.as_ref().unwrap().0 == 4 << 30),
            "the least of the type"
        );
        let up = found.link("edge", "cloud").unwrap();
        assert_eq!(
            (up.delay.value, up.bandwidth.as_ref().unwrap().value),
            (TimeSpan(20_000_000), Bandwidth(50_000_000))
        );
        let down = found.link("cloud", "edge").unwrap();
        assert_eq!((down.delay.value, down.bandwidth.as_ref()), (TimeSpan(30_000_000), None));
        assert!(notes.iter().any(|note| note.contains("odd is left out: it has no type")), "{notes:?}");
        assert!(notes.iter().any(|note| note.contains("`7th` cannot be in a plan")), "{notes:?}");
        let yaml = found.to_yaml().unwrap();
        assert_eq!(Infrastructure::parse(&yaml, "workers.yaml").unwrap(), found, "{yaml}");
    }

    #[test]
    fn a_type_has_the_accelerators_that_all_of_it_have() {
        let mut machines = [machine("a", "edge", "gpu", 0.5), machine("b", "cloud", "gpu", 0.5)];
        machines[0].accelerators = vec!["h100".into(), "h100".into(), "npu".into()];
        machines[1].accelerators = vec!["h100".into()];
        let (found, _) = infrastructure(&machines, &BTreeMap::new(), &[]).unwrap();
        for tier in &found.tiers {
            let own = &tier.workers[0].accelerators;
            assert_eq!((own.len(), own[0].accelerator_type.as_str(), own[0].count.value), (1, "h100", 1));
        }
        let yaml = found.to_yaml().unwrap();
        assert_eq!(Infrastructure::parse(&yaml, "workers.yaml").unwrap(), found, "{yaml}");
    }

    #[test]
    fn what_others_have_is_taken_off_and_paid_for() {
        let machines = [
            machine("a", "edge", "small", 0.01),
            machine("b", "edge", "small", 0.01),
            machine("c", "edge", "small", 0.01),
        ];
        let taken =
            BTreeMap::from([("a".to_owned(), has(0.4, 2 << 30)), ("c".to_owned(), has(0.1, 8 << 30))]);
        let (found, notes) = infrastructure(&machines, &taken, &[]).unwrap();
        let of = |name: &str| {
            let mut workers = found.tiers[0].workers.iter();
            workers.find(|worker| worker.names.iter().any(|own| own == name)).cloned()
        };
        let shared = of("a").unwrap();
        assert_eq!((shared.busy.unwrap().value, shared.price.value), (Percent(40.0), HourlyPrice(0.0)));
        assert_eq!(shared.memory.unwrap().0, 6 << 30);
        let free = of("b").unwrap();
        assert_eq!((free.busy, free.price.value), (None, HourlyPrice(0.01)));
        assert_eq!(of("c"), None);
        assert!(
            notes.iter().any(|note| note.contains("c is left out, its memory is used: run first uses 10 %")),
            "{notes:?}"
        );
        let yaml = found.to_yaml().unwrap();
        assert_eq!(Infrastructure::parse(&yaml, "workers.yaml").unwrap(), found, "{yaml}");
    }

    #[test]
    fn workers_at_locations_are_told_apart() {
        let mut machines = [
            machine("a", "edge", "small", 0.01),
            machine("b", "edge", "small", 0.01),
            machine("c", "edge", "tiny", 0.01),
        ];
        machines[0].location = Some("north".into());
        machines[1].location = Some("south".into());
        let (found, _) = infrastructure(&machines, &BTreeMap::new(), &[]).unwrap();
        let sites: Vec<&str> = found.tiers[0].locations.iter().map(|site| site.as_str()).collect();
        assert_eq!(sites, ["elsewhere", "north", "south"]);
        assert!(found.link("edge", "edge").is_some(), "between the locations");
        assert!(found.tiers[0].workers.iter().all(|worker| worker.locations.len() == 1));
    }

    #[test]
    fn a_file_is_for_the_workers_of_its_names() {
        let file = "version: 1\nname: two\ntiers:\n\
                    - {id: edge, workers: [{type: small, count: 2, memory: 4GiB, price: 0.02 $/h}]}\n\
                    - {id: cloud, workers: [{type: large, price: 0.5 $/h, names: [big]}]}\n\
                    links: [{from: edge, to: cloud, price: 0.1 $/GiB, bandwidth: 10Mbps, direction: both}]\n";
        let file = Infrastructure::parse(file, "two.yaml").unwrap();
        let machines = [machine("edge-small-1", "", "", 0.0), machine("big", "", "", 0.0)];
        let taken = BTreeMap::from([("big".to_owned(), has(0.25, 0))]);
        let (found, notes) = named(&file, &machines, &taken, &[]).unwrap();
        assert_eq!(found.tiers[0].workers[0].names[0], "edge-small-1");
        assert_eq!(found.tiers[1].workers[0].busy.as_ref().unwrap().value, Percent(25.0));
        assert_eq!(
            found.link("cloud", "edge").unwrap().bandwidth.as_ref().unwrap().value,
            Bandwidth(10_000_000)
        );
        assert!(notes.iter().any(|note| note.contains("have not joined: edge-small-0")), "{notes:?}");
        let error = named(&file, &[machine("other", "", "", 0.0)], &taken, &[]).unwrap_err();
        assert!(
            error.contains("have the names edge-small-0, edge-small-1, big, the workers other"),
            "{error}"
        );
    }
}
