//! Facts of the records that models send to devices, by which plans decide between tensors and rows.
use crate::choice::Candidate;
use crate::preparation::kinds;
use tidemill_inference::{inspect, location, payload};
use tidemill_optimizer::assemble::{Rows, TensorBytes};
use tidemill_spec::manifest::{InputType, Manifest};
use tidemill_spec::workflow::{Operator, Workflow};

/// Bytes of a record's tensors; none where they are not known, where a record takes several calls of the model, or where
/// the model keeps tensors from record to record.
pub(crate) fn tensors(workflow: &Workflow, candidate: &Candidate) -> Option<TensorBytes> {
    let manifest = &candidate.manifest;
    if !manifest.states.is_empty() {
        return None;
    }
    let file = || {
        // Only a file that may be looked at has its bytes counted.
        candidate.bytes?;
        inspect(&location::file(manifest, &workflow.resolve(&candidate.written))).ok()
    };
    let payload = payload::payload(manifest, None, file).ok()?;
    Some(TensorBytes { sent: payload.inputs, received: payload.outputs })
}

/// How a model's rows go to a device; none where they do not: the model keeps tensors from record to record, or a back end
/// of another program may compute it, which takes tensors alone.
pub(crate) fn rows(operator: &Operator, manifest: &Manifest) -> Option<Rows> {
    let are_prepared = kinds().operator_of(operator).device_prepares
        && manifest.states.is_empty()
        && manifest.artifacts.is_empty();
    let keeps = |column: &str| {
        let kept = operator.options.get("keep").and_then(|keep| keep.as_list());
        kept.into_iter().flatten().any(|name| name.as_str() == Some(column))
    };
    // All other columns are kept in any case.
    let is_consumed = |input_type| !matches!(input_type, InputType::Text | InputType::Features);
    let mut consumed = manifest.inputs.iter().filter(|input| is_consumed(input.input_type));
    are_prepared.then(|| Rows { keeps_all: consumed.all(|input| keeps(&input.column)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn examples() -> Workflow {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/aicity/workflow.yaml");
        Workflow::load(file).unwrap_or_else(|found| panic!("{found}"))
    }

    fn candidate(workflow: &Workflow, operator: &Operator) -> Candidate {
        let written = operator.variants[0].value.clone();
        let manifest = Manifest::load(workflow.resolve(&written)).unwrap_or_else(|found| panic!("{found}"));
        Candidate { written, manifest, bytes: None, obstacle: None, absent: false }
    }

    #[test]
    fn columns_that_stay_are_kept() {
        let workflow = examples();
        let of = |id: &str| {
            let operator = workflow.operators.iter().find(|of| of.id == *id).unwrap();
            rows(operator, &candidate(&workflow, operator).manifest)
        };
        assert_eq!(of("detect"), Some(Rows { keeps_all: true }), "keep: [image]");
        assert_eq!(of("appearance"), Some(Rows { keeps_all: false }));
    }

    #[test]
    fn models_of_other_kinds_and_of_other_programs_send_no_rows() {
        let workflow = examples();
        let operator = workflow.operators.iter().find(|of| of.id == *"detect").unwrap();
        let Candidate { manifest, .. } = candidate(&workflow, operator);
        let mut other = operator.clone();
        other.kind.value = "own".to_owned();
        assert_eq!(rows(&other, &manifest), None);
        let torch = serde_json::json!({"file": "detect.pt", "sha256": "a".repeat(64)});
        let mut written = serde_json::to_value(&manifest).unwrap();
        written["artifacts"] = serde_json::json!({"torch": torch});
        let with_artifact: Manifest = serde_json::from_value(written).unwrap();
        assert_eq!(rows(operator, &with_artifact), None);
    }

    #[test]
    fn tensors_are_those_that_travel() {
        let workflow = examples();
        let operator = workflow.operators.iter().find(|of| of.id == *"detect").unwrap();
        let candidate = candidate(&workflow, operator);
        let found = tensors(&workflow, &candidate).unwrap();
        assert_eq!((found.sent, found.received), (3 * 112 * 192, 4 * 336 * 6));
    }
}
