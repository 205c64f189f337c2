//! Tensors that an expression reads: columns, their rows, and the largest values of others.
use super::{Failures, measures};
use crate::record::{METADATA_COLUMNS, arrow_type};
use crate::relational::expression::{Evaluated, Part, Table};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float16Type, Float32Type, Float64Type, Int8Type, Int32Type, Int64Type, UInt8Type};
use arrow_array::{Array, ArrayRef, BooleanArray, FixedSizeListArray, Float64Array, Int64Array, UInt64Array};
use arrow_buffer::NullBuffer;
use arrow_schema::DataType;
use std::sync::Arc;
use tidemill_spec::types::{ColumnType, ElementType};

/// A part of an expression that gives a tensor for each row.
#[derive(Debug, Clone)]
pub(in crate::relational) struct Source {
    pub(in crate::relational) element: ElementType,
    pub(in crate::relational) shape: Vec<usize>,
    /// As people write it, for messages.
    pub(in crate::relational) shown: String,
    /// Number of values before its own within the tensor of `origin`.
    first: usize,
    origin: Origin,
}

#[derive(Debug, Clone)]
enum Origin {
    /// The payload column at this place, of this many dimensions.
    Column { place: usize, dimensions: usize },
    /// The part of a tensor at a computed position of its first dimension.
    At { of: Box<Source>, index: Part },
    /// The largest values, or their positions.
    Largest { of: Box<Source>, k: usize, positions: bool },
}

impl Source {
    /// The tensor of a column.
    pub(super) fn column(name: &str, place: usize, element: ElementType, shape: &[usize]) -> Self {
        let origin = Origin::Column { place, dimensions: shape.len() };
        Self { element, shape: shape.into(), shown: name.into(), first: 0, origin }
    }

    /// The part at a position that exists.
    pub(super) fn at(mut self, position: usize) -> Self {
        self.shape.remove(0);
        self.first += position * self.count();
        self.shown = format!("{}[{position}]", self.shown);
        self
    }

    /// The part at a computed position.
    pub(super) fn at_computed(self, index: Part) -> Self {
        Self {
            element: self.element,
            shape: self.shape[1..].into(),
            shown: format!("{}[...]", self.shown),
            first: 0,
            origin: Origin::At { of: Box::new(self), index },
        }
    }

    /// The `k` largest values of a tensor of one dimension, or their positions.
    pub(super) fn largest(self, k: usize, positions: bool) -> Self {
        Self {
            element: if positions { ElementType::Int64 } else { self.element },
            shape: vec![k],
            shown: format!("{}({}, {k})", if positions { "top_positions" } else { "top_k" }, self.shown),
            first: 0,
            origin: Origin::Largest { of: Box::new(self), k, positions },
        }
    }

    /// Number of values.
    pub(super) fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Type of a column of such tensors.
    pub(in crate::relational) fn column_type(&self) -> ColumnType {
        ColumnType::Tensor { element: self.element, shape: self.shape.clone() }
    }

    /// Whether its text says all of it.
    pub(super) fn is_plain(&self) -> bool {
        match &self.origin {
            Origin::Column { .. } => true,
            Origin::At { .. } => false,
            Origin::Largest { of, .. } => of.is_plain(),
        }
    }

    /// The payload column that it is, all of it.
    pub(super) fn place(&self) -> Option<usize> {
        match self.origin {
            Origin::Column { place, dimensions } if dimensions == self.shape.len() => Some(place),
            _ => None,
        }
    }

    /// Computes a column of the tensors. Empty ones of a column stay empty, as other values of a column do.
    pub(in crate::relational) fn evaluate(&self, table: &Table<'_>) -> Evaluated {
        if let Some(place) = self.place() {
            let column = Arc::clone(table.batch.column(METADATA_COLUMNS + place));
            return Evaluated { column, failed: Vec::new() };
        }
        let view = self.view(table);
        let count = self.count();
        let places = (0..view.rows).flat_map(|row| {
            let start = view.start(row);
            (start..start + count).map(|place| place as u64)
        });
        let values = taken(&view.values, &places.collect::<Vec<_>>());
        let valid: Vec<bool> = (0..view.rows).map(|row| !view.failed.contains_key(&row)).collect();
        let column = lists(&self.column_type(), values, NullBuffer::from(valid));
        Evaluated { column, failed: view.failed.into_iter().collect() }
    }

