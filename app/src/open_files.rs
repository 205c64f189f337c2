//! Open files: a run that needs more than the process may open raises the limit, or reports the problem before it starts.
use crate::failure::{Failure, Kind};
use crate::listener::Listener;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeSet;
use tidemill_engine::Program;

/// Open files that every run needs: standard streams, event loops.
const LEAST_BESIDE: u64 = 8;
/// Files that a process has open anyway, including those of libraries.
const FILES_BESIDE: u64 = 24;

/// Approximate number of files that a run opens at once: two per source (it is inspected before it is read), three per
/// sink, one or two per slot and per end of a link.
fn files_needed(program: &Program) -> u64 {
    let slot = |id: &str| {
        let stage = program.plan.stages.iter().find(|stage| stage.id == id);
        stage.map(|stage| (&stage.worker, &stage.slot_group))
    };
    let slots: BTreeSet<_> =
        program.plan.stages.iter().map(|s| (&s.worker, &s.slot_group, s.partitions)).collect();
    let slots: u64 = slots.iter().map(|(.., partitions)| u64::from(*partitions)).sum();
    let links = program.plan.edges.iter().filter(|edge| slot(&edge.from) != slot(&edge.to)).count() as u64;
    FILES_BESIDE + 2 * program.sources.len() as u64 + 3 * program.sinks.len() as u64 + 2 * slots + 4 * links
}

/// Raises the limit of open files to the need of the run, as far as the system allows, and warns if that may be too little.
///
/// # Errors
/// When its sources and sinks alone need more than the system allows.
pub fn reserve(program: &Program, listener: &dyn Listener) -> Result<(), Failure> {
    let limits = getrlimit(Resource::Nofile);
    let sinks: usize = program.sinks.values().map(|sink| sink.files.len()).sum();
    let least = (program.sources.len() + sinks) as u64 + LEAST_BESIDE;
    let most = files_needed(program).max(least);
    if let Some(allowed) = limits.maximum.filter(|allowed| *allowed < least) {
        return Err(too_few(least, allowed, program.sources.len(), sinks));
    }
    if limits.current.is_none_or(|current| current >= most) {
        return Ok(());
    }
    let current = Some(limits.maximum.map_or(most, |maximum| maximum.min(most)));
    // If it is refused, the present limit counts.
    let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum: limits.maximum });
    if let Some(now) = getrlimit(Resource::Nofile).current.filter(|now| *now < most) {
        listener.warning(&format!(
            "this run opens up to about {most} files, but this process may open only {now}: if it fails, \
             run `ulimit -n {most}` first"
        ));
    }
    Ok(())
}

fn too_few(least: u64, allowed: u64, sources: usize, sinks: usize) -> Failure {
    let message = format!(
        "the run needs at least {least} open files ({sources} sources, {sinks} files of sinks, {LEAST_BESIDE} more), but this \
         process may have {allowed}"
    );
    Failure::new(Kind::Unavailable, message).with_help(format!(
        "allow more before the start, such as `ulimit -n {}`; if the system rejects that, ask its \
         administrator to raise the hard limit (`/etc/security/limits.conf`, or `LimitNOFILE=` of a systemd \
         unit)",
        least.next_power_of_two()
    ))
}
