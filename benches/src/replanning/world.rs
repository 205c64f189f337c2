//! The fate of records under a plan: the simulator, ten seconds at a time, with the machines and links of that time.
use super::day::{Day, Moment, STEP, State};
use crate::setups::written;
use anyhow::Context;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tidemill_app::expectation::simulation_options;
use tidemill_app::listener::Silent;
use tidemill_app::measured::{Measured, SourceRate};
use tidemill_app::planning::{Case, PlanningOptions, SolverName};
use tidemill_cluster::replanning::Late;
use tidemill_cluster::replanning::assessment::as_placed;
use tidemill_cluster::replanning::placement::{Spare, WorkerPreferences, best};
use tidemill_optimizer::assemble::{Level, Options, assemble};
use tidemill_optimizer::cost::cost;
use tidemill_optimizer::physical::solution_of;
use tidemill_optimizer::summary::headroom;
use tidemill_simulator::{Arrivals, Times, simulate};
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::plan::{Plan, SOURCE_DEVICE};
use tidemill_spec::units::{Bandwidth, Percentile, Rate, TimeSpan};
use tidemill_spec::workflow::{LatencySlo, Slo};

/// Seconds at the start of a simulation that are not counted.
const WARM_UP: f64 = 2.0;
/// Seconds until the work of a lost worker continues elsewhere: two for the detection, and the restart.
const OUTAGE: f64 = 5.0;
/// Seconds that sinks pause during a change of plans: p99 of `benches/experiments/plan_changes.sh` at its sink `texts`, which
/// always has rows.
const PAUSE: f64 = 0.514;
/// Rate of a link without a rate in the files.
const LINK: Bandwidth = Bandwidth(50_000_000);

/// A planned workload.
pub(super) struct Workload {
    pub(super) title: String,
    /// Records per second at factor 1.
    pub(super) rate: f64,
    /// The case with all machines and links intact.
    pub(super) case: Case,
    pub(super) slo: Slo,
    /// Least accuracy in percent.
    pub(super) accuracy: f64,
}

impl Workload {
    /// Returns the published models, and our own.
    pub(super) fn all(root: &Path) -> anyhow::Result<Vec<Self>> {
        let limit = LatencySlo { percentile: Percentile(99.0).into(), below: TimeSpan(2_000_000_000).into() };
        let folder = |name: &str| root.join("examples").join(name);
        let published =
            Self::read("published models", 12.0, &folder("published-vqa"), "profiles.yaml", Some(limit))?;
        let own = Self::read("our models", 40.0, &folder("vqa"), "profile.yaml", None)?;
        Ok(vec![published, own])
    }

    fn read(
        title: &str,
        rate: f64,
        folder: &Path,
        profile: &str,
        latency: Option<LatencySlo>,
    ) -> anyhow::Result<Self> {
        let asked = PlanningOptions {
            infrastructure: Some(folder.join("infrastructure.yaml")),
            profiles: vec![folder.join(profile)],
            // The load is given by the day, not by a level.
            problem: Options { latency, without: [Level::Rate].into(), ..Options::default() },
            gap: 1e-6,
            // Less than a controller's limit: there are hundreds of searches.
            time_limit: TimeSpan(3_000_000_000),
            keep_idle: false,
            solver: SolverName::Microlp,
        };
        let mut case = Case::load(&folder.join("workflow.yaml"), &asked, &Silent)?;
        case.workflow.slo.rate = None;
        for source in &mut case.workflow.sources {
            source.rate = Some(Rate(rate).into());
        }
        named(&mut case.infrastructure);
        let accuracy = case.workflow.slo.accuracy.as_ref().context("the workflow asks for no accuracy")?.0;
        let mut slo = case.workflow.slo.clone();
        slo.latency = case.options.latency.clone().or(slo.latency);
        Ok(Self { title: title.to_owned(), rate, case, slo, accuracy })
    }
}

/// Names every machine and gives every link a rate, as in a cluster.
fn named(infrastructure: &mut Infrastructure) {
    for tier in &mut infrastructure.tiers {
        let id = tier.id.value.clone();
        for worker in &mut tier.workers.value {
            let name = |number: u32| format!("{id}-{}-{number}", worker.worker_type.value);
            worker.names = (1..=worker.count.value).map(|number| name(number).as_str().into()).collect();
        }
    }
    for link in &mut infrastructure.links {
        link.bandwidth.get_or_insert_with(|| LINK.into());
    }
}

