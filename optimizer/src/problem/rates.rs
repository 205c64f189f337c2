//! Rates that depend on the chosen variants: a better detector finds more, so the operators after it have more to do.
//!
//! A [`Problem`] has one rate for each operator and edge. Where they depend on variants, [`Problem::rates`] has them
//! all, and the rates of the problem itself are the maxima: a planner that ignores this makes plans that are large
//! enough. [`Problem::at`] returns the problem with the rates of chosen variants; [`Problem::cases`] divides the
//! problem into parts with fixed rates, which together hold every joint variant once.
use super::{AccuracyModel, Problem, ProblemError, Producer};
use crate::solution::Solution;
use std::borrow::Cow;

/// Rates by joint variants.
#[derive(Debug, Clone, PartialEq)]
pub struct Rates {
    /// `groups[operator][variant]`, from 0: variants of an operator in one group have equal rates everywhere.
    pub groups: Vec<Vec<usize>>,
    /// Rates by joint groups, numbered like digits, with the last operator as the lowest digit.
    pub cases: Vec<RateCase>,
}

/// Rates with some joint variants.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RateCase {
    /// Records per second that each operator serves.
    pub operators: Vec<f64>,
    /// Records per second of each edge.
    pub edges: Vec<f64>,
}

impl RateCase {
    /// The element-wise maximum.
    fn or_more(&self, other: &Self) -> Self {
        let most = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a.max(*b)).collect();
        Self { operators: most(&self.operators, &other.operators), edges: most(&self.edges, &other.edges) }
    }

    /// The sum of all rates, for ordering.
    fn total(&self) -> f64 {
        self.operators.iter().chain(&self.edges).sum()
    }
}

/// Digits of a number, the lowest digit last.
pub(super) fn digits(mut number: usize, counts: &[usize]) -> Vec<usize> {
    let mut digits = vec![0; counts.len()];
    for (digit, count) in digits.iter_mut().zip(counts).rev() {
        *digit = number % count;
        number /= count;
    }
    digits
}

pub(super) fn number(digits: impl IntoIterator<Item = usize>, counts: &[usize]) -> usize {
    digits.into_iter().zip(counts).fold(0, |number, (digit, count)| number * count + digit)
}

impl Rates {
    /// Computes the rates of all joint variants of the operators that `matter`, with the first variant of the others
    /// (`counts[operator]` is the number of variants), and groups variants with equal rates. None: all rates are equal.
    pub fn of(
        counts: &[usize],
        matter: &[usize],
        mut rates_of: impl FnMut(&[usize]) -> RateCase,
    ) -> Option<Self> {
        let own: Vec<usize> =
            counts.iter().enumerate().map(|(o, n)| if matter.contains(&o) { *n } else { 1 }).collect();
        let all = own.iter().product();
        let cases: Vec<RateCase> = (0..all).map(|joint| rates_of(&digits(joint, &own))).collect();
        let mut groups: Vec<Vec<usize>> = counts.iter().map(|count| vec![0; *count]).collect();
        let mut kept: Vec<Vec<usize>> = vec![vec![0]; counts.len()];
        for &operator in matter {
            let same = |a: usize, b: usize| {
                (0..all).all(|joint| {
                    let mut joint = digits(joint, &own);
                    let at = |joint: &[usize]| &cases[number(joint.iter().copied(), &own)];
                    joint[operator] = a;
                    let first = at(&joint);
                    joint[operator] = b;
                    first == at(&joint)
                })
            };
            let mut first_of: Vec<usize> = Vec::new();
            for (variant, group) in groups[operator].iter_mut().enumerate() {
                *group = first_of.iter().position(|first| same(*first, variant)).unwrap_or(first_of.len());
                if *group == first_of.len() {
                    first_of.push(variant);
                }
            }
            kept[operator] = first_of;
        }
        let counts: Vec<usize> = kept.iter().map(Vec::len).collect();
        let joint = |index| {
            let variants = digits(index, &counts).into_iter().zip(&kept).map(|(digit, kept)| kept[digit]);
            cases[number(variants, &own)].clone()
        };
        let cases: Vec<RateCase> = (0..counts.iter().product()).map(joint).collect();
        (cases.len() > 1).then_some(Self { groups, cases })
    }

    /// Number of groups of each operator.
    fn counts(&self) -> Vec<usize> {
        self.groups.iter().map(|groups| groups.iter().max().map_or(1, |most| most + 1)).collect()
    }

