//! Results as tables and as JSON.
use super::boxes::Found;
use super::records::Record;
use super::results::{Item, Results, Shown};
use super::runs::Outcome;
use crate::table::{Side, Table};
use serde_json::{Map, Value, json};
use std::io::{self, Write};
use tidemill_app::figures::milliseconds;
use tidemill_inference::tensor::TensorData;

/// Values of a tensor that are shown.
const FIRST: usize = 8;

/// Writes the results for a record as tables.
///
/// # Errors
/// Errors of `out`.
pub(super) fn write(
    out: &mut dyn Write,
    record: &Record,
    outcome: &Outcome,
    results: &Results,
) -> io::Result<()> {
    let items = match results {
        Results::Columns(items) => items,
        Results::Rejected(rejected) => {
            return writeln!(out, "\n{}: no result, {} ({})", record.name, rejected.detail, rejected.reason);
        }
    };
    let took = took(outcome).map_or_else(String::new, milliseconds);
    writeln!(out, "\n{}: {took}", record.name)?;
    let mut table = Table::new(&[("column", Side::Left), ("value", Side::Left), ("score", Side::Right)]);
    let mut is_empty = true;
    for (name, value, score) in items.iter().flat_map(lines) {
        table.row([name, value, score]);
        is_empty = false;
    }
    if !is_empty {
        table.write(out)?;
    }
    for item in items {
        if let Shown::Boxes(found, size) = &item.value {
            write_boxes(out, &item.name, found, *size)?;
        }
    }
    Ok(())
}

/// The lines of a column: its name, a value, a score.
fn lines(item: &Item) -> Vec<(String, String, String)> {
    let one = |value: String| vec![(item.name.clone(), value, String::new())];
    match &item.value {
        Shown::Text(text, false) => one(format!("{text:?}")),
        Shown::Text(text, true) => one(format!("{text:?} (stopped at the largest number of tokens)")),
        Shown::Float(value) => one(number(*value)),
        Shown::Integer(value) => one(value.to_string()),
        Shown::Truth(value) => one(value.to_string()),
        Shown::Best(data, scores) => {
            let score =
                |at: usize| scores.as_ref().and_then(|scores| scores.get(at)).map(|value| number(*value));
            let lines = (0..data.len()).map(|at| {
                let name = if at == 0 { item.name.clone() } else { String::new() };
                (name, element(data, at), score(at).unwrap_or_default())
            });
            lines.collect()
        }
        Shown::Tensor(shape, data) => one(tensor(shape, data)),
        Shown::Beside(_) | Shown::Boxes(..) => Vec::new(),
    }
}

fn write_boxes(out: &mut dyn Write, name: &str, found: &[Found], size: Option<(u32, u32)>) -> io::Result<()> {
    let count = match found.len() {
        0 => "no boxes".to_owned(),
        1 => "1 box".to_owned(),
        count => format!("{count} boxes"),
    };
    match size {
        Some((width, height)) => writeln!(out, "{name}: {count} in {width} x {height} pixels")?,
        None => writeln!(out, "{name}: {count}, in shares of the picture")?,
    }
    if found.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&[
        ("class", Side::Left),
        ("score", Side::Right),
        ("left", Side::Right),
        ("top", Side::Right),
        ("width", Side::Right),
        ("height", Side::Right),
    ]);
    for one in found {
        let side = |value: f64| if size.is_some() { format!("{value:.0}") } else { format!("{value:.4}") };
        let [left, top, width, height] = one.sides(size).map(side);
        table.row([one.class_text(), format!("{:.3}", one.score), left, top, width, height]);
    }
    table.write(out)
}

/// Returns the results for a record as JSON.
pub(super) fn json(record: &Record, outcome: &Outcome, results: &Results) -> Value {
    let items = match results {
        Results::Columns(items) => items,
        Results::Rejected(rejected) => {
            return json!({
                "input": record.name,
                "rejected": {"reason": rejected.reason, "detail": rejected.detail},
            });
        }
    };
    let outputs: Map<String, Value> =
        items.iter().map(|item| (item.name.clone(), value(&item.value))).collect();
    json!({"input": record.name, "milliseconds": took(outcome), "outputs": outputs})
}

/// Milliseconds of the model alone.
fn took(outcome: &Outcome) -> Option<f64> {
    outcome.as_ref().ok().map(|ran| ran.took.as_secs_f64() * 1e3)
}

fn value(shown: &Shown) -> Value {
    match shown {
        Shown::Text(text, _) => json!(text),
        Shown::Float(value) => json!(value),
        Shown::Integer(value) => json!(value),
        Shown::Truth(value) => json!(value),
        Shown::Best(data, _) | Shown::Beside(data) => json!(values(data)),
        Shown::Tensor(shape, data) => {
            json!({"dtype": data.element().name(), "shape": shape, "values": values(data)})
        }
        Shown::Boxes(found, size) => {
            let boxes = found.iter().map(|one| {
                let [left, top, width, height] = one.sides(*size);
                json!({
                    "class": one.class, "label": one.label, "score": one.score, "left": left, "top": top,
                    "width": width, "height": height,
                })
            });
            json!({"picture": size, "boxes": boxes.collect::<Vec<_>>()})
        }
    }
}