    /// Finds the tensors of all rows.
    pub(super) fn view(&self, table: &Table<'_>) -> View {
        let count = self.count();
        match &self.origin {
            Origin::Column { place, .. } => {
                let name = table.batch.schema_ref().field(METADATA_COLUMNS + place).name().clone();
                let list = table.batch.column(METADATA_COLUMNS + place).as_fixed_size_list();
                let empty = (0..list.len()).filter(|row| list.is_null(*row));
                let failed = match list.null_count() {
                    0 => Failures::new(),
                    _ => empty.map(|row| (row, format!("column `{name}` is empty (null)"))).collect(),
                };
                View {
                    values: Arc::clone(list.values()),
                    starts: Starts::Every { first: self.first, stride: list.value_length() as usize },
                    count,
                    rows: list.len(),
                    failed,
                }
            }
            Origin::At { of, index } => {
                let mut view = of.view(table);
                let Evaluated { column, failed } = index.evaluate(table, &ColumnType::Int64);
                for (row, why) in failed {
                    view.failed.entry(row).or_insert(why);
                }
                let positions = column.as_primitive::<Int64Type>();
                let length = of.shape.first().copied().unwrap_or(0);
                let width = of.count().checked_div(length).unwrap_or(0);
                let starts = (0..view.rows).map(|row| {
                    let start = view.start(row);
                    if view.failed.contains_key(&row) {
                        return start;
                    }
                    let why = match positions.is_valid(row).then(|| positions.value(row)) {
                        None => "the position is empty (null)".to_owned(),
                        Some(position) => match usize::try_from(position) {
                            Ok(at) if at < length => return start + at * width + self.first,
                            _ => format!("`{}` has {length} positions from 0 on, not {position}", of.shown),
                        },
                    };
                    view.failed.insert(row, why);
                    start
                });
                let starts = starts.collect();
                View { starts: Starts::Each(starts), count, ..view }
            }
            Origin::Largest { of, k, positions } => self.largest_of(&of.view(table), of, *k, *positions),
        }
    }

    fn largest_of(&self, view: &View, of: &Self, k: usize, positions: bool) -> View {
        let (mut failed, mut places) = (view.failed.clone(), Vec::with_capacity(view.rows * k));
        let (mut floats, mut ints) = (Vec::new(), Vec::new());
        for row in 0..view.rows {
            let found = if failed.contains_key(&row) {
                Ok(Vec::new())
            } else if of.element.is_integer() {
                view.ints(row, &mut ints);
                Ok(measures::largest_whole(&ints, k))
            } else {
                view.floats(row, &mut floats);
                measures::largest(&floats, k, &of.shown)
            };
            let mut found = found.unwrap_or_else(|why| {
                failed.insert(row, why);
                Vec::new()
            });
            found.resize(k, 0); // a row that failed
            let start = if positions { 0 } else { view.start(row) };
            places.extend(found.into_iter().map(|place| (start + place) as u64));
        }
        let values: ArrayRef = match positions {
            true => Arc::new(places.iter().map(|place| *place as i64).collect::<Int64Array>()),
            false => taken(&view.values, &places),
        };
        let starts = Starts::Every { first: self.first, stride: k };
        View { values, starts, count: self.count(), rows: view.rows, failed }
    }
}

/// Values of an array without empty ones, at places that it has.
fn taken(values: &ArrayRef, places: &[u64]) -> ArrayRef {
    let places = UInt64Array::from(places.to_vec());
    arrow_select::take::take(values, &places, None).expect("every tensor of the array has these places")
}

/// A column of tensors, with a row for each bit of `valid`.
fn lists(column_type: &ColumnType, values: ArrayRef, valid: NullBuffer) -> ArrayRef {
    let rows = valid.len();
    let DataType::FixedSizeList(field, count) = arrow_type(column_type) else {
        return arrow_array::new_null_array(&arrow_type(column_type), rows);
    };
    let valid = Some(valid).filter(|valid| valid.null_count() > 0);
    let lists = FixedSizeListArray::try_new_with_length(field, count, values, valid, rows);
    Arc::new(lists.expect("as many values as the rows need"))
}

enum Starts {
    Every { first: usize, stride: usize },
    Each(Vec<usize>),
}

