//! Greedy decoding of connectionist temporal classification (CTC).
use super::scores::argmax;

/// Turns per-step scores into text.
#[derive(Debug, Clone)]
pub struct CtcDecoder {
    alphabet: Vec<char>,
    blank: usize,
}

impl CtcDecoder {
    /// A decoder for `alphabet.len() + 1` classes: number `blank` is the blank, the others are the
    /// characters of the alphabet in order (so with blank 0, class i is character i - 1).
    pub fn new(alphabet: &str, blank: usize) -> Self {
        Self { alphabet: alphabet.chars().collect(), blank }
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.alphabet.len() + 1
    }

    /// The text of the scores of one record, step after step: the best class of each step, repeats
    /// merged, blanks dropped, spaces at both ends removed.
    pub fn decode(&self, scores: &[f32]) -> String {
        let mut text = String::new();
        let mut previous = self.blank;
        for step in scores.chunks_exact(self.classes()) {
            let class = argmax(step);
            if class != previous && class != self.blank {
                let index = if class > self.blank { class - 1 } else { class };
                text.extend(self.alphabet.get(index));
            }
            previous = class;
        }
        text.trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(classes: usize, steps: &[usize]) -> Vec<f32> {
        steps.iter().flat_map(|best| (0..classes).map(move |c| if c == *best { 2.0 } else { -1.0 })).collect()
    }

    #[test]
    fn repeats_merge_and_blanks_part_them() {
        let decoder = CtcDecoder::new(" ab", 0);
        assert_eq!(decoder.decode(&scores(4, &[0, 2, 2, 0, 2, 3, 3, 1, 1, 0])), "aab");
        assert_eq!(decoder.decode(&scores(4, &[1, 3, 1, 3])), "b b");
        assert_eq!(decoder.decode(&scores(4, &[0, 0])), "");
        assert_eq!(decoder.decode(&[]), "");
    }

    #[test]
    fn the_blank_may_be_last() {
        let decoder = CtcDecoder::new("ab", 2);
        assert_eq!(decoder.decode(&scores(3, &[0, 2, 0, 1, 2])), "aab");
    }
}
