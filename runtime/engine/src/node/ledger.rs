//! Compares the rows that a stage emits with those that the stages of a receiving operator take, epoch by epoch. A row that
//! none takes, or that two take, ends the run instead of corrupting its results.
use crate::failure::RunError;
use crate::frame::{CLOSED, Epoch};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The rows in transit between one stage and all stages of one operator, within the sender's slot.
#[derive(Debug)]
pub(crate) struct Ledger {
    edge: String,
    /// First epoch that may still come, by taker.
    frontiers: Vec<Epoch>,
    /// Emitted and taken rows, by open epoch.
    open: BTreeMap<Epoch, (u64, u64)>,
}

/// One of the takers of a ledger.
#[derive(Debug, Clone)]
pub(crate) struct Taker {
    pub(crate) ledger: Rc<RefCell<Ledger>>,
    pub(crate) number: usize,
}

impl Ledger {
    pub(crate) fn new(edge: String, takers: usize) -> Self {
        Self { edge, frontiers: vec![0; takers], open: BTreeMap::new() }
    }

    /// Records emitted rows.
    pub(crate) fn given(&mut self, epoch: Epoch, rows: usize) {
        self.open.entry(epoch).or_default().0 += rows as u64;
    }
}

impl Taker {
    /// Records taken rows.
    pub(crate) fn taken(&self, epoch: Epoch, rows: usize) {
        self.ledger.borrow_mut().open.entry(epoch).or_default().1 += rows as u64;
    }

    /// No earlier epoch reaches this taker any more.
    ///
    /// # Errors
    /// An epoch that is complete for all takers has differing counts.
    pub(crate) fn passed(&self, frontier: Epoch) -> Result<(), RunError> {
        let ledger = &mut *self.ledger.borrow_mut();
        if ledger.frontiers[self.number] == frontier {
            return Ok(());
        }
        ledger.frontiers[self.number] = frontier;
        let complete = ledger.frontiers.iter().copied().min().unwrap_or(CLOSED);
        let open = match complete {
            CLOSED => BTreeMap::new(),
            complete => ledger.open.split_off(&complete),
        };
        let passed = std::mem::replace(&mut ledger.open, open);
        match passed.into_iter().find(|(_, (given, taken))| given != taken) {
            None => Ok(()),
            Some((epoch, (sent, taken))) => Err(RunError::Unbalanced {
                edge: ledger.edge.clone(),
                until: format!("epoch {epoch}"),
                sent,
                taken,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> (Rc<RefCell<Ledger>>, [Taker; 2]) {
        let ledger = Rc::new(RefCell::new(Ledger::new("a->b".into(), 2)));
        let takers = [0, 1].map(|number| Taker { ledger: Rc::clone(&ledger), number });
        (ledger, takers)
    }

    #[test]
    fn what_adds_up_is_forgotten() {
        let (ledger, [first, second]) = ledger();
        ledger.borrow_mut().given(3, 10);
        ledger.borrow_mut().given(4, 1);
        first.taken(3, 4);
        first.passed(5).expect("the other one has not come so far");
        second.taken(3, 6);
        second.passed(4).expect("4 and 6 are 10");
        assert_eq!(ledger.borrow().open.len(), 1, "epoch 4 is open");
        second.taken(4, 1);
        second.passed(CLOSED).expect("1 is 1");
        first.passed(CLOSED).expect("nothing is left");
    }

    #[test]
    fn rows_that_are_lost_or_doubled_are_found_when_their_epoch_is_complete() {
        for (taken, other) in [(4, 5), (10, 1)] {
            let (ledger, [first, second]) = ledger();
            ledger.borrow_mut().given(3, 10);
            first.taken(3, taken);
            second.taken(3, other);
            first.passed(4).expect("not complete yet");
            let error = second.passed(4).expect_err("does not add up").to_string();
            assert!(
                error.contains("a->b") && error.contains("10 rows") && error.contains("epoch 3"),
                "{error}"
            );
        }
    }
}
