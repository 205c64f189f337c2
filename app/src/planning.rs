//! Shared parts of the planning commands: reads files into a problem, and finds planners by name.
use crate::choice::{self, Candidates};
use crate::failure::{Failure, Kind};
use crate::highs;
use crate::listener::Listener;
use crate::machine;
use crate::on_devices;
use crate::preparation::{Scope, check, check_plan, kinds, load};
use crate::sent::Sent;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tidemill_operators::bind::BoundWorkflow;
use tidemill_optimizer::assemble::{Assembly, Inputs, Level, MEASURE, Model, Models, Options, assemble};
use tidemill_optimizer::planner::{PlannerError, SearchLimits, Solver};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics, nearest};
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::plan::Plan;
use tidemill_spec::profile::{Note, Profile, ProfileFile};
use tidemill_spec::units::{Rate, TimeSpan};
use tidemill_spec::variables::environment;
use tidemill_spec::workflow::Workflow;

/// Files and limits of a planning problem.
#[derive(Debug, Clone)]
pub struct PlanningOptions {
    /// Machines, links and prices.
    pub infrastructure: Option<PathBuf>,
    /// Profiles, or folders with a `profile.yaml`; of two figures of the same thing the later counts.
    pub profiles: Vec<PathBuf>,
    /// Service levels and rules that differ from the workflow's.
    pub problem: Options,
    /// Relative gap between the cost of a plan and the bound at which the search ends.
    pub gap: f64,
    /// Time after which the search ends.
    pub time_limit: TimeSpan,
    /// Whether idle time of workers is left to bursts instead of more accurate models.
    pub keep_idle: bool,
    /// Solver of the integer programs.
    pub solver: SolverName,
}

/// A solver of integer programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SolverName {
    /// HiGHS too where its library is found, otherwise the built-in one alone.
    Auto,
    /// The built-in one alone.
    Microlp,
    /// HiGHS, a library that is loaded, for what the built-in one does not settle quickly.
    Highs,
}

/// The files of a planning problem, and what the user decided.
#[derive(Clone)]
pub struct Case {
    /// The workflow.
    pub workflow: Workflow,
    /// Machines, links and prices.
    pub infrastructure: Infrastructure,
    /// All profiles merged.
    pub profile: Profile,
    /// Digests of the profiles, in the order they were given.
    pub digests: Vec<String>,
    /// Models by operator, each with why it cannot run here.
    pub models: Models,
    /// Service levels and rules.
    pub options: Options,
    /// Solver, time limit and gap of the search.
    pub limits: SearchLimits,
    /// The command that measures what the profile lacks.
    pub measuring: String,
}

/// Functions that read the files of a problem.
struct Reading<'a> {
    workflow: &'a dyn Fn(&dyn Listener) -> Result<Workflow, Diagnostics>,
    infrastructure: &'a dyn Fn(&Path) -> Result<Infrastructure, Diagnostics>,
    candidates: &'a dyn Fn(&Workflow) -> Result<Candidates, Diagnostics>,
    bound: &'a dyn Fn(&Workflow) -> Result<BoundWorkflow, Diagnostics>,
}

