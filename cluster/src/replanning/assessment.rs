//! Assesses plans by current figures: measured service times, measured links, and the workers that are present.
use super::Late;
use super::decision::{Assessment, Miss};
use crate::blobs;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_app::expectation::{Expectation, FIRST_SEED, expectation};
use tidemill_app::planned::Planned;
use tidemill_app::planning::Case;
use tidemill_app::run_figures::Computed;
use tidemill_app::waits::{is_of_latency, violations};
use tidemill_optimizer::assemble::{Assembly, Level, Options, assemble};
use tidemill_optimizer::check::Violation;
use tidemill_optimizer::physical::solution_of;
use tidemill_optimizer::waits::with_least_waits;
use tidemill_spec::infrastructure::{Infrastructure, Link, SourcePlace, WorkerType};
use tidemill_spec::plan::{LatencyBasis, Plan, PlanWorker, SOURCE_DEVICE};
use tidemill_spec::profile::Profile;
use tidemill_spec::units::{HourlyPrice, TimeSpan};

/// With fewer batches their mean time is not used.
const LEAST_BATCHES: f64 = 20.0;
/// Relative difference below which a time counts as the profile's.
const LIKE_THE_PROFILE: f64 = 0.15;
/// Largest factor by which a time may differ; more is a measuring fault or a faulty profile, and is clamped.
const MOST: f64 = 20.0;

/// Seconds after which times without a new measurement revert to the profile's.
const FORGOTTEN: f64 = 1800.0;
/// Factor by which times have to differ from an earlier look to count as changed.
const CHANGED: f64 = 1.25;
/// Rates and delays of links count as equal within this factor, delays also within the seconds below.
const LIKE: f64 = 2.0;
const LEAST_DELAY: f64 = 0.005;
/// Step in percent in which a machine's load is compared.
const ROUGHLY: f64 = 10.0;

/// Measured call time divided by the profile's, by operator, model and worker type.
pub type Drift = BTreeMap<(String, Option<String>, String), f64>;

/// Measured stage times relative to the profile, including those that agree with it. Stages of one operator on one worker type are
/// averaged. `busy` is the share of each worker's time that others use.
pub fn times(
    profile: &Profile,
    plan: &Plan,
    stages: &BTreeMap<String, Computed>,
    busy: &BTreeMap<String, f64>,
) -> Drift {
    let mut sums: BTreeMap<(String, Option<String>, String), (f64, f64)> = BTreeMap::new();
    for stage in &plan.stages {
        let Some(figure) = stages.get(&stage.id).filter(|figure| figure.batches >= LEAST_BATCHES) else {
            continue;
        };
        let Some(worker) = plan.workers.iter().find(|worker| worker.id == stage.worker) else { continue };
        let batch = (figure.records / figure.batches).round().max(1.0) as u32;
        let (variant, backend) = (stage.variant.as_deref(), stage.backend.as_deref());
        let known =
            profile.service_times(&stage.operator, variant, backend, &worker.worker_type, stage.max_batch);
        let Some(known) = known else { continue };
        // Calls take longer where others use the worker. That is counted there.
        let left = 1.0 - busy.get(&worker.id).copied().unwrap_or(0.0).min(0.95);
        let expected = known.mean(batch) / left;
        if expected > 0.0 {
            let key = (stage.operator.clone(), stage.variant.clone(), worker.worker_type.clone());
            let (sum, weight) = sums.entry(key).or_default();
            *sum += figure.batches * figure.batch_seconds / expected;
            *weight += figure.batches;
        }
    }
    let factors = sums.into_iter().map(|(key, (sum, weight))| (key, sum / weight));
    factors.map(|(key, factor)| (key, factor.clamp(1.0 / MOST, MOST))).collect()
}

/// Keeps the factors that differ from the profile.
pub fn drift(times: Drift) -> Drift {
    let differs = |factor: &f64| !(1.0 / (1.0 + LIKE_THE_PROFILE)..=1.0 + LIKE_THE_PROFILE).contains(factor);
    times.into_iter().filter(|(_, factor)| differs(factor)).collect()
}

