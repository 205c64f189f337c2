//! A queue between two threads that wakes its reader and tells when the writer is gone.
use super::LinkError;
use crate::wake::Waker;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

struct State<T> {
    queue: VecDeque<T>,
    writer_gone: bool,
    reader_gone: bool,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    waker: Waker,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Writer<T>(Arc<Shared<T>>);
pub(super) struct Reader<T>(Arc<Shared<T>>);

pub(super) fn pipe<T>() -> std::io::Result<(Writer<T>, Reader<T>)> {
    let state = State { queue: VecDeque::new(), writer_gone: false, reader_gone: false };
    let shared = Arc::new(Shared { state: Mutex::new(state), waker: Waker::new()? });
    Ok((Writer(Arc::clone(&shared)), Reader(shared)))
}

impl<T> Writer<T> {
    pub(super) fn push(&self, item: T) -> Result<(), LinkError> {
        {
            let mut state = self.0.lock();
            if state.reader_gone {
                return Err(LinkError::Lost);
            }
            state.queue.push_back(item);
        }
        self.0.waker.wake();
        Ok(())
    }
}

impl<T> Drop for Writer<T> {
    fn drop(&mut self) {
        self.0.lock().writer_gone = true;
        self.0.waker.wake();
    }
}

impl<T> Reader<T> {
    pub(super) fn pop(&self) -> Result<Option<T>, LinkError> {
        let mut state = self.0.lock();
        match state.queue.pop_front() {
            Some(item) => Ok(Some(item)),
            None if state.writer_gone => Err(LinkError::Lost),
            None => Ok(None),
        }
    }

    pub(super) fn waker(&self) -> &Waker {
        &self.0.waker
    }
}

impl<T> Drop for Reader<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.reader_gone = true;
        state.queue.clear();
    }
}
