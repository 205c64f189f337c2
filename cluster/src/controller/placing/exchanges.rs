//! Chooses among workers that are as good as each other for roles of a run, by what its stages exchange.
//!
//! Roles that exchange much go to one site, as far as there is room. Where the rates of all links between the sites are known from fresh
//! hints, the exchange over the most loaded link takes as little time as possible; else as few bytes as possible leave a site. The same
//! facts give the same choice. Nothing is chosen where that is no better than the order of names.
use crate::controller::link_hints::rate;
use crate::controller::measured_links::Place;
use std::collections::BTreeMap;
use tidemill_hints::placement::{Exchange, Placement, Transfer, place};
use tidemill_hints::tree::{Direction, Link, Tree};
use tidemill_spec::plan::Plan;

/// Bits per second from one role of a plan to another.
pub(super) type Flows = BTreeMap<(String, String), f64>;

/// A worker that roles can have.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Candidate {
    pub(super) name: String,
    pub(super) place: Place,
    /// Number of roles that it has.
    pub(super) duties: usize,
}

/// A role that has its worker.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Placed {
    pub(super) role: String,
    pub(super) worker: String,
    pub(super) place: Place,
}

/// Workers by role, and why.
pub(super) type Choice = (BTreeMap<String, String>, String);

/// Returns what roles of a plan send each other. Where a plan has no figures at all, each edge counts the same.
pub(super) fn flows(plan: &Plan) -> (Flows, bool) {
    let worker =
        |id: &str| plan.stages.iter().find(|stage| stage.id == *id).map(|stage| stage.worker.clone());
    let bits = |edge: &tidemill_spec::plan::PlanEdge| {
        Some(edge.bytes_per_record?.0 as f64 * 8.0 * edge.rate?.0)
            .filter(|bits| bits.is_finite() && *bits > 0.0)
    };
    let is_known = plan.edges.iter().any(|edge| bits(edge).is_some());
    let mut found = Flows::new();
    for edge in &plan.edges {
        if let Some((from, to)) = worker(&edge.from).zip(worker(&edge.to)).filter(|(from, to)| from != to) {
            let bits = if is_known { bits(edge).unwrap_or(0.0) } else { 1.0 };
            *found.entry((from, to)).or_default() += bits;
        }
    }
    (found, is_known)
}

/// The order of names: each role goes to the worker with the fewest ones.
fn in_order(roles: &[String], candidates: &[Candidate]) -> Vec<usize> {
    let mut duties: Vec<usize> = candidates.iter().map(|of| of.duties).collect();
    let next = |_: &String| {
        let best = (0..duties.len()).min_by_key(|at| (duties[*at], &candidates[*at].name))?;
        duties[best] += 1;
        Some(best)
    };
    roles.iter().filter_map(next).collect()
}

