//! Metadata columns of a source's rows.
use super::SourceNode;
use super::reader::Chunk;
use crate::routing::column_positions;
use arrow_array::{
    ArrayRef, FixedSizeBinaryArray, Int8Array, Int64Array, RecordBatch, UInt32Array, UInt64Array,
};
use std::sync::Arc;
use tidemill_operators::record::{EventTime, source_id};
use tidemill_spec::routing::number_position;

impl SourceNode {
    /// Adds id, source, number, times and route class to the rows of a chunk emitted `now`. `first`: the record of the
    /// chunk with the next number.
    pub(super) fn with_metadata(
        &mut self,
        chunk: &Chunk,
        rows: std::ops::Range<usize>,
        first: u64,
        now: i64,
    ) -> RecordBatch {
        let n = rows.len();
        let payload = chunk.payload.slice(rows.start, n);
        let number = self.settings.number;
        let sequences: Vec<u64> =
            rows.clone().map(|row| self.sequence + (chunk.record_of(row) - first)).collect();
        let mut ids = Vec::with_capacity(n * 16);
        for sequence in &sequences {
            ids.extend_from_slice(&source_id(number, *sequence));
        }
        let times: Vec<EventTime> = match &chunk.times {
            Some(times) => times[rows.clone()].to_vec(),
            None => sequences.iter().map(|sequence| self.synthetic_time(*sequence)).collect(),
        };
        if let Some(newest) = times.iter().max() {
            self.newest = self.newest.max(*newest);
        }
        let intended: Vec<i64> = sequences
            .iter()
            .map(|sequence| match self.settings.schedule.is_open_loop() {
                true => self.settings.schedule.due(*sequence),
                false => now,
            })
            .collect();
        let key = self.settings.bound.key.as_ref().and_then(|key| self.settings.bound.output.index_of(key));
        let classes: Vec<u32> = match key {
            Some(key) => column_positions(payload.column(key))
                .into_iter()
                .map(|position| self.settings.classes.value_at(position))
                .collect(),
            None => sequences
                .iter()
                .map(|sequence| self.settings.classes.value_at(number_position(i128::from(*sequence))))
                .collect(),
        };
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(FixedSizeBinaryArray::new(16, ids.into(), None)),
            Arc::new(UInt32Array::from(vec![number; n])),
            Arc::new(UInt64Array::from(sequences)),
            Arc::new(Int64Array::from(times)),
            Arc::new(Int64Array::from(intended)),
            Arc::new(UInt32Array::from(classes)),
            Arc::new(Int8Array::from(vec![1i8; n])),
        ];
        columns.extend(payload.columns().iter().cloned());
        RecordBatch::try_new(Arc::clone(&self.schema), columns)
            .expect("a source gives the columns that it declared")
    }
}
