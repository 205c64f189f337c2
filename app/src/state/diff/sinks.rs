//! Sinks.
use super::operators::columns_changed;
use super::{Case, PartChange, Verdict};
use crate::figures::grouped;
use crate::preparation::kinds;
use crate::state::definition::{Part, Role};
use crate::state::fields::{FieldChange, differences};
use serde_json::Value;
use tidemill_spec::kinds::{Form, SinkFacts};
use tidemill_spec::publication::Publication;

/// Fields outside the options that do not change the file of a sink.
const HARMLESS: [&str; 3] = ["ground_truth", "worker", "copies"];

fn facts(part: &Part) -> SinkFacts {
    kinds().sink(part.written.get("kind").and_then(Value::as_str).unwrap_or_default())
}

/// The file of a sink, as the workflow says it; none: it has no file.
pub(crate) fn path(part: &Part) -> Option<&str> {
    let options = part.written.get("options")?;
    let path = facts(part).writes.iter().find_map(|option| options.get(option)?.as_str())?;
    (path != "-").then_some(path)
}

/// Whether its file is text that can be cut back to a length.
pub(crate) fn is_text(part: &Part) -> bool {
    part.role == Role::Sink && facts(part).form.is_text()
}

/// The columns that it writes.
fn written_columns(part: &Part) -> Vec<&String> {
    let chosen =
        part.written.get("options").and_then(|options| options.get("columns")).and_then(Value::as_array);
    let is_written = |column: &&String| {
        chosen.is_none_or(|chosen| {
            let name = column.split_once(": ").map_or("", |(name, _)| name);
            chosen.iter().any(|one| one.as_str() == Some(name))
        })
    };
    part.columns.iter().flatten().filter(is_written).collect()
}

impl Case<'_> {
    pub(super) fn sinks(&self) -> Vec<PartChange> {
        let of_run = self.new.of_role(Role::Sink).map(|id| match self.old.parts.get(id) {
            Some(old) if old.role == Role::Sink => self.sink(id, old, &self.new.parts[id]),
            _ => self.new_sink(id),
        });
        let is_gone = |id: &&str| self.new.parts.get(*id).is_none_or(|part| part.role != Role::Sink);
        let gone = self.old.of_role(Role::Sink).filter(is_gone).map(|id| self.gone_sink(id));
        of_run.chain(gone).collect()
    }

    fn rows(&self, id: &str) -> u64 {
        self.manifest.sinks.get(id).map_or(0, |sink| sink.rows)
    }

    /// Another sink of the state whose file this is.
    fn owner(&self, id: &str, path: &str) -> Option<&str> {
        self.old
            .of_role(Role::Sink)
            .find(|other| *other != id && self::path(&self.old.parts[*other]) == Some(path))
    }

    /// Returns the reason why the rows of a sink cannot stay where they are without it.
    fn unfinished(&self, id: &str, old: &Part) -> Option<&'static str> {
        let has_token = self.manifest.sinks.get(id).is_some_and(|sink| sink.token.is_some());
        (has_token && !is_text(old)).then_some(match facts(old).publication {
            Publication::AtEnd => {
                "its rows wait in a journal, from which only the sink itself can write its file at the end of the run; keep it"
            }
            _ => "it may have rows of after the checkpoint, which only the sink itself can take back; keep it",
        })
    }

    fn new_sink(&self, id: &str) -> PartChange {
        let part = |verdict, why: String| PartChange::new(Role::Sink, id, verdict, why);
        let path = path(&self.new.parts[id]);
        match path.and_then(|path| self.owner(id, path)) {
            Some(other) => part(
                Verdict::Refused,
                format!(
                    "`{}` is the file of sink `{other}` in the state; keep that id, or name another file",
                    path.unwrap_or("")
                ),
            ),
            None => part(Verdict::New, "gets rows after the checkpoint".to_owned()),
        }
    }

    fn gone_sink(&self, id: &str) -> PartChange {
        if let Some(why) = self.unfinished(id, &self.old.parts[id]) {
            return PartChange::new(Role::Sink, id, Verdict::Refused, why);
        }
        let why = format!("its {} rows before the checkpoint stay", grouped(self.rows(id)));
        PartChange::new(Role::Sink, id, Verdict::Gone, why)
    }

    fn sink(&self, id: &str, old: &Part, new: &Part) -> PartChange {
        let part = |verdict, why: String| PartChange::new(Role::Sink, id, verdict, why);
        let mut changes = differences(&old.written, &new.written);
        let free = facts(new).free.iter().map(|option| format!("options.{option}"));
        let free: Vec<String> = free.chain(HARMLESS.map(str::to_owned)).collect();
        let is_harmless = |change: &FieldChange| free.iter().any(|field| change.is_in(field));
        let is_form = |change: &FieldChange| change.is_in("kind") || change.is_in("options");
        let has_other_form = changes.iter().any(|change| is_form(change) && !is_harmless(change));
        let has_other_columns = written_columns(old) != written_columns(new);
        if has_other_columns {
            changes.extend(columns_changed(old, new));
        }
        changes.extend(self.plan_changes(id));
        let goes_on = || format!("continues after {} rows", grouped(self.rows(id)));
        let is_file = path(old).is_some();
        let has_other_path = path(old) != path(new);
        let other_file = path(new).and_then(|path| self.owner(id, path));
        let message = if has_other_path && let Some(other) = other_file {
            part(
                Verdict::Refused,
                format!("that is the file of sink `{other}` in the state; name another one"),
            )
        } else if has_other_path && is_file {
            match self.unfinished(id, old) {
                Some(why) => part(Verdict::Refused, why.to_owned()),
                None => part(
                    Verdict::BeginsAnew,
                    format!(
                        "rows after the checkpoint go to the new file; the {} earlier ones stay in the old file",
                        grouped(self.rows(id))
                    ),
                ),
            }
        } else if is_file && has_other_form {
            part(Verdict::Refused, "its file has rows in another format; name another file".to_owned())
        } else if is_file && has_other_columns && facts(new).form != Form::JsonLines {
            part(Verdict::Refused, "its file has rows with other columns; name another file".to_owned())
        } else if changes.iter().all(is_harmless) {
            part(Verdict::GoesOn, goes_on())
        } else {
            part(Verdict::Changed, goes_on())
        };
        message.with(changes)
    }

    /// Sinks that have rows of after the checkpoint which they cannot take back: of versions that noted only what a sink has.
    pub(super) fn sinks_ahead(&self) -> Vec<PartChange> {
        let is_ahead = |id: &&String| {
            let sink = &self.manifest.sinks[*id];
            sink.token.is_some() && sink.committed > self.manifest.epoch
        };
        let ahead = self.manifest.sinks.keys().filter(is_ahead);
        let why = "has rows after the checkpoint, which an older version wrote: run the old workflow \
                   briefly, and stop it with Ctrl-C";
        ahead.map(|id| PartChange::new(Role::Sink, id, Verdict::Refused, why)).collect()
    }
}
