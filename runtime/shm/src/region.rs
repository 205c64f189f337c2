//! Regions: memory files that processes map, with seals that make a mapping safe.
//!
//! A mapping of a file that shrinks kills its process, so a region has its size for ever, and nothing is mapped before
//! the seals that say so were seen.
use crate::descriptor::Checked;
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Sizes of regions are multiples of this, in bytes.
pub const GRANULE: u64 = 4096;

/// Size and seals cannot change any more.
const FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// No process can map it to write from now on; the mapping that its owner has stays.
const READ_ONLY: SealFlags = FIXED.union(SealFlags::FUTURE_WRITE);
/// Kind of the file system that memory files are in. Pages of huge ones may be missing, which kills who reads them.
const TMPFS: u64 = 0x0102_1994;

/// Why there is no region.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The size in bytes, and the largest that is taken.
    #[error("a region of {0} bytes: sizes are multiples of {GRANULE}, from {GRANULE} to {1}")]
    Size(u64, u64),
    /// A descriptor of a peer that is something else, or lacks the seals without which mapping it is not safe.
    #[error("the descriptor is no memory file with the seals of a region")]
    NotSealed,
    /// Range of bytes that is not in the region.
    #[error("bytes {0} to {1} are not in the region")]
    Outside(u64, u64),
    /// The system has no memory or no descriptors left.
    #[error("shared memory: {0}")]
    System(#[from] io::Error),
}

impl From<rustix::io::Errno> for RegionError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::System(error.into())
    }
}

/// A mapping, which ends with it.
#[derive(Debug)]
struct Map {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to no thread, and all access through a shared reference is atomic or to bytes that no
// one of this process writes meanwhile (see the callers of `pointer`).
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps a file whose size was sealed.
    fn new(file: &OwnedFd, bytes: u64, access: ProtFlags) -> Result<Self, RegionError> {
        let size = usize::try_from(bytes).map_err(|_| RegionError::Size(bytes, usize::MAX as u64))?;
        // SAFETY: the address is the kernel's choice, so nothing that is mapped already is replaced.
        let start = unsafe { mmap(std::ptr::null_mut(), size, access, MapFlags::SHARED, file, 0)? };
        let start = NonNull::new(start.cast()).ok_or(RegionError::NotSealed)?;
        Ok(Self { start, bytes: size })
    }

    /// Returns where this range begins, if it is in the mapping.
    fn pointer(&self, offset: u64, length: usize) -> Result<*mut u8, RegionError> {
        let outside = || RegionError::Outside(offset, offset.saturating_add(length as u64));
        let start = usize::try_from(offset).map_err(|_| outside())?;
        let end = start.checked_add(length).ok_or_else(outside)?;
        if end > self.bytes {
            return Err(outside());
        }
        // SAFETY: `start` is at most the size of the mapping.
        Ok(unsafe { self.start.as_ptr().add(start) })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping begins at a page and is as long as `self`; its size is sealed. Atomics may be changed by
        // others at any time, other processes included, and all bytes are valid for them. Mappings without PROT_WRITE
        // are only loaded from (`copy_out`).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.bytes / 8) }
    }

