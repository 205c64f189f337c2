//! `counter`: numbers at even steps, as a clock or as a load of a known size.
//!
//! ```yaml
//! - {id: numbers, kind: counter, rate: 100/s, options: {count: 1000, step: 0.5}}
//! ```
//! Record i, from 0 on, is `{number: i, value: i * step}`. Every position can be read again, so a run that restarts loses nothing.
//!
//! ```
//! use tidemill_extension::counter::Counter;
//! use tidemill_operators::kind::{EndContext, SourceKind};
//! use tidemill_spec::{span::SourceFile, yaml};
//! let id = "numbers".into();
//! let context = EndContext::new(&id, std::path::Path::new("."));
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", "{count: 3}")).unwrap();
//! let numbers = Counter.bind(&context, &options).unwrap();
//! assert_eq!(numbers.output.to_string(), "{number: int64, value: float64}");
//! assert_eq!((numbers.make)().unwrap().len_hint(), Some(3));
//! ```
use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch};
use arrow_schema::SchemaRef;
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use tidemill_operators::api::{BoundSource, MakeSource, OperatorError, Source, SourcePosition, SourceRead};
use tidemill_operators::kind::{EndContext, SourceKind};
use tidemill_operators::record::payload_schema;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::SourceFacts;
use tidemill_spec::span::Located;
use tidemill_spec::types::{Column, ColumnType, StreamType};
use tidemill_spec::value::Value;

/// The kind `counter`; see the module.
pub struct Counter;

/// Options of `counter`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Options {
    /// Number of records, at least 1.
    count: Located<i64>,
    /// Difference between two values. Default: 1.
    #[serde(default = "one")]
    step: f64,
}

fn one() -> f64 {
    1.0
}

impl SourceKind for Counter {
    fn kind(&self) -> &'static str {
        "counter"
    }

    fn summary(&self) -> &'static str {
        "Numbers at even steps."
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(Options)
    }

    fn facts(&self) -> SourceFacts {
        SourceFacts { reads: &[], ..SourceFacts::DEFAULT }
    }

    fn bind(&self, context: &EndContext<'_>, options: &Value) -> Result<BoundSource, Diagnostics> {
        let Options { count, step } = options.deserialize_into()?;
        if count.value < 1 {
            let error = Diagnostic::error("E0606", format!("`count: {count}` gives no record"));
            return Err(error.at(count.span).with_help("write 1 or more").into());
        }
        let columns = [("number", ColumnType::Int64), ("value", ColumnType::Float64)];
        let output = StreamType::new(columns.map(|(name, column_type)| Column::new(name, column_type)));
        let (schema, count) = (payload_schema(&output), count.value);
        let make: MakeSource =
            Arc::new(move || Ok(Box::new(Counting { next: 0, count, step, schema: Arc::clone(&schema) })));
        Ok(context.source(self.kind(), output, make))
    }
}

/// A reader: the next number is its position.
struct Counting {
    next: i64,
    count: i64,
    step: f64,
    schema: SchemaRef,
}

impl Source for Counting {
    fn read(&mut self, rows: usize, bytes: usize) -> Result<SourceRead, OperatorError> {
        if self.next >= self.count {
            return Ok(SourceRead::End);
        }
        let rows = rows.min(bytes / size_of::<(i64, f64)>()).max(1);
        let end = self.next.saturating_add(i64::try_from(rows).unwrap_or(i64::MAX)).min(self.count);
        let numbers = self.next..end;
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values(numbers.clone())),
            Arc::new(Float64Array::from_iter_values(numbers.map(|number| number as f64 * self.step))),
        ];
        let payload = RecordBatch::try_new(Arc::clone(&self.schema), columns)
            .map_err(|error| OperatorError::new(error.to_string()))?;
        self.next = end;
        Ok(SourceRead::Rows { payload, times: None, dead_letters: Vec::new(), offsets: None })
    }

    fn position(&self) -> SourcePosition {
        SourcePosition(self.next.to_string())
    }

    fn seek(&mut self, position: &SourcePosition) -> Result<(), OperatorError> {
        let next = position.0.parse().ok().filter(|next| (0..=self.count).contains(next));
        self.next = next.ok_or_else(|| OperatorError::new(format!("no position: {:?}", position.0)))?;
        Ok(())
    }

    fn len_hint(&self) -> Option<u64> {
        u64::try_from(self.count).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_in_order_from_any_position() {
        let schema = payload_schema(&StreamType::new([
            Column::new("number", ColumnType::Int64),
            Column::new("value", ColumnType::Float64),
        ]));
        let mut reader = Counting { next: 0, count: 5, step: 0.5, schema };
        let rows = |read| match read {
            Ok(SourceRead::Rows { payload, .. }) => payload.num_rows(),
            _ => 0,
        };
        assert_eq!((rows(reader.read(2, 1 << 20)), rows(reader.read(9, 1))), (2, 1));
        let position = reader.position();
        assert_eq!((rows(reader.read(9, 1 << 20)), rows(reader.read(9, 1 << 20))), (2, 0));
        reader.seek(&position).unwrap();
        let Ok(SourceRead::Rows { payload, .. }) = reader.read(1, 1 << 20) else {
            panic!("it is not the end")
        };
        let value = tidemill_operators::record::float64(payload.column(1)).unwrap().value(0);
        assert_eq!((position.0.as_str(), value), ("3", 1.5));
        assert!(reader.seek(&SourcePosition("6".into())).is_err());
    }
}
