//! What the verbs that plan have in common: files become a problem, names become planners.
use crate::arguments::{LevelSetting, PlannerChoice, PlanningArguments, ReturnTrafficChoice, SolverChoice};
use crate::choice;
use crate::exit::{Exit, Failure};
use crate::highs;
use crate::preparation::load;
use crate::terminal::Terminal;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tidemill_optimizer::assemble::{Assembly, Inputs, Level, Model, Models, Options, assemble};
use tidemill_optimizer::planner::{Planner, PlannerError, SearchLimits, Solver};
use tidemill_optimizer::planners::beam::Beam;
use tidemill_optimizer::planners::best_fit::BestFit;
use tidemill_optimizer::planners::cloud_only::CloudOnly;
use tidemill_optimizer::planners::edge_only::EdgeOnly;
use tidemill_optimizer::planners::exact::Exact;
use tidemill_optimizer::planners::exhaustive::Exhaustive;
use tidemill_optimizer::planners::first_fit::FirstFit;
use tidemill_optimizer::problem::ReturnTraffic;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics, nearest};
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::profile::{Note, Profile, ProfileFile};
use tidemill_spec::units::Rate;
use tidemill_spec::workflow::Workflow;

/// The files of a planning problem, and what the user decided.
pub(crate) struct Case {
    pub(crate) workflow: Workflow,
    pub(crate) infrastructure: Infrastructure,
    /// All profiles merged.
    pub(crate) profile: Profile,
    /// Digests of the profiles, in the order they were given.
    pub(crate) digests: Vec<String>,
    pub(crate) models: Models,
    pub(crate) options: Options,
    pub(crate) limits: SearchLimits,
}

impl Case {
    /// Reads all files; what is probably not meant so is told on the terminal.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub(crate) fn load(
        workflow_file: &Path,
        arguments: &PlanningArguments,
        terminal: &Terminal,
    ) -> anyhow::Result<Self> {
        let workflow = load(workflow_file, terminal)?;
        let infrastructure = match &arguments.infrastructure {
            Some(file) => Infrastructure::load(file)?,
            None => {
                return Err(Failure::new(Exit::Usage, "no infrastructure")
                    .with_help("give `--infra`")
                    .into());
            }
        };
        let (mut profile, mut digests) = (Profile::empty(workflow.name.value.clone()), Vec::new());
        for path in &arguments.profiles {
            let file = profile_file(path, workflow_file, arguments)?;
            let read = ProfileFile::load(&file)?;
            let found = read.validate_against(&workflow);
            if found.has_errors() {
                return Err(found.into());
            }
            terminal.warnings(&found);
            digests.push(read.profile.digest());
            let merged = profile.merge(&read.profile)?;
            for note in merged.notes {
                // That a workflow changed since is told of each file.
                if let Note::OtherMachine(worker_type) = note {
                    terminal.warning(&format!(
                        "`{worker_type}` is another machine in {}: figures of both are put together",
                        file.display()
                    ));
                }
            }
            profile = merged.profile;
        }
        terminal.warnings(&misspelt_types(&infrastructure, &profile));
        let candidates = choice::candidates(&workflow)?;
        let models = candidates.into_iter().map(|(operator, list)| {
            let models = list.into_iter().map(|candidate| Model {
                id: candidate.manifest.id.value.clone(),
                backends: candidate.manifest.backends.iter().map(ToString::to_string).collect(),
                obstacle: candidate.obstacle,
            });
            (operator, models.collect())
        });
        let models = models.collect();
        let options = options(arguments);
        let solver = match arguments.solver {
            SolverChoice::Microlp => Solver::Microlp,
            SolverChoice::Highs => Solver::Highs(highs::open(Path::new("."))?),
        };
        let limits = SearchLimits {
            gap: arguments.gap,
            wall_seconds: Some(arguments.time_limit.0 as f64 / 1e9),
            solver,
            more_accurate: !arguments.keep_idle,
            ..SearchLimits::default()
        };
        Ok(Self { workflow, infrastructure, profile, digests, models, options, limits })
    }

    /// The files for the optimizer.
    pub(crate) fn inputs(&self) -> Inputs<'_> {
        Inputs {
            workflow: &self.workflow,
            infrastructure: &self.infrastructure,
            profile: &self.profile,
            models: &self.models,
        }
    }

    /// The problem.
    ///
    /// # Errors
    /// `E09xx`: what is missing for any plan.
    pub(crate) fn assemble(&self) -> Result<Assembly, Diagnostics> {
        assemble(&self.inputs(), &self.options)
    }

    /// The problem at another rate of the slowest source.
    ///
    /// # Errors
    /// As [`Case::assemble`].
    pub(crate) fn assemble_at(&self, rate: f64) -> Result<Assembly, Diagnostics> {
        let mut options = self.options.clone();
        options.rate = Some(Rate(rate));
        options.without.remove(&Level::Rate);
        assemble(&self.inputs(), &options)
    }

    /// Whether all models of a plan can run here.
    pub(crate) fn runs_here(&self, plan: &tidemill_spec::plan::Plan) -> bool {
        plan.stages.iter().all(|stage| {
            let models = self.models.get(&stage.operator).into_iter().flatten();
            let chosen = models.filter(|model| Some(&model.id) == stage.variant.as_ref());
            chosen.into_iter().all(|model| model.obstacle.is_none())
        })
    }
}

