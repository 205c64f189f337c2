//! The algorithm of JellyBean, as a baseline: variants by a beam search in reverse topological order, then workers by a
//! beam search in topological order.
use super::assignment::{Preference, Routing};
use super::worker_search::{Progress, Search, expanding_pools, search};
use super::{one_worker, selection};
use crate::planner::{Planner, PlannerError, SearchLimits, without_losses};
use crate::problem::Problem;
use crate::solution::Outcome;

/// Two beam searches, one after the other (sections 5.4.2 and 5.4.3 and algorithm 1 of JellyBean).
///
/// It proves nothing: its plans have no bound, and a failed search does not mean that there is no plan. Extensions:
/// workers may be shared between operators ([`crate::problem::Limits::one_operator_per_worker`] restores the original),
/// pools of workers expand from both ends, and `finishing`.
#[derive(Debug, Clone, PartialEq)]
pub struct Beam {
    /// Number of joint variants to search workers for.
    pub variant_width: usize,
    /// Assignments kept after each operator.
    pub worker_width: usize,
    /// Most topological orders to try; the random ones are reproducible.
    pub orders: usize,
    /// Routing from worker to worker. Cheapest routing is tried as well as the original proportional mixing, and the
    /// cheaper plan is kept: mixing sends part of the records over expensive links.
    pub routing: Routing,
    /// Whether an operator's last worker may be the one that carries the whole rest at the least added cost, instead of
    /// the one with the least cost per record. This avoids many small workers, which the original takes (its appendix
    /// E.2).
    pub finishing: bool,
}

impl Default for Beam {
    fn default() -> Self {
        Self {
            variant_width: 16,
            worker_width: 8,
            orders: 8,
            routing: Routing::Proportional,
            finishing: true,
        }
    }
}

impl Planner for Beam {
    fn name(&self) -> &'static str {
        "beam"
    }

    fn plan(&self, problem: &Problem, limits: &SearchLimits) -> Result<Outcome, PlannerError> {
        problem.check()?;
        without_losses(self.name(), problem)?;
        let problem = &*problem.without_remotes();
        if one_worker::is_asked(problem) {
            return one_worker::planned(problem, limits, self.name(), |part, limits| self.plan(part, limits));
        }
        let mut progress = Progress::begin(limits);
        let candidates = candidates(problem, self.variant_width);
        let mut settings = Search {
            pools: expanding_pools(problem),
            width: self.worker_width,
            orders: self.orders,
            preference: Preference::Cost,
            routing: self.routing,
            finishing: self.finishing,
        };
        let both = [self.routing, Routing::Cheapest];
        for &routing in both.iter().take(if self.routing == Routing::Cheapest { 1 } else { 2 }) {
            settings.routing = routing;
            for variants in &candidates {
                if progress.is_spent() && (progress.best.is_some() || routing != self.routing) {
                    break;
                }
                search(&problem.at(variants), variants, &settings, self.name(), &mut progress)?;
            }
        }
        Ok(progress.outcome(self.name()))
    }
}

/// Joint variants to search workers for. Where rates depend on variants, the cheapest of every part with fixed rates.
fn candidates(problem: &Problem, width: usize) -> Vec<Vec<usize>> {
    let cases = problem.cases();
    let mut all: Vec<(f64, Vec<usize>)> = Vec::new();
    for case in &cases {
        for joint in selection::beam(&case.problem, width) {
            let seconds = selection::seconds_per_second(&case.problem, &joint);
            let variants = joint.iter().zip(&case.variants).map(|(position, of)| of[*position]).collect();
            all.push((seconds, variants));
        }
    }
    if cases.len() > 1 {
        all.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
    }
    all.into_iter().take(width).map(|(_, variants)| variants).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::{PublishedSetting, published_vqa_problem};

    #[test]
    fn more_search_costs_no_more() {
        for setting in PublishedSetting::ALL {
            for rate in [10.0, 25.0, 40.0, 55.0] {
                let problem = published_vqa_problem(rate, 56.0, setting);
                let cost = |beam: Beam| {
                    let outcome =
                        beam.plan(&problem, &SearchLimits::default()).expect("it takes the problem");
                    outcome.cost.unwrap_or(f64::INFINITY)
                };
                let narrow = cost(Beam { variant_width: 1, worker_width: 1, orders: 1, ..Beam::default() });
                let default = cost(Beam::default());
                assert!(default <= narrow + 1e-9, "{}, {rate}: {default} and {narrow}", setting.name());
            }
        }
    }

    /// Proportional mixing sends records up and down again; at 80/s cheapest routing costs half.
    #[test]
    fn both_ways_to_route_are_tried() {
        let problem = published_vqa_problem(80.0, 56.0, PublishedSetting::Shared);
        let cost = |routing| {
            let outcome = Beam { routing, ..Beam::default() }.plan(&problem, &SearchLimits::default());
            outcome.expect("it takes the problem").cost.expect("a plan")
        };
        let (both, cheapest) = (cost(Routing::Proportional), cost(Routing::Cheapest));
        assert!(both <= cheapest + 1e-9, "{both} and {cheapest}");
        assert!(both < 12.2, "{both}");
    }
}
