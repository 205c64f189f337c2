//! Source of a record's prepared values: the part of its picture, and the parts of its text.
use crate::frame::Frame;
use std::sync::Arc;

/// The source of a record's prepared values, to which results refer.
///
/// ```
/// use tidemill_inference::frame::Frame;
/// use tidemill_inference::origin::Origin;
/// let picture = Origin { frame: Some(Frame::WHOLE), ..Origin::default() };
/// assert_eq!(Origin::default().or(picture).frame(), Frame::WHOLE);
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Origin {
    /// The part of its picture that the model sees, if it reads one.
    pub frame: Option<Frame>,
    /// Its text in parts, if an output has a value for each of them.
    pub text: Option<Arc<TextParts>>,
}

/// A text and its parts, in the order of the model's values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextParts {
    /// The text.
    pub text: String,
    /// Its tokens or characters.
    pub parts: Vec<TextPart>,
    /// Whether padding comes before them.
    pub pads_left: bool,
}

/// One token or character of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextPart {
    /// Its first character, counted from 0.
    pub start: usize,
    /// The character after its last one.
    pub end: usize,
    /// Number of its word, if it has one.
    pub word: Option<u32>,
    /// Whether the tokenizer added it, so that it is not in the text.
    pub is_added: bool,
}

impl Origin {
    /// This source, with a picture or text of another where it has none.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { frame: self.frame.or(other.frame), text: self.text.or(other.text) }
    }

    /// The part of its picture that the model sees; the whole if it reads none.
    pub fn frame(&self) -> Frame {
        self.frame.unwrap_or_default()
    }
}

impl TextParts {
    /// The values of each part that is in the text, of an output with `width` values for each part and for padding.
    pub fn values<'a>(
        &'a self,
        output: &'a [f32],
        width: usize,
    ) -> impl Iterator<Item = (&'a TextPart, &'a [f32])> {
        let rows = output.chunks_exact(width.max(1));
        let padding = if self.pads_left { rows.len().saturating_sub(self.parts.len()) } else { 0 };
        self.parts.iter().zip(rows.skip(padding)).filter(|(part, _)| !part.is_added)
    }

    /// Returns the characters from `start` to `end`.
    pub fn part(&self, start: usize, end: usize) -> &str {
        let mut places = self.text.char_indices().map(|(at, _)| at).chain([self.text.len()]);
        let from = places.nth(start).unwrap_or(self.text.len());
        let to = match end.checked_sub(start + 1) {
            Some(more) => places.nth(more).unwrap_or(self.text.len()),
            None => from,
        };
        &self.text[from..to]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_counted_in_characters() {
        let text = TextParts { text: "aé\u{1F600}b".to_owned(), ..TextParts::default() };
        assert_eq!((text.part(0, 4), text.part(1, 3), text.part(3, 4)), ("aé\u{1F600}b", "é\u{1F600}", "b"));
        assert_eq!((text.part(2, 2), text.part(4, 9), text.part(7, 8)), ("", "", ""));
    }

    #[test]
    fn padding_and_added_tokens_have_no_values() {
        let part = |start, is_added| TextPart { start, end: start + 1, word: None, is_added };
        let parts = vec![part(0, true), part(0, false), part(1, false)];
        let right = TextParts { text: "ab".to_owned(), parts, pads_left: false };
        let output = [1.0, 2.0, 3.0, 4.0, 5.0];
        let values = |text: &TextParts| text.values(&output, 1).map(|(_, row)| row[0]).collect::<Vec<_>>();
        assert_eq!(values(&right), [2.0, 3.0]);
        assert_eq!(values(&TextParts { pads_left: true, ..right }), [4.0, 5.0]);
    }
}
