//! First points of a program for the search: the relaxation, rounded.
use super::dive::dive;
use super::model::{Allowed, Model};
use super::prepared::Prepared;
use super::program::{Answer, Effort, Point, Program};
use super::search::Search;
use super::tuning::{
    FREED, MANY_OPERATORS, NODES_FREED, NODES_MIXED, PART_FOR_VARIANTS, PART_OF_ENOUGH, PASSES_FREED,
};

impl Search {
    /// A good point with the given variants, without a bound; one that costs no more than `enough` is not improved.
    pub(super) fn with_variants(
        &mut self,
        prepared: &Prepared<'_>,
        variants: &[usize],
        enough: f64,
    ) -> Option<(Model, Point)> {
        let model = Model::new(prepared, &Allowed::only(prepared, variants));
        let Answer::Found(root) = self.relaxed(&model.program) else { return None };
        let mut best = self.dived(&model, &model.program, &root);
        if best.as_ref().is_none_or(|point| point.cost > enough) {
            let start = best.as_ref().map(|point| point.values.clone());
            let effort = self.incumbent_effort();
            let highs = self.highs_at_once(prepared);
            let gap = effort.gap.max((enough - root.cost) / enough * PART_OF_ENOUGH);
            let gap = if gap.is_finite() { gap } else { effort.gap };
            let effort = Effort { gap, start: start.as_deref(), highs, is_hard: true, ..effort };
            self.improve(&model.program, &effort, &mut best);
        }
        best.map(|point| self.polished(model, point))
    }

    /// A point near the relaxation: by rounding it, then with whole workers before variants, then, in large programs,
    /// by freeing a few operators at a time. Also returns whether the bound is likely the looser one.
    pub(super) fn first_point(&mut self, model: &Model, root: &Point) -> (Option<Point>, bool) {
        let unused = model.all_binaries().filter(|&binary| root.values[binary] <= 1e-6);
        let near = model.program.without(unused);
        let mut best = self.dived(model, &near, root);
        let gap = self.limits.gap;
        let is_close = |best: &Option<Point>| {
            best.as_ref().is_some_and(|point| point.cost - root.cost <= gap * point.cost)
        };
        if is_close(&best) || model.binaries.len() < MANY_OPERATORS {
            return (best, false);
        }
        if let Some(point) = &best {
            // These variants with free numbers of workers.
            let given = model.all_binaries().map(|binary| (binary, point.values[binary].round()));
            let (program, start) = (model.program.with(given), point.values.clone());
            let effort = self.incumbent_effort();
            let gap = PART_FOR_VARIANTS * effort.gap;
            self.improve(&program, &Effort { start: Some(&start), gap, ..effort }, &mut best);
        }
        let before = best.as_ref().map(|point| point.cost);
        for program in [&near, &model.program] {
            if !is_close(&best) {
                self.workers_first(model, program, &mut best);
            }
        }
        let is_better = best.as_ref().map(|point| point.cost) < before;
        if before.is_some() && !is_better {
            return (best, true);
        }
        if !is_close(&best) {
            self.free_some(model, &mut best, &is_close);
        }
        (best, false)
    }

    /// Rounds the relaxation of a program with these columns: variants first, then workers.
    fn dived(&self, model: &Model, program: &Program, root: &Point) -> Option<Point> {
        let counts = model.counts.iter().flatten().map(|(_, column)| *column).collect();
        let others = (0..program.len()).filter(|column| program.is_integer(*column)).collect();
        let (time, wall) = (self.time, self.limits.wall_seconds);
        let values = dive(program, &[model.all_binaries().collect(), counts, others], || time.left_of(wall))?;
        let cost = model.program.cost_of(&values);
        Some(Point { values, cost, bound: root.cost, nodes: 0, by_time: false })
    }

    /// Makes numbers of workers whole first, with variants still mixed, which costs little. Then the variants for these
    /// numbers, then the numbers for these variants.
    fn workers_first(&mut self, model: &Model, from: &Program, best: &mut Option<Point>) {
        let counts = || model.counts.iter().flatten().map(|(_, column)| *column);
        let mixed = from.with_real(model.all_binaries());
        let effort = Effort { nodes: NODES_MIXED, ..self.effort(0.2) };
        let Answer::Found(point) = self.solve(&mixed, &effort) else { return };
        let given = from.with(counts().map(|count| (count, point.values[count].round())));
        let others = (0..given.len()).filter(|column| given.is_integer(*column));
        let (time, wall) = (self.time, self.limits.wall_seconds);
        let stages = [model.all_binaries().collect(), others.collect()];
        let Some(values) = dive(&given, &stages, || time.left_of(wall)) else { return };
        let given = model.program.with(model.all_binaries().map(|binary| (binary, values[binary].round())));
        let effort = Effort { start: Some(&values), nodes: NODES_MIXED, ..self.effort(0.1) };
        self.improve(&given, &effort, best);
    }

    /// Frees the variants of a few consecutive operators, and all numbers of workers (large neighbourhood search),
    /// until a pass over all of them finds nothing better.
    fn free_some(
        &mut self,
        model: &Model,
        best: &mut Option<Point>,
        is_close: &impl Fn(&Option<Point>) -> bool,
    ) {
        let operators = model.binaries.len();
        for _ in 0..PASSES_FREED {
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
