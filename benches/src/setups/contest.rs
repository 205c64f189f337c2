//! The compared planners, and the recorded facts of a plan.
use super::inputs::{Family, Wanted};
use crate::machine::{Machine, machine};
use crate::parts::cpu_microseconds;
use anyhow::Context;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use tidemill_optimizer::planner::{Planner, SearchLimits};
use tidemill_optimizer::planners::beam::Beam;
use tidemill_optimizer::planners::best_fit::BestFit;
use tidemill_optimizer::planners::cloud_only::CloudOnly;
use tidemill_optimizer::planners::edge_only::EdgeOnly;
use tidemill_optimizer::planners::exact::Exact;
use tidemill_optimizer::planners::first_fit::FirstFit;
use tidemill_optimizer::problem::Problem;
use tidemill_optimizer::solution::{Solution, Status};

/// A planner with its rule for sharing workers.
#[derive(Clone, Copy)]
pub(super) struct Entrant {
    pub(super) name: &'static str,
    /// Whether a worker may run one operator only, as in the publication.
    pub(super) one_operator: bool,
    planner: fn() -> Box<dyn Planner>,
}

const fn shared(name: &'static str, planner: fn() -> Box<dyn Planner>) -> Entrant {
    Entrant { name, one_operator: false, planner }
}

const fn alone(name: &'static str, planner: fn() -> Box<dyn Planner>) -> Entrant {
    Entrant { name, one_operator: true, planner }
}

/// The planners in the order of all figures. Workers are shared except where the name says otherwise: that is the
/// rivals' best case.
pub(super) const ENTRANTS: [Entrant; 7] = [
    shared("exact", || Box::new(Exact)),
    alone("exact, one operator a worker", || Box::new(Exact)),
    shared("beam", || Box::new(Beam::default())),
    shared("best-fit", || Box::new(BestFit)),
    shared("first-fit", || Box::new(FirstFit)),
    shared("cloud-only", || Box::new(CloudOnly)),
    shared("edge-only", || Box::new(EdgeOnly)),
];

/// The rivals under the publication's rule.
pub(super) const BY_ITS_RULE: [Entrant; 5] = [
    alone("beam, one operator a worker", || Box::new(Beam::default())),
    alone("beam without finishing, one operator a worker", || {
        Box::new(Beam { finishing: false, ..Beam::default() })
    }),
    alone("best-fit, one operator a worker", || Box::new(BestFit)),
    alone("first-fit, one operator a worker", || Box::new(FirstFit)),
    alone("cloud-only, one operator a worker", || Box::new(CloudOnly)),
];

/// A plan, or the fact that there is none.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    pub(super) family: &'static str,
    /// Machines.
    pub(super) infrastructure: &'static str,
    pub(super) planner: &'static str,
    /// The value varied beyond rate and accuracy, in the unit of the figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) varied: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) case: Option<&'static str>,
    /// Requests per second.
    pub(super) rate: f64,
    /// Percent.
    pub(super) least_accuracy: f64,
    pub(super) percentile: f64,
    pub(super) status: &'static str,
    /// Cost per hour.
    pub(super) total: Option<f64>,
    pub(super) compute: Option<f64>,
    pub(super) network: Option<f64>,
    /// Unproven share of the cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gap: Option<f64>,
    pub(super) accuracy: Option<f64>,
    /// Processor time of planning, milliseconds.
    pub(super) milliseconds: f64,
    pub(super) models: String,
    pub(super) workers: String,
    /// Workers in use by price and place, which distinguish plans.
    #[serde(skip)]
    pub(super) kinds: String,
    /// Operators by worker, with the shares of their records.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) placement: BTreeMap<String, Vec<(String, f64)>>,
}

impl Row {
    /// Sets the varied value.
    pub(super) fn at(self, varied: f64) -> Self {
        Self { varied: Some(varied), ..self }
    }

    /// Removes the placement.
    pub(super) fn brief(self) -> Self {
        Self { placement: BTreeMap::new(), ..self }
    }

    /// Sets the name of the case.
    pub(super) fn in_case(self, case: &'static str) -> Self {
        Self { case: Some(case), ..self }
    }
}

impl Row {
    /// Returns a line for the terminal.
    pub(super) fn line(&self) -> String {
        let cost = self.total.map_or("-".to_owned(), |total| format!("{total:.4}"));
        let gap = self.gap.filter(|gap| *gap > 1e-5).map(|gap| format!(" gap {:.2} %", 100.0 * gap));
        format!(
            "{:<9} {:<7} {:<32} {:>8}/s {:>6} % p{:<3} {:>8} {:>9}{} {:>9.2} ms  {}; {}",
            self.family,
            self.infrastructure,
            self.planner,
            self.rate,
            self.least_accuracy,
            self.percentile,
            self.varied.map_or_else(|| self.case.unwrap_or("").to_owned(), |varied| format!("{varied:.4}")),
            cost,
            gap.unwrap_or_default(),
            self.milliseconds,
            self.models,
            self.workers
        )
    }
}

/// Effort of the search.
#[derive(Debug, Clone, Copy)]
pub(super) struct Effort {
    /// Time limit for one plan, seconds.
    pub(super) longest: f64,
}

/// Plans a workload.
pub(super) fn plan(entrant: Entrant, family: &Family, wanted: Wanted, effort: Effort) -> anyhow::Result<Row> {
    plan_changed(entrant, family, wanted, effort, |_| ())
}

