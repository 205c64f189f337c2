//! Plans for many loads of a trace; the levels are chosen among them.
use crate::arguments::{FleetSetting, GoalChoice, PlanArguments};
use crate::status_line::StatusLine;
use crate::terminal::Terminal;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::planning::Case;
use tidemill_optimizer::assemble::Assembly;
use tidemill_optimizer::cost::{Cost, cost};
use tidemill_optimizer::planner::{Planner, PlannerError, SearchLimits};
use tidemill_optimizer::planners::accuracy_scaling::{AccuracyScaling, Goal, within_budget};
use tidemill_optimizer::planners::exact::Exact;
use tidemill_optimizer::problem::Problem;
use tidemill_optimizer::solution::{Outcome, Solution, Status};
use tidemill_simulator::{LoadBin, Price, Trace};

/// Accuracy points lost by an unanswered record.
const ALL_POINTS: f64 = 100.0;

/// A candidate plan of a level.
pub(super) struct Candidate {
    /// The largest load factor that it is for.
    pub(super) top: f64,
    pub(super) assembly: Assembly,
    pub(super) status: Status,
    pub(super) solution: Solution,
    /// At the largest load: $/h.
    pub(super) cost: Cost,
    /// Cost by time and load: $.
    pub(super) costs: Price,
    /// Objective of the choice of levels: the cost, or the lost accuracy.
    pub(super) price: Price,
    /// In percent, if known.
    pub(super) accuracy: Option<f64>,
}

/// Plans for all loads.
pub(super) struct Candidates {
    pub(super) planner: &'static str,
    pub(super) bins: Vec<LoadBin>,
    /// By bin; `None`: no plan was found.
    pub(super) all: Vec<Option<Candidate>>,
    /// The plan for the peak that meets all levels, for comparison.
    pub(super) peak: Candidate,
    /// Penalty for a second of the nominal rate that is not served.
    pub(super) missed: f64,
    /// The fleet that plans run on, if it is fixed.
    pub(super) fleet: Option<Fleet>,
}

/// A fixed set of workers.
pub(super) struct Fleet {
    /// Purpose of its purchase, in words.
    pub(super) bought_for: String,
    /// Records per second at which its plan meets all levels.
    pub(super) rate: f64,
    /// $/h of all its workers.
    pub(super) price: f64,
    /// Its workers: number of each type.
    pub(super) workers: String,
}

/// A required plan was not found.
pub(super) struct Refused {
    pub(super) assembly: Assembly,
    pub(super) outcome: Outcome,
}

type Made = anyhow::Result<Result<Candidates, Refused>>;

/// The cheapest plan for each load, the peak first.
pub(super) fn by_planner(
    arguments: &PlanArguments,
    case: &Case,
    nominal: f64,
    bins: Vec<LoadBin>,
    terminal: &Terminal,
) -> Made {
    let planner = arguments.planner.planner()?;
    let mut line = StatusLine::new(*terminal);
    let mut all: Vec<Option<Candidate>> = Vec::new();
    let limits = SearchLimits { every_wait: false, ..case.limits };
    for (done, bin) in bins.iter().rev().enumerate() {
        line.show(|_| format!("{done} of {} loads planned", bins.len()));
        let assembly = case.assemble_at(bin.factor * nominal)?;
        let outcome = planner.plan(&assembly.problem, &limits)?;
        let (status, solution) = (outcome.status, outcome.solution.clone());
        match solution {
            Some(solution) => {
                all.push(Some(candidate(bin.factor, assembly, status, solution, None, Goal::Most)?));
            }
            None if done == 0 => {
                line.finish();
                return Ok(Err(Refused { assembly, outcome }));
            }
            None => all.push(None),
        }
    }
    line.finish();
    all.reverse();
    let peak = bins.last().map(|bin| case.assemble_at(bin.factor * nominal)).transpose()?;
    let Some((assembly, Some(last))) = peak.zip(all.last()) else {
        return Err(Failure::new(Kind::Defect, "a load without a peak").into());
    };
    let peak = candidate(last.top, assembly, last.status, last.solution.clone(), None, Goal::Most)?;
    Ok(Ok(Candidates { planner: planner.name(), bins, all, peak, missed: 0.0, fleet: None }))
}

