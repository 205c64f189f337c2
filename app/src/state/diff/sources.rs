//! Sources.
use super::{Case, PartChange, Verdict};
use crate::figures::grouped;
use crate::state::definition::{Part, Role};
use crate::state::fields::{FieldChange, differences};
use tidemill_spec::units::Rate;

impl Case<'_> {
    pub(super) fn sources(&self) -> Vec<PartChange> {
        let of_run = self.new.of_role(Role::Source).map(|id| match self.old.parts.get(id) {
            Some(old) if old.role == Role::Source => self.source(id, old, &self.new.parts[id]),
            _ => self.new_source(id),
        });
        let is_gone = |id: &&str| self.new.parts.get(*id).is_none_or(|part| part.role != Role::Source);
        let gone = self.old.of_role(Role::Source).filter(is_gone).map(|id| self.gone_source(id));
        of_run.chain(gone).collect()
    }

    /// A source that continues but would get another number, because sources before it come or go.
    fn renumbered(&self, id: &str) -> Option<&str> {
        let behind = |other: &&str| *other > id && self.new.parts.contains_key(*other);
        self.old.of_role(Role::Source).find(behind)
    }

    fn new_source(&self, id: &str) -> PartChange {
        let part = |verdict, why: String| PartChange::new(Role::Source, id, verdict, why);
        if let Some(other) = self.renumbered(id) {
            let why = format!(
                "ids of records (`_id`) contain the number of their source in the order of the ids of \
                 sources: it would get that of `{other}`; give it an id that sorts after the others"
            );
            return part(Verdict::Refused, why);
        }
        let before = self.old.of_role(Role::Source).count();
        if self.new.of_role(Role::Source).position(|other| other == id).is_some_and(|at| at < before) {
            let why = "ids of records (`_id`) contain the number of their source, and it would get that of \
                       a removed source: keep that source, or start from the beginning";
            return part(Verdict::Refused, why.to_owned());
        }
        part(Verdict::New, "is read from its start, after the checkpoint".to_owned())
    }

    fn gone_source(&self, id: &str) -> PartChange {
        if let Some(other) = self.renumbered(id) {
            let why = format!(
                "ids of records (`_id`) contain the number of their source in the order of the ids of \
                 sources: without it `{other}` would get another number; keep it"
            );
            return PartChange::new(Role::Source, id, Verdict::Refused, why);
        }
        let read = self.log(id).map_or(0, |log| log.records_before(self.manifest.epoch));
        let why = format!("is no longer read; {} of its records were", grouped(read));
        PartChange::new(Role::Source, id, Verdict::Gone, why)
    }

    fn source(&self, id: &str, old: &Part, new: &Part) -> PartChange {
        let part = |verdict, why: String| PartChange::new(Role::Source, id, verdict, why);
        let written = differences(&old.written, &new.written);
        // The retention of a stream does not change its records, and the rate is that of the run.
        let (_, written): (Vec<_>, Vec<_>) =
            written.into_iter().partition(|change| change.is_in("journal") || change.is_in("rate"));
        let is_one_class = self.old.plan.classes.len() == 1 && self.new.plan.classes.len() == 1;
        let (key, others): (Vec<_>, Vec<_>) = written.into_iter().partition(|change| change.is_in("key"));
        if !others.is_empty() {
            let why = "its position would mean another place in its input; give it another id to read it \
                       from its start, or start from the beginning";
            return part(Verdict::Refused, why.to_owned()).with(others);
        }
        if !key.is_empty() && !is_one_class {
            let why = "the plan divides the records by it; keep the key, or use a plan with one route class";
            return part(Verdict::Refused, why.to_owned()).with(key);
        }
        let is_journalled = self
            .program
            .sources
            .get(id)
            .is_some_and(|source| source.journal.is_some() && source.stream.is_some());
        let of_workflow = |part: &Part| part.written.get("rate").cloned();
        if is_journalled && (of_workflow(old) != of_workflow(new) || !key.is_empty()) {
            let why = "its journal belongs to the old source; give the rate with `--rate`, or start from the beginning";
            let changes = differences(&old.written, &new.written);
            return part(Verdict::Refused, why.to_owned()).with(changes);
        }
        if self.is_divided(id) {
            let why = "the new plan divides its records differently among stages; give it the same number of stages with the same shares";
            return part(Verdict::Refused, why.to_owned()).with(self.plan_changes(id));
        }
        let mut changes = key;
        changes.extend(self.plan_changes(id));
        let read = self.log(id).map_or(0, |log| log.records_before(self.manifest.epoch));
        let goes_on = format!("continues after record {}", grouped(read));
        if old.rate == new.rate {
            return part(Verdict::GoesOn, goes_on).with(changes);
        }
        let text = |rate: Option<f64>| rate.map_or("max".to_owned(), |rate| Rate(rate).to_string());
        changes.insert(0, FieldChange::new("rate", text(old.rate), text(new.rate)));
        match new.has_event_times {
            true => part(Verdict::GoesOn, format!("{goes_on} at this rate")).with(changes),
            false => {
                let why = format!("{goes_on} at this rate, which also sets the event times of its records");
                part(Verdict::Changed, why).with(changes)
            }
        }
    }
}
