//! Open files: a run that needs more than the process may have takes what it may, or says so before it starts.
use crate::exit::{Exit, Failure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidemill_engine::Program;

/// Open files of a run beside those of its sources, sinks and edges: standard streams, event loops.
const BESIDE: u64 = 8;
/// Open files of an edge between two slots, at most.
const PER_EDGE: u64 = 6;

/// Raises the limit of open files, as far as the system lets everybody, where the run needs that.
///
/// # Errors
/// When its sources and sinks alone need more.
pub(crate) fn reserve(program: &Program) -> Result<(), Failure> {
    let limits = getrlimit(Resource::Nofile);
    let sinks: usize = program.sinks.values().map(|sink| sink.files.len()).sum();
    let least = (program.sources.len() + sinks) as u64 + BESIDE;
    let most = least + PER_EDGE * program.plan.edges.len() as u64;
    if let Some(allowed) = limits.maximum.filter(|allowed| *allowed < least) {
        return Err(too_few(least, allowed, program.sources.len(), sinks));
    }
    if limits.current.is_some_and(|current| current < most) {
        // Where it is refused, opening a file will say so.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, maximum: limits.maximum });
    }
    Ok(())
}

fn too_few(least: u64, allowed: u64, sources: usize, sinks: usize) -> Failure {
    let message = format!(
        "the run needs at least {least} open files ({sources} sources, {sinks} files of sinks, {BESIDE} more), but this \
         process may have {allowed}"
    );
    Failure::new(Exit::Unavailable, message).with_help(format!(
        "allow more before you start it, such as `ulimit -n {}`; where the system refuses that, its administrator \
         raises the hard limit (`/etc/security/limits.conf`, or `LimitNOFILE=` of a systemd unit)",
        least.next_power_of_two()
    ))
}
