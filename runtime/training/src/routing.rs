//! A step of a mixture whose experts are on several ranks: examples go to their experts, and scores and gradients come back.
//!
//! The examples of a grain with the same expert are a *bundle*, which one rank computes in order: so its gradient has the same bits wherever
//! that rank is, and the bits of the sums depend neither on the number of ranks nor on the places of experts.
use crate::data::Examples;
use crate::member::State;
use crate::model::mixture::{Routed, Shape};
use crate::parts::{Parts, bits, numbers};
use crate::trainer::{Error, add};
use std::collections::BTreeMap;
use std::io;
use tidemill_replicas::{Dispatch, DispatchError, Placement};

/// The needs of a rank for a step.
pub(crate) struct Routing<'a> {
    pub(crate) shape: Shape,
    pub(crate) examples: &'a Examples,
    /// Parameters of the gate.
    pub(crate) gate: &'a [f64],
    /// The experts of this rank.
    pub(crate) experts: &'a BTreeMap<usize, State>,
    /// The experts of all ranks, by position.
    pub(crate) placement: &'a Placement,
    /// Examples of a grain, at most.
    pub(crate) grain: usize,
}

/// Results of the exchange at a rank.
pub(crate) struct Outcome {
    /// The sums of the gradients of its experts, over all ranks.
    pub(crate) sums: BTreeMap<usize, Vec<i64>>,
    /// The examples of each expert, over all ranks.
    pub(crate) examples: Vec<u64>,
    /// Bundles here whose gradient is no number or too large.
    pub(crate) unusable: i64,
}

/// Examples of a grain that one expert computes.
struct Bundle {
    grain: usize,
    expert: usize,
    /// Their positions in the grain.
    places: Vec<usize>,
}

/// The bundles of each rank.
type WorkOfRanks = Vec<Vec<Work>>;

/// A bundle at the rank of its expert.
struct Work {
    expert: usize,
    inputs: Vec<Vec<f64>>,
    hidden: Vec<Vec<f64>>,
}

fn misplaced(error: DispatchError) -> Error {
    Error::Placement(error.to_string())
}

fn cut_short() -> Error {
    Error::Exchange(io::Error::other("a list of another rank is cut short").into())
}

/// Takes numbers from the front of a list.
fn take<'a>(list: &mut &'a [i64], count: usize) -> Result<&'a [i64], Error> {
    let (front, rest) = list.split_at_checked(count).ok_or_else(cut_short)?;
    *list = rest;
    Ok(front)
}

