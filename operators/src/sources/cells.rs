//! Parsing of column values from text.
use super::table::Fields;
use crate::relational::expression::Cell;
use tidemill_spec::types::{Column, ColumnType};

/// Reason and detail of a refused record or file.
pub(super) type Refusal = (&'static str, String);

/// Adds the value of a column: plain, or for a tensor a JSON list.
pub(super) fn push_text(text: &str, column: &Column, fields: &mut Fields) -> Result<(), Refusal> {
    if let ColumnType::Tensor { element, shape } = &column.column_type
        && !text.trim().is_empty()
    {
        let pushed = fields.push_list(text.trim(), *element, shape);
        return pushed
            .map_err(|why| ("bad_value", format!("column `{}`: `{}` {why}", column.name, shorten(text))));
    }
    fields.push(from_text(text, column)?);
    Ok(())
}

/// Parses a number, bool or text of a column's type.
fn from_text<'a>(text: &'a str, column: &Column) -> Result<Cell<'a>, Refusal> {
    if column.column_type == ColumnType::Text {
        return Ok(Cell::Text(text));
    }
    // Trimming decodes whole characters, which takes longer than parsing a number.
    let trimmed = match text.as_bytes() {
        [first, .., last] if first.is_ascii_graphic() && last.is_ascii_graphic() => text,
        _ => text.trim(),
    };
    let wrong = || {
        ("bad_value", format!("column `{}`: `{}` is not {}", column.name, shorten(text), column.column_type))
    };
    match &column.column_type {
        _ if trimmed.is_empty() => Ok(Cell::Null),
        ColumnType::Int64 => trimmed.parse().map(Cell::Int).map_err(|_| wrong()),
        ColumnType::Float64 => float(trimmed)
            .map(Cell::Float)
            .map_err(|why| ("bad_value", format!("column `{}`: `{}` {why}", column.name, shorten(text)))),
        _ if trimmed.eq_ignore_ascii_case("true") || trimmed == "1" => Ok(Cell::Bool(true)),
        _ if trimmed.eq_ignore_ascii_case("false") || trimmed == "0" => Ok(Cell::Bool(false)),
        _ => Err(wrong()),
    }
}

/// Returns the float64 nearest to a number, or an error message. Infinities must be written as such (`inf`): a number
/// beyond the largest float64 is an error.
pub(super) fn float(text: &str) -> Result<f64, &'static str> {
    match text.parse::<f64>() {
        Ok(value) if value.is_infinite() && text.contains(|c: char| c.is_ascii_digit()) => {
            Err("does not fit into float64")
        }
        Ok(value) => Ok(value),
        Err(_) => Err("is not float64"),
    }
}

/// Shortens a text for messages.
pub(super) fn shorten(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
