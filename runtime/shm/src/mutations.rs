//! Hostile descriptors, positions and messages: each is refused, or it names what it may; no call does more work than for
//! honest ones. `TIDEMILL_MUTATIONS=1000000` sets their number instead of twenty thousand.
use crate::descriptor::{BYTES, Checked, Descriptor, DescriptorError, Limits};
use crate::heap::{Heap, HeapLimits, Memory};
use crate::lease::{Holder, LeaseError, Leases, RETURNED};
use crate::region::{RegionError, SharedRegion};
use crate::ring::{Consumer, Producer, RingError, Words, words};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

fn wanted() -> u64 {
    let wanted = std::env::var("TIDEMILL_MUTATIONS").ok().and_then(|count| count.parse().ok());
    wanted.unwrap_or(if cfg!(miri) { 300 } else { 20_000 })
}

/// Random numbers of a seed, by xorshift.
struct Random(u64);

impl Random {
    fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, count: u64) -> u64 {
        self.draw() % count
    }

    /// A number that breaks arithmetic, one near the given one, or any.
    fn hostile(&mut self, near: u64) -> u64 {
        match self.below(6) {
            0 => {
                [0, 1, u64::MAX, 1 << 63, (1 << 63) - 1, 1 << 32, u64::from(u32::MAX)][self.below(7) as usize]
            }
            1 => near.wrapping_add(self.below(5)).wrapping_sub(2),
            2 => near ^ 1 << self.below(64),
            3 => u64::MAX - self.below(70_000),
            4 => 1 << self.below(64),
            _ => self.draw(),
        }
    }
}

/// Sizes of the regions that descriptors may name.
const REGIONS: [u64; 3] = [4096, 65_536, 1 << 20];

fn limits() -> Limits {
    Limits { kinds: 4, regions: REGIONS.to_vec(), longest: 70_000 }
}

/// A descriptor that is right, with one byte, one word, all words or none changed.
fn mutated(random: &mut Random) -> Descriptor {
    let region = random.below(3);
    let length = random.below(4000);
    let descriptor = Descriptor {
        kind: random.below(4) as u8,
        region: region as u32,
        offset: random.below((REGIONS[region as usize] - length) / 64) * 64,
        length: length as u32,
        ..Descriptor::default()
    };
    let mut bytes = descriptor.to_bytes();
    match random.below(4) {
        0 => bytes[random.below(BYTES as u64) as usize] = random.draw() as u8,
        1 => {
            let word = random.below(8) as usize;
            let value = u64::from_le_bytes(bytes.as_chunks::<8>().0[word]);
            bytes.as_chunks_mut::<8>().0[word] = random.hostile(value).to_le_bytes();
        }
        2 => bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = random.hostile(0).to_le_bytes()),
        _ => {}
    }
    if random.below(2) == 0 {
        // An offset that only its size makes wrong.
        bytes[8] &= 0xC0;
    }
    let changed = Descriptor::from_bytes(&bytes);
    assert_eq!(changed.to_bytes(), bytes, "each byte belongs to a field");
    changed
}

/// Says by other arithmetic whether a descriptor is right.
fn is_right(descriptor: &Descriptor) -> bool {
    let Some(size) = REGIONS.get(descriptor.region as usize) else { return false };
    let end = u128::from(descriptor.offset) + u128::from(descriptor.length);
    descriptor.kind < 4
        && descriptor.length <= 70_000
        && descriptor.offset & 63 == 0
        && end <= u128::from(*size)
}

#[test]
fn mutated_descriptors_give_access_to_nothing_else() {
    let (mut random, limits) = (Random(7), limits());
    let (mut right, mut wrong) = (0u64, [0u64; 5]);
    for _ in 0..wanted() {
        let descriptor = mutated(&mut random);
        match descriptor.check(&limits) {
            Ok(checked) => {
                assert!(is_right(&descriptor), "{descriptor:?}");
                assert_eq!(checked.descriptor(), &descriptor);
                right += 1;
            }
            Err(error) => {
                assert!(!is_right(&descriptor), "{descriptor:?}: {error}");
                wrong[match error {
                    DescriptorError::Kind(_) => 0,
                    DescriptorError::Region(_) => 1,
                    DescriptorError::Length(..) => 2,
                    DescriptorError::Alignment(_) => 3,
                    DescriptorError::Outside(..) => 4,
                }] += 1;
            }
        }
    }
    assert!(right > 0 && wrong.iter().all(|count| *count > 0), "each case comes: {right}, {wrong:?}");
}

