//! Rings: descriptors from one producer to one consumer, in memory that both can write.
//!
//! Each side believes only its own position, which it keeps in private memory; the position of the other is checked,
//! and after one wrong position the ring is damaged for good. A call looks at one descriptor at most, so a hostile side
//! can neither lead the other out of bounds nor keep it in a loop.
//!
//! The code is generic over its memory, so that `loom` can check the very same code. It uses:
//!
//! | word | meaning | who writes it |
//! |---|---|---|
//! | 0 | number of descriptors that were written | producer |
//! | 8 | number of descriptors that were read | consumer |
//! | 16 | 1 while the consumer sleeps | consumer; the producer takes it back |
//! | from 24 on | descriptors, 8 words each | producer |
use crate::descriptor::{Descriptor, WORDS};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Positions are on cache lines of their own.
const WRITTEN: usize = 0;
const READ: usize = 8;
pub(crate) const SLEEPS: usize = 16;
pub(crate) const SLOTS: usize = 24;
/// Most descriptors of a ring.
pub const MOST: u32 = 1 << 20;

/// Memory as 64-bit words that two sides share.
pub trait Words {
    /// Number of words.
    fn count(&self) -> usize;
    /// Reads the word at this index, which is below the count.
    fn load(&self, index: usize, order: Ordering) -> u64;
    /// Writes the word at this index, which is below the count.
    fn store(&self, index: usize, value: u64, order: Ordering);
    /// Orders all before it with all after it, across all threads that call it.
    fn fence(&self);
}

impl<T: AsRef<[AtomicU64]>> Words for T {
    fn count(&self) -> usize {
        self.as_ref().len()
    }

    fn load(&self, index: usize, order: Ordering) -> u64 {
        self.as_ref()[index].load(order)
    }

    fn store(&self, index: usize, value: u64, order: Ordering) {
        self.as_ref()[index].store(value, order);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// Why a ring carries nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The other side wrote a position that cannot be. It is never believed again.
    #[error("the other side has damaged the ring")]
    Damaged,
    /// The memory is smaller than [`words`] says, or the capacity is no power of two up to [`MOST`].
    #[error("a ring of {0} descriptors does not fit {1} words")]
    Capacity(u32, usize),
}

/// Returns how many words of memory a ring of this capacity takes.
pub const fn words(capacity: u32) -> usize {
    SLOTS + capacity as usize * WORDS
}

/// The part that both ends have.
#[derive(Debug)]
struct End<W> {
    words: W,
    capacity: u32,
    /// The own position, and the last one of the other side that was believed.
    own: u64,
    other: u64,
    is_damaged: bool,
}

impl<W: Words> End<W> {
    fn new(memory: W, capacity: u32) -> Result<Self, RingError> {
        if !capacity.is_power_of_two() || capacity > MOST || words(capacity) > memory.count() {
            return Err(RingError::Capacity(capacity, memory.count()));
        }
        Ok(Self { words: memory, capacity, own: 0, other: 0, is_damaged: false })
    }

    /// Returns where the descriptor of the own position lies.
    fn slot(&self) -> usize {
        let mask = u64::from(self.capacity) - 1;
        // Below the capacity, which fits.
        SLOTS + (self.own & mask) as usize * WORDS
    }

    /// Reads the position of the other side once and believes it if it is from the last one to `most` after it.
    fn look(&mut self, word: usize, most: u64) -> Result<(), RingError> {
        if self.is_damaged {
            return Err(RingError::Damaged);
        }
        let position = self.words.load(word, Ordering::Acquire);
        if position.wrapping_sub(self.other) > most {
            self.is_damaged = true;
            return Err(RingError::Damaged);
        }
        self.other = position;
        Ok(())
    }
}

/// The end that writes.
#[derive(Debug)]
pub struct Producer<W>(End<W>);

impl<W: Words> Producer<W> {
    /// Uses memory that is all zero, as that of a new region, or that a new consumer has.
    ///
    /// # Errors
    /// [`RingError::Capacity`].
    pub fn new(words: W, capacity: u32) -> Result<Self, RingError> {
        End::new(words, capacity).map(Self)
    }

