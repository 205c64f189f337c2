//! Prices of routes: the cheapest route, bounds for other variants, and rows for programs of flows.
use super::{Route, Routes, Slot};
use crate::planners::exact::model::Model;
use crate::planners::exact::prepared::Choice;
use crate::planners::exact::program::Terms;
use crate::planners::exact::route_search::{Offer, Offers};
use crate::planners::exact::tuning::Look;
use crate::planners::exact::tuning::SCREENING;
use crate::problem::Producer;
use std::collections::BTreeMap;

/// Prices of the parts of a route: a point of the dual of the relaxation.
#[derive(Debug, Clone)]
pub(in crate::planners::exact) struct Prices {
    /// Load, load of waiting.
    pub(super) slots: BTreeMap<Slot, [f64; 2]>,
    /// By slot, the cost of one worker above its return.
    pub(super) surplus: BTreeMap<Slot, f64>,
    /// By pair of locations with a bandwidth.
    pub(super) pairs: BTreeMap<(usize, usize), f64>,
    /// By origin and location.
    pub(super) origins: Vec<BTreeMap<usize, f64>>,
    /// Price of the cheapest route; added to `rest` it is a lower bound of any plan.
    pub(super) key: f64,
    pub(super) rest: f64,
}

impl Prices {
    /// Lower bound of any plan with the variants of these prices.
    pub(in crate::planners::exact) fn least(&self) -> f64 {
        self.key + self.rest
    }
}

impl Routes<'_, '_> {
    /// Price of all keys at a choice; a slot without a price costs as much as its workers.
    fn price_of(&self, prices: &Prices, operator: usize, choice: &Choice) -> f64 {
        let problem = self.prepared.problem;
        let mut price = choice.source_cost;
        if let Some(slot) = self.slot(operator, choice) {
            let slot = &self.slots[slot];
            let own = [0.0, self.prepared.classes[slot.0].price];
            let [load, wait] = prices.slots.get(slot).copied().unwrap_or(own);
            price += load * choice.load + wait * choice.wait_load;
        }
        if !prices.pairs.is_empty() && self.is_fed[operator] {
            for edge in problem.inputs_of(operator).into_iter().map(|edge| &problem.edges[edge]) {
                if let Producer::Source(source) = edge.from
                    && self.prepared.source_node[source].is_none()
                {
                    let from = problem.sources[source].locations[0].0;
                    price += self.scarce(prices, from, choice.location, edge.rate * edge.bytes[0]);
                }
            }
        }
        price
    }

    /// Price of scarce bandwidth for this number of bytes per second.
    fn scarce(&self, prices: &Prices, from: usize, to: usize, bytes: f64) -> f64 {
        match prices.pairs.get(&(from, to)) {
            Some(&price) if price > 0.0 => price * bytes * self.of_bandwidth(from, to).unwrap_or(0.0),
            _ => 0.0,
        }
    }

    /// Lower bound of plans with these variants, by the prices of other variants, ignoring times.
    pub(in crate::planners::exact) fn least_without_times(&self, prices: &Prices) -> f64 {
        let scarce = |from: usize, to: usize, bytes: f64| self.scarce(prices, from, to, bytes);
        self.search.least(&self.offers(prices), &scarce) + prices.rest
    }

    /// Lower bound of plans with these variants, by the prices of other variants; none where it is not known, infinite
    /// where it reaches `enough`.
    pub(in crate::planners::exact) fn least_by(&self, prices: &Prices, enough: f64) -> Option<f64> {
        let (found, is_whole) = self.look(prices, enough - prices.rest, SCREENING);
        is_whole.then(|| found.last().map_or(f64::INFINITY, |(paid, _)| paid + prices.rest))
    }

    /// Prices and times of nodes at these prices, by node and location, without choices that others beat in both.
    fn offers(&self, prices: &Prices) -> Vec<Vec<Offers>> {
        let mut offers: Vec<Vec<Offers>> = Vec::with_capacity(self.prepared.nodes());
        for (operator, open) in self.open.iter().enumerate() {
            let mut at: Vec<Offers> = Vec::new();
            for &index in open {
                let choice = &self.prepared.choices[operator][index];
                let price = self.price_of(prices, operator, choice);
                let place = match at.iter().position(|at| at.location == choice.location) {
                    Some(place) => place,
                    None => {
                        let begin = if self.is_fed[operator] { choice.source_latency } else { 0.0 };
                        at.push(Offers { location: choice.location, begin, offers: Vec::new() });
                        at.len() - 1
                    }
                };
                at[place].offers.push(Offer { price, seconds: choice.latency, choice: index });
            }
            for at in &mut at {
                at.offers.sort_by(|a, b| a.price.total_cmp(&b.price).then(a.seconds.total_cmp(&b.seconds)));
                let mut fastest = f64::INFINITY;
                at.offers.retain(|offer| {
                    let is_faster = offer.seconds < fastest;
                    fastest = fastest.min(offer.seconds);
                    is_faster
                });
            }
            offers.push(at);
        }
        for origin in &prices.origins {
            let at = origin.iter().map(|(&location, &price)| Offers {
                location,
                begin: 0.0,
                offers: vec![Offer { price: -price, seconds: 0.0, choice: location }],
            });
            offers.push(at.collect());
        }
        offers
    }

