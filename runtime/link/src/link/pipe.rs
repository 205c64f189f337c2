//! A queue between two threads that wakes its reader and reports when the writer is gone.
//!
//! Generic over its lock and its waker, so that `loom` can check the very same code.
use super::LinkError;
use crate::wake::Waker;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// A lock.
trait Lock<S> {
    fn new(state: S) -> Self;
    fn with<R>(&self, act: impl FnOnce(&mut S) -> R) -> R;
}

/// The parts of a pipe.
pub(super) trait Parts {
    #[expect(private_bounds, reason = "nobody else makes pipes of other parts")]
    type Lock<S>: Lock<S>;
    type Waker;
    fn wake(waker: &Self::Waker);
}

/// The parts of the system.
pub(super) struct System;

impl Parts for System {
    type Lock<S> = Mutex<S>;
    type Waker = Waker;
    fn wake(waker: &Waker) {
        waker.wake();
    }
}

impl<S> Lock<S> for Mutex<S> {
    fn new(state: S) -> Self {
        Self::new(state)
    }

    fn with<R>(&self, act: impl FnOnce(&mut S) -> R) -> R {
        act(&mut self.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct State<T> {
    queue: VecDeque<T>,
    writer_gone: bool,
    reader_gone: bool,
}

struct Shared<T, P: Parts> {
    state: P::Lock<State<T>>,
    waker: P::Waker,
}

pub(super) struct Writer<T, P: Parts = System>(Arc<Shared<T, P>>);
pub(super) struct Reader<T, P: Parts = System>(Arc<Shared<T, P>>);

pub(super) fn pipe<T>() -> std::io::Result<(Writer<T>, Reader<T>)> {
    Ok(pipe_of(Waker::new()?))
}

fn pipe_of<T, P: Parts>(waker: P::Waker) -> (Writer<T, P>, Reader<T, P>) {
    let state = State { queue: VecDeque::new(), writer_gone: false, reader_gone: false };
    let shared = Arc::new(Shared { state: P::Lock::new(state), waker });
    (Writer(Arc::clone(&shared)), Reader(shared))
}

impl<T, P: Parts> Writer<T, P> {
    pub(super) fn push(&self, item: T) -> Result<(), LinkError> {
        self.0.state.with(|state| {
            if state.reader_gone {
                return Err(LinkError::Lost);
            }
            state.queue.push_back(item);
            Ok(())
        })?;
        P::wake(&self.0.waker);
        Ok(())
    }
}

impl<T, P: Parts> Drop for Writer<T, P> {
    fn drop(&mut self) {
        self.0.state.with(|state| state.writer_gone = true);
        P::wake(&self.0.waker);
    }
}

impl<T, P: Parts> Reader<T, P> {
    pub(super) fn pop(&self) -> Result<Option<T>, LinkError> {
        self.0.state.with(|state| match state.queue.pop_front() {
            Some(item) => Ok(Some(item)),
            None if state.writer_gone => Err(LinkError::Lost),
            None => Ok(None),
        })
    }

    pub(super) fn waker(&self) -> &P::Waker {
        &self.0.waker
    }
}

impl<T, P: Parts> Drop for Reader<T, P> {
    fn drop(&mut self) {
        self.0.state.with(|state| {
            state.reader_gone = true;
            state.queue.clear();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wake::on_loom::LoomWaker;

    struct Loom;

    impl Parts for Loom {
        type Lock<S> = loom::sync::Mutex<S>;
        type Waker = LoomWaker;
        fn wake(waker: &LoomWaker) {
            waker.wake();
        }
    }

    impl<S> Lock<S> for loom::sync::Mutex<S> {
        fn new(state: S) -> Self {
            Self::new(state)
        }

        fn with<R>(&self, act: impl FnOnce(&mut S) -> R) -> R {
            act(&mut self.lock().expect("not poisoned"))
        }
    }

    /// Every interleaving of a writer that goes away and a reader that sleeps between: all items arrive in order,
    /// then the loss is reported; none sleeps for ever.
    #[test]
    fn loom_finds_no_interleaving_that_loses_an_item_or_the_end() {
        loom::model(|| {
            let (writer, reader) = pipe_of::<u32, Loom>(LoomWaker::default());
            let writing = loom::thread::spawn(move || {
                for item in 0..2 {
                    writer.push(item).expect("the reader is there");
                }
            });
            let mut seen = Vec::new();
            loop {
                reader.waker().sleep();
                reader.waker().clear();
                let end = loop {
                    match reader.pop() {
                        Ok(Some(item)) => seen.push(item),
                        end => break end,
                    }
                };
                if end.is_err() {
                    break;
                }
            }
            assert_eq!(seen, [0, 1]);
            writing.join().expect("does not panic");
        });
    }

    /// A reader that goes away: pushes of the writer fail from then on, and nothing is kept.
    #[test]
    fn loom_finds_no_interleaving_that_keeps_items_for_a_reader_that_is_gone() {
        loom::model(|| {
            let (writer, reader) = pipe_of::<Arc<()>, Loom>(LoomWaker::default());
            let item = Arc::new(());
            let going = loom::thread::spawn(move || drop(reader));
            let before = writer.push(Arc::clone(&item));
            going.join().expect("does not panic");
            assert!(matches!(writer.push(Arc::clone(&item)), Err(LinkError::Lost)));
            assert!(matches!(before, Ok(()) | Err(LinkError::Lost)));
            assert_eq!(Arc::strong_count(&item), 1);
        });
    }
}