    /// Writes a descriptor; `false` when there is no place for it now.
    ///
    /// # Errors
    /// [`RingError::Damaged`].
    pub fn push(&mut self, descriptor: &Descriptor) -> Result<bool, RingError> {
        let end = &mut self.0;
        let used = end.own.wrapping_sub(end.other);
        // The consumer can have read the descriptors written since, no more.
        end.look(READ, used)?;
        if end.own.wrapping_sub(end.other) >= u64::from(end.capacity) {
            return Ok(false);
        }
        descriptor.copy_to(&end.words, end.slot());
        end.own = end.own.wrapping_add(1);
        end.words.store(WRITTEN, end.own, Ordering::Release);
        Ok(true)
    }

    /// Returns whether the consumer sleeps and must be woken, after a [`Producer::push`]. It is told once for each sleep.
    pub fn must_wake(&mut self) -> bool {
        let words = &self.0.words;
        // Between the write of the position and this read, as in `Consumer::may_sleep`: one of the two sees the other.
        words.fence();
        let sleeps = words.load(SLEEPS, Ordering::Relaxed) != 0;
        if sleeps {
            words.store(SLEEPS, 0, Ordering::Relaxed);
        }
        sleeps
    }
}

/// The end that reads.
#[derive(Debug)]
pub struct Consumer<W>(End<W>);

impl<W: Words> Consumer<W> {
    /// Uses the memory of a producer that is new, too.
    ///
    /// # Errors
    /// [`RingError::Capacity`].
    pub fn new(words: W, capacity: u32) -> Result<Self, RingError> {
        End::new(words, capacity).map(Self)
    }

    /// Returns whether there is a descriptor to read.
    ///
    /// # Errors
    /// [`RingError::Damaged`].
    pub fn is_ready(&mut self) -> Result<bool, RingError> {
        let end = &mut self.0;
        let unread = end.other.wrapping_sub(end.own);
        // The producer can have written to the places that are free, no more.
        end.look(WRITTEN, u64::from(end.capacity) - unread)?;
        Ok(end.other != end.own)
    }

    /// Takes the next descriptor; none: the ring is empty now.
    ///
    /// # Errors
    /// [`RingError::Damaged`].
    pub fn pop(&mut self) -> Result<Option<Descriptor>, RingError> {
        if !self.is_ready()? {
            return Ok(None);
        }
        let end = &mut self.0;
        let descriptor = Descriptor::copy_from(&end.words, end.slot());
        end.own = end.own.wrapping_add(1);
        end.words.store(READ, end.own, Ordering::Release);
        Ok(Some(descriptor))
    }

    /// Announces that the consumer sleeps from now on and returns whether it may: `false` when something has come.
    /// [`Consumer::woke`] takes it back.
    ///
    /// # Errors
    /// [`RingError::Damaged`].
    pub fn may_sleep(&mut self) -> Result<bool, RingError> {
        self.0.words.store(SLEEPS, 1, Ordering::Relaxed);
        // Between the announcement and the look, as in `Producer::must_wake`.
        self.0.words.fence();
        Ok(!self.is_ready()?)
    }

