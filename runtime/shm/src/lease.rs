//! Leases: another process reads a block where it lies, and its owner frees the block after the last reader.
//!
//! The owner notes in private memory who has which block ([`Leases`]). Messages of holders are checked: they may lie, say it twice,
//! or die and say nothing. Holders ([`Holdings`]) read without a copy and so trust the owner: it writes a block only
//! while no lease on it exists. Who does not trust the owner copies ([`ReadRegion::copy_to`]).
use crate::descriptor::{Checked, Descriptor, DescriptorError, Limits};
use crate::heap::Block;
use crate::region::{ReadRegion, RegionError};
use crate::wake::Sender;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

/// Kind of the descriptors by which a holder returns a lease.
pub const RETURNED: u8 = u8::MAX;

/// Process that holds leases, by a number that its owner chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder(pub u64);

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "holder {}", self.0)
    }
}

/// Why a lease was not given or not returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The holder has as many leases as it may.
    #[error("{0} has {1} leases, the most it may")]
    TooMany(Holder, usize),
    /// A lease that was never given.
    #[error("{0} names lease {1}, which was never given")]
    Unknown(Holder, u64),
    /// A lease that was returned before.
    #[error("{0} returns lease {1} again")]
    Again(Holder, u64),
    /// A lease of another holder.
    #[error("{0} returns lease {1} of another")]
    NotTheirs(Holder, u64),
    /// A descriptor that returns nothing.
    #[error("{0} sends a descriptor of kind {1}")]
    Kind(Holder, u8),
}

/// Leases of one holder.
#[derive(Debug, Default)]
struct Held {
    leases: BTreeSet<u64>,
    refused: u64,
}

/// Blocks that an owner has lent, and to whom.
#[derive(Debug)]
pub struct Leases {
    /// Most leases of one holder.
    most: usize,
    /// Number of the next lease; none is used twice.
    next: u64,
    /// Who has a lease, and on which block.
    given: BTreeMap<u64, (Holder, u64)>,
    /// Blocks by the number of their first lease, with the number of leases on each.
    blocks: BTreeMap<u64, (Block, usize)>,
    holders: BTreeMap<Holder, Held>,
}

impl Leases {
    /// Lends to each holder up to `most` leases, which is also the least capacity of the ring by which it returns them.
    pub fn new(most: usize) -> Self {
        let (given, blocks, holders) = Default::default();
        Self { most, next: 1, given, blocks, holders }
    }

    /// Number of leases that exist.
    pub fn count(&self) -> usize {
        self.given.len()
    }

    /// Lends a block and returns the number of the lease, for [`Descriptor::lease`].
    ///
    /// # Errors
    /// The block, with [`LeaseError::TooMany`].
    pub fn lend(&mut self, block: Block, to: Holder) -> Result<u64, (Block, LeaseError)> {
        match self.give(self.next, to) {
            Ok(lease) => {
                self.blocks.insert(lease, (block, 1));
                Ok(lease)
            }
            Err(error) => Err((block, error)),
        }
    }

    /// Lends the block of a lease to one more holder, too; returns the number of that lease.
    ///
    /// # Errors
    /// [`LeaseError::TooMany`]; [`LeaseError::Unknown`] when the first lease does not exist any more.
    pub fn share(&mut self, lease: u64, to: Holder) -> Result<u64, LeaseError> {
        let first = self.given.get(&lease).ok_or(LeaseError::Unknown(to, lease))?.1;
        let lease = self.give(first, to)?;
        if let Some((_, count)) = self.blocks.get_mut(&first) {
            *count += 1;
        }
        Ok(lease)
    }

    fn give(&mut self, block: u64, to: Holder) -> Result<u64, LeaseError> {
        let held = &mut self.holders.entry(to).or_default().leases;
        if held.len() >= self.most {
            return Err(LeaseError::TooMany(to, held.len()));
        }
        let lease = self.next;
        held.insert(lease);
        self.next += 1;
        self.given.insert(lease, (to, block));
        Ok(lease)
    }

    /// Takes a message by which a holder returns a lease. The block comes back with the last lease on it, for [`crate::heap::Heap::free`].
    ///
    /// # Errors
    /// When the holder has no such lease; nothing changes but [`Leases::refused`].
    pub fn returned(&mut self, by: Holder, message: &Descriptor) -> Result<Option<Block>, LeaseError> {
        let lease = message.lease;
        let fault = match self.given.get(&lease) {
            _ if message.kind != RETURNED => LeaseError::Kind(by, message.kind),
            Some((holder, _)) if *holder == by => return Ok(self.end(lease)),
            Some(_) => LeaseError::NotTheirs(by, lease),
            None if lease == 0 || lease >= self.next => LeaseError::Unknown(by, lease),
            None => LeaseError::Again(by, lease),
        };
        self.holders.entry(by).or_default().refused += 1;
        Err(fault)
    }

