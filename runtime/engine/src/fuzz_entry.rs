//! Entry points for fuzzing: messages with valid checksums and arbitrary content. Each function returns whether the message
//! is accepted; others are refused with a reason.
use crate::checkpoint;
use crate::coordinator::Workers;
use crate::host::HostPlan;
use crate::protocol::{Notice, Order, examples};
use crate::samples;
use crate::wire::{decode, encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use tidemill_operators::api::Stateful;

/// Decodes a message; encoding and decoding it again gives an equal one.
fn read<T: Serialize + DeserializeOwned + Debug>(bytes: &[u8]) -> Option<T> {
    let message: T = decode(bytes).ok()?;
    let again: T = decode(&encode(&message).expect("plain data")).expect("what was written");
    assert_eq!(format!("{again:?}"), format!("{message:?}"));
    Some(message)
}

/// A notice of a host to the coordinator.
pub fn notice(bytes: &[u8]) -> bool {
    read::<Notice>(bytes).is_some_and(|notice| {
        let workers = Workers::example();
        [0, 1].into_iter().any(|host| workers.check(host, &notice).is_ok())
    })
}

/// An order of the coordinator to a host.
pub fn order(bytes: &[u8]) -> bool {
    read::<Order>(bytes).is_some_and(|order| HostPlan::example().check(&order).is_ok())
}

/// An operator's snapshot from a state, restored as in a run. The snapshot of the restored operator must restore to an
/// equal state.
///
/// # Panics
/// Its snapshot is not restored, or to another state.
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

/// A sink's record from a host.
pub fn sample(bytes: &[u8]) -> bool {
    samples::is_record(bytes)
}

/// Calls of an operator since its last snapshot, from a state: decoded calls can be encoded and decoded to equal ones.
pub fn calls(bytes: &[u8]) -> bool {
    checkpoint::decode(bytes).is_ok_and(|calls| {
        let again = checkpoint::encode(&calls).and_then(|again| checkpoint::decode(&again));
        assert_eq!(format!("{:?}", again.expect("what was written")), format!("{calls:?}"));
        true
    })
}

/// Messages of this version, by the function that reads them.
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
