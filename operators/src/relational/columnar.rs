//! Evaluates expressions one column at a time, not row by row as the CEL interpreter does.
//!
//! An expression becomes a tree of closures. Each turns a batch into one [`Lane`]. A lane never says *why* a row
//! fails: rows on which an operator fails (overflow, division by zero, an empty value) are left *undecided*, and so
//! is every value that depends on them. [`super::expression`] passes undecided rows to the CEL interpreter, which
//! alone decides what a failure is and words its message. A lane may leave more rows undecided than fail; it must
//! never decide one differently.
//!
//! The loops are written out here because arrow's compute kernels stop a batch at the first overflow, order floats
//! totally (NaN above all numbers, -0.0 below 0.0) and spread empty values through `&&` and `||`. Expressions with a
//! part that has no loop (a computed pattern, a computed list) have no lanes; all their rows are evaluated one by
//! one.
mod texts;

use super::{float_order, tensors, widening};
use crate::record::METADATA_COLUMNS;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch};
use arrow_buffer::{BooleanBuffer, NullBuffer, ScalarBuffer};
use cel::IdedExpr;
use cel::common::ast::{CallExpr, Expr, LiteralValue, operators as op};
use std::sync::Arc;
use texts::Texts;
use tidemill_spec::types::{ColumnType, StreamType};

/// Rows for which a condition holds; `None` stands for no rows.
type Mask = Option<BooleanBuffer>;
type Ints = ScalarBuffer<i64>;
type Floats = ScalarBuffer<f64>;
type Bools = BooleanBuffer;

/// The values of one node for the rows of a batch.
struct Lane<T> {
    /// One value per row; meaningless for rows that are null or undecided.
    values: T,
    null: Mask,
    undecided: Mask,
}

type Compute<T> = Box<dyn Fn(&RecordBatch) -> Lane<T> + Send + Sync>;

/// A node by the type of its values.
enum Node {
    Int(Compute<Ints>),
    Float(Compute<Floats>),
    Bool(Compute<Bools>),
    /// The second field holds the text if all rows have the same.
    Text(Compute<Texts>, Option<Arc<str>>),
    Null,
}

/// An expression that can be evaluated by column.
pub(super) struct Columnar(Node);

impl Columnar {
    /// Compiles a typed expression over `input`; `None` if a part of it must be evaluated row by row.
    pub(super) fn compile(tree: &IdedExpr, input: &StreamType) -> Option<Self> {
        match compile(tree, input)? {
            Node::Null => None,
            node => Some(Self(node)),
        }
    }

    /// Returns the values for a batch with metadata columns, and the rows that must be evaluated one by one.
    pub(super) fn evaluate(&self, batch: &RecordBatch) -> (ArrayRef, Option<BooleanBuffer>) {
        fn valid(null: Mask) -> Option<NullBuffer> {
            null.map(|null| NullBuffer::new(!&null))
        }
        let (array, undecided): (ArrayRef, Mask) = match &self.0 {
            Node::Int(compute) => {
                let lane = compute(batch);
                (Arc::new(Int64Array::new(lane.values, valid(lane.null))), lane.undecided)
            }
            Node::Float(compute) => {
                let lane = compute(batch);
                (Arc::new(Float64Array::new(lane.values, valid(lane.null))), lane.undecided)
            }
            Node::Bool(compute) => {
                let lane = compute(batch);
                (Arc::new(BooleanArray::new(lane.values, valid(lane.null))), lane.undecided)
            }
            Node::Text(compute, _) => {
                let lane = compute(batch);
                (lane.values.into_array(batch.num_rows(), valid(lane.null)), lane.undecided)
            }
            Node::Null => unreachable!("refused when it was compiled"),
        };
        (array, undecided.filter(|rows| rows.count_set_bits() > 0))
    }
}

