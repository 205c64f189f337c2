//! The strategies, which choose the plan of each moment: a fixed one, the controller's decisions, cheaper variants on a
//! fixed fleet, an oracle.
use super::day::{STEP, State};
use super::oracle::Chosen;
use super::search::{Planner, Plans};
use super::world::{Served, World, workers};
use crate::setups::written;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_app::planning::{Case, failed};
use tidemill_app::service_level::LevelSetting;
use tidemill_cluster::replanning::assessment::mark_of;
use tidemill_cluster::replanning::decision::Decision;
use tidemill_cluster::replanning::load::{Load, Loads};
use tidemill_cluster::replanning::replanner::{Bound, Replanner, Search, Situation};
use tidemill_optimizer::assemble::Assembly;
use tidemill_optimizer::physical::physical;
use tidemill_optimizer::planner::Planner as _;
use tidemill_optimizer::planners::accuracy_scaling::{AccuracyScaling, Goal};
use tidemill_optimizer::solution::Outcome;
use tidemill_spec::plan::Plan;
use tidemill_spec::units::Rate;

/// Seconds until the probes between workers have reported the new rate of a link.
const PROBED: f64 = 20.0;
/// Seconds between two changes of accuracy scaling.
const DWELL: f64 = 30.0;

/// A strategy for the plan of each moment.
pub(super) enum PlanStrategy<'a> {
    /// Always the first plan.
    Fixed,
    /// The controller's decisions.
    Auto(Box<Auto<'a>>),
    /// Cheaper variants on the same workers.
    Scaling(Box<Scaling>),
    /// The decisions of an oracle that knows the day.
    Oracle(Vec<Chosen>),
}

/// The controller.
pub(super) struct Auto<'a> {
    pub(super) replanner: Replanner,
    /// The levels that may be lowered, in order.
    degrade: Vec<LevelSetting>,
    /// Number of plans so far.
    changes: u64,
    pub(super) plans: &'a Plans,
    /// Start of the present state, and the previous state.
    since: f64,
    before: State,
    now: State,
}

impl<'a> Auto<'a> {
    pub(super) fn new(plans: &'a Plans, degrade: Vec<LevelSetting>) -> Self {
        Self {
            replanner: Replanner::default(),
            degrade,
            changes: 0,
            plans,
            since: 0.0,
            before: State::default(),
            now: State::default(),
        }
    }

    /// Returns the controller's knowledge of machines and links: a lost worker is known at once, a link's rate after a
    /// probe.
    fn known(&mut self, at: f64, state: State) -> State {
        if state != self.now {
            (self.before, self.now, self.since) = (self.now, state, at);
        }
        let is_slow = if at - self.since < PROBED { self.before.is_slow } else { state.is_slow };
        State { is_slow, ..state }
    }

    /// Returns another plan, if it decides so.
    fn decide(
        &mut self,
        world: &World<'_>,
        plan: &Plan,
        (at, state): (f64, State),
        served: &Served,
    ) -> anyhow::Result<Option<Plan>> {
        let state = self.known(at, state);
        let mut case = world.workload.case.clone();
        case.infrastructure = world.infrastructure(state);
        let bound = Bound::default();
        let late = &served.late_figures;
        let situation = Situation { case: &mut case, plan, late, bound: &bound, degrade: &self.degrade };
        let mut planner = Planner { plans: self.plans, state };
        self.replanner.sees_plan(self.changes, 0, at);
        let found = self.replanner.look(situation, false, &mut planner, at).map_err(anyhow::Error::msg)?;
        Ok(match found.decision {
            Decision::Change(candidate, _) => {
                self.changes += 1;
                self.replanner.sees_plan(self.changes, 0, at);
                Some(candidate.plan)
            }
            Decision::Keep(_) | Decision::Tell(_) => None,
        })
    }
}

/// A fleet by type of machine and place.
type Fleet = BTreeMap<(String, usize), u32>;

/// Accuracy scaling (Loki, IPA): the set of workers is fixed.
pub(super) struct Scaling {
    fleet: Fleet,
    /// All of its machines, which are paid for.
    pub(super) paid: BTreeSet<String>,
    loads: Loads,
    changed: f64,
    found: BTreeMap<(State, u64), Option<Plan>>,
}

impl Scaling {
    /// Takes the machines of a plan.
    pub(super) fn of(plan: &Plan, assembly: &Assembly) -> Self {
        let paid = workers(plan);
        let mut fleet = Fleet::new();
        for (class, names) in assembly.problem.worker_classes.iter().zip(&assembly.names) {
            let count = names.iter().filter(|name| paid.contains(*name)).count();
            *fleet.entry((class.worker_type.clone(), class.location)).or_default() += count as u32;
        }
        Self { fleet, paid, loads: Loads::default(), changed: f64::NEG_INFINITY, found: BTreeMap::new() }
    }

    fn decide(
        &mut self,
        world: &World<'_>,
        plan: &Plan,
        (at, state): (f64, State),
        served: &Served,
    ) -> anyhow::Result<Option<Plan>> {
        let mut case = world.workload.case.clone();
        case.infrastructure = world.infrastructure(state);
        let assembly = case.assemble().map_err(written)?;
        let Some(load) = self.loads.see(&served.late_figures, &case, &assembly, at) else { return Ok(None) };
        if at - self.changed < DWELL {
            return Ok(None);
        }
        let key = (state, load.planned.to_bits());
        if !self.found.contains_key(&key) {
            let found = self.planned(&case, load)?;
            self.found.insert(key, found);
        }
        let found = self.found.get(&key).cloned().flatten();
        let found = found.filter(|found| mark_of(found) != mark_of(plan));
        if found.is_some() {
            self.changed = at;
        }
        Ok(found)
    }

