//! The cheapest route of keys at given prices that ends in time: the pricing step of column generation over routes.
//!
//! Labels are extended operator by operator. A label is a part of a route: its price so far, and the locations and end
//! times of nodes with links still to be followed. A label is dropped if another at the same locations beats it in
//! price and in every time, or if it cannot end cheaply enough: a table by location holds the least cost of the rest,
//! without times.
use super::prepared::{Link, Prepared};
use super::tuning::{FAR_ROUTE, Look, MOST_TABLE_ENTRIES, PARTS_OF_ASKED};

/// A choice that no other at its location beats in both price and time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offer {
    pub(super) price: f64,
    pub(super) seconds: f64,
    /// Position among the choices of the operator.
    pub(super) choice: usize,
}

/// Prices and times of a node at one location.
#[derive(Debug, Clone, Default)]
pub(super) struct Offers {
    pub(super) location: usize,
    /// Earliest start, given the transfer from sources with one location.
    pub(super) begin: f64,
    /// Cheapest first, so slowest first.
    pub(super) offers: Vec<Offer>,
}

/// A link into a node, by locations.
#[derive(Debug, Clone)]
struct IncomingLink {
    from: usize,
    /// Cost and seconds by sender's and receiver's location; none without a route.
    facts: Vec<Vec<Option<(f64, f64)>>>,
    bytes: f64,
}

/// The part of the search that does not depend on prices.
#[derive(Debug, Clone)]
pub(super) struct RouteSearch {
    locations: usize,
    /// Nodes in the order in which labels are extended: origins first.
    order: Vec<usize>,
    ways: Vec<Vec<IncomingLink>>,
    /// Nodes with links still to be followed after each step, oldest first, and those that the tables distinguish.
    alive: Vec<Vec<usize>>,
    told: Vec<Vec<usize>>,
    /// Latest end by node and location.
    latest: Vec<Vec<f64>>,
}

/// Parts of routes up to the same step.
#[derive(Debug, Default)]
struct Labels {
    facts: Vec<Label>,
    /// Locations and ends of the nodes that are alive: `alive` entries per part.
    at: Vec<(u32, f64)>,
    alive: usize,
}

/// A part of a route.
#[derive(Debug, Clone, Copy)]
struct Label {
    before: usize,
    /// Position among the choices, or the location of an origin.
    pick: usize,
    paid: f64,
    /// Price so far, plus the least cost of the rest.
    least: f64,
}

impl Labels {
    fn at(&self, index: usize) -> &[(u32, f64)] {
        &self.at[index * self.alive..(index + 1) * self.alive]
    }

    fn only(&self, order: &[usize]) -> Self {
        let facts = order.iter().map(|&index| self.facts[index]).collect();
        let at = order.iter().flat_map(|&index| self.at(index)).copied().collect();
        Self { facts, at, alive: self.alive }
    }

    /// Labels that no other at the same locations beats.
    fn undominated(&self) -> Self {
        let places = |index: usize| self.at(index).iter().map(|(place, _)| *place);
        let mut order: Vec<usize> = (0..self.facts.len()).collect();
        order.sort_unstable_by(|&a, &b| {
            let paid = self.facts[a].paid.total_cmp(&self.facts[b].paid);
            places(a).cmp(places(b)).then(paid).then(a.cmp(&b))
        });
        let mut kept = Self { facts: Vec::new(), at: Vec::new(), alive: self.alive };
        let mut first = 0;
        for index in order {
            let own = self.at(index);
            let others = &kept.at[first * self.alive..];
            if others.iter().zip(own).any(|(other, own)| other.0 != own.0) {
                first = kept.facts.len();
            }
            let mut others = kept.at[first * self.alive..].chunks_exact(self.alive.max(1));
            if !others.any(|other| other.iter().zip(own).all(|(other, own)| other.1 <= own.1)) {
                kept.facts.push(self.facts[index]);
                kept.at.extend_from_slice(own);
            }
        }
        kept
    }
}

/// Price of scarce bandwidth on a link: $/h for all of its keys.
pub(super) type Scarce<'s> = dyn Fn(usize, usize, f64) -> f64 + 's;

