//! Operators.
use super::{Case, PartChange, Verdict};
use crate::state::definition::{Part, Role};
use crate::state::fields::{FieldChange, differences};
use crate::state::sharing::can_be_shared;

/// Settings that do not change an operator's rows.
const HARMLESS: [&str; 6] = ["on_panic", "batching", "backend", "worker", "copies", "device"];

fn is_harmless(change: &FieldChange) -> bool {
    HARMLESS.iter().any(|field| change.is_in(field))
}

/// Returns the differences of the input columns, input by input.
pub(super) fn columns_changed(old: &Part, new: &Part) -> Vec<FieldChange> {
    let text = |columns: &[String]| format!("{{{}}}", columns.join(", "));
    let pairs = old.columns.iter().zip(&new.columns).enumerate().filter(|(_, (old, new))| old != new);
    pairs
        .map(|(at, (old, new))| {
            FieldChange::new(&format!("columns of input {}", at + 1), text(old), text(new))
        })
        .collect()
}

impl Case<'_> {
    pub(super) fn operators(&self) -> Vec<PartChange> {
        let of_run = self.new.of_role(Role::Operator).map(|id| match self.old.parts.get(id) {
            Some(old) if old.role == Role::Operator => self.operator(id, old, &self.new.parts[id]),
            _ => self.new_operator(id),
        });
        let is_gone = |id: &&str| self.new.parts.get(*id).is_none_or(|part| part.role != Role::Operator);
        let gone = self.old.of_role(Role::Operator).filter(is_gone).map(|id| {
            let (why, bytes) = match self.old.parts[id].keeps {
                true => ("loses its state", Some(self.bytes(id))),
                false => ("its output before the checkpoint stays", None),
            };
            PartChange { state_bytes: bytes, ..PartChange::new(Role::Operator, id, Verdict::Gone, why) }
        });
        of_run.chain(gone).collect()
    }

    fn new_operator(&self, id: &str) -> PartChange {
        let why = match self.renamed_from(Role::Operator, id) {
            Some(other) if self.new.parts[id].keeps => format!(
                "gets the records after the checkpoint. The missing `{other}` has the same definition: with that id it keeps its state"
            ),
            _ => "gets the records after the checkpoint".to_owned(),
        };
        PartChange::new(Role::Operator, id, Verdict::New, why)
    }

    fn operator(&self, id: &str, old: &Part, new: &Part) -> PartChange {
        let part = |verdict, why: &str| PartChange::new(Role::Operator, id, verdict, why);
        let mut changes = differences(&old.written, &new.written);
        let columns = columns_changed(old, new);
        let is_fit = columns.is_empty()
            && old.columns.len() == new.columns.len()
            && changes.iter().all(|change| is_harmless(change) || change.is_in("inputs"));
        changes.extend(columns);
        changes.extend(self.plan_changes(id));
        let is_same = changes.iter().all(is_harmless);
        let told = match (old.keeps && new.keeps, is_same) {
            (_, true) if !new.keeps => part(Verdict::GoesOn, "keeps nothing"),
            (true, _) if is_fit => {
                let is_divided = self.is_divided(id);
                if is_divided && can_be_shared(&self.old.plan, self.program, id) {
                    let why = "keeps its state, which is divided among its stages by its keys";
                    part(if is_same { Verdict::GoesOn } else { Verdict::Changed }, why)
                } else if is_divided {
                    let why = "it keeps a state, but the new plan divides its keys differently among \
                               stages; give it the same number of stages with the same shares";
                    part(Verdict::Refused, why)
                } else if is_same {
                    part(Verdict::GoesOn, "keeps its state")
                } else {
                    part(
                        Verdict::Changed,
                        "keeps its state; records after the checkpoint come from the new input",
                    )
                }
            }
            _ if old.keeps || new.keeps => {
                let why = "loses its state: open windows and pairs get only records after the checkpoint";
                part(Verdict::BeginsAnew, why)
            }
            _ => part(Verdict::Changed, "applies to records after the checkpoint; its earlier output stays"),
        };
        PartChange { changes, state_bytes: old.keeps.then(|| self.bytes(id)), ..told }
    }
}
