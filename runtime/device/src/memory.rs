//! Memory that a client and a proxy of one host share: large tensors go through it instead of their socket.
//!
//! Each side owns regions that only it can write, and passes their sealed descriptors over the socket. It copies the values
//! of a tensor into a free block, and the message carries the place instead. The other side copies them once, into its own
//! memory: it does not trust the owner, which could change them at any time. Blocks come back in the order in which they were
//! sent, and each message of the other side says how many that are. Without a free block, values go over the socket.
use crate::value::{Element, Value, ValueError, check_length};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tidemill_shm::descriptor::{BYTES, Checked, Descriptor, Limits};
use tidemill_shm::heap::{Block, Heap, HeapLimits};
use tidemill_shm::region::{ReadRegion, Region};

/// Values from this length on go through shared memory; shorter ones are as fast over the socket.
pub const LEAST: usize = 16 << 10;
/// Regions grow by this number of bytes, which is also the longest payload.
const REGION: u32 = 16 << 20;
/// Regions of each side.
const REGIONS: u32 = 4;
/// Kind of all descriptors here.
const VALUES: u8 = 0;

/// How tensors of a session went, counted by values of [`LEAST`] bytes or more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Sent through shared memory.
    pub sent_in_memory: u64,
    /// Sent over the connection: it shares no memory, or no block was free.
    pub sent_over_connection: u64,
    /// Received through shared memory.
    pub received_in_memory: u64,
    /// Received over the connection.
    pub received_over_connection: u64,
}

/// Blocks of this side, for values that it sends.
#[derive(Debug)]
pub(crate) struct Lent {
    heap: Heap<Region>,
    /// Blocks that the other side has not copied, in the order in which they were sent.
    blocks: VecDeque<Block>,
    /// Blocks that came back.
    returned: u64,
}

impl Lent {
    /// Makes no region yet. None: no heap has these limits.
    pub(crate) fn new() -> Option<Self> {
        let limits = HeapLimits { largest: REGION, region: u64::from(REGION), regions: REGIONS };
        let heap = Heap::new(limits).ok()?;
        Some(Self { heap, blocks: VecDeque::new(), returned: 0 })
    }

    /// Makes one more region, for the other side to map. None: there are enough, or the system has none left.
    pub(crate) fn grow(&mut self) -> Option<OwnedFd> {
        let number = self.heap.grow().ok()??;
        self.heap.region(number)?.seal().ok()
    }

    /// Whether values of this length fit into a block of an empty region.
    pub(crate) fn fits(length: usize) -> bool {
        (LEAST..=REGION as usize).contains(&length)
    }

    /// Copies values into a free block. Returns its descriptor; none: there is no free one.
    pub(crate) fn place(&mut self, values: &[u8]) -> Option<[u8; BYTES]> {
        let mut block = self.heap.alloc(values.len())?;
        self.heap.bytes_mut(&mut block)?.copy_from_slice(values);
        let place = block.describe(VALUES).to_bytes();
        self.blocks.push_back(block);
        Some(place)
    }

    /// Takes back the oldest blocks: the other side has copied this number of all that were sent.
    pub(crate) fn returned(&mut self, copied: u64) -> Result<(), String> {
        let sent = self.returned + self.blocks.len() as u64;
        if copied > sent {
            return Err(format!("{copied} blocks of memory come back, of {sent}"));
        }
        while self.returned < copied {
            let Some(block) = self.blocks.pop_front() else { break };
            // It is of this heap.
            let _ = self.heap.free(block);
            self.returned += 1;
        }
        Ok(())
    }
}

/// Values in memory of the other side, which may change them at any time: they can only be copied.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    region: Arc<ReadRegion>,
    place: Checked,
}

impl Place {
    pub(crate) fn bytes(&self) -> usize {
        self.place.length()
    }

    /// Copies the values, as many as the slice has room for.
    fn copy_to(&self, into: &mut [u8]) {
        // A place was checked for its region.
        let _ = self.region.copy_to(&self.place, into);
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes()];
        self.copy_to(&mut bytes);
        bytes
    }
}

/// A tensor whose values a device copies once, into its own memory.
#[derive(Debug)]
pub struct Placed {
    element: Element,
    shape: Vec<usize>,
    place: Place,
}

impl Placed {
    /// A tensor of the values at this place, if they are as many as its shape says.
    pub(crate) fn new(element: Element, shape: Vec<usize>, place: Place) -> Result<Self, ValueError> {
        check_length(element, &shape, place.bytes())?;
        Ok(Self { element, shape, place })
    }

    /// The element type.
    pub fn element(&self) -> Element {
        self.element
    }

    /// The dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The number of bytes of the values.
    pub fn bytes(&self) -> usize {
        self.place.bytes()
    }

