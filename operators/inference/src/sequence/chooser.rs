//! Choice of the next token by the scores of all tokens: the most likely one, or a random one by its probability.
//!
//! Random numbers come from the seed of the manifest and the record alone, so the text of a record does not depend on
//! others, on the batch or on the worker.
use crate::postprocess::scores::{argmax, top};
use std::collections::BTreeSet;
use tidemill_spec::manifest::Sampling;
use tidemill_spec::span::Located;

/// Number of tokens that are sorted at first: few have most of the probability.
const FEW: usize = 256;

/// Chooses the tokens of one text.
#[derive(Debug, Clone)]
pub(crate) struct Chooser {
    /// Divisor of positive scores of tokens that occurred; 1 for none.
    penalty: f32,
    occurred: BTreeSet<u32>,
    draw: Option<(Draw, Random)>,
}

/// Result of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) token: u32,
    /// Whether some of the scores are not numbers.
    pub(crate) undecided: bool,
}

impl Chooser {
    /// Creates a chooser for the text of one record; `record` gives a number by which records differ.
    pub(crate) fn new(
        sampling: Option<&Sampling>,
        repetition_penalty: Option<&Located<f64>>,
        record: impl FnOnce() -> u64,
    ) -> Self {
        let draw = sampling.map(|sampling| (Draw::new(sampling), Random::new(sampling.seed, record())));
        let penalty = repetition_penalty.map_or(1.0, |penalty| penalty.value as f32);
        Self { penalty, occurred: BTreeSet::new(), draw }
    }

    /// Adds tokens to those that occurred.
    pub(crate) fn note(&mut self, tokens: &[u32]) {
        if self.penalty != 1.0 {
            self.occurred.extend(tokens);
        }
    }

    /// Chooses a token by the scores of all; they are changed.
    pub(crate) fn choose(&mut self, scores: &mut [f32]) -> Choice {
        let undecided = scores.iter().any(|score| score.is_nan());
        for token in &self.occurred {
            if let Some(score) = scores.get_mut(*token as usize) {
                *score = if *score < 0.0 { *score * self.penalty } else { *score / self.penalty };
            }
        }
        let token = match &mut self.draw {
            Some((draw, random)) => draw.token(scores, random.next_share()),
            None => argmax(scores),
        };
        Choice { token: token as u32, undecided }
    }
}

/// Random choice among the likely tokens.
#[derive(Debug, Clone)]
struct Draw {
    temperature: f64,
    top_k: Option<usize>,
    top_p: f64,
}

impl Draw {
    fn new(sampling: &Sampling) -> Self {
        Self {
            temperature: sampling.temperature.as_ref().map_or(1.0, |value| value.value),
            top_k: sampling.top_k.as_ref().map(|value| value.value as usize),
            top_p: sampling.top_p.as_ref().map_or(1.0, |value| value.value),
        }
    }

    /// Returns the token at this share, from 0 to 1, of the probability of the candidates.
    fn token(&self, scores: &[f32], share: f64) -> usize {
        let candidates = self.candidates(scores);
        let all: f64 = candidates.iter().map(|(_, weight)| weight).sum();
        let mut left = share * all;
        let mut last = None;
        for (token, weight) in candidates.into_iter().filter(|(_, weight)| *weight > 0.0) {
            last = Some(token);
            left -= weight;
            if left < 0.0 {
                break;
            }
        }
        // Without any candidate, scores are infinite or no numbers.
        last.unwrap_or_else(|| argmax(scores))
    }

    /// Returns the tokens among which it is chosen, with their relative probabilities.
    fn candidates(&self, scores: &[f32]) -> Vec<(usize, f64)> {
        let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weighted = |at: usize| {
            let weight = ((f64::from(scores[at]) - f64::from(largest)) / self.temperature).exp();
            (at, if weight.is_nan() { 0.0 } else { weight })
        };
        let all: Vec<(usize, f64)> = match self.top_k {
            Some(most) => top(scores, most).into_iter().map(weighted).collect(),
            None => (0..scores.len()).map(weighted).collect(),
        };
        if self.top_p >= 1.0 {
            return all;
        }
        let wanted = self.top_p * all.iter().map(|(_, weight)| weight).sum::<f64>();
        let mut count = FEW.min(all.len());
        loop {
            let mut first: Vec<(usize, f64)> = top(scores, count).into_iter().map(weighted).collect();
            let mut sum = 0.0;
            let enough = first.iter().position(|(_, weight)| {
                sum += weight;
                sum >= wanted
            });
            if let Some(last) = enough {
                first.truncate(last + 1);
                return first;
            }
            if count == all.len() {
                return first;
            }
            count = (count * 8).min(all.len());
        }
    }
}

/// The numbers of SplitMix64.
#[derive(Debug, Clone)]
struct Random(u64);

impl Random {
    fn new(seed: u64, record: u64) -> Self {
        let first = Self(seed).next_number();
        Self(first ^ record)
    }

    fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to below 1.
    fn next_share(&mut self) -> f64 {
        (self.next_number() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Returns a number by which lists differ, the same on every machine (FNV-1a).
pub(crate) fn fingerprint(values: impl IntoIterator<Item = u32>) -> u64 {
    let bytes = values.into_iter().flat_map(u32::to_le_bytes);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sampling(temperature: f64, top_k: Option<u32>, top_p: f64) -> Sampling {
        Sampling {
            temperature: Some(temperature.into()),
            top_k: top_k.map(Located::from),
            top_p: Some(top_p.into()),
            seed: 3,
        }
    }

    /// The candidates as the definitions have them, with everything sorted: tokens and probabilities.
    fn plain(scores: &[f32], temperature: f64, top_k: Option<u32>, top_p: f64) -> Vec<(usize, f64)> {
        let mut sorted: Vec<(usize, f64)> =
            scores.iter().map(|score| f64::from(*score) / temperature).enumerate().collect();
        sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        sorted.truncate(top_k.map_or(sorted.len(), |most| most as usize));
        let all: f64 = sorted.iter().map(|(_, score)| score.exp()).sum();
        let mut kept = Vec::new();
        let mut sum = 0.0;
        for (token, score) in sorted {
            if top_p < 1.0 && sum >= top_p {
                break;
            }
            sum += score.exp() / all;
            kept.push((token, score.exp() / all));
        }
        kept.into_iter().map(|(token, share)| (token, share / sum)).collect()
    }

    proptest! {
        #[test]
        fn candidates_are_those_of_the_definition(
            whole in prop::collection::vec(-40i32..40, 1..600),
            temperature in 0.2..3.0f64,
            top_k in prop::option::of(1u32..300),
            top_p in 0.05..1.0f64,
        ) {
            // Equal scores are frequent.
            let scores: Vec<f32> = whole.iter().map(|score| *score as f32 / 4.0).collect();
            let draw = Draw::new(&sampling(temperature, top_k, top_p));
            let mut found = draw.candidates(&scores);
            let all: f64 = found.iter().map(|(_, weight)| weight).sum();
            found.iter_mut().for_each(|(_, weight)| *weight /= all);
            let expected = plain(&scores, temperature, top_k, top_p);
            // A sum beside the limit may be rounded to either side.
            let shorter = found.len().min(expected.len());
            prop_assert!(found.len().abs_diff(expected.len()) <= 1, "{found:?} {expected:?}");
            for (found, expected) in found.iter().zip(&expected).take(shorter) {
                prop_assert_eq!(found.0, expected.0);
            }
            if found.len() == expected.len() {
                for (found, expected) in found.iter().zip(&expected) {
                    prop_assert!((found.1 - expected.1).abs() < 1e-9, "{found:?} {expected:?}");
                }
            }
        }

        #[test]
        fn a_share_of_the_probability_is_a_token(
            scores in prop::collection::vec(-8f32..8.0, 1..50), share in 0.0..1.0f64, temperature in 0.2..3.0f64,
        ) {
            let draw = Draw::new(&sampling(temperature, None, 1.0));
            let token = draw.token(&scores, share);
            let mut shares = plain(&scores, temperature, None, 1.0);
            shares.sort_by_key(|(token, _)| *token);
            let before: f64 = shares.iter().take(token).map(|(_, share)| share).sum();
            let after = before + shares[token].1;
            prop_assert!(before - 1e-9 <= share && share <= after + 1e-9, "{before} {share} {after}");
        }
    }

    #[test]
    fn tokens_are_as_frequent_as_they_are_probable() {
        let scores = [1.0f32, 2.0, 0.0, -1.0];
        let sampling = Sampling { temperature: None, top_p: None, ..sampling(1.0, Some(3), 1.0) };
        let mut chooser = Chooser::new(Some(&sampling), None, || 5);
        let mut counts = [0u32; 4];
        for _ in 0..20_000 {
            counts[chooser.choose(&mut scores.clone()).token as usize] += 1;
        }
        for (token, share) in plain(&scores, 1.0, Some(3), 1.0) {
            let found = f64::from(counts[token]) / 20_000.0;
            assert!((found - share).abs() < 0.02, "{token}: {found} {share}");
        }
        assert_eq!(counts[3], 0, "it is not among the three most likely");
    }

    #[test]
    fn the_same_record_has_the_same_tokens() {
        let tokens = |seed: u64, record: u64| -> Vec<u32> {
            let sampling = Sampling { seed, ..Sampling::default() };
            let mut chooser = Chooser::new(Some(&sampling), None, || record);
            (0..40).map(|_| chooser.choose(&mut [0.0; 50]).token).collect()
        };
        assert_eq!(tokens(1, 2), tokens(1, 2));
        assert_ne!(tokens(1, 2), tokens(2, 2));
        assert_ne!(tokens(1, 2), tokens(1, 3));
        assert_ne!(tokens(1, 2), tokens(2, 1));
        assert_ne!(fingerprint([1, 2]), fingerprint([2, 1]));
        assert_eq!(fingerprint([]), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fingerprint([u32::from_le_bytes(*b"abcd")]), 0xfc17_9f83_ee07_24dd);
    }

    #[test]
    fn tokens_that_occurred_lose() {
        let penalty = Located::from(2.0);
        let mut chooser = Chooser::new(None, Some(&penalty), || 0);
        let scores = [3.0f32, 2.0, -1.0];
        assert_eq!(chooser.choose(&mut scores.clone()).token, 0);
        chooser.note(&[0, 2, 99]);
        let mut changed = scores;
        assert_eq!(chooser.choose(&mut changed).token, 1);
        assert_eq!(changed, [1.5, 2.0, -2.0]);
        let mut none = Chooser::new(None, None, || 0);
        none.note(&[0]);
        assert_eq!(none.choose(&mut scores.clone()).token, 0);
    }

    #[test]
    fn scores_that_are_no_numbers_are_remarked() {
        let drawn = sampling(1.0, None, 0.9);
        for sampling in [None, Some(&drawn)] {
            let mut chooser = Chooser::new(sampling, None, || 0);
            let odd = chooser.choose(&mut [f32::NAN, 1.0, f32::NEG_INFINITY]);
            assert_eq!((odd.token, odd.undecided), (1, true));
            assert!(!chooser.choose(&mut [f32::NEG_INFINITY; 3]).undecided);
            assert_eq!(chooser.choose(&mut [f32::INFINITY, 1.0]).token, 0);
            assert_eq!(chooser.choose(&mut [f32::NAN; 2]).token, 0);
        }
    }
}
