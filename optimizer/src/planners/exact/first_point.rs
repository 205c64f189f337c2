//! First points of a program, from which a search goes on: rounded relaxations and what is found near them.
use super::dive::dive;
use super::model::{Allowed, Model};
use super::prepared::Prepared;
use super::program::{Answer, Column, Effort, Point, Program};
use super::search::Search;

/// Operators from which on a few of them are freed at a time.
pub(super) const MANY_OPERATORS: usize = 20;
/// How many are freed, in how many nodes, and how often all are gone over.
const FREED: usize = 6;
const NODES_FREED: u64 = 40;
const PASSES: usize = 3;
/// Nodes of a program with mixed variants.
const NODES_MIXED: u64 = 300;
/// Part of what a point may cost more than its relaxation that one search may leave.
const PART_OF_ENOUGH: f64 = 0.99;

impl Search {
    /// A good point with those variants, without a bound; one that costs no more than `enough` is not improved.
    pub(super) fn with_variants(
        &mut self,
        prepared: &Prepared<'_>,
        variants: &[usize],
        enough: f64,
    ) -> Option<(Model, Point)> {
        let mut model = Model::new(prepared, &Allowed::only(prepared, variants));
        let root = self.root(prepared, &mut model);
        let Ok(root) = root else { return None };
        let gap = (enough - root.cost) / enough * PART_OF_ENOUGH;
        let near = if gap > 0.0 {
            let mut best = self.dived(&model, &model.program, &root);
            if best.as_ref().is_none_or(|point| point.cost > enough) {
                let start = best.as_ref().map(|point| point.values.clone());
                let effort = Effort { gap, start: start.as_deref(), ..self.incumbent_effort() };
                self.improve(&model.program, &effort, &mut best);
            }
            best
        } else {
            None
        };
        let point = near.or_else(|| self.first_point(prepared, &model, &root).0);
        point.map(|point| self.polished(model, point))
    }

    /// A point by rounding the relaxation of a program with these columns: variants first, then workers.
    fn dived(&self, model: &Model, program: &Program, root: &Point) -> Option<Point> {
        let binaries = model.binaries.iter().flatten().flatten().copied().collect();
        let counts = model.counts.iter().flatten().map(|(_, column)| *column).collect();
        let others = (0..program.len()).filter(|column| program.is_integer(*column)).collect();
        let (time, wall) = (self.time, self.limits.wall_seconds);
        let values = dive(program, &[binaries, counts, others], || time.left_of(wall))?;
        let cost = model.program.cost_of(&values);
        Some(Point { values, cost, bound: root.bound, nodes: 0, by_time: false })
    }

    /// A point near the relaxation: first by rounding it, then by a search among the variants that it uses (relaxation
    /// enforced neighbourhood search), then, in large programs, by freeing a few operators at a time; whether a first search
    /// around it found nothing better.
    pub(super) fn first_point(
        &mut self,
        prepared: &Prepared<'_>,
        model: &Model,
        root: &Point,
    ) -> (Option<Point>, bool) {
        let binaries: Vec<Column> = model.binaries.iter().flatten().flatten().copied().collect();
        let unused = binaries.iter().filter(|&&binary| root.values[binary] <= 1e-6);
        let near = Model { program: model.program.without(unused.copied()), ..model.clone() };
        let mut best = self.dived(model, &near.program, root);
        let gap = self.limits.gap;
        let is_close = |best: &Option<Point>| {
            best.as_ref().is_some_and(|point| point.cost - root.bound <= gap * point.cost)
        };
        if is_close(&best) {
            return (best, true);
        }
        let effort = self.incumbent_effort();
        let is_large = model.binaries.len() >= MANY_OPERATORS && !binaries.is_empty();
        if let Some(point) = &best {
            // The same variants, numbers of workers free.
            let given = binaries.iter().map(|&binary| (binary, point.values[binary].round()));
            let given = model.program.with(given);
            let start = point.values.clone();
            let gap = 0.2 * effort.gap;
            self.improve(&given, &Effort { start: Some(&start), gap, ..effort.clone() }, &mut best);
        }
        let before = best.as_ref().map(|point| point.cost);
        for from in [&near.program, &model.program] {
            if !is_close(&best) && is_large {
                self.workers_first(model, from, &mut best);
            }
        }
        // Where that finds nothing better it is the bound that is far.
        let is_better = best.as_ref().map(|point| point.cost) < before;
        if is_large && before.is_some() && !is_better {
            return (best, true);
        }
        if is_large && !is_close(&best) {
            self.free_some(model, &mut best, &is_close);
        }
        if !is_close(&best) {
            let start = best.as_ref().map(|point| point.values.clone());
            if let Answer::Found(point) = self.integral_with(prepared, &near, &effort, start.as_deref())
                && best.as_ref().is_none_or(|other| point.cost < other.cost)
            {
                best = Some(point);
            }
        }
        (best, false)
    }

    /// Whole numbers of workers first, with variants still mixed: that costs little. Then the variants for these numbers,
    /// then the numbers for these variants.
    fn workers_first(&mut self, model: &Model, from: &Program, best: &mut Option<Point>) {
        let binaries = || model.binaries.iter().flatten().flatten().copied();
        let counts = || model.counts.iter().flatten().map(|(_, column)| *column);
        let mixed = from.with_real(binaries());
        let effort = Effort { nodes: NODES_MIXED, ..self.effort(0.2) };
        let Answer::Found(point) = self.solve(&mixed, &effort) else { return };
        let given = from.with(counts().map(|count| (count, point.values[count].round())));
        let others = (0..given.len()).filter(|column| given.is_integer(*column));
        let (time, wall) = (self.time, self.limits.wall_seconds);
        let stages = [binaries().collect(), others.collect()];
        let Some(values) = dive(&given, &stages, || time.left_of(wall)) else { return };
        let given = model.program.with(binaries().map(|binary| (binary, values[binary].round())));
        let effort = Effort { start: Some(&values), nodes: NODES_MIXED, ..self.effort(0.1) };
        self.improve(&given, &effort, best);
    }

    /// Frees the variants of a few operators that follow each other, and all numbers of workers (large neighbourhood
    /// search), until a pass over all of them finds nothing better.
    fn free_some(
        &mut self,
        model: &Model,
        best: &mut Option<Point>,
        is_close: &impl Fn(&Option<Point>) -> bool,
    ) {
        let operators = model.binaries.len();
        for _ in 0..PASSES {
            let mut is_better = false;
            for first in (0..operators).step_by(FREED / 2) {
                let Some(start) = best.as_ref().map(|point| point.values.clone()) else { return };
                if is_close(best) || self.time.left_of(self.limits.wall_seconds) <= 0.0 {
                    return;
                }
                let is_free = |operator: usize| (first..first + FREED).contains(&operator);
                let others = (0..operators).filter(|&operator| !is_free(operator));
                let given = others.flat_map(|operator| model.binaries[operator].iter().flatten());
                let program = model.program.with(given.map(|&binary| (binary, start[binary].round())));
                let effort = Effort { start: Some(&start), nodes: NODES_FREED, ..self.effort(0.1) };
                is_better |= self.improve(&program, &effort, best);
            }
            if !is_better {
                return;
            }
        }
    }
}