    /// Copies the values, as many as the slice has room for. They may be other ones at the next call.
    pub fn copy_to(&self, into: &mut [u8]) {
        self.place.copy_to(into);
    }

    /// Copies all of it into a value.
    ///
    /// # Errors
    /// [`ValueError`] if its texts are none.
    pub fn to_value(&self) -> Result<Value, ValueError> {
        Value::new(self.element, self.shape.clone(), self.place.to_vec())
    }
}

/// Regions of the other side, for values that arrive.
#[derive(Debug)]
pub(crate) struct Borrowed {
    limits: Limits,
    regions: Vec<Arc<ReadRegion>>,
}

impl Default for Borrowed {
    fn default() -> Self {
        let limits = Limits { kinds: VALUES + 1, regions: Vec::new(), longest: REGION };
        Self { limits, regions: Vec::new() }
    }
}

impl Borrowed {
    /// Maps the next region, if it is sealed as it must be.
    pub(crate) fn add(&mut self, file: OwnedFd) -> Result<(), String> {
        if self.regions.len() >= REGIONS as usize {
            return Err(format!("more than {REGIONS} regions of memory are shared"));
        }
        let region = ReadRegion::adopt(file, u64::from(REGION)).map_err(|error| error.to_string())?;
        self.limits.regions.push(region.bytes());
        self.regions.push(Arc::new(region));
        Ok(())
    }

    /// Finds the place that a payload begins with.
    pub(crate) fn find(&self, payload: &[u8]) -> Result<Place, String> {
        let place = payload.first_chunk::<BYTES>().ok_or("a place in shared memory is cut off")?;
        let place = Descriptor::from_bytes(place).check(&self.limits).map_err(|error| error.to_string())?;
        let region = usize::try_from(place.region()).ok().and_then(|number| self.regions.get(number));
        let region = Arc::clone(region.ok_or("a place is in no region")?);
        Ok(Place { region, place })
    }

    /// Number of regions.
    pub(crate) fn regions(&self) -> usize {
        self.regions.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Lent, Borrowed) {
        let (mut lent, mut borrowed) = (Lent::new().unwrap(), Borrowed::default());
        borrowed.add(lent.grow().unwrap()).unwrap();
        (lent, borrowed)
    }

    #[test]
    fn values_arrive_and_their_blocks_are_used_again() {
        let (mut lent, borrowed) = pair();
        let first = lent.place(&[7; 600_000]).unwrap();
        assert_eq!(borrowed.find(&first).unwrap().to_vec(), [7; 600_000]);
        let second = lent.place(&[8; 600_000]).unwrap();
        assert_ne!(second, first, "the first is not back");
        lent.returned(1).unwrap();
        assert_eq!(lent.place(&[9; 600_000]).unwrap(), first);
        assert_eq!(borrowed.find(&first).unwrap().to_vec(), [9; 600_000]);
        assert_eq!(borrowed.find(&second).unwrap().to_vec(), [8; 600_000]);
        assert_eq!(lent.blocks.len(), 2);
    }

    #[test]
    fn regions_are_bounded_on_both_sides() {
        let (mut lent, mut borrowed) = pair();
        for _ in 1..REGIONS {
            borrowed.add(lent.grow().unwrap()).unwrap();
        }
        assert!(lent.grow().is_none());
        assert!(borrowed.add(pair().0.grow().unwrap()).is_err(), "one more than a peer may share");
        let blocks = std::iter::from_fn(|| lent.place(&[1; 9 << 20])).count();
        assert_eq!(blocks, REGIONS as usize, "one in each region");
        assert!(!Lent::fits(LEAST - 1) && Lent::fits(LEAST) && !Lent::fits(REGION as usize + 1));
    }

    #[test]
    fn nothing_that_a_peer_says_is_believed() {
        let (mut lent, mut borrowed) = pair();
        assert!(lent.returned(1).is_err(), "nothing was sent");
        lent.place(&[7; LEAST]).unwrap();
        lent.returned(1).unwrap();
        lent.returned(0).unwrap();
        assert!(lent.returned(2).is_err());
        let region = u64::from(REGION);
        for (region, offset, length) in [
            (1, 0, 1),
            (u32::MAX, 0, 1),
            (0, region, 1),
            (0, region - 64, 65),
            (0, u64::MAX - 63, 64),
            (0, 8, 8),
            (0, 0, REGION + 1),
            (0, 0, u32::MAX),
        ] {
            let place = Descriptor { region, offset, length, ..Descriptor::default() };
            assert!(borrowed.find(&place.to_bytes()).is_err(), "{place:?}");
        }
        let other = Descriptor { kind: 1, length: 1, ..Descriptor::default() };
        assert!(borrowed.find(&other.to_bytes()).is_err());
        assert!(borrowed.find(&[0; BYTES - 1]).is_err());
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(borrowed.add(file.into()).is_err());
    }
}
