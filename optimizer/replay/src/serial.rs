//! The published model of the cost of remoting (arXiv 2401.13354, equations 1 to 3), for comparison. It charges half a
//! round trip to every asynchronous call, as if a message had to arrive before the next one could leave; so what it
//! predicts grows with the number of messages instead of the number of answers.
use crate::call::{Call, Class};
use crate::link::Link;

/// Returns the seconds that this model adds to a local run; negative where it predicts a gain.
///
/// ```
/// use tidemill_replay::call::{Call, Class};
/// use tidemill_replay::{link::Link, replay, serial};
/// let calls = vec![Call::new(Class::Async); 538];
/// let link = Link { round_trip: 0.020, ..Link::NONE };
/// assert!((serial::added(&calls, link) - 5.38).abs() < 1e-9);
/// assert_eq!(replay::remote(calls, link), 0.0, "nobody waits for any of them");
/// ```
pub fn added<'a>(calls: impl IntoIterator<Item = &'a Call>, link: Link) -> f64 {
    let cost = |call: &Call| {
        let start = call.serialise + call.deserialise;
        match call.class {
            // The program gains the time of a call that it does not wait for.
            Class::Async | Class::Shadow => {
                start + link.round_trip / 2.0 + link.upward(call.payload) - call.process
            }
            Class::Sync => start + link.round_trip + link.upward(call.payload) + link.downward(call.reply),
            Class::Local => call.serialise - call.process,
        }
    };
    calls.into_iter().map(cost).sum()
}
