//! The ranks of a training agree again: after the start, after a loss, and before experts get new places.
use crate::checkpoint::{Whole, step_of};
use crate::member::{Member, State};
use crate::parts::Parts;
use crate::trainer::Error;
use std::io;
use std::path::Path;
use tidemill_replicas::{MAX_NODES, Mapping, Migration, Odds, Placement, Search, migrate, plan, survival};

/// Lost ranks up to which placements are made better.
const MOST_SEARCHED: usize = 3;
/// Placements that are tried: ranks wait for it at each rebalance.
const EVALUATIONS: usize = 2_000;

/// Experts stay where they are, unless other places make the busiest replica less busy by more than this factor.
const WORTH_MOVES: f64 = 1.05;

/// The state with which ranks continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It begins: there is no checkpoint.
    Beginning,
    /// All ranks have the state of the last step that all have carried out.
    Ranks,
    /// A checkpoint.
    Checkpoint,
}

/// An agreement of all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Regrouped {
    /// The numbers of the ranks.
    pub members: Vec<u32>,
    /// The steps that are done.
    pub step: u64,
    /// Where the state is from.
    pub origin: Origin,
    /// Experts that no rank had any more.
    pub lost: Vec<usize>,
    /// Experts whose state went from a rank to another one.
    pub moved: usize,
    /// The odds that the training continues without a checkpoint after lost ranks, from 0 lost on.
    pub odds: Vec<Odds>,
    /// The experts of each rank; empty lists: the model has none.
    pub experts: Vec<Vec<usize>>,
}

impl Regrouped {
    /// Returns the chances to continue without a checkpoint after lost ranks, from one lost up to `most`.
    pub fn survival(&self, most: usize) -> Vec<f64> {
        self.odds.iter().skip(1).take(most).map(|odds| odds.chance()).collect()
    }
}

/// The state of a rank, as it says itself.
struct Standing {
    is_there: bool,
    step: u64,
    saved: Option<u64>,
    held: Vec<usize>,
    loads: Vec<u64>,
}

impl Standing {
    fn from_table(table: &[i64]) -> Self {
        let (held, loads) = table[3..].split_at((table.len() - 3) / 2);
        Self {
            is_there: table[0] == 1,
            step: table[1] as u64,
            saved: u64::try_from(table[2]).ok(),
            held: (0..held.len()).filter(|expert| held[*expert] == 1).collect(),
            loads: loads.iter().map(|load| *load as u64).collect(),
        }
    }
}

fn failed(text: impl ToString) -> Error {
    Error::Placement(text.to_string())
}

/// The load of the busiest replica.
fn busiest(loads: &[u64], placement: &Placement) -> f64 {
    let holders = placement.holders();
    let of_replicas =
        loads.iter().zip(&holders).map(|(load, holders)| *load as f64 / f64::from(holders.count_ones()));
    of_replicas.fold(0.0, f64::max)
}

impl Member {
    /// Agrees with all ranks on a step and on the places of experts, and gets what this rank lacks: from other ranks, else from the newest
    /// checkpoint that a rank has at `saved`, else from the beginning. All ranks call it together.
    ///
    /// # Errors
    /// A rank is lost: call it again with those that are left. Or a checkpoint cannot be read.
    pub fn regroup(&mut self, ranks: &mut impl Parts, saved: Option<&Path>) -> Result<Regrouped, Error> {
        let step_saved = match saved {
            Some(path) => step_of(path, &self.model, self.options)?,
            None => None,
        };
        let all: Vec<Standing> = {
            let tables = ranks.gather(&self.table(step_saved))?;
            tables.iter().map(|table| Standing::from_table(table)).collect()
        };
        let there: Vec<usize> = (0..all.len()).filter(|position| all[*position].is_there).collect();
        let step = there.iter().map(|position| all[*position].step).min();
        if let Some(step) = step.filter(|step| self.is_there && self.step > *step)
            && !(self.step == step + 1 && self.back())
        {
            let text = format!("this rank is at step {}, and another one at {step}", self.step);
            return Err(Error::Exchange(io::Error::other(text).into()));
        }
        let loads = match there.first() {
            Some(first) => all[*first].loads.clone(),
            None => vec![0; self.loads.len()],
        };
        let (migration, odds) = self.placed(&all, &loads)?;
        let mut lost: Vec<usize> =
            migration.iter().flat_map(Migration::lost).map(|transfer| transfer.expert).collect();
        lost.dedup();
        if there.is_empty() {
            lost.clear(); // they are not lost, they were never there
        }
        let mut moved = 0;
        let origin = match (step, lost.is_empty()) {
            (Some(step), true) => {
                moved = self.receive(ranks, step, &all, &there, migration.as_ref())?;
                Origin::Ranks
            }
            _ => self.restore(ranks, saved, &all, migration.as_ref())?,
        };
        self.placement = migration.map(|migration| migration.layers).and_then(|mut layers| layers.pop());
        // Older loads count less and less.
        self.loads = loads.into_iter().map(|load| load / 2).collect();
        self.is_there = true;
        self.settle();
        let experts = match &self.placement {
            Some(placement) => placement.nodes().to_vec(),
            None => vec![Vec::new(); all.len()],
        };
        let members = ranks.members();
        Ok(Regrouped { members, step: self.step, origin, lost, moved, odds, experts })
    }

