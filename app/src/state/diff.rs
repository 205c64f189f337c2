//! Effects of a changed workflow or plan on the state of its run: parts that continue, restart, or cannot change.
//!
//! A checkpoint is of one epoch. A run that takes the state over starts there: every record before it was processed by the
//! old workflow, every record from there on is processed by the new one, and each is in the outputs once. So changes
//! downstream of a part do not restart it; only its own definition does, and the columns of its input.
//!
//! | part | unchanged | changed |
//! |---|---|---|
//! | source | continues | its rate: continues; anything else: refused, its position would be meaningless |
//! | operator without a state | continues | is replaced from the checkpoint on |
//! | operator with a state | continues with it | other inputs with equal columns: continues with it; else starts empty |
//! | sink | continues | another file: starts there; the same file in another form: refused |
mod operators;
pub(crate) mod sinks;
mod sources;

use crate::state::change::{divided, instance_names, stages};
use crate::state::definition::{Definition, Role};
use crate::state::fields::FieldChange;
use serde::Serialize;
use std::collections::BTreeSet;
use tidemill_engine::{EpochLog, Program};
use tidemill_spec::plan::{Plan, Stage};
use tidemill_state::Manifest;

/// Effect on a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Unchanged.
    GoesOn,
    /// It keeps its state, and is replaced from the checkpoint on.
    Changed,
    /// Its state is dropped.
    BeginsAnew,
    /// It did not exist.
    New,
    /// It no longer exists.
    Gone,
    /// The state cannot be taken over.
    Refused,
}

impl Verdict {
    /// Returns its name.
    pub fn text(self) -> &'static str {
        match self {
            Self::GoesOn => "continues",
            Self::Changed => "changed",
            Self::BeginsAnew => "restarts",
            Self::New => "new",
            Self::Gone => "gone",
            Self::Refused => "refused",
        }
    }
}

/// A part of a workflow, compared with the state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartChange {
    /// Its role.
    pub role: Role,
    /// Its id; for the run as a whole, the setting.
    pub id: String,
    /// Effect on it.
    pub verdict: Verdict,
    /// Differences.
    pub changes: Vec<FieldChange>,
    /// Consequence, or the reason for a refusal with advice.
    pub why: String,
    /// Bytes of its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_bytes: Option<u64>,
}

impl PartChange {
    fn new(role: Role, id: &str, verdict: Verdict, why: impl Into<String>) -> Self {
        Self { role, id: id.to_owned(), verdict, changes: Vec::new(), why: why.into(), state_bytes: None }
    }

    fn with(mut self, changes: Vec<FieldChange>) -> Self {
        self.changes = changes;
        self
    }
}

/// Effects of a workflow and plan on a state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Changes {
    /// The checkpoint to continue from.
    pub checkpoint: u64,
    /// Its epoch.
    pub epoch: u64,
    /// Sources, operators, sinks, and settings of the run.
    pub parts: Vec<PartChange>,
}

impl Changes {
    fn any(&self, verdicts: &[Verdict]) -> bool {
        self.parts.iter().any(|part| verdicts.contains(&part.verdict))
    }

    /// Whether the state cannot be taken over.
    pub fn is_refused(&self) -> bool {
        self.any(&[Verdict::Refused])
    }

    /// Whether the outputs will differ from those of either workflow alone, which a user has to accept.
    pub fn wants_acceptance(&self) -> bool {
        self.any(&[Verdict::Changed, Verdict::BeginsAnew, Verdict::New, Verdict::Gone])
    }

    /// Whether rows from the checkpoint on differ, or are in other epochs.
    pub(crate) fn is_of_rows(&self) -> bool {
        let is_rate = |part: &PartChange| part.changes.iter().any(|change| change.field == "rate");
        self.wants_acceptance() || self.parts.iter().any(is_rate)
    }

    /// Parts with this effect.
    pub fn with(&self, verdict: Verdict) -> impl Iterator<Item = &PartChange> {
        self.parts.iter().filter(move |part| part.verdict == verdict)
    }

    /// Effect on a part.
    pub(crate) fn verdict(&self, role: Role, id: &str) -> Option<Verdict> {
        self.parts.iter().find(|part| part.role == role && part.id == id).map(|part| part.verdict)
    }
}

/// Both sides of the comparison.
struct Case<'a> {
    manifest: &'a Manifest,
    old: &'a Definition,
    new: &'a Definition,
    program: &'a Program,
}

/// Different values of the stages of an operator, as text.
fn of_stages(plan: &Plan, operator: &str, value: impl Fn(&Stage) -> Option<String>) -> Option<String> {
    let values: BTreeSet<String> = stages(plan, operator).filter_map(value).collect();
    let values: Vec<String> = values.into_iter().collect();
    (!values.is_empty()).then(|| values.join(", "))
}

