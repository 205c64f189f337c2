//! Decides which objects with calls of a stage are merged with new calls.
//!
//! Each checkpoint adds an object, and a continuing process reads all since the snapshot, so there must not be too many.
//! They are merged by tiers of size, as runs of a log-structured merge tree: the tier of an object is the power of
//! [`AT_ONCE`] of its length. New calls absorb the objects before them of a lower tier, and, if a full set of one tier is
//! at the end, all of these. So data that is written again moves to a higher tier:
//!
//! - a byte is written again at most once for each tier between that of its first object and that of all calls since the
//!   snapshot together, and
//! - there are at most seven objects of each tier.
use tidemill_state::{Content, ObjectReference};

/// Objects of one tier that become one of the next.
const AT_ONCE: u64 = 8;

/// Number of times that a length can be divided by [`AT_ONCE`].
fn tier(bytes: u64) -> u32 {
    bytes.max(1).ilog(AT_ONCE)
}

/// Number of objects at the end that are merged with calls of `new` bytes. The objects are those since the snapshot, by
/// their bytes, the oldest first.
fn taken_in(objects: &[u64], new: u64) -> usize {
    let (mut taken, mut bytes) = (0, new);
    loop {
        let left = &objects[..objects.len() - taken];
        let of_last = |wanted: &dyn Fn(u32) -> bool| {
            left.iter().rev().take_while(|object| wanted(tier(**object))).count()
        };
        let own = tier(bytes);
        let lower = of_last(&|tier| tier < own);
        let same = of_last(&|tier| tier == own);
        let more = match lower {
            0 if same as u64 + 1 >= AT_ONCE => same,
            _ => lower,
        };
        if more == 0 {
            return taken;
        }
        bytes += left[left.len() - more..].iter().sum::<u64>();
        taken += more;
    }
}

/// Removes the objects that are merged with new calls of `new` bytes.
pub(crate) fn take_in(objects: &mut Vec<ObjectReference>, new: u64) -> Vec<ObjectReference> {
    let is_calls = |object: &&ObjectReference| matches!(object.content, Content::Calls { .. });
    let since = objects.iter().rev().take_while(is_calls).count();
    let sizes: Vec<u64> = objects[objects.len() - since..].iter().map(|object| object.bytes).collect();
    objects.split_off(objects.len() - taken_in(&sizes, new))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An object: its parts, each with the number of rewrites and its first tier.
    type Object = Vec<(u64, u32, u32)>;

    fn bytes(object: &Object) -> u64 {
        object.iter().map(|(bytes, ..)| bytes).sum()
    }

    /// The objects after all of these sizes, one per checkpoint.
    fn after(sizes: &[u64]) -> Vec<Object> {
        let mut objects: Vec<Object> = Vec::new();
        for new in sizes {
            let lengths: Vec<u64> = objects.iter().map(bytes).collect();
            let mut taken = objects.split_off(objects.len() - taken_in(&lengths, *new));
            taken.iter_mut().flatten().for_each(|(_, written, _)| *written += 1);
            taken.push(vec![(*new, 0, tier(*new))]);
            objects.push(taken.concat());
        }
        objects
    }

    fn check(sizes: &[u64]) -> Result<(), TestCaseError> {
        let objects = after(sizes);
        let order: Vec<u64> = objects.iter().flatten().map(|(bytes, ..)| *bytes).collect();
        prop_assert_eq!(&order, sizes, "calls stay in their order");
        for object in &objects {
            let now = tier(bytes(object));
            for (bytes, written, first) in object {
                prop_assert!(
                    written <= &(now - first),
                    "{} bytes are written {} times again",
                    bytes,
                    written
                );
            }
        }
        let tiers: Vec<u32> = objects.iter().map(|object| tier(bytes(object))).collect();
        prop_assert!(tiers.is_sorted_by(|before, after| before >= after), "{:?}", tiers);
        let most = tiers.chunk_by(|one, other| one == other).map(<[u32]>::len).max().unwrap_or(0);
        prop_assert!((most as u64) < AT_ONCE, "{} objects of one tier", most);
        Ok(())
    }

    proptest! {
        /// Sizes of all orders of magnitude, in any order.
        #[test]
        fn a_byte_is_written_again_at_most_once_for_each_tier(
            sizes in prop::collection::vec((0u32..30, 1u64..=1000).prop_map(|(power, part)| ((part << power) / 1000).max(1)), 1..300)
        ) {
            check(&sizes)?;
        }

        /// Realistic sizes: nearly equal at all checkpoints.
        #[test]
        fn so_it_is_where_all_are_alike(sizes in prop::collection::vec(900u64..1100, 1..1000)) {
            check(&sizes)?;
        }
    }

    #[test]
    fn an_hour_of_equal_checkpoints_is_written_less_than_four_times_again() {
        let objects = after(&[10_000; 3600]);
        let total: u64 = objects.iter().flatten().map(|(bytes, ..)| bytes).sum();
        let again: u64 =
            objects.iter().flatten().map(|(bytes, written, _)| bytes * u64::from(*written)).sum();
        assert!((2 * total..4 * total).contains(&again), "{again} of {total} bytes");
        assert!(objects.len() < 28, "{} objects", objects.len());
    }
}