    /// Rates with joint variants.
    pub fn case(&self, variants: &[usize]) -> &RateCase {
        let groups = self.groups.iter().zip(variants).map(|(groups, variant)| groups[*variant]);
        &self.cases[number(groups, &self.counts())]
    }

    /// The largest rates of any joint variants.
    pub fn most(&self) -> RateCase {
        let first = self.cases.first().cloned().unwrap_or_default();
        self.cases.iter().fold(first, |most, case| most.or_more(case))
    }

    /// Reduces to at most this number of cases: merges groups of the operator with most of them, the most similar
    /// first, with the larger of their rates.
    #[must_use]
    pub fn at_most(mut self, most: usize) -> Self {
        while self.cases.len() > most.max(1) {
            let counts = self.counts();
            let Some(operator) = (0..counts.len()).rev().max_by_key(|operator| counts[*operator]) else {
                break;
            };
            let mut sums = vec![0.0; counts[operator]];
            for (index, case) in self.cases.iter().enumerate() {
                sums[digits(index, &counts)[operator]] += case.total();
            }
            let mut order: Vec<usize> = (0..sums.len()).collect();
            order.sort_by(|a, b| sums[*a].total_cmp(&sums[*b]));
            let Some(pair) = order
                .windows(2)
                .min_by(|a, b| (sums[a[1]] - sums[a[0]]).total_cmp(&(sums[b[1]] - sums[b[0]])))
            else {
                break;
            };
            self = self.merged(operator, pair[0].min(pair[1]), pair[0].max(pair[1]));
        }
        self
    }

    /// Merges the group `gone` of an operator into its lower group `stays`.
    fn merged(&self, operator: usize, stays: usize, gone: usize) -> Self {
        let before = self.counts();
        let mut counts = before.clone();
        counts[operator] -= 1;
        let old = |group: usize| if group >= gone { group + 1 } else { group };
        let case = |index: usize| {
            let mut joint = digits(index, &counts);
            joint[operator] = old(joint[operator]);
            let case = &self.cases[number(joint.iter().copied(), &before)];
            if joint[operator] != stays {
                return case.clone();
            }
            joint[operator] = gone;
            case.or_more(&self.cases[number(joint, &before)])
        };
        let cases = (0..counts.iter().product()).map(case).collect();
        let mut groups = self.groups.clone();
        for group in &mut groups[operator] {
            *group = match *group {
                group if group == gone => stays,
                group if group > gone => group - 1,
                group => group,
            };
        }
        Self { groups, cases }
    }

    /// Multiplies all rates by a factor.
    pub fn scale(&mut self, factor: f64) {
        for case in &mut self.cases {
            case.operators.iter_mut().chain(&mut case.edges).for_each(|rate| *rate *= factor);
        }
    }

    /// Keeps only these variants of each operator, in this order.
    fn only(&self, variants: &[Vec<usize>]) -> Self {
        let mut kept: Vec<Vec<usize>> = Vec::new();
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (of, variants) in self.groups.iter().zip(variants) {
            let old: Vec<usize> = variants.iter().map(|variant| of[*variant]).collect();
            let mut left = old.clone();
            left.sort_unstable();
            left.dedup();
            groups.push(old.iter().map(|group| left.partition_point(|other| other < group)).collect());
            kept.push(left);
        }
        let (before, counts) = (self.counts(), kept.iter().map(Vec::len).collect::<Vec<_>>());
        let case = |joint: usize| {
            let old = digits(joint, &counts).into_iter().zip(&kept).map(|(digit, kept)| kept[digit]);
            self.cases[number(old, &before)].clone()
        };
        Self { groups, cases: (0..counts.iter().product()).map(case).collect() }
    }

    /// Whether it fits the problem.
    pub(super) fn check(&self, problem: &Problem) -> Result<(), ProblemError> {
        let fits = self.groups.len() == problem.operators.len()
            && self.groups.iter().zip(&problem.operators).all(|(g, o)| g.len() == o.variants.len())
            && self.cases.len() == self.counts().iter().product::<usize>();
        if !fits {
            return Err(ProblemError::Shape("the groups of variants do not fit the rates".to_owned()));
        }
        for case in &self.cases {
            if (case.operators.len(), case.edges.len()) != (problem.operators.len(), problem.edges.len()) {
                return Err(ProblemError::Shape("a case does not have all rates".to_owned()));
            }
            if let Some(rate) =
                case.operators.iter().chain(&case.edges).find(|r| !(r.is_finite() && **r >= 0.0))
            {
                return Err(ProblemError::Shape(format!("a rate of {rate} in a case")));
            }
        }
        Ok(())
    }
}