fn compile(node: &IdedExpr, input: &StreamType) -> Option<Node> {
    match &node.expr {
        Expr::Literal(literal) => Some(match literal {
            LiteralValue::Int(value) => {
                Node::Int(same(*value.inner(), |value, rows| vec![value; rows].into()))
            }
            LiteralValue::Double(value) => {
                Node::Float(same(*value.inner(), |value, rows| vec![value; rows].into()))
            }
            LiteralValue::Boolean(value) => Node::Bool(same(*value.inner(), |value, rows| match value {
                true => BooleanBuffer::new_set(rows),
                false => BooleanBuffer::new_unset(rows),
            })),
            LiteralValue::String(text) => texts::constant(text.inner()),
            LiteralValue::Null => Node::Null,
            _ => return None,
        }),
        Expr::Ident(name) => {
            let index = input.index_of(name)?;
            let place = METADATA_COLUMNS + index;
            let read = if tensors::is_derived(name) { Reading::Derived } else { Reading::Given };
            Some(match input.columns[index].column_type {
                ColumnType::Int64 => Node::Int(Box::new(move |batch| {
                    let array = batch.column(place).as_primitive::<Int64Type>();
                    read.lane(array, array.values().clone())
                })),
                ColumnType::Float64 => Node::Float(Box::new(move |batch| {
                    let array = batch.column(place).as_primitive::<Float64Type>();
                    read.lane(array, array.values().clone())
                })),
                ColumnType::Bool => Node::Bool(Box::new(move |batch| {
                    let array = batch.column(place).as_boolean();
                    read.lane(array, array.values().clone())
                })),
                ColumnType::Text => Node::Text(
                    Box::new(move |batch| {
                        let array = batch.column(place).as_string::<i32>();
                        read.lane(array, Texts::Each(array.clone()))
                    }),
                    None,
                ),
                _ => return None,
            })
        }
        Expr::Call(call) => compile_call(call, input),
        _ => None,
    }
}

fn compile_call(call: &CallExpr, input: &StreamType) -> Option<Node> {
    let name = call.func_name.as_str();
    if let (op::IN, [value, list]) = (name, call.args.as_slice()) {
        return compile_in(compile(value, input)?, list);
    }
    let mut arguments = Vec::new();
    let mut space = "";
    match call.target.as_deref() {
        Some(IdedExpr { expr: Expr::Ident(name), .. }) if name == "math" => space = "math",
        Some(receiver) => arguments.push(compile(receiver, input)?),
        None => {}
    }
    for argument in &call.args {
        arguments.push(compile(argument, input)?);
    }
    if space == "math" {
        return compile_math(name, arguments);
    }
    let mut arguments = arguments.into_iter();
    let taken = (arguments.next(), arguments.next(), arguments.next());
    match taken {
        (Some(condition), Some(yes), Some(no)) if name == op::CONDITIONAL => choose(condition, yes, no),
        (Some(a), Some(b), None) => match (a, b) {
            (Node::Null, Node::Null) => None,
            (value, Node::Null) | (Node::Null, value) => is_null(name, value),
            (Node::Int(a), Node::Int(b)) => ints(name, a, b),
            (Node::Float(a), Node::Float(b)) => floats(name, a, b),
            (Node::Bool(a), Node::Bool(b)) => bools(name, a, b),
            (a, b) => texts::compile(name, [Some(a), Some(b), None]),
        },
        (Some(a), None, None) => match (name, a) {
            (op::LOGICAL_NOT, Node::Bool(a)) => Some(Node::Bool(strict(a, |a, _| (!a, None)))),
            (op::NEGATE, Node::Int(a)) => Some(Node::Int(checked_one(a, i64::overflowing_neg))),
            (op::NEGATE, Node::Float(a)) => Some(Node::Float(float_one(a, |a| -a))),
            ("int", Node::Int(a)) => Some(Node::Int(strict(a, |a, _| (a.clone(), None)))),
            ("double", Node::Float(a)) => Some(Node::Float(strict(a, |a, _| (a.clone(), None)))),
            ("double", Node::Int(a)) => Some(Node::Float(strict(a, |a, _| (as_floats(a), None)))),
            (widening::WIDEN, Node::Int(a)) => Some(Node::Float(Box::new(move |batch| {
                let Lane { values, null, undecided } = a(batch);
                Lane { values: as_floats(&values), null, undecided }
            }))),
            ("int", Node::Float(a)) => Some(Node::Int(strict(a, |a, rows| {
                // Both ends of the range are excluded, as in CEL.
                let fits = |a: f64| a > i64::MIN as f64 && a < i64::MAX as f64;
                let values = a.iter().map(|a| *a as i64).collect::<Vec<_>>().into();
                (values, failing(rows, |row| !fits(a[row])))
            }))),
            (_, a) => texts::compile(name, [Some(a), None, None]),
        },
        (a, b, c) => texts::compile(name, [a, b, c]),
    }
}