impl RouteSearch {
    /// `fastest` is the time in seconds of a node at a location, none where it cannot be there; `inputs` are the links
    /// into each operator with their group.
    pub(super) fn new(
        prepared: &Prepared<'_>,
        inputs: &[Vec<(usize, usize)>],
        fastest: impl Fn(usize, usize) -> Option<f64>,
    ) -> Self {
        let operators = prepared.problem.operators.len();
        let locations = prepared.problem.locations.len();
        let order: Vec<usize> = (operators..prepared.nodes()).chain(0..operators).collect();
        let way = |link: &Link, group: usize| -> IncomingLink {
            let facts = |from: usize, to: usize| {
                prepared.problem.route(from, to)?;
                let cost = prepared.link_cost(link, group, from, to);
                Some((cost, prepared.link_seconds(link, group, from, to)))
            };
            IncomingLink {
                from: link.from,
                facts: (0..locations)
                    .map(|from| (0..locations).map(|to| facts(from, to)).collect())
                    .collect(),
                bytes: prepared.link_bytes(link, group).iter().sum(),
            }
        };
        let mut ways: Vec<Vec<IncomingLink>> = vec![Vec::new(); prepared.nodes()];
        for (operator, inputs) in inputs.iter().enumerate() {
            ways[operator] = inputs.iter().map(|&(link, group)| way(&prepared.links[link], group)).collect();
        }
        let last_use = |node: usize| {
            prepared
                .links
                .iter()
                .filter(|link| link.from == node)
                .map(|link| link.to + prepared.origins.len())
                .max()
        };
        let mut alive: Vec<Vec<usize>> = Vec::new();
        let mut told: Vec<Vec<usize>> = Vec::new();
        let (mut now, mut now_told): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
        for (step, &node) in order.iter().enumerate() {
            let lives = |node: &usize| last_use(*node).is_some_and(|last| last > step);
            now.push(node);
            now_told.push(node);
            now.retain(lives);
            now_told.retain(lives);
            while locations.pow(now_told.len() as u32) > MOST_TABLE_ENTRIES {
                now_told.remove(0);
            }
            alive.push(now.clone());
            told.push(now_told.clone());
        }
        let mut latest = vec![vec![f64::INFINITY; locations]; prepared.nodes()];
        for &node in order.iter().rev() {
            for at in 0..locations {
                let own = prepared.deadline.get(node).copied().flatten().unwrap_or(f64::INFINITY);
                let mut end = own;
                for link in prepared.links.iter().filter(|link| link.from == node) {
                    let Some(way) = ways[link.to].iter().find(|way| way.from == node) else { continue };
                    let on = (0..locations).filter_map(|to| {
                        let (_, seconds) = way.facts[at][to]?;
                        Some(latest[link.to][to] - fastest(link.to, to)? - seconds)
                    });
                    end = end.min(on.fold(f64::NEG_INFINITY, f64::max));
                }
                latest[node][at] = end;
            }
        }
        Self { locations, order, ways, alive, told, latest }
    }

    /// Routes cheaper than `most`, the cheapest last, as the picks of all nodes in order, and whether there is no
    /// cheaper one. `offers` by node and location.
    pub(super) fn cheapest(
        &self,
        offers: &[Vec<Offers>],
        scarce: &Scarce<'_>,
        most: f64,
        effort: Look,
    ) -> (Vec<(f64, Vec<usize>)>, bool) {
        let rest = self.least_rest(offers, scarce);
        let least = rest[0][0];
        if least >= most {
            return (Vec::new(), true);
        }
        // The cheapest route nearly always costs little more than without times: then most labels need not be made.
        for part in PARTS_OF_ASKED {
            let enough = least + part * (most - least).min(least.abs().max(1e-3) * FAR_ROUTE);
            let (found, is_whole) = self.cheaper_than(offers, scarce, &rest, enough, effort);
            if !found.is_empty() {
                return (found, is_whole);
            }
        }
        self.cheaper_than(offers, scarce, &rest, most, effort)
    }

    /// Lower bound of the cheapest route: its price without times.
    pub(super) fn least(&self, offers: &[Vec<Offers>], scarce: &Scarce<'_>) -> f64 {
        self.least_rest(offers, scarce)[0][0]
    }