/// Times measured under this plan and earlier ones. A model that was slow stays slow for [`FORGOTTEN`] seconds, then it may be tried again.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Times(BTreeMap<(String, Option<String>, String), (f64, f64)>);

impl Times {
    /// Records measurements at a time in seconds. Returns those that differ from the profile.
    pub fn see(&mut self, measured: Drift, now: f64) -> Drift {
        self.0.retain(|_, (_, at)| now - *at < FORGOTTEN);
        self.0.extend(measured.into_iter().map(|(key, factor)| (key, (factor, now))));
        drift(self.0.iter().map(|(key, (factor, _))| (key.clone(), *factor)).collect())
    }
}

/// Scales the profile's times by the measured factors.
pub fn drifted(profile: &mut Profile, drift: &Drift) {
    for service in &mut profile.services {
        let key = (service.operator.clone(), service.variant.clone(), service.worker_type.clone());
        let Some(factor) = drift.get(&key) else { continue };
        let longer = |time: TimeSpan| TimeSpan((time.0 as f64 * factor).round() as u64);
        service.batches = service.batches.iter().map(|times| times.map(longer)).collect();
        if let Some(after) = &mut service.after_pause {
            after.times = after.times.map(longer);
        }
    }
}

/// Whether service times differ from those of an earlier look by more than a quarter.
pub fn has_changed(before: &Drift, now: &Drift) -> bool {
    let of = |drift: &Drift, key: &(String, Option<String>, String)| drift.get(key).copied().unwrap_or(1.0);
    let differs = |key: &(String, Option<String>, String)| {
        let factor = of(now, key) / of(before, key);
        !(1.0 / CHANGED..=CHANGED).contains(&factor)
    };
    before.keys().chain(now.keys()).any(differs)
}

/// Whether machines, their free capacity or links differ from an earlier look by more than the noise of measuring.
pub fn is_other(before: &Infrastructure, now: &Infrastructure) -> bool {
    let machines = |of: &Infrastructure| -> BTreeMap<String, (String, String, u64, u64)> {
        let tiers = of.tiers.iter().flat_map(|tier| tier.workers.iter().map(move |worker| (tier, worker)));
        let named =
            tiers.flat_map(|(tier, worker)| worker.names.iter().map(move |name| (tier, worker, name)));
        let facts = named.map(|(tier, worker, name)| {
            let busy = worker.busy.as_ref().map_or(0.0, |busy| busy.0);
            let rough = (busy / ROUGHLY).round() as u64;
            let (tier, of) = (tier.id.value.clone(), worker.worker_type.value.clone());
            (name.value.clone(), (tier, of, worker.price.0.to_bits(), rough))
        });
        facts.collect()
    };
    let links = |a: &Infrastructure, b: &Infrastructure| {
        a.links.iter().any(|link| {
            let Some(other) = b.link(&link.from, &link.to) else { return true };
            let rate = |link: &Link| link.bandwidth.as_ref().map_or(f64::INFINITY, |rate| rate.0 as f64);
            let (one, two) = (rate(link), rate(other));
            let is_other_rate = one != two && !(1.0 / LIKE..=LIKE).contains(&(one / two));
            let (one, two) = (link.delay.0 as f64 / 1e9, other.delay.0 as f64 / 1e9);
            is_other_rate || ((one - two).abs() > LEAST_DELAY && !(1.0 / LIKE..=LIKE).contains(&(one / two)))
        })
    };
    machines(before) != machines(now) || links(before, now) || links(now, before)
}

