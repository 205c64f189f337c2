//! Frames with checksums for files that only the engine reads: a change is noticed before the content is used.
//!
//! | bytes of a frame, little endian | |
//! |---|---|
//! | 4 | `TMFR` |
//! | 4 | number of rows |
//! | 8 | bytes of the content |
//! | 4, 4 | crc32c of the content, and of these 20 bytes |
//! | | the content |
use std::io::{self, ErrorKind, Read};

const MARK: &[u8; 4] = b"TMFR";
/// Bytes before the content.
const HEAD: usize = 24;

/// Appends a frame with this content and number of rows to `into`; empties the content.
pub(super) fn append(into: &mut Vec<u8>, content: &mut Vec<u8>, rows: u32) {
    let mut head = [0; HEAD];
    head[..4].copy_from_slice(MARK);
    head[4..8].copy_from_slice(&rows.to_le_bytes());
    head[8..16].copy_from_slice(&(content.len() as u64).to_le_bytes());
    head[16..20].copy_from_slice(&crc32c::crc32c(content).to_le_bytes());
    let checksum = crc32c::crc32c(&head[..20]);
    head[20..].copy_from_slice(&checksum.to_le_bytes());
    into.extend_from_slice(&head);
    into.append(content);
}

/// The next item of a file.
pub(super) enum Next {
    /// A whole frame with this number of rows.
    Frame { rows: u64 },
    /// The file ends, possibly within a frame, as if its writer was killed.
    End,
    /// Not a valid frame.
    Damaged,
}

/// Reads frame by frame; as a [`Read`] it returns their contents, each after its checksum matched.
pub(super) struct Frames<R> {
    from: R,
    content: io::Cursor<Vec<u8>>,
    /// Bytes of whole frames before the next one.
    at: u64,
}

impl<R: Read> Frames<R> {
    /// Reads a file from its start.
    pub(super) fn new(from: R) -> Self {
        Self { from, content: io::Cursor::default(), at: 0 }
    }

    /// Returns the bytes of the whole frames read.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Describes the damage after [`Next::Damaged`], for people.
    pub(super) fn damage(&self) -> String {
        format!("the bytes after byte {} are not those that were written", self.at)
    }

    /// Reads the next frame.
    pub(super) fn next(&mut self) -> io::Result<Next> {
        let mut head = Vec::with_capacity(HEAD);
        self.from.by_ref().take(HEAD as u64).read_to_end(&mut head)?;
        let Ok(head) = <[u8; HEAD]>::try_from(head) else { return Ok(Next::End) };
        let [m0, m1, m2, m3, r0, r1, r2, r3, length @ .., c0, c1, c2, c3, h0, h1, h2, h3] = head;
        let is_head =
            [m0, m1, m2, m3] == *MARK && u32::from_le_bytes([h0, h1, h2, h3]) == crc32c::crc32c(&head[..20]);
        if !is_head {
            return Ok(Next::Damaged);
        }
        let length = u64::from_le_bytes(length);
        let content = self.content.get_mut();
        content.clear();
        self.from.by_ref().take(length).read_to_end(content)?;
        let (found, checksum) = (content.len() as u64, crc32c::crc32c(content));
        self.content.set_position(0);
        if found < length || checksum != u32::from_le_bytes([c0, c1, c2, c3]) {
            self.content.get_mut().clear();
            return Ok(if found < length { Next::End } else { Next::Damaged });
        }
        self.at += HEAD as u64 + length;
        Ok(Next::Frame { rows: u32::from_le_bytes([r0, r1, r2, r3]).into() })
    }
}

impl<R: Read> Read for Frames<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.content.position() == self.content.get_ref().len() as u64 {
            match self.next()? {
                Next::Frame { .. } => {}
                Next::End => return Ok(0),
                Next::Damaged => return Err(io::Error::new(ErrorKind::InvalidData, self.damage())),
            }
        }
        self.content.read(into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn framed(parts: &[Vec<u8>]) -> Vec<u8> {
        let mut all = Vec::new();
        for part in parts {
            append(&mut all, &mut part.clone(), part.len() as u32);
        }
        all
    }

    fn contents() -> impl Strategy<Value = Vec<Vec<u8>>> {
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..6)
    }

    proptest! {
        #[test]
        fn what_was_framed_comes_back_and_nothing_of_what_was_changed(
            parts in contents(),
            at: prop::sample::Index,
            bit in 0u8..8,
        ) {
            let (mut bytes, mut found) = (framed(&parts), Vec::new());
            Frames::new(&bytes[..]).read_to_end(&mut found).unwrap();
            let all = parts.concat();
            prop_assert_eq!(&found, &all);
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << bit;
                let mut found = Vec::new();
                prop_assert!(Frames::new(&bytes[..]).read_to_end(&mut found).is_err());
                prop_assert!(all.starts_with(&found));
            }
        }

        #[test]
        fn a_cut_gives_whole_frames(parts in contents(), at: prop::sample::Index) {
            let bytes = framed(&parts);
            let cut = &bytes[..at.index(bytes.len() + 1)];
            let mut frames = Frames::new(cut);
            let mut rows = Vec::new();
            while let Next::Frame { rows: of_it } = frames.next().unwrap() {
                rows.push(of_it as usize);
            }
            let expected: Vec<_> = parts.iter().map(Vec::len).take(rows.len()).collect();
            prop_assert_eq!(rows, expected);
            prop_assert!(frames.at() <= cut.len() as u64);
        }
    }
}
