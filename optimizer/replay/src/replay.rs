//! A sequence of calls over a link, one after another on one lane. Messages overlap: a link delays the whole sequence
//! once, and only a call that waits for its answer costs a round trip.
//!
//! For each call, in order:
//!
//! ```text
//! issue    = end of the call before + gap
//! ready    = issue + serialise
//! sent     = max(ready, sent before) + payload / upward bandwidth
//! arrived  = sent + round trip / 2
//! served   = max(arrived, served before) + deserialise + process
//! computed = max(served, computed before) + kernel
//! end      = ready                                                             unless synchronous
//!          = max(served, computed if it waits) + reply / downward bandwidth + round trip / 2
//! ```
use crate::call::{Call, Class};
use crate::link::Link;

/// A sequence of calls over a link, as far as it has been replayed.
///
/// ```
/// use tidemill_replay::call::{Call, Class};
/// use tidemill_replay::{link::Link, replay::Replay};
/// let link = Link { round_trip: 0.020, ..Link::NONE };
/// let mut replay = Replay::new(link);
/// for _ in 0..534 {
///     replay.call(&Call { gap: 10e-6, ..Call::new(Class::Async) });
/// }
/// let end = replay.call(&Call { waits: true, ..Call::new(Class::Sync) });
/// assert!((end - 0.02534).abs() < 1e-9, "all messages share one round trip");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    link: Link,
    end: f64,
    sent: f64,
    served: f64,
    computed: f64,
}

impl Replay {
    /// Creates the beginning of a sequence.
    pub fn new(link: Link) -> Self {
        Self { link, end: 0.0, sent: 0.0, served: 0.0, computed: 0.0 }
    }

    /// Continues with a call; returns when the caller continues after it.
    pub fn call(&mut self, call: &Call) -> f64 {
        let ready = self.end + call.gap + call.serialise;
        self.end = ready;
        if call.class == Class::Local {
            return ready;
        }
        self.sent = self.sent.max(ready) + self.link.upward(call.payload);
        let arrived = self.sent + self.link.round_trip / 2.0;
        self.served = self.served.max(arrived) + call.deserialise + call.process;
        self.computed = self.computed.max(self.served) + call.kernel;
        if call.class == Class::Sync {
            let answered = if call.waits { self.computed } else { self.served };
            self.end = answered + self.link.downward(call.reply) + self.link.round_trip / 2.0;
        }
        self.end
    }

    /// When the caller continues after the last call.
    pub fn end(&self) -> f64 {
        self.end
    }
}

/// Returns the seconds of the calls over a link, until the caller continues after the last one. End them with a
/// synchronous call that waits, or what the device still computes is not counted.
pub fn remote(calls: impl IntoIterator<Item = Call>, link: Link) -> f64 {
    let mut replay = Replay::new(link);
    for call in calls {
        replay.call(&call);
    }
    replay.end()
}

/// Returns the seconds of the calls where the device is beside the caller, in its process: the caller spends the time of
/// each call itself, and no message is written. Local calls take the time of their look-up.
pub fn local(calls: impl IntoIterator<Item = Call>) -> f64 {
    let (mut end, mut computed) = (0.0_f64, 0.0_f64);
    for call in calls {
        end += call.gap;
        if call.class == Class::Local {
            end += call.serialise;
            continue;
        }
        end += call.process;
        computed = computed.max(end) + call.kernel;
        if call.class == Class::Sync && call.waits {
            end = computed;
        }
    }
    end
}