    fn end(&mut self, lease: u64) -> Option<Block> {
        let (holder, first) = self.given.remove(&lease)?;
        if let Some(held) = self.holders.get_mut(&holder) {
            held.leases.remove(&lease);
        }
        let (_, count) = self.blocks.get_mut(&first)?;
        *count -= 1;
        if *count > 0 {
            return None;
        }
        self.blocks.remove(&first).map(|(block, _)| block)
    }

    /// Number of messages of a holder that were refused.
    pub fn refused(&self, by: Holder) -> u64 {
        self.holders.get(&by).map_or(0, |held| held.refused)
    }

    /// Ends all leases of a holder that is gone; returns the blocks that have no other reader. A process that hung up and
    /// lives on can still read its regions, with whatever is written there next: where that matters, a holder has a heap
    /// of its own.
    pub fn forget(&mut self, holder: Holder) -> Vec<Block> {
        let held = self.holders.remove(&holder).unwrap_or_default();
        held.leases.into_iter().filter_map(|lease| self.end(lease)).collect()
    }
}

/// Why a holder takes no lease.
#[derive(Debug, thiserror::Error)]
pub enum HoldingError {
    /// The descriptor names no place in a region of the owner.
    #[error(transparent)]
    Descriptor(#[from] DescriptorError),
    /// The region is not as it was announced.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// Brings returned leases to their owner, from whatever thread drops them: over a ring, or a connection that there is.
pub trait Returning: Send {
    /// Takes the message of one lease, of the kind [`RETURNED`].
    fn give(&mut self, message: Descriptor);
}

/// Returns leases over a ring.
#[derive(Debug)]
struct Returns {
    to: Sender,
    /// Messages that found no place, oldest first: more than the owner has lent.
    kept: Vec<Descriptor>,
}

impl Returning for Returns {
    fn give(&mut self, message: Descriptor) {
        self.kept.push(message);
        // A ring that is damaged takes nothing any more; the owner sees that the process is gone, or is gone itself.
        let sent = self.kept.iter().take_while(|message| self.to.send(message).unwrap_or(true)).count();
        self.kept.drain(..sent);
    }
}

type BoxedReturning = Box<dyn Returning>;

/// Regions of an owner that this process trusts, and what brings leases back to it.
pub struct Holdings {
    limits: Limits,
    regions: Vec<Arc<ReadRegion>>,
    returns: Arc<Mutex<BoxedReturning>>,
}

impl fmt::Debug for Holdings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holdings").field("regions", &self.regions).finish_non_exhaustive()
    }
}

impl Holdings {
    /// Takes descriptors of kinds below this number, with payloads of up to `longest` bytes. The ring of `returns` has a place
    /// for each lease that the owner may give; in a smaller one, some returns wait for the next.
    pub fn new(kinds: u8, longest: u32, returns: Sender) -> Self {
        Self::returning(kinds, longest, Box::new(Returns { to: returns, kept: Vec::new() }))
    }

    /// As [`Holdings::new`], with something else that brings leases back.
    pub fn returning(kinds: u8, longest: u32, returns: Box<dyn Returning>) -> Self {
        let limits = Limits { kinds, regions: Vec::new(), longest };
        Self { limits, regions: Vec::new(), returns: Arc::new(Mutex::new(returns)) }
    }

    /// Adds the next region that the owner announced; its number is the number of those before it.
    pub fn add(&mut self, region: ReadRegion) {
        self.limits.regions.push(region.bytes());
        self.regions.push(Arc::new(region));
    }

    /// Takes the lease of a descriptor that the owner sent.
    ///
    /// # Errors
    /// When the descriptor names no payload.
    pub fn take(&self, message: &Descriptor) -> Result<Lease, HoldingError> {
        let place = message.check(&self.limits)?;
        // `check` has found the region.
        let region = self.regions[place.region() as usize].clone();
        region.slice(&place)?;
        Ok(Lease(Arc::new(Reading { region, place, returns: self.returns.clone() })))
    }
}

struct Reading {
    region: Arc<ReadRegion>,
    place: Checked,
    returns: Arc<Mutex<BoxedReturning>>,
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let Descriptor { lease, region, offset, length, .. } = *self.place.descriptor();
        let message = Descriptor { kind: RETURNED, lease, region, offset, length, ..Descriptor::default() };
        self.returns.lock().unwrap_or_else(PoisonError::into_inner).give(message);
    }
}

/// A right to read a payload where it lies. The owner learns when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct Lease(Arc<Reading>);

