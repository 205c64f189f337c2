//! Policies on calls.
use super::letter::Letter;
use super::schemas::Columns;
use crate::attached::{Attached, Looked};
use crate::edge_name::EdgeName;
use crate::passage::{CallRecord, Carried, Effects, Passage};
use crate::policies::balance::By;
use crate::urgency::Urgency;
use arrow_array::RecordBatch;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tidemill_rpc::Code;

/// The request of a call, and how to read it.
struct Record<'a> {
    letter: &'a mut Letter,
    columns: &'a Columns,
}

impl CallRecord for Record<'_> {
    fn bytes(&self) -> u64 {
        (self.letter.metadata.len() + self.letter.length()) as u64
    }

    fn record(&mut self) -> Result<(RecordBatch, u64), String> {
        let (root, copied) = self.letter.make_root_private().map_err(|error| error.to_string())?;
        Ok((self.columns.read(root)?, copied))
    }
}

/// The decision about a call.
pub(crate) enum Judged {
    Passes,
    /// It is looked at again after this time, by the policy of this number.
    Waits(Duration, usize),
    /// It ends.
    Ends(Code, String),
}

/// A call that is judged.
pub(crate) struct Case<'a> {
    pub(crate) edge: &'a EdgeName,
    pub(crate) number: u64,
    /// The binding.
    pub(crate) channel: u64,
    pub(crate) waiting: u64,
    pub(crate) policies: &'a [Rc<Attached>],
    pub(crate) columns: &'a Columns,
}

impl Case<'_> {
    /// Has the policies look at a call, from this one on; `again`: that one held it since then.
    pub(crate) fn judge(
        &self,
        letter: &mut Letter,
        from: usize,
        again: Option<Instant>,
        now: Instant,
        urgent: &mut Urgency,
    ) -> (Judged, Effects) {
        let mut effects = Effects::default();
        let mut batch = None;
        let mut again = again;
        for (at, policy) in self.policies.iter().enumerate().skip(from) {
            let mut record = Record { letter, columns: self.columns };
            let mut frame = Passage {
                edge: self.edge,
                channel: self.channel,
                now,
                number: self.number,
                waiting: self.waiting,
                carried: Carried::Call(&mut record),
                batch: &mut batch,
                effects: &mut effects,
                urgent,
            };
            let looked = policy.look(&mut frame, again.is_some());
            let id = || policy.spec.borrow().id.clone();
            let judged = match looked {
                Looked::Pass if effects.rejected > 0 => {
                    let code = match policy.spec.borrow().kind.as_str() {
                        "rate_limit" => Code::ResourceExhausted,
                        _ => Code::PermissionDenied,
                    };
                    Judged::Ends(code, format!("policy {} does not let this call pass", id()))
                }
                Looked::Pass => {
                    if let Some(since) = again.take() {
                        policy.held(since, now);
                    }
                    continue;
                }
                Looked::Wait(time) => Judged::Waits(time, at),
                Looked::Cut => Judged::Ends(Code::Unavailable, format!("policy {} ended this call", id())),
                Looked::Failed => Judged::Ends(
                    Code::Internal,
                    format!("policy {} could not judge this call: {}", id(), policy.problem()),
                ),
            };
            return (judged, effects);
        }
        (Judged::Passes, effects)
    }
}

/// Chooses a server: their calls that wait, and a number that grows with each call.
pub(crate) fn choose(waiting: &[usize], by: By, turn: u64) -> Option<usize> {
    let count = waiting.len();
    let turn = usize::try_from(turn % count.max(1) as u64).unwrap_or(0);
    match by {
        By::First => (count > 0).then_some(0),
        By::RoundRobin => (count > 0).then_some(turn),
        By::Least => (0..count).map(|at| (at + turn) % count).min_by_key(|at| waiting[*at]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_chosen_by_what_waits_and_in_turn() {
        assert_eq!(choose(&[], By::Least, 3), None);
        assert_eq!(choose(&[2, 1, 2], By::Least, 0), Some(1));
        let turns = |by| (0..4).map(|turn| choose(&[0, 0], by, turn)).collect::<Vec<_>>();
        assert_eq!(turns(By::Least), [Some(0), Some(1), Some(0), Some(1)]);
        assert_eq!(turns(By::RoundRobin), [Some(0), Some(1), Some(0), Some(1)]);
        assert_eq!(turns(By::First), [Some(0); 4]);
    }
}
