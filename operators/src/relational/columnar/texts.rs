//! Lanes of texts.
use super::{Bools, Compute, Ints, Lane, Mask, Node, Pick, equal, failing, strict, strict_two};
use crate::relational::text_length::{self, JOIN, REPLACE};
use arrow_array::{ArrayRef, StringArray};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer};
use cel::common::ast::operators as op;
use memchr::memmem::Finder;
use regex::Regex;
use std::fmt::Write;
use std::sync::Arc;

/// Most bytes that the texts of one lane take together. Further rows are evaluated one by one, which holds one text
/// at a time.
const MOST_OF_A_LANE: usize = 32 << 20;

/// The texts of a lane; cheap to clone.
#[derive(Clone)]
pub(super) enum Texts {
    Each(StringArray),
    /// All rows have this one.
    Same(Arc<str>),
}

impl Texts {
    pub(super) fn at(&self, row: usize) -> &str {
        match self {
            Self::Each(array) => array.value(row),
            Self::Same(text) => text,
        }
    }

    pub(super) fn into_array(self, rows: usize, valid: Option<NullBuffer>) -> ArrayRef {
        match self {
            Self::Each(array) => {
                let (offsets, values, _) = array.into_parts();
                Arc::new(StringArray::new(offsets, values, valid))
            }
            Self::Same(text) => Arc::new(StringArray::from_iter(
                (0..rows).map(|row| valid.as_ref().is_none_or(|valid| valid.is_valid(row)).then_some(&*text)),
            )),
        }
    }
}

impl Pick for Texts {
    fn blank(_: usize) -> Self {
        Self::Same("".into())
    }

    fn pick(condition: &BooleanBuffer, yes: &Self, no: &Self) -> (Self, Mask) {
        make(condition.len(), |row, out| {
            out.push_str(if condition.value(row) { yes.at(row) } else { no.at(row) });
            Some(())
        })
    }
}

/// Builds texts one after the other: `each` appends the text of a row, or returns `None` where it fails.
fn make(rows: usize, mut each: impl FnMut(usize, &mut String) -> Option<()>) -> (Texts, Mask) {
    let mut text = String::new();
    let mut offsets = Vec::with_capacity(rows + 1);
    offsets.push(0i32);
    let mut failed = Vec::new();
    for row in 0..rows {
        let before = text.len();
        if before > MOST_OF_A_LANE || each(row, &mut text).is_none() {
            text.truncate(before);
            failed.push(row);
        }
        offsets.push(text.len() as i32);
    }
    let mask = (!failed.is_empty()).then(|| {
        let mut bits = vec![false; rows];
        failed.into_iter().for_each(|row| bits[row] = true);
        BooleanBuffer::from(bits)
    });
    let values = Buffer::from(text.into_bytes());
    (Texts::Each(StringArray::new(OffsetBuffer::new(offsets.into()), values, None)), mask)
}

pub(super) fn constant(text: &str) -> Node {
    let text: Arc<str> = text.into();
    let same = Arc::clone(&text);
    let compute = move |_: &_| Lane { values: Texts::Same(Arc::clone(&same)), null: None, undecided: None };
    Node::Text(Box::new(compute), Some(text))
}

/// Compiles a function with a text among its arguments, the receiver first; `None` if it has no loop.
pub(super) fn compile(name: &str, arguments: [Option<Node>; 3]) -> Option<Node> {
    use Node::{Bool, Float, Int, Text};
    Some(match (name, arguments) {
        (_, [Some(Text(a, _)), Some(Text(b, known)), None]) => return two_texts(name, a, b, known),
        (REPLACE, [Some(Text(a, _)), Some(Text(_, Some(from))), Some(Text(_, Some(to)))]) => Text(
            strict(a, move |a, rows| {
                make(rows, |row, out| {
                    text_length::replaced(a.at(row), &from, &to).map(|text| out.push_str(&text))
                })
            }),
            None,
        ),
        ("substring", [Some(Text(a, _)), Some(Int(from)), None]) => Text(
            strict_two(a, from, |a, from, rows| {
                make(rows, |row, out| part(a.at(row), from[row], None).map(|part| out.push_str(part)))
            }),
            None,
        ),
        ("substring", [Some(Text(a, _)), Some(Int(from)), Some(Int(to))]) => {
            let ends = strict_two(from, to, |from, to, _| {
                (from.iter().copied().zip(to.iter().copied()).collect::<Vec<_>>(), None)
            });
            Text(
                strict_two(a, ends, |a, ends, rows| {
                    make(rows, |row, out| {
                        let (from, to) = ends[row];
                        part(a.at(row), from, Some(to)).map(|part| out.push_str(part))
                    })
                }),
                None,
            )
        }
        ("size", [Some(Text(a, _)), None, None]) => Int(strict(a, |a, rows| {
            ((0..rows).map(|row| a.at(row).chars().count() as i64).collect::<Vec<_>>().into(), None)
        })),
        ("lowerAscii", [Some(Text(a, _)), None, None]) => changed(a, |text, out| {
            let before = out.len();
            out.push_str(text);
            out[before..].make_ascii_lowercase();
        }),
        ("upperAscii", [Some(Text(a, _)), None, None]) => changed(a, |text, out| {
            let before = out.len();
            out.push_str(text);
            out[before..].make_ascii_uppercase();
        }),
        ("trim", [Some(Text(a, _)), None, None]) => changed(a, |text, out| out.push_str(text.trim())),
        ("string", [Some(Text(a, known)), None, None]) => Text(strict(a, |a, _| (a.clone(), None)), known),
        ("string", [Some(Int(a)), None, None]) => shown(a, |a: &Ints, row, out| write!(out, "{}", a[row])),
        ("string", [Some(Float(a)), None, None]) => shown(a, |a, row, out| write!(out, "{}", a[row])),
        ("string", [Some(Bool(a)), None, None]) => {
            shown(a, |a: &Bools, row, out| write!(out, "{}", a.value(row)))
        }
        ("int", [Some(Text(a, _)), None, None]) => Int(strict(a, |a, rows| {
            let number = |row| a.at(row).parse::<i64>();
            let values = (0..rows).map(|row| number(row).unwrap_or_default()).collect::<Vec<_>>().into();
            (values, failing(rows, |row| number(row).is_err()))
        })),
        ("double", [Some(Text(a, _)), None, None]) => Float(strict(a, |a, rows| {
            let number = |row| a.at(row).parse::<f64>();
            let values = (0..rows).map(|row| number(row).unwrap_or_default()).collect::<Vec<_>>().into();
            (values, failing(rows, |row| number(row).is_err()))
        })),
        _ => return None,
    })
}

