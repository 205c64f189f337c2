//! Event times of records, from one of their columns.
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, RecordBatch};
use schemars::JsonSchema;
use serde::Deserialize;
use tidemill_operators::record::EventTime;
use tidemill_spec::diagnostic::{Diagnostic, suggestion};
use tidemill_spec::span::Located;
use tidemill_spec::types::{ColumnType, StreamType};

/// Unit of event times, counted from 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TimeUnit {
    /// Seconds.
    S,
    /// Milliseconds.
    #[default]
    Ms,
    /// Microseconds.
    Us,
    /// Nanoseconds.
    Ns,
}

impl TimeUnit {
    fn of_int(self, value: i64) -> Option<EventTime> {
        match self {
            Self::S => value.checked_mul(1_000_000),
            Self::Ms => value.checked_mul(1000),
            Self::Us => Some(value),
            Self::Ns => Some(value.div_euclid(1000)),
        }
    }

    fn of_float(self, value: f64) -> Option<EventTime> {
        let time = match self {
            Self::S => value * 1e6,
            Self::Ms => value * 1e3,
            Self::Us => value,
            Self::Ns => value / 1e3,
        };
        (time.abs() < 9e18).then(|| time.round() as i64)
    }
}

/// The column with the event times, and their unit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    column: usize,
    unit: TimeUnit,
}

impl Times {
    /// Finds the column.
    ///
    /// # Errors
    /// There is no such column, or it has no numbers.
    pub(crate) fn of(
        name: &Located<String>,
        unit: TimeUnit,
        stream: &StreamType,
    ) -> Result<Self, Diagnostic> {
        let Some(column) = stream.index_of(name) else {
            let names = stream.columns.iter().map(|column| column.name.as_str());
            return Err(Diagnostic::error(
                "E0605",
                format!("`event_time` names no column of the source: `{name}`"),
            )
            .at(name.span.clone())
            .with_help(suggestion(name, names, "columns of the source")));
        };
        match &stream.columns[column].column_type {
            ColumnType::Int64 | ColumnType::Float64 => Ok(Self { column, unit }),
            other => {
                let text = format!("the event time `{name}` is {other}, expected int64 or float64");
                let help = "give the time as a number, such as `datetime.timestamp()` with `time_unit: s`";
                Err(Diagnostic::error("E0606", text).at(name.span.clone()).with_help(help))
            }
        }
    }

    /// The event time of each row; `None` where it is empty or out of range.
    pub(crate) fn read(&self, payload: &RecordBatch) -> Vec<Option<EventTime>> {
        let column = payload.column(self.column);
        match column.as_primitive_opt::<Int64Type>() {
            Some(numbers) => numbers.iter().map(|value| self.unit.of_int(value?)).collect(),
            None => match column.as_primitive_opt::<Float64Type>() {
                Some(numbers) => numbers.iter().map(|value| self.unit.of_float(value?)).collect(),
                None => vec![None; column.len()],
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_microseconds_or_are_out_of_range() {
        assert_eq!(TimeUnit::S.of_int(2), Some(2_000_000));
        assert_eq!(TimeUnit::Ns.of_int(-1), Some(-1));
        assert_eq!(TimeUnit::S.of_int(i64::MAX), None);
        assert_eq!(TimeUnit::S.of_float(1.5), Some(1_500_000));
        assert_eq!(TimeUnit::Ms.of_float(f64::NAN), None);
        assert_eq!(TimeUnit::Us.of_float(1e300), None);
    }
}