/// The most accurate plan for each load on workers that are bought once.
pub(super) fn on_a_fleet(
    arguments: &PlanArguments,
    case: &Case,
    trace: &Trace,
    nominal: f64,
    mut bins: Vec<LoadBin>,
    terminal: &Terminal,
) -> Made {
    let mut line = StatusLine::new(*terminal);
    let largest = trace.largest_factor() * nominal;
    let problem_at = |rate: f64| -> anyhow::Result<Problem> { Ok(case.assemble_at(rate)?.problem) };
    let peak = case.assemble_at(largest)?;
    let outcome = Exact.plan(&peak.problem, &case.limits)?;
    let Some(solution) = outcome.solution.clone() else {
        return Ok(Err(Refused { assembly: peak, outcome }));
    };
    let peak = candidate(trace.largest_factor(), peak, outcome.status, solution, None, Goal::Most)?;
    line.show(|_| "choosing the workers".to_owned());
    let (rate, bought_for, workers) = match arguments.load.fleet.unwrap_or(FleetSetting::Mean) {
        FleetSetting::Budget(budget) => {
            let found = within_budget(&Exact, budget.0, largest, &case.limits, problem_at)?;
            let Some((rate, workers)) = found else {
                let message = format!("no workers for {} $/h or less keep the levels", budget.0);
                return Err(Failure::new(Kind::No, message).with_help("raise `--fleet`").into());
            };
            (rate, format!("{} $/h", budget.0), workers)
        }
        setting => {
            let (rate, word) = match setting {
                FleetSetting::Rate(rate) => (rate.0, "that rate"),
                _ => (trace.mean_factor() * nominal, "the mean of the load"),
            };
            let assembly = case.assemble_at(rate)?;
            let outcome = Exact.plan(&assembly.problem, &case.limits)?;
            let Some(workers) = outcome.solution.clone() else {
                return Ok(Err(Refused { assembly, outcome }));
            };
            (rate, word.to_owned(), workers)
        }
    };
    let goal = match arguments.load.goal.unwrap_or(GoalChoice::Most) {
        GoalChoice::Most => Goal::Most,
        GoalChoice::Level => Goal::Level,
    };
    let planner = AccuracyScaling::of_plan(&peak.assembly.problem, &workers).with_goal(goal);
    let price = planner.price(&peak.assembly.problem);
    let fleet = Fleet { bought_for, rate, price, workers: workers_of(&peak.assembly, &workers) };
    line.show(|_| "looking for the highest load that the workers carry".to_owned());
    let Some((carried, most)) = planner.largest_load(largest, &case.limits, problem_at)? else {
        let message = "the workers of the fleet carry no part of this load, with any variants";
        return Err(Failure::new(Kind::No, message).with_help("give more of them: `--fleet`").into());
    };
    // Loads beyond that are one level, planned for the load that the workers can carry.
    let kept = bins.iter().take_while(|bin| bin.factor * nominal < carried).count();
    let beyond = bins.split_off(kept);
    bins.push(LoadBin {
        factor: carried / nominal,
        seconds: beyond.iter().map(|bin| bin.seconds).sum(),
        nominal: beyond.iter().map(|bin| bin.nominal).sum(),
    });
    let mut all = Vec::new();
    for (done, bin) in bins.iter().enumerate() {
        line.show(|_| format!("{done} of {} loads planned", bins.len()));
        let is_last = done + 1 == bins.len();
        let assembly = case.assemble_at(bin.factor * nominal)?;
        let outcome = if is_last { most.clone() } else { planner.plan(&assembly.problem, &case.limits)? };
        let Some(solution) = outcome.solution else {
            all.push(None);
            continue;
        };
        all.push(Some(candidate(bin.factor, assembly, outcome.status, solution, Some(price), goal)?));
    }
    line.finish();
    Ok(Ok(Candidates { planner: planner.name(), bins, all, peak, missed: ALL_POINTS, fleet: Some(fleet) }))
}

/// Creates a candidate with its prices; with a fleet, all of its workers are paid, and accuracy counts.
fn candidate(
    top: f64,
    assembly: Assembly,
    status: Status,
    solution: Solution,
    fleet: Option<f64>,
    goal: Goal,
) -> anyhow::Result<Candidate> {
    let mut cost = cost(&assembly.problem, &solution).map_err(|error| {
        anyhow::Error::from(PlannerError::Fault { planner: "plan".to_owned(), reason: error.to_string() })
    })?;
    cost.compute = fleet.unwrap_or(cost.compute);
    let accuracy = assembly.problem.accuracy_of(&solution.variants);
    let enough = assembly.problem.limits.accuracy.filter(|_| goal == Goal::Level);
    let worth = |accuracy: f64| enough.map_or(accuracy, |enough| accuracy.min(enough));
    let costs = Price { of_time: cost.compute / 3600.0, of_load: cost.network / 3600.0 / top };
    let price = match fleet {
        None => costs,
        Some(_) => Price { of_time: 0.0, of_load: ALL_POINTS - worth(accuracy.unwrap_or(0.0)) },
    };
    Ok(Candidate { top, assembly, status, solution, cost, costs, price, accuracy })
}

/// `2 gateway, 1 server`.
pub(super) fn workers_of(assembly: &Assembly, solution: &Solution) -> String {
    let classes = assembly.problem.worker_classes.iter().enumerate();
    let counted = classes.map(|(index, class)| {
        let count = solution.workers.iter().filter(|worker| worker.class == index).count();
        (count, class.worker_type.as_str())
    });
    let mut by_type: Vec<(usize, &str)> = Vec::new();
    for (count, name) in counted.filter(|(count, _)| *count > 0) {
        match by_type.iter_mut().find(|(_, known)| *known == name) {
            Some((sum, _)) => *sum += count,
            None => by_type.push((count, name)),
        }
    }
    by_type.iter().map(|(count, name)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
}
