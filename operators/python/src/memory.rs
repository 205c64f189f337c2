//! Memory that engine and step share: one file in memory for requests, which the engine writes, one for results, which the
//! step writes. The engine reads and writes with system calls: what a step does to its files cannot disturb it, and a
//! result is checked after it was copied.
use crate::protocol::{ALIGNMENT, FIRST, Place};
use arrow_buffer::{Buffer, MutableBuffer};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::{Errno, pread, pwrite};
use std::os::fd::OwnedFd;

/// Parts of requests begin at multiples of it: a step maps each by itself. Pages of all systems divide it.
const PAGE: u64 = 64 << 10;
/// Bytes of the blocks in which the system counts what a file takes.
const BLOCK: u64 = 512;
/// Bytes of memory for which the engine does not ask whether there are so many.
const SMALL: usize = 64 << 20;

/// The file of requests, with the parts that are in use.
pub(crate) struct Requests {
    pub(crate) file: OwnedFd,
    size: u64,
    /// Parts by offset, each with its call.
    used: Vec<(u64, Place)>,
}

impl Requests {
    pub(crate) fn new() -> Result<Self, Errno> {
        let file = memfd_create("tidemill-step-requests", MemfdFlags::CLOEXEC)?;
        Self::of(file)
    }

    /// Uses a file of another program.
    pub(crate) fn of(file: OwnedFd) -> Result<Self, Errno> {
        let size = u64::try_from(fstat(&file)?.st_size).unwrap_or(0);
        Ok(Self { file, size, used: Vec::new() })
    }

    /// Writes buffers for a call; returns the part that they are in, which begins at a page, and their places. The part stays
    /// in use until [`Requests::release`].
    pub(crate) fn write(&mut self, call: u64, buffers: &[Buffer]) -> Result<(Place, Vec<Place>), Errno> {
        let sizes = buffers.iter().map(|buffer| aligned(buffer.len() as u64));
        let whole: u64 = sizes.sum::<u64>().max(1).next_multiple_of(PAGE);
        let start = self.first_gap(whole);
        let mut places = Vec::with_capacity(buffers.len());
        let mut offset = start;
        for buffer in buffers {
            write_all(&self.file, buffer.as_slice(), offset)?;
            places.push(Place { offset, length: buffer.len() as u64 });
            offset += aligned(buffer.len() as u64);
        }
        if start + whole > self.size {
            self.size = (start + whole).max(self.size * 2);
            ftruncate(&self.file, self.size)?;
        }
        let part = Place { offset: start, length: whole };
        self.used.push((call, part));
        self.used.sort_unstable_by_key(|(_, place)| place.offset);
        Ok((part, places))
    }

    fn first_gap(&self, length: u64) -> u64 {
        let mut start = 0;
        for (_, place) in &self.used {
            if start + length <= place.offset {
                break;
            }
            start = place.offset + place.length;
        }
        start
    }

    /// Frees the part of a call.
    pub(crate) fn release(&mut self, call: u64) {
        self.used.retain(|(of, _)| *of != call);
    }
}

/// The file of results.
pub(crate) struct Results {
    pub(crate) file: OwnedFd,
}

