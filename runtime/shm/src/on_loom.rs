//! Rings and their wake-ups in every interleaving of two threads.
use crate::descriptor::{Descriptor, WORDS};
use crate::ring::{Consumer, Producer, SLOTS, Words, words};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Arc, Condvar, Mutex};
use std::sync::atomic::Ordering;

/// Memory that loom understands. Descriptors are plain cells: loom reports it when both sides use one at the same time.
struct Memory {
    positions: Vec<AtomicU64>,
    slots: Vec<UnsafeCell<u64>>,
    is_fenced: bool,
}

#[derive(Clone)]
struct Shared(Arc<Memory>);

impl Shared {
    fn new(capacity: u32, is_fenced: bool) -> Self {
        let positions = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        let slots = (0..capacity as usize * WORDS).map(|_| UnsafeCell::new(0)).collect();
        Self(Arc::new(Memory { positions, slots, is_fenced }))
    }
}

// SAFETY: loom itself checks all access to the cells.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Words for Shared {
    fn count(&self) -> usize {
        SLOTS + self.0.slots.len()
    }

    fn load(&self, index: usize, order: Ordering) -> u64 {
        match index.checked_sub(SLOTS) {
            None => self.0.positions[index].load(order),
            // SAFETY: loom stops the test when another thread may write the cell now.
            Some(slot) => self.0.slots[slot].with(|value| unsafe { *value }),
        }
    }

    fn store(&self, index: usize, value: u64, order: Ordering) {
        match index.checked_sub(SLOTS) {
            None => self.0.positions[index].store(value, order),
            // SAFETY: loom stops the test when another thread may use the cell now.
            Some(slot) => self.0.slots[slot].with_mut(|place| unsafe { *place = value }),
        }
    }

    fn fence(&self) {
        if self.0.is_fenced {
            fence(Ordering::SeqCst);
        }
    }
}

fn ring(capacity: u32, is_fenced: bool) -> (Producer<Shared>, Consumer<Shared>) {
    let memory = Shared::new(capacity, is_fenced);
    assert_eq!(memory.count(), words(capacity));
    (Producer::new(memory.clone(), capacity).unwrap(), Consumer::new(memory, capacity).unwrap())
}

/// A descriptor whose words all say which it is.
fn numbered(number: u64) -> Descriptor {
    Descriptor { offset: number, sequence: number, tag: number, lease: number, ..Descriptor::default() }
}

/// More descriptors than places, so that each place is used again.
#[test]
fn loom_finds_no_interleaving_that_tears_or_reorders_descriptors() {
    const ITEMS: u64 = 3;
    loom::model(|| {
        let (mut producer, mut consumer) = ring(2, true);
        let writer = loom::thread::spawn(move || {
            let mut number = 0;
            while number < ITEMS {
                if producer.push(&numbered(number)).unwrap() {
                    number += 1;
                } else {
                    loom::thread::yield_now();
                }
            }
        });
        let mut number = 0;
        while number < ITEMS {
            match consumer.pop().unwrap() {
                Some(descriptor) => {
                    assert_eq!(descriptor, numbered(number));
                    number += 1;
                }
                None => loom::thread::yield_now(),
            }
        }
        assert_eq!(consumer.pop(), Ok(None));
        writer.join().unwrap();
    });
}

/// A bell that loom understands: a thread that waits for ever is a dead-lock it reports.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }

    /// Sleeps until it rings, and takes that.
    fn sleep(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// Sends and receives as [`crate::wake::Sender`] and [`crate::wake::Receiver`] do it.
fn wake(items: u64, is_fenced: bool) {
    let (mut producer, mut consumer) = ring(4, is_fenced);
    let bell = Arc::new(Bell::default());
    let ringer = bell.clone();
    let writer = loom::thread::spawn(move || {
        for number in 0..items {
            assert!(producer.push(&numbered(number)).unwrap());
            if producer.must_wake() {
                ringer.ring();
            }
        }
    });
    let mut number = 0;
    while number < items {
        match consumer.pop().unwrap() {
            Some(descriptor) => {
                assert_eq!(descriptor, numbered(number));
                number += 1;
            }
            None => {
                if consumer.may_sleep().unwrap() {
                    bell.sleep();
                }
                consumer.woke();
            }
        }
    }
    writer.join().unwrap();
}

/// All interleavings of one item; for more items, the ones with few preemptions: all of them take hours.
#[test]
fn loom_finds_no_interleaving_that_loses_a_wake_up() {
    for (items, preemptions) in [(1, None), (2, Some(5)), (3, Some(3))] {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = preemptions;
        model.check(move || wake(items, true));
    }
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_finds_the_wake_up_that_is_lost_without_fences() {
    loom::model(|| wake(1, false));
}
