//! `tidemill simulate`: simulates a plan over hours of its own time.
mod document;
mod files;
mod progress;
mod table;

use crate::arguments::{ArrivalsChoice, SimulateArguments, SimulationOutput};
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::status_line::StatusLine;
use crate::terminal::Terminal;
use std::io::Write;
use std::path::Path;
use tidemill_app::expectation::simulation_options;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::planning::{Case, tell};
use tidemill_optimizer::assemble::{Assembly, Level};
use tidemill_optimizer::check::{Violation, check};
use tidemill_optimizer::physical::{solution_of, stage_names, worker_names};
use tidemill_optimizer::solution::Solution;
use tidemill_simulator::{
    Arrivals, Ended, Knowledge, Options, Simulation, SimulationError, Spacing, Times, Trace, simulate_watched,
};
use tidemill_spec::plan::{LossError, Plan, PlanFile};
use tidemill_spec::units::TimeSpan;
use tidemill_spec::workflow::LatencySlo;

/// Default simulated seconds.
const DEFAULT_SECONDS: f64 = 600.0;
/// Content of the answer.
struct Story<'a> {
    case: &'a Case,
    assembly: &'a Assembly,
    plan: &'a Plan,
    solution: &'a Solution,
    /// Ids of the workers, as in the solution.
    workers: Vec<String>,
    /// Ids of the stages in the plan, by hosting.
    stages: Vec<Option<String>>,
    arrivals: &'a Arrivals,
    options: &'a Options,
    simulation: &'a Simulation,
    /// Doubts about the results, a line each.
    notes: Vec<String>,
}

/// Executes the verb.
pub(crate) fn simulate(arguments: &SimulateArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let file = PlanFile::load(&arguments.plan)?;
    let mut case = files::case(arguments, &file.plan, terminal)?;
    let found = file.validate_against(&case.workflow);
    if found.has_errors() {
        return Err(found.into());
    }
    let plan = left(&file.plan, &arguments.lose)?;
    case.options.checkpoint_every = Some(plan.checkpoint_every);
    if !arguments.lose.is_empty() {
        case.options.without.insert(Level::Survive); // of the workers that are left no more are lost
    }
    // Figures needed only for latency are left out of a problem without a limit on it; the plan may need them.
    let has_limit = case.options.latency.is_some()
        || (case.workflow.slo.latency.is_some() && !case.options.without.contains(&Level::Latency));
    if !has_limit {
        case.options.without.remove(&Level::Latency);
        case.options.latency = Some(unlimited());
    }
    let mut assembly = case.assemble()?;
    if !has_limit {
        assembly.problem.limits.latency.clear();
    }
    tell(&assembly.notes, terminal);
    let solution = solution_of(&case.inputs(), &assembly, &plan).map_err(|error| {
        Failure::new(Kind::Configuration, format!("the plan is not for these files: {error}"))
            .with_help("give the infrastructure and the profiles of the plan, or plan again")
    })?;
    let arrivals = arrivals(arguments, assembly.rate)?;
    let times = Times::measured(&case.inputs(), &assembly, &solution);
    let trace = arrivals.trace.as_ref();
    let options = Options {
        seconds: arguments.duration.map_or_else(|| trace.map_or(DEFAULT_SECONDS, Trace::seconds), in_seconds),
        seed: arguments.seed,
        ..simulation_options(&case, &assembly, &solution, &plan)
    };
    let interrupt = Interrupt::listen()?;
    interrupt.is_watched();
    let mut line = StatusLine::new(*terminal);
    let watched =
        simulate_watched(&assembly.problem, &solution, &times, &arrivals, &options, &mut |progress| {
            line.show(|elapsed| progress::text(progress, elapsed));
            !interrupt.is_wanted()
        });
    line.finish();
    let simulation = watched.map_err(failed)?;
    let story = Story {
        case: &case,
        assembly: &assembly,
        plan: &plan,
        solution: &solution,
        workers: worker_names(&assembly, &solution),
        stages: stage_names(&assembly, &solution),
        arrivals: &arrivals,
        options: &options,
        simulation: &simulation,
        notes: uncertain(&assembly, &solution, &times),
    };
    let mut out = crate::answer::out();
    match arguments.output {
        SimulationOutput::Table => story.write_table(&mut out)?,
        SimulationOutput::Json => {
            serde_json::to_writer_pretty(&mut out, &story.document())?;
            writeln!(out)?;
        }
        SimulationOutput::Yaml => {
            out.write_all(tidemill_spec::yaml::print(&story.document())?.as_bytes())?;
        }
    }
    out.flush()?;
    Ok(match simulation.ended {
        Ended::Interrupted => Exit::Interrupted,
        _ if story.is_kept() => Exit::Success,
        _ => Exit::No,
    })
}

