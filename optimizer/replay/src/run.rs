//! Runs of one model by a session: the inputs go to the device, the model runs, the outputs come back.
use crate::call::{Call, Class};
use crate::link::Link;

/// One run of a model, of one record or of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// Bytes to the device.
    pub up: f64,
    /// Bytes back.
    pub down: f64,
    /// Answers that the caller waits for: 1, or as many as steps of a loop that the caller controls.
    pub round_trips: u32,
    /// Seconds of a run where the device is local.
    pub local: f64,
    /// Seconds of processors at both ends for the messages.
    pub software: f64,
    /// Seconds that a run waits because other sessions use the device.
    pub queue: f64,
}

/// A part of the time that a remote run takes longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Term {
    /// Round trips.
    RoundTrips,
    /// Bytes over the bandwidth.
    Bytes,
    /// Processors at both ends.
    Processor,
    /// Waiting for the device.
    Queue,
}

impl Term {
    /// Returns the words for it.
    pub fn name(self) -> &'static str {
        match self {
            Term::RoundTrips => "round trips",
            Term::Bytes => "bytes",
            Term::Processor => "processor",
            Term::Queue => "queue",
        }
    }
}

/// Runs per second that each part allows while several runs are outstanding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Throughput {
    /// The device.
    pub device: f64,
    /// The link to the device.
    pub up: f64,
    /// The link back.
    pub down: f64,
    /// The processors at both ends.
    pub processor: f64,
    /// The window: outstanding runs over the time of one.
    pub window: f64,
}

impl Throughput {
    /// Runs per second: what the slowest part allows.
    pub fn rate(&self) -> f64 {
        self.without_window().min(self.window)
    }

    /// Runs per second with a window that never limits.
    pub fn without_window(&self) -> f64 {
        self.device.min(self.up).min(self.down).min(self.processor)
    }
}

impl Run {
    /// Returns what a link adds to one run alone, by term.
    pub fn added(&self, link: &Link) -> [(Term, f64); 4] {
        [
            (Term::RoundTrips, f64::from(self.round_trips) * link.round_trip),
            (Term::Bytes, link.upward(self.up) + link.downward(self.down)),
            (Term::Processor, self.software),
            (Term::Queue, self.queue),
        ]
    }

    /// Returns the seconds of one run alone over a link.
    pub fn remote(&self, link: &Link) -> f64 {
        self.local + self.added(link).iter().map(|(_, seconds)| seconds).sum::<f64>()
    }

    /// Returns the rates that the parts allow with `window` outstanding runs.
    pub fn throughput(&self, link: &Link, window: u32) -> Throughput {
        Throughput {
            device: 1.0 / self.local,
            up: 1.0 / link.upward(self.up),
            down: 1.0 / link.downward(self.down),
            processor: 1.0 / self.software,
            window: f64::from(window) / self.remote(link),
        }
    }

    /// Returns the smallest window with which it does not limit the rate.
    ///
    /// ```
    /// use tidemill_replay::{link::Link, run::Run};
    /// let run = Run { up: 1e6, down: 0.0, round_trips: 1, local: 0.010, software: 0.0, queue: 0.0 };
    /// let link = Link { round_trip: 0.050, up: 50e6, down: 50e6 };
    /// // 10 ms of computing, 50 ms of travelling, 20 ms of sending: every 20 ms another record can leave.
    /// assert_eq!(run.window_needed(&link), 4);
    /// assert_eq!(run.throughput(&link, 3).rate(), 37.5);
    /// assert_eq!(run.throughput(&link, 4).rate(), 50.0);
    /// ```
    pub fn window_needed(&self, link: &Link) -> u32 {
        let needed = self.remote(link) * self.throughput(link, 1).without_window();
        // A float to an integer saturates. What is above a whole number by rounding alone needs no more.
        (needed * (1.0 - 1e-12)).ceil().max(1.0) as u32
    }

    /// Returns the part of the local time that is added to each run: with a window of 1 of the run itself, with larger ones
    /// of the time between the ends of two runs.
    pub fn slow_down(&self, link: &Link, window: u32) -> f64 {
        1.0 / (self.throughput(link, window).rate() * self.local) - 1.0
    }