    /// Routes cheaper than `most`, the cheapest last, and whether there is no cheaper one.
    pub(super) fn look(&self, prices: &Prices, most: f64, effort: Look) -> (Vec<(f64, Route)>, bool) {
        let scarce = |from: usize, to: usize, bytes: f64| self.scarce(prices, from, to, bytes);
        let offers = self.offers(prices);
        let (found, is_whole) = self.search.cheapest(&offers, &scarce, most, effort);
        let origins = self.prepared.origins.len();
        let found = found.into_iter().map(|(paid, picks)| {
            (paid, Route { origins: picks[..origins].to_vec(), choices: picks[origins..].to_vec() })
        });
        (found.collect(), is_whole)
    }

    /// Most workers of a slot, beyond the least number in the relaxation, in any plan that costs less than `open` above
    /// the relaxation, by its prices.
    pub(in crate::planners::exact) fn most_workers(prices: &Prices, slot: Slot, open: f64) -> f64 {
        let surplus = prices.surplus.get(&slot).copied().unwrap_or(0.0);
        if surplus > 1e-9 { (open / surplus + 1e-6).floor().max(0.0) } else { f64::INFINITY }
    }

    /// Adds a row to a program of flows: at these prices each route pays at least as much as the cheapest.
    pub(in crate::planners::exact) fn add_row(&self, model: &mut Model, prices: &Prices) {
        let mut terms = Terms::new();
        let scarce = |from: usize, to: usize, bytes: f64| self.scarce(prices, from, to, bytes);
        for (operator, columns) in model.shares.iter().enumerate() {
            for &(index, column) in columns {
                let choice = &self.prepared.choices[operator][index];
                let price = self.price_of(prices, operator, choice) - choice.source_cost;
                terms.push((column, price));
            }
        }
        if !prices.pairs.is_empty() {
            for (index, link) in self.prepared.links.iter().enumerate() {
                for (group, from, to, column) in model.link_columns(index) {
                    let bytes: f64 = self.prepared.link_bytes(link, group).iter().sum();
                    terms.push((column, scarce(from, to, bytes)));
                }
            }
        }
        let of_origin = |(prices, shares): (&BTreeMap<usize, f64>, &Vec<(usize, f64)>)| -> f64 {
            shares.iter().map(|(at, share)| prices.get(at).copied().unwrap_or(0.0) * share).sum()
        };
        let of_origins: f64 = prices.origins.iter().zip(&self.prepared.origins).map(of_origin).sum();
        // The most that a single route must pay: one column needs no larger coefficient.
        let dearest = |of: &BTreeMap<usize, f64>| of.values().copied().fold(f64::NEG_INFINITY, f64::max);
        let most = prices.key + prices.origins.iter().map(dearest).sum::<f64>();
        model.program.real_costs_at_least(prices.key + of_origins, most, terms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::small_problem_with_latency;
    use crate::planners::exact::prepared::{LatencyRule, MemoryRule, Prepared};
    use crate::planners::exact::variants::listed;

    /// Price of the cheapest route that ends in time, among all routes.
    fn cheapest_of_all(routes: &Routes<'_, '_>, prices: &Prices) -> f64 {
        let mut least = f64::INFINITY;
        let mut origins: Vec<Vec<usize>> = vec![Vec::new()];
        for of in &routes.prepared.origins {
            let more = origins
                .iter()
                .flat_map(|before| of.iter().map(move |(at, _)| [before.as_slice(), &[*at]].concat()));
            origins = more.collect();
        }
        for origins in origins {
            let paid: f64 = origins.iter().zip(&prices.origins).map(|(at, of)| -of[at]).sum();
            extend(routes, prices, &origins, &mut Vec::new(), paid, &mut least);
        }
        least
    }

    fn extend(
        routes: &Routes<'_, '_>,
        prices: &Prices,
        origins: &[usize],
        so_far: &mut Vec<(usize, f64)>,
        paid: f64,
        least: &mut f64,
    ) {
        let operator = so_far.len();
        let Some(open) = routes.open.get(operator) else {
            *least = least.min(paid);
            return;
        };
        for &index in open {
            let choice = &routes.prepared.choices[operator][index];
            let mut begin = if routes.is_fed[operator] { choice.source_latency } else { 0.0 };
            let mut price = paid + routes.price_of(prices, operator, choice);
            let mut is_open = true;
            for &(link, group) in &routes.inputs[operator] {
                let facts = &routes.prepared.links[link];
                let (from, ended) = match facts.from.checked_sub(routes.open.len()) {
                    Some(origin) => (origins[origin], 0.0),
                    None => {
                        let (index, end) = so_far[facts.from];
                        (routes.prepared.choices[facts.from][index].location, end)
                    }
                };
                is_open &= routes.prepared.problem.route(from, choice.location).is_some();
                begin = begin.max(ended + routes.prepared.link_seconds(facts, group, from, choice.location));
                price += routes.prepared.link_cost(facts, group, from, choice.location);
                let bytes: f64 = routes.prepared.link_bytes(facts, group).iter().sum();
                price += routes.scarce(prices, from, choice.location, bytes);
            }
            let end = begin + choice.latency;
            let is_late = routes.prepared.deadline[operator].is_some_and(|deadline| end > deadline + 1e-9);
            if is_open && !is_late {
                so_far.push((index, end));
                extend(routes, prices, origins, so_far, price, least);
                so_far.pop();
            }
        }
    }

    #[test]
    fn the_cheapest_route_is_the_cheapest_of_all() {
        let mut compared = 0;
        for seed in 1..=80 {
            let problem = small_problem_with_latency(seed);
            let rules = vec![MemoryRule::Ignored; problem.worker_classes.len()];
            let Ok(prepared) = Prepared::new(&problem, &rules, LatencyRule::Bound, 1.0) else { continue };
            for joint in listed(&prepared, &[]).unwrap_or_default().into_iter().take(3) {
                let mut routes = Routes::new(&prepared, &joint);
                let cost = routes.generate(&routes.all_workers(), f64::INFINITY, &|| f64::INFINITY);
                let Some(prices) = routes.prices.clone().filter(|_| cost.is_some()) else { continue };
                let of_all = cheapest_of_all(&routes, &prices);
                let (found, is_whole) = routes.look(&prices, f64::INFINITY, SCREENING);
                let least = found.last().map_or(f64::INFINITY, |(paid, _)| *paid);
                assert!(is_whole);
                let is_same = least == of_all || (least - of_all).abs() <= 1e-9 * of_all.abs().max(1.0);
                assert!(is_same, "seed {seed}, {joint:?}: {least}, of all {of_all}");
                assert!(
                    routes.least_without_times(&prices)
                        <= of_all + prices.rest + 1e-9 * of_all.abs().max(1.0)
                );
                compared += usize::from(least.is_finite());
            }
        }
        assert!(compared > 50, "{compared} compared");
    }

    #[test]
    fn prices_of_other_variants_say_no_more_than_is_true() {
        let (mut compared, mut told) = (0, 0);
        for seed in 1..=80 {
            let problem = small_problem_with_latency(seed);
            let rules = vec![MemoryRule::Ignored; problem.worker_classes.len()];
            let Ok(prepared) = Prepared::new(&problem, &rules, LatencyRule::Bound, 1.0) else { continue };
            let joints = listed(&prepared, &[]).unwrap_or_default();
            let relaxed = |joint: &Vec<usize>| {
                let mut routes = Routes::new(&prepared, joint);
                let cost = routes.generate(&routes.all_workers(), f64::INFINITY, &|| f64::INFINITY)?;
                Some((cost, routes.prices.clone()?))
            };
            let Some((_, prices)) = joints.first().and_then(relaxed) else { continue };
            for joint in &joints[1..] {
                let Some((cost, _)) = relaxed(joint) else { continue };
                let Some(least) = Routes::new(&prepared, joint).least_by(&prices, 1e5) else { continue };
                let least = least.min(1e5); // nothing more was asked
                assert!(least <= cost + 1e-6 * cost.max(1.0), "seed {seed}, {joint:?}: {least} above {cost}");
                compared += 1;
                told += usize::from(least > 0.5 * cost);
            }
        }
        assert!(compared > 50 && 3 * told > compared, "{told} of {compared}");
    }
}
