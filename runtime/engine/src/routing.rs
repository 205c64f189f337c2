//! Routing of rows to receivers: the class that a record got at its source decides at every hop (the rule itself:
//! [`tidemill_spec::routing`]).
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, UInt32Array};
use arrow_select::filter::filter_record_batch;
use std::sync::Arc;
use tidemill_operators::record::{self, Metadata};
use tidemill_spec::routing::{ClassTable, key_position, number_position};
use xxhash_rust::xxh3::xxh3_64;

/// Selects the rows of a stream for one receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Selector {
    /// All rows.
    All,
    /// Rows whose class is routed to the stage, restricted to the lanes of the partition.
    Class { classes: Vec<bool>, partition: u32, partitions: u32 },
    /// Rows whose group is routed to the stage: the class is computed from the value of this column as at a source.
    Group { index: usize, table: ClassTable, classes: Vec<bool>, partition: u32, partitions: u32 },
}

impl Selector {
    /// Returns a mask of the selected rows; `None`: all.
    fn mask(&self, batch: &RecordBatch) -> Option<BooleanArray> {
        match self {
            Self::All => None,
            Self::Class { classes, partition, partitions } => {
                let values = Metadata::of(batch).classes;
                Some(BooleanArray::from_unary(values, |value| {
                    takes(classes, (*partition, *partitions), value)
                }))
            }
            Self::Group { index, table, classes, partition, partitions } => {
                let values = class_values(table, batch.column(*index)).into_iter();
                Some(values.map(|value| Some(takes(classes, (*partition, *partitions), value))).collect())
            }
        }
    }

    /// Returns the rows for this receiver; `None` when there are none.
    pub(crate) fn select(&self, batch: &RecordBatch) -> Option<RecordBatch> {
        let Some(mask) = self.mask(batch) else { return Some(batch.clone()) };
        match mask.true_count() {
            0 => None,
            n if n == batch.num_rows() => Some(batch.clone()),
            _ => Some(filter_record_batch(batch, &mask).expect("the mask is as long as the batch")),
        }
    }
}

/// Returns whether the partition of a stage with these classes takes rows with this value of `_class`.
pub(crate) fn takes(classes: &[bool], (partition, partitions): (u32, u32), value: u32) -> bool {
    takes_class(classes, (value & 0xffff) as usize) && partition_of(value, partitions) == partition
}

/// Returns the `_class` that a source assigns to each value of a column.
pub(crate) fn class_values(table: &ClassTable, column: &ArrayRef) -> Vec<u32> {
    column_positions(column).into_iter().map(|position| table.value_at(position)).collect()
}

/// Assigns rows the class of their group: their present one may be that of another row of the group, or of another plan.
#[derive(Debug, Clone)]
pub(crate) struct ByGroup {
    /// The column of the output with the value of the group.
    pub(crate) index: usize,
    pub(crate) table: ClassTable,
}

impl ByGroup {
    pub(crate) fn classed(&self, batch: RecordBatch) -> RecordBatch {
        let (schema, mut columns, _) = batch.into_parts();
        columns[record::CLASS] = Arc::new(UInt32Array::from(class_values(&self.table, &columns[self.index])));
        RecordBatch::try_new(schema, columns).expect("one class a row")
    }
}

/// Returns whether a stage takes a class. Rows that a stateful operator has kept from an earlier plan of the run may have classes
/// unknown to this plan; each of them takes one route, too.
fn takes_class(classes: &[bool], class: usize) -> bool {
    class.checked_rem(classes.len()).is_some_and(|class| classes[class])
}

/// Returns the partition for rows with this value of `_class`.
fn partition_of(value: u32, partitions: u32) -> u32 {
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