/// The values of a tensor as JSON, which has no NaN: null.
fn values(data: &TensorData) -> Vec<Value> {
    match data {
        TensorData::Text(texts) => texts.iter().map(|text| json!(text)).collect(),
        TensorData::Bool(values) => values.iter().map(|value| json!(value)).collect(),
        TensorData::Int64(values) => values.iter().map(|value| json!(value)).collect(),
        TensorData::Int32(values) => values.iter().map(|value| json!(value)).collect(),
        TensorData::Int8(values) => values.iter().map(|value| json!(value)).collect(),
        TensorData::Uint8(values) => values.iter().map(|value| json!(value)).collect(),
        TensorData::Float32(values) => values.iter().map(|value| json!(shortest(*value))).collect(),
        TensorData::Float16(values) => values.iter().map(|value| json!(value.to_f64())).collect(),
        TensorData::Float64(values) => values.iter().map(|value| json!(value)).collect(),
    }
}

/// A float of 32 bits with the digits that it needs: 0.1 stays 0.1.
pub(super) fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

/// A value of a tensor as text.
fn element(data: &TensorData, at: usize) -> String {
    match data {
        TensorData::Text(texts) => texts.get(at).map_or_else(String::new, |text| format!("{text:?}")),
        TensorData::Int64(values) => values.get(at).map_or_else(String::new, ToString::to_string),
        TensorData::Bool(values) => values.get(at).map_or_else(String::new, ToString::to_string),
        other => other.part(at..at + 1).to_f64().first().map_or_else(String::new, |value| number(*value)),
    }
}

/// Type, shape, first values, and for numbers what is least, largest and the mean.
fn tensor(shape: &[usize], data: &TensorData) -> String {
    let first: Vec<String> = (0..data.len().min(FIRST)).map(|at| element(data, at)).collect();
    let more = if data.len() > FIRST { ", ..." } else { "" };
    let head = format!("{} {shape:?}: {}{more}", data.element(), first.join(", "));
    if matches!(data, TensorData::Text(_) | TensorData::Bool(_)) || data.len() < 2 {
        return head;
    }
    let values = data.to_f64();
    let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    let least = finite.iter().copied().fold(f64::INFINITY, f64::min);
    let largest = finite.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let others = values.len() - finite.len();
    let others = if others > 0 { format!("; {others} not finite") } else { String::new() };
    if finite.is_empty() {
        return format!("{head}{others}");
    }
    let mean = finite.iter().sum::<f64>() / finite.len() as f64;
    format!("{head}; min {}, max {}, mean {}{others}", number(least), number(largest), number(mean))
}

/// A number with about five digits.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() || value == 0.0 || value.fract() == 0.0 && size < 1e9 {
        return format!("{value}");
    }
    if !(1e-4..1e6).contains(&size) {
        return format!("{value:.3e}");
    }
    let places = (4.0 - size.log10().floor()).clamp(0.0, 8.0) as usize;
    let text = format!("{value:.places$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_about_five_digits() {
        let shown: Vec<String> =
            [0.5, 1.0, -0.0, 1.0 / 3.0, 123_456.789, 1e-7, -2.5e12, 1e9, f64::NAN, 0.000_123_456]
                .iter()
                .map(|value| number(*value))
                .collect();
        let expected =
            ["0.5", "1", "-0", "0.33333", "123457", "1.000e-7", "-2.500e12", "1.000e9", "NaN", "0.00012346"];
        assert_eq!(shown, expected);
        assert_eq!((shortest(0.1), shortest(f32::MAX)), (0.1, 3.4028235e38));
    }

    #[test]
    fn tensors_are_described_in_a_line() {
        let data = TensorData::Float32((0..10).map(|value| value as f32).collect());
        assert_eq!(
            tensor(&[2, 5], &data),
            "float32 [2, 5]: 0, 1, 2, 3, 4, 5, 6, 7, ...; min 0, max 9, mean 4.5"
        );
        let data = TensorData::Float32(vec![f32::NAN, 1.5]);
        assert_eq!(tensor(&[2], &data), "float32 [2]: NaN, 1.5; min 1.5, max 1.5, mean 1.5; 1 not finite");
        assert_eq!(tensor(&[1], &TensorData::Text(vec!["a\"b".into()])), "text [1]: \"a\\\"b\"");
        assert_eq!(tensor(&[0], &TensorData::Int64(Vec::new())), "int64 [0]: ");
        assert_eq!(tensor(&[1], &TensorData::Int64(vec![i64::MAX])), "int64 [1]: 9223372036854775807");
    }

    #[test]
    fn the_best_are_one_below_the_other() {
        let labels = TensorData::Text(vec!["cat".into(), "dog".into()]);
        let item = Item { name: "best".to_owned(), value: Shown::Best(labels, Some(vec![0.75, 0.125])) };
        let line =
            |name: &str, value: &str, score: &str| (name.to_owned(), value.to_owned(), score.to_owned());
        assert_eq!(lines(&item), [line("best", "\"cat\"", "0.75"), line("", "\"dog\"", "0.125")]);
        assert_eq!(value(&item.value), json!(["cat", "dog"]));
    }
}
