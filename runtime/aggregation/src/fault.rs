//! Places at which tests end a process.
//!
//! The variable [`VARIABLE`] names a process and a place, as in `a1@copied`. The process with that name ends itself there by SIGKILL, as if
//! the machine had taken it away. Without the variable nothing happens.
use std::sync::OnceLock;

/// Name of the variable.
pub const VARIABLE: &str = "TIDEMILL_AGGREGATION_KILL";

/// The places, in the order of a move.
pub const PLACES: [&str; 11] = [
    "expecting", // master: before the new aggregator makes room
    "expected",  // new: it has made room, and has other tensors of the job
    "migrating", // master: before the old aggregator is asked
    "leaving",   // old: it was asked
    "replied",   // old: the step is done, replies name the new one; the state is not sent yet
    "received",  // new: the state has come; not confirmed yet
    "copied",    // old: the state is confirmed
    "advanced",  // new: its first step is done; not answered yet
    "confirmed", // master: it has seen that step; the map is not written yet
    "written",   // master: the map is written; the old aggregator has its copy still
    "forgotten", // old: it has freed its copy
];

/// Ends this process if the variable says so.
pub(crate) fn reach(process: &str, place: &str) {
    static WANTED: OnceLock<Option<(String, String)>> = OnceLock::new();
    let wanted = WANTED.get_or_init(|| {
        let text = std::env::var(VARIABLE).ok()?;
        text.split_once('@').map(|(process, place)| (process.to_owned(), place.to_owned()))
    });
    if wanted.as_ref().is_some_and(|(name, at)| name == process && at == place) {
        tracing::error!("{process} ends itself at `{place}`, as {VARIABLE} says");
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}
