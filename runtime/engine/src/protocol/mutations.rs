//! Messages with valid checksums and mutated content: each is refused, or it is a message that can be checked and encoded
//! again. `TIDEMILL_MUTATIONS=1000000` sets their number instead of three thousand.
use super::*;
use crate::wire::{decode, encode};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use tidemill_random::Random;

fn wanted() -> u64 {
    let wanted = std::env::var("TIDEMILL_MUTATIONS").ok().and_then(|count| count.parse().ok());
    wanted.unwrap_or(3_000)
}

/// Bytes of memory of this process.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("nothing fails here");
    text.split(' ').nth(1).expect("nothing fails here").parse::<u64>().expect("works") * 4096
}

/// Mutates bytes once or a few times; the result differs.
fn mutate(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    loop {
        let mut changed = bytes.to_vec();
        for _ in 0..1 + random.below(3) {
            if changed.is_empty() {
                break;
            }
            let at = random.below(changed.len());
            let some = 1 + random.below(20);
            match random.below(8) {
                0..=2 => changed[at] ^= 1 << random.below(8),
                3 => changed[at] = random.draw() as u8,
                // Claimed lengths of texts, arrays and maps.
                4 => changed[at] = [0xdd, 0xdf, 0xdb, 0xc6, 0xcf, 0xff][random.below(6)],
                5 => changed.truncate(at),
                6 => drop(changed.splice(at..at, (0..some).map(|_| random.draw() as u8).collect::<Vec<_>>())),
                _ => drop(changed.drain(at..(at + some).min(changed.len()))),
            }
        }
        if changed != bytes {
            return changed;
        }
    }
}

fn mutated<T: Serialize + DeserializeOwned + Debug>(what: &str, seed: u64, messages: &[T]) {
    let messages: Vec<Vec<u8>> =
        messages.iter().map(|message| encode(message).expect("nothing fails here")).collect();
    let (mut random, before) = (Random::of_seed(seed), resident());
    let (mut refused, mut read) = (0u64, 0u64);
    for _ in 0..wanted() {
        let changed = mutate(&messages[random.below(messages.len())], &mut random);
        match decode::<T>(&changed) {
            Err(_) => refused += 1,
            Ok(message) => {
                read += 1;
                let again = decode::<T>(&encode(&message).expect("nothing fails here")).expect("works");
                assert_eq!(format!("{again:?}"), format!("{message:?}"));
            }
        }
    }
    println!("{what}: {} changed, {refused} refused, {read} read as what they say", wanted());
    assert!(refused > wanted() / 4 && read > 0, "{refused} refused, {read} read");
    assert!(resident() < before + (256 << 20), "memory grew");
}

#[test]
fn mutated_notices_are_refused_or_read() {
    mutated("notices", 4, &examples::notices());
}

#[test]
fn mutated_orders_are_refused_or_read() {
    mutated("orders", 5, &examples::orders());
}
