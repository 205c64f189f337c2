//! Ground truth of a sink: the compared columns, and the content of the file.
use crate::api::GroundTruth;
use crate::ground_truth;
use crate::kind::{EndContext, InputPort};
use crate::measures::Measure;
use crate::measures::boxes::BoxTruth;
use crate::text_truth::{TextTruth, Unit};
use crate::track_truth::TrackTruth;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::types::{ColumnType, ElementType};
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
        Ok(Truth { answers, tracks, texts, measure }) => errors.into_result(GroundTruth {
            key: truth.key.value.clone(),
            prediction: truth.prediction.value.clone(),
            answers: Arc::new(answers),
            once: repeats(workflow, &sink.input.from),
            tracks,
            texts,
            measure,
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
    let is_text = matches!(truth.compare, Compare::Characters | Compare::Words);
    let is_answer = |t: &ColumnType| matches!(t, ColumnType::Text | ColumnType::Int64 | ColumnType::Bool);
    let is_key = |t: &ColumnType| if is_text { *t == ColumnType::Text } else { is_answer(t) };
    let is_prediction = |t: &ColumnType| match (truth.compare, &truth.top_k) {
        (Compare::Equal, Some(k)) => match t {
            ColumnType::Tensor { element, shape } => {
                (*element == ElementType::Text || element.is_integer())
                    && matches!(shape.as_slice(), [length] if *length as u64 >= k.value)
            }
            _ => false,
        },
        (Compare::Equal | Compare::Classes, _) => is_answer(t),
        (Compare::Characters | Compare::Words, _) => *t == ColumnType::Text,
        (Compare::AbsoluteError | Compare::Auc, _) => matches!(t, ColumnType::Int64 | ColumnType::Float64),
        (Compare::AveragePrecision, _) => match t {
            ColumnType::Tensor { element, shape } => element.is_float() && matches!(shape.as_slice(), [_, 6]),
            _ => false,
        },
    };
    let wanted = match (truth.compare, &truth.top_k) {
        (Compare::Equal, Some(k)) => {
            format!("a tensor of text or whole numbers with one dimension of {} or more", k.value)
        }
        (Compare::Equal | Compare::Classes, _) => "text, int64 or bool".to_owned(),
        (Compare::Characters | Compare::Words, _) => "text".to_owned(),
        (Compare::AbsoluteError | Compare::Auc, _) => "int64 or float64".to_owned(),
        (Compare::AveragePrecision, _) => "a tensor of floats `[most, 6]`".to_owned(),
    };
    let key_wanted = if is_text { "text" } else { "text, int64 or bool" };
    for found in [
        port.column(&sink.id, 0, &truth.key, key_wanted, is_key),
        port.column(&sink.id, 0, &truth.prediction, &wanted, is_prediction),
    ] {
        if let Err(error) = found {
            errors.push(error);
        }
    }
    if let Some(boxes) = &truth.boxes {
        if let Err(error) = port.column(&sink.id, 0, boxes, "text", |t| *t == ColumnType::Text) {
            errors.push(error);
        }
    } else if port.stream.revised && !is_text {
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
    measure: Measure,
}

/// Checks the settings without the file; an error is a message with advice.
fn check_options(truth: &workflow::GroundTruth) -> Result<(), (String, &'static str)> {
    let is_text = matches!(truth.compare, Compare::Characters | Compare::Words);
    if truth.boxes.is_some() && truth.compare != Compare::Equal {
        let message = match is_text {
            true => "tracks have no characters and words",
            false => "tracks have a measure of their own",
        };
        return Err((message.into(), "leave out `boxes` or `compare`"));
    }
    if truth.order.is_some() && !is_text {
        return Err(("`order` joins texts".into(), "leave it out, or add `compare: characters` or `words`"));
    }
    if let Some(k) = &truth.top_k {
        if truth.boxes.is_some() || truth.compare != Compare::Equal {
            return Err(("`top_k` compares answers".into(), "leave out `top_k`, or `compare` and `boxes`"));
        }
        if k.value == 0 {
            return Err((
                "`top_k` is 0".into(),
                "write the number of answers that count, such as `top_k: 5`",
            ));
        }
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
    let Some(column) = &truth.truth else {
        // Without `boxes` it was refused with the options.
        let Some(boxes) = &truth.boxes else { return Ok(Truth::default()) };
        return tracks(path, boxes);
    };
    if let Some(boxes) = &truth.boxes {
        return tracks(path, boxes);
    }
    let failed = |error: ground_truth::GroundTruthError| (error.to_string(), error.help());
    if truth.compare == Compare::AveragePrecision {
        if !path.extension().is_some_and(|ending| ending == "jsonl" || ending == "ndjson") {
            let help =
                "boxes are a .jsonl file: `{\"key\": \"a\", \"boxes\": [[left, top, width, height, class]]}`";
            return Err((format!("`{}` is not a .jsonl file", path.display()), help));
        }
        let boxes = BoxTruth::load(path, &truth.key, column).map_err(failed)?;
        return Ok(Truth { measure: Measure::Boxes(Arc::new(boxes)), ..Truth::default() });
    }
    let answers = ground_truth::load(path, &truth.key, column).map_err(failed)?;
    let text = |unit| {
        let order = truth.order.as_ref().map(|order| order.value.as_str());
        match TextTruth::new(&answers, order, unit) {
            Ok(texts) => Ok(Truth { texts: Some(Arc::new(texts)), ..Truth::default() }),
            Err(error) => Err((error.to_string(), error.help())),
        }
    };
    let measure = match truth.compare {
        Compare::Characters => return text(Unit::Characters),
        Compare::Words => return text(Unit::Words),
        Compare::Equal => truth.top_k.as_ref().map_or(Measure::Equal, |k| Measure::Leading(k.value as usize)),
        Compare::Classes => Measure::Classes,
        Compare::AbsoluteError => {
            let is_number = |answer: &str| answer.trim().parse::<f64>().is_ok_and(f64::is_finite);
            fitting(path, &answers, "a number", is_number)?;
            Measure::Numbers
        }
        Compare::Auc => {
            fitting(path, &answers, "true or false", |answer| ground_truth::is_true(answer).is_some())?;
            Measure::Ranks
        }
        Compare::AveragePrecision => Measure::Equal, // read above
    };
    Ok(Truth { answers, measure, ..Truth::default() })
}

fn tracks(path: &std::path::Path, boxes: &str) -> Result<Truth, (String, &'static str)> {
    match TrackTruth::load(path, boxes) {
        Ok(tracks) => Ok(Truth { tracks: Some(Arc::new(tracks)), ..Truth::default() }),
        Err(error) => Err((error.to_string(), error.help())),
    }
}

/// Refuses answers that a measure cannot use; of several the one with the first key.
fn fitting(
    path: &std::path::Path,
    answers: &HashMap<String, String>,
    wanted: &str,
    fits: impl Fn(&str) -> bool,
) -> Result<(), (String, &'static str)> {
    let wrong = answers.iter().filter(|(_, answer)| !fits(answer)).min();
    let Some((key, answer)) = wrong else { return Ok(()) };
    let message = format!("`{}`: the answer `{answer}` of key `{key}` is not {wanted}", path.display());
    Err((message, "correct the answer, or name another column with `truth`"))
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