fn compile_math(name: &str, arguments: Vec<Node>) -> Option<Node> {
    let [argument] = <[Node; 1]>::try_from(arguments).ok()?;
    match (name, argument) {
        ("abs", Node::Int(a)) => Some(Node::Int(checked_one(a, i64::overflowing_abs))),
        ("abs", Node::Float(a)) => Some(Node::Float(float_one(a, f64::abs))),
        ("ceil", Node::Float(a)) => Some(Node::Float(float_one(a, f64::ceil))),
        ("floor", Node::Float(a)) => Some(Node::Float(float_one(a, f64::floor))),
        ("round", Node::Float(a)) => Some(Node::Float(float_one(a, f64::round))),
        _ => None,
    }
}

fn ints(name: &str, a: Compute<Ints>, b: Compute<Ints>) -> Option<Node> {
    Some(match name {
        op::ADD => Node::Int(checked(a, b, i64::overflowing_add)),
        op::SUBSTRACT => Node::Int(checked(a, b, i64::overflowing_sub)),
        op::MULTIPLY => Node::Int(checked(a, b, i64::overflowing_mul)),
        op::DIVIDE => Node::Int(checked(a, b, |a, b| if b == 0 { (0, true) } else { a.overflowing_div(b) })),
        op::MODULO => Node::Int(checked(a, b, |a, b| if b == 0 { (0, true) } else { a.overflowing_rem(b) })),
        op::LESS => Node::Bool(compared(a, b, |a, b| a < b)),
        op::LESS_EQUALS => Node::Bool(compared(a, b, |a, b| a <= b)),
        op::GREATER => Node::Bool(compared(a, b, |a, b| a > b)),
        op::GREATER_EQUALS => Node::Bool(compared(a, b, |a, b| a >= b)),
        op::EQUALS | op::NOT_EQUALS => {
            Node::Bool(equal(name, a, b, |a, b, rows| rows_where(a, b, rows, |a, b| a == b)))
        }
        _ => return None,
    })
}

fn floats(name: &str, a: Compute<Floats>, b: Compute<Floats>) -> Option<Node> {
    Some(match float_order::written(name).unwrap_or(name) {
        op::ADD => Node::Float(float_two(a, b, |a, b| a + b)),
        op::SUBSTRACT => Node::Float(float_two(a, b, |a, b| a - b)),
        op::MULTIPLY => Node::Float(float_two(a, b, |a, b| a * b)),
        op::DIVIDE => Node::Float(float_two(a, b, |a, b| a / b)),
        op::LESS => Node::Bool(compared(a, b, |a, b| a < b)),
        op::LESS_EQUALS => Node::Bool(compared(a, b, |a, b| a <= b)),
        op::GREATER => Node::Bool(compared(a, b, |a, b| a > b)),
        op::GREATER_EQUALS => Node::Bool(compared(a, b, |a, b| a >= b)),
        op::EQUALS | op::NOT_EQUALS => {
            Node::Bool(equal(name, a, b, |a, b, rows| rows_where(a, b, rows, |a, b| a == b)))
        }
        _ => return None,
    })
}

fn bools(name: &str, a: Compute<Bools>, b: Compute<Bools>) -> Option<Node> {
    Some(Node::Bool(match name {
        op::LOGICAL_AND => either_decides(a, b, false),
        op::LOGICAL_OR => either_decides(a, b, true),
        op::EQUALS | op::NOT_EQUALS => equal(name, a, b, |a, b, _| !&(a ^ b)),
        _ => return None,
    }))
}

/// Evaluates `&&` (`wins` = false) and `||` (`wins` = true). The winning value on one side decides, even if the other
/// side fails; the other value needs both sides.
fn either_decides(a: Compute<Bools>, b: Compute<Bools>, wins: bool) -> Compute<Bools> {
    Box::new(move |batch| {
        let (a, b) = (a(batch), b(batch));
        // The bits of null or undecided rows are meaningless.
        let winning = |lane: &Lane<Bools>| {
            let bits = if wins { lane.values.clone() } else { !&lane.values };
            without(&without(&bits, &lane.null), &lane.undecided)
        };
        let won = &winning(&a) | &winning(&b);
        let open = union([a.null, a.undecided, b.null, b.undecided]);
        let undecided = open.map(|open| &open & &!&won);
        Lane { values: if wins { won } else { !&won }, null: None, undecided }
    })
}

