//! Orders to the feeds of sources that other processes read, and their answers.
use crate::protocol::Order;
use crossbeam_channel::{Receiver, Sender, bounded};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidemill_operators::feeds::FeedOrder;

/// Time in which a host must answer.
const PATIENCE: Duration = Duration::from_secs(10);

type Answer = Result<(), String>;

/// Orders without an answer yet.
#[derive(Default)]
pub(super) struct FeedOrders(Mutex<Open>);

#[derive(Default)]
struct Open {
    next: u64,
    /// By number: the host, and the one who waits.
    waiting: BTreeMap<u64, (usize, Sender<Answer>)>,
}

/// An order that was sent.
pub(super) struct Sent {
    number: u64,
    answer: Receiver<Answer>,
}

impl FeedOrders {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers an order to a host.
    pub(super) fn ask(&self, host: usize, source: &str, order: &FeedOrder) -> (Order, Sent) {
        let (sender, answer) = bounded(1);
        let mut open = self.open();
        open.next += 1;
        let number = open.next;
        open.waiting.insert(number, (host, sender));
        (Order::Feed { number, source: source.to_owned(), order: order.clone() }, Sent { number, answer })
    }

    /// A host has answered.
    pub(super) fn answered(&self, host: usize, number: u64, answer: Answer) {
        let mut open = self.open();
        // An answer of another host is none.
        if open.waiting.get(&number).is_some_and(|(asked, _)| *asked == host)
            && let Some((_, sender)) = open.waiting.remove(&number)
        {
            let _ = sender.send(answer);
        }
    }

    /// The order could not be sent.
    pub(super) fn unsent(&self, sent: &Sent) {
        self.open().waiting.remove(&sent.number);
    }

    /// A host is lost, and its answers with it.
    pub(super) fn lost(&self, host: usize) {
        self.open().waiting.retain(|_, (asked, _)| *asked != host);
    }

    /// Waits for the answer.
    pub(super) fn wait(&self, sent: &Sent, worker: &str) -> Answer {
        let answer = sent.answer.recv_timeout(PATIENCE);
        self.open().waiting.remove(&sent.number);
        answer.unwrap_or_else(|_| {
            Err(format!("worker `{worker}` did not answer: look at the feeds before you try again"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> FeedOrder {
        FeedOrder::Pause { feed: "gate".into() }
    }

    #[test]
    fn only_the_host_that_was_asked_answers() {
        let orders = FeedOrders::default();
        let (Order::Feed { number, .. }, sent) = orders.ask(1, "cameras", &order()) else { panic!() };
        orders.answered(0, number, Ok(()));
        orders.answered(1, number + 1, Ok(()));
        orders.answered(1, number, Err("there is no feed `gate`".into()));
        assert_eq!(orders.wait(&sent, "edge"), Err("there is no feed `gate`".into()));
        assert!(orders.open().waiting.is_empty());
    }

    #[test]
    fn a_lost_host_is_not_waited_for() {
        let orders = FeedOrders::default();
        let (_, sent) = orders.ask(1, "cameras", &order());
        orders.lost(1);
        let error = orders.wait(&sent, "edge").expect_err("nobody answers");
        assert!(error.contains("worker `edge` did not answer"), "{error}");
    }
}
