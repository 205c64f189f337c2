//! `tidemill plan`: the cheapest plan that meets the service levels.
pub(crate) mod diff;
mod document;
mod expected;
mod front;
mod load;
pub(crate) mod relaxed;
mod steps;
mod surface;
mod table;
mod what_if;

pub(crate) use table::rate;
pub(crate) use tidemill_app::figures::dollars;
pub(crate) use tidemill_app::planned::Planned;

use crate::arguments::{Front, LatencyChoice, Losses, PlanArguments, PlanOutput, PlanVerb};
use crate::exit::Exit;
use crate::terminal::Terminal;
use expected::Nearest;
use relaxed::{GiveWay, give_way};
use std::io::Write;
use tidemill_app::expectation::{Contradiction, Expectation};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Listener;
use tidemill_app::output_file::OutputFile;
use tidemill_app::planned::{JudgedPlan, guaranteed, planned};
use tidemill_app::planning::{Case, tell};
use tidemill_optimizer::assemble::Assembly;
use tidemill_optimizer::planners::obstacle::{Obstacle, obstacle};
use tidemill_optimizer::problem::Problem;
use tidemill_optimizer::solution::{Outcome, Solution, Status};
use tidemill_spec::plan::{LatencyBasis, Plan};
use tidemill_spec::profile::How;
use what_if::WhatIf;

/// A predicted time used by a plan.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub(crate) struct PredictedTime {
    /// Operator id.
    pub(crate) operator: String,
    /// Model, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) variant: Option<String>,
    /// Type of worker.
    pub(crate) worker_type: String,
    /// Factor that covers nine in ten, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) within: Option<f64>,
}

/// The times of a plan's stages that are predicted, each once.
pub(crate) fn predicted_times(case: &Case, plan: &Plan) -> Vec<PredictedTime> {
    let mut all: Vec<PredictedTime> = Vec::new();
    for stage in &plan.stages {
        let Some(worker) = plan.workers.iter().find(|worker| worker.id == stage.worker) else { continue };
        let (variant, backend) = (stage.variant.as_deref(), stage.backend.as_deref());
        let service = case.profile.service(&stage.operator, variant, backend, &worker.worker_type);
        let Some(service) = service.filter(|service| service.how == How::Predicted) else { continue };
        let one = PredictedTime {
            operator: stage.operator.clone(),
            variant: stage.variant.clone(),
            worker_type: worker.worker_type.clone(),
            within: service.within,
        };
        if !all.contains(&one) {
            all.push(one);
        }
    }
    all
}

/// Content of the answer.
pub(crate) struct Answer<'a> {
    pub(crate) case: &'a Case,
    pub(crate) assembly: &'a Assembly,
    pub(crate) outcome: &'a Outcome,
    pub(crate) planned: Option<&'a Planned>,
    /// Its expected behaviour.
    pub(crate) expectation: Option<&'a Expectation>,
    /// Without a plan: the necessary relaxations; `None` if they were not searched.
    pub(crate) give_way: Option<&'a GiveWay>,
    /// Effects of losses of workers, if the command asks for them.
    pub(crate) what_if: Option<&'a WhatIf>,
    /// Number of simulated plans, if plans were simulated to find one.
    pub(crate) search: Option<Simulated>,
}

/// Result of the search for a plan that meets the latency level by a simulation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Simulated {
    /// Different plans that were simulated.
    pub(crate) plans: usize,
    /// Without a plan: the one closest to the level.
    pub(crate) nearest: Option<Nearest>,
}

impl Answer<'_> {
    /// The obstacle to every plan, if none was found.
    fn obstacle(&self) -> Option<Obstacle> {
        self.planned.is_none().then(|| obstacle(&self.outcome.planner, &self.assembly.problem)).flatten()
    }

    /// The basis on which the plan meets the latency level.
    fn basis(&self) -> LatencyBasis {
        let predicted = self.planned.and_then(|planned| planned.plan.predicted.as_ref());
        predicted.map(|predicted| predicted.latency_basis).unwrap_or_default()
    }

    /// Guarantees of the plan that the simulation contradicts.
    fn denied(&self) -> &[Contradiction] {
        self.expectation.map(Expectation::contradictions).unwrap_or_default()
    }
}

