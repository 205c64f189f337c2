//! Runs that no plan needs, because another run of the same model on the same devices in equal batches is no worse: it sends
//! no more bytes, and neither the device nor any stage takes longer or needs more memory. Often rows beat tensors, or the
//! other way around.
use crate::problem::{Problem, Remote, ServiceMode};
use crate::queueing::is_never_longer;
use std::collections::BTreeSet;

/// Positions of the runs of an operator that another run beats; of equal ones the first stays.
pub(super) fn dominated(problem: &Problem, operator: usize, runs: &[(usize, Remote)]) -> BTreeSet<usize> {
    let beats = |a: usize, b: usize| covers(problem, operator, &runs[a], &runs[b]);
    let is_beaten = |run: &usize| {
        (0..runs.len())
            .any(|other| other != *run && beats(other, *run) && (other < *run || !beats(*run, other)))
    };
    (0..runs.len()).filter(is_beaten).collect()
}

/// Whether run `a` can replace run `b` in every plan, at no more cost.
fn covers(problem: &Problem, operator: usize, (variant, a): &(usize, Remote), b: &(usize, Remote)) -> bool {
    let (other, b) = b;
    if (variant, a.class, a.run.batch) != (other, b.class, b.run.batch)
        || a.sent_bytes > b.sent_bytes
        || a.received_bytes > b.received_bytes
        || !is_no_worse(problem, &a.run, &b.run)
    {
        return false;
    }
    let modes = &problem.operators[operator].variants[*variant].modes;
    modes.iter().all(|modes| {
        stages(modes, b).all(|theirs| stages(modes, a).any(|ours| is_no_worse(problem, ours, theirs)))
    })
}

/// The modes of stages that use a run.
fn stages<'a>(modes: &'a [ServiceMode], run: &'a Remote) -> impl Iterator<Item = &'a ServiceMode> {
    modes.iter().filter(move |mode| mode.remote.as_ref() == Some(run))
}

fn is_no_worse(problem: &Problem, a: &ServiceMode, b: &ServiceMode) -> bool {
    let is_quick =
        || a.call_seconds <= b.call_seconds && a.fill_seconds <= b.fill_seconds && is_never_longer(a, b);
    a.seconds_per_record <= b.seconds_per_record
        && a.memory_bytes <= b.memory_bytes
        && (problem.limits.latency.is_empty() || is_quick())
}

#[cfg(test)]
mod tests {
    use super::super::part::Runs;
    use super::*;
    use crate::assemble::tests::kinds;
    use crate::assemble::{Inputs, Model, Models, Options, Rows, TensorBytes, assemble};
    use crate::generator::small_problem_with_devices;
    use crate::problem::Sends;
    use std::path::Path;
    use tidemill_spec::infrastructure::Infrastructure;
    use tidemill_spec::profile::Profile;
    use tidemill_spec::span::Located;
    use tidemill_spec::workflow::Workflow;

    /// A problem with a run of its operator 0 as tensors on some worker, and that run.
    fn with_run() -> (Problem, Remote) {
        let found = (1..200).map(small_problem_with_devices).find_map(|problem| {
            let operator = problem.operators.first().filter(|operator| !operator.weightless)?;
            let modes = operator.variants[0].modes.iter().flatten();
            let run = modes.filter_map(|mode| mode.remote.clone()).next()?;
            Some((problem, run))
        });
        found.expect("one of them")
    }

    /// Adds another form of a run, with the modes of its stages changed.
    fn add(problem: &mut Problem, of: &Remote, run: &Remote, change: impl Fn(&mut ServiceMode)) {
        for modes in &mut problem.operators[0].variants[0].modes {
            let mut added: Vec<ServiceMode> =
                modes.iter().filter(|mode| mode.remote.as_ref() == Some(of)).cloned().collect();
            for mode in &mut added {
                mode.remote = Some(run.clone());
                change(mode);
            }
            modes.extend(added);
        }
    }