impl Results {
    /// Creates the file; it can only grow.
    pub(crate) fn new() -> Result<Self, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("tidemill-step-results", flags)?;
        ftruncate(&file, FIRST)?;
        write_all(&file, &u64::MAX.to_le_bytes(), 0)?;
        fcntl_add_seals(&file, SealFlags::SHRINK)?;
        Ok(Self { file })
    }

    /// Returns the row at work, if the step says it.
    pub(crate) fn row(&self) -> Option<u64> {
        let mut bytes = [0; 8];
        let read = pread(&self.file, &mut bytes, 0).ok()?;
        let row = u64::from_le_bytes(bytes);
        (read == bytes.len() && row != u64::MAX).then_some(row)
    }

    /// Copies a buffer; `None` if the file has no such place, or fewer bytes were written than it names.
    pub(crate) fn read(&self, place: Place) -> Option<Buffer> {
        if place.length == 0 {
            return Some(Buffer::from(MutableBuffer::new(0)));
        }
        let status = fstat(&self.file).ok()?;
        let size = u64::try_from(status.st_size).ok()?;
        let end = place.offset.checked_add(place.length)?;
        // A file may be larger than the memory of the machine, where nothing was written to most of it.
        let written = u64::try_from(status.st_blocks).ok()?.saturating_mul(BLOCK);
        if place.offset < FIRST || end > size || place.length > written {
            return None;
        }
        let length = usize::try_from(place.length).ok()?;
        let mut buffer = zeroed(length)?;
        let mut read = 0;
        while read < length {
            match pread(&self.file, &mut buffer.as_slice_mut()[read..], place.offset + read as u64) {
                Ok(0) => return None,
                Ok(more) => read += more,
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
        Some(buffer.into())
    }
}

/// Returns memory; `None` if there is not so much.
fn zeroed(length: usize) -> Option<MutableBuffer> {
    if length <= SMALL {
        return Some(MutableBuffer::from_len_zeroed(length));
    }
    let count = length.div_ceil(size_of::<i128>());
    let mut words: Vec<i128> = Vec::new();
    words.try_reserve_exact(count).ok()?;
    words.resize(count, 0);
    let mut buffer = MutableBuffer::from(words);
    buffer.truncate(length);
    Some(buffer)
}

fn aligned(length: u64) -> u64 {
    length.next_multiple_of(ALIGNMENT)
}

fn write_all(file: &OwnedFd, mut bytes: &[u8], mut offset: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match pwrite(file, bytes, offset) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_in_use_is_never_written_again() {
        let mut requests = Requests::new().unwrap();
        let buffer = |length: usize| [Buffer::from(vec![1u8; length])];
        let write = |requests: &mut Requests, call, length| {
            let (part, places) = requests.write(call, &buffer(length)).unwrap();
            assert_eq!(places[0], Place { offset: part.offset, length: length as u64 });
            part.offset / PAGE
        };
        assert_eq!([write(&mut requests, 1, 100), write(&mut requests, 2, 100)], [0, 1]);
        requests.release(1);
        assert_eq!(write(&mut requests, 3, PAGE as usize + 1), 2, "the gap is too small");
        assert_eq!(write(&mut requests, 4, PAGE as usize), 0);
        requests.release(2);
        let (part, places) = requests.write(5, &[]).unwrap();
        assert_eq!((part.offset / PAGE, part.length, places.len()), (1, PAGE, 0));
        assert!(requests.size >= 4 * PAGE);
    }

    #[test]
    fn places_outside_of_the_file_are_refused() {
        let results = Results::new().unwrap();
        assert_eq!(results.row(), None);
        write_all(&results.file, &[7; 10], FIRST).unwrap();
        let place = |offset, length| Place { offset, length };
        assert_eq!(results.read(place(FIRST, 10)).unwrap().as_slice(), [7; 10]);
        assert_eq!(results.read(place(9, 0)).unwrap().len(), 0);
        for wrong in [place(0, 8), place(FIRST, 11), place(u64::MAX, 2), place(FIRST, u64::MAX)] {
            assert!(results.read(wrong).is_none(), "{wrong:?}");
        }
        assert!(ftruncate(&results.file, 0).is_err(), "a step cannot shrink it");
        // 32 TiB of which almost nothing was written.
        ftruncate(&results.file, 32 << 40).unwrap();
        for length in [16 << 40, 1 << 30, 1 << 20] {
            assert!(results.read(place(FIRST, length)).is_none(), "{length}");
        }
        assert_eq!(results.read(place(FIRST, 10)).unwrap().as_slice(), [7; 10]);
    }

    #[test]
    fn a_large_buffer_comes_back() {
        let results = Results::new().unwrap();
        let bytes: Vec<u8> = (0..SMALL + 5).map(|at| (at % 251) as u8).collect();
        write_all(&results.file, &bytes, FIRST).unwrap();
        let read = results.read(Place { offset: FIRST, length: bytes.len() as u64 }).unwrap();
        assert!(read.as_slice() == bytes);
    }
}