    fn cheaper_than(
        &self,
        offers: &[Vec<Offers>],
        scarce: &Scarce<'_>,
        rest: &[Vec<f64>],
        most: f64,
        effort: Look,
    ) -> (Vec<(f64, Vec<usize>)>, bool) {
        let mut is_whole = true;
        let begin = Label { before: 0, pick: 0, paid: 0.0, least: rest[0][0] };
        let mut levels = vec![Labels { facts: vec![begin], at: Vec::new(), alive: 0 }];
        let mut places: Vec<(u32, f64)> = Vec::new();
        for (step, &node) in self.order.iter().enumerate() {
            let before: &[usize] = if step == 0 { &[] } else { &self.alive[step - 1] };
            let after = &self.alive[step];
            // Positions of the surviving nodes in the label before; the node itself comes last.
            let kept: Vec<usize> =
                after.iter().filter_map(|node| before.iter().position(|other| other == node)).collect();
            let lives = after.last() == Some(&node);
            let senders: Vec<usize> = self.ways[node]
                .iter()
                .map(|way| before.iter().position(|other| *other == way.from).unwrap_or(0))
                .collect();
            let told: Vec<usize> = self.told[step]
                .iter()
                .filter_map(|node| after.iter().position(|other| other == node))
                .collect();
            let mut next = Labels { alive: after.len(), ..Labels::default() };
            for (index, label) in levels[step].facts.iter().enumerate() {
                let ended = levels[step].at(index);
                for at in &offers[node] {
                    let mut begin = at.begin;
                    let mut paid = label.paid;
                    let mut is_open = true;
                    for (way, &sender) in self.ways[node].iter().zip(&senders) {
                        let (from, end) = ended[sender];
                        match way.facts[from as usize][at.location] {
                            Some((cost, seconds)) => {
                                begin = begin.max(end + seconds);
                                paid += cost + scarce(from as usize, at.location, way.bytes);
                            }
                            None => is_open = false,
                        }
                    }
                    if !is_open {
                        continue;
                    }
                    places.clear();
                    places.extend(kept.iter().map(|&place| ended[place]));
                    if lives {
                        places.push((at.location as u32, 0.0));
                    }
                    let entry = told
                        .iter()
                        .fold(0, |entry, &place| entry * self.locations + places[place].0 as usize);
                    let on = rest[step + 1][entry];
                    for offer in &at.offers {
                        let paid = paid + offer.price;
                        if paid + on >= most {
                            break; // all after it are dearer
                        }
                        let end = begin + offer.seconds;
                        if end > self.latest[node][at.location] + 1e-9 {
                            continue;
                        }
                        if let Some(last) = places.last_mut().filter(|_| lives) {
                            last.1 = end;
                        }
                        next.facts.push(Label { before: index, pick: offer.choice, paid, least: paid + on });
                        next.at.extend_from_slice(&places);
                    }
                }
            }
            if !after.is_empty() {
                next = next.undominated();
            }
            if next.facts.len() > effort.labels {
                let least = |index: usize| next.facts[index].least;
                let mut order: Vec<usize> = (0..next.facts.len()).collect();
                order.sort_by(|&a, &b| least(a).total_cmp(&least(b)));
                order.truncate(effort.labels);
                next = next.only(&order);
                is_whole = false;
            }
            levels.push(next);
        }
        let mut last: Vec<(f64, usize)> =
            levels[self.order.len()].facts.iter().enumerate().map(|(i, label)| (label.paid, i)).collect();
        last.sort_by(|a, b| a.0.total_cmp(&b.0));
        last.truncate(effort.taken);
        let routes = last.into_iter().rev().map(|(paid, mut index)| {
            let mut picks = vec![0; self.order.len()];
            for step in (0..self.order.len()).rev() {
                let label = &levels[step + 1].facts[index];
                picks[step] = label.pick;
                index = label.before;
            }
            (paid, picks)
        });
        (routes.collect(), is_whole)
    }

    /// Least price of the nodes from each step on, without times, by the locations of the distinguished nodes.
    fn least_rest(&self, offers: &[Vec<Offers>], scarce: &Scarce<'_>) -> Vec<Vec<f64>> {
        let steps = self.order.len();
        let mut rest: Vec<Vec<f64>> = vec![Vec::new(); steps + 1];
        rest[steps] = vec![0.0];
        for step in (0..steps).rev() {
            let node = self.order[step];
            let before: &[usize] = if step == 0 { &[] } else { &self.told[step - 1] };
            let after = &self.told[step];
            let entries = self.locations.pow(before.len() as u32);
            let mut places = vec![0usize; before.len()];
            let mut table = Vec::with_capacity(entries);
            for entry in 0..entries {
                let mut left = entry;
                for place in places.iter_mut().rev() {
                    *place = left % self.locations;
                    left /= self.locations;
                }
                let mut least = f64::INFINITY;
                for at in &offers[node] {
                    let Some(first) = at.offers.first() else { continue };
                    let mut paid = first.price;
                    for way in &self.ways[node] {
                        let on_way = |from: usize| {
                            let (cost, _) = way.facts[from][at.location]?;
                            Some(cost + scarce(from, at.location, way.bytes))
                        };
                        let known = before.iter().position(|other| *other == way.from);
                        paid += match known {
                            Some(place) => on_way(places[place]).unwrap_or(f64::INFINITY),
                            None => (0..self.locations).filter_map(on_way).fold(f64::INFINITY, f64::min),
                        };
                    }
                    let entry = after.iter().fold(0, |entry, other| {
                        let place = if *other == node {
                            at.location
                        } else {
                            before.iter().position(|before| before == other).map_or(0, |place| places[place])
                        };
                        entry * self.locations + place
                    });
                    least = least.min(paid + rest[step + 1][entry]);
                }
                table.push(least);
            }
            rest[step] = table;
        }
        rest
    }
}