    /// Returns the plan for a load, or for the largest load that the fleet carries.
    fn planned(&self, case: &Case, load: Load) -> anyhow::Result<Option<Plan>> {
        let at = |rate: f64| {
            let mut case = case.clone();
            case.options.rate = Some(Rate(rate));
            case.assemble().map_err(written)
        };
        let assembly = at(load.planned)?;
        let classes = assembly.problem.worker_classes.iter();
        let fleet = classes.map(|class| {
            let own = self.fleet.get(&(class.worker_type.clone(), class.location)).copied().unwrap_or(0);
            own.min(class.count)
        });
        let planner = AccuracyScaling::new(fleet.collect()).with_goal(Goal::Level);
        let plan = |assembly: &Assembly, outcome: Outcome| -> anyhow::Result<Option<Plan>> {
            let Some(solution) = outcome.solution else { return Ok(None) };
            Ok(Some(physical(&case.inputs(), assembly, &solution, Vec::new())?))
        };
        let outcome = planner.plan(&assembly.problem, &case.limits).map_err(failed)?;
        if outcome.solution.is_some() {
            return plan(&assembly, outcome);
        }
        let most = planner.largest_load(load.planned, &case.limits, |rate| -> anyhow::Result<_> {
            Ok(at(rate)?.problem)
        })?;
        match most {
            Some((rate, outcome)) => plan(&at(rate)?, outcome),
            None => Ok(None),
        }
    }
}

/// Totals of a strategy.
#[derive(Debug, Clone, Default)]
pub(super) struct Lived {
    pub(super) due: f64,
    pub(super) shed: f64,
    pub(super) late: f64,
    pub(super) below: f64,
    pub(super) good: f64,
    /// Sum of accuracy over records in time.
    pub(super) accuracy: f64,
    /// $ of the day.
    pub(super) cost: f64,
    pub(super) changes: usize,
    /// By moment: $ per hour, and missed records so far as a share of the day's.
    pub(super) curve: Vec<(f64, f64)>,
}

impl PlanStrategy<'_> {
    /// Runs the strategy through a day.
    pub(super) fn live(&mut self, world: &World<'_>, first: &Plan) -> anyhow::Result<Lived> {
        let mut all = Lived::default();
        let mut plan = first.clone();
        let mut next: Option<Plan> = None;
        let mut before = State::default();
        for (number, moment) in world.day.moments.iter().enumerate() {
            let mut paid = workers(&plan);
            // The previous plan is paid for while this one is prepared.
            let changes = next.take().is_some_and(|other| {
                paid.extend(workers(&other));
                plan = other;
                true
            });
            if let PlanStrategy::Oracle(chosen) = self
                && let Some(chosen) = chosen.get(number)
                && mark_of(&chosen.plan) != mark_of(&plan)
            {
                paid.extend(workers(&chosen.plan));
                plan = chosen.plan.clone();
                all.changes += 1;
            }
            let is_lost_now = moment.state.is_lost && !before.is_lost && workers(&plan).contains(&world.lost);
            if moment.state.is_lost && workers(&plan).contains(&world.lost) {
                plan = world.moved(&plan, moment.state);
                paid.extend(workers(&plan));
            }
            before = moment.state;
            if let PlanStrategy::Scaling(scaling) = self {
                paid.extend(scaling.paid.iter().cloned());
            }
            paid.retain(|name| !(moment.state.is_lost && *name == world.lost));
            let mut served = world.serve(&plan, moment, &paid, changes)?;
            if is_lost_now {
                world.outage(&mut served);
            }
            all.add(&served);
            let now = (moment.at + STEP, moment.state);
            next = match self {
                PlanStrategy::Fixed | PlanStrategy::Oracle(_) => None,
                PlanStrategy::Auto(auto) => auto.decide(world, &plan, now, &served)?,
                PlanStrategy::Scaling(scaling) => scaling.decide(world, &plan, now, &served)?,
            };
            all.changes += usize::from(next.is_some());
        }
        let due = all.due;
        all.curve.iter_mut().for_each(|(_, missed)| *missed /= due);
        Ok(all)
    }
}

impl Lived {
    fn add(&mut self, served: &Served) {
        self.due += served.due;
        self.shed += served.shed;
        self.late += served.late;
        self.below += served.below;
        self.good += served.good;
        self.accuracy += served.good * served.accuracy;
        self.cost += served.cost;
        self.curve.push((served.cost * 3600.0 / STEP, self.shed + self.late + self.below));
    }

    /// Returns these records as a share of all.
    pub(super) fn part(&self, records: f64) -> f64 {
        records / self.due.max(1e-9)
    }

    /// Records that miss a level.
    pub(super) fn missed(&self) -> f64 {
        self.shed + self.late + self.below
    }

    /// Returns the mean accuracy of the answers in time, in percent.
    pub(super) fn mean_accuracy(&self) -> f64 {
        self.accuracy / self.good.max(1e-9)
    }
}

/// Returns the best plan for a load in a state.
pub(super) fn best(world: &World<'_>, plans: &Plans, state: State, factor: f64) -> Result<Plan, String> {
    let case = world.case(state, factor);
    Planner { plans, state }.best(&case, false).map(|best| best.plan)
}
