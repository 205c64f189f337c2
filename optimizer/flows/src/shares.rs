//! Max-min shares of flows that compete at one moment.
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// A flow that competes for links.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Competitor<'a> {
    /// The positions of the links of its route, each once.
    pub links: &'a [usize],
    /// Its weight, above 0.
    pub weight: f64,
    /// The rate that it never exceeds; may be infinite.
    pub limit: f64,
}

/// A number in an order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ordered(pub(crate) f64);

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// The rate of a link that has not been given away.
struct Open {
    capacity: f64,
    weight: f64,
    flows: Vec<usize>,
    count: usize,
}

impl Open {
    /// Returns the share per weight at which it is full.
    fn level(&self) -> f64 {
        if self.count == 0 { f64::INFINITY } else { (self.capacity / self.weight).max(0.0) }
    }
}

/// Returns the rate of each flow, by progressive filling: the shares of all grow together, by weight, until a link is full or a flow
/// has its limit; those flows keep what they have, and the others grow on. A flow without links and limit has an infinite rate.
///
/// ```
/// use tidemill_flows::{Competitor, max_min};
/// let flow = |links| Competitor { links, weight: 1.0, limit: f64::INFINITY };
/// assert_eq!(max_min(&[10.0, 4.0], &[flow(&[0]), flow(&[0, 1]), flow(&[1])]), [8.0, 2.0, 2.0]);
/// ```
pub fn max_min(capacities: &[f64], flows: &[Competitor<'_>]) -> Vec<f64> {
    let open = |&capacity: &f64| Open { capacity, weight: 0.0, flows: Vec::new(), count: 0 };
    let mut links: Vec<Open> = capacities.iter().map(open).collect();
    for (position, flow) in flows.iter().enumerate() {
        for &link in flow.links {
            links[link].weight += flow.weight;
            links[link].flows.push(position);
            links[link].count += 1;
        }
    }
    let mut rates = vec![f64::INFINITY; flows.len()];
    let mut is_settled = vec![false; flows.len()];
    // Levels of links only rise while flows settle at lower ones: what is too low in the heap is put back when it comes up.
    let mut levels: BinaryHeap<Reverse<(Ordered, usize)>> = (links.iter().enumerate())
        .filter(|(_, link)| link.count > 0)
        .map(|(position, link)| Reverse((Ordered(link.level()), position)))
        .collect();
    let limit_level = |position: usize| flows[position].limit / flows[position].weight;
    let mut limited: Vec<usize> = (0..flows.len()).filter(|&flow| flows[flow].limit.is_finite()).collect();
    limited.sort_by(|&one, &other| limit_level(other).total_cmp(&limit_level(one)).then(other.cmp(&one)));
    let mut settle = |flow: usize, rate: f64, links: &mut Vec<Open>| {
        if std::mem::replace(&mut is_settled[flow], true) {
            return;
        }
        rates[flow] = rate;
        for &link in flows[flow].links {
            links[link].capacity -= rate;
            links[link].weight -= flows[flow].weight;
            links[link].count -= 1;
        }
    };
    loop {
        let next_limit = limited.last().map_or(f64::INFINITY, |&flow| limit_level(flow));
        let Some(&Reverse((Ordered(level), position))) = levels.peek() else {
            let Some(flow) = limited.pop() else { return rates };
            settle(flow, flows[flow].limit, &mut links);
            continue;
        };
        if next_limit <= level {
            if let Some(flow) = limited.pop() {
                settle(flow, flows[flow].limit, &mut links);
            }
            continue;
        }
        levels.pop();
        let now = links[position].level();
        if now > level {
            if links[position].count > 0 {
                levels.push(Reverse((Ordered(now), position)));
            }
            continue;
        }
        for flow in std::mem::take(&mut links[position].flows) {
            settle(flow, flows[flow].weight * level, &mut links);
        }
    }
}