/// Types of workers that no profile knows, but one with nearly that name: a slip, most likely.
fn misspelt_types(infrastructure: &Infrastructure, profile: &Profile) -> Diagnostics {
    let known: Vec<&str> = profile.machines.iter().map(|machine| machine.worker_type.as_str()).collect();
    let mut told = BTreeSet::new();
    let mut found = Diagnostics::new();
    for worker_type in
        infrastructure.tiers.iter().flat_map(|tier| tier.workers.iter()).map(|w| &w.worker_type)
    {
        if known.contains(&worker_type.as_str()) || !told.insert(worker_type.as_str()) {
            continue;
        }
        if let Some(meant) = nearest(worker_type, known.iter().copied()) {
            found.push(
                Diagnostic::warning("E0312", format!("no profile knows the type of worker `{worker_type}`"))
                    .at(worker_type.span.clone())
                    .with_help(format!("did you mean `{meant}`?")),
            );
        }
    }
    found
}

/// So many notes that say the same of different things are one line.
const ALIKE: usize = 3;

/// Writes what was noticed while a problem was made of the files; what is said of many things is said once.
pub(crate) fn tell(notes: &[String], terminal: &Terminal) {
    gathered(notes).iter().for_each(|note| terminal.note(&format!("note: {note}")));
}

/// `each of a, b and 10 more has no figures on ...` for as many notes, in the place of the first.
fn gathered(notes: &[String]) -> Vec<String> {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for note in notes {
        let (about, said) = note.split_once(' ').unwrap_or((note, ""));
        match groups.iter_mut().find(|(known, _)| *known == said) {
            Some((_, all)) => all.push(about),
            None => groups.push((said, vec![about])),
        }
    }
    let text = |(said, all): (&str, Vec<&str>)| match all.len() {
        count if count > ALIKE => {
            vec![format!("each of {}, {} and {} more {said}", all[0], all[1], count - 2)]
        }
        _ => all.into_iter().map(|about| format!("{about} {said}").trim_end().to_owned()).collect(),
    };
    groups.into_iter().flat_map(text).collect()
}

/// A profile, or the `profile.yaml` of a folder, as `--out` and `--profiles` take it.
pub(crate) fn profile_in(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("profile.yaml") } else { path.to_owned() }
}

/// The same, if it is there.
fn profile_file(path: &Path, workflow: &Path, arguments: &PlanningArguments) -> Result<PathBuf, Failure> {
    let file = profile_in(path);
    if file.exists() {
        return Ok(file);
    }
    let infrastructure = arguments.infrastructure.as_deref().map(|file| file.display().to_string());
    Err(Failure::new(Exit::Configuration, format!("there is no profile {}", file.display())).with_help(
        format!(
            "make one: `tidemill profile {} --infra {} --out {}`",
            workflow.display(),
            infrastructure.unwrap_or_else(|| "FILE".to_owned()),
            path.display()
        ),
    ))
}

fn options(arguments: &PlanningArguments) -> Options {
    let mut options = Options {
        max_utilization: arguments.max_utilization,
        return_traffic: match arguments.return_traffic {
            ReturnTrafficChoice::Forbid => ReturnTraffic::Forbid,
            ReturnTrafficChoice::Priced => ReturnTraffic::Priced,
        },
        one_operator_per_worker: arguments.one_operator_per_worker,
        percentile: arguments.percentile,
        ..Options::default()
    };
    for setting in &arguments.slo {
        let (level, dropped) = match setting {
            LevelSetting::Rate(rate) => {
                options.rate = *rate;
                (Level::Rate, rate.is_none())
            }
            LevelSetting::Accuracy(accuracy) => {
                options.accuracy = *accuracy;
                (Level::Accuracy, accuracy.is_none())
            }
            LevelSetting::Latency(latency) => {
                options.latency.clone_from(latency);
                (Level::Latency, latency.is_none())
            }
        };
        match dropped {
            true => drop(options.without.insert(level)),
            false => drop(options.without.remove(&level)),
        }
    }
    options
}

/// The planner of that name.
///
/// # Errors
/// The one that needs workers that are there already.
pub(crate) fn planner(choice: PlannerChoice) -> Result<Box<dyn Planner>, Failure> {
    Ok(match choice {
        PlannerChoice::Exact => Box::new(Exact),
        PlannerChoice::Beam => Box::new(Beam::default()),
        PlannerChoice::BestFit => Box::new(BestFit),
        PlannerChoice::FirstFit => Box::new(FirstFit),
        PlannerChoice::CloudOnly => Box::new(CloudOnly),
        PlannerChoice::EdgeOnly => Box::new(EdgeOnly),
        PlannerChoice::Exhaustive => Box::new(Exhaustive),
        PlannerChoice::AccuracyScaling => {
            let message = "accuracy-scaling chooses variants for a load that changes, on workers that are there already";
            return Err(Failure::new(Exit::Usage, message)
                .with_help("give the load with `--trace FILE`, and the workers with `--fleet`"));
        }
    })
}

/// What went wrong in a planner, with an exit code.
pub(crate) fn failed(error: PlannerError) -> Failure {
    match error {
        PlannerError::Unsupported { .. } => {
            Failure::new(Exit::Usage, error.to_string()).with_help("`--planner exact` takes every problem")
        }
        PlannerError::Problem(_) => Failure::new(Exit::Configuration, error.to_string()),
        PlannerError::Fault { .. } => Failure::new(Exit::Bug, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_many_is_said_once() {
        let note = |name: &str, said: &str| format!("{name} {said}");
        let said = "has no figures on smal: it is not planned there";
        let three: Vec<String> = ["a", "b", "c"].map(|name| note(name, said)).to_vec();
        assert_eq!(gathered(&three), three);
        let mut many = vec![note("x", "is left out")];
        many.extend(["a", "b", "c", "d"].map(|name| note(name, said)));
        many.push("alone".to_owned());
        let line = format!("each of a, b and 2 more {said}");
        assert_eq!(gathered(&many), [many[0].clone(), line, "alone".to_owned()]);
    }
}