impl Case<'_> {
    /// Differences in the placement or settings of a part's stages in the plan.
    fn plan_changes(&self, id: &str) -> Vec<FieldChange> {
        let mut changes = Vec::new();
        let mut told = |field: &str, value: &dyn Fn(&Stage) -> Option<String>| {
            let [old, new] = [&self.old.plan, &self.new.plan].map(|plan| of_stages(plan, id, value));
            if old != new {
                changes.push(FieldChange { field: field.to_owned(), old, new });
            }
        };
        told("model", &|stage| stage.variant.clone());
        told("backend", &|stage| stage.backend.clone());
        told("worker", &|stage| Some(stage.worker.clone()));
        let [old, new] = [&self.old.plan, &self.new.plan].map(|plan| instance_names(plan, id).len());
        if old != new {
            changes.push(FieldChange::new("copies", old, new));
        }
        changes
    }

    /// Bytes of an operator's state in all stages.
    fn bytes(&self, operator: &str) -> u64 {
        let states = instance_names(&self.old.plan, operator);
        let states = states.iter().filter_map(|name| self.manifest.stages.get(name));
        states.flat_map(|state| &state.objects).map(|object| object.bytes).sum()
    }

    /// A removed part with an equal definition.
    fn renamed_from(&self, role: Role, id: &str) -> Option<&str> {
        let without_id = |written: &serde_json::Value| {
            let mut written = written.clone();
            written.as_object_mut().map(|map| map.remove("id"));
            written
        };
        let new = without_id(&self.new.parts.get(id)?.written);
        let gone = |other: &&str| !self.new.parts.contains_key(*other);
        self.old.of_role(role).filter(gone).find(|other| without_id(&self.old.parts[*other].written) == new)
    }

    /// Whether its keys would be divided differently among stages.
    fn is_divided(&self, id: &str) -> bool {
        divided(&self.old.plan, &self.new.plan, id).is_none()
    }

    /// The log of one stage of a source.
    fn log(&self, source: &str) -> Option<EpochLog> {
        let names = instance_names(&self.old.plan, source);
        let value = names.iter().find_map(|name| self.manifest.sources.get(name))?;
        serde_json::from_value(value.clone()).ok()
    }

    fn run(&self) -> Vec<PartChange> {
        let mut parts = Vec::new();
        let mut refused = |what: &str, changes: Vec<FieldChange>, why: String| {
            parts.push(PartChange::new(Role::Run, what, Verdict::Refused, why).with(changes));
        };
        let (old, new) = (&self.old.plan, &self.new.plan);
        if old.tick != new.tick {
            let why = format!("it decides the number of epochs: write `tick: {}`", old.tick);
            refused("tick", vec![FieldChange::new("tick", old.tick, new.tick)], why);
        }
        if old.checkpoint_every != new.checkpoint_every {
            let (old, new) = (old.checkpoint_every, new.checkpoint_every);
            let why = format!("it decides the number of epochs: write `checkpoint_every: {old}`");
            refused("checkpoint_every", vec![FieldChange::new("checkpoint_every", old, new)], why);
        }
        let groups = self.new.read_together.iter();
        for group in groups.filter(|group| self.manifest.epoch > 0 && !self.old.read_together.contains(group))
        {
            let why = format!(
                "sources {} would now be merged by event time, and were not before: give them a `rate`",
                group.join(" and ")
            );
            refused("sources", Vec::new(), why);
        }
        let (old, new) = (&self.old.dead_letters, &self.new.dead_letters);
        if old != new {
            let change = FieldChange { field: "run.dead_letters".into(), old: old.clone(), new: new.clone() };
            let why = "dead letters of records after the checkpoint go there";
            parts.push(PartChange::new(Role::Run, "dead_letters", Verdict::Changed, why).with(vec![change]));
        }
        let (old, new) = (&self.old.plan.workflow.name, &self.new.plan.workflow.name);
        if old != new {
            let why = "the state is of a workflow of another name";
            let change = FieldChange::new("name", old, new);
            parts.push(PartChange::new(Role::Run, "name", Verdict::Changed, why).with(vec![change]));
        }
        parts
    }
}

/// Compares a run with a state.
pub(crate) fn compare(manifest: &Manifest, old: &Definition, new: &Definition, program: &Program) -> Changes {
    let case = Case { manifest, old, new, program };
    let mut parts = case.sources();
    parts.extend(case.operators());
    parts.extend(case.sinks());
    parts.extend(case.run());
    let mut changes = Changes { checkpoint: manifest.checkpoint, epoch: manifest.epoch, parts };
    if changes.is_of_rows() || changes.is_refused() {
        let ended = match (manifest.complete, manifest.epoch) {
            (true, _) => {
                Some("the run is complete, so the change would have no effect; start from the beginning")
            }
            (false, u64::MAX) => {
                Some("the run has ended and only needs to close its outputs: run the old workflow for that")
            }
            (false, _) => None,
        };
        if let Some(why) = ended {
            changes.parts.push(PartChange::new(Role::Run, "end", Verdict::Refused, why));
        }
        changes.parts.extend(case.sinks_ahead());
    }
    changes
}

#[cfg(test)]
mod tests;
