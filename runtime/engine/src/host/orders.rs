//! Checks orders: a host follows only those about its own parts. Any other order comes from a coordinator with another
//! plan, or from an attacker, and is refused with its connection.
use super::TIMES;
use crate::graph::Graph;
use crate::protocol::Order;

/// The host's part of the plan.
pub(crate) struct HostPlan {
    /// Number of instances by slot; `None`: it is on another host.
    slots: Vec<Option<usize>>,
    channels: usize,
}

impl HostPlan {
    pub(super) fn of(graph: &Graph, worker: &str) -> Self {
        let instances =
            graph.slots.iter().map(|slot| (slot.worker == worker).then_some(slot.instances.len()));
        Self { slots: instances.collect(), channels: graph.channels.len() }
    }

    /// A host with one of two slots, for tests.
    pub(crate) fn example() -> Self {
        Self { slots: vec![Some(2), None], channels: 3 }
    }

    /// Checks an order; an error is the reason for a refusal.
    pub(crate) fn check(&self, order: &Order) -> Result<(), String> {
        let times: &[i64] = match order {
            Order::Start { slot, resume_at, .. } => {
                let Some(instances) = self.slots.get(*slot).copied().flatten() else {
                    return Err(format!("an order to start slot {slot}, which is not on this host"));
                };
                if resume_at.len() != instances {
                    return Err(format!(
                        "an order to start slot {slot} from {} epochs, and it has {instances} instances",
                        resume_at.len()
                    ));
                }
                &[]
            }
            Order::ReceiverFinished { channel } if *channel >= self.channels => {
                return Err(format!("an order about channel {channel}: the plan has {}", self.channels));
            }
            Order::Begin(beginning) => {
                if !(beginning.dilation.is_finite() && beginning.dilation > 0.0) {
                    return Err(format!("a run that is {} times slower than real time", beginning.dilation));
                }
                &[beginning.started, beginning.elapsed_before, beginning.duration.unwrap_or(0)]
            }
            Order::Started { at, elapsed_before } => &[*at, *elapsed_before],
            Order::Pong { now, .. } => &[*now],
            _ => &[],
        };
        match times.iter().find(|time| !TIMES.contains(*time)) {
            Some(time) => Err(format!("an order with the time {time}, which is none")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_about_what_is_not_here_are_refused() {
        let known = HostPlan::example();
        let start = |slot, resume_at| Order::Start { slot, incarnation: 1, resume_at, new_executor: None };
        for (order, word) in [
            (start(1, vec![0]), "slot 1, which is not on this host"),
            (start(7, vec![0]), "slot 7"),
            (start(usize::MAX, vec![0, 0]), "not on this host"),
            (start(0, vec![0; 3]), "3 epochs, and it has 2"),
            (Order::ReceiverFinished { channel: 3 }, "channel 3: the plan has 3"),
            (Order::Pong { number: 1, now: i64::MAX }, "which is none"),
            (Order::Started { at: 0, elapsed_before: i64::MIN }, "which is none"),
        ] {
            let error = known.check(&order).expect_err(word);
            assert!(error.contains(word), "{error}");
        }
        for order in [start(0, vec![0, u64::MAX]), Order::ReceiverFinished { channel: 2 }, Order::Stop] {
            assert_eq!(known.check(&order), Ok(()));
        }
    }
}
