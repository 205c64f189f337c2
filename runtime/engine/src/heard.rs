//! What this side makes of messages whose checksums are right and whose content anybody could have written, for tests that write any.
//! Each function says whether the message is followed; what is not is refused with a reason.
use crate::checkpoint;
use crate::coordinator::Workers;
use crate::host::Known;
use crate::protocol::{Notice, Order, examples};
use crate::samples;
use crate::wire::{decode, encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use tidemill_operators::api::Stateful;

/// The message, where it is one: said again, it is the same.
fn read<T: Serialize + DeserializeOwned + Debug>(bytes: &[u8]) -> Option<T> {
    let message: T = decode(bytes).ok()?;
    let again: T = decode(&encode(&message).expect("plain data")).expect("what was written");
    assert_eq!(format!("{again:?}"), format!("{message:?}"));
    Some(message)
}

/// What a host says to the coordinator.
pub fn notice(bytes: &[u8]) -> bool {
    read::<Notice>(bytes).is_some_and(|notice| {
        let workers = Workers::example();
        [0, 1].into_iter().any(|host| workers.check(host, &notice).is_ok())
    })
}

/// What the coordinator says to a host.
pub fn order(bytes: &[u8]) -> bool {
    read::<Order>(bytes).is_some_and(|order| Known::example().check(&order).is_ok())
}

/// What an operator kept, from a state: restored as a run does it. What the operator then tells is restored as the same.
///
/// # Panics
/// What it tells is not restored, or as something else.
pub fn snapshot(make: &dyn Fn() -> Box<dyn Stateful>, bytes: &[u8]) -> bool {
    let mut restored = make();
    if let Err(error) = checkpoint::restore(restored.as_mut(), bytes) {
        assert!(!error.message.is_empty());
        return false;
    }
    let told = restored.snapshot().expect("what was restored can be told");
    let mut again = make();
    again.restore(&told).expect("what was told can be restored");
    assert_eq!(again.snapshot().expect("and told again"), told);
    true
}

/// A record of a sink, as it comes from a host to be shown.
pub fn sample(bytes: &[u8]) -> bool {
    samples::is_record(bytes)
}

/// Calls of an operator since its last snapshot, from a state: what is read is read again as the same.
pub fn calls(bytes: &[u8]) -> bool {
    checkpoint::decode(bytes).is_ok_and(|calls| {
        let again = checkpoint::encode(&calls).and_then(|again| checkpoint::decode(&again));
        assert_eq!(format!("{:?}", again.expect("what was written")), format!("{calls:?}"));
        true
    })
}

/// What a side of this version sends, by the function that hears it.
pub fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let notices = examples::notices().iter().map(|notice| ("notice", encode(notice))).collect::<Vec<_>>();
    let orders = examples::orders().iter().map(|order| ("order", encode(order))).collect::<Vec<_>>();
    let encoded = notices.into_iter().chain(orders);
    let record = samples::example().map(|record| ("sample", record));
    let calls = checkpoint::example().ok().map(|calls| ("calls", calls));
    encoded.filter_map(|(name, bytes)| Some((name, bytes.ok()?))).chain(record).chain(calls).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_and_some_are_followed() {
        for (name, hear) in
            [("notice", notice as fn(&[u8]) -> bool), ("order", order), ("sample", sample), ("calls", calls)]
        {
            let all: Vec<Vec<u8>> =
                samples().into_iter().filter(|(of, _)| *of == name).map(|(_, bytes)| bytes).collect();
            assert!(all.iter().any(|bytes| hear(bytes)), "{name}");
            assert!(!hear(&all[0][..all[0].len() / 2]), "{name}");
        }
    }
}
