//! The form in which records go to a device that an option chooses: as tensors or as rows.
use super::of;
use crate::by_levels::PROFILE;
use crate::choice::{Candidate, Candidates};
use crate::on_devices;
use tidemill_engine::CPU;
use tidemill_optimizer::assemble::{ROWS_OF_CALL, TensorBytes, row_bytes};
use tidemill_spec::diagnostic::Diagnostic;
use tidemill_spec::plan::{Plan, PlanEdge, Sends, Stage, device_of};
use tidemill_spec::profile::{MessageSize, Profile, ProfileFile};
use tidemill_spec::workflow::{Operator, Workflow};

/// The form of the records of a stage, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) sends: Sends,
    pub(super) why: Why,
}

/// The reason for a form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The option names it.
    Named,
    /// The plan has it, of another device.
    Planned,
    /// Bytes of a record there and back in this form, and in the other one.
    Bytes(u64, u64),
    /// Nothing is known that speaks for rows.
    Default,
}

/// Where forms are looked for.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) workflow: &'a Workflow,
    pub(super) candidates: &'a Candidates,
    /// Sizes of records, where the plan has none.
    pub(super) profile: Option<&'a Profile>,
}

/// The profile beside a workflow, if it is one of it.
pub(super) fn profile_beside(workflow: &Workflow) -> Option<Profile> {
    let read = ProfileFile::load(workflow.directory.0.join(PROFILE)).ok()?;
    (!read.validate_against(workflow).has_errors()).then_some(read.profile)
}

/// Whether something at the device of a stage prepares rows: not the stage itself, and no server of models. A process on the same
/// machine would get them, but has nothing to gain.
fn prepares_rows(plan: &Plan, stage: &Stage) -> bool {
    let device = of(stage);
    let planned = device_of(device).and_then(|id| plan.devices.iter().find(|device| device.id == id));
    let place = planned.and_then(|device| device.address.as_deref()).unwrap_or(device);
    device.starts_with("device:") && !place.starts_with("oip:")
}

impl Known<'_> {
    /// The form of a stage whose device was chosen, and why. `named`: by the option; `before`: that of the stage in the plan.
    ///
    /// # Errors
    /// The named form is none of the device or the model; the reason, and what to write.
    pub(super) fn form(
        &self,
        plan: &Plan,
        stage: &Stage,
        (named, before): (Option<Sends>, Sends),
    ) -> Result<Form, (String, String)> {
        let form = |sends, why| Ok(Form { sends, why });
        let model = self.model(stage);
        let rows = model.and_then(|(operator, candidate)| on_devices::rows(operator, &candidate.manifest));
        let is_possible = prepares_rows(plan, stage) && rows.is_some();
        match named {
            Some(Sends::Rows) => {
                let why = match (of(stage), model) {
                    (CPU, _) => Some(format!("`{}` computes in the process of its stage", stage.operator)),
                    (device, _) if device.starts_with("oip:") => {
                        Some(format!("{device} is a server of models, which takes tensors"))
                    }
                    (_, Some((operator, candidate))) => unprepared_by(operator, candidate),
                    (_, None) => None,
                };
                match why {
                    None => form(Sends::Rows, Why::Named),
                    Some(why) => Err((
                        format!("--device sends rows of `{}`, but {why}", stage.operator),
                        "leave `,sends=rows` out: the stage then prepares the tensors".to_owned(),
                    )),
                }
            }
            Some(Sends::Tensors) => form(Sends::Tensors, Why::Named),
            None if is_possible && before == Sends::Rows => form(Sends::Rows, Why::Planned),
            None => match self.bytes(plan, stage).filter(|_| is_possible) {
                Some([tensors, rows]) if rows < tensors => form(Sends::Rows, Why::Bytes(rows, tensors)),
                Some([tensors, rows]) => form(Sends::Tensors, Why::Bytes(tensors, rows)),
                None => form(Sends::Tensors, Why::Default),
            },
        }
    }

    /// The operator and the model of a stage.
    fn model(&self, stage: &Stage) -> Option<(&Operator, &Candidate)> {
        let operator = self.workflow.operators.iter().find(|operator| operator.id == *stage.operator)?;
        let list = self.candidates.get(&stage.operator)?;
        let candidate = list.iter().find(|candidate| candidate.is_named(stage.variant.as_deref()))?;
        Some((operator, candidate))
    }

    /// Bytes of a record there and back, as tensors and as rows, as plans count them; none where either is not known.
    fn bytes(&self, plan: &Plan, stage: &Stage) -> Option<[u64; 2]> {
        let (operator, candidate) = self.model(stage)?;
        let rows = on_devices::rows(operator, &candidate.manifest)?;
        let TensorBytes { sent, received } = on_devices::tensors(self.workflow, candidate)?;
        let of_plan = |is_it: &dyn Fn(&PlanEdge) -> bool| {
            let edges = plan.edges.iter().filter(|edge| is_it(edge));
            edges.filter_map(|edge| Some(edge.bytes_per_record?.0 as f64)).collect::<Vec<_>>()
        };
        let id = operator.id.as_str();
        let (mut before, mut after) =
            (of_plan(&|edge| edge.to == stage.id), of_plan(&|edge| edge.from == stage.id));
        if before.is_empty() || after.is_empty() {
            let model = candidate.manifest.id.as_str();
            let messages = self.profile.into_iter().flat_map(|profile| &profile.messages);
            let own = messages.filter(|of| of.variants.get(id).is_none_or(|variant| variant == model));
            let own: Vec<_> = own.collect();
            let bytes = |of: &MessageSize| of.bytes_per_record.0 as f64;
            let input = operator.inputs.first()?.from.as_str();
            before = own.iter().copied().filter(|of| of.to == id && of.from == input).map(bytes).collect();
            after = own.iter().copied().filter(|of| of.from == id).map(bytes).collect();
        }
        let of_call = 2.0 * ROWS_OF_CALL / f64::from(stage.max_batch.max(1));
        let rows = row_bytes(&before, &after, rows.keeps_all)?.iter().sum::<f64>() + of_call;
        Some([sent + received, rows.round() as u64])
    }
}

/// Why no device prepares the rows of a model; none: it may.
fn unprepared_by(operator: &Operator, candidate: &Candidate) -> Option<String> {
    let manifest = &candidate.manifest;
    // With files for another back end too, the device may choose one that takes rows.
    if on_devices::rows(operator, manifest).is_some() || !manifest.artifacts.is_empty() {
        return None;
    }
    Some(match manifest.states.is_empty() {
        true => format!("devices prepare no rows of the kind `{}`", operator.kind),
        false => format!("`{}` keeps tensors from record to record", manifest.id),
    })
}

/// The finding for a stage of a plan whose rows no device prepares: it would fail when the model is loaded there.
pub(crate) fn unprepared(workflow: &Workflow, stage: &Stage, candidate: &Candidate) -> Option<Diagnostic> {
    let operator = workflow.operators.iter().find(|operator| operator.id == *stage.operator)?;
    let why = unprepared_by(operator, candidate).filter(|_| !stage.sends.is_tensors())?;
    let text = format!("stage `{}` sends rows, but {why}", stage.id);
    Some(Diagnostic::error("E0420", text).with_help("remove `sends`: the stage then prepares the tensors"))
}
