//! Heaps: blocks of memory in regions, for payloads.
//!
//! A block has a power of two bytes. A free block splits into halves, and halves that are free again join. What is
//! free is noted in private memory of the owner, where no peer can damage it.
use crate::descriptor::Descriptor;
use crate::region::{GRANULE, Region, RegionError, SharedRegion};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the smallest block.
pub const SMALLEST: u32 = 256;

/// What a heap takes at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeapLimits {
    /// Bytes of the largest block: a power of two from 4 KiB on.
    pub largest: u32,
    /// Bytes of each region: a multiple of the largest block.
    pub region: u64,
    /// Most regions.
    pub regions: u32,
}

impl Default for HeapLimits {
    /// Blocks of up to 4 MiB, in 4 regions of 16 MiB.
    fn default() -> Self {
        Self { largest: 4 << 20, region: 16 << 20, regions: 4 }
    }
}

/// Limits with which there is no heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}: a block has a power of two bytes from 4096 on, a region a multiple of that")]
pub struct HeapError(HeapLimits);

/// Memory that a heap is made of.
pub trait Memory: Sized {
    /// Makes some of this many bytes.
    ///
    /// # Errors
    /// When the system has none left.
    fn create(bytes: u64) -> Result<Self, RegionError>;
}

impl Memory for Region {
    fn create(bytes: u64) -> Result<Self, RegionError> {
        Self::create(bytes)
    }
}

impl Memory for SharedRegion {
    fn create(bytes: u64) -> Result<Self, RegionError> {
        Self::create(bytes)
    }
}

/// Free blocks of a region.
#[derive(Debug)]
struct Space {
    /// Free blocks by class: class `n` has `SMALLEST << n` bytes. They are named by where they begin, in smallest blocks.
    free: Vec<BTreeSet<u32>>,
}

impl Space {
    fn new(limits: &HeapLimits) -> Self {
        let classes = class_of(limits.largest) + 1;
        let mut free = vec![BTreeSet::new(); classes];
        let (step, end) = (limits.largest / SMALLEST, limits.region / u64::from(SMALLEST));
        // `Heap::new` has seen to it that the end fits.
        free[classes - 1].extend((0..end as u32).step_by(step as usize));
        Self { free }
    }

    fn take(&mut self, class: usize) -> Option<u32> {
        let from = (class..self.free.len()).find(|class| !self.free[*class].is_empty())?;
        let block = self.free[from].pop_first()?;
        for half in class..from {
            self.free[half].insert(block + (1 << half));
        }
        Some(block)
    }

    fn give(&mut self, mut block: u32, mut class: usize) {
        let largest = self.free.len() - 1;
        while class < largest && self.free[class].remove(&(block ^ 1 << class)) {
            block &= !(1 << class);
            class += 1;
        }
        self.free[class].insert(block);
    }
}

/// Returns the class of the smallest blocks that hold this many bytes.
fn class_of(length: u32) -> usize {
    length.max(SMALLEST).div_ceil(SMALLEST).next_power_of_two().trailing_zeros() as usize
}

/// Memory for one payload. Who has it is the only one who may write there; [`Heap::free`] takes it back.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "its memory is not free again before Heap::free"]
pub struct Block {
    heap: u64,
    region: u32,
    offset: u64,
    length: u32,
}

impl Block {
    /// Number of its region within the heap.
    pub fn region(&self) -> u32 {
        self.region
    }

    /// Where it begins in its region, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length in bytes, as it was asked for.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Returns a descriptor of this kind that says where it is.
    pub fn describe(&self, kind: u8) -> Descriptor {
        let Self { region, offset, length, .. } = *self;
        Descriptor { kind, region, offset, length, ..Descriptor::default() }
    }
}

/// Blocks in the regions of one owner.
#[derive(Debug)]
pub struct Heap<M> {
    id: u64,
    limits: HeapLimits,
    regions: Vec<(M, Space)>,
    used: u64,
}

