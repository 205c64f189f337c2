//! Sizes of records that depend on the variants of operators before the sender: a detector determines the length of the
//! lists that a tracker sends.
//!
//! [`super::Edge::bytes`] has the sizes by the variant of the sender. Where other variants count too,
//! [`Problem::sizes`] has all sizes, and the edge the largest: a planner that ignores this makes plans that are large
//! enough. [`Problem::at`] returns the problem with the sizes of chosen variants.
use super::rates::{digits, number};
use super::{Problem, ProblemError, Producer};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Sizes of the records of an edge by joint variants.
#[derive(Debug, Clone, PartialEq)]
pub struct Sizes {
    /// Position of the edge.
    pub edge: usize,
    /// Operators whose variants count, in ascending order, possibly including the sender.
    pub operators: Vec<usize>,
    /// Bytes of one record by the joint variants of these, numbered like digits, with the last operator as the lowest
    /// digit.
    pub bytes: Vec<f64>,
}

impl Sizes {
    /// Computes the sizes of all joint variants of `operators` (`counts[operator]` is the number of variants);
    /// `bytes_of` gets one variant for each of `operators`.
    pub fn of(
        edge: usize,
        operators: Vec<usize>,
        counts: &[usize],
        bytes_of: impl FnMut(Vec<usize>) -> f64,
    ) -> Self {
        let counts: Vec<usize> = operators.iter().map(|operator| counts[*operator]).collect();
        let all = 0..counts.iter().product();
        Self { edge, operators, bytes: all.map(|joint| digits(joint, &counts)).map(bytes_of).collect() }
    }

    fn counts(&self, problem: &Problem) -> Vec<usize> {
        self.operators.iter().map(|operator| problem.operators[*operator].variants.len()).collect()
    }

    fn bytes(&self, problem: &Problem, variants: &[usize]) -> f64 {
        let joint = self.operators.iter().map(|operator| variants[*operator]);
        self.bytes[number(joint, &self.counts(problem))]
    }

    /// One size for each variant of the sender (one for a source), reduced by `pick` over the other variants.
    fn by_sender(&self, problem: &Problem, pick: fn(f64, f64) -> f64) -> Vec<f64> {
        let edge = &problem.edges[self.edge];
        let at = |operator| self.operators.iter().position(|other| *other == operator);
        let (count, sender) = match edge.from {
            Producer::Source(_) => (1, None),
            Producer::Operator(from) => (problem.operators[from].variants.len(), at(from)),
        };
        let counts = self.counts(problem);
        let of = |variant: usize| {
            let joint = self.bytes.iter().enumerate();
            let own =
                joint.filter(|(joint, _)| sender.is_none_or(|at| digits(*joint, &counts)[at] == variant));
            own.map(|(_, bytes)| *bytes).reduce(pick).unwrap_or(0.0)
        };
        (0..count).map(of).collect()
    }

    /// Keeps only these variants of each operator, in this order. `problem` still has all.
    pub(super) fn only(&self, problem: &Problem, variants: &[Vec<usize>]) -> Self {
        let kept: Vec<&Vec<usize>> = self.operators.iter().map(|operator| &variants[*operator]).collect();
        let (old, new) = (self.counts(problem), kept.iter().map(|kept| kept.len()).collect::<Vec<_>>());
        let bytes = |joint| {
            let joint = digits(joint, &new).into_iter().zip(&kept).map(|(digit, kept)| kept[digit]);
            self.bytes[number(joint, &old)]
        };
        let bytes = (0..new.iter().product()).map(bytes).collect();
        Self { edge: self.edge, operators: self.operators.clone(), bytes }
    }

    /// Whether it fits the problem.
    pub(super) fn check(&self, problem: &Problem) -> Result<(), ProblemError> {
        let are_known = self.edge < problem.edges.len()
            && self.operators.iter().all(|operator| *operator < problem.operators.len())
            && self.operators.is_sorted_by(|a, b| a < b);
        if !are_known || self.bytes.len() != self.counts(problem).iter().product::<usize>() {
            return Err(ProblemError::Shape("the sizes of an edge do not fit the problem".to_owned()));
        }
        match self.bytes.iter().find(|bytes| !(bytes.is_finite() && **bytes >= 0.0)) {
            Some(bytes) => Err(ProblemError::Shape(format!("a size of {bytes} bytes"))),
            None => Ok(()),
        }
    }
}

impl Problem {
    /// Bytes of a record on an edge with these variants (one per operator).
    pub fn edge_bytes(&self, edge: usize, variants: &[usize]) -> f64 {
        if let Some(sizes) = self.sizes.iter().find(|sizes| sizes.edge == edge) {
            return sizes.bytes(self, variants);
        }
        let edge = &self.edges[edge];
        match edge.from {
            Producer::Source(_) => edge.bytes[0],
            Producer::Operator(operator) => edge.bytes[variants[operator]],
        }
    }

    /// Sets sizes by joint variants, at most one list per edge, and the largest as the edge's own. Sizes that depend on
    /// the sender only become the edge's own.
    #[must_use]
    pub fn with_sizes(mut self, sizes: Vec<Sizes>) -> Self {
        self.sizes = Vec::new();
        for own in sizes {
            let (least, most) = (own.by_sender(&self, f64::min), own.by_sender(&self, f64::max));
            let depends = least != most;
            self.edges[own.edge].bytes = most;
            if depends {
                self.sizes.push(own);
            }
        }
        self
    }

