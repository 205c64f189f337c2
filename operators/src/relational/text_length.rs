//! A limit on the texts that expressions build, so that a short expression on a short text cannot exhaust memory.
//!
//! Only `replace` and `+` return a longer text than they take. CEL's own have no limit; typing replaces them by
//! these.
use cel::common::types::CelString;
use cel::{DeclarationError, Env, ExecutionError};

/// Longest text in bytes, equal to the longest line of a source.
const MOST: usize = 8 << 20;
/// Most bytes of the row-by-row texts in one column of a batch. Two such columns can be concatenated, whose offsets
/// are limited to 2 GiB. Few in the tests of this crate.
pub(super) const MOST_OF_A_BATCH: usize = if cfg!(test) { 40 << 20 } else { 512 << 20 };
/// Message for a row whose text does not fit beside those before it.
pub(super) const TOO_MANY: &str = "the texts of its batch would have more than 512 MiB";
/// Message for a row whose text is too long.
pub(crate) const TOO_LONG: &str = "a text of it would be longer than 8 MiB";
/// `replace` with a limit. The name cannot be written in an expression.
pub(crate) const REPLACE: &str = "replace with a bound";
/// `+` of two texts with a limit.
pub(crate) const JOIN: &str = "+ with a bound";

/// Declares the functions.
pub(crate) fn functions(environment: &mut Env) -> Result<(), DeclarationError> {
    cel::add_member_overload!(environment, fn replace: (CelString, CelString, CelString) -> Result<CelString>,
        name = REPLACE)?;
    cel::add_overload!(environment, fn join: (CelString, CelString) -> Result<CelString>, name = JOIN)
}

/// Whether an expression may build a text of this length; `None` stands for an overflow.
pub(super) fn fits(length: Option<usize>) -> bool {
    length.is_some_and(|length| length <= MOST)
}

/// Replaces each `from` in a text; `None` if the result would be too long.
pub(super) fn replaced(text: &str, from: &str, to: &str) -> Option<String> {
    if to.len() > from.len() {
        let added = text.matches(from).count().checked_mul(to.len() - from.len());
        if !fits(added.and_then(|added| added.checked_add(text.len()))) {
            return None;
        }
    }
    Some(text.replace(from, to))
}

fn replace(
    text: &CelString<'_>,
    from: &CelString<'_>,
    to: &CelString<'_>,
) -> Result<CelString<'static>, ExecutionError> {
    let text = replaced(text.inner(), from.inner(), to.inner());
    text.map(CelString::from).ok_or_else(|| ExecutionError::function_error("replace", TOO_LONG))
}

fn join(a: &CelString<'_>, b: &CelString<'_>) -> Result<CelString<'static>, ExecutionError> {
    let (a, b) = (a.inner(), b.inner());
    match fits(a.len().checked_add(b.len())) {
        true => Ok([a, b].concat().into()),
        false => Err(ExecutionError::function_error("+", TOO_LONG)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_the_length_of_the_result() {
        let text = |length: usize| CelString::from("a".repeat(length));
        let (half, one) = (text(MOST / 2), text(1));
        assert_eq!(join(&half, &half).unwrap().inner().len(), MOST);
        assert!(join(&text(MOST), &one).is_err());
        assert_eq!(replace(&half, &one, &text(2)).unwrap().inner().len(), MOST);
        assert!(replace(&half, &one, &text(3)).is_err());
        assert_eq!(replace(&text(MOST + 9), &text(2), &one).unwrap().inner().len(), (MOST + 9) / 2 + 1);
        // Between all letters, and at both ends.
        assert_eq!(replace(&text(2), &text(0), &text(3)).unwrap().inner(), "aaaaaaaaaaa");
    }
}
