//! Reads real records from the sources of a workflow, all at once, with the engine's metadata.
use crate::error::ProfileError;
use arrow_array::{
    ArrayRef, FixedSizeBinaryArray, Int8Array, Int64Array, RecordBatch, UInt32Array, UInt64Array,
};
use arrow_select::concat::concat_batches;
use arrow_select::take::take_record_batch;
use std::sync::Arc;
use tidemill_operators::api::{BoundSource, OperatorError, SourceRead};
use tidemill_operators::record::{EventTime, Metadata, record_schema, source_id};

/// Records per read.
const ROWS: usize = 64;
/// Bytes per read.
const BYTES: usize = 8 << 20;

/// Returns the first records of a source, at most `wanted`. `number` is the index of the source in the workflow. Unreadable
/// records are left out. Intended times and classes are 0: no measurement depends on them.
///
/// # Errors
/// Errors of the source, [`ProfileError::Stream`] if it can be read only once, and [`ProfileError::NoRecords`] if it is
/// empty.
pub fn read(source: &BoundSource, number: u32, wanted: usize) -> Result<RecordBatch, ProfileError> {
    let failed = |error: OperatorError| ProfileError::Operator { operator: source.id.clone(), error };
    if source.is_stream() {
        let stream = source.stream.clone().unwrap_or_else(|| "a live source".to_owned());
        return Err(ProfileError::Stream(source.id.clone(), stream));
    }
    let mut reader = (source.make)().map_err(failed)?;
    let schema = record_schema(&source.output);
    let (mut batches, mut rows, mut next) = (Vec::new(), 0, 0u64);
    while rows < wanted {
        let read = reader.read(ROWS.min(wanted - rows), BYTES).map_err(failed)?;
        let SourceRead::Rows { payload, times, dead_letters, offsets } = read else { break };
        let n = payload.num_rows();
        let consumed = n as u64 + dead_letters.len() as u64;
        let sequences: Vec<u64> = match offsets {
            Some(offsets) => offsets.iter().map(|offset| next + offset).collect(),
            None => (next..next + n as u64).collect(),
        };
        next += consumed;
        rows += n;
        if n > 0 {
            let times =
                times.unwrap_or_else(|| sequences.iter().map(|s| synthetic_time(source, *s)).collect());
            let mut columns = metadata(number, &sequences, times);
            columns.extend(payload.columns().iter().cloned());
            let batch = RecordBatch::try_new(Arc::clone(&schema), columns)
                .map_err(|error| failed(OperatorError::new(error.to_string())))?;
            batches.push(batch);
        }
    }
    if rows == 0 {
        return Err(ProfileError::NoRecords(source.id.clone()));
    }
    concat_batches(&schema, &batches).map_err(|error| failed(OperatorError::new(error.to_string())))
}

/// The event time of a record without one: by the rate, else a millisecond each, as in the engine.
fn synthetic_time(source: &BoundSource, sequence: u64) -> EventTime {
    match source.rate_per_second {
        Some(rate) => (sequence as f64 * 1e6 / rate) as i64,
        None => sequence as i64 * 1000,
    }
}

fn metadata(number: u32, sequences: &[u64], times: Vec<EventTime>) -> Vec<ArrayRef> {
    let n = sequences.len();
    let ids: Vec<u8> = sequences.iter().flat_map(|sequence| source_id(number, *sequence)).collect();
    vec![
        Arc::new(FixedSizeBinaryArray::new(16, ids.into(), None)),
        Arc::new(UInt32Array::from(vec![number; n])),
        Arc::new(UInt64Array::from(sequences.to_vec())),
        Arc::new(Int64Array::from(times)),
        Arc::new(Int64Array::from(vec![0i64; n])),
        Arc::new(UInt32Array::from(vec![0u32; n])),
        Arc::new(Int8Array::from(vec![1i8; n])),
    ]
}

/// The rows by (event time, id), as stateful operators get them.
pub fn by_time(batch: &RecordBatch) -> RecordBatch {
    let metadata = Metadata::of(batch);
    let mut order: Vec<u32> = (0..batch.num_rows() as u32).collect();
    order.sort_by_cached_key(|row| (metadata.times.value(*row as usize), metadata.id(*row as usize)));
    take_record_batch(batch, &UInt32Array::from(order)).expect("indices lie within the batch")
}

/// Returns the rows by (event time, id), the order of stateful operators.
pub fn window(batch: &RecordBatch, first: usize, rows: usize) -> RecordBatch {
    let all = batch.num_rows();
    if all == 0 {
        return batch.clone();
    }
    let first = first % all;
    if first + rows <= all {
        return batch.slice(first, rows);
    }
    let order: Vec<u32> = (first..first + rows).map(|row| (row % all) as u32).collect();
    take_record_batch(batch, &UInt32Array::from(order)).expect("indices lie within the batch")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tidemill_spec::types::{Column, ColumnType, StreamType};

    /// Numbered records with these event times.
    pub(crate) fn batch(times: &[i64]) -> RecordBatch {
        let sequences: Vec<u64> = (0..times.len() as u64).collect();
        let mut columns = metadata(0, &sequences, times.to_vec());
        columns.push(Arc::new(Int64Array::from_iter_values(sequences.iter().map(|s| *s as i64))));
        let stream = StreamType::new([Column::new("n", ColumnType::Int64)]);
        RecordBatch::try_new(record_schema(&stream), columns).unwrap()
    }

    #[test]
    fn windows_go_round() {
        let batch = batch(&[0, 1, 2]);
        let numbers = |first, rows| Metadata::of(&window(&batch, first, rows)).times.values().to_vec();
        assert_eq!(numbers(0, 2), [0, 1]);
        assert_eq!(numbers(4, 4), [1, 2, 0, 1]);
        assert_eq!(window(&batch.slice(0, 0), 3, 4).num_rows(), 0);
    }

    #[test]
    fn rows_are_put_in_the_order_of_time() {
        let sorted = by_time(&batch(&[5, 1, 3]));
        assert_eq!(Metadata::of(&sorted).times.values().to_vec(), [1, 3, 5]);
    }
}