impl Lease {
    /// The descriptor that it came with.
    pub fn descriptor(&self) -> &Descriptor {
        self.0.place.descriptor()
    }
}

impl Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // `Holdings::take` has seen that the place is in the region.
        self.0.region.slice(&self.0.place).unwrap_or_default()
    }
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::{Heap, HeapLimits, Memory};
    use proptest::prelude::*;

    struct Nothing;

    impl Memory for Nothing {
        fn create(_: u64) -> Result<Self, RegionError> {
            Ok(Self)
        }
    }

    fn heap() -> Heap<Nothing> {
        let mut heap = Heap::new(HeapLimits { largest: 4096, region: 65_536, regions: 1 }).unwrap();
        heap.grow().unwrap();
        heap
    }

    fn returns(lease: u64) -> Descriptor {
        Descriptor { kind: RETURNED, lease, ..Descriptor::default() }
    }

    const A: Holder = Holder(1);
    const B: Holder = Holder(2);

    #[test]
    fn a_block_comes_back_with_its_last_lease() {
        let (mut heap, mut leases) = (heap(), Leases::new(4));
        let one = leases.lend(heap.alloc(10).unwrap(), A).unwrap();
        let (two, three) = (leases.share(one, B).unwrap(), leases.share(one, A).unwrap());
        assert_eq!(leases.returned(A, &returns(one)), Ok(None));
        let four = leases.share(two, B).unwrap();
        assert_eq!(leases.returned(A, &returns(three)), Ok(None));
        assert_eq!(leases.returned(B, &returns(two)), Ok(None));
        assert_eq!(leases.share(two, A), Err(LeaseError::Unknown(A, two)));
        let block = leases.returned(B, &returns(four)).unwrap().unwrap();
        heap.free(block).unwrap();
        assert_eq!((heap.used(), leases.count()), (0, 0));
    }

    #[test]
    fn what_holders_lie_is_refused_and_counted() {
        let (mut heap, mut leases) = (heap(), Leases::new(2));
        let lease = leases.lend(heap.alloc(10).unwrap(), A).unwrap();
        assert_eq!(leases.returned(A, &returns(0)), Err(LeaseError::Unknown(A, 0)));
        assert_eq!(leases.returned(A, &returns(lease + 1)), Err(LeaseError::Unknown(A, lease + 1)));
        assert_eq!(leases.returned(B, &returns(lease)), Err(LeaseError::NotTheirs(B, lease)));
        let other = Descriptor { kind: 3, ..returns(lease) };
        assert_eq!(leases.returned(A, &other), Err(LeaseError::Kind(A, 3)));
        heap.free(leases.returned(A, &returns(lease)).unwrap().unwrap()).unwrap();
        assert_eq!(leases.returned(A, &returns(lease)), Err(LeaseError::Again(A, lease)));
        assert_eq!((leases.refused(A), leases.refused(B)), (4, 1));
        assert_eq!(LeaseError::Again(A, 7).to_string(), "holder 1 returns lease 7 again");
    }

    #[test]
    fn a_holder_has_no_more_than_it_may() {
        let (mut heap, mut leases) = (heap(), Leases::new(2));
        let one = leases.lend(heap.alloc(10).unwrap(), A).unwrap();
        leases.lend(heap.alloc(10).unwrap(), A).unwrap();
        let (block, error) = leases.lend(heap.alloc(10).unwrap(), A).unwrap_err();
        assert_eq!(error, LeaseError::TooMany(A, 2));
        assert_eq!(leases.share(one, A), Err(error));
        leases.lend(block, B).expect("another holder may");
        assert_eq!(leases.count(), 3);
        let blocks = leases.forget(A);
        assert_eq!((blocks.len(), leases.count()), (2, 1));
        assert!(leases.forget(A).is_empty());
        leases.forget(B).into_iter().chain(blocks).for_each(|block| heap.free(block).unwrap());
        assert_eq!(heap.used(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Steps: the action, the holder, and the lease.
        #[test]
        fn all_blocks_come_back_whatever_happens(
            steps in proptest::collection::vec((0u8..8, 0u64..3, any::<prop::sample::Index>()), 1..200)
        ) {
            let (mut heap, mut leases) = (heap(), Leases::new(5));
            // Leases with their holder and a number of their block.
            let mut held: Vec<(u64, Holder, u64)> = Vec::new();
            let (mut free, mut blocks) = (Vec::new(), 0);
            for (step, holder, which) in steps {
                let holder = Holder(holder);
                let one = (!held.is_empty()).then(|| held[which.index(held.len())]);
                match (step, one) {
                    (0..=2, _) => {
                        let Some(block) = heap.alloc(500) else { continue };
                        match leases.lend(block, holder) {
                            Ok(lease) => held.push((lease, holder, blocks)),
                            Err((block, _)) => free.push(block),
                        }
                        blocks += 1;
                    }
                    (3..=4, Some((lease, _, block))) => {
                        held.extend(leases.share(lease, holder).ok().map(|lease| (lease, holder, block)));
                    }
                    (5..=6, Some((lease, holder, block))) => {
                        held.retain(|(other, ..)| *other != lease);
                        let back = leases.returned(holder, &returns(lease)).unwrap();
                        prop_assert_eq!(back.is_some(), held.iter().all(|(_, _, other)| *other != block));
                        free.extend(back);
                    }
                    (7, _) => {
                        free.extend(leases.forget(holder));
                        held.retain(|(_, other, _)| *other != holder);
                    }
                    _ => {}
                }
                free.drain(..).for_each(|block| heap.free(block).unwrap());
                let lent: BTreeSet<u64> = held.iter().map(|(.., block)| *block).collect();
                prop_assert_eq!((leases.count(), heap.used()), (held.len(), lent.len() as u64 * 512));
            }
        }
    }

    /// Holders and owner in one process; `tests` has them in two.
    #[cfg(not(miri))]
    mod mapped {
        use super::*;
        use crate::region::{GRANULE, Region, SharedRegion};
        use crate::ring::{Consumer, Producer, words};
        use crate::wake::{Bell, Receiver, Spin};

        /// A holder of one region, the owner's heap, and the ring of returned leases, with two places.
        fn holder() -> (Holdings, Heap<Region>, Receiver) {
            let region = Arc::new(SharedRegion::create(GRANULE).unwrap());
            let window = region.window(0, words(2)).unwrap();
            let (bell, other) = Bell::pair().unwrap();
            let to = Sender::new(Producer::new(window.clone(), 2).unwrap(), Arc::new(bell));
            let returned = Consumer::new(window, 2).unwrap();
            let returned = Receiver::new(returned, Arc::new(Bell::adopt(other).unwrap()), Spin::up_to(0));
            let mut heap: Heap<Region> =
                Heap::new(HeapLimits { largest: 4096, region: 16_384, regions: 1 }).unwrap();
            heap.grow().unwrap();
            let mut holdings = Holdings::new(1, 4096, to);
            let sealed = heap.region(0).unwrap().seal().unwrap();
            holdings.add(ReadRegion::adopt(sealed, 1 << 20).unwrap());
            (holdings, heap, returned)
        }

        #[test]
        fn the_last_clone_returns_a_lease() {
            let (holdings, mut heap, mut returned) = holder();
            let mut block = heap.alloc(4096).unwrap();
            heap.bytes_mut(&mut block).unwrap().fill(9);
            let lease = holdings.take(&Descriptor { lease: 5, ..block.describe(0) }).unwrap();
            drop(holdings);
            let clone = lease.clone();
            assert_eq!(*lease, [9; 4096]);
            assert_eq!(lease.as_ptr(), clone.as_ref().as_ptr(), "nothing was copied");
            drop(lease);
            assert_eq!(returned.receive(), Ok(None));
            assert_eq!(clone.descriptor().lease, 5);
            drop(clone);
            let message = returned.receive().unwrap().unwrap();
            assert_eq!((message.kind, message.lease, message.length), (RETURNED, 5, 4096));
            heap.free(block).unwrap();
        }

        #[test]
        fn leases_that_find_no_place_are_returned_later() {
            let (holdings, mut heap, mut returned) = holder();
            let block = heap.alloc(1).unwrap();
            let leases: Vec<Lease> = (1..=5)
                .map(|lease| holdings.take(&Descriptor { lease, ..block.describe(0) }).unwrap())
                .collect();
            leases.into_iter().for_each(drop);
            let mut came = Vec::new();
            while let Some(message) = returned.receive().unwrap() {
                came.push(message.lease);
            }
            assert_eq!(came, [1, 2]);
            drop(holdings.take(&Descriptor { lease: 6, ..block.describe(0) }).unwrap());
            while let Some(message) = returned.receive().unwrap() {
                came.push(message.lease);
            }
            assert_eq!(came, [1, 2, 3, 4], "in order");
            heap.free(block).unwrap();
        }

        #[test]
        fn descriptors_that_name_no_payload_give_no_lease() {
            let (holdings, ..) = holder();
            for wrong in [
                Descriptor { kind: 1, ..Descriptor::default() },
                Descriptor { region: 1, ..Descriptor::default() },
                Descriptor { offset: 16_384, length: 1, ..Descriptor::default() },
                Descriptor { length: 4097, ..Descriptor::default() },
            ] {
                assert!(matches!(holdings.take(&wrong), Err(HoldingError::Descriptor(_))), "{wrong:?}");
            }
        }
    }
}
