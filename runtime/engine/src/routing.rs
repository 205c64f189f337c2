//! Which rows of a stream go to which receiver: the class that a record was given at its source decides at every hop
//! (the rule itself: [`tidemill_spec::routing`]).
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow_select::filter::filter_record_batch;
use tidemill_operators::record::{self, Metadata};
use tidemill_spec::routing::{ClassTable, key_position, number_position};
use xxhash_rust::xxh3::xxh3_64;

/// Which rows of a stream go to one receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Selector {
    /// All of them.
    All,
    /// Those whose class is routed to the stage; of these the lanes of the partition.
    Class { classes: Vec<bool>, partition: u32, partitions: u32 },
    /// Those whose column value lies in a part of the hash space (a group-by on another column than the key).
    Column { index: usize, from: u64, to: u64 },
}

impl Selector {
    /// Selector of receiver `i` among receivers with these shares, by the value of a column.
    pub(crate) fn by_column(index: usize, shares: &[f64], i: usize) -> Self {
        let (from, to) = ClassTable::new(shares).part(i);
        Self::Column { index, from, to }
    }

    /// Which rows it takes; `None`: all.
    fn mask(&self, batch: &RecordBatch) -> Option<BooleanArray> {
        match self {
            Self::All => None,
            Self::Class { classes, partition, partitions } => {
                Some(BooleanArray::from_unary(Metadata::of(batch).classes, |value| {
                    takes_class(classes, (value & 0xffff) as usize)
                        && partition_of(value, *partitions) == *partition
                }))
            }
            Self::Column { index, from, to } => {
                let takes = |position: u64| *from <= position && (position < *to || *to == u64::MAX);
                let positions = column_positions(batch.column(*index));
                Some(positions.into_iter().map(|position| Some(takes(position))).collect())
            }
        }
    }

    /// The rows for this receiver; `None` when there are none.
    pub(crate) fn select(&self, batch: &RecordBatch) -> Option<RecordBatch> {
        let Some(mask) = self.mask(batch) else { return Some(batch.clone()) };
        match mask.true_count() {
            0 => None,
            n if n == batch.num_rows() => Some(batch.clone()),
            _ => Some(filter_record_batch(batch, &mask).expect("the mask is as long as the batch")),
        }
    }
}

/// Whether a stage takes a class. Rows that a stateful operator has kept since another plan of the run may have classes that this plan
/// has not: each of them goes one way, too.
pub(crate) fn takes_class(classes: &[bool], class: usize) -> bool {
    class.checked_rem(classes.len()).is_some_and(|class| classes[class])
}

/// The partition, of so many, that takes rows with this value of `_class`.
pub(crate) fn partition_of(value: u32, partitions: u32) -> u32 {
    ((value >> 16) * partitions) >> 16
}

/// Positions of a column's values, for keys of any type.
pub(crate) fn column_positions(column: &ArrayRef) -> Vec<u64> {
    let each = |position: &dyn Fn(usize) -> u64| -> Vec<u64> {
        (0..column.len()).map(|row| if column.is_null(row) { 0 } else { position(row) }).collect()
    };
    if let Some(texts) = record::text(column) {
        each(&|row| key_position(texts.value(row).as_bytes()))
    } else if let Some(numbers) = record::int64(column) {
        each(&|row| number_position(i128::from(numbers.value(row))))
    } else if let Some(numbers) = record::float64(column) {
        each(&|row| xxh3_64(&numbers.value(row).to_bits().to_le_bytes()))
    } else if let Some(flags) = record::boolean(column) {
        each(&|row| xxh3_64(&[u8::from(flags.value(row))]))
    } else if let Some(bytes) = record::binary(column) {
        each(&|row| xxh3_64(bytes.value(row)))
    } else {
        vec![0; column.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::takes_class;

    #[test]
    fn a_class_of_another_plan_goes_one_way() {
        let (first, second) = ([true, false], [false, true]);
        for class in 0..7 {
            assert_ne!(takes_class(&first, class), takes_class(&second, class), "class {class}");
        }
        assert!(takes_class(&first, 0) && takes_class(&second, 1));
    }
}
