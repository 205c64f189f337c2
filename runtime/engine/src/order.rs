//! The fixed orders in which rows reach stateful operators and sinks.
use arrow_array::{RecordBatch, UInt32Array};
use arrow_select::concat::concat_batches;
use arrow_select::take::take_record_batch;
use tidemill_operators::record::Metadata;

/// Joins batches of one schema; `None` when there are none.
pub(crate) fn join(batches: Vec<RecordBatch>) -> Option<RecordBatch> {
    let mut batches = batches;
    match batches.len() {
        0 => None,
        1 => batches.pop(),
        _ => {
            let schema = batches[0].schema();
            Some(concat_batches(&schema, &batches).expect("batches of one edge have one schema"))
        }
    }
}

/// Sorts rows by a key that starts with the event time.
fn sort_by<K: Ord>(batch: RecordBatch, key: impl Fn(&Metadata<'_>, usize) -> K) -> RecordBatch {
    let metadata = Metadata::of(&batch);
    // Most batches arrive in order; the rest of the key decides between equal times.
    let is_in_order = |row: usize| {
        let (before, after) = (metadata.times.value(row - 1), metadata.times.value(row));
        before < after || (before == after && key(&metadata, row - 1) <= key(&metadata, row))
    };
    if (1..batch.num_rows()).all(is_in_order) {
        return batch;
    }
    let mut order: Vec<u32> = (0..batch.num_rows() as u32).collect();
    order.sort_by_cached_key(|row| key(&metadata, *row as usize));
    take_record_batch(&batch, &UInt32Array::from(order)).expect("indices lie within the batch")
}

/// Sorts by (event time, id): the order of stateful operators.
pub(crate) fn by_time(batch: RecordBatch) -> RecordBatch {
    sort_by(batch, |metadata, row| (metadata.times.value(row), metadata.id(row)))
}

/// Sorts by (event time, source, sequence, id): the order of sinks, which people read.
pub(crate) fn by_origin(batch: RecordBatch) -> RecordBatch {
    sort_by(batch, |metadata, row| {
        (
            metadata.times.value(row),
            metadata.sources.value(row),
            metadata.sequences.value(row),
            metadata.id(row),
        )
    })
}
