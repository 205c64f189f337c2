//! Aggregates of windows: count, sum, mean, min, max. Each is independent of the order of the rows.
use super::exact_sum::ExactSum;
use super::expression::Cell;
use crate::record::METADATA_COLUMNS;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, RecordBatch};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use tidemill_spec::types::ColumnType;

/// An aggregate function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Function {
    /// Number of rows, or of values that are not empty.
    Count,
    /// Sum of the values.
    Sum,
    /// Sum divided by the number of values.
    Mean,
    /// Least value.
    Min,
    /// Largest value.
    Max,
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Function::Count => "count",
            Function::Sum => "sum",
            Function::Mean => "mean",
            Function::Min => "min",
            Function::Max => "max",
        })
    }
}

/// A function on a column.
#[derive(Debug, Clone)]
pub(crate) struct Aggregate {
    function: Function,
    /// Payload position and type of the column.
    column: Option<(usize, ColumnType)>,
}

impl Aggregate {
    /// Creates an aggregate of an int64 or float64 column; `count` takes any column or none.
    pub(crate) fn new(function: Function, column: Option<(usize, ColumnType)>) -> Self {
        Self { function, column }
    }

    /// Type of the result.
    pub(crate) fn result(&self) -> ColumnType {
        match (self.function, &self.column) {
            (Function::Count, _) => ColumnType::Int64,
            (Function::Mean, _) => ColumnType::Float64,
            (_, Some((_, column_type))) => column_type.clone(),
            (_, None) => ColumnType::Int64,
        }
    }

    /// Returns the state before any row.
    pub(crate) fn start(&self) -> Accumulator {
        let float = self.column.as_ref().is_some_and(|(_, t)| *t == ColumnType::Float64);
        match (self.function, float) {
            (Function::Count, _) => Accumulator::Count(0),
            (Function::Sum | Function::Mean, false) => Accumulator::IntSum { sum: 0, values: 0 },
            (Function::Sum | Function::Mean, true) => {
                Accumulator::FloatSum { sum: ExactSum::default(), values: 0 }
            }
            (Function::Min | Function::Max, false) => Accumulator::Int(None),
            (Function::Min | Function::Max, true) => Accumulator::Float(None),
        }
    }

    /// Adds a row of a batch with metadata.
    pub(crate) fn add(&self, accumulator: &mut Accumulator, batch: &RecordBatch, row: usize) {
        let column = self.column.as_ref().map(|(index, _)| batch.column(METADATA_COLUMNS + index));
        if column.is_some_and(|column| column.is_null(row)) {
            return;
        }
        let int = || column.and_then(|c| c.as_primitive_opt::<Int64Type>()).map_or(0, |c| c.value(row));
        let float = || column.and_then(|c| c.as_primitive_opt::<Float64Type>()).map_or(0.0, |c| c.value(row));
        match accumulator {
            Accumulator::Count(count) => *count += 1,
            Accumulator::IntSum { sum, values } => {
                *sum += i128::from(int());
                *values += 1;
            }
            Accumulator::FloatSum { sum, values } => {
                sum.add(float());
                *values += 1;
            }
            Accumulator::Int(best) => self.take_int(best, int()),
            Accumulator::Float(best) => self.take_float(best, float()),
        }
    }

    /// Adds the rows of another accumulator of this aggregate.
    pub(crate) fn merge(&self, accumulator: &mut Accumulator, other: &Accumulator) {
        use Accumulator::{Count, Float, FloatSum, Int, IntSum};
        match (accumulator, other) {
            (Count(count), Count(more)) => *count += more,
            (IntSum { sum, values }, IntSum { sum: more, values: n }) => {
                *sum += more;
                *values += n;
            }
            (FloatSum { sum, values }, FloatSum { sum: more, values: n }) => {
                sum.merge(more);
                *values += n;
            }
            (Int(best), Int(Some(value))) => self.take_int(best, *value),
            (Float(best), Float(Some(value))) => self.take_float(best, *value),
            (Int(_), Int(None)) | (Float(_), Float(None)) => {}
            _ => unreachable!("all accumulators of an aggregate start the same"),
        }
    }

    fn take_int(&self, best: &mut Option<i64>, value: i64) {
        let least = self.function == Function::Min;
        *best = Some(best.map_or(value, |b| if least { b.min(value) } else { b.max(value) }));
    }

