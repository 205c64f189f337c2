//! Tensors of several runs as one, along the first dimension.
use crate::value::{Element, Value, ValueError};

/// Puts tensors of one element type, equal but for the first dimension, one after another.
pub(super) fn concatenated(parts: &[&Value]) -> Result<Value, ValueError> {
    let mut shape = parts.first().map(|part| part.shape().to_vec()).unwrap_or_default();
    if let Some(first) = shape.first_mut() {
        *first = parts.iter().filter_map(|part| part.shape().first()).sum();
    }
    let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.bytes().len()).sum());
    parts.iter().for_each(|part| bytes.extend_from_slice(part.bytes()));
    let element = parts.first().map_or(Element::Uint8, |part| part.element());
    Value::new(element, shape, bytes)
}

/// Cuts a tensor along its first dimension into parts of these numbers of rows. None: it has another number of rows.
///
/// Parts are copies: a session that keeps one keeps no rows of others.
pub(super) fn split(whole: &Value, rows: &[usize]) -> Option<Vec<Value>> {
    let (first, row) = whole.shape().split_first()?;
    if *first != rows.iter().sum::<usize>() {
        return None;
    }
    let each: usize = row.iter().product();
    let mut left = &whole.bytes()[..];
    let parts = rows.iter().map(|rows| {
        let length = match whole.element().bytes() {
            Some(bytes) => rows * each * bytes,
            None => length_of_texts(left, rows * each)?,
        };
        let (part, rest) = left.split_at_checked(length)?;
        left = rest;
        let shape = std::iter::once(*rows).chain(row.iter().copied()).collect();
        Value::new(whole.element(), shape, part.to_vec()).ok()
    });
    parts.collect()
}

/// The bytes of this number of texts.
fn length_of_texts(bytes: &[u8], count: usize) -> Option<usize> {
    let mut length = 0;
    for _ in 0..count {
        let text = bytes.get(length..)?.first_chunk::<4>()?;
        length += 4 + u32::from_le_bytes(*text) as usize;
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_tensor_of_other_rows_is_not_cut() {
        let value = Value::zeros(Element::Int32, vec![3, 2]).unwrap();
        assert_eq!(split(&value, &[1, 1]), None);
        assert_eq!(split(&Value::zeros(Element::Int32, vec![]).unwrap(), &[1]), None);
        assert_eq!(split(&value, &[2, 0, 1]).unwrap()[1].shape(), [0, 2]);
    }

    #[test]
    fn texts_stay_whole() {
        let text = |text: &str| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
        let of = |texts: &[&str]| {
            Value::new(
                Element::Text,
                vec![texts.len()],
                texts.iter().flat_map(|part| text(part)).collect::<Vec<_>>(),
            )
        };
        let parts = [of(&["a", "longer"]).unwrap(), of(&[""]).unwrap(), of(&["ö"]).unwrap()];
        let whole = concatenated(&parts.each_ref()).unwrap();
        assert_eq!(whole.shape(), [4]);
        assert_eq!(split(&whole, &[2, 1, 1]).unwrap(), parts);
    }

    proptest! {
        #[test]
        fn what_is_put_together_is_cut_into_the_same(
            element in 0usize..8, row in proptest::collection::vec(0usize..4, 0..3),
            rows in proptest::collection::vec(0usize..5, 1..6), seed in any::<u8>(),
        ) {
            let element = Element::ALL[element];
            let parts: Vec<Value> = rows.iter().enumerate().map(|(at, rows)| {
                let shape: Vec<usize> = std::iter::once(*rows).chain(row.iter().copied()).collect();
                let length = shape.iter().product::<usize>() * element.bytes().unwrap_or(0);
                let bytes: Vec<u8> = (0..length).map(|byte| (byte * 7 + at) as u8 ^ seed).collect();
                Value::new(element, shape, bytes).unwrap()
            }).collect();
            let whole = concatenated(&parts.iter().collect::<Vec<_>>()).unwrap();
            prop_assert_eq!(split(&whole, &rows), Some(parts));
        }
    }
}
