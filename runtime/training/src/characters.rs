//! The characters of a text as numbers: the step `characters` of models with `one_hot: true`.
use std::collections::HashMap;

/// Vectors with a 1 at the place of each character in an alphabet.
///
/// ```
/// use tidemill_training::characters::Characters;
/// let mut values = Vec::new();
/// Characters::new("ab", 3).append("B?", &mut values);
/// assert_eq!(values, [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Characters {
    alphabet: String,
    length: usize,
    places: HashMap<char, usize>,
    size: usize,
}

impl Characters {
    /// Creates the numbers of texts of this length; longer ones are cut, shorter ones padded with 0.
    pub fn new(alphabet: &str, length: usize) -> Self {
        let mut places = HashMap::new();
        for (place, character) in alphabet.chars().enumerate() {
            places.entry(character).or_insert(place);
        }
        Self { alphabet: alphabet.to_owned(), length, places, size: alphabet.chars().count() }
    }

    /// Returns all known characters in order.
    pub fn alphabet(&self) -> &str {
        &self.alphabet
    }

    /// Returns the characters of a text.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the characters of the alphabet.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the numbers of a text.
    pub fn width(&self) -> usize {
        self.length * self.size
    }

    /// Appends the numbers of a text. A capital that the alphabet lacks is lower case; other characters are all 0.
    pub fn append(&self, text: &str, values: &mut Vec<f64>) {
        let begin = values.len();
        values.resize(begin + self.width(), 0.0);
        let places = text.chars().flat_map(|character| self.places_of(character));
        for (index, place) in places.take(self.length).enumerate() {
            if let Some(place) = place {
                values[begin + index * self.size + place] = 1.0;
            }
        }
    }

    fn places_of(&self, character: char) -> Vec<Option<usize>> {
        let known = |character: char| self.places.get(&character).copied();
        if let Some(place) = known(character) {
            return vec![Some(place)];
        }
        let lower: Vec<Option<usize>> = character.to_lowercase().filter_map(known).map(Some).collect();
        if lower.is_empty() { vec![None] } else { lower }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(alphabet: &str, length: usize, text: &str) -> Vec<f64> {
        let mut values = vec![7.0];
        Characters::new(alphabet, length).append(text, &mut values);
        assert_eq!(values.remove(0), 7.0);
        values
    }

    #[test]
    fn texts_are_cut_and_padded() {
        assert_eq!(numbers("ab", 2, "abab"), [1.0, 0.0, 0.0, 1.0]);
        assert_eq!(numbers("ab", 3, "b"), [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(numbers("ab", 1, ""), [0.0, 0.0]);
    }

    #[test]
    fn capitals_of_the_alphabet_are_its_own() {
        assert_eq!(numbers("aA", 2, "Aa"), [0.0, 1.0, 1.0, 0.0]);
        assert_eq!(numbers("ab", 2, "Bé"), [0.0, 1.0, 0.0, 0.0]);
    }
}
