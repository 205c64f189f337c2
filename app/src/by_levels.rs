//! Models of a run without a plan where the most accurate ones do not keep the workflow's rate on this machine: the most
//! accurate combination that does, by the profile beside the workflow.
//!
//! The accuracy of a combination is that of the profile. Accuracy and latency levels do not narrow the choice: the run reports whether
//! it keeps them. `--rate` does not count either, so that a run that continues from a state with another rate has the same models.
use crate::choice::{Candidates, Chosen, Setting};
use crate::listener::Listener;
use crate::machine::{self, Machine};
use crate::preparation::kinds;
use std::collections::BTreeMap;
use tidemill_optimizer::assemble::{Inputs, Level, Model, Models, Options, assemble};
use tidemill_optimizer::planner::{Planner, SearchLimits};
use tidemill_optimizer::planners::accuracy_scaling::AccuracyScaling;
use tidemill_optimizer::problem::Problem;
use tidemill_optimizer::solution::Status;
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::profile::{How, Profile, ProfileFile};
use tidemill_spec::units::Rate;
use tidemill_spec::workflow::Workflow;

/// Name of the profile beside a workflow.
pub(crate) const PROFILE: &str = "profile.yaml";
/// Seconds that the search may take; a workflow with a few models needs hundredths.
const SEARCH_SECONDS: f64 = 5.0;

/// Outcome of the search.
enum Verdict {
    /// The models that were chosen by accuracy keep the rate.
    Kept,
    /// This combination is the most accurate one that keeps it.
    Others(BTreeMap<String, String>),
    /// No combination keeps it.
    None,
    /// The search was ended before it found a combination that keeps it.
    Open,
}

/// Takes other models where those that were chosen by accuracy do not keep the workflow's rate here, and reports it to `listener`.
/// Models that were set stay. What is wrong with the profile is a warning: a run does not need one.
pub(crate) fn choose_by_levels(
    workflow: &Workflow,
    candidates: &Candidates,
    settings: &[Setting],
    chosen: &mut BTreeMap<String, Chosen>,
    listener: &dyn Listener,
) {
    // Looking for backends takes libraries into use, and most runs have nothing to choose.
    if candidates.values().all(|list| list.len() < 2) {
        return;
    }
    let usable = machine::backends(&workflow.directory.0);
    let usable: Vec<&str> = usable.iter().filter(|(_, usable)| *usable).map(|(name, _)| *name).collect();
    choose_with(&usable, (workflow, candidates, settings), chosen, listener);
}

/// Chooses with these backends.
fn choose_with(
    usable_backends: &[&str],
    (workflow, candidates, settings): (&Workflow, &Candidates, &[Setting]),
    chosen: &mut BTreeMap<String, Chosen>,
    listener: &dyn Listener,
) {
    let Some(rate) = wanted_rate(workflow) else { return };
    let is_set = |operator: &str| settings.iter().any(|setting| setting.operator == operator);
    let usable = |operator: &str| {
        let list = candidates.get(operator).into_iter().flatten();
        list.filter(|candidate| candidate.obstacle.is_none()).count()
    };
    if !candidates.keys().any(|operator| !is_set(operator) && usable(operator) > 1) {
        return;
    }
    let file = workflow.directory.0.join(PROFILE);
    if !file.is_file() {
        listener.note(&format!(
            "models are chosen by their accuracy alone: no {PROFILE} beside the workflow shows which of \
             them keep {rate} here (`tidemill profile` creates one)"
        ));
        return;
    }
    let unused = |why: &str| {
        listener.warning(&format!("models are chosen by their accuracy alone: {}: {why}", file.display()));
    };
    let profile = match ProfileFile::load(&file) {
        Ok(read) if !read.validate_against(workflow).has_errors() => read.profile,
        Ok(_) => return unused("it is the profile of another workflow (`tidemill validate` says why)"),
        Err(found) => return unused(&found.to_string()),
    };
    let Some(worker_type) = like_here(&profile, Machine::look().cores) else {
        return unused("it has no machine that was measured");
    };
    match judge(workflow, (candidates, usable_backends), &profile, (worker_type, &is_set), chosen) {
        Err(why) => unused(&why),
        Ok(Verdict::Kept) => {}
        Ok(Verdict::Open) => listener.note(&format!(
            "models are chosen by their accuracy alone: found none within {SEARCH_SECONDS} s that keep \
             {rate} here (`tidemill plan` searches longer)"
        )),
        Ok(Verdict::None) => listener.note(&format!(
            "no models keep {rate} on one machine of type `{worker_type}`, by {PROFILE}: the most accurate ones run (`tidemill plan` \
             spreads the work over several machines)"
        )),
        Ok(Verdict::Others(variants)) => {
            let mut replaced = Vec::new();
            for (operator, variant) in variants {
                let Some(before) = chosen.get_mut(&operator).filter(|before| before.id != variant) else { continue };
                replaced.push(format!("{operator}: {variant} instead of {}", before.id));
                before.why = format!("of the most accurate combination that keeps {rate} here, by {PROFILE}");
                before.id = variant;
            }
            listener.note(&format!(
                "the most accurate models do not keep {rate} on one machine of type `{worker_type}`, by {PROFILE}: {} \
                 (`--set OPERATOR=VARIANT` chooses others)",
                replaced.join(", ")
            ));
        }
    }
}

