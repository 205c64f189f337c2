//! Ground truth of a sink: the compared columns, and the content of the file.
use crate::api::GroundTruth;
use crate::ground_truth;
use crate::kind::{EndContext, InputPort};
use crate::text_truth::TextTruth;
use crate::track_truth::TrackTruth;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::types::ColumnType;
use tidemill_spec::workflow::{self, Compare, Sink, Workflow};

/// Returns the scoring of a sink's rows. The answers are read only when it is opened.
pub(super) fn bind(
    context: &EndContext<'_>,
    sink: &Sink,
    truth: &workflow::GroundTruth,
    workflow: &Workflow,
    port: &InputPort,
) -> Result<GroundTruth, Diagnostics> {
    let mut errors = Diagnostics::new();
    columns(sink, truth, port, &mut errors);
    let read = match context.opens() {
        true => read_truth(&context.path(&truth.path), truth),
        false => check_options(truth).map(|()| Truth::default()),
    };
    match read {
        Ok(Truth { answers, tracks, texts }) => errors.into_result(GroundTruth {
            key: truth.key.value.clone(),
            prediction: truth.prediction.value.clone(),
            answers: Arc::new(answers),
            once: repeats(workflow, &sink.input.from),
            tracks,
            texts,
        }),
        Err((error, help)) => {
            errors.push(
                Diagnostic::error("E0610", format!("ground truth of `{}`: {error}", sink.id))
                    .at(truth.path.span.clone())
                    .with_help(help),
            );
            Err(errors)
        }
    }
}

/// Checks that the stream has the compared columns.
fn columns(sink: &Sink, truth: &workflow::GroundTruth, port: &InputPort, errors: &mut Diagnostics) {
    let by_characters = truth.compare == Compare::Characters;
    let scored = |t: &ColumnType| match t {
        ColumnType::Text => true,
        ColumnType::Int64 | ColumnType::Bool => !by_characters,
        _ => false,
    };
    let wanted = if by_characters { "text" } else { "text, int64 or bool" };
    for column in [&truth.key, &truth.prediction] {
        if let Err(error) = port.column(&sink.id, 0, column, wanted, scored) {
            errors.push(error);
        }
    }
    if let Some(boxes) = &truth.boxes {
        if let Err(error) = port.column(&sink.id, 0, boxes, "text", |t| *t == ColumnType::Text) {
            errors.push(error);
        }
    } else if port.stream.revised && !by_characters {
        let message = format!("`{}` can retract rows: a judged answer must stay", port.from);
        let help = "judge tracks with `boxes: COLUMN`, texts with `compare: characters`, or another sink";
        errors.push(Diagnostic::error("E0620", message).at(truth.path.span.clone()).with_help(help));
    }
    let is_number = |t: &ColumnType| *t == ColumnType::Int64;
    if let Some(Err(error)) =
        truth.order.as_ref().map(|order| port.column(&sink.id, 0, order, "int64", is_number))
    {
        errors.push(error);
    }
}

/// Answers by key, tracks or texts.
#[derive(Default)]
struct Truth {
    answers: HashMap<String, String>,
    tracks: Option<Arc<TrackTruth>>,
    texts: Option<Arc<TextTruth>>,
}

/// Checks the settings without the file; an error is a message with advice.
fn check_options(truth: &workflow::GroundTruth) -> Result<(), (String, &'static str)> {
    let is_by_characters = truth.compare == Compare::Characters;
    if truth.boxes.is_some() && is_by_characters {
        return Err(("tracks have no characters".into(), "leave out `boxes` or `compare: characters`"));
    }
    if truth.order.is_some() && !is_by_characters {
        return Err(("`order` joins texts".into(), "leave it out, or add `compare: characters`"));
    }
    if truth.boxes.is_none() && truth.truth.is_none() {
        return Err((
            "there is no `truth`".into(),
            "name the column of the file with the right answer: `truth: COLUMN`",
        ));
    }
    Ok(())
}

/// Reads a ground truth; an error is a message with advice.
fn read_truth(
    path: &std::path::Path,
    truth: &workflow::GroundTruth,
) -> Result<Truth, (String, &'static str)> {
    check_options(truth)?;
    let is_by_characters = truth.compare == Compare::Characters;
    match (&truth.boxes, &truth.truth) {
        (Some(boxes), _) => match TrackTruth::load(path, boxes) {
            Ok(tracks) => Ok(Truth { tracks: Some(Arc::new(tracks)), ..Truth::default() }),
            Err(error) => Err((error.to_string(), error.help())),
        },
        (None, Some(column)) => match ground_truth::load(path, &truth.key, column) {
            Ok(answers) if is_by_characters => {
                let order = truth.order.as_ref().map(|order| order.value.as_str());
                match TextTruth::new(&answers, order) {
                    Ok(texts) => Ok(Truth { texts: Some(Arc::new(texts)), ..Truth::default() }),
                    Err(error) => Err((error.to_string(), error.help())),
                }
            }
            Ok(answers) => Ok(Truth { answers, ..Truth::default() }),
            Err(error) => Err((error.to_string(), error.help())),
        },
        (None, None) => Ok(Truth::default()), // refused with the options
    }
}

/// Whether a repeating source sends to `id`, directly or through operators.
fn repeats(workflow: &Workflow, id: &str) -> bool {
    let mut waiting = vec![id];
    let mut seen = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if !seen.insert(id) {
            continue;
        }
        if workflow.sources.iter().any(|source| source.id.value == id && source.repeat) {
            return true;
        }
        let operators = workflow.operators.iter().filter(|operator| operator.id.value == id);
        waiting.extend(operators.flat_map(|o| o.inputs.iter().map(|input| input.from.value.as_str())));
    }
    false
}
