//! Leases: another process reads a block where it lies, and its owner frees the block when nobody reads it any more.
//!
//! The owner notes in private memory who has what ([`Leases`]). What holders say is checked: they may lie, say it twice,
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

/// What one holder has.
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
    /// Lends to each holder up to so many leases, which is also the least capacity of the ring by which it returns them.
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

    /// Takes what a holder says that it returns. The block comes back with the last lease on it, for [`crate::heap::Heap::free`].
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

    /// Ends all leases of a holder that is gone; returns the blocks that nobody reads any more. The memory of the holder
    /// is gone with its process, so a block may be used again at once.
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

/// Returns leases to their owner.
#[derive(Debug)]
struct Returns {
    to: Sender,
    /// What found no place, oldest first: more than the owner has lent.
    kept: Vec<Descriptor>,
}

impl Returns {
    fn give(&mut self, message: Descriptor) {
        self.kept.push(message);
        // A ring that is damaged takes nothing any more; the owner sees that the process is gone, or is gone itself.
        let sent = self.kept.iter().take_while(|message| self.to.send(message).unwrap_or(true)).count();
        self.kept.drain(..sent);
    }
}

/// Regions of an owner that this process trusts, and the ring by which leases go back.
#[derive(Debug)]
pub struct Holdings {
    limits: Limits,
    regions: Vec<Arc<ReadRegion>>,
    returns: Arc<Mutex<Returns>>,
}

impl Holdings {
    /// Takes descriptors of kinds below this number, with payloads of up to so many bytes.
    pub fn new(kinds: u8, longest: u32, returns: Sender) -> Self {
        let returns = Arc::new(Mutex::new(Returns { to: returns, kept: Vec::new() }));
        Self { limits: Limits { kinds, regions: Vec::new(), longest }, regions: Vec::new(), returns }
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

#[derive(Debug)]
struct Reading {
    region: Arc<ReadRegion>,
    place: Checked,
    returns: Arc<Mutex<Returns>>,
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
