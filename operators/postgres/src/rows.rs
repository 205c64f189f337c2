//! Rows of record batches as columns of SQL arrays.
use crate::table::{SinkColumn, Table};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, RecordBatch};
use postgres::types::ToSql;
use std::collections::HashSet;
use tidemill_operators::record::METADATA_COLUMNS;
use tidemill_spec::types::ColumnType;

/// A row: its batch and its place in it.
pub(crate) type Place = (usize, usize);

/// Returns why the table cannot take a row, whatever its constraints are.
pub(crate) fn flaw(table: &Table, batches: &[RecordBatch], (batch, row): Place) -> Option<String> {
    table.columns.iter().find_map(|column| {
        let array = batches[batch].column(METADATA_COLUMNS + column.index);
        if array.is_null(row) {
            return column.is_key.then(|| format!("the key `{}` is empty", column.name));
        }
        let is_text = matches!(column.column_type, ColumnType::Text);
        (is_text && array.as_string::<i32>().value(row).contains('\0'))
            .then(|| format!("`{}` has the character NUL, which no text of PostgreSQL has", column.name))
    })
}

/// Returns the rows that remain when each key keeps its last row that is not left out, in order.
pub(crate) fn last_of_each_key(
    table: &Table,
    batches: &[RecordBatch],
    left_out: &HashSet<Place>,
) -> Vec<Place> {
    let (mut seen, mut kept) = (HashSet::new(), Vec::new());
    for (index, batch) in batches.iter().enumerate().rev() {
        for row in (0..batch.num_rows()).rev() {
            let place = (index, row);
            if !left_out.contains(&place) && seen.insert(key_of(table, batches, place)) {
                kept.push(place);
            }
        }
    }
    kept.reverse();
    kept
}

/// The key of a row as bytes; that of a row without a flaw is unique.
pub(crate) fn key_of(table: &Table, batches: &[RecordBatch], (batch, row): Place) -> Vec<u8> {
    let mut key = Vec::new();
    for column in table.columns.iter().filter(|column| column.is_key) {
        append_key(&mut key, &batches[batch], row, column);
    }
    key
}

fn append_key(key: &mut Vec<u8>, batch: &RecordBatch, row: usize, column: &SinkColumn) {
    let array = batch.column(METADATA_COLUMNS + column.index);
    match column.column_type {
        ColumnType::Int64 => key.extend(array.as_primitive::<Int64Type>().value(row).to_le_bytes()),
        ColumnType::Float64 => {
            // PostgreSQL knows one zero and one NaN.
            let value = array.as_primitive::<Float64Type>().value(row) + 0.0;
            let value = if value.is_nan() { f64::NAN } else { value };
            key.extend(value.to_bits().to_le_bytes());
        }
        ColumnType::Bool => key.push(u8::from(array.as_boolean().value(row))),
        ColumnType::Text => {
            let text = array.as_string::<i32>().value(row).as_bytes();
            key.extend((text.len() as u64).to_le_bytes());
            key.extend(text);
        }
        ColumnType::Image | ColumnType::Audio | ColumnType::Bytes | ColumnType::Tensor { .. } => {
            let bytes = array.as_binary::<i32>().value(row);
            key.extend((bytes.len() as u64).to_le_bytes());
            key.extend(bytes);
        }
    }
}

/// The values of one column of these rows, as a parameter that is an array.
pub(crate) fn parameter<'a>(
    column: &SinkColumn,
    batches: &'a [RecordBatch],
    places: &[Place],
) -> Box<dyn ToSql + Sync + 'a> {
    #[expect(clippy::box_collection, reason = "the caller makes it a parameter of any type")]
    fn all<'a, T>(
        (batches, index): (&'a [RecordBatch], usize),
        places: &[Place],
        value: impl Fn(&'a dyn Array, usize) -> T,
    ) -> Box<Vec<Option<T>>> {
        let of = |(batch, row): &Place| {
            let array = batches[*batch].column(METADATA_COLUMNS + index);
            array.is_valid(*row).then(|| value(array.as_ref(), *row))
        };
        Box::new(places.iter().map(of).collect())
    }
    let from = (batches, column.index);
    match column.column_type {
        ColumnType::Int64 => all(from, places, |array, row| array.as_primitive::<Int64Type>().value(row)),
        ColumnType::Float64 => all(from, places, |array, row| array.as_primitive::<Float64Type>().value(row)),
        ColumnType::Bool => all(from, places, |array, row| array.as_boolean().value(row)),
        ColumnType::Text => all(from, places, |array, row| array.as_string::<i32>().value(row)),
        ColumnType::Image | ColumnType::Audio | ColumnType::Bytes | ColumnType::Tensor { .. } => {
            all(from, places, |array, row| array.as_binary::<i32>().value(row))
        }
    }
}
