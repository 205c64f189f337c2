//! Old names of verbs and options. They work for one more release, with a note.
use super::{PlanVerb, Verb};
use crate::terminal::Terminal;
use tidemill_app::listener::Listener;

/// Prints a note if a verb or an option has its old spelling.
pub(crate) fn note_old_spelling(verb: &Verb, terminal: &Terminal) {
    let (old, new) = match verb {
        Verb::Replan(arguments) if arguments.apply => ("replan --apply", "change RUN"),
        Verb::Replan(_) => ("replan", "change RUN --dry-run"),
        Verb::Plan(arguments) if matches!(arguments.verb, Some(PlanVerb::Apply(_))) => {
            ("plan apply", "change RUN")
        }
        Verb::Drain(arguments) if arguments.end => ("drain --end", "undrain WORKER"),
        _ => return,
    };
    terminal.note(&format!(
        "`tidemill {old}` is now `tidemill {new}`; the next release removes the old spelling"
    ));
}
