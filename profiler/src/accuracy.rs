//! Accuracy of the whole workflow with every choice of models, scored as in the engine's sinks.
use crate::error::ProfileError;
use crate::flow::Flow;
use crate::statistics::wilson_percent_of;
use crate::subject::{Choice, Model, Subject};
use std::collections::BTreeMap;
use tidemill_operators::api::{BoundSink, GroundTruth};
use tidemill_operators::ground_truth::Score;
use tidemill_operators::measures::Measure;
use tidemill_spec::profile::{Accuracy, AccuracyRow, ModelMetric, ResponseRow};
use tidemill_spec::units::Percent;

/// Scores all `choices` and calls `each` after each of them. `None` if no sink has ground truth and no model a metric.
///
/// # Errors
/// An operator fails; [`ProfileError::Interrupted`].
pub fn measure(
    subject: &Subject,
    flow: &mut Flow<'_>,
    choices: &[Choice],
    each: &mut dyn FnMut(),
) -> Result<Option<Accuracy>, ProfileError> {
    let models = metrics(subject);
    // An absolute error is no share, by which plans could be compared.
    let has_accuracy =
        |sink: &&BoundSink| sink.ground_truth.as_ref().is_some_and(|truth| truth.measure != Measure::Numbers);
    let scored = flow.bound().sinks.values().find(has_accuracy).cloned();
    let Some(sink) = scored else {
        let empty = Accuracy {
            metric: METRIC.to_owned(),
            sink: None,
            samples: None,
            scored_on: None,
            end_to_end: Vec::new(),
            response: Vec::new(),
            models,
        };
        return Ok((!empty.models.is_empty()).then_some(empty));
    };
    let metric = sink.ground_truth.as_ref().map_or(METRIC, GroundTruth::accuracy_name);
    let mut rows = Vec::new();
    for choice in choices {
        let (mut score, none) = (Score::default(), Score::default());
        for batch in flow.inputs(&sink.id, choice)? {
            let Some(truth) = &sink.ground_truth else { continue };
            score.judge(truth, &batch, &none);
        }
        score.settle();
        let percent = score.percent();
        each();
        // An operator that is not upstream of the sink does not affect it.
        let variants = subject.relevant(&sink.id, choice);
        if let Some(percent) = percent
            && !rows.iter().any(|row: &AccuracyRow| row.variants == variants)
        {
            rows.push(row_of(variants, percent, &score));
        }
    }
    let samples = rows.iter().filter_map(|row| row.samples).max();
    Ok(Some(Accuracy {
        metric: metric.to_owned(),
        sink: Some(sink.id.clone()),
        samples,
        scored_on: None,
        response: responses(subject, &sink.id, &rows),
        end_to_end: rows,
        models,
    }))
}

const METRIC: &str = "share of answers that equal the truth";

fn row_of(variants: Choice, percent: f64, score: &Score) -> AccuracyRow {
    let (all, independent) = (score.scored, score.independent);
    let short = |percent: f64| Percent((percent * 100.0).round() / 100.0);
    let accuracy = short(percent);
    if independent == 0 {
        return AccuracyRow { variants, accuracy, interval: None, samples: None };
    }
    let (low, high) = wilson_percent_of(score.correct, all, independent).unwrap_or_default();
    // Rounding must not push the value out of its interval.
    let interval = (Percent(short(low).0.min(accuracy.0)), Percent(short(high).0.max(accuracy.0)));
    AccuracyRow { variants, accuracy, interval: Some(interval), samples: Some(all.min(independent)) }
}

/// The manifests' metrics.
fn metrics(subject: &Subject) -> Vec<ModelMetric> {
    let all = subject
        .models
        .iter()
        .flat_map(|(operator, models)| models.iter().map(move |model| (operator, model)));
    all.filter_map(|(operator, model)| {
        let metric = model.manifest.metric.as_ref()?;
        Some(ModelMetric {
            operator: operator.clone(),
            variant: model.id().to_owned(),
            name: metric.name.clone(),
            value: metric.value.value,
            interval: Some(metric.interval.value),
            samples: Some(metric.samples),
            higher_is_better: metric.higher_is_better,
            accuracy: model.accuracy(),
        })
    })
    .collect()
}

