//! `late`: the records that a window leaves out because they come too late.
//!
//! An input `ID.late` makes one, where `ID` is a window:
//!
//! ```yaml
//! operators:
//!   - {id: counts, kind: window, input: readings, options: {size: 10s, aggregates: [{function: count}]}}
//! sinks:
//!   - {id: too_late, kind: jsonl, input: counts.late, options: {path: out/late.jsonl, metadata: true}}
//! ```
//! It has the input and the options of the window, so the workflow that is planned and run has an operator `counts.late` of this kind
//! beside `counts`. Watermarks follow from the epochs alone: both find the same rows late, on whatever workers they are. The window
//! counts these rows as notes `late`, not as drops.
//!
//! A row is sent as it came, with its event time. Any older one may follow, so operators on event time behind it learn of no progress
//! before the end of the stream: a window of late rows closes then.
//!
//! ```
//! use std::path::Path;
//! use tidemill_operators::kind::{InputPort, OperatorContext};
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::{SourceFile, Span}, types::{Column, ColumnType, StreamType}, yaml};
//! let stream = StreamType::new([Column::new("v", ColumnType::Float64)]);
//! let readings = InputPort { from: "readings".into(), stream: stream.clone(), span: Span::nowhere() };
//! let id = "counts.late".into();
//! let context = OperatorContext::new(&id, Path::new("."));
//! let options = "{size: 10s, aggregates: [{function: count}]}";
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", options)).unwrap();
//! let registry = Registry::builtin();
//! let bound = registry.operator("late").unwrap().bind(&context, &[readings], &options).unwrap();
//! assert_eq!(bound.output, stream);
//! ```
use super::snapshot;
use super::window::{Options, Shape, shape};
use super::window_rows::broken;
use crate::api::{Computation, Instance, MakeInstance, OperatorError, Output, Spread, Stateful, TakesKeys};
use crate::kind::{InputPort, OperatorContext, TypedOperatorKind};
use crate::record::{EventTime, Metadata};
use arrow_array::{BooleanArray, RecordBatch};
use arrow_select::filter::filter_record_batch;
use std::sync::Arc;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::kinds::OperatorFacts;
use tidemill_spec::span::Located;
use tidemill_spec::types::StreamType;

/// Format of the snapshots.
const TAG: [u8; 8] = *b"LATEROWS";

/// The kind `late`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Late;

impl TypedOperatorKind for Late {
    type Options = Options;
    const KIND: &'static str = "late";
    const SUMMARY: &'static str = "The records that a window leaves out because they come too late.";
    const FACTS: OperatorFacts =
        OperatorFacts { computation: Computation::Stateful, ..OperatorFacts::DEFAULT };

    fn spread(options: &Options) -> Spread {
        options.spread()
    }

    fn bind_typed(
        &self,
        context: &OperatorContext<'_>,
        inputs: &[InputPort],
        options: Located<Options>,
    ) -> Result<(StreamType, MakeInstance), Diagnostics> {
        let shape = shape(&options.value, context, &options.span)?;
        let make: MakeInstance =
            Arc::new(move || Ok(Instance::Stateful(Box::new(Running { shape, watermark: EventTime::MIN }))));
        Ok((inputs[0].stream.clone(), make))
    }
}

struct Running {
    shape: Shape,
    watermark: EventTime,
}

impl Stateful for Running {
    fn apply(&mut self, _port: usize, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        let times = Metadata::of(batch).times.values();
        let late: BooleanArray =
            times.iter().map(|time| Some(self.shape.is_late(*time, self.watermark))).collect();
        if late.true_count() > 0 {
            output.push(filter_record_batch(batch, &late).map_err(broken)?);
        }
        Ok(())
    }

    fn advance(&mut self, watermark: EventTime, _: &mut Output) -> Result<(), OperatorError> {
        self.watermark = self.watermark.max(watermark);
        Ok(())
    }

    fn takes_rows_early(&self) -> bool {
        true
    }

    fn output_watermark(&self, watermark: EventTime) -> EventTime {
        match watermark {
            EventTime::MAX => EventTime::MAX,
            _ => EventTime::MIN,
        }
    }

    fn snapshot(&self) -> Result<Vec<u8>, OperatorError> {
        snapshot::write(TAG, &self.watermark, &[])
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), OperatorError> {
        (self.watermark, _) = snapshot::read(TAG, &[], bytes)?;
        Ok(())
    }

    fn is_divisible(&self) -> bool {
        true
    }

    fn take_in(&mut self, bytes: &[u8], _: &TakesKeys<'_>) -> Result<(), OperatorError> {
        let (watermark, _): (EventTime, _) = snapshot::read(TAG, &[], bytes)?;
        if self.watermark != EventTime::MIN && self.watermark != watermark {
            return Err(OperatorError::new(
                "late: the stages with the state are at different times, so other stages cannot take it over now: run the \
                 old plan briefly, then try again",
            ));
        }
        self.watermark = watermark;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::window::Window;
    use super::*;
    use crate::relational::test::{bind, feed, run_epochs};
    use crate::testing::Record;
    use proptest::prelude::*;
    use serde_json::json;
    use tidemill_spec::types::{Column, ColumnType};

    fn stream() -> StreamType {
        StreamType::new([Column::new("k", ColumnType::Text)])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        /// Those that the window counts, and no others: its results have the rest.
        #[test]
        fn each_row_is_late_or_counts(
            times in prop::collection::vec(-3000i64..6000, 0..80), shape in 0usize..3, lateness in 0i64..2500,
            bound in 0i64..3000, hurry in 0i64..2000, random in any::<u64>(),
        ) {
            let rows: Vec<(usize, Record)> = times.iter().enumerate().map(|(sequence, time)| {
                let payload = json!({"k": if sequence % 2 == 0 { "a" } else { "b" }});
                (0, Record { source: 0, sequence: sequence as u64, time: *time, payload })
            }).collect();
            let mut epochs = feed(&rows, bound, random).epochs;
            let mut highest = i64::MIN;
            for (_, watermark) in &mut epochs {
                highest = highest.max(watermark.saturating_add(hurry));
                *watermark = highest;
            }
            let shape = ["size: 2ms", "size: 2ms\nslide: 2ms", "session: 1ms"][shape];
            let yaml = format!(
                "{shape}\nallowed_lateness: {lateness}us\ngroup_by: [k]\naggregates: [{{function: count}}]\nlate: pass"
            );
            let window = run_epochs(&bind(&Window, &[stream()], &yaml).unwrap(), &[stream()], &epochs, random);
            let late = run_epochs(&bind(&Late, &[stream()], &yaml).unwrap(), &[stream()], &epochs, random);
            let noted: u64 = window.notes.iter().map(|(_, count)| count).sum();
            prop_assert!(window.drops.is_empty() && late.drops.is_empty());
            let found: usize = late.batches.iter().map(RecordBatch::num_rows).sum();
            prop_assert_eq!(noted, found as u64);
            let counted: i64 = window.batches.iter()
                .map(|batch| crate::record::int64(batch.column(batch.num_columns() - 1)).unwrap().values().iter().sum::<i64>())
                .sum();
            prop_assert_eq!(counted as usize + found, rows.len());
        }
    }
}