/// `known` is the second text if all rows have the same.
fn two_texts(name: &str, a: Compute<Texts>, b: Compute<Texts>, known: Option<Arc<str>>) -> Option<Node> {
    Some(match (name, known) {
        (op::EQUALS | op::NOT_EQUALS, _) => Node::Bool(equal(name, a, b, |a, b, rows| {
            BooleanBuffer::collect_bool(rows, |row| a.at(row) == b.at(row))
        })),
        (op::LESS, _) => asked(a, b, |a, b| a < b),
        (op::LESS_EQUALS, _) => asked(a, b, |a, b| a <= b),
        (op::GREATER, _) => asked(a, b, |a, b| a > b),
        (op::GREATER_EQUALS, _) => asked(a, b, |a, b| a >= b),
        ("contains", Some(part)) => {
            let finder = Finder::new(part.as_bytes()).into_owned();
            asked_one(a, move |text| finder.find(text.as_bytes()).is_some())
        }
        ("matches", Some(pattern)) => {
            let pattern = Regex::new(&pattern).ok()?;
            asked_one(a, move |text| pattern.is_match(text))
        }
        ("contains", None) => asked(a, b, |a, b| a.contains(b)),
        ("startsWith", _) => asked(a, b, |a, b| a.starts_with(b)),
        ("endsWith", _) => asked(a, b, |a, b| a.ends_with(b)),
        ("indexOf", _) => Node::Int(strict_two(a, b, |a, b, rows| {
            let place = |row: usize| {
                let (text, part) = (a.at(row), b.at(row));
                text.find(part).map_or(-1, |at| text[..at].chars().count() as i64)
            };
            ((0..rows).map(place).collect::<Vec<_>>().into(), None)
        })),
        (JOIN, _) => Node::Text(
            strict_two(a, b, |a, b, rows| {
                make(rows, |row, out| {
                    let (a, b) = (a.at(row), b.at(row));
                    text_length::fits(a.len().checked_add(b.len())).then(|| {
                        out.push_str(a);
                        out.push_str(b);
                    })
                })
            }),
            None,
        ),
        _ => return None,
    })
}

fn asked(
    a: Compute<Texts>,
    b: Compute<Texts>,
    question: impl Fn(&str, &str) -> bool + Copy + Send + Sync + 'static,
) -> Node {
    Node::Bool(strict_two(a, b, move |a, b, rows| {
        (BooleanBuffer::collect_bool(rows, |row| question(a.at(row), b.at(row))), None)
    }))
}

fn asked_one(a: Compute<Texts>, question: impl Fn(&str) -> bool + Send + Sync + 'static) -> Node {
    Node::Bool(strict(a, move |a, rows| (BooleanBuffer::collect_bool(rows, |row| question(a.at(row))), None)))
}

fn changed(a: Compute<Texts>, change: impl Fn(&str, &mut String) + Send + Sync + 'static) -> Node {
    let compute = strict(a, move |a, rows| {
        make(rows, |row, out| {
            change(a.at(row), out);
            Some(())
        })
    });
    Node::Text(compute, None)
}

/// Values as texts.
fn shown<T: 'static>(
    a: Compute<T>,
    write: impl Fn(&T, usize, &mut String) -> std::fmt::Result + Send + Sync + 'static,
) -> Node {
    Node::Text(strict(a, move |a, rows| make(rows, |row, out| write(a, row, out).ok())), None)
}

/// Returns the characters `from..to` of a text, if it has them.
fn part(text: &str, from: i64, to: Option<i64>) -> Option<&str> {
    let from = usize::try_from(from).ok()?;
    let mut places = text.char_indices().map(|(at, _)| at).chain([text.len()]);
    let start = places.nth(from)?;
    let end = match to {
        None => text.len(),
        Some(to) => match usize::try_from(to).ok()?.checked_sub(from)? {
            0 => start,
            more => places.nth(more - 1)?,
        },
    };
    Some(&text[start..end])
}
