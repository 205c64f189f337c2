//! Files written by people and programs: errors must have a text and a position, values must be printable.
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::manifest::Manifest;
use tidemill_spec::plan::PlanFile;
use tidemill_spec::profile::ProfileFile;
use tidemill_spec::workflow::Workflow;

pub(super) const WORDS: &[&str] = &[
    "version: 1\n",
    "id: ",
    "kind: ",
    "input: ",
    "inputs: ",
    "options: ",
    "sources:\n",
    "operators:\n",
    "sinks:\n",
    "workers:\n",
    "links:\n",
    "tiers:\n",
    "stages:\n",
    "classes:\n",
    "40/s",
    "250ms",
    "0.1 $/GiB",
    "10Mbps",
    "3GiB",
    "p99:",
    "*route",
    ".nan",
];

const WORKFLOW: &str = include_str!("../../../../spec/tests/golden/workflow.yaml");

fn is_taken(read: Result<String, Diagnostics>) -> bool {
    match read {
        Ok(_) => true,
        Err(found) => {
            assert!(found.has_errors(), "refused without an error");
            assert!(!found.render(false).is_empty());
            serde_json::to_string(&found).expect("diagnostics are data");
            false
        }
    }
}

fn with_text(bytes: &[u8], read: impl Fn(&str) -> Result<String, Diagnostics>) -> bool {
    is_taken(read(&String::from_utf8_lossy(bytes)))
}

pub(super) fn workflow(bytes: &[u8]) -> bool {
    with_text(bytes, |text| Workflow::parse(text, "changed").and_then(|workflow| workflow.to_yaml()))
}

pub(super) fn infrastructure(bytes: &[u8]) -> bool {
    let read = |text: &str| {
        Infrastructure::parse(text, "changed").and_then(|infrastructure| infrastructure.to_yaml())
    };
    with_text(bytes, read)
}

pub(super) fn plan(bytes: &[u8]) -> bool {
    with_text(bytes, |text| {
        let file = PlanFile::parse(text, "changed")?;
        file.validate_against(&Workflow::parse(WORKFLOW, "workflow.yaml")?).into_result(())?;
        file.plan.to_yaml()
    })
}

pub(super) fn profile(bytes: &[u8]) -> bool {
    with_text(bytes, |text| {
        let file = ProfileFile::parse(text, "changed")?;
        file.validate_against(&Workflow::parse(WORKFLOW, "workflow.yaml")?).into_result(())?;
        let printed = file.profile.to_yaml()?;
        assert_eq!(ProfileFile::parse(&printed, "printed").map(|again| again.profile), Ok(file.profile));
        Ok(printed)
    })
}

pub(super) fn manifest(bytes: &[u8]) -> bool {
    with_text(bytes, |text| Manifest::parse(text, "changed").and_then(|manifest| manifest.to_yaml()))
}

pub(super) fn workflows() -> Vec<Vec<u8>> {
    vec![WORKFLOW.into(), include_bytes!("../../../../deploy/tests/golden/three-tiers/workflow.yaml").into()]
}

pub(super) fn infrastructures() -> Vec<Vec<u8>> {
    vec![
        include_bytes!("../../../../spec/tests/golden/infrastructure.yaml").into(),
        include_bytes!("../../../../deploy/tests/golden/three-tiers/infrastructure.yaml").into(),
    ]
}

pub(super) fn plans() -> Vec<Vec<u8>> {
    vec![
        include_bytes!("../../../../spec/tests/golden/plan-one-worker.yaml").into(),
        include_bytes!("../../../../spec/tests/golden/plan-two-workers.yaml").into(),
        include_bytes!("../../../../spec/tests/golden/plan-three-tiers.yaml").into(),
    ]
}

pub(super) fn profiles() -> Vec<Vec<u8>> {
    vec![include_bytes!("../../../../spec/tests/golden/profile.yaml").into()]
}

pub(super) fn manifests() -> Vec<Vec<u8>> {
    vec![include_bytes!("../../../../spec/tests/golden/model.yaml").into()]
}
