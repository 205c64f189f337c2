//! Gives rows to a sink in Python, and those that it has not stored once more after a fault.
//!
//! | object | guarantee |
//! |---|---|
//! | function, or `write` alone | at least once: after a fault the rows since the last epoch come again, with the same ids |
//! | `commit` and `committed` | exactly once: rows of epochs that it has stored do not come again |
//!
//! The epochs that Python sees begin after the last one that it had stored when the run began, so that a later run does not
//! take those of an earlier one for its own.
use crate::caller::{cannot_start, detail};
use crate::process::{Fault, Process};
use crate::reader::Open;
use arrow_array::RecordBatch;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tidemill_operators::api::{CallOff, OperatorError, Sink};
use tidemill_spec::publication::Publication;

/// A sink whose code is known.
pub(crate) struct Target {
    pub(crate) id: String,
    pub(crate) open: Open,
    /// Faults in a row after which the run stops.
    pub(crate) restart: u32,
    /// Whether the program that started this one takes the rows: it may leave at any time.
    pub(crate) is_caller: bool,
}

/// Ends a call that waits, from another thread.
#[derive(Default)]
struct Line {
    is_off: AtomicBool,
    socket: Mutex<Option<UnixStream>>,
}

/// The sink.
pub(crate) struct Writer {
    target: Arc<Target>,
    process: Option<Process>,
    line: Arc<Line>,
    has_commit: bool,
    exactly_once: bool,
    /// Added to the epochs of the run for Python.
    base: u64,
    /// Epochs of the run before it are stored.
    stored: u64,
    /// The epoch of the rows that come.
    epoch: u64,
    committed: u64,
    /// Rows since the last commit.
    uncommitted: Vec<RecordBatch>,
    /// How many of these batches the process has.
    written: usize,
    faults: u32,
    refused: u64,
    is_closed: bool,
}

impl Writer {
    /// `token`: that of a commit of another process, which is continued.
    ///
    /// # Errors
    /// The process cannot start, or stores no epoch that the token has.
    pub(crate) fn new(target: Arc<Target>, token: Option<&[u8]>) -> Result<Self, OperatorError> {
        let mut writer = Self {
            target,
            process: None,
            line: Arc::default(),
            has_commit: false,
            exactly_once: false,
            base: 0,
            stored: 0,
            epoch: 0,
            committed: 0,
            uncommitted: Vec::new(),
            written: 0,
            faults: 0,
            refused: 0,
            is_closed: false,
        };
        let greeting = writer.process()?.greeting.clone();
        writer.has_commit = greeting.has_commit;
        writer.exactly_once = greeting.has_commit && greeting.committed.is_some();
        let stored = greeting.committed.unwrap_or(0);
        let Some(token) = token.filter(|token| !token.is_empty()) else {
            writer.base = stored;
            return Ok(writer);
        };
        let unreadable = || OperatorError::new("the state of a sink in Python cannot be read");
        let (base, committed) = token.split_at_checked(8).ok_or_else(unreadable)?;
        writer.base = u64::from_le_bytes(base.try_into().map_err(|_| unreadable())?);
        writer.committed = u64::from_le_bytes(committed.try_into().map_err(|_| unreadable())?);
        let least = if writer.committed == 0 { writer.base } else { writer.base + writer.committed };
        if stored < least {
            let text = format!(
                "sink `{}` has stored the epochs before {stored}, and those before {least} of this run are complete: what it \
                 wrote was lost or replaced",
                writer.target.id
            );
            return Err(OperatorError::new(text));
        }
        writer.stored = stored - writer.base;
        Ok(writer)
    }

    fn process(&mut self) -> Result<&mut Process, OperatorError> {
        if self.process.is_none() {
            let start = (self.target.open)();
            let process = start.map_err(|error| OperatorError::new(cannot_start(&self.target.id, &error)))?;
            let socket = process.control().map_err(|error| OperatorError::new(error.to_string()))?;
            *self.line.socket.lock().unwrap_or_else(PoisonError::into_inner) = Some(socket);
            self.process = Some(process);
        }
        let gone = || OperatorError::new("a process that was started is gone");
        self.process.as_mut().ok_or_else(gone)
    }

