//! The first and the last bytes of a file, as models read them that tell its kind.
//!
//! ```
//! use tidemill_inference::preprocess::ends::Ends;
//! let mut values = vec![];
//! Ends::new(4, 4, 256).append(b"  abc  def\n", |value| values.push(value));
//! assert_eq!(values, [97, 98, 99, 32, 32, 100, 101, 102]);
//! ```

/// Bytes of one end in which blanks are left out.
const BLOCK: usize = 4096;

/// The first and the last bytes. Blanks are left out before the first and after the last ones, but only in the first and
/// last 4096 bytes, as magika does, or in four times as many bytes as are taken where that is more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    first: usize,
    last: usize,
    padding: u32,
}

impl Ends {
    /// `first` bytes from the start, then `last` from the end; `padding` stands for bytes that a short file lacks.
    pub fn new(first: u32, last: u32, padding: u32) -> Self {
        Self { first: first as usize, last: last as usize, padding }
    }

    /// Number of values of each file.
    pub fn width(&self) -> usize {
        self.first + self.last
    }

    /// Gives the values of a file one by one: the first bytes and padding after them, then padding and the last bytes.
    pub fn append(&self, bytes: &[u8], mut push: impl FnMut(u32)) {
        let block = BLOCK.max(4 * self.first.max(self.last)).min(bytes.len());
        let start = bytes[..block].iter().position(|byte| !is_blank(*byte)).unwrap_or(block);
        let first = &bytes[start..block];
        let first = &first[..first.len().min(self.first)];
        first.iter().for_each(|byte| push(u32::from(*byte)));
        (first.len()..self.first).for_each(|_| push(self.padding));
        let last = &bytes[bytes.len() - block..];
        let end = last.iter().rposition(|byte| !is_blank(*byte)).map_or(0, |at| at + 1);
        let last = &last[end.saturating_sub(self.last)..end];
        (last.len()..self.last).for_each(|_| push(self.padding));
        last.iter().for_each(|byte| push(u32::from(*byte)));
    }
}

/// The blanks of Python's `bytes.strip`: those of ASCII with the vertical tab.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::Deserialize;
    use tidemill_spec::digest::sha256;

    fn values(ends: Ends, bytes: &[u8]) -> Vec<u32> {
        let mut values = Vec::new();
        ends.append(bytes, |value| values.push(value));
        values
    }

    /// A row of `testdata/ends/ends.json`; `make.py` beside it says what it holds.
    #[derive(Deserialize)]
    struct Case {
        parts: Vec<(String, usize)>,
        first: u32,
        last: u32,
        start: [u32; 4],
        end: [u32; 4],
        sha256: String,
    }

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn files_have_the_features_that_magika_extracts() {
        let cases: Vec<Case> = serde_json::from_str(include_str!("../../testdata/ends/ends.json")).unwrap();
        assert_eq!(cases.len(), 30);
        for (at, case) in cases.iter().enumerate() {
            let file: Vec<u8> =
                case.parts.iter().flat_map(|(hex, times)| bytes(hex).repeat(*times)).collect();
            let values = values(Ends::new(case.first, case.last, 256), &file);
            assert_eq!(
                (values.first_chunk(), values.last_chunk()),
                (Some(&case.start), Some(&case.end)),
                "{at}"
            );
            let texts: Vec<String> = values.iter().map(ToString::to_string).collect();
            assert_eq!(sha256(texts.join(",").as_bytes()), case.sha256, "{at}");
        }
    }

    #[test]
    fn padding_is_between_the_ends() {
        assert_eq!(values(Ends::new(3, 2, 0), b" a "), [97, 32, 0, 32, 97], "a blank inside stays");
        assert_eq!(values(Ends::new(2, 0, 256), b""), [256, 256]);
        assert_eq!(values(Ends::new(0, 2, 256), b"abc"), [98, 99]);
    }

    #[test]
    fn long_ends_have_a_long_block() {
        let file = [&b" ".repeat(15_000)[..], b"a"].concat();
        assert_eq!(values(Ends::new(5000, 0, 256), &file)[..2], [97, 256]);
        assert_eq!(values(Ends::new(1024, 0, 256), &file)[..2], [256, 256]);
    }

    proptest! {
        #[test]
        fn any_file_has_all_values(file in any::<Vec<u8>>(), first in 0..40_u32, last in 0..40_u32) {
            let ends = Ends::new(first, last, 256);
            let values = values(ends, &file);
            prop_assert_eq!(values.len(), ends.width());
            let is_padding = |value: &&u32| **value == 256;
            let padded = values.iter().filter(is_padding).count();
            let held = (first as usize).min(file.len()) + (last as usize).min(file.len());
            prop_assert!(padded + held >= values.len());
        }
    }
}