/// The plan after the loss of workers.
fn left(plan: &Plan, lost: &[String]) -> Result<Plan, Failure> {
    if lost.is_empty() {
        return Ok(plan.clone());
    }
    plan.without(&lost.iter().cloned().collect()).map_err(|error| {
        let names: Vec<&str> = plan.workers.iter().map(|worker| worker.id.as_str()).collect();
        let help = match error {
            LossError::Worker(_) => format!("name workers of the plan: {}", names.join(", ")),
            _ => "name workers that the plan rents; `tidemill plan --slo survive=1` makes plans that continue without one".to_owned(),
        };
        Failure::new(Kind::Usage, format!("without {}: {error}", lost.join(", "))).with_help(help)
    })
}

fn unlimited() -> LatencySlo {
    LatencySlo {
        percentile: tidemill_spec::units::Percentile(99.0).into(),
        below: TimeSpan(u64::MAX / 2).into(),
    }
}

fn in_seconds(span: TimeSpan) -> f64 {
    span.0 as f64 / 1e9
}

fn arrivals(arguments: &SimulateArguments, rate: f64) -> Result<Arrivals, Failure> {
    let trace = arguments.trace.as_deref().map(|file| trace(file, rate)).transpose()?;
    let spacing = match arguments.arrivals {
        ArrivalsChoice::Constant => Spacing::Constant,
        ArrivalsChoice::Poisson => Spacing::Poisson,
    };
    Ok(Arrivals { spacing, trace })
}

/// Reads a trace; `rate` is that of the factor 1.
///
/// # Errors
/// Mistakes in the file.
pub(crate) fn trace(file: &Path, rate: f64) -> Result<Trace, Failure> {
    let wrong = |why: String| Failure::new(Kind::Configuration, format!("{}: {why}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| {
        wrong(error.to_string()).with_help("`scripts/bursty_trace.py > trace.csv` creates one to try")
    })?;
    Trace::parse(&text, rate).map_err(|error| wrong(error.to_string()))
}

/// Converts an error of a simulation to a failure with an exit code.
fn failed(error: SimulationError) -> Failure {
    match error {
        SimulationError::Time => {
            Failure::new(Kind::Usage, error.to_string()).with_help("write `--for 10min`")
        }
        _ => Failure::new(Kind::Configuration, format!("cannot simulate the plan: {error}")),
    }
}

/// Operators whose rows change stages by their group, which no simulation supports, a line each.
fn exchanges(assembly: &Assembly, solution: &Solution) -> Vec<String> {
    let spread = check(&assembly.problem, solution).into_iter().filter_map(|violation| match violation {
        Violation::Spread { operator, .. } => Some(format!(
            "the stages of {operator} share its records by group, not by the simulated route classes: \
             traffic and latencies lack the records that change stages there"
        )),
        _ => None,
    });
    spread.collect()
}

/// Stages with unknown distributions of service times, a line per kind.
fn uncertain(assembly: &Assembly, solution: &Solution, times: &Times) -> Vec<String> {
    let of = |knowledge: Knowledge| {
        let stages = times.knowledge().filter(|(_, known)| *known == knowledge);
        let names = stages.map(|(hosting, _)| {
            let hosting = &solution.hostings[hosting];
            let class = hosting.worker.map(|worker| solution.workers[worker].class);
            let worker_type =
                class.map_or("", |class| assembly.problem.worker_classes[class].worker_type.as_str());
            format!("{} on {worker_type}", assembly.problem.operators[hosting.operator].id)
        });
        let mut names: Vec<String> = names.collect();
        names.sort();
        names.dedup();
        names.join(", ")
    };
    let percentiles = of(Knowledge::Percentiles);
    let means = of(Knowledge::Mean);
    let mut notes = exchanges(assembly, solution);
    if !percentiles.is_empty() {
        notes.push(format!(
            "only percentiles of the service times of {percentiles} are known: between them times are \
             interpolated, above the highest they are unknown, so p99 is too low"
        ));
    }
    if !means.is_empty() {
        notes.push(format!(
            "only the mean service time of {means} is known: all calls take equally long, so waiting and p99 are too low"
        ));
    }
    if !times.knows_engine() {
        let missing = "the profile lacks the engine's own time: latencies do not include it";
        notes.push(missing.to_owned());
    }
    notes
}

impl Story<'_> {
    /// Whether the arrivals keep up with the due records. `None` if the simulation was too short.
    fn is_rate_kept(&self) -> Option<bool> {
        let told = !self.simulation.is_too_short();
        told.then(|| self.simulation.achieved() >= 1.0 - tidemill_app::slo::RATE_TOLERANCE)
    }

    /// Whether all levels are known to be met.
    fn is_kept(&self) -> bool {
        let limits = self.simulation.sinks.iter().flat_map(|sink| &sink.limits);
        self.is_rate_kept() == Some(true) && limits.into_iter().all(|limit| limit.is_kept())
    }

    /// Reason why it ended early, in words.
    fn early_end(&self) -> Option<&'static str> {
        match self.simulation.ended {
            Ended::Complete => None,
            Ended::Interrupted => Some("interrupted"),
            Ended::Events => Some("ended at the limit of events"),
            Ended::Records => Some("ended at the limit of records in flight"),
        }
    }
}