impl Case {
    /// Reads all files; passes likely mistakes to `listener`.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub fn load(
        workflow_file: &Path,
        asked: &PlanningOptions,
        listener: &dyn Listener,
    ) -> anyhow::Result<Self> {
        let reading = Reading {
            workflow: &|listener| load(workflow_file, &environment, Scope::Files, listener),
            infrastructure: &|file| Infrastructure::load(file),
            candidates: &choice::candidates,
            bound: &|workflow| check(workflow, Scope::Files, |_| {}).map(|(bound, _)| bound),
        };
        Self::read(workflow_file, &reading, asked, listener)
    }

    /// Reads a workflow that another user has sent: opens only its files. Those of `asked` are taken as they are.
    ///
    /// # Errors
    /// Everything that is wrong with them; see [`Sent::load`].
    pub fn load_sent(
        sent: &Sent<'_>,
        asked: &PlanningOptions,
        listener: &dyn Listener,
    ) -> anyhow::Result<Self> {
        let reading = Reading {
            workflow: &|listener| sent.load(listener),
            infrastructure: &|file| sent.infrastructure(file),
            candidates: &|workflow| sent.candidates(workflow),
            bound: &|workflow| sent.bound(workflow),
        };
        Self::read(&sent.file(), &reading, asked, listener)
    }

    fn read(
        workflow_file: &Path,
        reading: &Reading<'_>,
        asked: &PlanningOptions,
        listener: &dyn Listener,
    ) -> anyhow::Result<Self> {
        let workflow = (reading.workflow)(listener)?;
        let infrastructure = match &asked.infrastructure {
            Some(file) => (reading.infrastructure)(file)?,
            None => {
                return Err(Failure::new(Kind::Usage, "no infrastructure")
                    .with_help("give `--infra`")
                    .into());
            }
        };
        let (profile, digests) =
            merged(&asked.profiles, (&workflow, workflow_file), asked.infrastructure.as_deref(), listener)?;
        listener.warnings(&misspelt_types(&infrastructure, &profile));
        let candidates = (reading.candidates)(&workflow)?;
        let models = candidates.into_iter().map(|(operator, list)| {
            let of = workflow.operators.iter().find(|of| of.id == *operator);
            let models = list.into_iter().map(|candidate| Model {
                id: candidate.manifest.id.value.clone(),
                backends: candidate.manifest.backends.iter().map(ToString::to_string).collect(),
                tensors: on_devices::tensors(&workflow, &candidate),
                rows: of.and_then(|of| on_devices::rows(of, &candidate.manifest)),
                obstacle: candidate.obstacle,
            });
            let models = models.collect();
            (operator, models)
        });
        let models = models.collect();
        let mut options = asked.problem.clone();
        // A run reports errors of a source; a plan does not need its files.
        if let Ok(bound) = (reading.bound)(&workflow) {
            let several = bound.sources.iter().filter(|(_, source)| source.at_one_time > 1);
            options.at_one_time.extend(several.map(|(id, source)| (id.clone(), source.at_one_time)));
        }
        let solver = match asked.solver {
            SolverName::Auto => highs::unless_missing(Path::new("."), listener),
            SolverName::Microlp => Solver::Microlp,
            SolverName::Highs => Solver::Highs(highs::open(Path::new("."))?),
        };
        let limits = SearchLimits {
            gap: asked.gap,
            wall_seconds: Some(asked.time_limit.0 as f64 / 1e9),
            solver,
            more_accurate: !asked.keep_idle,
            ..SearchLimits::default()
        };
        let beside = || workflow_file.with_file_name("profile");
        let folder = asked.profiles.first().cloned().unwrap_or_else(beside);
        let measuring = measuring(workflow_file, asked.infrastructure.as_deref(), &folder);
        Ok(Self { workflow, infrastructure, profile, digests, models, options, limits, measuring })
    }

    /// The files for the optimizer.
    pub fn inputs(&self) -> Inputs<'_> {
        Inputs {
            workflow: &self.workflow,
            infrastructure: &self.infrastructure,
            profile: &self.profile,
            models: &self.models,
            kinds: kinds(),
        }
    }

    /// The problem.
    ///
    /// # Errors
    /// `E09xx`: what is missing for any plan.
    pub fn assemble(&self) -> Result<Assembly, Diagnostics> {
        let mut assembly = assemble(&self.inputs(), &self.options)?;
        for note in &mut assembly.notes {
            *note = note.replace(MEASURE, &self.measuring);
        }
        Ok(assembly)
    }

    /// The problem at another rate of the slowest source.
    ///
    /// # Errors
    /// As [`Case::assemble`].
    pub fn assemble_at(&self, rate: f64) -> Result<Assembly, Diagnostics> {
        let mut options = self.options.clone();
        options.rate = Some(Rate(rate));
        options.without.remove(&Level::Rate);
        assemble(&self.inputs(), &options)
    }

    /// Checks a plan against the workflow: as it runs where its models and backends are on this machine, else by their manifests alone.
    /// A plan for other machines needs neither here.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn check(&self, plan: &Plan) -> Result<(), Diagnostics> {
        let scope = if self.runs_here(plan) { Scope::Files } else { Scope::Manifests };
        check_plan(&self.workflow, plan.clone(), scope)
    }

    fn runs_here(&self, plan: &Plan) -> bool {
        let usable = machine::backends(&self.workflow.directory.0);
        let is_usable = |name: &str| usable.iter().any(|(known, usable)| *known == name && *usable);
        plan.stages.iter().all(|stage| {
            if stage.backend.as_deref().is_some_and(|backend| !is_usable(backend)) {
                return false;
            }
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
                Diagnostic::warning("E0312", format!("no profile has the type of worker `{worker_type}`"))
                    .at(worker_type.span.clone())
                    .with_help(format!("did you mean `{meant}`?")),
            );
        }
    }
    found
}