    /// Takes the announcement back.
    pub fn woke(&mut self) {
        self.0.words.store(SLEEPS, 0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::sync::Arc;

    type Memory = Arc<[AtomicU64]>;

    /// A ring whose positions are as after this number of descriptors.
    fn ring_after(position: u64, capacity: u32) -> (Producer<Memory>, Consumer<Memory>, Memory) {
        let memory: Memory = (0..words(capacity)).map(|_| AtomicU64::new(0)).collect();
        memory[WRITTEN].store(position, Ordering::Relaxed);
        memory[READ].store(position, Ordering::Relaxed);
        let mut producer = Producer::new(memory.clone(), capacity).unwrap();
        let mut consumer = Consumer::new(memory.clone(), capacity).unwrap();
        for end in [&mut producer.0, &mut consumer.0] {
            (end.own, end.other) = (position, position);
        }
        (producer, consumer, memory)
    }

    fn numbered(sequence: u64) -> Descriptor {
        Descriptor { sequence, ..Descriptor::default() }
    }

    #[test]
    fn memory_that_is_too_small_and_odd_capacities_are_refused() {
        let memory: Memory = (0..words(4)).map(|_| AtomicU64::new(0)).collect();
        for capacity in [0, 3, 8, MOST * 2, u32::MAX] {
            let error = RingError::Capacity(capacity, memory.len());
            assert_eq!(Producer::new(memory.clone(), capacity).err(), Some(error));
            assert_eq!(Consumer::new(memory.clone(), capacity).err(), Some(error));
        }
        assert!(Producer::new(memory, 4).is_ok());
    }

    #[test]
    fn positions_that_cannot_be_damage_the_ring_for_good() {
        for (read, is_right) in
            [(0, true), (1, true), (2, true), (3, false), (u64::MAX, false), (1 << 32, false)]
        {
            let (mut producer, _, memory) = ring_after(0, 4);
            assert_eq!((producer.push(&numbered(0)), producer.push(&numbered(1))), (Ok(true), Ok(true)));
            memory[READ].store(read, Ordering::Relaxed);
            assert_eq!(producer.push(&numbered(2)).is_ok(), is_right, "{read}");
            memory[READ].store(if is_right { read.wrapping_sub(1) } else { 1 }, Ordering::Relaxed);
            assert_eq!(
                producer.push(&numbered(3)),
                Err(RingError::Damaged),
                "{read}: never again, never back"
            );
        }
        for (written, is_right) in [(0, true), (4, true), (5, false), (u64::MAX, false), (1 << 63, false)] {
            let (_, mut consumer, memory) = ring_after(0, 4);
            memory[WRITTEN].store(written, Ordering::Relaxed);
            assert_eq!(consumer.pop().is_ok(), is_right, "{written}");
            memory[WRITTEN].store(if is_right { written.wrapping_sub(1) } else { 1 }, Ordering::Relaxed);
            assert_eq!(consumer.pop(), Err(RingError::Damaged), "{written}: never again, never back");
        }
    }

    /// The consumer has not read all that it believes is there.
    #[test]
    fn a_producer_that_overwrites_unread_descriptors_damages_the_ring() {
        for (written, is_right) in [(4, true), (5, true), (6, false)] {
            let (_, mut consumer, memory) = ring_after(0, 4);
            memory[WRITTEN].store(3, Ordering::Relaxed);
            assert!(consumer.pop().unwrap().is_some());
            memory[WRITTEN].store(written, Ordering::Relaxed);
            assert_eq!(consumer.pop().is_ok(), is_right, "{written}");
        }
    }

    #[test]
    fn a_sleeper_is_woken_once() {
        let (mut producer, mut consumer, _) = ring_after(0, 4);
        assert!(!producer.must_wake());
        assert_eq!(consumer.may_sleep(), Ok(true));
        producer.push(&numbered(0)).unwrap();
        assert!(producer.must_wake());
        assert!(!producer.must_wake());
        assert_eq!(consumer.may_sleep(), Ok(false), "something came");
        consumer.woke();
        assert!(!producer.must_wake());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Also where positions begin again at 0.
        #[test]
        fn descriptors_come_in_order(
            before in prop_oneof![Just(0u64), u64::MAX - 20..=u64::MAX, (1u64 << 32) - 20..1 << 32],
            bits in 0u32..4,
            pushes in proptest::collection::vec(any::<bool>(), 0..100),
        ) {
            let (mut producer, mut consumer, _) = ring_after(before, 1 << bits);
            let mut expected = VecDeque::new();
            for (number, is_push) in (0..).zip(pushes) {
                if is_push {
                    let is_pushed = producer.push(&numbered(number)).unwrap();
                    prop_assert_eq!(is_pushed, expected.len() < 1 << bits);
                    expected.extend(is_pushed.then_some(number));
                } else {
                    prop_assert_eq!(consumer.pop().unwrap(), expected.pop_front().map(numbered));
                }
            }
        }
    }
}
