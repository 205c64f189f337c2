//! Plans under latency limits: budgets are given, the program without latency is solved, and what the plan leaves of
//! its budgets is given to others, again and again. It proves nothing.
use super::budgets::{Budgets, Paths};
use super::dive::dive;
use super::model::{Allowed, Model};
use super::prepared::Prepared;
use super::program::{Answer, Column, Effort, Point, Program};
use super::search::Search;
use super::variants::{Candidates, candidates};

/// Budgets to begin with that are followed up, the best by their relaxation.
const STARTS: usize = 2;
/// Nodes of one program, and passes over all operators.
const NODES: u64 = 120;
const PASSES: usize = 4;
/// Nodes of all programs together, over the number of operators: larger programs take longer.
const MOST_NODES: u64 = 6_000;
/// Part of the cost that one program may leave unproven.
const GAP: f64 = 0.004;

impl Search {
    /// A point of the program without latency rows that keeps the latency limits all the same.
    pub(super) fn within_budgets(
        &mut self,
        prepared: &Prepared<'_>,
        excluded: &[Vec<usize>],
        bound: f64,
    ) -> Option<(Model, Point, Budgets)> {
        let allowed: Allowed = match candidates(prepared, excluded, 0) {
            Candidates::Many(allowed) => allowed,
            Candidates::Few(_) => return None, // none is left
        };
        let mut model = Model::without_latency(prepared, &allowed);
        let paths = Paths::new(prepared, &model);
        let mut starts: Vec<(f64, Budgets)> = Vec::new();
        for budgets in paths.stretched() {
            let program = model.program.without(paths.closed(&budgets));
            if let Answer::Found(point) = self.solve(&program, &Effort { relaxed: true, ..self.effort(1.0) })
            {
                starts.push((point.cost, budgets));
            }
        }
        starts.sort_by(|a, b| a.0.total_cmp(&b.0));
        let gap = self.limits.gap.max(GAP);
        let is_close = |point: &Option<Point>| {
            point.as_ref().is_some_and(|point| point.cost - bound <= gap * point.cost)
        };
        let nodes_before = self.nodes;
        let most_nodes = MOST_NODES / (model.binaries.len() as u64).max(1);
        let mut best: Option<Point> = None;
        for (_, start) in starts.into_iter().take(STARTS) {
            let mut own: Option<Point> = None;
            self.try_budgets(&model, &paths, &start, &mut own);
            for _ in 0..PASSES {
                if is_close(&own) || self.nodes - nodes_before > most_nodes {
                    break;
                }
                let Some(before) = own.as_ref().map(|point| point.cost) else { break };
                let mut next = 0;
                // A better plan leaves other times: go on from there, with the operator that is next.
                while let Some(point) = &own {
                    let around = paths.around(&paths.used(&point.values));
                    let Some(budgets) = around.get(next) else { break };
                    next += 1;
                    self.try_budgets(&model, &paths, budgets, &mut own);
                    let is_spent = self.nodes - nodes_before > most_nodes;
                    if is_spent || is_close(&own) || self.time.left_of(self.limits.wall_seconds) <= 0.0 {
                        break;
                    }
                }
                if own.as_ref().is_none_or(|point| point.cost >= before * (1.0 - 1e-6)) {
                    break;
                }
            }
            if let Some(own) = own
                && best.as_ref().is_none_or(|best| own.cost < best.cost)
            {
                best = Some(own);
            }
            if is_close(&best) {
                break;
            }
        }
        let best = best?;
        let budgets = paths.used(&best.values);
        let budgets = paths.around(&budgets).into_iter().next().unwrap_or(budgets);
        model.program = model.program.without(paths.closed(&budgets));
        let (model, best) = self.polished(model, best);
        Some((model, best, budgets))
    }

    /// The same for given variants and budgets, of a program that may have other rows for memory.
    pub(super) fn within(
        &mut self,
        prepared: &Prepared<'_>,
        excluded: &[Vec<usize>],
        variants: &[usize],
        budgets: &Budgets,
    ) -> Option<(Model, Point, Budgets)> {
        let Candidates::Many(allowed) = candidates(prepared, excluded, 0) else { return None };
        let mut model = Model::without_latency(prepared, &allowed);
        let paths = Paths::new(prepared, &model);
        let binaries = model.binaries.iter().enumerate().flat_map(|(operator, of)| {
            let chosen = variants.get(operator).copied();
            of.iter().enumerate().filter_map(move |(variant, binary)| {
                binary.map(|binary| (binary, f64::from(u8::from(Some(variant) == chosen))))
            })
        });
        model.program = model.program.with(binaries);
        let mut best = None;
        if paths.fit(budgets) {
            self.try_budgets(&model, &paths, budgets, &mut best);
        }
        let best = best?;
        model.program = model.program.without(paths.closed(budgets));
        let (model, best) = self.polished(model, best);
        Some((model, best, budgets.clone()))
    }

    /// Keeps the better of the best point and what those budgets allow.
    fn try_budgets(&mut self, model: &Model, paths: &Paths, budgets: &Budgets, best: &mut Option<Point>) {
        let program = model.program.without(paths.closed(budgets));
        let start = match best {
            Some(point) => Some(point.values.clone()),
            None => self.rounded(model, &program),
        };
        let effort = Effort { start: start.as_deref(), gap: GAP, nodes: NODES, ..self.effort(1.0) };
        self.improve(&program, &effort, best);
    }

    /// A point by rounding, variants first.
    fn rounded(&self, model: &Model, program: &Program) -> Option<Vec<f64>> {
        let binaries: Vec<Column> = model.binaries.iter().flatten().flatten().copied().collect();
        let others = (0..program.len()).filter(|column| program.is_integer(*column)).collect();
        let (time, wall) = (self.time, self.limits.wall_seconds);
        dive(program, &[binaries, others], || time.left_of(wall))
    }
}