/// Number of notes alike from which they become one line.
const ALIKE: usize = 3;

/// Writes what was noticed while a problem was made of the files; what is said of many things is said once.
pub fn tell(notes: &[String], listener: &dyn Listener) {
    gathered(notes).iter().for_each(|note| listener.note(&format!("note: {note}")));
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
pub fn profile_in(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("profile.yaml") } else { path.to_owned() }
}

/// Reads the profiles of a workflow and merges them; with the digest of each.
///
/// # Errors
/// A profile that is missing, with the command that measures it; mistakes in a profile, or one of another workflow.
pub(crate) fn merged(
    profiles: &[PathBuf],
    (workflow, workflow_file): (&Workflow, &Path),
    infrastructure: Option<&Path>,
    listener: &dyn Listener,
) -> anyhow::Result<(Profile, Vec<String>)> {
    let (mut profile, mut digests) = (Profile::empty(workflow.name.value.clone()), Vec::new());
    for path in profiles {
        let file = profile_file(path, workflow_file, infrastructure)?;
        let read = ProfileFile::load(&file)?;
        let found = read.validate_against(workflow);
        if found.has_errors() {
            return Err(found.into());
        }
        listener.warnings(&found);
        digests.push(read.profile.digest());
        // It was found to be of the same operators, whatever their workflow was called.
        let mut own = read.profile;
        own.workflow.name.clone_from(&workflow.name.value);
        let merged = profile.merge(&own)?;
        for note in merged.notes {
            // A workflow that changed since is reported for each file.
            if let Note::OtherMachine(worker_type) = note {
                listener.warning(&format!(
                    "`{worker_type}` is another machine in {}: the figures of both are merged",
                    file.display()
                ));
            }
        }
        profile = merged.profile;
    }
    Ok((profile, digests))
}

/// Returns the profile, if it is there.
fn profile_file(path: &Path, workflow: &Path, infrastructure: Option<&Path>) -> Result<PathBuf, Failure> {
    let file = profile_in(path);
    if file.exists() {
        return Ok(file);
    }
    let command = measuring(workflow, infrastructure, path);
    Err(Failure::new(Kind::Configuration, format!("there is no profile {}", file.display()))
        .with_help(format!("create one: {command}")))
}

/// The command that measures a profile.
pub(crate) fn measuring(workflow: &Path, infrastructure: Option<&Path>, profile: &Path) -> String {
    let infrastructure = infrastructure.map_or_else(|| "FILE".to_owned(), |file| file.display().to_string());
    let (workflow, profile) = (workflow.display(), profile.display());
    format!("`tidemill profile {workflow} --infra {infrastructure} --out {profile}`")
}

/// Converts the error of a planner, with an exit code.
pub fn failed(error: PlannerError) -> Failure {
    match error {
        PlannerError::Unsupported { .. } => Failure::new(Kind::Usage, error.to_string())
            .with_help("change what the reason names, or try `--planner exact`"),
        PlannerError::Problem(_) => Failure::new(Kind::Configuration, error.to_string()),
        PlannerError::Fault { .. } => Failure::new(Kind::Defect, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_many_is_said_once() {
        let note = |name: &str, said: &str| format!("{name} {said}");
        let said = "has no figures on smal: not planned there";
        let three: Vec<String> = ["a", "b", "c"].map(|name| note(name, said)).to_vec();
        assert_eq!(gathered(&three), three);
        let mut many = vec![note("x", "is left out")];
        many.extend(["a", "b", "c", "d"].map(|name| note(name, said)));
        many.push("alone".to_owned());
        let line = format!("each of a, b and 2 more {said}");
        assert_eq!(gathered(&many), [many[0].clone(), line, "alone".to_owned()]);
    }
}