impl Routing<'_> {
    /// Computes the grains of this rank with all others. Adds the gradient of the gate, then the loss, to `sums`.
    pub(crate) fn compute(
        &self,
        ranks: &mut impl Parts,
        grains: &[&[usize]],
        sums: &mut [i64],
    ) -> Result<Outcome, Error> {
        let ((own, count), classes) = (ranks.share(), self.examples.classes);
        let route = |index: &usize| self.shape.route(self.gate, self.examples.get(*index).0);
        let mut routed: Vec<Vec<Routed>> =
            grains.iter().map(|grain| grain.iter().map(route).collect()).collect();
        let bundles = bundles(&routed);
        let mut table = vec![0i64; 2 * self.shape.experts];
        for bundle in &bundles {
            table[bundle.expert] += 1;
            table[self.shape.experts + bundle.expert] += bundle.places.len() as i64;
        }
        let tables = ranks.gather(&table)?;
        let column = |place: usize| tables.iter().map(|table| table[place] as u64).collect::<Vec<u64>>();
        let waiting: Vec<Vec<u64>> = (0..self.shape.experts).map(column).collect();
        let dispatch = Dispatch::new(&waiting, &self.placement.copies()).map_err(misplaced)?;
        let experts: Vec<usize> = bundles.iter().map(|bundle| bundle.expert).collect();
        let order = dispatch.order(own, &experts).map_err(misplaced)?;
        let mut order = order.into_iter();
        let sent = |from, to| usize::try_from(dispatch.sent(from, to)).unwrap_or(usize::MAX);
        let by_receiver: Vec<Vec<&Bundle>> = (0..count)
            .map(|to| order.by_ref().take(sent(own, to)).map(|place| &bundles[place]).collect())
            .collect();
        let most = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        let most = most.map(|(from, to)| sent(from, to)).max().unwrap_or(0);

        let lists = by_receiver.iter().map(|bundles| self.inputs_of(bundles, grains)).collect();
        let received = ranks.swap(lists, most * (2 + self.grain * self.examples.inputs))?;
        let (work, replies) = self.forward(&received)?;
        let longest = most * self.grain * classes;
        let scores = ranks.swap(replies, longest)?;
        for (bundles, scores) in by_receiver.iter().zip(&scores) {
            let mut rest = scores.as_slice();
            for bundle in bundles {
                for place in &bundle.places {
                    routed[bundle.grain][*place].raw = numbers(take(&mut rest, classes)?);
                }
            }
        }

        let mut unusable = 0;
        let mut of_raws = Vec::with_capacity(grains.len());
        for (grain, routed) in grains.iter().zip(&routed) {
            let mut gradient = vec![0.0; self.gate.len()];
            let (loss, of_raw) = self.shape.judge(self.gate, self.examples, grain, routed, &mut gradient);
            gradient.push(loss);
            unusable += i64::from(!add(sums, &gradient));
            of_raws.push(of_raw);
        }
        let gradients = |bundles: &Vec<&Bundle>| {
            let of = |bundle: &&Bundle| {
                let places = bundle.places.iter();
                places.flat_map(|place| bits(&of_raws[bundle.grain][*place])).collect::<Vec<i64>>()
            };
            bundles.iter().flat_map(of).collect::<Vec<i64>>()
        };
        let received = ranks.swap(by_receiver.iter().map(gradients).collect(), longest)?;
        let (mut sums, more) = self.backward(&work, &received)?;
        self.between_replicas(ranks, &mut sums)?;
        let examples = (self.shape.experts..2 * self.shape.experts).map(|place| column(place).iter().sum());
        Ok(Outcome { sums, examples: examples.collect(), unusable: unusable + more })
    }

    /// For each bundle: the expert, the number of examples, and their inputs.
    fn inputs_of(&self, bundles: &[&Bundle], grains: &[&[usize]]) -> Vec<i64> {
        let mut list = Vec::new();
        for bundle in bundles {
            list.extend([bundle.expert as i64, bundle.places.len() as i64]);
            for place in &bundle.places {
                list.extend(bits(self.examples.get(grains[bundle.grain][*place]).0));
            }
        }
        list
    }

    /// Sends the examples of others through the experts of this rank.
    fn forward(&self, received: &[Vec<i64>]) -> Result<(WorkOfRanks, Vec<Vec<i64>>), Error> {
        let (mut all, mut replies) = (Vec::with_capacity(received.len()), Vec::with_capacity(received.len()));
        for list in received {
            let (mut rest, mut works, mut reply) = (list.as_slice(), Vec::new(), Vec::new());
            while !rest.is_empty() {
                let head = take(&mut rest, 2)?;
                let (expert, examples) = (head[0] as usize, head[1] as usize);
                let state = self.experts.get(&expert).ok_or_else(cut_short)?;
                let mut work = Work { expert, inputs: Vec::new(), hidden: Vec::new() };
                for _ in 0..examples {
                    let input = numbers(take(&mut rest, self.examples.inputs)?);
                    let (hidden, raw) = self.shape.forward(&state.parameters, &input, self.examples.classes);
                    reply.extend(bits(&raw));
                    work.inputs.push(input);
                    work.hidden.push(hidden);
                }
                works.push(work);
            }
            all.push(works);
            replies.push(reply);
        }
        Ok((all, replies))
    }

    /// Adds up the gradients of the experts of this rank.
    fn backward(
        &self,
        work: &[Vec<Work>],
        received: &[Vec<i64>],
    ) -> Result<(BTreeMap<usize, Vec<i64>>, i64), Error> {
        let size = self.shape.of_expert(self.examples.inputs, self.examples.classes);
        let mut sums: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
        let mut unusable = 0;
        for (works, list) in work.iter().zip(received) {
            let mut rest = list.as_slice();
            for work in works {
                let state = self.experts.get(&work.expert).ok_or_else(cut_short)?;
                let mut gradient = vec![0.0; size];
                for (input, hidden) in work.inputs.iter().zip(&work.hidden) {
                    let of_raw = numbers(take(&mut rest, self.examples.classes)?);
                    self.shape.backward(&state.parameters, input, hidden, &of_raw, &mut gradient);
                }
                let sums = sums.entry(work.expert).or_insert_with(|| vec![0; size]);
                unusable += i64::from(!add(sums, &gradient));
            }
        }
        Ok((sums, unusable))
    }

    /// Adds what the other replicas of an expert have added up, so that all of them change alike.
    fn between_replicas(
        &self,
        ranks: &mut impl Parts,
        sums: &mut BTreeMap<usize, Vec<i64>>,
    ) -> Result<(), Error> {
        let size = self.shape.of_expert(self.examples.inputs, self.examples.classes);
        let ((own, count), placement) = (ranks.share(), self.placement);
        let common = |one: usize, other: usize| {
            (0..self.shape.experts).filter(|of| placement.has(one, *of) && placement.has(other, *of)).count()
        };
        let pairs = (0..count).flat_map(|one| (0..one).map(move |other| (one, other)));
        let most = pairs.map(|(one, other)| common(one, other)).max().unwrap_or(0);
        if most > 0 {
            let mut lists = vec![Vec::new(); count];
            for (to, list) in lists.iter_mut().enumerate().filter(|(to, _)| *to != own) {
                for (expert, sums) in sums.iter().filter(|(expert, _)| placement.has(to, **expert)) {
                    list.push(*expert as i64);
                    list.extend(sums);
                }
            }
            for list in ranks.swap(lists, most * (1 + size))? {
                let mut rest = list.as_slice();
                while !rest.is_empty() {
                    let expert = take(&mut rest, 1)?[0] as usize;
                    let more = take(&mut rest, size)?;
                    let sums = sums.entry(expert).or_insert_with(|| vec![0; size]);
                    sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
                }
            }
        }
        // Without an example, the last change of an expert still counts.
        self.experts.keys().for_each(|expert| {
            sums.entry(*expert).or_insert_with(|| vec![0; size]);
        });
        Ok(())
    }
}

fn bundles(routed: &[Vec<Routed>]) -> Vec<Bundle> {
    let mut bundles = Vec::new();
    for (grain, routed) in routed.iter().enumerate() {
        let mut by_expert: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (place, routed) in routed.iter().enumerate() {
            by_expert.entry(routed.expert).or_default().push(place);
        }
        bundles.extend(by_expert.into_iter().map(|(expert, places)| Bundle { grain, expert, places }));
    }
    bundles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_of_a_grain_with_one_expert_stay_together() {
        let of = |expert| Routed { gate: vec![], expert, raw: vec![] };
        let bundles = bundles(&[vec![of(1), of(0), of(1)], vec![of(0)]]);
        let found: Vec<_> = bundles.iter().map(|one| (one.grain, one.expert, one.places.clone())).collect();
        assert_eq!(found, [(0, 0, vec![1]), (0, 1, vec![0, 2]), (1, 0, vec![0])]);
    }

    #[test]
    fn a_list_that_is_cut_short_is_an_error() {
        let mut list = &[1, 2, 3][..];
        assert_eq!(take(&mut list, 2).unwrap(), [1, 2]);
        assert!(take(&mut list, 2).unwrap_err().to_string().contains("cut short"));
    }
}
