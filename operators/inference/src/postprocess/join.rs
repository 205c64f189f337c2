//! A text with a label at each character, from the scores of its characters.
//!
//! ```
//! use tidemill_inference::origin::{TextPart, TextParts};
//! use tidemill_inference::postprocess::join::Joiner;
//! let joiner = Joiner::new(&["".to_owned(), "|".to_owned()], true);
//! let part = |start| TextPart { start, end: start + 1, word: None, is_added: false };
//! let text = TextParts { text: "abc".to_owned(), parts: vec![part(0), part(1), part(2)], pads_left: false };
//! assert_eq!(joiner.join(&[1.0, 0.0, 0.0, 1.0, 1.0, 0.0], &text), "a|bc");
//! ```
use super::scores::argmax;
use crate::origin::TextParts;

/// Writes labels into texts.
#[derive(Debug, Clone)]
pub struct Joiner {
    labels: Vec<String>,
    before: bool,
}

impl Joiner {
    /// A joiner of these labels, in the order of the scores; `before`: whether they are before their characters.
    pub fn new(labels: &[String], before: bool) -> Self {
        Self { labels: labels.to_vec(), before }
    }

    /// Returns the text with the best label at each of its parts. `scores`: one for each label, for each part and for padding.
    pub fn join(&self, scores: &[f32], text: &TextParts) -> String {
        let mut joined = String::with_capacity(2 * text.text.len());
        let mut parts = text.values(scores, self.labels.len()).peekable();
        for (at, character) in text.text.chars().enumerate() {
            let mut label = None;
            // A character whose lower case is several has the label of the first.
            while let Some((_, row)) = parts.next_if(|(part, _)| part.start <= at) {
                label = label.or_else(|| self.labels.get(argmax(row)));
            }
            let label = label.map_or("", String::as_str);
            if self.before {
                joined.push_str(label);
            }
            joined.push(character);
            if !self.before {
                joined.push_str(label);
            }
        }
        joined
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::TextPart;

    #[test]
    fn labels_are_at_the_characters_that_the_model_read() {
        let part = |start| TextPart { start, end: start + 1, word: None, is_added: false };
        // The model does not read the second character, and the text continues after its last one.
        let parts = vec![part(0), part(2), part(2), part(3)];
        let text = TextParts { text: "a\u{1F600}béd".to_owned(), parts, pads_left: false };
        let labels = ["".to_owned(), "_".to_owned(), "+".to_owned()];
        let scores = [0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 9.0, 0.0, 0.0];
        assert_eq!(Joiner::new(&labels, false).join(&scores, &text), "a_\u{1F600}b+éd");
        assert_eq!(Joiner::new(&labels, true).join(&scores, &text), "_a\u{1F600}+béd");
        assert_eq!(Joiner::new(&labels, true).join(&[], &text), text.text);
    }
}