/// Returns a choice that is better than the order of names; none: there is none. `hint` returns the bits per second that are left between
/// two places, or why they are not known.
pub(super) fn chosen(
    roles: &[String],
    candidates: &[Candidate],
    placed: &[Placed],
    (flows, is_known): &(Flows, bool),
    hint: impl Fn(&Place, &Place) -> Result<f64, String>,
) -> Option<Choice> {
    // All at one site: links between sites do not tell them apart.
    if candidates.iter().all(|of| of.place == candidates[0].place) {
        return None;
    }
    let mut machines: Vec<(&str, &Place)> =
        candidates.iter().map(|of| (of.name.as_str(), &of.place)).collect();
    let mut slots = vec![0; machines.len()];
    let order = in_order(roles, candidates);
    // No worker gets more than the one that gets most in the order of names.
    let most = order
        .iter()
        .map(|at| candidates[*at].duties + order.iter().filter(|other| *other == at).count())
        .max()?;
    slots.iter_mut().zip(candidates).for_each(|(slots, of)| *slots = most.saturating_sub(of.duties));
    let mut fixed: Vec<Option<usize>> = vec![None; roles.len()];
    for of in placed {
        let known = machines.iter().position(|(name, _)| *name == of.worker);
        let machine = known.unwrap_or_else(|| {
            machines.push((&of.worker, &of.place));
            slots.push(0);
            machines.len() - 1
        });
        slots[machine] += 1;
        fixed.push(Some(machine));
    }
    let task = |name: &str| {
        let open = roles.iter().position(|role| role == name);
        open.or_else(|| Some(roles.len() + placed.iter().position(|of| of.role == name)?))
    };
    let transfers = flows
        .iter()
        .filter_map(|((from, to), bits)| Some(Transfer { from: task(from)?, to: task(to)?, bytes: *bits }));
    let mut exchange = Exchange { fixed, slots, transfers: transfers.collect() };
    let tree = Tree::of(&machines.iter().map(|(_, place)| *place).collect::<Vec<_>>());
    let (rates, why) = match rates(&tree, &machines, hint) {
        Ok(rates) => (rates, "by hints of the links between sites".to_owned()),
        Err(why) => (vec![f64::INFINITY; tree.links()], format!("by topology only, because {why}")),
    };
    let found = place(&tree, &rates, &exchange).ok()?;
    exchange.fixed.iter_mut().zip(&order).for_each(|(fixed, at)| *fixed = Some(*at));
    let before = place(&tree, &rates, &exchange).ok()?;
    is_better(&found, &before).then(|| {
        let names = found.machines.iter().map(|machine| machines[*machine].0.to_owned());
        let text = match is_known {
            true => format!("{} leave a site instead of {}", rate(found.across), rate(before.across)),
            false => format!("{} exchanges leave a site instead of {}", found.across, before.across),
        };
        (roles.iter().cloned().zip(names).collect(), format!("{text}, {why}"))
    })
}

/// Whether it is better, beyond rounding.
fn is_better(found: &Placement, before: &Placement) -> bool {
    let less = |one: f64, other: f64| one < other * (1.0 - 1e-9);
    less(found.time, before.time) || (!less(before.time, found.time) && less(found.across, before.across))
}

