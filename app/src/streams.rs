//! Sources that read streams of a cluster's machines: required settings in the workflow, since a controller cannot inspect
//! them.
//!
//! The stream is on the worker that reads it, and so is its journal: the role stays on that worker, and a plan that moves
//! the source is refused.
use crate::preparation::Prepared;
use std::path::Path;
use tidemill_engine::Program;
use tidemill_operators::api::{BoundSource, SourcePromise};
use tidemill_spec::plan::Plan;

/// Whether a source is read through a journal, which is on the reading machine.
pub fn is_kept(source: &BoundSource) -> bool {
    source.promise() == SourcePromise::Journalled
}

/// Returns the sources with journals.
pub fn kept(program: &Program) -> impl Iterator<Item = &BoundSource> {
    program.sources.values().filter(|source| is_kept(source))
}

/// Refuses streams that a run of a cluster could not continue, or that only this machine recognises as streams.
///
/// # Errors
/// The problem of a source, and advice.
pub fn check(prepared: &Prepared) -> Result<(), String> {
    let program = &prepared.program;
    for source in program.sources.values() {
        let Some(stream) = &source.stream else { continue };
        let written = prepared.workflow.sources.iter().find(|written| written.id.value == source.id);
        let option = |name: &str| written.and_then(|written| written.options.get(name));
        let begin = format!("source `{}` reads {stream}", source.id);
        if stream == "standard input" {
            return Err(format!(
                "{begin}, and a process of a worker has none: write a named pipe of the worker (`path: /run/events.pipe`, \
                 `stream: forever`), or use the kind `tcp`"
            ));
        }
        if source.journalled.is_some() && source.journal.is_none() {
            return Err(format!(
                "{begin}, which cannot be read again when a process of the run restarts: write `journal: \
                 {{}}` beside its options, and the worker keeps its input until a checkpoint contains it"
            ));
        }
        if let Some(path) = option("path") {
            if option("stream").is_none() {
                return Err(format!(
                    "{begin} on this machine, but the path can be something else on the worker that reads \
                     it: write `stream: until_end` (or `forever`) beside its path"
                ));
            }
            if path.as_str().is_none_or(|path| !Path::new(path).is_absolute()) {
                return Err(format!(
                    "{begin}, whose place on a worker is not known: write its absolute path there"
                ));
            }
        }
        check_worker(source, stream, &program.plan)?;
    }
    Ok(())
}

/// Rejects plans that read a stream on several workers, each with a part of it and a journal of its own.
///
/// # Errors
/// The source, and advice.
pub fn check_workers(program: &Program) -> Result<(), String> {
    let mut of_streams =
        program.sources.values().filter_map(|source| Some((source, source.stream.as_deref()?)));
    of_streams.try_for_each(|(source, stream)| check_worker(source, stream, &program.plan))
}

fn check_worker(source: &BoundSource, stream: &str, plan: &Plan) -> Result<(), String> {
    let mut stages = plan.stages.iter().filter(|stage| stage.operator == source.id);
    let first = stages.next().map(|stage| &stage.worker);
    match (first, stages.find(|stage| Some(&stage.worker) != first)) {
        (Some(first), Some(other)) => Err(format!(
            "source `{}` reads {stream}, which is on one machine, but the plan reads it on `{first}` and \
             `{}`: give the source one stage, or several on one worker",
            source.id, other.worker
        )),
        _ => Ok(()),
    }
}
