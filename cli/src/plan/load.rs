//! `tidemill plan --trace`: plans for the levels of a varying load, and when to switch between them.
mod candidates;
mod document;
mod table;

use super::{Answer, Planned, document as plan_document, give_way, table as plan_table};
use crate::arguments::{PlanArguments, PlanOutput, PlannerChoice};
use crate::exit::Exit;
use crate::terminal::Terminal;
use candidates::{Candidate, Candidates};
use std::io::Write;
use std::path::{Path, PathBuf};
use tidemill_app::expectation::{Expectation, FIRST_SEED, expectation};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Listener;
use tidemill_app::output_file::OutputFile;
use tidemill_app::planning::{Case, failed};
use tidemill_optimizer::assemble::Assembly;
use tidemill_optimizer::planner::PlannerError;
use tidemill_optimizer::solution::Outcome;
use tidemill_simulator::{Levels, Price, Schedule, Switching, Trace, cheapest_levels, coarsened, histogram};
use tidemill_spec::plan::PlanFile;

/// Bins of the histogram of a load.
const BINS: usize = 512;
/// Loads for which plans are made; the levels are chosen among them.
const CANDIDATES: usize = 24;

/// Plans for a load, with their figures.
struct LoadPlan<'a> {
    case: &'a Case,
    trace: &'a Trace,
    /// Records per second of the slowest source at the factor 1.
    nominal: f64,
    switching: Switching,
    candidates: &'a Candidates,
    levels: Vec<Level<'a>>,
    schedule: Schedule,
    /// The plan for the peak, all the time.
    fixed: Fixed<'a>,
}

/// A level of the load and its plan.
struct Level<'a> {
    candidate: &'a Candidate,
    planned: Planned,
    /// Its expected behaviour; written into the plan if known.
    expectation: Expectation,
}

/// One plan for all of the load.
struct Fixed<'a> {
    candidate: &'a Candidate,
    /// Cost over the trace, in $.
    cost: f64,
}

/// Totals of a strategy.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Totals {
    /// $ over the trace.
    cost: f64,
    switches_per_day: f64,
    /// Share of the time in which the load exceeds that of the plan in use.
    over_time: f64,
    /// Share of the records in excess of it.
    over_load: f64,
    /// Mean accuracy of the other records, in percent, if known.
    accuracy: Option<f64>,
    /// Share of them with less accuracy than the level, or an unknown one.
    below_level: f64,
}

/// Refuses options that only the other planner supports.
pub(super) fn fits_planner(arguments: &PlanArguments) -> Result<(), Failure> {
    let options = [(arguments.load.fleet.is_some(), "--fleet"), (arguments.load.goal.is_some(), "--goal")];
    match options.into_iter().find(|(is_given, _)| *is_given) {
        Some((_, option)) if arguments.planner != PlannerChoice::AccuracyScaling => {
            Err(Failure::new(Kind::Usage, format!("`{option}` is only for the planner `accuracy-scaling`"))
                .with_help("add `--planner accuracy-scaling`, or leave out the option"))
        }
        _ => Ok(()),
    }
}

/// Plans for the load in a file.
pub(super) fn load(
    arguments: &PlanArguments,
    file: &Path,
    case: &Case,
    assembly: &Assembly,
    terminal: &Terminal,
) -> anyhow::Result<Exit> {
    let nominal = assembly.rate;
    let trace = crate::simulate::trace(file, nominal)?;
    let switching = Switching {
        dwell: arguments.load.dwell.0 as f64 / 1e9,
        reaction: arguments.load.reaction.0 as f64 / 1e9,
    };
    let most = usize::from(arguments.load.levels);
    let bins = coarsened(&histogram(&trace, BINS), CANDIDATES);
    let folder = Folder::new(arguments.out.as_deref(), most)?;
    let made = match arguments.planner {
        PlannerChoice::AccuracyScaling => {
            candidates::on_a_fleet(arguments, case, &trace, nominal, bins, terminal)
        }
        _ => candidates::by_planner(arguments, case, nominal, bins, terminal),
    };
    let candidates = match made.map_err(with_exit_code)? {
        Ok(candidates) => candidates,
        Err(refused) => return without_plan(arguments, case, &refused.assembly, &refused.outcome),
    };
    let prices: Vec<Option<Price>> =
        candidates.all.iter().map(|candidate| candidate.as_ref().map(|candidate| candidate.price)).collect();
    let missed = candidates.missed;
    let chosen = cheapest_levels(&trace, &candidates.bins, &prices, most, switching, missed);
    let Some(Levels { lasts, schedule, .. }) = chosen else {
        return Err(
            Failure::new(Kind::Defect, "the peak of the load has a plan, but there are no levels").into()
        );
    };
    let mut levels = Vec::new();
    for last in lasts {
        let Some(candidate) = &candidates.all[last] else { continue };
        levels.push(level(case, candidate)?);
    }
    let seconds = trace.seconds();
    let all = trace.mean_factor() * seconds;
    let fixed = Fixed { candidate: &candidates.peak, cost: candidates.peak.costs.of(seconds, all) };
    let plan = LoadPlan {
        case,
        trace: &trace,
        nominal,
        switching,
        candidates: &candidates,
        levels,
        schedule,
        fixed,
    };
    for name in folder.write(&plan)? {
        terminal.note(&format!("removed {name}, the plan of an old level"));
    }
    let mut out = crate::answer::out();
    match arguments.output {
        PlanOutput::Table => plan.write_table(file, &mut out)?,
        PlanOutput::Json => {
            serde_json::to_writer_pretty(&mut out, &plan.document(file))?;
            writeln!(out)?;
        }
        PlanOutput::Yaml => {
            out.write_all(tidemill_spec::yaml::print(&plan.document(file))?.as_bytes())?;
        }
    }
    out.flush()?;
    if let Some(path) = &arguments.out {
        terminal.note(&format!("the plans and `schedule.csv` are in {}", path.display()));
    }
    Ok(Exit::Success)
}

