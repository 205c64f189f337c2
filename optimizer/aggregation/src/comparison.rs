//! How long the exchange of an iteration takes: by aggregators, or by an all-reduce of the workers themselves.
use serde::Serialize;
use std::time::Duration;

/// The gradients of a job, and the links that carry them. Links are full duplex: a rate holds in each direction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Exchange {
    /// Bytes of the gradients of one worker.
    pub bytes: f64,
    /// The tensors, as pieces that follow each other.
    pub tensors: u32,
    /// The workers.
    pub workers: u32,
    /// The rate of a worker's link, in bytes per second.
    pub worker_rate: f64,
    /// The aggregators that share the tensors evenly.
    pub aggregators: u32,
    /// The rate that the job has of an aggregator's link, in bytes per second.
    pub aggregator_rate: f64,
    /// Processor time of all aggregators together, in an iteration.
    pub work: Duration,
    /// The time of a message in one direction, beside that of its bytes.
    pub latency: Duration,
}

/// A method to exchange gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Means {
    /// A ring of the workers.
    AllReduce,
    /// A service of aggregators.
    Aggregators,
}

impl Exchange {
    /// Returns the time of an all-reduce by a ring: 2 (n - 1) steps, each with a message of bytes / n (Patarasuk and Yuan, 2009, section 3).
    pub fn all_reduce(&self) -> Duration {
        let workers = f64::from(self.workers.max(1));
        let step = self.latency.as_secs_f64() + self.bytes / workers / self.worker_rate;
        duration(2.0 * (workers - 1.0) * step)
    }

    /// Returns the time by aggregators: each tensor is pushed, added up and pulled, and tensors follow each other as in a pipeline. The
    /// slowest of the three stages sets the pace. A push takes as long as the slower of a worker's link, with all bytes, and an
    /// aggregator's, with its share of the bytes of all workers; a pull takes as long on the other directions of the links.
    pub fn aggregation(&self) -> Duration {
        let (workers, aggregators) = (f64::from(self.workers.max(1)), f64::from(self.aggregators.max(1)));
        let tensors = f64::from(self.tensors.max(1));
        let push =
            (self.bytes / self.worker_rate).max(workers * self.bytes / (aggregators * self.aggregator_rate));
        let work = self.work.as_secs_f64() / aggregators;
        let first = (2.0 * push + work) / tensors;
        let rest = (tensors - 1.0) / tensors * push.max(work);
        duration(2.0 * self.latency.as_secs_f64() + first + rest)
    }

    /// Returns the part of the exchange that decides the choice, for people.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidemill_aggregation::comparison::Exchange;
    /// let exchange = Exchange {
    ///     bytes: 100e6, tensors: 50, workers: 8, worker_rate: 1e9, aggregators: 1, aggregator_rate: 1e9,
    ///     work: Duration::from_millis(80), latency: Duration::from_micros(50),
    /// };
    /// assert!(exchange.reason().starts_with("the links of 1 aggregator carry the gradients of 8 workers"));
    /// ```
    pub fn reason(&self) -> String {
        let (workers, aggregators) = (f64::from(self.workers.max(1)), f64::from(self.aggregators.max(1)));
        let own = self.bytes / self.worker_rate;
        let theirs = workers * self.bytes / (aggregators * self.aggregator_rate);
        let work = self.work.as_secs_f64() / aggregators;
        let milliseconds = |seconds: f64| format!("{:.3} ms", seconds * 1e3);
        let plural = if self.aggregators == 1 { "" } else { "s" };
        if self.workers <= 1 {
            return "one worker has nothing to exchange with others".to_owned();
        }
        if self.quicker() == Means::Aggregators {
            let ring = 2.0 * (workers - 1.0) / workers * own;
            let latency = 2.0 * (workers - 1.0) * self.latency.as_secs_f64();
            return format!(
                "a ring sends {:.2} times the bytes over each link ({}) in {} steps ({} of latency)",
                2.0 * (workers - 1.0) / workers,
                milliseconds(ring),
                2 * (self.workers - 1),
                milliseconds(latency)
            );
        }
        if work >= own.max(theirs) {
            return format!(
                "adding up and updating takes {} on each of {} aggregator{plural}",
                milliseconds(work),
                self.aggregators
            );
        }
        if theirs >= own {
            return format!(
                "the links of {} aggregator{plural} carry the gradients of {} workers ({})",
                self.aggregators,
                self.workers,
                milliseconds(theirs)
            );
        }
        format!("push and pull of few tensors do not overlap: the first one takes {}", milliseconds(own))
    }

    /// Returns which is quicker; aggregators where both are equal, because they leave the processors of workers alone.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidemill_aggregation::comparison::{Exchange, Means};
    /// let mut exchange = Exchange {
    ///     bytes: 100e6, tensors: 50, workers: 8, worker_rate: 1e9, aggregators: 1, aggregator_rate: 1e9,
    ///     work: Duration::from_millis(80), latency: Duration::from_micros(50),
    /// };
    /// // One link carries the bytes of eight workers.
    /// assert_eq!(exchange.quicker(), Means::AllReduce);
    /// exchange.aggregators = 8;
    /// assert_eq!(exchange.quicker(), Means::Aggregators);
    /// ```
    pub fn quicker(&self) -> Means {
        if self.all_reduce() < self.aggregation() { Means::AllReduce } else { Means::Aggregators }
    }
}

/// A time that is no number or too long is the longest one.
fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange() -> Exchange {
        Exchange {
            bytes: 80e6,
            tensors: 4,
            workers: 4,
            worker_rate: 1e9,
            aggregators: 2,
            aggregator_rate: 2e9,
            work: Duration::from_millis(40),
            latency: Duration::from_millis(1),
        }
    }

    fn is_about(found: Duration, milliseconds: f64) {
        assert!((found.as_secs_f64() * 1e3 - milliseconds).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn times_follow_the_formulas() {
        // Six steps of 1 ms and 20 MB; four tensors of 20 ms to push, 5 ms to add and 20 ms to pull, 1 ms in each direction.
        is_about(exchange().all_reduce(), 6.0 * 21.0);
        is_about(exchange().aggregation(), 2.0 + (80.0 + 20.0 + 80.0) / 4.0 + 3.0 * 20.0);
    }

    #[test]
    fn few_aggregators_or_slow_processors_are_slower() {
        is_about(Exchange { aggregators: 1, ..exchange() }.aggregation(), 2.0 + 360.0 / 4.0 + 3.0 * 40.0);
        let slow = Exchange { work: Duration::from_millis(400), ..exchange() };
        is_about(slow.aggregation(), 2.0 + 360.0 / 4.0 + 3.0 * 50.0);
        assert_eq!(slow.quicker(), Means::AllReduce);
        assert_eq!(exchange().quicker(), Means::Aggregators);
    }

    #[test]
    fn one_worker_exchanges_nothing_by_itself() {
        assert_eq!(Exchange { workers: 1, ..exchange() }.all_reduce(), Duration::ZERO);
        assert_eq!(Exchange { worker_rate: 0.0, ..exchange() }.all_reduce(), Duration::MAX);
    }
}