/// Formats it: `speech on small takes 2.4 times as long as its profile says`.
pub fn drift_text(drift: &Drift) -> String {
    let one = |((operator, variant, worker_type), factor): (&(String, Option<String>, String), &f64)| {
        let variant = variant.as_ref().map_or_else(String::new, |variant| format!("/{variant}"));
        format!("{operator}{variant} on {worker_type} takes {factor:.2} times as long as in its profile")
    };
    drift.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Moves the plan to the cluster's workers that have its roles (`workers` by role). Source devices are no workers.
pub fn as_placed(plan: &Plan, workers: &BTreeMap<String, String>, infrastructure: &Infrastructure) -> Plan {
    let of = workers;
    let mut placed = plan.clone();
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut workers: Vec<PlanWorker> = Vec::new();
    for worker in &plan.workers {
        let own = of.get(&worker.id).unwrap_or(&worker.id).clone();
        if worker.worker_type == SOURCE_DEVICE {
            workers.push(worker.clone());
            continue;
        }
        if workers.iter().all(|known| known.id != own) {
            workers.push(
                machine(infrastructure, &own)
                    .unwrap_or_else(|| PlanWorker { id: own.clone(), ..worker.clone() }),
            );
        }
        names.insert(worker.id.clone(), own);
    }
    for stage in &mut placed.stages {
        if let Some(own) = names.get(&stage.worker) {
            stage.worker.clone_from(own);
        }
    }
    placed.workers = workers;
    placed
}

/// Describes a machine of an infrastructure as a worker of a plan.
fn machine(infrastructure: &Infrastructure, name: &str) -> Option<PlanWorker> {
    infrastructure.tiers.iter().find_map(|tier| {
        let worker = tier.workers.iter().find(|worker| worker.names.iter().any(|own| own == name))?;
        Some(PlanWorker {
            id: name.to_owned(),
            tier: tier.id.value.clone(),
            location: worker.locations.first().map(|location| location.value.clone()),
            worker_type: worker.worker_type.value.clone(),
            price: Some(worker.price.value),
        })
    })
}

/// Keeps the sources of a running job where they are, whatever tiers have joined since. A source in the infrastructure takes precedence.
pub fn keep_sources(infrastructure: &mut Infrastructure, plan: &Plan, sources: &[String]) {
    for id in sources {
        if infrastructure.source(id).is_some() {
            continue;
        }
        let stages = plan.stages.iter().filter(|stage| stage.operator == *id);
        let mut places: Vec<&PlanWorker> =
            stages.filter_map(|stage| plan.workers.iter().find(|worker| worker.id == stage.worker)).collect();
        places.dedup_by(|a, b| a.tier == b.tier && a.location == b.location);
        let Some(first) = places.first() else { continue };
        let Some(tier) = infrastructure.tier(&first.tier) else { continue };
        let location = first.location.clone().filter(|_| places.len() == 1);
        let is_there = |name: &String| tier.locations.iter().any(|known| known.value == *name);
        let location = location.filter(is_there).map(Into::into);
        let place = SourcePlace { id: id.as_str().into(), tier: first.tier.as_str().into(), location };
        infrastructure.sources.push(place);
    }
}

/// Sets the price of a machine that is paid for anyway to 0. Returns its former price, or `None` if it is absent.
pub fn paid(infrastructure: &mut Infrastructure, name: &str) -> Option<f64> {
    for tier in &mut infrastructure.tiers {
        let all = &mut tier.workers.value;
        let has = |worker: &WorkerType| worker.names.iter().any(|own| own == name);
        let Some(position) = all.iter().position(has) else { continue };
        let price = all[position].price.value;
        let one = WorkerType {
            count: 1.into(),
            names: vec![name.into()],
            price: HourlyPrice(0.0).into(),
            ..all[position].clone()
        };
        let of = &mut all[position];
        of.names.retain(|own| own != name);
        of.count.value = of.count.value.saturating_sub(1);
        match of.names.is_empty() {
            true => all[position] = one,
            false => all.push(one),
        }
        return Some(price.0);
    }
    None
}

/// Adds the prices of workers that were planned as free because they are paid for anyway.
pub fn charge(plan: &mut Plan, prices: &BTreeMap<String, f64>) {
    for worker in &mut plan.workers {
        if let Some(price) = prices.get(&worker.id) {
            worker.price = Some(HourlyPrice(*price));
        }
    }
    let more: f64 = prices.values().sum();
    if let Some(cost) = plan.predicted.as_mut().and_then(|predicted| predicted.cost.as_mut()) {
        cost.value.0 += more;
        [&mut cost.from, &mut cost.to].into_iter().flatten().for_each(|end| end.0 += more);
    }
}

/// Share of its time that others use, by machine.
pub fn busy(infrastructure: &Infrastructure) -> BTreeMap<String, f64> {
    let workers = infrastructure.tiers.iter().flat_map(|tier| tier.workers.iter());
    let named = workers.flat_map(|worker| worker.names.iter().map(move |name| (name, worker)));
    named.filter_map(|(name, worker)| Some((name.value.clone(), worker.busy.as_ref()?.0 / 100.0))).collect()
}

/// Assesses an existing plan. With `simulates`, the simulation's expectation counts too.
///
/// # Errors
/// The plan is outside of the planning problem.
pub fn assessed(case: &Case, plan: &Plan, simulates: bool) -> Result<Assessment, String> {
    read(case, plan).map(|read| read.assessment(case, plan, simulates))
}

/// An existing plan in the planner's form.
pub(crate) struct ReadPlan {
    pub(crate) assembly: Assembly,
    pub(crate) planned: Planned,
}

/// Converts an existing plan into the planner's form.
///
/// # Errors
/// As [`assessed`].
pub(crate) fn read(case: &Case, plan: &Plan) -> Result<ReadPlan, String> {
    let options = Options { checkpoint_every: Some(plan.checkpoint_every), ..case.options.clone() };
    let assembly = assemble(&case.inputs(), &options).map_err(|found| found.to_string())?;
    let solution = solution_of(&case.inputs(), &assembly, plan).map_err(|error| error.to_string())?;
    let solution = with_least_waits(&assembly.problem, &solution);
    let planned = Planned::new(case, &assembly, &solution).map_err(|failure| failure.to_string())?;
    Ok(ReadPlan { assembly, planned })
}

impl ReadPlan {
    /// Assesses it; `plan` is the one that was read.
    pub(crate) fn assessment(&self, case: &Case, plan: &Plan, simulates: bool) -> Assessment {
        let Self { assembly, planned } = self;
        let mut found = violations(&assembly.problem, planned);
        let basis =
            plan.predicted.as_ref().map_or(LatencyBasis::Guaranteed, |predicted| predicted.latency_basis);
        if !basis.is_guaranteed() {
            found.retain(|violation| !is_of_latency(violation));
        }
        let mut misses: Vec<Miss> = found.iter().map(|violation| miss(violation, planned)).collect();
        if simulates {
            let expected = expectation(case, assembly, &planned.solution, &planned.plan, FIRST_SEED);
            misses.extend(denied(&expected));
        }
        Assessment { cost: planned.summary.cost.total(), misses }
    }
}

/// Limits that a simulation contradicts.
pub fn denied(expectation: &Expectation) -> Vec<Miss> {
    use tidemill_app::expectation::Contradiction;
    let all = expectation.contradictions().iter().map(|one| {
        let (by, found) = match one {
            Contradiction::Rate { achieved } => (1.0 - achieved, None),
            Contradiction::Saturated { expected, planned, .. } => {
                ((expected / planned.max(1e-9) - 1.0).clamp(0.01, 1.0), None)
            }
            Contradiction::Latency { limit, expected, .. } => {
                ((expected / limit - 1.0).clamp(0.01, 1.0), Some((Level::Latency, *expected)))
            }
        };
        Miss { found, ..Miss::other(one.text(), by) }
    });
    all.collect()
}

/// Describes a broken limit and by which part it is broken.
fn miss(violation: &Violation, planned: &Planned) -> Miss {
    let name = |worker: &usize| planned.workers.get(*worker).cloned().unwrap_or_default();
    let (text, by) = match violation {
        Violation::Load { worker, load, allowed } => (
            format!(
                "by its guarantee {} is busy {:.0} % of its time, limit {:.0} %",
                name(worker),
                100.0 * load,
                100.0 * allowed
            ),
            load / allowed - 1.0,
        ),
        Violation::Wait { worker, load } => (
            format!("the wait for {} has no bound at a load of {:.0} %", name(worker), 100.0 * load),
            load.clamp(0.1, 1.0),
        ),
        Violation::Memory { worker, needed, available } => (
            format!("models on {} need more memory than it has", name(worker)),
            needed / available.max(1.0) - 1.0,
        ),
        Violation::Bandwidth { bytes_per_second, bandwidth, .. } => {
            (violation.to_string(), bytes_per_second / bandwidth - 1.0)
        }
        Violation::Latency { seconds, allowed, .. } => (violation.to_string(), seconds / allowed - 1.0),
        Violation::Accuracy { found, needed } => {
            (violation.to_string(), found.map_or(1.0, |found| 1.0 - found / needed))
        }
        Violation::Loss { lost, violation } => {
            let lost: Vec<String> = lost.iter().map(name).collect();
            (format!("after the loss of {}: {violation}", lost.join(" and ")), 1.0)
        }
        Violation::Shape(_)
        | Violation::Shared { .. }
        | Violation::Spread { .. }
        | Violation::Unreachable { .. } => (violation.to_string(), 1.0),
    };
    let found = match violation {
        Violation::Accuracy { found, .. } => Some((Level::Accuracy, found.unwrap_or(0.0))),
        Violation::Latency { seconds, .. } => Some((Level::Latency, *seconds)),
        _ => None,
    };
    Miss { found, ..Miss::other(text, by.max(0.001)) }
}

/// Levels that are missed by measurement. Accuracy counts only once its confidence interval excludes the level.
pub fn measured(late: &Late) -> Vec<Miss> {
    let missed = late.levels.iter().filter_map(|level| {
        let by = level.missed_by.filter(|by| *by > 0.0)?;
        let interval = late.measured.scored.and_then(|scored| scored.interval_percent());
        let best = interval.map_or(100.0, |(_, high)| high);
        let is_said = level.level != "accuracy" || best < level.wanted_value;
        // The plan's assessment covers levels that it expects to miss.
        (is_said && level.planned.is_none()).then_some((level, by))
    });
    let all = missed.map(|(level, by)| {
        let text = format!(
            "the level on {} ({}) is missed: {}",
            level.level,
            level.wanted,
            level.text.as_deref().unwrap_or("nothing came")
        );
        let found = level.value.and_then(|value| match level.level {
            "rate" => Some((Level::Rate, value)),
            "accuracy" => Some((Level::Accuracy, value)),
            "latency" => Some((Level::Latency, value / 1e3)),
            _ => None,
        });
        Miss { found, ..Miss::other(text, by.min(1.0)) }
    });
    all.collect()
}

/// Identifies a plan among others for the same workflow: the worker, model and share of each stage.
pub fn mark_of(plan: &Plan) -> String {
    let mut stages: Vec<(&str, &str, &str, Option<&str>, String)> = plan
        .stages
        .iter()
        // Stand-ins follow from the other stages.
        .filter(|stage| stage.stands_in_for.is_none())
        .map(|stage| {
            let variant = stage.variant.as_deref();
            let share = format!("{:.6}", stage.share);
            (stage.id.as_str(), stage.operator.as_str(), stage.worker.as_str(), variant, share)
        })
        .collect();
    stages.sort();
    blobs::digest(format!("{stages:?}").as_bytes())
}

/// Number of stages in `to` that are new, moved or have another model.
pub fn moved(from: &Plan, to: &Plan) -> usize {
    let facts = |plan: &Plan| -> BTreeSet<(String, String, Option<String>)> {
        let stages = plan.stages.iter().filter(|stage| stage.stands_in_for.is_none());
        stages.map(|stage| (stage.operator.clone(), stage.worker.clone(), stage.variant.clone())).collect()
    };
    let before = facts(from);
    facts(to).difference(&before).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_app::measured::{Measured, Scored};
    use tidemill_spec::plan::{PlanWorkflow, Stage};
    use tidemill_spec::units::Percent;
    use tidemill_spec::workflow::Slo;

    const PROFILE: &str = "version: 1\nworkflow: {name: flow}\nmachines: [{worker_type: small, how: measured}]\nservices:\n\
        - {operator: see, variant: tiny, worker_type: small, how: measured, batches: [{batch: 1, mean: 10ms, p75: 11ms}]}\n";

    fn plan() -> Plan {
        let worker = PlanWorker {
            id: "a".into(),
            tier: "edge".into(),
            location: None,
            worker_type: "small".into(),
            price: None,
        };
        let stage = Stage { variant: Some("tiny".into()), ..Stage::new("see", "see", "a") };
        Plan {
            workers: vec![worker],
            stages: vec![stage],
            ..Plan::new(PlanWorkflow { name: "flow".into(), digest: None })
        }
    }

    fn figures(seconds: f64) -> BTreeMap<String, Computed> {
        BTreeMap::from([(
            "see".to_owned(),
            Computed { records: 40.0, batches: 40.0, batch_seconds: seconds },
        )])
    }

    #[test]
    fn times_are_those_that_are_measured() {
        let mut profile = Profile::parse(PROFILE, "profile.yaml").unwrap();
        let none = BTreeMap::new();
        let drift =
            |profile: &Profile, figures: &BTreeMap<String, Computed>, busy: &BTreeMap<String, f64>| {
                super::drift(times(profile, &plan(), figures, busy))
            };
        assert!(drift(&profile, &figures(0.0105), &none).is_empty(), "as the profile says");
        let found = drift(&profile, &figures(0.03), &none);
        assert_eq!(drift_text(&found), "see/tiny on small takes 3.00 times as long as in its profile");
        drifted(&mut profile, &found);
        assert_eq!(profile.services[0].batches[0].mean, Some(TimeSpan(30_000_000)));
        // Half of the worker belongs to another run: twice the time is expected.
        let profile = Profile::parse(PROFILE, "profile.yaml").unwrap();
        let busy = BTreeMap::from([("a".to_owned(), 0.5)]);
        assert!(drift(&profile, &figures(0.02), &busy).is_empty());
        let few =
            BTreeMap::from([("see".to_owned(), Computed { records: 3.0, batches: 3.0, batch_seconds: 1.0 })]);
        assert!(drift(&profile, &few, &none).is_empty(), "too few to tell");
    }

    #[test]
    fn an_accuracy_is_missed_where_enough_independent_answers_say_so() {
        let of = |independent| {
            let slo = Slo { accuracy: Some(Percent(80.0).into()), ..Slo::default() };
            let scored = Scored { correct: 700, all: 1000, independent };
            let measured = Measured { scored: Some(scored), ..Measured::default() };
            let levels = measured.levels(&slo);
            super::measured(&Late { measured, levels, ..Late::default() }).len()
        };
        assert_eq!((of(1000), of(10)), (1, 0), "characters of ten texts are no thousand samples");
    }

    #[test]
    fn a_model_that_was_slow_is_slow_until_it_is_forgotten() {
        let of = |factor: f64| {
            Drift::from([(("see".to_owned(), Some("tiny".to_owned()), "small".to_owned()), factor)])
        };
        let mut times = Times::default();
        assert_eq!(times.see(of(3.0), 0.0), of(3.0));
        assert_eq!(times.see(Drift::new(), 600.0), of(3.0), "another model runs");
        assert_eq!(times.see(Drift::new(), 1800.0), Drift::new());
        times.see(of(3.0), 2000.0);
        assert!(times.see(of(1.02), 2010.0).is_empty(), "it is as the profile says again");
    }

    #[test]
    fn a_role_that_went_elsewhere_counts_there() {
        let text = "version: 1\nname: two\ntiers:\n\
            - {id: edge, workers: [{type: small, price: 0.02 $/h, names: [a]}]}\n\
            - {id: cloud, workers: [{type: large, price: 0.5 $/h, names: [big], busy: 30%}]}\n";
        let infrastructure = Infrastructure::parse(text, "two.yaml").unwrap();
        let workers = BTreeMap::from([("a".to_owned(), "big".to_owned())]);
        let placed = as_placed(&plan(), &workers, &infrastructure);
        assert_eq!(
            (placed.stages[0].worker.as_str(), placed.workers[0].worker_type.as_str()),
            ("big", "large")
        );
        assert_eq!(busy(&infrastructure), BTreeMap::from([("big".to_owned(), 0.3)]));
        assert_eq!(moved(&plan(), &placed), 1);
        assert_eq!(moved(&plan(), &plan()), 0);
    }

    #[test]
    fn what_is_paid_for_anyway_is_paid_for() {
        let mut plan = plan();
        plan.predicted =
            Some(serde_json::from_str(r#"{"cost": {"value": "0.09 $/h", "from": "0.09 $/h"}}"#).unwrap());
        charge(&mut plan, &BTreeMap::from([("a".to_owned(), 0.01), ("gone".to_owned(), 0.1)]));
        let cost = plan.predicted.unwrap().cost.unwrap();
        assert!(
            (cost.value.0 - 0.2).abs() < 1e-9 && cost.from.is_some_and(|from| (from.0 - 0.2).abs() < 1e-9)
        );
        assert!(plan.workers[0].price.is_some_and(|price| (price.0 - 0.01).abs() < 1e-9));
    }

    #[test]
    fn what_a_run_has_stays_where_it_is() {
        let text = "version: 1\nname: two\ntiers:\n\
            - {id: edge, workers: [{type: small, count: 2, price: 0.02 $/h, names: [a, b]}]}\n\
            - {id: cloud, workers: [{type: large, price: 0.5 $/h, names: [big]}]}\n";
        let mut infrastructure = Infrastructure::parse(text, "two.yaml").unwrap();
        let device = PlanWorker {
            id: "device-cloud".into(),
            tier: "cloud".into(),
            location: None,
            worker_type: SOURCE_DEVICE.into(),
            price: None,
        };
        let mut plan = plan();
        plan.workers.push(device);
        plan.stages.push(Stage::new("rows", "rows", "device-cloud"));
        keep_sources(&mut infrastructure, &plan, &["rows".to_owned(), "other".to_owned()]);
        assert_eq!(infrastructure.sources.len(), 1);
        assert_eq!(infrastructure.source("rows").unwrap().tier, "cloud");
        assert_eq!(paid(&mut infrastructure, "b"), Some(0.02));
        assert_eq!(paid(&mut infrastructure, "big"), Some(0.5));
        assert_eq!(paid(&mut infrastructure, "nobody"), None);
        let told: Vec<(String, f64)> = infrastructure
            .tiers
            .iter()
            .flat_map(|tier| tier.workers.iter())
            .map(|worker| (worker.names[0].value.clone(), worker.price.value.0))
            .collect();
        assert_eq!(told, [("a".to_owned(), 0.02), ("b".to_owned(), 0.0), ("big".to_owned(), 0.0)]);
        assert!(infrastructure.check().is_empty());
    }

    #[test]
    fn what_is_measured_differs_a_little_with_every_look() {
        let parse = |price: &str, delay: &str, rate: &str| {
            let text = format!(
                "version: 1\nname: two\ntiers:\n\
                 - {{id: edge, workers: [{{type: small, price: {price} $/h, names: [a]}}]}}\n\
                 - {{id: cloud, workers: [{{type: large, price: 0.5 $/h, names: [big], busy: 31%}}]}}\n\
                 links: [{{from: edge, to: cloud, delay: {delay}, bandwidth: {rate}}}]\n"
            );
            Infrastructure::parse(&text, "two.yaml").unwrap()
        };
        let before = parse("0.02", "10ms", "50Mbps");
        assert!(!is_other(&before, &parse("0.02", "12ms", "40Mbps")));
        assert!(is_other(&before, &parse("0.02", "40ms", "50Mbps")));
        assert!(is_other(&before, &parse("0.02", "10ms", "5Mbps")));
        assert!(is_other(&before, &parse("0.03", "10ms", "50Mbps")));
        let drift = |factor: f64| Drift::from([(("see".to_owned(), None, "small".to_owned()), factor)]);
        assert!(!has_changed(&drift(2.0), &drift(2.2)));
        assert!(has_changed(&drift(2.0), &drift(3.0)) && has_changed(&Drift::new(), &drift(1.4)));
    }
}
