//! Reads DER, as far as certificates and requests for them need it: what is not in its one right form is refused.

/// The bytes are no DER, or another structure than was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

pub(crate) const BOOLEAN: u8 = 0x01;
pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const BIT_STRING: u8 = 0x03;
pub(crate) const OCTET_STRING: u8 = 0x04;
pub(crate) const OBJECT_IDENTIFIER: u8 = 0x06;
pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const SET: u8 = 0x31;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// One value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Element<'a> {
    pub(crate) tag: u8,
    /// With its tag and length.
    pub(crate) whole: &'a [u8],
    pub(crate) content: &'a [u8],
}

/// Reads values one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    /// Nothing may follow.
    pub(crate) fn end(self) -> Result<(), Malformed> {
        if self.is_at_end() { Ok(()) } else { Err(Malformed) }
    }

    /// The next value, whatever it is: of up to 64 KiB, with a tag of one byte.
    pub(crate) fn element(&mut self) -> Result<Element<'a>, Malformed> {
        let all = self.0;
        let [tag, first, rest @ ..] = all else { return Err(Malformed) };
        if tag & 0x1f == 0x1f {
            return Err(Malformed);
        }
        let (length, header) = match (first, rest) {
            (0..=0x7f, _) => (usize::from(*first), 2),
            (0x81, [length @ 0x80..=0xff, ..]) => (usize::from(*length), 3),
            (0x82, [high @ 1..=0xff, low, ..]) => (usize::from(*high) << 8 | usize::from(*low), 4),
            _ => return Err(Malformed),
        };
        let end = header + length;
        let whole = all.get(..end).ok_or(Malformed)?;
        self.0 = &all[end..];
        Ok(Element { tag: *tag, whole, content: &whole[header..] })
    }

    /// The next value, which must have this tag.
    pub(crate) fn expect(&mut self, tag: u8) -> Result<Element<'a>, Malformed> {
        let element = self.element()?;
        if element.tag == tag { Ok(element) } else { Err(Malformed) }
    }

    /// The next value if it has this tag; otherwise nothing is read.
    pub(crate) fn optional(&mut self, tag: u8) -> Result<Option<Element<'a>>, Malformed> {
        if self.0.first() == Some(&tag) { self.element().map(Some) } else { Ok(None) }
    }

    /// The bytes of a bit string that is made of whole bytes.
    pub(crate) fn bits(&mut self) -> Result<&'a [u8], Malformed> {
        match self.expect(BIT_STRING)?.content {
            [0, bytes @ ..] => Ok(bytes),
            _ => Err(Malformed),
        }
    }

    /// A time as certificates have it, year, month and day, hour, minute and second: `UTCTime` until 2049, `GeneralizedTime`.
    pub(crate) fn time(&mut self) -> Result<([u32; 3], [u32; 3]), Malformed> {
        let element = self.element()?;
        let number = |digits: &[u8]| {
            digits.iter().try_fold(0, |number, digit| {
                if digit.is_ascii_digit() {
                    Ok(number * 10 + u32::from(digit - b'0'))
                } else {
                    Err(Malformed)
                }
            })
        };
        let (year, rest) = match (element.tag, element.content.len()) {
            (UTC_TIME, 13) => {
                let year = number(&element.content[..2])?;
                (if year < 50 { 2000 + year } else { 1900 + year }, &element.content[2..])
            }
            (GENERALIZED_TIME, 15) => (number(&element.content[..4])?, &element.content[4..]),
            _ => return Err(Malformed),
        };
        if rest[10] != b'Z' {
            return Err(Malformed);
        }
        let two = |at: usize| number(&rest[at..at + 2]);
        Ok(([year, two(0)?, two(2)?], [two(4)?, two(6)?, two(8)?]))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_one_form_of_a_length_is_right() {
        let long = [&[0x04, 0x81, 0x80][..], &[7; 0x80]].concat();
        assert_eq!(Reader::new(&long).expect(OCTET_STRING).unwrap().content, [7; 0x80]);
        let longer = [&[0x04, 0x82, 1, 0][..], &[7; 0x100]].concat();
        assert_eq!(Reader::new(&longer).element().unwrap().whole, longer);
        let wrong: [&[u8]; 8] = [
            &[],
            &[4],
            &[4, 1],
            &[4, 0x80, 0, 0],
            &[4, 0x81, 1, 7],
            &[4, 0x82, 0, 1, 7],
            &[4, 0x83, 0, 0, 1, 7],
            &[0x1f, 1, 1],
        ];
        for bytes in wrong {
            assert!(Reader::new(bytes).element().is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn times_have_two_forms() {
        let read = |tag: u8, text: &str| {
            let bytes = [&[tag, text.len() as u8][..], text.as_bytes()].concat();
            Reader::new(&bytes).time()
        };
        assert_eq!(read(UTC_TIME, "490102030405Z"), Ok(([2049, 1, 2], [3, 4, 5])));
        assert_eq!(read(UTC_TIME, "500102030405Z"), Ok(([1950, 1, 2], [3, 4, 5])));
        assert_eq!(read(GENERALIZED_TIME, "20500102030405Z"), Ok(([2050, 1, 2], [3, 4, 5])));
        for text in ["490102030405+", "4901020304Z", "49010203040xZ", "20500102030405Z"] {
            assert_eq!(read(UTC_TIME, text), Err(Malformed), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut reader = Reader::new(&bytes);
            let mut read = 0;
            while let Ok(element) = reader.element() {
                read += element.whole.len();
            }
            prop_assert!(read <= bytes.len());
            let _ = Reader::new(&bytes).time();
            let _ = Reader::new(&bytes).bits();
        }
    }
}