    fn table(&self, saved: Option<u64>) -> Vec<i64> {
        let saved = saved.map_or(-1, |step| step as i64);
        let mut table = vec![i64::from(self.is_there), self.step as i64, saved];
        table.extend((0..self.loads.len()).map(|expert| i64::from(self.experts.contains_key(&expert))));
        table.extend(self.loads.iter().map(|load| *load as i64));
        table
    }

    /// Plans the places of experts; none: the model has no experts.
    fn placed(&self, all: &[Standing], loads: &[u64]) -> Result<(Option<Migration>, Vec<Odds>), Error> {
        let (ranks, experts) = (all.len(), self.loads.len());
        if experts == 0 {
            // All ranks have all layers. More ranks than a placement has are not counted.
            let placement = Placement::new(vec![vec![0]; ranks.min(MAX_NODES)], 1, 1).map_err(failed)?;
            let most = placement.nodes().len() - 1;
            return Ok((None, survival(&[placement], most).map_err(failed)?));
        }
        // More ranks may be lost than there are slots for: those that are left hold more, to keep the state.
        let slots = self.replicas.slots.min(experts).max(experts.div_ceil(ranks));
        let room = ranks * slots;
        let floor = (self.replicas.survive + 1).min(ranks).min(room / experts);
        let search = Search { evaluations: EVALUATIONS, ..Search::of(MOST_SEARCHED.min(ranks - 1)) };
        let loads: Vec<u64> = loads.iter().map(|load| load + 1).collect();
        let mut new = plan(std::slice::from_ref(&loads), ranks, slots, floor, search).map_err(failed)?;
        let held: Vec<Vec<usize>> = all.iter().map(|standing| standing.held.clone()).collect();
        let old = Placement::new(held.clone(), experts, experts).map_err(failed)?;
        // The whole part of a share may leave one replica to an expert with little less load than another one with three.
        if let (Ok(kept), [planned]) = (Placement::new(held, experts, slots), &new.layers[..])
            && all.iter().all(|standing| standing.is_there)
            && kept.holders().iter().all(|holders| holders.count_ones() as usize >= floor)
            && busiest(&loads, &kept) <= WORTH_MOVES * busiest(&loads, planned)
        {
            new.layers = vec![kept];
        }
        let nodes: Vec<Option<usize>> =
            all.iter().enumerate().map(|(position, of)| of.is_there.then_some(position)).collect();
        let migration = migrate(&[old], &nodes, &new.layers, Mapping::Fewest).map_err(failed)?;
        let odds = survival(&migration.layers, ranks - 1).unwrap_or(new.odds);
        Ok((Some(migration), odds))
    }