/// Executes the verb.
pub(crate) fn plan(arguments: &PlanArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    match &arguments.verb {
        Some(PlanVerb::Diff { old, new, output }) => return diff::diff(old, new, *output),
        #[cfg(feature = "cluster")]
        Some(PlanVerb::Apply(apply)) => return crate::cluster::apply(apply, terminal),
        None => {}
    }
    let Some(workflow) = &arguments.workflow else {
        return Err(Failure::new(Kind::Usage, "no workflow").with_help("name its file").into());
    };
    load::fits_planner(arguments)?;
    let mut case = Case::load(workflow, &arguments.planning.options(), terminal)?;
    if let Some(Front::CostAccuracyLatency) = arguments.pareto {
        return surface::surface(arguments, &mut case, terminal);
    }
    let mut assembly = case.assemble()?;
    tell(&assembly.notes, terminal);
    if let Some(trace) = &arguments.load.trace {
        return load::load(arguments, trace, &case, &assembly, terminal);
    }
    let out = arguments.out.as_deref().map(OutputFile::create).transpose()?;
    if let Some(Front::CostAccuracy) = arguments.pareto {
        return front::front(arguments, &case, &assembly);
    }
    let planner = arguments.planner.planner()?;
    let is_expected =
        arguments.latency == LatencyChoice::Expected && !assembly.problem.limits.latency.is_empty();
    let (outcome, found, search) = match is_expected {
        true => {
            let search = expected::search(&case, &assembly, planner.as_ref(), terminal)?;
            let told = Simulated { plans: search.tried, nearest: search.nearest };
            (search.outcome, search.found, Some(told))
        }
        false => {
            let outcome = planned(&case, &mut assembly, planner.as_ref(), terminal)?;
            let found = guaranteed(&case, &assembly, &outcome)?;
            (outcome, found, None)
        }
    };
    let (planned, expectation) =
        found.map(|JudgedPlan { planned, expectation }| (planned, expectation)).unzip();
    if let Some(planned) = &planned {
        case.check(&planned.plan)?;
    }
    let denied = expectation.as_ref().map(Expectation::contradictions).unwrap_or_default();
    for one in denied {
        terminal.alarm(&format!("the simulation of this plan contradicts its guarantee: {}", one.text()));
    }
    let give_way = give_way(&case, &assembly, &outcome, planner.as_ref())?;
    if let (Some(file), Some(planned)) = (out, &planned) {
        let text = planned.plan.to_yaml()?;
        file.write(|out| out.write_all(text.as_bytes()))?;
    }
    let what_if = match (arguments.what_if, &planned, &outcome.solution) {
        (Some(Losses(most)), Some(planned), Some(chosen)) => {
            Some(WhatIf::new(&case, &assembly.problem, (planned, chosen), most)?)
        }
        _ => None,
    };
    let answer = Answer {
        case: &case,
        assembly: &assembly,
        outcome: &outcome,
        planned: planned.as_ref(),
        expectation: expectation.as_ref(),
        give_way: give_way.as_ref(),
        what_if: what_if.as_ref(),
        search,
    };
    let mut stdout = crate::answer::out();
    match (arguments.output, &planned) {
        (PlanOutput::Yaml, Some(planned)) => stdout.write_all(planned.plan.to_yaml()?.as_bytes())?,
        (PlanOutput::Json, _) => {
            serde_json::to_writer_pretty(&mut stdout, &document::document(&answer))?;
            writeln!(stdout)?;
        }
        (PlanOutput::Table | PlanOutput::Yaml, _) => table::write(&answer, &mut stdout)?,
    }
    stdout.flush()?;
    if let (Some(path), Some(_)) = (&arguments.out, &planned) {
        terminal.note(&format!("the plan is in {}", path.display()));
    }
    Ok(if planned.is_some() { Exit::Success } else { Exit::No })
}

/// The model of an operator in a solution, if it has models.
pub(crate) fn variant_of<'a>(
    case: &Case,
    problem: &'a Problem,
    solution: &Solution,
    operator: usize,
) -> Option<&'a str> {
    let facts = &problem.operators[operator];
    case.models.contains_key(&facts.id).then(|| facts.variants[solution.variants[operator]].id.as_str())
}

/// The word for a status.
pub(crate) fn status_word(status: Status) -> &'static str {
    match status {
        Status::Optimal => "optimal",
        Status::Feasible => "feasible",
        Status::TimeLimited => "time_limited",
        Status::Infeasible => "infeasible",
    }
}

/// The solver of a planner's programs.
pub(crate) fn engine(outcome: &Outcome) -> Option<&'static str> {
    (outcome.planner == "exact").then_some(if outcome.has_asked_highs { "HiGHS" } else { "microlp" })
}