/// Response of the last model before the sink to the accuracy of the models before it: their variants are swapped. Of rows
/// with equal inputs the one with the worst output is kept, so that a look-up stays conservative.
fn responses(subject: &Subject, sink: &str, rows: &[AccuracyRow]) -> Vec<ResponseRow> {
    let last = subject.nearest_models(sink);
    let [operator] = last.iter().collect::<Vec<_>>()[..] else { return Vec::new() };
    let before = subject.nearest_models(operator);
    let mut found: BTreeMap<(String, Vec<(String, u64)>), ResponseRow> = BTreeMap::new();
    for row in rows {
        let Some(variant) = row.variants.get(operator) else { continue };
        let inputs: Option<BTreeMap<String, Percent>> = before
            .iter()
            .map(|input| {
                let model = subject.model(input, row.variants.get(input)?)?;
                Some((input.clone(), alone(subject, input, model, rows)?))
            })
            .collect();
        let Some(inputs) = inputs.filter(|inputs| !inputs.is_empty()) else { continue };
        let key = inputs.iter().map(|(id, accuracy)| (id.clone(), accuracy.0.to_bits())).collect();
        let new = ResponseRow {
            operator: operator.clone(),
            variant: Some(variant.clone()),
            inputs,
            output: row.accuracy,
        };
        found
            .entry((variant.clone(), key))
            .and_modify(|old| {
                if new.output < old.output {
                    *old = new.clone();
                }
            })
            .or_insert(new);
    }
    found.into_values().collect()
}

/// Accuracy of a model by itself: from its manifest, else that of the workflow with it and the best of all others.
fn alone(subject: &Subject, operator: &str, model: &Model, rows: &[AccuracyRow]) -> Option<Percent> {
    model.accuracy().or_else(|| {
        let mut choice = subject.reference();
        choice.insert(operator.to_owned(), model.id().to_owned());
        let same = |row: &&AccuracyRow| row.variants.iter().all(|(o, v)| choice.get(o) == Some(v));
        rows.iter().find(same).map(|row| row.accuracy)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::tests::subject;

    fn row(variants: Choice, right: u64, all: u64) -> AccuracyRow {
        let mut score = Score::default();
        (score.scored, score.independent, score.correct) = (all, all, right);
        row_of(variants, right as f64 * 100.0 / all as f64, &score)
    }

    #[test]
    fn responses_follow_from_the_rows() {
        let subject = subject();
        let percent = |choice: &Choice| match (choice["eye"].as_str(), choice["mind"].as_str()) {
            ("e1", "m1") => 40,
            ("e1", _) => 50,
            (_, "m1") => 60,
            _ => 70,
        };
        let rows: Vec<AccuracyRow> = subject
            .combinations()
            .into_iter()
            .map(|choice| row(choice.clone(), percent(&choice), 100))
            .collect();
        let responses = responses(&subject, "out", &rows);
        assert_eq!(responses.len(), 4);
        let first = &responses[0];
        assert_eq!((first.operator.as_str(), first.variant.as_deref()), ("mind", Some("m1")));
        let inputs = BTreeMap::from([("ear".to_owned(), Percent(90.0)), ("eye".to_owned(), Percent(50.0))]);
        assert_eq!((&first.inputs, first.output), (&inputs, Percent(40.0)));
    }

    #[test]
    fn intervals_hold_their_value() {
        for (right, all) in [(0, 3), (3, 3), (1, 3), (119, 200)] {
            let row = row(Choice::new(), right, all);
            let (low, high) = row.interval.unwrap();
            assert!(low <= row.accuracy && row.accuracy <= high, "{row:?}");
        }
    }
}