impl<M: Memory> Heap<M> {
    /// Makes one without regions: [`Heap::grow`] adds them.
    ///
    /// # Errors
    /// When the limits fit together in no heap.
    pub fn new(limits: HeapLimits) -> Result<Self, HeapError> {
        static HEAPS: AtomicU64 = AtomicU64::new(0);
        let largest = u64::from(limits.largest);
        let is_sound = limits.largest.is_power_of_two()
            && largest >= GRANULE
            && limits.region >= largest
            && limits.region.is_multiple_of(largest)
            && limits.region / u64::from(SMALLEST) <= u64::from(u32::MAX);
        let id = HEAPS.fetch_add(1, Ordering::Relaxed);
        is_sound.then(|| Self { id, limits, regions: Vec::new(), used: 0 }).ok_or(HeapError(limits))
    }

    /// Adds a region and returns its number, for the owner to announce it; none: it has as many as it may.
    ///
    /// # Errors
    /// When the system has no descriptors or addresses left. The heap stays as it is.
    pub fn grow(&mut self) -> Result<Option<u32>, RegionError> {
        let number = self.regions.len() as u32;
        if number >= self.limits.regions {
            return Ok(None);
        }
        self.regions.push((M::create(self.limits.region)?, Space::new(&self.limits)));
        Ok(Some(number))
    }

    /// The region of this number.
    pub fn region(&self, number: u32) -> Option<&M> {
        self.regions.get(usize::try_from(number).ok()?).map(|(region, _)| region)
    }

    /// Bytes that are in blocks now.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Takes memory for a payload of this many bytes. None: there is no piece as large now; more comes by
    /// [`Heap::free`] and [`Heap::grow`], though none ever for more than the largest block.
    pub fn alloc(&mut self, length: usize) -> Option<Block> {
        let length = u32::try_from(length).ok().filter(|length| *length <= self.limits.largest)?;
        let class = class_of(length);
        let spaces = self.regions.iter_mut().enumerate();
        let found = spaces.filter_map(|(region, (_, space))| Some((region, space.take(class)?))).next();
        let (region, begin) = found?;
        self.used += u64::from(SMALLEST) << class;
        let offset = u64::from(begin) * u64::from(SMALLEST);
        // There are at most `limits.regions`.
        Some(Block { heap: self.id, region: region as u32, offset, length })
    }

    /// Takes a block back.
    ///
    /// # Errors
    /// The block, when it is of another heap.
    pub fn free(&mut self, block: Block) -> Result<(), Block> {
        if block.heap != self.id {
            return Err(block);
        }
        let class = class_of(block.length);
        // Only `alloc` makes blocks, so the region exists and the place fits.
        self.regions[block.region as usize].1.give((block.offset / u64::from(SMALLEST)) as u32, class);
        self.used -= u64::from(SMALLEST) << class;
        Ok(())
    }

    /// The region of a block of this heap, if these bytes are in the block.
    fn region_of(&self, block: &Block, at: u32, length: usize) -> Option<&M> {
        let rest = (block.length as usize).checked_sub(at as usize)?;
        (block.heap == self.id && length <= rest).then(|| &self.regions[block.region as usize].0)
    }
}

impl Heap<Region> {
    /// Returns the bytes of a block, to write a payload there. None: it is of another heap.
    pub fn bytes_mut<'a>(&'a self, block: &'a mut Block) -> Option<&'a mut [u8]> {
        let region = self.region_of(block, 0, 0)?;
        // SAFETY: blocks of a heap do not overlap and cannot be cloned, and this one is borrowed as long as the slice. Who
        // lends it to another process (`Leases`) gives it away meanwhile.
        unsafe { region.slice_mut(block.offset..block.offset + u64::from(block.length)) }.ok()
    }

    /// Copies bytes into a block from this place on; `false` when they are not all in it, or it is of another heap.
    #[must_use]
    pub fn write(&self, block: &mut Block, at: u32, bytes: &[u8]) -> bool {
        let region = self.region_of(block, at, bytes.len());
        region.is_some_and(|region| region.copy_in(block.offset + u64::from(at), bytes).is_ok())
    }
}

impl Heap<SharedRegion> {
    /// Copies bytes into a block from this place on; `false` when they are not all in it, or it is of another heap.
    #[must_use]
    pub fn write(&self, block: &mut Block, at: u32, bytes: &[u8]) -> bool {
        let region = self.region_of(block, at, bytes.len());
        region.is_some_and(|region| region.copy_in(block.offset + u64::from(at), bytes).is_ok())
    }
}