    /// Returns a range as single bytes, whole words, and single bytes. Others may change all of them at any time.
    fn atomics(&self, offset: u64, length: usize) -> Result<Atomics<'_>, RegionError> {
        let start = self.pointer(offset, length)?;
        // SAFETY: `pointer` has checked the range, which stays mapped as long as `self`; see `words` for the atomics.
        let bytes = unsafe { std::slice::from_raw_parts(start.cast::<AtomicU8>(), length) };
        // SAFETY: eight atomic bytes that are aligned are an atomic word, all of whose bits are valid.
        Ok(unsafe { bytes.align_to::<AtomicU64>() })
    }

    /// Copies bytes out that another process may change meanwhile.
    fn copy_out(&self, offset: u64, into: &mut [u8]) -> Result<(), RegionError> {
        let (head, words, tail) = self.atomics(offset, into.len())?;
        let (first, rest) = into.split_at_mut(head.len());
        let (middle, last) = rest.split_at_mut(words.len() * 8);
        for (word, from) in middle.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *word = from.load(Ordering::Relaxed).to_ne_bytes();
        }
        for (byte, from) in first.iter_mut().chain(last).zip(head.iter().chain(tail)) {
            *byte = from.load(Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies bytes into a mapping that is writable.
    fn copy_in(&self, offset: u64, bytes: &[u8]) -> Result<(), RegionError> {
        let (head, words, tail) = self.atomics(offset, bytes.len())?;
        let (first, rest) = bytes.split_at(head.len());
        let (middle, last) = rest.split_at(words.len() * 8);
        for (word, to) in middle.as_chunks::<8>().0.iter().zip(words) {
            to.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        for (byte, to) in first.iter().chain(last).zip(head.iter().chain(tail)) {
            to.store(*byte, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Bytes before the first whole word, words, and bytes after the last one.
type Atomics<'a> = (&'a [AtomicU8], &'a [AtomicU64], &'a [AtomicU8]);

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, and no reference outlives its `Map`. It cannot fail for such a range.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

fn new_file(bytes: u64) -> Result<OwnedFd, RegionError> {
    if bytes == 0 || !bytes.is_multiple_of(GRANULE) {
        return Err(RegionError::Size(bytes, u64::MAX));
    }
    let file = memfd_create("tidemill-region", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, bytes)?;
    Ok(file)
}

/// Returns the size of a peer's file, if these seals are on it and it has at most `limit` bytes.
fn size_of_sealed(file: &OwnedFd, seals: SealFlags, limit: u64) -> Result<u64, RegionError> {
    if !fcntl_get_seals(file).is_ok_and(|found| found.contains(seals))
        || fstatfs(file)?.f_type as u64 != TMPFS
    {
        return Err(RegionError::NotSealed);
    }
    // After the seals: from there on the size is fixed.
    let size = u64::try_from(fstat(file)?.st_size).unwrap_or(u64::MAX);
    if size == 0 || size > limit || !size.is_multiple_of(GRANULE) {
        return Err(RegionError::Size(size, limit));
    }
    Ok(size)
}

/// Memory that its owner writes and others can only read. It grows by making another one.
#[derive(Debug)]
pub struct Region {
    map: Map,
    file: OwnedFd,
}

impl Region {
    /// Makes one of this many bytes, all zero. The system provides the memory as it is written.
    ///
    /// # Errors
    /// When the size is not a multiple of [`GRANULE`], or the system has no descriptors or addresses left.
    pub fn create(bytes: u64) -> Result<Self, RegionError> {
        let file = new_file(bytes)?;
        Ok(Self { map: Map::new(&file, bytes, ProtFlags::READ | ProtFlags::WRITE)?, file })
    }

    /// Seals it and returns a descriptor for another process, by which no process can write or change the size.
    ///
    /// # Errors
    /// When no descriptors are left.
    pub fn seal(&self) -> Result<OwnedFd, RegionError> {
        if !fcntl_get_seals(&self.file)?.contains(READ_ONLY) {
            fcntl_add_seals(&self.file, READ_ONLY)?;
        }
        Ok(rustix::io::fcntl_dupfd_cloexec(&self.file, 0)?)
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.map.bytes as u64
    }

    /// Copies bytes to this offset.
    pub(crate) fn copy_in(&self, offset: u64, bytes: &[u8]) -> Result<(), RegionError> {
        self.map.copy_in(offset, bytes)
    }

    /// Returns where these bytes begin in it; none: they are elsewhere.
    pub(crate) fn offset_of(&self, bytes: &[u8]) -> Option<u64> {
        let offset = (bytes.as_ptr() as usize).checked_sub(self.map.start.as_ptr() as usize)?;
        (offset.checked_add(bytes.len())? <= self.map.bytes).then_some(offset as u64)
    }

    /// Returns a range as a slice to write to.
    ///
    /// # Safety
    /// While the slice lives, nothing in this process may read or write the range otherwise. No other process can
    /// write: the descriptor is private until [`Region::seal`].
    #[expect(clippy::mut_from_ref, reason = "the caller has the range to itself")]
    pub(crate) unsafe fn slice_mut(&self, range: Range<u64>) -> Result<&mut [u8], RegionError> {
        let length = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        let start = self.map.pointer(range.start, length)?;
        // SAFETY: `pointer` has checked the range; the caller has it to itself.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, length) })
    }
}

/// A region of another process, which this one can only read.
#[derive(Debug)]
pub struct ReadRegion(Map);

impl ReadRegion {
    /// Maps the descriptor of [`Region::seal`] that a peer passed, if it is one and has at most `limit` bytes.
    ///
    /// # Errors
    /// [`RegionError::NotSealed`] and [`RegionError::Size`] for a descriptor that a peer may not pass; others of the system.
    pub fn adopt(file: OwnedFd, limit: u64) -> Result<Self, RegionError> {
        let bytes = size_of_sealed(&file, READ_ONLY, limit)?;
        Ok(Self(Map::new(&file, bytes, ProtFlags::READ)?))
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes as u64
    }

    /// Copies the bytes of a place out of it, as many as the slice has room for. Right for an owner that may change
    /// them meanwhile.
    ///
    /// # Errors
    /// [`RegionError::Outside`] when the place was checked for a larger region.
    pub fn copy_to(&self, place: &Checked, into: &mut [u8]) -> Result<(), RegionError> {
        copy_place(&self.0, place, into)
    }

    /// Returns a place for the system to read: to write it to a socket without a copy. Its owner may change the bytes meanwhile,
    /// so nothing that was seen in them holds for what is written.
    ///
    /// # Errors
    /// As [`ReadRegion::copy_to`].
    pub fn to_write(&self, place: &Checked) -> Result<&[u8], RegionError> {
        self.slice(place)
    }

    /// Returns a place as a slice. For owners that leave blocks alone while they are leased: see [`crate::lease`].
    pub(crate) fn slice(&self, place: &Checked) -> Result<&[u8], RegionError> {
        let start = self.0.pointer(place.offset(), place.length())?;
        // SAFETY: the range is in the mapping, which lives as long as `self` and cannot shrink. This process cannot
        // write it, and its owner does not while the lease that calls this exists.
        Ok(unsafe { std::slice::from_raw_parts(start, place.length()) })
    }
}

fn copy_place(map: &Map, place: &Checked, into: &mut [u8]) -> Result<(), RegionError> {
    let length = place.length().min(into.len());
    // The place as a whole, so that a short slice does not hide one that is outside.
    map.pointer(place.offset(), place.length())?;
    map.copy_out(place.offset(), &mut into[..length])
}

/// Memory that two processes write, for rings and for payloads of programs: all access is atomic or a copy.
#[derive(Debug)]
pub struct SharedRegion {
    map: Map,
    file: OwnedFd,
}

impl SharedRegion {
    /// Makes one of this many bytes, all zero.
    ///
    /// # Errors
    /// As [`Region::create`].
    pub fn create(bytes: u64) -> Result<Self, RegionError> {
        let file = new_file(bytes)?;
        fcntl_add_seals(&file, FIXED)?;
        Self::map(file, bytes)
    }

    /// Maps the one whose descriptor a peer passed, if its size is sealed and at most `limit` bytes.
    ///
    /// # Errors
    /// As [`ReadRegion::adopt`].
    pub fn adopt(file: OwnedFd, limit: u64) -> Result<Self, RegionError> {
        let bytes = size_of_sealed(&file, FIXED, limit)?;
        Self::map(file, bytes)
    }

    fn map(file: OwnedFd, bytes: u64) -> Result<Self, RegionError> {
        Ok(Self { map: Map::new(&file, bytes, ProtFlags::READ | ProtFlags::WRITE)?, file })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.map.bytes as u64
    }

    /// Copies the bytes of a place out of it, as many as the slice has room for.
    ///
    /// # Errors
    /// [`RegionError::Outside`] when the place was checked for a larger region.
    pub fn copy_to(&self, place: &Checked, into: &mut [u8]) -> Result<(), RegionError> {
        copy_place(&self.map, place, into)
    }

    /// Copies bytes out of it, from this offset on, as many as the slice has room for. Others may change them meanwhile: what was
    /// copied is what counts.
    ///
    /// # Errors
    /// [`RegionError::Outside`]
    pub fn copy_out(&self, offset: u64, into: &mut [u8]) -> Result<(), RegionError> {
        self.map.copy_out(offset, into)
    }

    /// Copies bytes to this offset.
    ///
    /// # Errors
    /// [`RegionError::Outside`]
    pub fn copy_in(&self, offset: u64, bytes: &[u8]) -> Result<(), RegionError> {
        self.map.copy_in(offset, bytes)
    }

    /// Returns where it begins, for as long as it lives. Other processes may read and write it at any time: who uses the pointer
    /// knows when they do not.
    pub fn start(&self) -> NonNull<u8> {
        self.map.start
    }

    /// Its words from number `first` on, for a ring. None: it has not as many.
    pub fn window(self: &Arc<Self>, first: usize, count: usize) -> Option<Window> {
        let end = first.checked_add(count)?;
        (end <= self.map.words().len()).then(|| Window { region: self.clone(), words: first..end })
    }
}

impl AsFd for SharedRegion {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Some words of a region, which keeps it mapped.
#[derive(Debug, Clone)]
pub struct Window {
    region: Arc<SharedRegion>,
    words: Range<usize>,
}

impl AsRef<[AtomicU64]> for Window {
    fn as_ref(&self) -> &[AtomicU64] {
        &self.region.map.words()[self.words.clone()]
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::descriptor::{Descriptor, Limits};
    use proptest::prelude::*;
    use rustix::fs::{Mode, OFlags, open};

    fn place(offset: u64, length: u32) -> Checked {
        let limits = Limits { kinds: 1, regions: vec![u64::MAX], longest: u32::MAX };
        Descriptor { offset, length, ..Descriptor::default() }.check(&limits).unwrap()
    }

    fn again(file: &impl AsFd) -> OwnedFd {
        rustix::io::dup(file).unwrap()
    }

    #[test]
    fn others_read_what_the_owner_writes_and_cannot_write() {
        let region = Region::create(2 * GRANULE).unwrap();
        let file = region.seal().unwrap();
        let reader = ReadRegion::adopt(again(&file), 1 << 20).unwrap();
        assert_eq!((region.bytes(), reader.bytes()), (8192, 8192));
        region.copy_in(4160, b"after sealing").unwrap();
        let mut into = [0; 13];
        reader.copy_to(&place(4160, 13), &mut into).unwrap();
        assert_eq!(&into, b"after sealing");
        assert_eq!(reader.slice(&place(4160, 5)).unwrap(), b"after");

        let refused = |result: rustix::io::Result<()>| assert_eq!(result, Err(rustix::io::Errno::PERM));
        // By the descriptor that was passed, and by one that was opened by its help.
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        for file in [again(&file), open(path, OFlags::RDWR, Mode::empty()).unwrap()] {
            assert!(Map::new(&file, GRANULE, ProtFlags::READ | ProtFlags::WRITE).is_err());
            assert!(SharedRegion::adopt(again(&file), 1 << 20).is_err());
            refused(rustix::io::pwrite(&file, b"x", 0).map(drop));
            refused(ftruncate(&file, GRANULE));
            refused(ftruncate(&file, 4 * GRANULE));
            refused(fcntl_add_seals(&file, SealFlags::WRITE));
        }
        // A mapping to read does not become one to write.
        let write = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE;
        // SAFETY: the range is that of a mapping; more rights make no access unsound.
        let result = unsafe { rustix::mm::mprotect(reader.0.start.as_ptr().cast(), 8192, write) };
        assert_eq!(result, Err(rustix::io::Errno::ACCESS));
        assert!(region.seal().is_ok(), "again, for one more reader");
    }

    #[test]
    fn only_regions_are_mapped() {
        let file = |seals: SealFlags, size: u64| {
            let file = memfd_create("peer", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
            ftruncate(&file, size).unwrap();
            fcntl_add_seals(&file, seals).unwrap();
            file
        };
        let read = |file| ReadRegion::adopt(file, 1 << 20).map(drop);
        let shared = |file| SharedRegion::adopt(file, 1 << 20).map(drop);
        assert!(read(file(READ_ONLY, 4096)).is_ok());
        assert!(shared(file(FIXED, 4096)).is_ok());
        for missing in FIXED.iter() {
            assert!(
                matches!(read(file(READ_ONLY - missing, 4096)), Err(RegionError::NotSealed)),
                "{missing:?}"
            );
            assert!(
                matches!(shared(file(FIXED - missing, 4096)), Err(RegionError::NotSealed)),
                "{missing:?}"
            );
        }
        assert!(matches!(read(file(FIXED, 4096)), Err(RegionError::NotSealed)), "others could write");
        for size in [0, 1, 4095, 4097, (1 << 20) + 4096, 1 << 50] {
            assert!(matches!(read(file(READ_ONLY, size)), Err(RegionError::Size(..))), "{size}");
            assert!(matches!(shared(file(FIXED, size)), Err(RegionError::Size(..))), "{size}");
        }
        for path in ["/proc/self/exe", "/dev/null", "/dev/zero", "/proc/self"] {
            let other = || open(path, OFlags::RDONLY, Mode::empty()).unwrap();
            assert!(matches!(read(other()), Err(RegionError::NotSealed)), "{path}");
            assert!(matches!(shared(other()), Err(RegionError::NotSealed)), "{path}");
        }
        // Its pages may be missing when they are read, which kills the reader.
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        if let Ok(huge) = memfd_create("huge", flags) {
            fcntl_add_seals(&huge, READ_ONLY).unwrap();
            assert!(matches!(read(huge), Err(RegionError::NotSealed)));
        }
        for size in [0, 1, 5000] {
            assert!(Region::create(size).is_err() && SharedRegion::create(size).is_err());
        }
    }

    #[test]
    fn nothing_outside_is_reached() {
        let region = Arc::new(SharedRegion::create(GRANULE).unwrap());
        let mut into = [0; 64];
        region.copy_to(&place(4032, 64), &mut into).unwrap();
        for (offset, length) in [(4096, 1), (4032, 65), (1 << 40, 0), (u64::MAX - 127, 64)] {
            assert!(region.copy_to(&place(offset, length), &mut into).is_err());
            assert!(region.copy_to(&place(offset, length), &mut []).is_err(), "a short slice hides nothing");
            assert!(region.copy_in(offset, &[0; 65][..length as usize]).is_err());
            assert!(region.copy_out(offset, &mut [0; 65][..length as usize]).is_err());
        }
        assert!(region.window(0, 512).is_some() && region.window(512, 0).is_some());
        for (first, count) in [(0, 513), (512, 1), (usize::MAX, 2), (1, usize::MAX)] {
            assert!(region.window(first, count).is_none());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn copies_are_whole_at_each_alignment(offset in 0u64..200, bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let (region, mut whole) = (SharedRegion::create(GRANULE).unwrap(), [7; 512]);
            region.copy_in(0, &whole).unwrap();
            region.copy_in(offset, &bytes).unwrap();
            whole[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
            let mut into = [0; 512];
            region.copy_to(&place(0, 512), &mut into).unwrap();
            prop_assert_eq!(into, whole);
            let mut part = vec![0; bytes.len()];
            region.copy_out(offset, &mut part).unwrap();
            prop_assert_eq!(part, bytes);
        }
    }
}