/// Adds the exit code to a planner's error.
fn with_exit_code(error: anyhow::Error) -> anyhow::Error {
    match error.downcast::<PlannerError>() {
        Ok(error) => failed(error).into(),
        Err(error) => error,
    }
}

/// Returns the plan of a candidate, ready to run.
fn level<'a>(case: &Case, candidate: &'a Candidate) -> anyhow::Result<Level<'a>> {
    let mut planned = Planned::new(case, &candidate.assembly, &candidate.solution)?;
    let expectation = expectation(case, &candidate.assembly, &planned.solution, &planned.plan, FIRST_SEED);
    expectation.write_into(&mut planned.plan);
    case.check(&planned.plan)?;
    Ok(Level { candidate, planned, expectation })
}

/// Reports a peak without a plan: the necessary relaxations.
fn without_plan(
    arguments: &PlanArguments,
    case: &Case,
    assembly: &Assembly,
    outcome: &Outcome,
) -> anyhow::Result<Exit> {
    let planner = match arguments.planner {
        PlannerChoice::AccuracyScaling => PlannerChoice::Exact,
        other => other,
    };
    let planner = planner.planner()?;
    let give_way = give_way(case, assembly, outcome, planner.as_ref())?;
    let answer = Answer {
        case,
        assembly,
        outcome,
        planned: None,
        expectation: None,
        give_way: give_way.as_ref(),
        what_if: None,
        search: None,
    };
    let mut out = crate::answer::out();
    match arguments.output {
        PlanOutput::Json => {
            serde_json::to_writer_pretty(&mut out, &plan_document::document(&answer))?;
            writeln!(out)?;
        }
        PlanOutput::Table | PlanOutput::Yaml => {
            writeln!(out, "at {}, the rate of a single plan:", plan_table::rate(assembly.rate))?;
            plan_table::write(&answer, &mut out)?;
        }
    }
    out.flush()?;
    Ok(Exit::No)
}

/// Folder for plans, opened before the work starts, so that an unwritable one is noticed early.
struct Folder {
    path: Option<PathBuf>,
    files: Vec<OutputFile>,
    schedule: Option<OutputFile>,
}

/// Name of the plan of a level, from 0.
fn file_name(level: usize) -> String {
    format!("level-{}.yaml", level + 1)
}

impl Folder {
    fn new(path: Option<&Path>, most: usize) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Self { path: None, files: Vec::new(), schedule: None }) };
        if path.is_file() {
            let message = format!("`{}` is a file", path.display());
            return Err(Failure::new(Kind::Usage, message)
                .with_help("`--trace` writes one plan per level: name a folder"));
        }
        let files: Result<Vec<OutputFile>, Failure> =
            (0..most).map(|level| OutputFile::create(&path.join(file_name(level)))).collect();
        let schedule = Some(OutputFile::create(&path.join("schedule.csv"))?);
        Ok(Self { path: Some(path.to_owned()), files: files?, schedule })
    }

    /// Writes a plan for each level, and the schedule; returns the names of removed plans of an earlier load, which could
    /// be mistaken for levels of this one.
    fn write(self, plan: &LoadPlan<'_>) -> anyhow::Result<Vec<String>> {
        for (file, level) in self.files.into_iter().zip(&plan.levels) {
            let text = level.planned.plan.to_yaml()?;
            file.write(|out| out.write_all(text.as_bytes()))?;
        }
        if let Some(file) = self.schedule {
            file.write(|out| {
                writeln!(out, "time,plan,rate")?;
                for spell in &plan.schedule.spells {
                    let rate = plan.levels[spell.level].candidate.top * plan.nominal;
                    writeln!(out, "{:.3}s,{},{rate:.3}/s", spell.begin, file_name(spell.level))?;
                }
                Ok(())
            })?;
        }
        match self.path {
            Some(path) => remove_beyond(&path, plan.levels.len()).map_err(|error| {
                let text =
                    format!("plans of an earlier load in {} cannot be removed: {error}", path.display());
                Failure::new(Kind::Unavailable, text).into()
            }),
            None => Ok(Vec::new()),
        }
    }
}

