//! A message on its way: bytes that lie in the memory of a program, or in that of the service.
use bytes::Bytes;
use std::io::IoSlice;
use std::sync::Arc;
use tidemill_shm::descriptor::Checked;
use tidemill_shm::region::{ReadRegion, RegionError};

static ZEROS: [u8; 8] = [0; 8];

/// A part of a message.
#[derive(Clone)]
pub(crate) enum Part {
    /// In the memory of a program, which may change it at any time.
    Shared(Arc<ReadRegion>, Checked),
    /// In memory of the service.
    Own(Bytes),
}

impl Part {
    pub(crate) fn length(&self) -> usize {
        match self {
            Self::Shared(_, place) => place.length(),
            Self::Own(bytes) => bytes.len(),
        }
    }

    fn copy_to(&self, into: &mut [u8]) -> Result<(), RegionError> {
        match self {
            Self::Shared(region, place) => region.copy_to(place, into),
            Self::Own(bytes) => {
                into.copy_from_slice(bytes);
                Ok(())
            }
        }
    }
}

/// A message with its metadata. The root is its first part.
#[derive(Clone, Default)]
pub(crate) struct Letter {
    pub(crate) metadata: Vec<u8>,
    pub(crate) parts: Vec<Part>,
}

impl Letter {
    /// Makes one of bytes of the service.
    pub(crate) fn own(bytes: impl Into<Bytes>) -> Self {
        Self { metadata: Vec::new(), parts: vec![Part::Own(bytes.into())] }
    }

    /// Bytes of the message; each part begins at a multiple of 8.
    pub(crate) fn length(&self) -> usize {
        self.parts.iter().fold(0, |at: usize, part| at.next_multiple_of(8) + part.length())
    }

    /// Copies the message to a slice of that length.
    pub(crate) fn copy_to(&self, into: &mut [u8]) -> Result<(), RegionError> {
        let mut at: usize = 0;
        for part in &self.parts {
            let begin = at.next_multiple_of(8);
            into[at..begin].fill(0);
            at = begin + part.length();
            part.copy_to(&mut into[begin..at])?;
        }
        Ok(())
    }

    /// Returns the message in memory that no program can change, and the bytes that were copied for that.
    pub(crate) fn private(&self) -> Result<(Bytes, u64), RegionError> {
        if let [Part::Own(bytes)] = &self.parts[..] {
            return Ok((bytes.clone(), 0));
        }
        let mut bytes = vec![0; self.length()];
        self.copy_to(&mut bytes)?;
        let copied = bytes.len() as u64;
        Ok((bytes.into(), copied))
    }

    /// Copies the root, so that no program can change it any more. Returns the bytes that were copied.
    pub(crate) fn make_root_private(&mut self) -> Result<(&Bytes, u64), RegionError> {
        let mut copied = 0;
        if self.parts.is_empty() {
            self.parts.push(Part::Own(Bytes::new()));
        }
        if let Part::Shared(..) = &self.parts[0] {
            let mut bytes = vec![0; self.parts[0].length()];
            self.parts[0].copy_to(&mut bytes)?;
            copied = bytes.len() as u64;
            self.parts[0] = Part::Own(bytes.into());
        }
        match &self.parts[0] {
            Part::Own(bytes) => Ok((bytes, copied)),
            Part::Shared(..) => Err(RegionError::NotSealed),
        }
    }

    /// Adds what is left after this many bytes, for the system to write.
    pub(crate) fn slices<'a>(
        &'a self,
        mut skip: usize,
        into: &mut Vec<IoSlice<'a>>,
    ) -> Result<(), RegionError> {
        let mut at: usize = 0;
        let mut add = |slice: &'a [u8]| {
            let from = skip.min(slice.len());
            skip -= from;
            if from < slice.len() {
                into.push(IoSlice::new(&slice[from..]));
            }
        };
        for part in &self.parts {
            let begin = at.next_multiple_of(8);
            add(&ZEROS[..begin - at]);
            at = begin + part.length();
            match part {
                Part::Own(bytes) => add(bytes),
                Part::Shared(region, place) => add(region.to_write(place)?),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_aligned_and_written_as_they_are_copied() {
        let parts = [&b"root"[..], b"sixteen bytes...", b"", b"end"];
        let parts = parts.map(|bytes| Part::Own(Bytes::from_static(bytes))).to_vec();
        let letter = Letter { metadata: Vec::new(), parts };
        let mut whole = vec![9; letter.length()];
        letter.copy_to(&mut whole).expect("own memory");
        assert_eq!(whole, b"root\0\0\0\0sixteen bytes...end");
        for skip in 0..whole.len() {
            let mut slices = Vec::new();
            letter.slices(skip, &mut slices).expect("own memory");
            let written: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
            assert_eq!(written, whole[skip..]);
        }
    }
}
