//! The hand-written example files are read, printed and read again.
use std::path::PathBuf;
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::manifest::Manifest;
use tidemill_spec::plan::{Plan, PlanFile};
use tidemill_spec::profile::{Profile, ProfileFile};
use tidemill_spec::units::{Bytes, TimeSpan};
use tidemill_spec::workflow::Workflow;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

#[test]
fn workflow() {
    let workflow = Workflow::load(golden("workflow.yaml")).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(workflow.check().len(), 0);
    assert_eq!(workflow.operators[2].inputs[1].from, "recognise_speech");
    assert_eq!(workflow.operators[2].inputs[1].span().line(), Some(24));
    assert_eq!(workflow.resolve("data/images"), golden("data/images"));
    let printed = workflow.to_yaml().expect("prints");
    let again = Workflow::parse(&printed, "printed").unwrap_or_else(|errors| panic!("{printed}\n{errors}"));
    assert_eq!(again, workflow);
    assert_eq!(again.digest(), workflow.digest());
    assert_eq!(workflow.digest().len(), 64);
}

#[test]
fn plans_fit_the_workflow() {
    let workflow = Workflow::load(golden("workflow.yaml")).unwrap_or_else(|errors| panic!("{errors}"));
    for name in ["plan-one-worker.yaml", "plan-two-workers.yaml", "plan-three-tiers.yaml"] {
        let file = PlanFile::load(golden(name)).unwrap_or_else(|errors| panic!("{errors}"));
        let found = file.validate_against(&workflow);
        assert!(found.is_empty(), "{found}");
        assert_eq!(file.plan.validate_against(&workflow).len(), 0);
        let printed = file.plan.to_yaml().expect("prints");
        let again = Plan::parse(&printed, "printed").unwrap_or_else(|errors| panic!("{printed}\n{errors}"));
        assert_eq!(again, file.plan);
    }
}

#[test]
fn defaults_of_plans() {
    let plan = Plan::load(golden("plan-one-worker.yaml")).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!((plan.tick, plan.checkpoint_every, plan.plan_version), (TimeSpan(50_000_000), 20, 1));
    let stage = &plan.stages[0];
    assert_eq!((stage.slot_group.as_str(), stage.partitions, stage.max_batch), ("main", 1, 1));
    assert_eq!((stage.share, stage.byte_budget, stage.batching_budget), (1.0, Bytes(64 << 20), TimeSpan(0)));
}

#[test]
fn infrastructure() {
    let path = golden("infrastructure.yaml");
    let infrastructure = Infrastructure::load(path).unwrap_or_else(|errors| panic!("{errors}"));
    assert!(infrastructure.link("hub", "edge").is_some());
    assert!(infrastructure.link("cloud", "hub").is_none());
    let printed = infrastructure.to_yaml().expect("prints");
    let again = Infrastructure::parse(&printed, "printed").unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(again, infrastructure);
}

#[test]
fn model() {
    let manifest = Manifest::load(golden("model.yaml")).unwrap_or_else(|errors| panic!("{errors}"));
    let printed = manifest.to_yaml().expect("prints");
    let again = Manifest::parse(&printed, "printed").unwrap_or_else(|errors| panic!("{printed}\n{errors}"));
    assert_eq!(again, manifest);
}

#[test]
fn profiles_fit_the_workflow() {
    let workflow = Workflow::load(golden("workflow.yaml")).unwrap_or_else(|errors| panic!("{errors}"));
    let file = ProfileFile::load(golden("profile.yaml")).unwrap_or_else(|errors| panic!("{errors}"));
    let found = file.validate_against(&workflow);
    assert!(found.is_empty(), "{found}");
    let printed = file.profile.to_yaml().expect("prints");
    let again = Profile::parse(&printed, "printed").unwrap_or_else(|errors| panic!("{printed}\n{errors}"));
    assert_eq!(again, file.profile);
    assert_eq!(again.digest(), file.profile.digest());
    assert_eq!(file.profile.merge(&file.profile).map(|merged| merged.profile), Ok(again));
}

#[test]
fn golden_files_start_with_the_schema_line() {
    for entry in std::fs::read_dir(golden("")).expect("the folder exists") {
        let path = entry.expect("the folder can be read").path();
        let text = std::fs::read_to_string(&path).expect("the file can be read");
        assert!(text.starts_with("# yaml-language-server: $schema=../../schemas/"), "{}", path.display());
    }
}

#[test]
fn profiles_of_examples_are_of_their_workflows() {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
    let pairs = [
        ("vqa/profile.yaml", "vqa/workflow.yaml"),
        ("vqa/profile.yaml", "vqa/three-boxes/workflow.yaml"),
        ("aicity/profile.yaml", "aicity/workflow.yaml"),
    ];
    for (profile, workflow) in pairs {
        let of = tidemill_spec::profile::Profile::load(format!("{examples}/{profile}")).unwrap();
        let workflow = tidemill_spec::workflow::Workflow::load(format!("{examples}/{workflow}")).unwrap();
        assert_eq!(of.workflow.digest, Some(workflow.profiled_digest()), "{profile}");
    }
}
