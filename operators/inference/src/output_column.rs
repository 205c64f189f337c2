//! The values of one output column of a model.
use crate::steps::{StepsError, wrong};
use crate::tensor::TensorData;
use tidemill_spec::manifest::OutputType;

/// The values of one output column, one for each row.
#[derive(Debug, Clone, PartialEq)]
pub enum OutputColumn {
    /// Texts.
    Text(Vec<String>),
    /// Floats.
    Float64(Vec<f64>),
    /// Whole numbers.
    Int64(Vec<i64>),
    /// Truth values.
    Bool(Vec<bool>),
    /// The values of all rows, one after another.
    Tensor(TensorData),
}

impl OutputColumn {
    /// Appends the values of other rows of the same column.
    ///
    /// # Errors
    /// [`StepsError`] if they have another type.
    pub(crate) fn append(&mut self, more: Self) -> Result<(), StepsError> {
        match (self, more) {
            (Self::Text(all), Self::Text(more)) => all.extend(more),
            (Self::Float64(all), Self::Float64(more)) => all.extend(more),
            (Self::Int64(all), Self::Int64(more)) => all.extend(more),
            (Self::Bool(all), Self::Bool(more)) => all.extend(more),
            (Self::Tensor(all), Self::Tensor(more)) => {
                return all.append(more).map_err(|error| StepsError { message: error.to_string() });
            }
            _ => return wrong("the rows of a column have different types"),
        }
        Ok(())
    }

    /// Returns the rows in another order: the row at `order[i]` becomes row `i`.
    pub(crate) fn reordered(self, order: &[usize]) -> Self {
        fn each<T: Clone>(values: &[T], order: &[usize]) -> Vec<T> {
            order.iter().filter_map(|row| values.get(*row).cloned()).collect()
        }
        match self {
            Self::Text(values) => Self::Text(each(&values, order)),
            Self::Float64(values) => Self::Float64(each(&values, order)),
            Self::Int64(values) => Self::Int64(each(&values, order)),
            Self::Bool(values) => Self::Bool(each(&values, order)),
            Self::Tensor(values) => {
                let width = values.len() / order.len().max(1);
                let places: Vec<usize> =
                    order.iter().flat_map(|row| row * width..(row + 1) * width).collect();
                Self::Tensor(values.picked(&places))
            }
        }
    }
}

/// One value for each row.
pub(crate) fn scalars(data: TensorData, scalar: OutputType) -> OutputColumn {
    match (scalar, data) {
        (OutputType::Text, TensorData::Text(values)) => OutputColumn::Text(values),
        (OutputType::Bool, TensorData::Bool(values)) => OutputColumn::Bool(values),
        (OutputType::Float64, TensorData::Float64(values)) => OutputColumn::Float64(values),
        (OutputType::Int64, TensorData::Int64(values)) => OutputColumn::Int64(values),
        (OutputType::Int64, TensorData::Int32(values)) => {
            OutputColumn::Int64(values.into_iter().map(i64::from).collect())
        }
        (OutputType::Int64, TensorData::Int8(values)) => {
            OutputColumn::Int64(values.into_iter().map(i64::from).collect())
        }
        (OutputType::Int64, TensorData::Uint8(values)) => {
            OutputColumn::Int64(values.into_iter().map(i64::from).collect())
        }
        (OutputType::Text | OutputType::Tensor, data) | (_, data @ TensorData::Text(_)) => {
            OutputColumn::Tensor(data)
        }
        (OutputType::Bool, data) => {
            OutputColumn::Bool(data.to_f64().into_iter().map(|value| value != 0.0).collect())
        }
        (OutputType::Float64 | OutputType::Int64, data) => OutputColumn::Float64(data.to_f64()),
    }
}
