//! Greedy decoding of connectionist temporal classification (CTC).
use super::scores::argmax;

/// Turns per-step scores into text.
#[derive(Debug, Clone)]
pub struct CtcDecoder {
    /// Text of each class; `None` for the blank.
    classes: Vec<Option<String>>,
}

impl CtcDecoder {
    /// Creates a decoder for `classes` classes, with class `blank` as the blank. The other classes have these texts
    /// in order, so with blank 0 class i has text i - 1. As many texts as classes have one for the blank too, which is never
    /// used.
    ///
    /// `None` if the numbers do not fit.
    pub fn new(texts: &[String], blank: usize, classes: usize) -> Option<Self> {
        let mut all: Vec<Option<String>> = texts.iter().cloned().map(Some).collect();
        if all.len() + 1 == classes && blank < classes {
            all.insert(blank, None);
        }
        if all.len() != classes {
            return None;
        }
        *all.get_mut(blank)? = None;
        Some(Self { classes: all })
    }

    /// Creates a decoder of the best classes instead of scores; their number is not known. See [`CtcDecoder::new`].
    pub fn of_classes(texts: &[String], blank: usize) -> Option<Self> {
        Self::new(texts, blank, texts.len() + 1)
    }

    /// Decodes the best classes of one record; one that has no character is a blank.
    pub fn decode_classes(&self, classes: &[f32]) -> String {
        let mut text = String::new();
        let mut previous = None;
        for class in classes {
            let class = *class as usize;
            if previous != Some(class) {
                text.push_str(self.classes.get(class).and_then(Option::as_deref).unwrap_or_default());
            }
            previous = Some(class);
        }
        text.trim().to_owned()
    }

    /// Decodes the scores of one record, step after step: the best class of each step, repeats merged, blanks dropped,
    /// spaces at both ends removed.
    pub fn decode(&self, scores: &[f32]) -> String {
        let mut text = String::new();
        let mut previous = None;
        for step in scores.chunks_exact(self.classes.len()) {
            let class = argmax(step);
            if previous != Some(class) {
                text.push_str(self.classes[class].as_deref().unwrap_or_default());
            }
            previous = Some(class);
        }
        text.trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(alphabet: &str) -> Vec<String> {
        alphabet.chars().map(String::from).collect()
    }

    fn scores(classes: usize, steps: &[usize]) -> Vec<f32> {
        steps.iter().flat_map(|best| (0..classes).map(move |c| if c == *best { 2.0 } else { -1.0 })).collect()
    }

    #[test]
    fn repeats_merge_and_blanks_part_them() {
        let decoder = CtcDecoder::new(&texts(" ab"), 0, 4).unwrap();
        assert_eq!(decoder.decode(&scores(4, &[0, 2, 2, 0, 2, 3, 3, 1, 1, 0])), "aab");
        assert_eq!(decoder.decode(&scores(4, &[1, 3, 1, 3])), "b b");
        assert_eq!(decoder.decode(&scores(4, &[0, 0])), "");
        assert_eq!(decoder.decode(&[]), "");
    }

    #[test]
    fn the_blank_may_be_last() {
        for alphabet in ["ab", "ab_"] {
            let decoder = CtcDecoder::new(&texts(alphabet), 2, 3).unwrap();
            assert_eq!(decoder.decode(&scores(3, &[0, 2, 0, 1, 2])), "aab");
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        assert!(CtcDecoder::new(&texts("ab"), 0, 4).is_none());
        assert!(CtcDecoder::new(&texts("ab"), 3, 3).is_none());
        assert!(CtcDecoder::new(&texts("abc"), 3, 3).is_none());
        assert!(CtcDecoder::new(&texts(""), 0, 0).is_none());
    }
}