/// Removes the plans of levels beyond `levels`, and returns their names. A file of such a name that is no plan belongs to
/// the user.
fn remove_beyond(folder: &Path, levels: usize) -> std::io::Result<Vec<String>> {
    let mut removed = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let number = name.strip_prefix("level-").and_then(|rest| rest.strip_suffix(".yaml")?.parse().ok());
        let is_beyond = number.is_some_and(|number: usize| number > levels);
        if is_beyond && PlanFile::load(folder.join(&name)).is_ok() {
            std::fs::remove_file(folder.join(&name))?;
            removed.push(name);
        }
    }
    removed.sort();
    Ok(removed)
}

/// Saved share of the cost of one plan; `None` if that one costs nothing.
fn saved(cost: f64, fixed: f64) -> Option<f64> {
    (fixed > 0.0).then(|| 1.0 - cost / fixed)
}

impl LoadPlan<'_> {
    /// Totals of switching between the plans of the levels.
    fn switched(&self) -> Totals {
        let uses = || self.levels.iter().zip(&self.schedule.levels);
        let cost = uses().map(|(level, of)| level.candidate.costs.of(of.seconds, of.served)).sum();
        let served: f64 = uses().map(|(_, of)| of.served).sum();
        let part = |value: f64| if served > 0.0 { value / served } else { 0.0 };
        let known: Option<f64> =
            uses().map(|(level, of)| level.candidate.accuracy.map(|accuracy| accuracy * of.served)).sum();
        let below: f64 = uses()
            .filter(|(level, _)| self.is_below(level.candidate))
            .map(|(_, of)| of.served)
            .fold(0.0, |sum, served| sum + served);
        Totals {
            cost,
            switches_per_day: self.schedule.switches_per_day(),
            over_time: self.schedule.over_time(),
            over_load: self.schedule.over_load(),
            accuracy: known.map(part),
            below_level: part(below),
        }
    }

    /// Totals of the plan for the peak, all the time.
    fn fixed(&self) -> Totals {
        Totals {
            cost: self.fixed.cost,
            switches_per_day: 0.0,
            over_time: 0.0,
            over_load: 0.0,
            accuracy: self.fixed.candidate.accuracy,
            below_level: if self.is_below(self.fixed.candidate) { 1.0 } else { 0.0 },
        }
    }

    /// Whether a plan is less accurate than the level.
    fn is_below(&self, candidate: &Candidate) -> bool {
        let wanted = candidate.assembly.problem.limits.accuracy;
        wanted.is_some_and(|wanted| candidate.accuracy.is_none_or(|accuracy| accuracy < wanted - 1e-9))
    }

    /// The least load above 0, the mean and the largest, in records per second.
    fn rates(&self) -> (f64, f64, f64) {
        let factors = self.trace.parts().map(|(_, _, factor)| factor);
        let least = factors.fold(f64::INFINITY, f64::min);
        (
            least * self.nominal,
            self.trace.mean_factor() * self.nominal,
            self.trace.largest_factor() * self.nominal,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{remove_beyond, saved};

    #[test]
    fn of_nothing_nothing_is_saved() {
        assert_eq!(saved(3.0, 4.0), Some(0.25));
        assert_eq!((saved(0.0, 0.0), saved(1.0, 0.0)), (None, None));
    }

    #[test]
    fn plans_of_levels_that_there_are_no_more_go() {
        let folder = tempfile::tempdir().unwrap();
        let plan = include_str!("../../../spec/tests/golden/plan-two-workers.yaml");
        for name in ["level-1.yaml", "level-2.yaml", "level-3.yaml", "level-10.yaml", "level-x.yaml"] {
            std::fs::write(folder.path().join(name), plan).unwrap();
        }
        std::fs::write(folder.path().join("level-9.yaml"), "of: somebody\n").unwrap();
        assert_eq!(remove_beyond(folder.path(), 2).unwrap(), ["level-10.yaml", "level-3.yaml"]);
        let mut left: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["level-1.yaml", "level-2.yaml", "level-9.yaml", "level-x.yaml"]);
    }
}