/// A place that was checked against the sizes of other regions.
#[test]
#[cfg_attr(miri, ignore = "system calls")]
fn mutated_descriptors_reach_no_memory_beyond_a_region() {
    let (mut random, limits) = (Random(11), limits());
    let region = SharedRegion::create(REGIONS[0]).unwrap();
    let mut into = vec![0; 70_000];
    let (mut copied, mut outside) = (0u64, 0u64);
    for _ in 0..wanted() {
        let Ok(checked): Result<Checked, _> = mutated(&mut random).check(&limits) else { continue };
        match region.copy_to(&checked, &mut into) {
            Ok(()) => copied += 1,
            Err(RegionError::Outside(..)) => outside += 1,
            Err(error) => panic!("{error}"),
        }
        assert_eq!(
            outside + copied > 0 && checked.offset() + checked.length() as u64 <= REGIONS[0],
            region.copy_to(&checked, &mut []).is_ok()
        );
    }
    assert!(copied > 0 && outside > 0, "{copied} {outside}");
}

/// Memory that counts how often it is used.
#[derive(Clone)]
struct Counted {
    words: Rc<Vec<AtomicU64>>,
    used: Rc<Cell<usize>>,
}

impl Words for Counted {
    fn count(&self) -> usize {
        self.words.len()
    }

    fn load(&self, index: usize, order: Ordering) -> u64 {
        self.used.set(self.used.get() + 1);
        self.words[index].load(order)
    }

    fn store(&self, index: usize, value: u64, order: Ordering) {
        self.used.set(self.used.get() + 1);
        self.words[index].store(value, order);
    }

    fn fence(&self) {}
}

/// An honest side against one that writes anything anywhere.
#[test]
fn mutated_rings_are_damaged_and_nothing_else() {
    /// Each word of a descriptor once, and two positions.
    const WORK: usize = 10;
    let mut random = Random(13);
    let (mut damaged, mut calls) = (0u64, 0u64);
    while calls < wanted() {
        let capacity = 1 << random.below(4);
        let memory = Counted {
            words: Rc::new((0..words(capacity)).map(|_| AtomicU64::new(0)).collect()),
            used: Rc::default(),
        };
        let mut producer = Producer::new(memory.clone(), capacity).unwrap();
        let mut consumer = Consumer::new(memory.clone(), capacity).unwrap();
        let (mut is_damaged, mut in_ring) = ([false; 2], 0u64);
        for _ in 0..64 {
            if random.below(4) == 0 {
                let word = match random.below(2) {
                    0 => [0, 8, 16][random.below(3) as usize],
                    _ => random.below(memory.words.len() as u64) as usize,
                };
                let value = random.hostile(memory.words[word].load(Ordering::Relaxed));
                memory.words[word].store(value, Ordering::Relaxed);
            }
            memory.used.set(0);
            calls += 1;
            let side = random.below(2) as usize;
            let result = match (side, random.below(3)) {
                (0, 0) => Ok(producer.must_wake()),
                (0, _) => producer.push(&Descriptor::default()),
                (_, 0) => consumer.may_sleep().inspect(|_| consumer.woke()),
                (_, _) => consumer.pop().map(|descriptor| descriptor.is_some()),
            };
            assert!(memory.used.get() <= WORK, "a call used {} words", memory.used.get());
            match result {
                Err(error) => {
                    assert_eq!(error, RingError::Damaged);
                    damaged += u64::from(!is_damaged[side]);
                    is_damaged[side] = true;
                }
                Ok(_) => in_ring += 1,
            }
        }
        for (side, result) in [producer.push(&Descriptor::default()).map(drop), consumer.pop().map(drop)]
            .into_iter()
            .enumerate()
        {
            assert!(!is_damaged[side] || result == Err(RingError::Damaged), "damage is for good");
        }
        assert!(in_ring > 0 || is_damaged != [false; 2]);
    }
    assert!(damaged > 0);
}

