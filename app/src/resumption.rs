//! Checks before a run continues, before any change: whether its state and its sources allow it, and whether limits that ended a former
//! process hold no longer.
use crate::failure::{Failure, Kind};
use crate::inputs::Inputs;
use crate::preparation::Prepared;
use crate::state::place::StatePlace;
use std::collections::BTreeMap;
use tidemill_engine::EpochLog;
use tidemill_operators::api::{BoundSource, SourcePromise};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::span::Span;
use tidemill_spec::workflow::Workflow;
use tidemill_state::{Limits, Manifest, State};

/// Rejects a source that reads only once and has no journal. Creates nothing for such a run. A live source continues with
/// what comes then, which its promise says.
///
/// # Errors
/// A source of the program is one, with its place in the workflow.
pub fn check_sources(
    workflow: &Workflow,
    sources: &BTreeMap<String, BoundSource>,
) -> Result<(), Diagnostics> {
    let lost = |source: &&BoundSource| !source.live && source.promise() == SourcePromise::AtMostOnce;
    let Some(source) = sources.values().find(lost) else { return Ok(()) };
    let what = source.stream.as_deref().unwrap_or("a stream");
    let journal = match source.journalled {
        Some(_) => "give the source a `journal: {}`, which stores its input, ",
        None => "",
    };
    let written = workflow.sources.iter().find(|written| written.id.value == source.id);
    let place = written.map_or_else(Span::nowhere, |source| {
        source.options.get("path").map_or_else(|| source.id.span.clone(), |path| path.span.clone())
    });
    let text = format!(
        "source `{}` reads {what}, which cannot be read again: a run with a state cannot continue with it",
        source.id
    );
    Err(Diagnostic::error("E0614", text)
        .at(place)
        .with_help(format!("{journal}write it to a file first, or run without a state"))
        .into())
}

/// Checks a run that is about to open its state.
pub(crate) fn check_program(prepared: &Prepared) -> Result<(), Failure> {
    check_sources(&prepared.workflow, &prepared.program.sources).map_err(|found| {
        let texts: Vec<&str> = found.iter().map(|finding| finding.message.as_str()).collect();
        let failure = Failure::new(Kind::Configuration, texts.join("; "));
        found.iter().filter_map(|finding| finding.help.clone()).fold(failure, Failure::with_help)
    })
}

/// The checkpoint before a limit ended the run, where more is asked for now.
pub(crate) fn beyond<'a>(state: &'a State, limits: &Limits) -> Option<&'a Manifest> {
    state.manifest()?.stopped_at.filter(|former| limits.go_beyond(former))?;
    before_limit(state)
}

/// The checkpoint before a limit ended the run or a source of it, where there is such a limit.
pub(crate) fn before_limit(state: &State) -> Option<&Manifest> {
    let manifest = state.manifest()?;
    manifest.stopped_at?;
    state.pinned().filter(|pinned| pinned.identity == manifest.identity)
}

/// The epoch logs of a checkpoint, as far as they can be read.
pub(crate) fn logs(manifest: &Manifest) -> BTreeMap<String, EpochLog> {
    let logs = manifest.sources.iter();
    logs.filter_map(|(stage, log)| Some((stage.clone(), serde_json::from_value(log.clone()).ok()?))).collect()
}

/// Returns the inputs of the sources, which must equal those at this checkpoint, and notes for the user.
///
/// # Errors
/// A file was shortened, replaced or edited.
pub(crate) fn inputs(
    place: &StatePlace,
    prepared: &Prepared,
    manifest: Option<&Manifest>,
) -> Result<(Inputs, Vec<String>), Failure> {
    let none = BTreeMap::new();
    let before = manifest.map_or(&none, |manifest| &manifest.inputs);
    let logs = manifest.map(logs).unwrap_or_default();
    let stages = &prepared.program.plan.stages;
    let ended = |source: &str| {
        let mut of_source = stages.iter().filter(|stage| stage.operator == source);
        // One that a limit ended has more to give.
        let has_ended = |end: tidemill_engine::End| !end.limit;
        of_source.any(|stage| logs.get(&stage.id).and_then(|log| log.end).is_some_and(has_ended))
    };
    let advice = format!("name another place for the state, or `tidemill state reset {place}`");
    Inputs::check(&prepared.program, before, ended, &advice)
}

/// Returns the note that a run continues after a limit had ended it.
pub(crate) fn told_beyond(former: &Limits) -> String {
    format!(
        "the run had stopped at {former}: it continues from the checkpoint before that, and truncates its outputs to it"
    )
}
