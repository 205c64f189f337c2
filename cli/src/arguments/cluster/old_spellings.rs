//! Verbs and options with another name now. They work for one more release, with a note.
use super::ClusterVerb;
use crate::terminal::Terminal;
use tidemill_app::listener::Listener;

/// Notes that a verb or an option was written in its old spelling.
pub(crate) fn note_old_spelling(verb: &ClusterVerb, terminal: &Terminal) {
    match verb {
        ClusterVerb::Replan(arguments) if arguments.apply => note("replan --apply", "change RUN", terminal),
        ClusterVerb::Replan(_) => note("replan", "change RUN --dry-run", terminal),
        ClusterVerb::Drain(arguments) if arguments.end => note("drain --end", "undrain WORKER", terminal),
        _ => {}
    }
}

/// Notes that `plan apply` is an old spelling.
pub(crate) fn note_plan_apply(terminal: &Terminal) {
    note("plan apply", "change RUN", terminal);
}

fn note(old: &str, new: &str, terminal: &Terminal) {
    terminal.note(&format!(
        "`tidemill {old}` is now `tidemill {new}`; the next release removes the old spelling"
    ));
}
