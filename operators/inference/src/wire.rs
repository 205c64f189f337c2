//! The wire format of protocol buffers, as far as an ONNX file's own description needs it.
//!
//! A backend's parser is not used, because arbitrary files arrive here: this reader reads every byte at most once,
//! allocates nothing, and never recurses by itself.

/// Bytes that are no protocol buffer message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the bytes are not in the protocol buffer format")]
pub(crate) struct WireError;

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldValue<'a> {
    /// An integer.
    Integer(u64),
    /// A text, bytes, another message or packed integers.
    Bytes(&'a [u8]),
    /// Eight or four bytes, unused here.
    Fixed,
}

impl<'a> FieldValue<'a> {
    /// The integer, if it is one.
    pub(crate) fn integer(self) -> Option<i64> {
        match self {
            FieldValue::Integer(value) => Some(value as i64),
            _ => None,
        }
    }

    /// The text, if it is one; invalid UTF-8 is replaced.
    pub(crate) fn text(self) -> Option<String> {
        match self {
            FieldValue::Bytes(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        }
    }

    /// The fields, if it is a message.
    pub(crate) fn message(self) -> Fields<'a> {
        match self {
            FieldValue::Bytes(bytes) => Fields { rest: bytes },
            _ => Fields { rest: &[] },
        }
    }

    /// The integers of a repeated field, packed or a single one.
    pub(crate) fn integers(self) -> Result<Vec<i64>, WireError> {
        match self {
            FieldValue::Integer(value) => Ok(vec![value as i64]),
            FieldValue::Bytes(mut rest) => {
                let mut values = Vec::new();
                while !rest.is_empty() {
                    values.push(varint(&mut rest)? as i64);
                }
                Ok(values)
            }
            FieldValue::Fixed => Ok(Vec::new()),
        }
    }
}

/// The fields of a message, in the order of the file: number and value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// The fields of the message in these bytes.
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn field(&mut self) -> Result<(u64, FieldValue<'a>), WireError> {
        let key = varint(&mut self.rest)?;
        let value = match key & 7 {
            0 => FieldValue::Integer(varint(&mut self.rest)?),
            1 => self.take(8).map(|_| FieldValue::Fixed)?,
            2 => {
                let length = varint(&mut self.rest)?;
                FieldValue::Bytes(self.take(usize::try_from(length).map_err(|_| WireError)?)?)
            }
            5 => self.take(4).map(|_| FieldValue::Fixed)?,
            _ => return Err(WireError),
        };
        if key >> 3 == 0 { Err(WireError) } else { Ok((key >> 3, value)) }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(WireError)?;
        self.rest = rest;
        Ok(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, FieldValue<'a>), WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

fn varint(rest: &mut &[u8]) -> Result<u64, WireError> {
    let mut value = 0u64;
    for shift in (0..70).step_by(7) {
        let (byte, after) = rest.split_first().ok_or(WireError)?;
        *rest = after;
        if shift < 64 {
            value |= u64::from(byte & 0x7f) << shift;
        }
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(WireError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_order() {
        // 1: 150, 2: "hi", 3: packed [1, 300], 4: eight bytes
        let bytes =
            [0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1a, 3, 1, 0xac, 0x02, 0x21, 0, 0, 0, 0, 0, 0, 0, 0];
        let fields: Vec<_> = Fields::of(&bytes).map(Result::unwrap).collect();
        assert_eq!(fields[0].1.integer(), Some(150));
        assert_eq!(fields[1].1.text().as_deref(), Some("hi"));
        assert_eq!(fields[2].1.integers(), Ok(vec![1, 300]));
        assert_eq!((fields[3].0, fields[3].1), (4, FieldValue::Fixed));
    }

    #[test]
    fn damaged_bytes_end_the_reading() {
        for bytes in [&[0x08][..], &[0x12, 5, 1], &[0x00, 1], &[0x0b], &[0xff; 12]] {
            let mut fields = Fields::of(bytes);
            assert_eq!(fields.next(), Some(Err(WireError)), "{bytes:?}");
            assert_eq!(fields.next(), None);
        }
    }
}
