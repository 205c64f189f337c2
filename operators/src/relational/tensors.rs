//! Tensors in expressions: positions, `max`, `top_k`, `cosine`, `x in labels` and their like.
//!
//! The interpreter knows no tensors. Typing takes each part of an expression that reads them out of the tree
//! and puts a name in its place ([`Derived`]). These parts are computed first, for all rows of a batch, in
//! the order in which typing found them; each becomes a column behind those of the input. Then the
//! expression, which has only plain values left, is evaluated as any other. A row on which such a part fails
//! has an empty value there and a reason in [`super::expression::Table`]; it fails only if the expression
//! needs that value.
mod measures;
mod source;
mod typing;

use super::expression::{Evaluated, Part, Table};
use super::typing::Kind;
use crate::record::METADATA_COLUMNS;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, BooleanArray, Float64Array, Int64Array};
use measures::{Pair, Reduction};
pub(super) use source::Source;
use source::View;
use std::collections::BTreeMap;
use std::sync::Arc;
pub(super) use typing::{FUNCTIONS, advice};

/// Rows that fail, with the reason.
pub(super) type Failures = BTreeMap<usize, String>;

/// The start of names of derived columns; no column of a stream starts like this, and no expression can name
/// it.
const PREFIX: &str = "_ ";

/// Whether a name is that of a derived column.
pub(super) fn is_derived(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// A plain value that is computed from tensors, before the rest of its expression.
#[derive(Debug, Clone)]
pub(super) struct Derived {
    pub(super) name: String,
    pub(super) kind: Kind,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    /// The only value of a tensor without dimensions.
    Value(Source),
    /// Its first dimension.
    Size(Source),
    Reduced(Reduction, Source),
    Compared(Pair, Source, Source),
    /// Whether it holds the value of an expression, of this kind.
    Holds(Source, Part, Kind),
    /// Whether it is empty.
    IsNull(Source),
}

impl What {
    /// Type of the result.
    fn kind(&self) -> Kind {
        match self {
            Self::Value(source) => typing::element_kind(source.element),
            Self::Size(_) => Kind::Int,
            Self::Reduced(reduction, source) => reduction.kind(source.element),
            Self::Compared(..) => Kind::Float,
            Self::Holds(..) | Self::IsNull(_) => Kind::Bool,
        }
    }

    /// The part as people write it.
    fn shown(&self) -> String {
        match self {
            Self::Value(source) => source.shown.clone(),
            Self::Size(source) => format!("size({})", source.shown),
            Self::Reduced(reduction, source) => format!("{}({})", reduction.name(), source.shown),
            Self::Compared(pair, a, b) => format!("{}({}, {})", pair.name(), a.shown, b.shown),
            Self::Holds(source, ..) => format!("in {}", source.shown),
            Self::IsNull(source) => format!("{} == null", source.shown),
        }
    }

    /// Whether its text says all of it: no part is an expression of its own.
    fn is_plain(&self) -> bool {
        match self {
            Self::Value(source) | Self::Size(source) | Self::Reduced(_, source) | Self::IsNull(source) => {
                source.is_plain()
            }
            Self::Compared(_, a, b) => a.is_plain() && b.is_plain(),
            Self::Holds(..) => false,
        }
    }
}

impl Derived {
    /// Computes the values for all rows: null where it fails.
    pub(super) fn evaluate(&self, table: &Table<'_>) -> (ArrayRef, Failures) {
        match &self.what {
            What::Value(source) => source.view(table).single_values(),
            What::Size(source) => {
                let view = source.view(table);
                let size = source.shape.first().copied().unwrap_or(1) as i64;
                whole_numbers(&view, |_| Ok(size))
            }
            What::Reduced(reduction, source) => {
                let view = source.view(table);
                if reduction.kind(source.element) == Kind::Float {
                    let mut row_values = Vec::new();
                    return numbers(&view, |row| {
                        view.floats(row, &mut row_values);
                        reduction.of_floats(&row_values, &source.shown)
                    });
                }
                if source.element.is_integer() {
                    let mut row_values = Vec::new();
                    return whole_numbers(&view, |row| {
                        view.ints(row, &mut row_values);
                        reduction.of_ints(&row_values)
                    });
                }
                let mut row_values = Vec::new();
                whole_numbers(&view, |row| {
                    view.floats(row, &mut row_values);
                    reduction.position(&row_values, &source.shown)
                })
            }
            What::Compared(pair, a, b) => {
                let (first, second) = (a.view(table), b.view(table));
                let (mut left, mut right) = (Vec::new(), Vec::new());
                numbers(&first, |row| match second.failed.get(&row) {
                    Some(why) => Err(why.clone()),
                    None => {
                        first.floats(row, &mut left);
                        second.floats(row, &mut right);
                        pair.of(&left, &right)
                    }
                })
            }
            What::Holds(source, value, kind) => holds(source, value, kind, table),
            What::IsNull(source) => {
                let nulls = source.place().map(|place| table.batch.column(METADATA_COLUMNS + place));
                let rows = table.batch.num_rows();
                let is_null = |row| Some(nulls.is_some_and(|column| column.is_null(row)));
                (Arc::new((0..rows).map(is_null).collect::<BooleanArray>()), Failures::new())
            }
        }
    }
}

/// Whether the tensors hold the values of an expression. An empty value is in no tensor.
fn holds(source: &Source, value: &Part, kind: &Kind, table: &Table<'_>) -> (ArrayRef, Failures) {
    let view = source.view(table);
    let column_type = kind.column_type().unwrap_or(tidemill_spec::types::ColumnType::Int64);
    let Evaluated { column, failed } = value.evaluate(table, &column_type);
    let mut failures: Failures = failed.into_iter().collect();
    failures.extend(view.failed.iter().map(|(row, why)| (*row, why.clone())));
    let (texts, ints) = (column.as_string_opt::<i32>(), column.as_primitive_opt::<Int64Type>());
    let mut row_values = Vec::new();
    let found = (0..table.batch.num_rows()).map(|row| {
        if failures.contains_key(&row) {
            return None;
        }
        if column.is_null(row) {
            return Some(false);
        }
        match (texts, ints) {
            (Some(texts), _) => Some(view.has_text(row, texts.value(row))),
            (_, Some(ints)) => {
                view.ints(row, &mut row_values);
                Some(row_values.contains(&ints.value(row)))
            }
            _ => None,
        }
    });
    let found: BooleanArray = found.collect();
    (Arc::new(found), failures)
}

/// A column of floats, one for each row of a view that has not failed.
fn numbers(view: &View, mut value: impl FnMut(usize) -> Result<f64, String>) -> (ArrayRef, Failures) {
    let mut failed = view.failed.clone();
    let values = (0..view.rows).map(|row| kept(row, &mut failed, &mut value)).collect::<Float64Array>();
    (Arc::new(values), failed)
}

/// A column of whole numbers, as [`numbers`].
fn whole_numbers(view: &View, mut value: impl FnMut(usize) -> Result<i64, String>) -> (ArrayRef, Failures) {
    let mut failed = view.failed.clone();
    let values = (0..view.rows).map(|row| kept(row, &mut failed, &mut value)).collect::<Int64Array>();
    (Arc::new(values), failed)
}

fn kept<T>(
    row: usize,
    failed: &mut Failures,
    value: &mut impl FnMut(usize) -> Result<T, String>,
) -> Option<T> {
    if failed.contains_key(&row) {
        return None;
    }
    value(row).map_err(|why| failed.insert(row, why)).ok()
}

#[cfg(test)]
mod tests;