/// A part of a problem with fixed rates.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// The problem with the variants of the part only.
    pub problem: Problem,
    /// `variants[operator][position]`: variants of the whole problem by their position in the part.
    pub variants: Vec<Vec<usize>>,
}

impl Case {
    /// A problem as one part.
    pub(crate) fn whole(problem: &Problem) -> Self {
        let all = |operator: &super::Operator| (0..operator.variants.len()).collect();
        Self { problem: problem.clone(), variants: problem.operators.iter().map(all).collect() }
    }

    /// The part with only these variants of an operator, by their positions in it.
    pub(crate) fn with(&self, operator: usize, is_kept: impl Fn(usize) -> bool) -> Self {
        let all = |(at, of): (usize, &Vec<usize>)| -> Vec<usize> {
            (0..of.len()).filter(|variant| at != operator || is_kept(*variant)).collect()
        };
        let kept: Vec<Vec<usize>> = self.variants.iter().enumerate().map(all).collect();
        let whole =
            |(kept, of): (&Vec<usize>, &Vec<usize>)| kept.iter().map(|variant| of[*variant]).collect();
        let variants = kept.iter().zip(&self.variants).map(whole).collect();
        Self { problem: self.problem.clone().only(&kept), variants }
    }

    /// Converts a solution of the part to the whole.
    pub fn of_whole(&self, mut solution: Solution) -> Solution {
        for (variant, of) in solution.variants.iter_mut().zip(&self.variants) {
            *variant = of[*variant];
        }
        solution
    }

    /// Converts joint variants of the whole to the part; none where it does not have them.
    pub fn of_part(&self, variants: &[usize]) -> Option<Vec<usize>> {
        let position = |(wanted, of): (&usize, &Vec<usize>)| of.iter().position(|variant| variant == wanted);
        variants.iter().zip(&self.variants).map(position).collect()
    }
}