    /// Returns the term with the largest part in what a link adds.
    pub fn binding(&self, link: &Link, window: u32) -> Term {
        let throughput = self.throughput(link, window);
        let rate = throughput.rate();
        if window > 1 && rate < throughput.window {
            let (up, down, processor) = (throughput.up, throughput.down, throughput.processor);
            return match rate {
                rate if rate == up || rate == down => Term::Bytes,
                rate if rate == processor => Term::Processor,
                _ => Term::Queue,
            };
        }
        let largest = self.added(link).into_iter().max_by(|(_, a), (_, b)| a.total_cmp(b));
        largest.map_or(Term::RoundTrips, |(term, _)| term)
    }

    /// Returns the run as calls, for [`crate::replay`].
    pub fn calls(&self) -> Vec<Call> {
        let answers = self.round_trips.max(1);
        let part = f64::from(answers);
        let mut calls = vec![Call { payload: self.up, ..Call::new(Class::Async) }];
        for _ in 0..answers {
            let kernel = (self.local + self.queue) / part;
            calls.push(Call { serialise: self.software / part, kernel, ..Call::new(Class::Async) });
            calls.push(Call { waits: true, reply: self.down / part, ..Call::new(Class::Sync) });
        }
        calls
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::replay;
    use proptest::prelude::*;

    pub(crate) fn any_run() -> impl Strategy<Value = Run> {
        let time = || prop_oneof![Just(0.0), 0.0..5e-3];
        (0.0..1e6, 0.0..1e5, 1_u32..20, 1e-4..1.0, time(), time()).prop_map(
            |(up, down, round_trips, local, software, queue)| Run {
                up,
                down,
                round_trips,
                local,
                software,
                queue,
            },
        )
    }

    pub(crate) fn any_link() -> impl Strategy<Value = Link> {
        (0.0..0.1, 1e4..1e9, 1e4..1e9).prop_map(|(round_trip, up, down)| Link { round_trip, up, down })
    }

    proptest! {
        #[test]
        fn the_closed_form_is_the_replay_of_its_calls(run in any_run(), link in any_link()) {
            let (closed, replayed) = (run.remote(&link), replay::remote(run.calls(), link));
            // While a large input travels, the caller prepares the run.
            prop_assert!(replayed <= closed + 1e-9 && closed <= replayed + run.software + 1e-9);
            let silent = Run { software: 0.0, ..run };
            let (closed, replayed) = (silent.remote(&link), replay::remote(silent.calls(), link));
            prop_assert!((closed - replayed).abs() < 1e-9, "{closed} {replayed}");
        }

        #[test]
        fn one_outstanding_run_costs_what_it_adds(run in any_run(), link in any_link()) {
            let cost = run.slow_down(&link, 1);
            prop_assert!((cost - (run.remote(&link) / run.local - 1.0)).abs() < 1e-9 * (1.0 + cost));
        }

        #[test]
        fn a_larger_window_never_costs_more_and_the_needed_one_suffices(
            run in any_run(), link in any_link(), window in 1_u32..50,
        ) {
            prop_assert!(run.slow_down(&link, window + 1) <= run.slow_down(&link, window) + 1e-12);
            let needed = run.window_needed(&link);
            let best = run.throughput(&link, needed);
            prop_assert!(best.rate() >= best.without_window() * (1.0 - 1e-9));
            if needed > 1 {
                let less = run.throughput(&link, needed - 1);
                prop_assert!(less.rate() < less.without_window());
            }
        }
    }

    #[test]
    fn what_limits_is_named() {
        let run = Run { up: 1e6, down: 0.0, round_trips: 1, local: 0.010, software: 1e-3, queue: 2e-3 };
        let link = |round_trip, up| Link { round_trip, up, down: f64::INFINITY };
        assert_eq!(run.binding(&link(0.050, 50e6), 1), Term::RoundTrips);
        assert_eq!(run.binding(&link(0.010, 50e6), 1), Term::Bytes);
        assert_eq!(run.binding(&link(0.050, 50e6), 9), Term::Bytes, "the window hides the round trip");
        assert_eq!(run.binding(&Link::NONE, 1), Term::Queue);
        assert_eq!(Run { queue: 0.0, ..run }.binding(&Link::NONE, 1), Term::Processor);
        assert_eq!(Run { software: 0.020, ..run }.binding(&link(0.0, 1e9), 9), Term::Processor);
    }
}
