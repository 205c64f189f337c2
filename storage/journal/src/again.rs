//! Detects a stream that starts like the one before it: a producer that came back and sends everything once more.
//!
//! A journal cannot know the intention of a producer. But one that starts again sends the bytes that the first one
//! started with, and one that continues does not, unless its lines repeat anyway. So the first bytes that arrive at a
//! journal with content are compared with its first ones. Where these are not distinctive, because they are few or
//! contain a line twice, there is no verdict.
use crate::format::{RECORD_END, RECORD_HEAD, RecordHead, SEGMENT_HEAD};
use crate::segments::path_of;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Most initial bytes to compare.
pub(crate) const HEAD: usize = 4096;
/// With fewer bytes a coincidence is possible: it is reported, and nothing is rejected.
const CERTAIN: usize = 256;
/// Bytes of a segment to search for the beginning: records of a single byte have 40 more.
const LOOKED_AT: u64 = 256 << 10;
/// The file with the beginning, after its segment is deleted.
const START: &str = "start";

/// The bytes so far, compared with the first stream's beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// They differ.
    Other,
    /// They agree so far.
    Open,
    /// The whole beginning has come again.
    Same,
}

/// A comparison while bytes arrive.
#[derive(Debug, Clone)]
pub(crate) struct Again {
    head: Vec<u8>,
    matched: usize,
}

impl Again {
    /// Starts a comparison with the beginning of the first stream. None: it is not distinctive.
    pub(crate) fn of(mut head: Vec<u8>) -> Option<Self> {
        head.truncate(HEAD);
        let end = head.iter().rposition(|byte| *byte == b'\n')? + 1;
        head.truncate(end);
        let mut lines: Vec<&[u8]> = head.split_inclusive(|byte| *byte == b'\n').collect();
        let all = lines.len();
        lines.sort_unstable();
        lines.dedup();
        // The last line of a longer stream may be the only one.
        (all >= 2 && lines.len() == all).then_some(Self { head, matched: 0 })
    }

    /// Number of bytes of the beginning.
    pub(crate) fn bytes(&self) -> usize {
        self.head.len()
    }

    /// Whether a repetition of the whole beginning is no coincidence.
    pub(crate) fn is_certain(&self) -> bool {
        self.head.len() >= CERTAIN
    }

    /// Compares the next bytes.
    pub(crate) fn look(&mut self, bytes: &[u8]) -> Verdict {
        let rest = &self.head[self.matched..];
        let compared = rest.len().min(bytes.len());
        if rest[..compared] != bytes[..compared] {
            return Verdict::Other;
        }
        self.matched += compared;
        if self.matched == self.head.len() { Verdict::Same } else { Verdict::Open }
    }
}

/// The first bytes of a journal's stream, as far as they are known.
pub(crate) fn beginning(folder: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let segment =
        File::open(path_of(folder, 0)).and_then(|file| file.take(LOOKED_AT).read_to_end(&mut bytes));
    if segment.is_ok() {
        return of_segment(&bytes);
    }
    let kept = std::fs::read(folder.join(START)).unwrap_or_default();
    match kept.split_last_chunk::<4>() {
        Some((head, checksum)) if crc32c::crc32c(head).to_le_bytes() == *checksum => head.to_vec(),
        _ => Vec::new(),
    }
}

/// Keeps the first bytes before their segment is deleted. Without them a repeated stream is not detected, which is no
/// failure of the journal.
pub(crate) fn keep_beginning(folder: &Path) {
    let head = beginning(folder);
    let all = [&head[..], &crc32c::crc32c(&head).to_le_bytes()].concat();
    if let Err(error) = std::fs::write(folder.join(START), all) {
        tracing::debug!("the beginning of the journal `{}` is not kept: {error}", folder.display());
    }
}

/// The first bytes of the stream in the first segment.
fn of_segment(bytes: &[u8]) -> Vec<u8> {
    let (mut head, mut at) = (Vec::new(), SEGMENT_HEAD);
    while head.len() < HEAD
        && let Some(record) = bytes.get(at..).and_then(RecordHead::of)
    {
        let begin = at + RECORD_HEAD;
        let end = begin + record.length as usize;
        let there = bytes.get(begin..end.min(bytes.len())).unwrap_or_default();
        head.extend_from_slice(&there[..there.len().min(HEAD - head.len())]);
        at = end + RECORD_END;
    }
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(from: usize, to: usize) -> Vec<u8> {
        (from..to).flat_map(|n| format!("{{\"n\":{n}}}\n").into_bytes()).collect()
    }

    #[test]
    fn only_the_whole_beginning_is_the_same() {
        let all = lines(0, 2000);
        for step in [1, 7, 4096, 9000] {
            let mut again = Again::of(all.clone()).unwrap();
            assert!(again.is_certain() && again.bytes() <= HEAD);
            let verdict =
                all.chunks(step).map(|part| again.look(part)).find(|verdict| *verdict != Verdict::Open);
            assert_eq!(verdict, Some(Verdict::Same));
            let mut again = Again::of(all.clone()).unwrap();
            let other = lines(2000, 4000);
            let verdict =
                other.chunks(step).map(|part| again.look(part)).find(|verdict| *verdict != Verdict::Open);
            assert_eq!(verdict, Some(Verdict::Other));
        }
        // A few lines are reported, and not rejected.
        let mut few = Again::of(lines(0, 3)).unwrap();
        assert!(!few.is_certain());
        assert_eq!(few.look(&lines(0, 2)), Verdict::Open);
        assert_eq!(few.look(&lines(2, 9)), Verdict::Same);
    }

    #[test]
    fn a_beginning_that_repeats_itself_says_nothing() {
        for head in [&b""[..], b"no line", b"one\n", b"one\ntw", b"a\na\n", b"a\nb\na\nc\n", &[b'\n'; 5000]] {
            assert!(Again::of(head.to_vec()).is_none(), "{:?}", String::from_utf8_lossy(head));
        }
    }
}
