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

/// Returns the rows that remain when each key keeps its last row, in order.
///
/// # Errors
/// The column of a key that is empty.
pub(crate) fn last_of_each_key(table: &Table, batches: &[RecordBatch]) -> Result<Vec<Place>, String> {
    let (mut seen, mut kept) = (HashSet::new(), Vec::new());
    let keys: Vec<&SinkColumn> = table.columns.iter().filter(|column| column.is_key).collect();
    for (index, batch) in batches.iter().enumerate().rev() {
        for row in (0..batch.num_rows()).rev() {
            let mut key = Vec::new();
            for column in &keys {
                append_key(&mut key, batch, row, column)?;
            }
            if seen.insert(key) {
                kept.push((index, row));
            }
        }
    }
    kept.reverse();
    Ok(kept)
}

fn append_key(key: &mut Vec<u8>, batch: &RecordBatch, row: usize, column: &SinkColumn) -> Result<(), String> {
    let array = batch.column(METADATA_COLUMNS + column.index);
    if array.is_null(row) {
        return Err(column.name.clone());
    }
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
        ColumnType::Image | ColumnType::Audio | ColumnType::Tensor { .. } => {
            let bytes = array.as_binary::<i32>().value(row);
            key.extend((bytes.len() as u64).to_le_bytes());
            key.extend(bytes);
        }
    }
    Ok(())
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
        ColumnType::Image | ColumnType::Audio | ColumnType::Tensor { .. } => {
            all(from, places, |array, row| array.as_binary::<i32>().value(row))
        }
    }
}