/// The tensors of all rows: `count` values of each, from its start on.
pub(super) struct View {
    values: ArrayRef,
    starts: Starts,
    count: usize,
    pub(super) rows: usize,
    pub(super) failed: Failures,
}

/// Runs a piece of code for the values of a numeric array, whatever their width; nothing for others.
macro_rules! with_numbers {
    ($array:expr, $values:ident => $body:expr) => {
        match $array.data_type() {
            DataType::Float32 => with_numbers!(@ Float32Type, $array, $values, $body),
            DataType::Float16 => with_numbers!(@ Float16Type, $array, $values, $body),
            DataType::Float64 => with_numbers!(@ Float64Type, $array, $values, $body),
            DataType::Int64 => with_numbers!(@ Int64Type, $array, $values, $body),
            DataType::Int32 => with_numbers!(@ Int32Type, $array, $values, $body),
            DataType::Int8 => with_numbers!(@ Int8Type, $array, $values, $body),
            DataType::UInt8 => with_numbers!(@ UInt8Type, $array, $values, $body),
            _ => {}
        }
    };
    (@ $kind:ty, $array:expr, $values:ident, $body:expr) => {{
        let $values = $array.as_primitive::<$kind>().values();
        $body
    }};
}

/// A number of a tensor.
trait Number: Copy {
    fn float(self) -> f64;
    /// The whole number; meaningless for floats, which no caller asks for it.
    fn whole(self) -> i64;
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Number for $type {
            #[allow(clippy::unnecessary_cast)]
            fn float(self) -> f64 {
                self as f64
            }
            #[allow(clippy::unnecessary_cast)]
            fn whole(self) -> i64 {
                self as i64
            }
        }
    )*};
}
numbers!(f32, f64, i64, i32, i8, u8);

impl Number for half::f16 {
    fn float(self) -> f64 {
        self.to_f64()
    }

    fn whole(self) -> i64 {
        self.to_f64() as i64
    }
}

impl View {
    fn start(&self, row: usize) -> usize {
        match &self.starts {
            Starts::Every { first, stride } => row * stride + first,
            Starts::Each(starts) => starts[row],
        }
    }

    /// Puts the numbers of a row in place of those in `into`.
    pub(super) fn floats(&self, row: usize, into: &mut Vec<f64>) {
        let start = self.start(row);
        into.clear();
        with_numbers!(self.values, values => {
            into.extend(values[start..start + self.count].iter().map(|value| value.float()));
        });
    }

    /// Puts the whole numbers of a row in place of those in `into`.
    pub(super) fn ints(&self, row: usize, into: &mut Vec<i64>) {
        let start = self.start(row);
        into.clear();
        with_numbers!(self.values, values => {
            into.extend(values[start..start + self.count].iter().map(|value| value.whole()));
        });
    }

    /// Whether a tensor of texts has this one.
    pub(super) fn has_text(&self, row: usize, text: &str) -> bool {
        let start = self.start(row);
        let Some(texts) = self.values.as_string_opt::<i32>() else { return false };
        (start..start + self.count).any(|place| texts.value(place) == text)
    }

    /// The first value of each row, in a column of float64, int64, bool or text.
    pub(super) fn single_values(self) -> (ArrayRef, Failures) {
        let places = || (0..self.rows).map(|row| (!self.failed.contains_key(&row)).then(|| self.start(row)));
        let column: ArrayRef = match self.values.data_type() {
            DataType::Boolean => {
                let values = self.values.as_boolean();
                Arc::new(
                    places().map(|place| place.map(|place| values.value(place))).collect::<BooleanArray>(),
                )
            }
            DataType::Utf8 => {
                let values = self.values.as_string::<i32>();
                let texts = places().map(|place| place.map(|place| values.value(place)));
                Arc::new(texts.collect::<arrow_array::StringArray>())
            }
            DataType::Float16 | DataType::Float32 | DataType::Float64 => {
                let mut floats = Vec::new();
                with_numbers!(self.values, values => {
                    floats = places().map(|place| place.map(|place| values[place].float())).collect();
                });
                Arc::new(Float64Array::from(floats))
            }
            _ => {
                let mut ints = Vec::new();
                with_numbers!(self.values, values => {
                    ints = places().map(|place| place.map(|place| values[place].whole())).collect();
                });
                Arc::new(Int64Array::from(ints))
            }
        };
        (column, self.failed)
    }
}
