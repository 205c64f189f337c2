//! Encoding of orders and notices: MessagePack with named fields, so that one side may know more than the other.
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Largest nesting of arrays and maps in a message: that of JSON, which dead letters have, and their surroundings. If a
/// type is unknown before its content, each level may claim up to 1 MiB before a byte of it arrives.
const DEPTH: usize = 160;

/// Encodes a message.
///
/// # Errors
/// Never for orders and notices, which are plain data; the text names the problem.
pub(crate) fn encode(message: &impl Serialize) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let mut serializer = rmp_serde::Serializer::new(&mut bytes)
        .with_struct_map()
        .with_bytes(rmp_serde::config::BytesMode::ForceAll);
    message.serialize(&mut serializer).map_err(|error| format!("a message cannot be written: {error}"))?;
    Ok(bytes)
}

/// Decodes bytes of another process.
///
/// # Errors
/// They are no such message.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(bytes);
    deserializer.set_max_depth(DEPTH);
    T::deserialize(&mut deserializer).map_err(|error| format!("a message cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Past, StageChange, StagePast};
    use crate::failure::RunError;
    use crate::protocol::{End, Notice, Order, Part};
    use crate::store::{Cut, EpochEntry, EpochLog};
    use std::sync::Arc;
    use tidemill_operators::api::{DeadLetter, SourcePosition};

    fn again<T: Serialize + DeserializeOwned + std::fmt::Debug>(message: &T) {
        let bytes = encode(message).expect("plain data");
        let read: T = decode(&bytes).expect("what was written");
        assert_eq!(format!("{read:?}"), format!("{message:?}"));
        for cut in 0..bytes.len() {
            assert!(decode::<T>(&bytes[..cut]).is_err(), "{cut} of {} bytes", bytes.len());
        }
    }

    #[test]
    fn messages_come_back_as_they_were() {
        let cut = Cut {
            position: SourcePosition("{\"row\": 3}".into()),
            skip: 1,
            sequence: u64::MAX,
            newest: -5,
            watermark: i64::MIN,
        };
        let values = serde_json::from_str(r#"{"a": [1, null, "x"], "b": {"c": 1.5}}"#).expect("JSON");
        let letter = DeadLetter {
            id: Some([7; 16]),
            time: None,
            reason: "image_truncated".into(),
            detail: "three of ten bytes".into(),
            values,
        };
        again(&Notice::Letter { operator: "a".into(), epoch: 4, letter });
        again(&Notice::Epoch { source: "s".into(), entry: EpochEntry::Cut { epoch: 3, cut: cut.clone() } });
        again(&Notice::Epoch { source: "s".into(), entry: EpochEntry::Emitted(9) });
        let mut part = Part::default();
        let change = StageChange {
            snapshot: Some((3, Arc::new(vec![0, 255]))),
            calls: vec![1; 300],
            from: 3,
            upto: 5,
        };
        part.stages.insert("join".into(), change);
        part.sources
            .insert("s".into(), EpochLog { cuts: [(3, cut)].into(), end: None, emitted: 8, base: None });
        again(&Notice::Part { number: 1, part: Ok(Some(part)) });
        again(&Notice::Part { number: 1, part: Ok(None) });
        let end = End::Failed(RunError::Operator { operator: "a".into(), text: "no".into() });
        again(&Notice::Ended {
            slot: 1,
            incarnation: 2,
            durable: vec![3, u64::MAX],
            end,
            heard: [(4, 2)].into(),
        });
        let mut past = Past { epoch: 3, ..Past::default() };
        past.stages.insert(
            "join".into(),
            StagePast { snapshot: (2, vec![9; 70_000]), calls: vec![vec![1], vec![]] },
        );
        let bytes = encode(&past).expect("plain data");
        assert!(bytes.len() < 70_200, "bytes are bytes: {}", bytes.len());
        assert_eq!(format!("{:?}", decode::<Past>(&bytes).expect("what was written")), format!("{past:?}"));
        again(&Order::Start { slot: 0, incarnation: 1, resume_at: vec![1], new_executor: None });
    }
}