/// A side that reads nothing but honest positions works although all other words change.
#[test]
fn mutated_slots_damage_no_ring() {
    let (mut random, capacity) = (Random(17), 4);
    let memory: Rc<[AtomicU64]> = (0..words(capacity)).map(|_| AtomicU64::new(0)).collect();
    let mut producer = Producer::new(memory.clone(), capacity).unwrap();
    let mut consumer = Consumer::new(memory.clone(), capacity).unwrap();
    let mut waiting = 0;
    for _ in 0..wanted() {
        let slot = words(0) as u64 + random.below(u64::from(capacity) * 8);
        memory[slot as usize].store(random.draw(), Ordering::Relaxed);
        if random.below(2) == 0 {
            let is_pushed = producer.push(&Descriptor::default()).unwrap();
            assert_eq!(is_pushed, waiting < capacity);
            waiting += u32::from(is_pushed);
        } else {
            let is_popped = consumer.pop().unwrap().is_some();
            assert_eq!(is_popped, waiting > 0);
            waiting -= u32::from(is_popped);
        }
    }
}

struct Nothing;

impl Memory for Nothing {
    fn create(_: u64) -> Result<Self, RegionError> {
        Ok(Self)
    }
}

/// Two holders, one of which says anything; the blocks of the other stay.
#[test]
fn mutated_returns_free_no_block_of_others() {
    const MOST: usize = 8;
    let (honest, hostile) = (Holder(1), Holder(2));
    let mut random = Random(19);
    let mut heap: Heap<Nothing> =
        Heap::new(HeapLimits { largest: 4096, region: 65_536, regions: 1 }).unwrap();
    heap.grow().unwrap();
    let mut leases = Leases::new(MOST);
    let mut held: BTreeMap<Holder, VecDeque<u64>> =
        BTreeMap::from([(honest, VecDeque::new()), (hostile, VecDeque::new())]);
    let (mut refused, mut last) = (0, 0);
    for _ in 0..wanted() {
        for holder in [honest, hostile] {
            if let Some(block) = heap.alloc(random.below(4097) as usize) {
                match leases.lend(block, holder) {
                    Ok(lease) => {
                        last = lease;
                        held.get_mut(&holder).unwrap().push_back(lease);
                    }
                    Err((block, error)) => {
                        assert_eq!(error, LeaseError::TooMany(holder, MOST));
                        assert_eq!(held[&holder].len(), MOST);
                        heap.free(block).unwrap();
                    }
                }
            }
        }
        if random.below(3) == 0
            && let Some(lease) = held.get_mut(&honest).unwrap().pop_front()
        {
            let message = Descriptor { kind: RETURNED, lease, ..Descriptor::default() };
            heap.free(leases.returned(honest, &message).unwrap().expect("nobody else has it")).unwrap();
        }
        let lease = match random.below(3) {
            0 => random.hostile(last),
            1 => held[&honest].back().copied().unwrap_or(0),
            _ => random.below(last + 3),
        };
        let kind = if random.below(5) == 0 { random.draw() as u8 } else { RETURNED };
        let message = Descriptor { lease, kind, ..mutated(&mut random) };
        let mine = held.get_mut(&hostile).unwrap();
        let place = mine.iter().position(|mine| *mine == lease);
        match (leases.returned(hostile, &message), place) {
            (Ok(block), Some(place)) => {
                heap.free(block.expect("nobody else has it")).unwrap();
                mine.remove(place);
            }
            (Err(_), place) => {
                assert!(place.is_none() || kind != RETURNED);
                refused += 1;
            }
            (Ok(_), None) => panic!("{message:?} returned a lease that it has not"),
        }
        assert_eq!(leases.count(), held.values().map(VecDeque::len).sum::<usize>());
        assert_eq!(leases.refused(hostile), refused);
        assert_eq!(leases.refused(honest), 0);
    }
    for holder in [hostile, honest] {
        let blocks = leases.forget(holder);
        assert_eq!(blocks.len(), held[&holder].len());
        blocks.into_iter().for_each(|block| heap.free(block).unwrap());
    }
    assert_eq!((heap.used(), leases.count()), (0, 0));
    assert!(refused > 0);
}