    /// Gets what this rank lacks from those that have it. Returns the experts that moved.
    fn receive(
        &mut self,
        ranks: &mut impl Parts,
        step: u64,
        all: &[Standing],
        there: &[usize],
        migration: Option<&Migration>,
    ) -> Result<usize, Error> {
        if there.len() < all.len() {
            let mut bits = match self.is_there {
                true => self.shared.to_bits(),
                false => vec![0; 2 * self.of_shared()],
            };
            ranks.spread(there.first().copied().unwrap_or(0), &mut bits)?;
            if !self.is_there {
                self.shared = State::from_bits(&bits);
            }
        }
        let transfers = migration.map_or(&[][..], |migration| &migration.transfers);
        let (own, count) = ranks.share();
        if !transfers.is_empty() {
            let mut lists = vec![Vec::new(); count];
            let mut counts = vec![0usize; count * count];
            for transfer in transfers {
                let from = transfer.from.unwrap_or(transfer.to);
                counts[from * count + transfer.to] += 1;
                if from == own
                    && let Some(state) = self.experts.get(&transfer.expert)
                {
                    lists[transfer.to].push(transfer.expert as i64);
                    lists[transfer.to].extend(state.to_bits());
                }
            }
            let each = 1 + 2 * self.of_expert();
            let longest = counts.into_iter().max().unwrap_or(0) * each;
            for list in ranks.swap(lists, longest)? {
                for expert in list.chunks_exact(each) {
                    self.experts.insert(expert[0] as usize, State::from_bits(&expert[1..]));
                }
            }
        }
        // No step was lost by a rank that had it, and none can be taken back now. Nobody drops an expert before all have theirs.
        self.settle();
        (self.step, self.is_there) = (step, true);
        ranks.sum(&mut [0])?;
        if let Some(placement) = migration.and_then(|migration| migration.layers.first()) {
            self.experts.retain(|expert, _| placement.has(own, *expert));
        }
        Ok(transfers.len())
    }

    /// Begins again, from the newest checkpoint of all ranks if there is one.
    fn restore(
        &mut self,
        ranks: &mut impl Parts,
        saved: Option<&Path>,
        all: &[Standing],
        migration: Option<&Migration>,
    ) -> Result<Origin, Error> {
        let newest = all.iter().filter_map(|standing| standing.saved).max();
        let (own, _) = ranks.share();
        let mut whole = Whole { step: 0, parameters: self.initial.clone(), velocity: Vec::new() };
        whole.velocity = vec![0.0; whole.parameters.len()];
        let source = newest.and_then(|newest| all.iter().position(|of| of.saved == Some(newest)));
        if let (Some(source), Some(newest)) = (source, newest) {
            whole = match saved.filter(|_| source == own) {
                Some(path) => Whole::load(path, &self.model, self.options)?,
                None => Whole { step: newest, ..whole },
            };
        }
        let (shared, expert, experts) = (self.of_shared(), self.of_expert(), self.loads.len());
        // A failure in the middle leaves no state.
        self.is_there = false;
        self.experts.clear();
        for place in 0..=experts {
            let (begin, size) = match place {
                0 => (0, shared),
                place => (shared + (place - 1) * expert, expert),
            };
            let parameters = whole.parameters[begin..begin + size].to_vec();
            let mut state = State { parameters, velocity: whole.velocity[begin..begin + size].to_vec() };
            if let Some(source) = source {
                let mut bits = state.to_bits();
                ranks.spread(source, &mut bits)?;
                state = State::from_bits(&bits);
            }
            let layer = migration.and_then(|migration| migration.layers.first());
            match place {
                0 => self.shared = state,
                place if layer.is_some_and(|layer| layer.has(own, place - 1)) => {
                    self.experts.insert(place - 1, state);
                }
                _ => {}
            }
        }
        self.step = whole.step;
        Ok(match newest {
            None => Origin::Beginning,
            Some(_) => Origin::Checkpoint,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::spirals;
    use crate::{Model, Options, Replicas};

    /// Returns the experts that move, for eight ranks with two of eight experts each.
    fn moves(loads: [u64; 8], is_there: impl Fn(usize) -> bool) -> usize {
        let model = Model::Mixture { inputs: 2, hidden: 4, experts: 8, classes: 3, balance: 0.05 };
        let replicas = Replicas { slots: 2, survive: 0 };
        let member = Member::new(model, Options::default(), replicas, spirals(3, 90, 1)).unwrap();
        let all: Vec<Standing> = (0..8)
            .map(|rank| Standing {
                is_there: is_there(rank),
                step: 8,
                saved: None,
                held: if is_there(rank) { vec![rank / 2 * 2, rank / 2 * 2 + 1] } else { Vec::new() },
                loads: loads.to_vec(),
            })
            .collect();
        let (migration, _) = member.placed(&all, &loads).unwrap();
        migration.unwrap().transfers.len()
    }

    #[test]
    fn experts_move_only_where_that_helps() {
        let nearly_equal = [121, 128, 122, 127, 123, 126, 124, 125];
        assert_eq!(moves(nearly_equal, |_| true), 0);
        assert!(moves([500, 500, 100, 100, 100, 100, 100, 100], |_| true) > 0);
        // A rank that comes back gets experts.
        assert!(moves(nearly_equal, |rank| rank != 7) > 0);
    }
}