/// A workload on a day.
pub(super) struct World<'a> {
    pub(super) workload: &'a Workload,
    pub(super) day: &'a Day,
    /// The temporarily absent worker.
    pub(super) lost: String,
}

/// Records and costs of a moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Served {
    /// Arrived records.
    pub(super) due: f64,
    /// Records turned away, beyond the plan's capacity or for lack of a worker.
    pub(super) shed: f64,
    /// Records later than the latency level.
    pub(super) late: f64,
    /// Records in time, with less accuracy than the level.
    pub(super) below: f64,
    /// Records in time.
    pub(super) good: f64,
    /// Percent.
    pub(super) accuracy: f64,
    /// $.
    pub(super) cost: f64,
    /// The controller's measurements meanwhile.
    pub(super) late_figures: Late,
}

impl World<'_> {
    /// Returns the machines and links of a state.
    pub(super) fn infrastructure(&self, state: State) -> Infrastructure {
        let mut infrastructure = self.workload.case.infrastructure.clone();
        if state.is_slow {
            let bandwidths = infrastructure.links.iter_mut().filter_map(|link| link.bandwidth.as_mut());
            bandwidths.for_each(|rate| rate.value = Bandwidth(rate.value.0 / 10));
        }
        if state.is_lost {
            for tier in &mut infrastructure.tiers {
                for worker in &mut tier.workers.value {
                    let before = worker.names.len();
                    worker.names.retain(|name| name.value != self.lost);
                    worker.count.value -= (before - worker.names.len()) as u32;
                }
                tier.workers.value.retain(|worker| worker.count.value > 0);
            }
        }
        infrastructure
    }

    /// Returns the planning problem of a state at a load.
    pub(super) fn case(&self, state: State, factor: f64) -> Case {
        let mut case = self.workload.case.clone();
        case.infrastructure = self.infrastructure(state);
        case.options.rate = Some(Rate(self.workload.rate * factor));
        case
    }

    /// Returns the plan after the loss of a worker, whose operators move as the controller would move them.
    pub(super) fn moved(&self, plan: &Plan, state: State) -> Plan {
        let infrastructure = self.infrastructure(state);
        let there: BTreeMap<&str, (&str, &str)> = infrastructure
            .tiers
            .iter()
            .flat_map(|tier| tier.workers.iter().map(move |worker| (tier, worker)))
            .flat_map(|(tier, worker)| {
                let of = (tier.id.value.as_str(), worker.worker_type.value.as_str());
                worker.names.iter().map(move |name| (name.value.as_str(), of))
            })
            .collect();
        let own: Vec<&str> = plan.workers.iter().map(|worker| worker.id.as_str()).collect();
        let spares: Vec<Spare> = there
            .iter()
            .map(|(name, (tier, worker_type))| Spare {
                name: (*name).to_owned(),
                tier: Some((*tier).to_owned()),
                location: None,
                worker_type: Some((*worker_type).to_owned()),
                duties: own.iter().filter(|worker| *worker == name).count(),
            })
            .collect();
        let is_gone = |id: &str, of: &str| of != SOURCE_DEVICE && !there.contains_key(id);
        let gone = plan.workers.iter().filter(|worker| is_gone(&worker.id, &worker.worker_type));
        let places = gone.filter_map(|worker| {
            let wanted = WorkerPreferences {
                tier: Some(worker.tier.clone()),
                location: None,
                worker_type: Some(worker.worker_type.clone()),
            };
            Some((worker.id.clone(), best(&spares, &wanted)?))
        });
        as_placed(plan, &places.collect(), &infrastructure)
    }

    /// Returns the $ per hour of workers.
    pub(super) fn price(&self, workers: &BTreeSet<String>) -> f64 {
        let tiers = self.workload.case.infrastructure.tiers.iter();
        let all = tiers.flat_map(|tier| tier.workers.iter());
        all.map(|worker| {
            let count = worker.names.iter().filter(|name| workers.contains(&name.value)).count();
            count as f64 * worker.price.value.0
        })
        .sum()
    }

    /// Simulates a moment under a plan. `paid`: the paid workers; `changes`: the plan changes meanwhile.
    pub(super) fn serve(
        &self,
        plan: &Plan,
        moment: &Moment,
        paid: &BTreeSet<String>,
        changes: bool,
    ) -> anyhow::Result<Served> {
        let rate = self.workload.rate * moment.factor;
        let mut served = Served {
            due: rate * STEP,
            cost: self.price(paid) * STEP / 3600.0,
            accuracy: 0.0,
            ..Served::default()
        };
        let options =
            |case: &Case| Options { checkpoint_every: Some(plan.checkpoint_every), ..case.options.clone() };
        let mut case = self.case(moment.state, moment.factor);
        let found = |case: &Case| {
            let assembly = assemble(&case.inputs(), &options(case)).map_err(written)?;
            let solution = solution_of(&case.inputs(), &assembly, plan)?;
            Ok::<_, anyhow::Error>((assembly, solution))
        };
        let Ok((assembly, solution)) = found(&case) else {
            // The plan uses an absent worker.
            served.shed = served.due;
            return Ok(served);
        };
        let carried = headroom(&assembly.problem, &solution).unwrap_or(1.0).min(1.0);
        case.options.rate = Some(Rate(rate * carried));
        let (assembly, solution) = found(&case)?;
        let problem = &assembly.problem;
        let pause = if changes { PAUSE } else { 0.0 };
        served.shed = served.due * (1.0 - carried);
        served.cost += cost(problem, &solution)?.network * STEP / 3600.0;
        served.accuracy = problem.accuracy_of(&solution.variants).unwrap_or(0.0);
        let times = Times::measured(&case.inputs(), &assembly, &solution);
        let number = (moment.at / STEP) as u64;
        let options = tidemill_simulator::Options {
            seconds: STEP + WARM_UP,
            warm_up: WARM_UP,
            seed: self.day.seed.wrapping_mul(1_000_003).wrapping_add(number),
            ..simulation_options(&case, &assembly, &solution, plan)
        };
        let simulation = simulate(problem, &solution, &times, &Arrivals::poisson(), &options)?;
        let limits = || simulation.sinks.iter().flat_map(|sink| &sink.limits);
        let over = limits().map(|limit| limit.over).fold(0.0, f64::max).max(1.0 - simulation.achieved());
        let let_in = served.due * carried;
        served.late = (let_in * over).max(let_in * pause / STEP).min(let_in);
        served.good = let_in - served.late;
        if served.accuracy < self.workload.accuracy - 1e-9 {
            served.below = served.good;
        }
        let latency = limits().map(|limit| limit.seconds * 1e3).reduce(f64::max);
        served.late_figures = self.figures(rate, carried, latency);
        Ok(served)
    }

    /// Counts the records lost while the work of a lost worker is started elsewhere.
    pub(super) fn outage(&self, served: &mut Served) {
        let part = OUTAGE / STEP;
        for kept in [&mut served.late, &mut served.good, &mut served.below] {
            *kept *= 1.0 - part;
        }
        served.shed += (served.due - served.shed) * part;
    }

    /// Returns the controller's measurements: sources emit all arrivals, and those beyond the plan's capacity are lost
    /// in transit.
    fn figures(&self, rate: f64, carried: f64, latency_ms: Option<f64>) -> Late {
        let sources = self.workload.case.workflow.sources.iter().map(|source| {
            let given = SourceRate { asked: None, given: rate, has_begun: true, is_live: true };
            (source.id.value.clone(), given)
        });
        let measured = Measured {
            seconds: STEP,
            sources: sources.collect(),
            delivered: carried,
            latency_ms: latency_ms.filter(|ms| ms.is_finite()),
            scored: None,
        };
        let levels = measured.levels(&self.workload.slo);
        Late { measured, stages: BTreeMap::new(), levels }
    }
}

/// Returns the machines of a plan.
pub(super) fn workers(plan: &Plan) -> BTreeSet<String> {
    let own = plan.workers.iter().filter(|worker| worker.worker_type != SOURCE_DEVICE);
    own.map(|worker| worker.id.clone()).collect()
}