/// `==` and `!=`: an empty value equals an empty value and nothing else.
fn equal<T: 'static>(
    name: &str,
    a: Compute<T>,
    b: Compute<T>,
    equal: impl Fn(&T, &T, usize) -> BooleanBuffer + Send + Sync + 'static,
) -> Compute<Bools> {
    let negated = name == op::NOT_EQUALS;
    Box::new(move |batch| {
        let (a, b) = (a(batch), b(batch));
        let mut values = equal(&a.values, &b.values, batch.num_rows());
        if a.null.is_some() || b.null.is_some() {
            values = without(&without(&values, &a.null), &b.null);
            if let (Some(a), Some(b)) = (&a.null, &b.null) {
                values = &values | &(a & b);
            }
        }
        Lane {
            values: if negated { !&values } else { values },
            null: None,
            undecided: union([a.undecided, b.undecided]),
        }
    })
}

/// A comparison with the literal `null`.
fn is_null(name: &str, value: Node) -> Option<Node> {
    fn ask<T: 'static>(value: Compute<T>, negated: bool) -> Compute<Bools> {
        Box::new(move |batch| {
            let lane = value(batch);
            let null = lane.null.unwrap_or_else(|| BooleanBuffer::new_unset(batch.num_rows()));
            Lane { values: if negated { !&null } else { null }, null: None, undecided: lane.undecided }
        })
    }
    let negated = match name {
        op::EQUALS => false,
        op::NOT_EQUALS => true,
        _ => return None,
    };
    Some(Node::Bool(match value {
        Node::Int(value) => ask(value, negated),
        Node::Float(value) => ask(value, negated),
        Node::Bool(value) => ask(value, negated),
        Node::Text(value, _) => ask(value, negated),
        Node::Null => return None,
    }))
}

/// `in` with a list of literals.
fn compile_in(value: Node, list: &IdedExpr) -> Option<Node> {
    /// An empty value is in no list of literals.
    fn find<T: 'static>(
        value: Compute<T>,
        listed: impl Fn(&T, usize) -> bool + Send + Sync + 'static,
    ) -> Compute<Bools> {
        Box::new(move |batch| {
            let lane = value(batch);
            let found = BooleanBuffer::collect_bool(batch.num_rows(), |row| listed(&lane.values, row));
            Lane { values: without(&found, &lane.null), null: None, undecided: lane.undecided }
        })
    }
    fn literals<T>(list: &IdedExpr, value: impl Fn(&LiteralValue) -> Option<T>) -> Option<Vec<T>> {
        let Expr::List(list) = &list.expr else { return None };
        let items = list.elements.iter().map(|item| match &item.expr {
            Expr::Literal(literal) => value(literal),
            _ => None,
        });
        items.collect()
    }
    Some(Node::Bool(match value {
        Node::Int(value) => {
            let items = literals(list, |item| match item {
                LiteralValue::Int(item) => Some(*item.inner()),
                _ => None,
            })?;
            find(value, move |values, row| items.contains(&values[row]))
        }
        Node::Float(value) => {
            let items = literals(list, |item| match item {
                LiteralValue::Double(item) => Some(*item.inner()),
                _ => None,
            })?;
            find(value, move |values, row| items.contains(&values[row]))
        }
        Node::Text(value, _) => {
            let items = literals(list, |item| match item {
                LiteralValue::String(item) => Some(item.inner().to_owned()),
                _ => None,
            })?;
            find(value, move |values, row| items.iter().any(|item| item == values.at(row)))
        }
        Node::Bool(_) | Node::Null => return None,
    }))
}