/// The rate of the slowest source that the workflow wants.
fn wanted_rate(workflow: &Workflow) -> Option<Rate> {
    let own = workflow.sources.iter().filter_map(|source| source.rate.as_ref()).map(|rate| rate.value.0);
    let level = workflow.slo.rate.as_ref().map(|rate| rate.value.0);
    level.or_else(|| own.reduce(f64::min)).map(Rate)
}

/// The type of machine in a profile that is most like this one: measured, not with more processors, of those the one with most.
fn like_here(profile: &Profile, cores: usize) -> Option<&str> {
    let measured = profile.machines.iter().filter(|machine| machine.how == How::Measured);
    let cores_of = |machine: &tidemill_spec::profile::Machine| machine.cores.unwrap_or(1.0);
    let (mut fitting, mut larger): (Vec<_>, Vec<_>) =
        measured.partition(|machine| cores_of(machine) <= cores as f64);
    fitting.sort_by(|a, b| cores_of(a).total_cmp(&cores_of(b)));
    larger.sort_by(|a, b| cores_of(a).total_cmp(&cores_of(b)));
    fitting.last().or(larger.first()).map(|machine| machine.worker_type.as_str())
}

/// Judges the chosen models, and searches others where they do not keep the rate.
fn judge(
    workflow: &Workflow,
    (candidates, usable_backends): (&Candidates, &[&str]),
    profile: &Profile,
    (worker_type, is_set): (&str, &dyn Fn(&str) -> bool),
    chosen: &BTreeMap<String, Chosen>,
) -> Result<Verdict, String> {
    let machine = profile.machines.iter().find(|machine| machine.worker_type == worker_type);
    let cores = machine.and_then(|machine| machine.cores).unwrap_or(1.0);
    let memory =
        machine.and_then(|machine| machine.memory).map_or("1TiB".to_owned(), |memory| memory.to_string());
    let text = format!(
        "version: 1\nname: here\ntiers:\n  - id: here\n    workers: [{{type: {worker_type}, vcpu: {cores}, memory: {memory}, price: 0 $/h}}]\n"
    );
    let infrastructure = Infrastructure::parse(&text, "this machine").map_err(|found| found.to_string())?;
    let problem = |is_free: &dyn Fn(&str) -> bool| {
        let models = models((candidates, usable_backends), chosen, is_free);
        let inputs =
            Inputs { workflow, infrastructure: &infrastructure, profile, models: &models, kinds: kinds() };
        let options = Options { without: [Level::Accuracy, Level::Latency].into(), ..Options::default() };
        assemble(&inputs, &options).map(|assembly| assembly.problem).map_err(|found| found.to_string())
    };
    let limits = SearchLimits { wall_seconds: Some(SEARCH_SECONDS), ..SearchLimits::default() };
    let plan = |problem: &Problem| {
        AccuracyScaling::new(vec![1]).plan(problem, &limits).map_err(|error| error.to_string())
    };
    if plan(&problem(&|_| false)?)?.solution.is_some() {
        return Ok(Verdict::Kept);
    }
    let free = problem(&|operator| !is_set(operator))?;
    let outcome = plan(&free)?;
    let Some(solution) = outcome.solution else {
        return Ok(if outcome.status == Status::Infeasible { Verdict::None } else { Verdict::Open });
    };
    let variants = free.operators.iter().zip(&solution.variants);
    let variants = variants.filter(|(operator, _)| candidates.contains_key(&operator.id));
    Ok(Verdict::Others(
        variants
            .map(|(operator, variant)| (operator.id.clone(), operator.variants[*variant].id.clone()))
            .collect(),
    ))
}