    fn take_float(&self, best: &mut Option<f64>, value: f64) {
        // All NaN become one, so that the total order has a single largest value.
        let value = Some(value).filter(|v| !v.is_nan()).unwrap_or(f64::NAN.abs());
        let less = best.is_some_and(|b| value.total_cmp(&b).is_lt());
        let least = self.function == Function::Min;
        if best.is_none_or(|b| value.total_cmp(&b).is_ne() && less == least) {
            *best = Some(value);
        }
    }

    /// Returns the result of a closed window.
    ///
    /// # Errors
    /// A message if a sum of int64 overflows.
    pub(crate) fn finish(&self, accumulator: &Accumulator) -> Result<Cell<'static>, String> {
        let mean = self.function == Function::Mean;
        Ok(match accumulator {
            Accumulator::Count(count) => Cell::Int(*count),
            Accumulator::IntSum { values: 0, .. } | Accumulator::FloatSum { values: 0, .. } => Cell::Null,
            Accumulator::IntSum { sum, values } if mean => Cell::Float(*sum as f64 / *values as f64),
            Accumulator::IntSum { sum, .. } => {
                Cell::Int(i64::try_from(*sum).map_err(|_| format!("the sum {sum} does not fit into int64"))?)
            }
            Accumulator::FloatSum { sum, values } if mean => Cell::Float(sum.mean(*values)),
            Accumulator::FloatSum { sum, .. } => Cell::Float(sum.value()),
            Accumulator::Int(best) => best.map_or(Cell::Null, Cell::Int),
            Accumulator::Float(best) => best.map_or(Cell::Null, Cell::Float),
        })
    }
}

/// The state of one aggregate of one group.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Accumulator {
    Count(i64),
    IntSum { sum: i128, values: u64 },
    FloatSum { sum: ExactSum, values: u64 },
    Int(Option<i64>),
    Float(Option<f64>),
}

impl Accumulator {
    /// Bytes of memory beside the value itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::FloatSum { .. } => size_of::<[u64; 34]>(),
            _ => 0,
        }
    }

    /// Appends the state: its length, then the content.
    pub(crate) fn encode(&self, bytes: &mut Vec<u8>) {
        let content = match self {
            Self::Count(count) => count.to_le_bytes().to_vec(),
            Self::IntSum { sum, values } => [&sum.to_le_bytes()[..], &values.to_le_bytes()].concat(),
            Self::FloatSum { sum, values } => [&values.to_le_bytes()[..], &sum.to_bytes()].concat(),
            Self::Int(best) => best.map_or(Vec::new(), |b| b.to_le_bytes().to_vec()),
            Self::Float(best) => best.map_or(Vec::new(), |b| b.to_le_bytes().to_vec()),
        };
        bytes.extend((content.len() as u32).to_le_bytes());
        bytes.extend(content);
    }

    /// Reads a state of the same kind as `self` from the front of `bytes` and removes it there.
    pub(crate) fn decode(&self, bytes: &mut &[u8]) -> Option<Self> {
        let (length, rest) = bytes.split_at_checked(4)?;
        let length = u32::from_le_bytes(length.try_into().ok()?) as usize;
        let (content, rest) = rest.split_at_checked(length)?;
        *bytes = rest;
        Some(match self {
            Self::Count(_) => Self::Count(i64::from_le_bytes(content.try_into().ok()?)),
            Self::IntSum { .. } => {
                let (sum, values) = content.split_at_checked(16)?;
                Self::IntSum {
                    sum: i128::from_le_bytes(sum.try_into().ok()?),
                    values: u64::from_le_bytes(values.try_into().ok()?),
                }
            }
            Self::FloatSum { .. } => {
                let (values, sum) = content.split_at_checked(8)?;
                Self::FloatSum {
                    sum: ExactSum::from_bytes(sum)?,
                    values: u64::from_le_bytes(values.try_into().ok()?),
                }
            }
            Self::Int(_) if content.is_empty() => Self::Int(None),
            Self::Int(_) => Self::Int(Some(i64::from_le_bytes(content.try_into().ok()?))),
            Self::Float(_) if content.is_empty() => Self::Float(None),
            Self::Float(_) => Self::Float(Some(f64::from_le_bytes(content.try_into().ok()?))),
        })
    }
}