/// `condition ? yes : no`.
fn choose(condition: Node, yes: Node, no: Node) -> Option<Node> {
    let Node::Bool(condition) = condition else { return None };
    Some(match (yes, no) {
        (Node::Int(yes), Node::Int(no)) => Node::Int(chosen(condition, yes, no)),
        (Node::Int(yes), Node::Null) => Node::Int(chosen(condition, yes, empty())),
        (Node::Null, Node::Int(no)) => Node::Int(chosen(condition, empty(), no)),
        (Node::Float(yes), Node::Float(no)) => Node::Float(chosen(condition, yes, no)),
        (Node::Float(yes), Node::Null) => Node::Float(chosen(condition, yes, empty())),
        (Node::Null, Node::Float(no)) => Node::Float(chosen(condition, empty(), no)),
        (Node::Bool(yes), Node::Bool(no)) => Node::Bool(chosen(condition, yes, no)),
        (Node::Bool(yes), Node::Null) => Node::Bool(chosen(condition, yes, empty())),
        (Node::Null, Node::Bool(no)) => Node::Bool(chosen(condition, empty(), no)),
        (Node::Text(yes, _), Node::Text(no, _)) => Node::Text(chosen(condition, yes, no), None),
        (Node::Text(yes, _), Node::Null) => Node::Text(chosen(condition, yes, empty()), None),
        (Node::Null, Node::Text(no, _)) => Node::Text(chosen(condition, empty(), no), None),
        _ => return None,
    })
}

/// Operations on lane values that `?:` needs.
trait Pick: Sized + 'static {
    /// Returns meaningless values.
    fn blank(rows: usize) -> Self;
    /// Returns the values of `yes` where the condition holds and those of `no` elsewhere, and the rows that are left
    /// out.
    fn pick(condition: &BooleanBuffer, yes: &Self, no: &Self) -> (Self, Mask);
}

impl<T: arrow_buffer::ArrowNativeType> Pick for ScalarBuffer<T> {
    fn blank(rows: usize) -> Self {
        vec![T::default(); rows].into()
    }

    fn pick(condition: &BooleanBuffer, yes: &Self, no: &Self) -> (Self, Mask) {
        let both = yes.iter().zip(no.iter());
        let picked = condition.iter().zip(both).map(|(holds, (yes, no))| if holds { *yes } else { *no });
        (picked.collect::<Vec<_>>().into(), None)
    }
}

impl Pick for Bools {
    fn blank(rows: usize) -> Self {
        BooleanBuffer::new_unset(rows)
    }

    fn pick(condition: &BooleanBuffer, yes: &Self, no: &Self) -> (Self, Mask) {
        (&(condition & yes) | &(&!condition & no), None)
    }
}

/// The literal `null` as a lane.
fn empty<T: Pick>() -> Compute<T> {
    Box::new(|batch| {
        let rows = batch.num_rows();
        Lane { values: T::blank(rows), null: Some(BooleanBuffer::new_set(rows)), undecided: None }
    })
}

fn chosen<T: Pick>(condition: Compute<Bools>, yes: Compute<T>, no: Compute<T>) -> Compute<T> {
    /// Rows of `yes` where the condition holds, of `no` elsewhere.
    fn split(holds: &BooleanBuffer, yes: Mask, no: Mask) -> Mask {
        union([yes.map(|yes| &yes & holds), no.map(|no| &no & &!holds)])
    }
    Box::new(move |batch| {
        let (condition, yes, no) = (condition(batch), yes(batch), no(batch));
        let holds = &condition.values;
        let (values, left_out) = T::pick(holds, &yes.values, &no.values);
        let null = split(holds, yes.null, no.null);
        let undecided = split(holds, yes.undecided, no.undecided);
        let undecided = union([condition.null, condition.undecided, undecided, left_out]);
        Lane { values, null, undecided }
    })
}

/// Meaning of an empty value of a column.
#[derive(Clone, Copy)]
enum Reading {
    /// A column of the input: it is empty.
    Given,
    /// Computed from tensors: the row has failed there.
    Derived,
}

impl Reading {
    fn lane<T>(self, array: &dyn Array, values: T) -> Lane<T> {
        let null = array.nulls().filter(|nulls| nulls.null_count() > 0).map(|nulls| !nulls.inner());
        match self {
            Self::Given => Lane { values, null, undecided: None },
            Self::Derived => Lane { values, null: None, undecided: null },
        }
    }
}

/// A literal.
fn same<V: Copy + Send + Sync + 'static, T>(
    value: V,
    repeat: impl Fn(V, usize) -> T + Send + Sync + 'static,
) -> Compute<T> {
    Box::new(move |batch| Lane { values: repeat(value, batch.num_rows()), null: None, undecided: None })
}