/// Plans a workload on a changed problem.
pub(super) fn plan_changed(
    entrant: Entrant,
    family: &Family,
    wanted: Wanted,
    effort: Effort,
    change: impl Fn(&mut Problem),
) -> anyhow::Result<Row> {
    let mut problem = family.problem(wanted)?;
    problem.limits.one_operator_per_worker = entrant.one_operator;
    change(&mut problem);
    let limits = SearchLimits { wall_seconds: Some(effort.longest), ..SearchLimits::default() };
    let before = cpu_microseconds();
    let outcome = (entrant.planner)().plan(&problem, &limits);
    let milliseconds = (cpu_microseconds() - before) / 1e3;
    let outcome = outcome.with_context(|| format!("{} on {}", entrant.name, wanted.setup.name()))?;
    let cost = match &outcome.solution {
        Some(solution) => Some(tidemill_optimizer::cost::cost(&problem, solution)?),
        None => None,
    };
    let solution = outcome.solution.as_ref();
    Ok(Row {
        family: family.id,
        infrastructure: wanted.setup.name(),
        planner: entrant.name,
        varied: None,
        case: None,
        rate: wanted.rate,
        least_accuracy: wanted.accuracy,
        percentile: wanted.percentile,
        status: status(outcome.status, outcome.bound),
        total: cost.map(|cost| rounded(cost.total())),
        compute: cost.map(|cost| rounded(cost.compute)),
        network: cost.map(|cost| rounded(cost.network)),
        gap: outcome.gap.map(rounded),
        accuracy: solution.and_then(|solution| problem.accuracy_of(&solution.variants)),
        milliseconds: rounded(milliseconds),
        models: solution.map(|solution| models(&problem, solution)).unwrap_or_default(),
        workers: solution.map(|solution| workers(&problem, solution)).unwrap_or_default(),
        kinds: solution.map(|solution| kinds(&problem, solution)).unwrap_or_default(),
        placement: solution.map(|solution| placement(&problem, solution)).unwrap_or_default(),
    })
}

/// Rounds to six digits after the point.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

fn status(status: Status, bound: Option<f64>) -> &'static str {
    match status {
        Status::Optimal => "optimal",
        Status::Feasible => "feasible",
        Status::TimeLimited => "time limited",
        Status::Infeasible if bound == Some(f64::INFINITY) => "no plan, proven",
        Status::Infeasible => "no plan found",
    }
}

/// Returns the chosen models of the operators with a choice.
fn models(problem: &Problem, solution: &Solution) -> String {
    let chosen = problem.operators.iter().zip(&solution.variants);
    let chosen = chosen.filter(|(operator, _)| operator.variants.len() > 1);
    chosen.map(|(operator, &variant)| operator.variants[variant].id.as_str()).collect::<Vec<_>>().join(" + ")
}

/// Returns the workers in use by type and place.
fn workers(problem: &Problem, solution: &Solution) -> String {
    let mut counts: BTreeMap<usize, u32> = BTreeMap::new();
    for worker in &solution.workers {
        *counts.entry(worker.class).or_default() += 1;
    }
    let words = counts.into_iter().map(|(class, count)| {
        let class = &problem.worker_classes[class];
        format!("{count} x {}@{}", class.worker_type, problem.locations[class.location].name)
    });
    words.collect::<Vec<_>>().join(", ")
}

/// Returns the workers in use by price and place.
fn kinds(problem: &Problem, solution: &Solution) -> String {
    let classes = solution.workers.iter().map(|worker| &problem.worker_classes[worker.class]);
    let mut kinds: Vec<String> = classes.map(|class| format!("{}@{}", class.price, class.location)).collect();
    kinds.sort_unstable();
    kinds.join(" ")
}

/// Returns the shares of the operators by worker class.
fn placement(problem: &Problem, solution: &Solution) -> BTreeMap<String, Vec<(String, f64)>> {
    let mut all: BTreeMap<String, Vec<(String, f64)>> = BTreeMap::new();
    for hosting in &solution.hostings {
        let Some(worker) = hosting.worker else { continue };
        let class = &problem.worker_classes[solution.workers[worker].class];
        let place = format!("{}@{}", class.worker_type, problem.locations[class.location].name);
        let parts = all.entry(problem.operators[hosting.operator].id.clone()).or_default();
        match parts.iter_mut().find(|(known, _)| *known == place) {
            Some((_, share)) => *share += rounded(hosting.share),
            None => parts.push((place, rounded(hosting.share))),
        }
    }
    all
}

/// Rows of one question with the facts needed to judge them.
#[derive(Serialize)]
struct Result<'a> {
    schema: u32,
    question: &'a str,
    name: &'a str,
    machine: Machine,
    /// Description of the inputs.
    inputs: Vec<String>,
}

/// Writes the rows of a question, a line each.
pub(super) fn write(
    folder: &Path,
    name: &str,
    question: &str,
    inputs: Vec<String>,
    rows: &[Row],
) -> anyhow::Result<()> {
    let facts = Result { schema: 1, question, name, machine: machine(), inputs };
    let head = serde_json::to_string_pretty(&facts)?;
    let lines: anyhow::Result<Vec<String>> =
        rows.iter().map(|row| Ok(format!("    {}", serde_json::to_string(row)?))).collect();
    let head = head.trim_end().trim_end_matches('}').trim_end();
    let text = format!("{head},\n  \"rows\": [\n{}\n  ]\n}}\n", lines?.join(",\n"));
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let path = folder.join(format!("{name}.json"));
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
impl Row {
    /// Returns an empty row.
    pub(super) fn empty() -> Self {
        Self {
            family: "published",
            infrastructure: "medium",
            planner: "exact",
            varied: None,
            case: None,
            rate: 40.0,
            least_accuracy: 56.0,
            percentile: 75.0,
            status: "no plan found",
            total: None,
            compute: None,
            network: None,
            gap: None,
            accuracy: None,
            milliseconds: 0.0,
            models: String::new(),
            workers: String::new(),
            kinds: String::new(),
            placement: BTreeMap::new(),
        }
    }
}
