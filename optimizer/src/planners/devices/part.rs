//! A part of a problem: the options that each operator still has.
use super::dominated::dominated;
use crate::problem::{Problem, Remote};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Runs of an operator's models on devices: variant and run, each once, although many modes may have it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Runs(pub(super) Vec<Vec<(usize, Remote)>>);

impl Runs {
    pub(super) fn of(problem: &Problem) -> Self {
        let of = |operator: &crate::problem::Operator| {
            let mut runs: Vec<(usize, Remote)> = Vec::new();
            for (variant, of) in operator.variants.iter().enumerate() {
                for remote in of.modes.iter().flatten().filter_map(|mode| mode.remote.as_ref()) {
                    if !runs.iter().any(|(known, run)| (*known, run) == (variant, remote)) {
                        runs.push((variant, remote.clone()));
                    }
                }
            }
            runs
        };
        Self(problem.operators.iter().map(of).collect())
    }

    /// Position of a run.
    pub(super) fn position(&self, operator: usize, variant: usize, remote: &Remote) -> Option<usize> {
        self.0[operator].iter().position(|(known, run)| (*known, run) == (variant, remote))
    }
}

/// How an operator runs: none, where its stages are; otherwise its run, by position in [`Runs`].
pub(super) type Choice = Option<usize>;

/// The options of every operator, and the chosen waits of devices.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Part {
    pub(super) runs: Rc<Runs>,
    /// By operator.
    pub(super) options: Vec<BTreeSet<Choice>>,
    /// Seconds by worker class of the device; only under latency limits.
    pub(super) waits: BTreeMap<usize, f64>,
}

impl Part {
    /// Every option that no other one beats.
    pub(super) fn whole(problem: &Problem) -> Self {
        let mut part = Self::every(problem);
        for operator in 0..part.options.len() {
            let beaten = dominated(problem, operator, &part.runs.0[operator]);
            part.options[operator].retain(|option| option.is_none_or(|run| !beaten.contains(&run)));
        }
        part
    }

    /// Every option.
    pub(super) fn every(problem: &Problem) -> Self {
        let runs = Rc::new(Runs::of(problem));
        let all =
            |runs: &Vec<(usize, Remote)>| std::iter::once(None).chain((0..runs.len()).map(Some)).collect();
        Self { options: runs.0.iter().map(all).collect(), runs, waits: BTreeMap::new() }
    }

    /// No model on a device.
    pub(super) fn local(&self, problem: &Problem) -> Self {
        Self { options: vec![BTreeSet::from([None]); problem.operators.len()], ..self.clone() }
    }

    pub(super) fn is_local(&self) -> bool {
        self.options.iter().all(|options| options.iter().all(Option::is_none))
    }

    pub(super) fn with(&self, operator: usize, options: BTreeSet<Choice>) -> Self {
        let mut part = self.clone();
        part.options[operator] = options;
        part
    }

    /// The class of the devices that all options of an operator use; none: there is more than one, or none.
    pub(super) fn class_of(&self, operator: usize) -> Option<usize> {
        let mut classes =
            self.options[operator].iter().map(|option| option.map(|run| self.runs.0[operator][run].1.class));
        let first = classes.next().flatten()?;
        classes.all(|class| class == Some(first)).then_some(first)
    }

    /// Classes of devices that are surely used.
    fn classes(&self) -> BTreeSet<usize> {
        (0..self.options.len()).filter_map(|operator| self.class_of(operator)).collect()
    }

    /// Divides the part so that what a plan of it uses is less open; empty where the plan is one of the whole. `used`
    /// has the options of each operator that the plan uses.
    pub(super) fn divided(&self, problem: &Problem, used: &[BTreeSet<Choice>]) -> Vec<Self> {
        let is_open = |operator: &usize| {
            self.options[*operator].len() > 1 && used[*operator].iter().any(Option::is_some)
        };
        // Choices of the plan come last, as the search takes the newest part first.
        let by = |operator: usize| {
            let mut parts = self.divided_by(operator);
            parts.sort_by_key(|part| !part.options[operator].is_disjoint(&used[operator]));
            parts
        };
        let mut open = (0..self.options.len()).filter(is_open);
        if let Some(operator) = open.clone().find(|operator| self.class_of(*operator).is_none()) {
            return by(operator);
        }
        // Waits before variants and modes: without its wait, a device could take any number of them.
        let waits = if problem.limits.latency.is_empty() { Vec::new() } else { problem.limits.waits() };
        let is_without = |class: &usize| !waits.is_empty() && !self.waits.contains_key(class);
        let Some(class) = self.classes().into_iter().find(is_without) else {
            return open.next().map(by).unwrap_or_default();
        };
        let with = |wait: f64| {
            let mut part = self.clone();
            part.waits.insert(class, wait);
            part
        };
        waits.into_iter().map(with).collect()
    }

    /// By device, then by variant, then each option alone.
    fn divided_by(&self, operator: usize) -> Vec<Self> {
        let runs = &self.runs.0[operator];
        let groups = |key: &dyn Fn(Choice) -> Option<usize>| {
            let mut groups: BTreeMap<Option<usize>, BTreeSet<Choice>> = BTreeMap::new();
            for option in &self.options[operator] {
                groups.entry(key(*option)).or_default().insert(*option);
            }
            groups.into_values().collect::<Vec<_>>()
        };
        let keys: [&dyn Fn(Choice) -> Option<usize>; 3] = [
            &|option| option.map(|run| runs[run].1.class),
            &|option| option.map(|run| runs[run].0),
            &|option| option,
        ];
        let found = keys.into_iter().map(groups).find(|groups| groups.len() > 1).unwrap_or_default();
        found.into_iter().map(|options| self.with(operator, options)).collect()
    }

    /// Every choice of one option for each operator, with every choice of waits.
    pub(super) fn every_choice(&self, problem: &Problem) -> Vec<Self> {
        let mut done = Vec::new();
        let mut open = vec![self.clone()];
        while let Some(part) = open.pop() {
            let several = (0..part.options.len()).find(|operator| part.options[*operator].len() > 1);
            let more = match several {
                Some(operator) => part.divided_by(operator),
                None => part.divided(problem, &part.options),
            };
            match more.is_empty() {
                true => done.push(part),
                false => open.extend(more),
            }
        }
        done
    }
}