/// Returns the part of the local time that the link adds; negative where the device's processor takes work off the caller.
pub fn slow_down<C: IntoIterator<Item = Call>>(calls: impl Fn() -> C, link: Link) -> f64 {
    remote(calls(), link) / local(calls()) - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published::Application;
    use crate::serial;
    use crate::trace::{Design, Times, Trace};
    use proptest::prelude::*;

    fn call() -> impl Strategy<Value = Call> {
        let class =
            prop_oneof![Just(Class::Async), Just(Class::Shadow), Just(Class::Local), Just(Class::Sync)];
        let time = || prop_oneof![Just(0.0), 0.0..1e-2];
        let times = (time(), time(), time(), time(), time());
        (class, times, 0.0..1e6, any::<bool>(), 0.0..1e6).prop_map(
            |(class, (gap, serialise, deserialise, process, kernel), payload, waits, reply)| Call {
                class,
                gap,
                serialise,
                payload,
                deserialise,
                process,
                kernel,
                waits,
                reply,
            },
        )
    }

    fn link() -> impl Strategy<Value = Link> {
        (0.0..0.1, 1e4..1e10, 1e4..1e10).prop_map(|(round_trip, up, down)| Link { round_trip, up, down })
    }

    /// Time of processors for messages; a local call is looked up in both.
    fn software(calls: &[Call]) -> f64 {
        let sent = calls.iter().filter(|call| call.class.is_sent());
        sent.map(|call| call.serialise + call.deserialise).sum()
    }

    proptest! {
        #[test]
        fn a_longer_or_narrower_link_is_never_faster(
            calls in prop::collection::vec(call(), 1..60), link in link(), more in 1.0..3.0,
        ) {
            let best = remote(calls.clone(), link);
            let worse = [
                Link { round_trip: link.round_trip * more, ..link },
                Link { up: link.up / more, ..link },
                Link { down: link.down / more, ..link },
            ];
            for worse in worse {
                prop_assert!(remote(calls.clone(), worse) >= best - 1e-12);
            }
            prop_assert!(best >= remote(calls, Link::NONE) - 1e-12);
        }

        #[test]
        fn without_a_link_only_software_is_added(calls in prop::collection::vec(call(), 1..60)) {
            let (here, there) = (local(calls.clone()), remote(calls.clone(), Link::NONE));
            prop_assert!(there <= here + software(&calls) + 1e-9, "{there} {here}");
            // Where every call waits for all, nothing can overlap, and the sum is exact.
            let waiting = |call: &Call| match call.class {
                Class::Local => *call,
                _ => Call { class: Class::Sync, waits: true, ..*call },
            };
            let calls: Vec<Call> = calls.iter().map(waiting).collect();
            let (here, there) = (local(calls.clone()), remote(calls.clone(), Link::NONE));
            prop_assert!((there - here - software(&calls)).abs() < 1e-9, "{there} {here}");
        }

        #[test]
        fn round_trips_are_paid_by_synchronous_calls_alone(
            calls in prop::collection::vec(call(), 1..60), round_trip in 0.0..0.1,
        ) {
            let link = Link { round_trip, ..Link::NONE };
            let waiting = calls.iter().filter(|call| call.class == Class::Sync).count() as f64;
            let most = remote(calls.clone(), Link::NONE) + waiting * round_trip;
            prop_assert!(remote(calls, link) <= most + 1e-9);
        }
    }

    /// 534 asynchronous and 4 synchronous calls spread over 3.0 ms of the program and 5.6 ms of the device: a split of
    /// ours. The software is what makes 12.3 ms without a link, shared by both ends.
    fn measured_split() -> Vec<Call> {
        let times = Times { program: 3.0e-3, device: 5.6e-3, serialise: 0.0, deserialise: 0.0 };
        let of = |times| Trace::new(&Application::RESNET, Design::Locality, times).collect::<Vec<Call>>();
        let bare = remote(of(times), Link::NONE);
        let each = |part: f64| (12.3e-3 - bare) / 538.0 * part;
        // Bisection: a part of the software overlaps with the device.
        let (mut low, mut high) = (0.0, 4.0);
        for _ in 0..60 {
            let middle = (low + high) / 2.0;
            let with = Times { serialise: each(middle) / 2.0, deserialise: each(middle) / 2.0, ..times };
            if remote(of(with), Link::NONE) < 12.3e-3 { low = middle } else { high = middle }
        }
        of(Times { serialise: each(low) / 2.0, deserialise: each(low) / 2.0, ..times })
    }

    #[test]
    fn the_measured_run_over_a_delayed_link_is_predicted() {
        let calls = measured_split();
        assert_eq!(calls.iter().filter(|call| call.class.is_sent()).count(), 538);
        // Measured over TCP on two processors, with a relay that delays: milliseconds by milliseconds of round trip. The
        // relay cannot delay by 1 ms exactly.
        for (round_trip, measured, error) in
            [(0.0, 12.3, 0.001), (1.0, 18.6, 0.15), (5.0, 30.1, 0.10), (20.0, 91.7, 0.02)]
        {
            let link = Link { round_trip: round_trip / 1e3, ..Link::NONE };
            let predicted = remote(calls.clone(), link) * 1e3;
            assert!(
                (predicted / measured - 1.0).abs() < error,
                "{round_trip} ms: {predicted} for {measured}"
            );
        }
        let published = serial::added(&calls, Link { round_trip: 0.020, ..Link::NONE });
        assert!((5.2..5.6).contains(&published), "the published model: {published} s");
    }

    #[test]
    fn messages_of_a_delayed_link_overlap() {
        let calls = measured_split();
        let link = Link { round_trip: 0.020, ..Link::NONE };
        let (pipelined, published) = (remote(calls.clone(), link), serial::added(&calls, link));
        assert!(pipelined < 0.120, "538 calls over 10 ms one way took {pipelined} s");
        assert!(published > 40.0 * pipelined, "{published} {pipelined}");
    }
}
