//! Conversion of characters to numbers.
use crate::origin::{TextPart, TextParts};
use std::collections::HashMap;

/// Numbers the characters of a text by their position in an alphabet.
#[derive(Debug, Clone)]
pub struct Characters {
    /// Position of each character in the alphabet.
    places: HashMap<char, usize>,
    settings: Settings,
}

/// Numbers of characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Length of the result; `None` keeps that of the text.
    pub length: Option<usize>,
    /// Number of the first character of the alphabet.
    pub first: u32,
    /// Number of padding.
    pub padding: u32,
    /// Number of characters outside of the alphabet; `None` leaves them out.
    pub unknown: Option<u32>,
    /// Vectors with a 1 at the position instead of numbers.
    pub one_hot: bool,
}

impl Characters {
    /// Characters of `alphabet`.
    pub fn new(alphabet: &str, settings: Settings) -> Self {
        let mut places = HashMap::new();
        for (place, character) in alphabet.chars().enumerate() {
            places.entry(character).or_insert(place);
        }
        // A vector has a place for each character, also for one that comes twice.
        let settings = Settings { first: if settings.one_hot { 0 } else { settings.first }, ..settings };
        Self { places, settings }
    }

    /// Gives the numbers of a text one by one, in lower case if the alphabet lacks a capital. The result is cut or padded to
    /// the length, if there is one. `width`: numbers of each character, of a vector.
    pub fn append(&self, text: &str, width: usize, mut push: impl FnMut(f64)) {
        let characters = text.chars().flat_map(|character| self.numbers(character));
        let most = self.settings.length.unwrap_or(usize::MAX);
        let mut count = 0;
        let mut one = |place: Option<usize>, otherwise: u32| match self.settings.one_hot {
            true => (0..width).for_each(|at| push(f64::from(u8::from(Some(at) == place)))),
            false => push(
                place.map_or(f64::from(otherwise), |place| (self.settings.first as usize + place) as f64),
            ),
        };
        for place in characters.take(most) {
            one(place, self.settings.unknown.unwrap_or_default());
            count += 1;
        }
        for _ in count..self.settings.length.unwrap_or_default() {
            one(None, self.settings.padding);
        }
    }

    /// The positions in the alphabet that stand for a character, `None` for an unknown one; none if it is left out.
    fn numbers(&self, character: char) -> impl Iterator<Item = Option<usize>> {
        let known = |character: char| self.places.get(&character).copied();
        let as_it_is = known(character);
        let lower = character.to_lowercase().filter(move |_| as_it_is.is_none()).filter_map(known);
        let found: Vec<Option<usize>> = as_it_is.into_iter().chain(lower).map(Some).collect();
        let is_given = self.settings.one_hot || self.settings.unknown.is_some();
        let unknown = (found.is_empty() && is_given).then_some(None);
        found.into_iter().chain(unknown)
    }

    /// Returns the place in the text of each number that [`Characters::append`] gives, without padding.
    pub fn parts(&self, text: &str) -> TextParts {
        let parts = text.chars().enumerate().flat_map(|(start, character)| {
            let part = TextPart { start, end: start + 1, word: None, is_added: false };
            self.numbers(character).map(move |_| part)
        });
        let parts = parts.take(self.settings.length.unwrap_or(usize::MAX)).collect();
        TextParts { text: text.to_owned(), parts, pads_left: false }
    }

    /// Number of padding.
    pub fn padding(&self) -> u32 {
        if self.settings.one_hot { 0 } else { self.settings.padding }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Settings = Settings { length: Some(6), first: 1, padding: 0, unknown: None, one_hot: false };

    fn numbers(alphabet: &str, settings: Settings, text: &str) -> Vec<f64> {
        let mut all = Vec::new();
        Characters::new(alphabet, settings).append(text, alphabet.chars().count(), |number| all.push(number));
        all
    }

    #[test]
    fn characters_count_from_one() {
        let plain = |text| numbers(" abc'", PLAIN, text);
        assert_eq!(plain("A c"), [2.0, 1.0, 4.0, 0.0, 0.0, 0.0]);
        assert_eq!(plain("äb?c\u{1F600}b"), [3.0, 4.0, 3.0, 0.0, 0.0, 0.0]);
        assert_eq!(plain("abcabcabc"), [2.0, 3.0, 4.0, 2.0, 3.0, 4.0]);
        assert_eq!(plain(""), [0.0; 6]);
    }

    #[test]
    fn each_number_has_its_place_in_the_text() {
        let places = |settings, text: &str| {
            let all = Characters::new("abc", settings).parts(text);
            all.parts.iter().map(|part| part.start).collect::<Vec<_>>()
        };
        assert_eq!(places(PLAIN, "A?äcb"), [0, 3, 4]);
        assert_eq!(places(Settings { unknown: Some(9), length: Some(2), ..PLAIN }, "?ab"), [0, 1]);
    }

    #[test]
    fn capitals_of_the_alphabet_are_its_own() {
        let four = Settings { length: Some(4), ..PLAIN };
        assert_eq!(numbers("ABC", four, "ABa"), [1.0, 2.0, 0.0, 0.0]);
        assert_eq!(numbers("aAba", four, "AaB"), [2.0, 1.0, 3.0, 0.0]);
    }

    #[test]
    fn numbers_and_lengths_are_those_of_the_model() {
        let own = Settings { length: None, first: 2, padding: 9, unknown: Some(1), one_hot: false };
        assert_eq!(numbers("abc", own, "a?C"), [2.0, 1.0, 4.0]);
        let long = Settings { length: Some(4), ..own };
        assert_eq!(numbers("abc", long, "a?C"), [2.0, 1.0, 4.0, 9.0]);
        let vectors = Settings { length: Some(3), one_hot: true, ..own };
        assert_eq!(numbers("ab", vectors, "b?"), [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    }
}
