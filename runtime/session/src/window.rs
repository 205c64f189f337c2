//! Bytes of a lane that the other side has not acknowledged.
use std::collections::VecDeque;

/// Memory that an empty window keeps.
const KEPT: usize = 256 << 10;

/// The sent bytes of a lane from the first that is not acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Window {
    bytes: VecDeque<u8>,
    /// Number of the first one.
    begin: u64,
}

impl Window {
    /// Number of the first byte that is not acknowledged.
    pub(crate) fn begin(&self) -> u64 {
        self.begin
    }

    /// Number of the byte that comes next.
    pub(crate) fn end(&self) -> u64 {
        self.begin + self.bytes.len() as u64
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Forgets everything before this number; `false`: it was never sent.
    pub(crate) fn acknowledged(&mut self, until: u64) -> bool {
        if until > self.end() {
            return false;
        }
        // An acknowledgement of a carrier before may be older than what is known.
        let count = until.saturating_sub(self.begin);
        self.bytes.drain(..count as usize);
        self.begin += count;
        if self.bytes.is_empty() && self.bytes.capacity() > 4 * KEPT {
            self.bytes.shrink_to(KEPT);
        }
        true
    }

    /// Bytes from this number on, in one piece as far as they lie together; at most `count` of them.
    pub(crate) fn from(&self, number: u64, count: usize) -> &[u8] {
        let Some(at) = number.checked_sub(self.begin).and_then(|at| usize::try_from(at).ok()) else {
            return &[];
        };
        let (first, second) = self.bytes.as_slices();
        let piece =
            if at < first.len() { &first[at..] } else { second.get(at - first.len()..).unwrap_or(&[]) };
        &piece[..piece.len().min(count)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The model is a vector of all bytes that were sent.
        #[test]
        fn a_window_has_what_is_not_acknowledged(steps in proptest::collection::vec((0usize..500, 0u64..500), 1..60)) {
            let (mut window, mut all, mut acknowledged) = (Window::default(), Vec::new(), 0u64);
            for (push, ack) in steps {
                let new: Vec<u8> = (0..push).map(|n| (all.len() + n) as u8).collect();
                all.extend_from_slice(&new);
                window.push(&new);
                prop_assert!(!window.acknowledged(all.len() as u64 + 1));
                acknowledged = (acknowledged + ack).min(all.len() as u64);
                prop_assert!(window.acknowledged(acknowledged));
                prop_assert!(window.acknowledged(acknowledged / 2), "an old one changes nothing");
                prop_assert_eq!((window.begin(), window.end()), (acknowledged, all.len() as u64));
                let (mut at, mut read) = (acknowledged, Vec::new());
                while at < window.end() {
                    let piece = window.from(at, 100);
                    prop_assert!(!piece.is_empty() && piece.len() <= 100);
                    read.extend_from_slice(piece);
                    at += piece.len() as u64;
                }
                prop_assert_eq!(&read, &all[acknowledged as usize..]);
            }
        }
    }

    #[test]
    fn an_empty_window_gives_memory_back() {
        let mut window = Window::default();
        window.push(&vec![0; 16 * KEPT]);
        assert!(window.acknowledged(16 * KEPT as u64));
        assert!(window.is_empty() && window.bytes.capacity() <= 2 * KEPT);
    }
}