/// The rates of links by hints: the link out of a site has at least what a pair of sites gets. Machines of a site have no limit beside it.
fn rates(
    tree: &Tree,
    machines: &[(&str, &Place)],
    hint: impl Fn(&Place, &Place) -> Result<f64, String>,
) -> Result<Vec<f64>, String> {
    let places: Vec<&Place> = tree.racks().iter().map(|members| machines[members[0]].1).collect();
    let mut known: Vec<Result<f64, String>> = vec![Ok(f64::INFINITY); tree.links()];
    for (from, one) in places.iter().enumerate() {
        for (to, other) in places.iter().enumerate().filter(|(to, _)| *to != from) {
            let found = hint(one, other);
            for link in [Link::Rack(from, Direction::Up), Link::Rack(to, Direction::Down)] {
                let rate = &mut known[tree.id(link)];
                *rate = match (&*rate, &found) {
                    (Ok(before), Ok(more)) if before.is_finite() => Ok(before.max(*more)),
                    (Ok(before), Err(_)) if before.is_finite() => Ok(*before),
                    _ => found.clone(),
                };
            }
        }
    }
    known.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_spec::plan::{PlanEdge, PlanWorkflow, Stage};
    use tidemill_spec::units::{Bytes, Rate};

    fn site(name: &str) -> Place {
        (Some("edge".to_owned()), Some(name.to_owned()))
    }

    /// Workers a and c are in the north, b and d in the south: the order of names takes turns.
    fn candidates() -> Vec<Candidate> {
        [("a", "north"), ("b", "south"), ("c", "north"), ("d", "south")]
            .map(|(name, at)| Candidate { name: name.into(), place: site(at), duties: 0 })
            .to_vec()
    }

    /// The first stage has two instances, and each sends half of its records to each of the second stage.
    fn keyed(parts: &[(&str, &str, u64)]) -> (Flows, bool) {
        let mut plan = Plan::new(PlanWorkflow { name: "w".into(), digest: None });
        for role in ["m1", "m2", "r1", "r2"] {
            plan.stages.push(Stage::new(format!("{role}-stage"), role, role));
        }
        for (from, to, bytes) in parts {
            let mut edge = PlanEdge::new(format!("{from}-stage"), format!("{to}-stage"), 0);
            edge.bytes_per_record = Some(Bytes(*bytes));
            edge.rate = Some(Rate(1_000.0));
            plan.edges.push(edge);
        }
        flows(&plan)
    }

    fn roles(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn at(role: &str, worker: &str, place: &str) -> Placed {
        Placed { role: role.into(), worker: worker.into(), place: site(place) }
    }

    fn unknown(_: &Place, _: &Place) -> Result<f64, String> {
        Err("no worker has reported its traffic yet".to_owned())
    }

    fn of<'a>(choice: &'a Choice, role: &str) -> &'a str {
        &choice.0[role]
    }

    #[test]
    fn stages_that_exchange_much_are_at_one_site() {
        let flows = keyed(&[("m1", "r1", 1_000), ("m1", "r2", 10), ("m2", "r1", 10), ("m2", "r2", 1_000)]);
        let all = roles(&["m1", "m2", "r1", "r2"]);
        // In the order of names m1 and r1 are in the north, m2 and r2 in the south: nothing is better.
        assert_eq!(chosen(&all, &candidates(), &[], &flows, unknown), None);
        let all = roles(&["m1", "r1", "m2", "r2"]);
        let found = chosen(&all, &candidates(), &[], &flows, unknown).unwrap();
        let is_north = |role: &str| ["a", "c"].contains(&of(&found, role));
        assert_eq!((is_north("m1"), is_north("m2")), (is_north("r1"), is_north("r2")));
        assert_ne!(is_north("m1"), is_north("m2"), "one role each");
        assert_eq!(
            found.1,
            "160kbps leave a site instead of 16.2Mbps, by topology only, because no worker has reported its traffic yet"
        );
        assert_eq!(chosen(&all, &candidates(), &[], &flows, unknown), Some(found), "always the same");
    }

    #[test]
    fn receivers_go_where_links_have_more_left() {
        // Senders are in the cloud; the link to the north is busy.
        let flows = keyed(&[("m1", "r1", 100), ("m2", "r1", 100)]);
        let cloud =
            ["m1", "m2"].map(|role| Placed { place: (Some("cloud".into()), None), ..at(role, "big", "") });
        let some = roles(&["r1"]);
        let hint = |from: &Place, to: &Place| match *to == site("north") || *from == site("north") {
            true => Ok(1e6),
            false => Ok(8e6),
        };
        let found = chosen(&some, &candidates(), &cloud, &flows, hint).unwrap();
        assert_eq!(of(&found, "r1"), "b", "south, instead of the first name");
        assert!(found.1.ends_with("by hints of the links between sites"), "{}", found.1);
        assert_eq!(chosen(&some, &candidates(), &cloud, &flows, unknown), None, "topology says nothing here");
    }

    #[test]
    fn workers_of_one_site_keep_their_order() {
        let flows = keyed(&[("m1", "r1", 100)]);
        let mut one_site = candidates();
        one_site.iter_mut().for_each(|of| of.place = site("north"));
        assert_eq!(chosen(&roles(&["m1", "r1"]), &one_site, &[], &flows, unknown), None);
        assert_eq!(chosen(&roles(&["m1"]), &[], &[], &flows, unknown), None);
    }

    #[test]
    fn busy_workers_get_no_more_than_by_their_order() {
        let flows = keyed(&[("m1", "r1", 100)]);
        let mut workers = candidates();
        workers[2].duties = 3;
        let (sender, receiver) = (at("m1", "a", "north"), roles(&["r1"]));
        workers[0].duties = 1;
        // c, in the north, has three roles already: r1 goes to the south, as by its order.
        assert_eq!(chosen(&receiver, &workers, &[sender], &flows, unknown), None);
    }

    #[test]
    fn a_plan_without_figures_counts_its_edges() {
        let mut plan = Plan::new(PlanWorkflow { name: "w".into(), digest: None });
        plan.stages =
            [("s", "one"), ("t", "two"), ("u", "two")].map(|(id, at)| Stage::new(id, id, at)).to_vec();
        plan.edges =
            [("s", "t"), ("s", "u"), ("t", "u")].map(|(from, to)| PlanEdge::new(from, to, 0)).to_vec();
        let (found, is_known) = flows(&plan);
        assert!(!is_known);
        assert_eq!(found, Flows::from([(("one".into(), "two".into()), 2.0)]));
    }
}