    /// The problem with the sizes of these variants for all others.
    pub(super) fn with_sizes_at<'a>(problem: Cow<'a, Self>, variants: &[usize]) -> Cow<'a, Self> {
        if problem.sizes.is_empty() {
            return problem;
        }
        let mut problem = problem.into_owned();
        for sizes in std::mem::take(&mut problem.sizes) {
            let bytes = sizes.bytes(&problem, variants);
            problem.edges[sizes.edge].bytes.fill(bytes);
        }
        Cow::Owned(problem)
    }

    /// The problem with the smallest sizes over the variants of the other operators. Its plans cost no more than in the
    /// problem itself, and plans that keep the limits there keep them here.
    pub(crate) fn with_least_sizes(&self) -> Cow<'_, Self> {
        if self.sizes.is_empty() {
            return Cow::Borrowed(self);
        }
        let mut least = self.clone();
        for sizes in std::mem::take(&mut least.sizes) {
            least.edges[sizes.edge].bytes = sizes.by_sender(&least, f64::min);
        }
        Cow::Owned(least)
    }

    /// The operator before a sender whose given variant raises the bytes per second most above the smallest sizes; none
    /// where only the senders' variants count.
    pub(crate) fn decides_sizes(&self, variants: &[usize]) -> Option<usize> {
        let mut raised: BTreeMap<usize, f64> = BTreeMap::new();
        for sizes in &self.sizes {
            let edge = &self.edges[sizes.edge];
            let counts = sizes.counts(self);
            // The least size with the given variants of the sender and of one more operator.
            let least = |more: usize| {
                let is_chosen = |(at, digit): (usize, usize)| {
                    let operator = sizes.operators[at];
                    (edge.from != Producer::Operator(operator) && operator != more)
                        || digit == variants[operator]
                };
                let joint = sizes.bytes.iter().enumerate();
                let own =
                    joint.filter(|(joint, _)| digits(*joint, &counts).into_iter().enumerate().all(is_chosen));
                own.map(|(_, bytes)| *bytes).fold(f64::INFINITY, f64::min)
            };
            let decide = sizes
                .operators
                .iter()
                .zip(&counts)
                .filter(|(operator, count)| **count > 1 && edge.from != Producer::Operator(**operator));
            for (operator, _) in decide {
                let by = edge.rate * (least(*operator) - least(usize::MAX));
                *raised.entry(*operator).or_default() += by;
            }
        }
        // The first of equal ones.
        raised.into_iter().rev().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(operator, _)| operator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::small_problem;

    /// A problem with an edge from the second of two operators, both with several variants.
    fn chain() -> (Problem, usize) {
        let found = (1..500).map(small_problem).find_map(|problem| {
            let edge = problem.edges.iter().position(|edge| {
                let Producer::Operator(from) = edge.from else { return false };
                from == 1
                    && problem.operators[0].variants.len() > 1
                    && problem.operators[1].variants.len() > 1
            });
            edge.map(|edge| (problem, edge))
        });
        found.expect("one of them")
    }

    #[test]
    fn sizes_are_those_of_all_variants_that_count() {
        let (problem, edge) = chain();
        let counts: Vec<usize> = problem.operators.iter().map(|operator| operator.variants.len()).collect();
        let sizes = Sizes::of(edge, vec![0, 1], &counts, |joint| (10 * joint[0] + joint[1]) as f64);
        let problem = problem.with_sizes(vec![sizes]);
        assert_eq!(problem.check(), Ok(()));
        let last = counts[0] - 1;
        assert_eq!(problem.edges[edge].bytes[1], (10 * last + 1) as f64, "the largest by sender");
        let mut variants = vec![0; counts.len()];
        variants[1] = 1;
        assert_eq!(problem.edge_bytes(edge, &variants), 1.0);
        assert_eq!(problem.at(&variants).edges[edge].bytes[1], 1.0);
        assert_eq!(problem.with_least_sizes().edges[edge].bytes[1], 1.0);
        variants[0] = 1;
        assert_eq!(problem.edge_bytes_per_second(edge, &variants), 11.0 * problem.edge_rate(edge, &variants));
        assert_eq!(problem.decides_sizes(&variants), Some(0));
        let only: Vec<Vec<usize>> = counts
            .iter()
            .enumerate()
            .map(|(o, n)| if o == 0 { vec![1] } else { (0..*n).collect() })
            .collect();
        let fixed = problem.only(&only);
        assert_eq!((fixed.sizes.len(), fixed.edges[edge].bytes[1]), (0, 11.0), "nothing else counts");
        assert_eq!(fixed.decides_sizes(&variants), None);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (problem, edge) = chain();
        for (edge, operators) in
            [(edge, vec![0]), (usize::MAX, vec![]), (edge, vec![usize::MAX]), (edge, vec![1, 0])]
        {
            let sizes = vec![Sizes { edge, operators, bytes: vec![1.0] }];
            assert!(Problem { sizes, ..problem.clone() }.check().is_err());
        }
        let sizes = vec![Sizes { edge, operators: vec![], bytes: vec![f64::NAN] }];
        assert!(Problem { sizes, ..problem.clone() }.check().is_err());
    }
}