    /// Gives the process the rows that it does not have.
    fn deliver(&mut self) -> Result<(), OperatorError> {
        while self.written < self.uncommitted.len() && !self.is_closed {
            let batch = self.uncommitted[self.written].clone();
            match self.process()?.write(&batch) {
                Ok(()) => self.written += 1,
                Err(fault) => self.recover(&fault)?,
            }
        }
        Ok(())
    }

    /// Has the rows given again, unless that has failed too often or nobody wants them.
    fn recover(&mut self, fault: &Fault) -> Result<(), OperatorError> {
        self.process = None;
        self.written = 0;
        if self.target.is_caller || self.line.is_off.load(Ordering::Acquire) {
            self.is_closed = true;
            return Ok(());
        }
        let detail = detail(fault);
        self.faults += 1;
        if self.faults > self.target.restart {
            return Err(OperatorError::new(format!(
                "it failed {} times in a row (`restart: {}`); the last time:\n{detail}",
                self.faults, self.target.restart
            )));
        }
        tracing::warn!(sink = self.target.id, "it gets the rows since its last commit again: {detail}");
        Ok(())
    }

    /// Has the process commit, or learns that it has.
    fn commit_rows(&mut self, epoch: u64) -> Result<(), OperatorError> {
        loop {
            self.deliver()?;
            if self.is_closed {
                return Ok(());
            }
            let theirs = self.base + epoch;
            match self.process()?.commit(theirs) {
                Ok(()) => return Ok(()),
                Err(fault) => {
                    self.recover(&fault)?;
                    if !self.is_closed
                        && self.process()?.greeting.committed.is_some_and(|stored| stored >= theirs)
                    {
                        return Ok(());
                    }
                }
            }
        }
    }
}

impl Sink for Writer {
    fn at_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        self.refused = 0;
        // Stored before a fault: they come again from the checkpoint on.
        if self.epoch < self.stored || batch.num_rows() == 0 {
            return Ok(());
        }
        self.uncommitted.push(batch.clone());
        self.deliver()?;
        if self.is_closed {
            self.refused = batch.num_rows() as u64;
        }
        Ok(())
    }

    fn commit(&mut self, epoch: u64) -> Result<(), OperatorError> {
        if !self.uncommitted.is_empty() {
            if self.has_commit {
                // The last epoch of a run has the largest number; it stays below those of the next one.
                self.commit_rows(epoch.min(self.epoch + 1))?;
            }
            self.faults = 0;
            self.committed = epoch.min(self.epoch + 1);
        }
        self.uncommitted.clear();
        self.written = 0;
        Ok(())
    }

    fn rollback(&mut self) -> Result<(), OperatorError> {
        self.uncommitted.clear();
        if self.written > 0 && self.exactly_once {
            // What is not committed ends with the process.
            self.process = None;
        }
        self.written = 0;
        Ok(())
    }

    fn close(&mut self) -> Result<(), OperatorError> {
        self.rollback()?;
        let Some(mut process) = self.process.take() else { return Ok(()) };
        match process.close() {
            Ok(()) => Ok(()),
            Err(_) if self.target.is_caller || self.line.is_off.load(Ordering::Acquire) => Ok(()),
            Err(fault) => Err(OperatorError::new(format!("`close` failed: {}", detail(&fault)))),
        }
    }

    fn token(&mut self) -> Result<Option<Vec<u8>>, OperatorError> {
        let token = [self.base.to_le_bytes(), self.committed.to_le_bytes()].concat();
        Ok(self.exactly_once.then_some(token))
    }

    fn exactly_once(&self) -> bool {
        self.exactly_once
    }

    fn publication(&self) -> Publication {
        Publication::EachEpoch
    }

    fn is_closed(&self) -> bool {
        self.is_closed
    }

    fn refused(&self) -> u64 {
        self.refused
    }

    fn call_off(&self) -> Option<CallOff> {
        let line = Arc::clone(&self.line);
        Some(Arc::new(move || {
            line.is_off.store(true, Ordering::Release);
            if let Some(socket) = &*line.socket.lock().unwrap_or_else(PoisonError::into_inner) {
                let _ = socket.shutdown(Shutdown::Both);
            }
        }))
    }
}