impl Problem {
    /// The problem with the rates and sizes of these variants (one per operator), which are then fixed.
    pub fn at(&self, variants: &[usize]) -> Cow<'_, Self> {
        let problem = match &self.rates {
            None => Cow::Borrowed(self),
            Some(rates) => Cow::Owned(self.with_rates(rates.case(variants))),
        };
        Self::with_sizes_at(problem, variants)
    }

    /// Records per second of an edge with these variants.
    pub fn edge_rate(&self, edge: usize, variants: &[usize]) -> f64 {
        self.rates.as_ref().map_or(self.edges[edge].rate, |rates| rates.case(variants).edges[edge])
    }

    /// Records per second of an operator with these variants.
    pub fn operator_rate(&self, operator: usize, variants: &[usize]) -> f64 {
        let own = self.operators[operator].rate;
        self.rates.as_ref().map_or(own, |rates| rates.case(variants).operators[operator])
    }

    /// Sets rates by joint variants, and their maxima as its own.
    #[must_use]
    pub fn with_variant_rates(mut self, rates: Option<Rates>) -> Self {
        if let Some(most) = rates.as_ref().map(Rates::most) {
            self.set_rates(&most);
        }
        self.rates = rates;
        self
    }

    fn with_rates(&self, case: &RateCase) -> Self {
        let mut problem = Self { rates: None, ..self.clone() };
        problem.set_rates(case);
        problem
    }

    fn set_rates(&mut self, case: &RateCase) {
        self.operators.iter_mut().zip(&case.operators).for_each(|(operator, rate)| operator.rate = *rate);
        self.edges.iter_mut().zip(&case.edges).for_each(|(edge, rate)| edge.rate = *rate);
    }

    /// Parts with fixed rates that together hold every joint variant once, the fewest records first. A problem with
    /// fixed rates is its only part.
    pub fn cases(&self) -> Vec<Case> {
        let Some(rates) = &self.rates else {
            return vec![Case::whole(self)];
        };
        let counts = rates.counts();
        let mut order: Vec<usize> = (0..rates.cases.len()).collect();
        order.sort_by(|a, b| rates.cases[*a].total().total_cmp(&rates.cases[*b].total()));
        let part = |index: usize| {
            let joint = digits(index, &counts);
            let of = |(groups, wanted): (&Vec<usize>, &usize)| -> Vec<usize> {
                (0..groups.len()).filter(|variant| groups[*variant] == *wanted).collect()
            };
            let variants: Vec<Vec<usize>> = rates.groups.iter().zip(&joint).map(of).collect();
            Case { problem: self.with_rates(&rates.cases[index]).only(&variants), variants }
        };
        order.into_iter().map(part).collect()
    }

    /// Keeps only these variants of each operator, in this order.
    pub(super) fn only(mut self, variants: &[Vec<usize>]) -> Self {
        let sizes: Vec<_> = self.sizes.iter().map(|sizes| sizes.only(&self, variants)).collect();
        let rates = self.rates.as_ref().map(|rates| rates.only(variants));
        fn kept<T: Clone>(all: &[T], positions: &[usize]) -> Vec<T> {
            positions.iter().map(|position| all[*position].clone()).collect()
        }
        for (operator, of) in self.operators.iter_mut().zip(variants) {
            operator.variants = kept(&operator.variants, of);
        }
        for edge in &mut self.edges {
            if let Producer::Operator(producer) = edge.from {
                edge.bytes = kept(&edge.bytes, &variants[producer]);
            }
        }
        match &mut self.accuracy {
            AccuracyModel::None => {}
            AccuracyModel::Table(rows) => {
                let all = std::mem::take(rows);
                rows.extend(all.into_iter().filter_map(|mut row| {
                    for (variant, of) in row.variants.iter_mut().zip(variants) {
                        *variant = of.iter().position(|other| other == variant)?;
                    }
                    Some(row)
                }));
            }
            AccuracyModel::RowLookup(tables) => {
                tables.iter_mut().zip(variants).for_each(|(table, of)| *table = kept(table, of));
            }
            AccuracyModel::Additive { contributions, .. } => {
                contributions.iter_mut().zip(variants).for_each(|(values, of)| *values = kept(values, of));
            }
        }
        self.with_variant_rates(rates).with_sizes(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Rates that are products of a factor for each variant.
    fn product(factors: &[Vec<f64>]) -> Option<Rates> {
        let counts: Vec<usize> = factors.iter().map(Vec::len).collect();
        let matter: Vec<usize> = (0..counts.len()).collect();
        Rates::of(&counts, &matter, |variants| {
            let rate = factors.iter().zip(variants).map(|(of, variant)| of[*variant]).product();
            RateCase { operators: vec![rate; factors.len()], edges: vec![] }
        })
    }

    #[test]
    fn what_makes_no_difference_is_one() {
        assert_eq!(product(&[vec![2.0, 2.0], vec![3.0]]), None);
        let rates = product(&[vec![2.0, 1.0, 2.0], vec![3.0, 3.0]]).expect("rates that differ");
        assert_eq!(rates.groups, [vec![0, 1, 0], vec![0, 0]]);
        assert_eq!(rates.cases.len(), 2);
        assert_eq!(rates.case(&[1, 1]).operators, [3.0, 3.0]);
        assert_eq!(rates.most().operators, [6.0, 6.0]);
    }

    #[test]
    fn too_many_are_counted_with_the_larger() {
        let rates = product(&[vec![1.0, 5.0, 1.1, 9.0]]).expect("rates that differ").at_most(3);
        let of = |variant| rates.case(&[variant]).operators[0];
        assert_eq!((of(0), of(1), of(2), of(3)), (1.1, 5.0, 1.1, 9.0));
        assert_eq!(
            product(&[vec![1.0, 5.0], vec![1.0, 2.0]]).expect("rates that differ").at_most(1).cases.len(),
            1
        );
    }

    proptest! {
        #[test]
        fn every_joint_variant_has_its_rate(
            factors in prop::collection::vec(prop::collection::vec(prop::sample::select(vec![0.5, 1.0, 2.0, 3.0]), 1..4), 1..4),
            most in 1usize..9,
        ) {
            let Some(rates) = product(&factors) else { return Ok(()) };
            let fewer = rates.clone().at_most(most);
            prop_assert!(fewer.cases.len() <= most);
            let counts: Vec<usize> = factors.iter().map(Vec::len).collect();
            for joint in 0..counts.iter().product() {
                let variants = digits(joint, &counts);
                let rate: f64 = factors.iter().zip(&variants).map(|(of, variant)| of[*variant]).product();
                prop_assert_eq!(rates.case(&variants).operators[0], rate);
                prop_assert!(fewer.case(&variants).operators[0] >= rate);
            }
        }
    }
}
