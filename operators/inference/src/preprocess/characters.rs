//! Conversion of characters to numbers.
use std::collections::HashMap;

/// Numbers the characters of a text by their position in an alphabet.
#[derive(Debug, Clone)]
pub struct Characters {
    numbers: HashMap<char, i64>,
    length: usize,
}

impl Characters {
    /// Characters of `alphabet`, counted from 1; every text gives `length` numbers.
    pub fn new(alphabet: &str, length: usize) -> Self {
        let mut numbers = HashMap::new();
        for (character, number) in alphabet.chars().zip(1..) {
            numbers.entry(character).or_insert(number);
        }
        Self { numbers, length }
    }

    /// Returns the numbers of a text, in lower case if the alphabet lacks a capital. Characters outside the alphabet are
    /// left out; the result is cut or padded with 0.
    pub fn numbers(&self, text: &str) -> Vec<i64> {
        let mut numbers = Vec::with_capacity(self.length);
        self.append(text, &mut numbers);
        numbers
    }

    /// Appends the character numbers of `text` to `to`, padded to the fixed length.
    pub fn append(&self, text: &str, to: &mut Vec<i64>) {
        let end = to.len() + self.length;
        let known = |character: char| self.numbers.get(&character).copied();
        let numbers = text.chars().flat_map(|character| {
            let as_it_is = known(character);
            let lower = character.to_lowercase().filter(move |_| as_it_is.is_none()).filter_map(known);
            as_it_is.into_iter().chain(lower)
        });
        to.extend(numbers.take(self.length));
        to.resize(end, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_count_from_one() {
        let characters = Characters::new(" abc'", 6);
        assert_eq!(characters.numbers("A c"), [2, 1, 4, 0, 0, 0]);
        assert_eq!(characters.numbers("äb?c\u{1F600}b"), [3, 4, 3, 0, 0, 0]);
        assert_eq!(characters.numbers("abcabcabc"), [2, 3, 4, 2, 3, 4]);
        assert_eq!(characters.numbers(""), [0; 6]);
    }

    #[test]
    fn capitals_of_the_alphabet_are_its_own() {
        assert_eq!(Characters::new("ABC", 4).numbers("ABa"), [1, 2, 0, 0]);
        assert_eq!(Characters::new("aAba", 4).numbers("AaB"), [2, 1, 3, 0]);
    }
}
