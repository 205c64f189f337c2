//! Greedy decoding of connectionist temporal classification (CTC).
use super::scores::argmax;

/// Turns per-step scores into text.
#[derive(Debug, Clone)]
pub struct CtcDecoder {
    /// Text of each class; `None` for the blank.
    classes: Vec<Option<char>>,
}

impl CtcDecoder {
    /// Creates a decoder for `classes` classes, with class `blank` as the blank. The other classes are the characters of
    /// the alphabet in order, so with blank 0 class i is character i - 1. An alphabet with as many characters as classes
    /// has one for the blank too, which is never used.
    ///
    /// `None` if the numbers do not fit.
    pub fn new(alphabet: &str, blank: usize, classes: usize) -> Option<Self> {
        let mut all: Vec<Option<char>> = alphabet.chars().map(Some).collect();
        if all.len() + 1 == classes && blank < classes {
            all.insert(blank, None);
        }
        if all.len() != classes {
            return None;
        }
        *all.get_mut(blank)? = None;
        Some(Self { classes: all })
    }

    /// Decodes the scores of one record, step after step: the best class of each step, repeats merged, blanks dropped,
    /// spaces at both ends removed.
    pub fn decode(&self, scores: &[f32]) -> String {
        let mut text = String::new();
        let mut previous = None;
        for step in scores.chunks_exact(self.classes.len()) {
            let class = argmax(step);
            if previous != Some(class) {
                text.extend(self.classes[class]);
            }
            previous = Some(class);
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
        let decoder = CtcDecoder::new(" ab", 0, 4).unwrap();
        assert_eq!(decoder.decode(&scores(4, &[0, 2, 2, 0, 2, 3, 3, 1, 1, 0])), "aab");
        assert_eq!(decoder.decode(&scores(4, &[1, 3, 1, 3])), "b b");
        assert_eq!(decoder.decode(&scores(4, &[0, 0])), "");
        assert_eq!(decoder.decode(&[]), "");
    }

    #[test]
    fn the_blank_may_be_last() {
        for alphabet in ["ab", "ab_"] {
            let decoder = CtcDecoder::new(alphabet, 2, 3).unwrap();
            assert_eq!(decoder.decode(&scores(3, &[0, 2, 0, 1, 2])), "aab");
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        assert!(CtcDecoder::new("ab", 0, 4).is_none());
        assert!(CtcDecoder::new("ab", 3, 3).is_none());
        assert!(CtcDecoder::new("abc", 3, 3).is_none());
        assert!(CtcDecoder::new("", 0, 0).is_none());
    }
}