    /// VQA with a device, with its level of latency, as if all of its models had these tensors.
    fn vqa(tensors: TensorBytes) -> Problem {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/vqa");
        let loaded = |file: &str| folder.join(file);
        let workflow = Workflow::load(loaded("workflow.yaml")).unwrap_or_else(|found| panic!("{found}"));
        let infrastructure = Infrastructure::load(loaded("with-device.yaml"));
        let infrastructure = infrastructure.unwrap_or_else(|found| panic!("{found}"));
        let profile = Profile::load(loaded("profile.yaml")).unwrap_or_else(|found| panic!("{found}"));
        let model = |path: &Located<String>| {
            let (_, file) = path.value.rsplit_once('/').expect("in a folder");
            Model {
                id: file.trim_end_matches(".yaml").to_owned(),
                backends: Vec::new(),
                tensors: Some(tensors),
                rows: Some(Rows { keeps_all: false }),
                obstacle: path.value.contains("third_party").then(|| "it is not fetched".to_owned()),
            }
        };
        let with_models = workflow.operators.iter().filter(|operator| !operator.variants.is_empty());
        let models: Models = with_models
            .map(|operator| (operator.id.value.clone(), operator.variants.iter().map(model).collect()))
            .collect();
        let inputs = Inputs {
            workflow: &workflow,
            infrastructure: &infrastructure,
            profile: &profile,
            models: &models,
            kinds: kinds(),
        };
        assemble(&inputs, &Options::default()).unwrap_or_else(|found| panic!("{found}")).problem
    }

    /// The device's profile has whole calls, so rows take no longer there: the search is no larger with both forms.
    #[test]
    fn one_form_is_left_of_models_that_a_device_runs_as_quickly_in_both() {
        for (bytes, left) in [(500_000, Sends::Rows), (10, Sends::Tensors)] {
            let problem = vqa(TensorBytes { sent: bytes, received: bytes });
            let operator = problem.operators.iter().position(|of| of.id == "scene_features").expect("one");
            let runs = &Runs::of(&problem).0[operator];
            let beaten = dominated(&problem, operator, runs);
            let of = |sends: Sends| {
                let own = runs.iter().enumerate().filter(|(_, (_, run))| run.sends == sends);
                own.map(|(position, _)| position).partition::<Vec<_>, _>(|position| beaten.contains(position))
            };
            let (rows, tensors) = (of(Sends::Rows), of(Sends::Tensors));
            println!(
                "of rows {} are left and {} not, of tensors {} and {}",
                rows.1.len(),
                rows.0.len(),
                tensors.1.len(),
                tensors.0.len()
            );
            match left {
                Sends::Rows => assert!(tensors.1.is_empty() && !rows.1.is_empty()),
                // The stage has more to do.
                Sends::Tensors => assert!(!tensors.1.is_empty() && !rows.1.is_empty()),
            }
        }
    }

    #[test]
    fn a_run_that_is_worse_in_nothing_beats_another() {
        let (problem, tensors) = with_run();
        let beaten = |rows: &Remote, change: &dyn Fn(&mut ServiceMode)| -> Option<usize> {
            let mut problem = problem.clone();
            add(&mut problem, &tensors, rows, change);
            let runs = [(0, tensors.clone()), (0, rows.clone())];
            dominated(&problem, 0, &runs).pop_first()
        };
        let rows = Remote { sends: Sends::Rows, ..tensors.clone() };
        assert_eq!(beaten(&rows, &|_| {}), Some(1), "of equal ones the first stays");
        let fewer = Remote { sent_bytes: tensors.sent_bytes / 2.0, ..rows.clone() };
        assert_eq!(beaten(&fewer, &|_| {}), Some(0));
        assert_eq!(beaten(&fewer, &|mode| mode.seconds_per_record *= 2.0), None);
        let mut longer = fewer.clone();
        longer.run.seconds_per_record *= 2.0;
        assert_eq!(beaten(&longer, &|_| {}), None);
        let larger = Remote { received_bytes: 2.0 * tensors.received_bytes, ..fewer };
        assert_eq!(beaten(&larger, &|_| {}), None);
    }
}