/// The models of the problem, with the backends that are here: all that run here of operators that are free, the chosen ones of the others.
fn models(
    (candidates, usable_backends): (&Candidates, &[&str]),
    chosen: &BTreeMap<String, Chosen>,
    is_free: &dyn Fn(&str) -> bool,
) -> Models {
    let of = |operator: &String| {
        let list = candidates.get(operator).into_iter().flatten().filter(|candidate| {
            let is_chosen = chosen.get(operator).is_some_and(|chosen| candidate.manifest.id == *chosen.id);
            is_chosen || is_free(operator) && candidate.obstacle.is_none()
        });
        list.map(|candidate| Model {
            id: candidate.manifest.id.value.clone(),
            backends: candidate
                .manifest
                .backends
                .iter()
                .map(ToString::to_string)
                .filter(|name| usable_backends.contains(&name.as_str()))
                .collect(),
            obstacle: None,
            // Without an infrastructure there is no device.
            tensors: None,
            rows: None,
        })
        .collect()
    };
    candidates.keys().map(|operator| (operator.clone(), of(operator))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choice::{candidates, choose};
    use std::cell::RefCell;
    use std::path::Path;
    use tidemill_spec::diagnostic::Diagnostics;

    #[derive(Default)]
    struct NoteKeeper(RefCell<Vec<String>>);

    impl Listener for NoteKeeper {
        fn note(&self, text: &str) {
            self.0.borrow_mut().push(text.to_owned());
        }

        fn warning(&self, text: &str) {
            self.0.borrow_mut().push(format!("warning: {text}"));
        }

        fn warnings(&self, _: &Diagnostics) {}
    }

    /// The models of the vehicle example at a rate, and what was said of them.
    fn vehicles(
        rate: Option<f64>,
        set: &[&str],
        change: impl Fn(&mut Workflow),
    ) -> (BTreeMap<String, String>, String) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/aicity/workflow.yaml");
        let mut workflow = Workflow::load(&file).unwrap();
        let candidates = candidates(&workflow).unwrap();
        workflow.slo.rate = rate.map(|rate| Rate(rate).into());
        workflow.sources.iter_mut().for_each(|source| source.rate = rate.map(|rate| Rate(rate).into()));
        change(&mut workflow);
        let settings = set.iter().map(|set| {
            let (operator, variant) = set.split_once('=').unwrap();
            Setting { operator: operator.to_owned(), variant: variant.to_owned() }
        });
        let settings: Vec<Setting> = settings.collect();
        let mut chosen = choose(&workflow, &candidates, &settings).unwrap();
        let heard = NoteKeeper::default();
        choose_with(&["rten", "ort"], (&workflow, &candidates, &settings), &mut chosen, &heard);
        let models = chosen.into_iter().map(|(operator, chosen)| (operator, chosen.id)).collect();
        (models, heard.0.into_inner().join("\n"))
    }

    #[test]
    fn the_rate_decides_how_large_models_are() {
        let largest = |models: &BTreeMap<String, String>| models.values().all(|id| id.ends_with("-huge"));
        let (models, heard) = vehicles(Some(2.0), &[], |_| {});
        assert!(largest(&models) && heard.is_empty(), "{models:?} {heard}");
        let (models, heard) = vehicles(Some(40.0), &[], |_| {});
        assert!(!largest(&models), "{models:?}");
        assert!(
            heard.contains("do not keep 40/s on one machine of type `large`, by profile.yaml"),
            "{heard}"
        );
        assert!(heard.contains(&format!("detect: {} instead of vehicles-huge", models["detect"])), "{heard}");
        let (faster, _) = vehicles(Some(300.0), &[], |_| {});
        assert_ne!(faster, models, "a higher rate needs smaller models");
        let (models, heard) = vehicles(None, &[], |_| {});
        assert!(largest(&models) && heard.is_empty(), "nothing is asked of the rate: {heard}");
    }

    #[test]
    fn what_is_set_stays() {
        let (models, _) = vehicles(Some(40.0), &["appearance=appearance-medium"], |_| {});
        assert_eq!(models["appearance"], "appearance-medium");
        assert_ne!(models["detect"], "vehicles-huge");
        let both = ["appearance=appearance-huge", "detect=vehicles-huge"];
        let (models, heard) = vehicles(Some(40.0), &both, |_| {});
        assert_eq!((models["detect"].as_str(), heard.as_str()), ("vehicles-huge", ""));
    }

    #[test]
    fn why_models_are_chosen_by_accuracy_alone_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let (models, heard) =
            vehicles(Some(40.0), &[], |workflow| workflow.directory.0 = folder.path().to_owned());
        assert_eq!(models["detect"], "vehicles-huge");
        assert!(
            heard.contains("no profile.yaml beside the workflow shows which of them keep 40/s"),
            "{heard}"
        );
        std::fs::write(folder.path().join(PROFILE), "version: 1\n").unwrap();
        let (_, heard) =
            vehicles(Some(40.0), &[], |workflow| workflow.directory.0 = folder.path().to_owned());
        assert!(heard.starts_with("warning: ") && heard.contains("profile.yaml"), "{heard}");
        let (models, heard) = vehicles(Some(1e6), &[], |_| {});
        assert_eq!(models["detect"], "vehicles-huge");
        assert!(heard.contains("no models keep 1000000/s"), "{heard}");
    }

    #[test]
    fn the_machine_that_is_most_like_this_one_counts() {
        let text = "
version: 1
workflow: {name: w}
machines:
  - {worker_type: four, how: measured, cores: 4}
  - {worker_type: two, how: measured, cores: 2}
  - {worker_type: half, how: limited, cores: 0.5}
";
        let profile = Profile::parse(text, "profile.yaml").unwrap();
        let like = |cores| like_here(&profile, cores).unwrap();
        assert_eq!([like(1), like(2), like(3), like(16)], ["two", "two", "two", "four"]);
        assert_eq!(like_here(&Profile::empty("w"), 2), None);
    }
}