/// Applies a function of one value that fails on an empty one. It returns the values and the rows on which it fails.
fn strict<A: 'static, R>(
    a: Compute<A>,
    function: impl Fn(&A, usize) -> (R, Mask) + Send + Sync + 'static,
) -> Compute<R> {
    Box::new(move |batch| {
        let a = a(batch);
        let (values, failed) = function(&a.values, batch.num_rows());
        Lane { values, null: None, undecided: union([a.null, a.undecided, failed]) }
    })
}

/// Applies a function of two values, as [`strict`] does.
fn strict_two<A: 'static, B: 'static, R>(
    a: Compute<A>,
    b: Compute<B>,
    function: impl Fn(&A, &B, usize) -> (R, Mask) + Send + Sync + 'static,
) -> Compute<R> {
    Box::new(move |batch| {
        let (a, b) = (a(batch), b(batch));
        let (values, failed) = function(&a.values, &b.values, batch.num_rows());
        Lane { values, null: None, undecided: union([a.null, a.undecided, b.null, b.undecided, failed]) }
    })
}

fn as_floats(values: &Ints) -> Floats {
    values.iter().map(|value| *value as f64).collect::<Vec<_>>().into()
}

/// Arithmetic of whole numbers; `function` also returns whether it failed.
fn checked(
    a: Compute<Ints>,
    b: Compute<Ints>,
    function: impl Fn(i64, i64) -> (i64, bool) + Copy + Send + Sync + 'static,
) -> Compute<Ints> {
    strict_two(a, b, move |a, b, rows| {
        let mut any = false;
        let one = |(a, b): (&i64, &i64)| {
            let (value, failed) = function(*a, *b);
            any |= failed;
            value
        };
        let values = a.iter().zip(b.iter()).map(one).collect::<Vec<_>>().into();
        (values, any.then(|| BooleanBuffer::collect_bool(rows, |row| function(a[row], b[row]).1)))
    })
}

/// Arithmetic of one whole number, as [`checked`].
fn checked_one(
    a: Compute<Ints>,
    function: impl Fn(i64) -> (i64, bool) + Copy + Send + Sync + 'static,
) -> Compute<Ints> {
    strict(a, move |a, rows| {
        let values = a.iter().map(|a| function(*a).0).collect::<Vec<_>>().into();
        (values, failing(rows, |row| function(a[row]).1))
    })
}

fn float_one(a: Compute<Floats>, function: impl Fn(f64) -> f64 + Send + Sync + 'static) -> Compute<Floats> {
    strict(a, move |a, _| (a.iter().map(|a| function(*a)).collect::<Vec<_>>().into(), None))
}

fn float_two(
    a: Compute<Floats>,
    b: Compute<Floats>,
    function: impl Fn(f64, f64) -> f64 + Send + Sync + 'static,
) -> Compute<Floats> {
    strict_two(a, b, move |a, b, _| {
        (a.iter().zip(b.iter()).map(|(a, b)| function(*a, *b)).collect::<Vec<_>>().into(), None)
    })
}

fn compared<T: arrow_buffer::ArrowNativeType>(
    a: Compute<ScalarBuffer<T>>,
    b: Compute<ScalarBuffer<T>>,
    function: impl Fn(T, T) -> bool + Copy + Send + Sync + 'static,
) -> Compute<Bools> {
    strict_two(a, b, move |a, b, rows| (rows_where(a, b, rows, function), None))
}

fn rows_where<T: Copy>(a: &[T], b: &[T], rows: usize, function: impl Fn(T, T) -> bool) -> BooleanBuffer {
    let (a, b) = (&a[..rows], &b[..rows]);
    BooleanBuffer::collect_bool(rows, |row| function(a[row], b[row]))
}

/// The rows on which a function fails.
fn failing(rows: usize, fails: impl Fn(usize) -> bool) -> Mask {
    (0..rows).any(&fails).then(|| BooleanBuffer::collect_bool(rows, fails))
}

fn union<const N: usize>(masks: [Mask; N]) -> Mask {
    masks.into_iter().flatten().reduce(|a, b| &a | &b)
}

fn without(rows: &BooleanBuffer, mask: &Mask) -> BooleanBuffer {
    match mask {
        Some(mask) => rows & &!mask,
        None => rows.clone(),
    }
}

#[cfg(test)]
mod tests;
