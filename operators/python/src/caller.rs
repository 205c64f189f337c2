//! Calls a step and deals with what goes wrong: a record that fails becomes a dead letter, and the others of its batch are
//! computed. A process that ended or hung is started again; a batch function is called with halves of the batch until the
//! record to blame is found.
//!
//! | fault | record known | what happens |
//! |---|---|---|
//! | exception, one record at a time | yes | dead letter `python_error` |
//! | exception over a batch | no | halves |
//! | wrong output | of a record, or of all | dead letter `python_output` |
//! | end of the process | one record at a time | the record once more alone, then `python_crash` |
//! | time is up | one record at a time | dead letter `python_timeout` |
use crate::launch::Launch;
use crate::options::OnError;
use crate::process::{Fault, Given, Process};
use crate::protocol::{Rejected, StartError};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::SchemaRef;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidemill_operators::api::{DeadLetter, OperatorError, Output};
use tidemill_operators::record::{derive_metadata, operator_number, unfold_metadata};
use tidemill_spec::types::StreamType;

/// All that the instances of a step share.
pub(crate) struct Setup {
    pub(crate) launch: Launch,
    pub(crate) output: StreamType,
    pub(crate) schema: SchemaRef,
    /// Processes in a row that end without a finished record, before the run stops.
    pub(crate) restart: u32,
    pub(crate) on_error: OnError,
    /// The process that was started to check the step; the first instance takes it.
    pub(crate) first: Arc<Mutex<Option<Process>>>,
}

impl Setup {
    /// Starts a process, or takes the one that is ready.
    pub(crate) fn start(&self) -> Result<Process, StartError> {
        let ready = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut process = match ready {
            Some(process) => process,
            None => Process::start(&self.launch)?,
        };
        process.expect(&self.output);
        Ok(process)
    }
}

/// A state that the calls change: brought back after a fault.
pub(crate) trait Past {
    /// Brings a new process to the state before the present call.
    fn bring_back(&mut self, process: &mut Process) -> Result<(), Fault>;
    /// Whether a call that failed may have changed something that can be undone.
    fn can_undo(&self) -> bool;
    /// Records that a call is done.
    fn done(&mut self, batch: &RecordBatch);
}

/// No state.
pub(crate) struct NoPast;

impl Past for NoPast {
    fn bring_back(&mut self, _process: &mut Process) -> Result<(), Fault> {
        Ok(())
    }
    fn can_undo(&self) -> bool {
        false
    }
    fn done(&mut self, _batch: &RecordBatch) {}
}

/// Records to compute together.
struct Piece {
    batch: RecordBatch,
    tries: u32,
}

/// Calls one process at a time.
pub(crate) struct Caller {
    pub(crate) setup: Arc<Setup>,
    process: Option<Process>,
    /// Records in a row that ended their process.
    deaths: u32,
    /// Processor time of processes that are gone.
    past_time: Duration,
    number: u64,
}

impl Caller {
    /// Creates a caller, with a process.
    ///
    /// # Errors
    /// The step cannot start.
    pub(crate) fn new(setup: Arc<Setup>) -> Result<Self, OperatorError> {
        let number = operator_number(&setup.launch.operator);
        let mut caller = Self { setup, process: None, deaths: 0, past_time: Duration::ZERO, number };
        caller.process(&mut NoPast)?;
        Ok(caller)
    }

    /// The number of the operator in identities.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Processor time of all processes so far.
    pub(crate) fn processor_time(&self) -> Duration {
        self.past_time + self.process.as_ref().map_or(Duration::ZERO, Process::processor_time)
    }

    /// Returns the process; starts one if there is none.
    pub(crate) fn process(&mut self, past: &mut dyn Past) -> Result<&mut Process, OperatorError> {
        if self.process.is_none() {
            let operator = &self.setup.launch.operator;
            let start = self.setup.start();
            let mut process = start.map_err(|error| OperatorError::new(cannot_start(operator, &error)))?;
            past.bring_back(&mut process).map_err(|fault| {
                OperatorError::new(format!("`{operator}` cannot continue from its state: {}", detail(&fault)))
            })?;
            self.process = Some(process);
        }
        let gone = || OperatorError::new("a process that was started is gone");
        self.process.as_mut().ok_or_else(gone)
    }

    /// Brings back the state before a call that failed, if it can be.
    pub(crate) fn undo(&mut self, past: &mut dyn Past) {
        if !past.can_undo() {
            return;
        }
        let undone = self
            .process(past)
            .and_then(|process| past.bring_back(process).map_err(|fault| OperatorError::new(detail(&fault))));
        if undone.is_err() {
            self.forget();
        }
    }

    /// Forgets a process that ended.
    pub(crate) fn forget(&mut self) {
        if let Some(process) = self.process.take() {
            self.past_time += process.processor_time();
        }
    }

    /// Computes the records of a batch.
    ///
    /// # Errors
    /// The step cannot be started again, its processes end again and again, or a record failed and `on_error` is `stop`.
    pub(crate) fn compute(
        &mut self,
        batch: &RecordBatch,
        past: &mut dyn Past,
        output: &mut Output,
    ) -> Result<(), OperatorError> {
        // The first on top.
        let mut pieces = vec![Piece { batch: batch.clone(), tries: 0 }];
        while let Some(piece) = pieces.pop() {
            if piece.batch.num_rows() == 0 {
                continue;
            }
            match self.process(past)?.batch(&piece.batch) {
                Ok(given) => {
                    self.deaths = 0;
                    past.done(&piece.batch);
                    self.take(piece, given, &mut pieces, output)?;
                }
                Err(Fault::Failed { reason, detail }) => {
                    self.undo(past);
                    self.failed(piece, &reason, &detail, &mut pieces, output)?;
                }
                Err(Fault::Ended { detail, row }) => {
                    self.forget();
                    self.ended(piece, row, &detail, &mut pieces, output)?;
                }
                Err(Fault::TimedOut { detail, row }) => {
                    self.forget();
                    self.timed_out(piece, row, &detail, &mut pieces, output)?;
                }
            }
        }
        Ok(())
    }

    /// Emits what a call gave; its rejected records are tried again or become dead letters.
    fn take(
        &self,
        piece: Piece,
        given: Given,
        pieces: &mut Vec<Piece>,
        output: &mut Output,
    ) -> Result<(), OperatorError> {
        for Rejected { row, reason, detail } in &given.rejected {
            let single = Piece { batch: piece.batch.slice(*row as usize, 1), tries: piece.tries };
            self.rejected(single, reason, detail, pieces, output)?;
        }
        let metadata = match &given.origins {
            None => derive_metadata(&piece.batch, self.number),
            Some(origins) => {
                let indices = indices(origins, piece.batch.num_rows());
                unfold_metadata(&piece.batch, origins, &indices, self.number).map_err(arrow)?
            }
        };
        output.push(self.rows(metadata, given.columns)?);
        Ok(())
    }

    /// Puts metadata before the columns of a step.
    pub(crate) fn rows(
        &self,
        metadata: Vec<ArrayRef>,
        columns: Vec<ArrayRef>,
    ) -> Result<RecordBatch, OperatorError> {
        let all = metadata.into_iter().chain(columns).collect();
        RecordBatch::try_new(Arc::clone(&self.setup.schema), all).map_err(arrow)
    }

    /// Tries a record again, or gives it up.
    fn rejected(
        &self,
        piece: Piece,
        reason: &str,
        detail: &str,
        pieces: &mut Vec<Piece>,
        output: &mut Output,
    ) -> Result<(), OperatorError> {
        match self.setup.on_error {
            OnError::Stop => Err(self.stops(&piece, detail)),
            OnError::Retry if piece.tries < self.setup.restart => {
                pieces.push(Piece { tries: piece.tries + 1, ..piece });
                Ok(())
            }
            OnError::Retry | OnError::DeadLetter => {
                letters(&piece.batch, reason, detail, output);
                Ok(())
            }
        }
    }

    fn stops(&self, piece: &Piece, detail: &str) -> OperatorError {
        let records = match piece.batch.num_rows() {
            1 => {
                let values = tidemill_operators::values::row_values(&piece.batch, 0);
                format!("the record {}", serde_json::Value::Object(values))
            }
            more => format!("a batch of {more} records"),
        };
        OperatorError::new(format!("it failed over {records} (`on_error: stop`):\n{detail}"))
    }

    /// A function over a batch failed.
    fn failed(
        &mut self,
        piece: Piece,
        reason: &str,
        detail: &str,
        pieces: &mut Vec<Piece>,
        output: &mut Output,
    ) -> Result<(), OperatorError> {
        let rows = piece.batch.num_rows();
        // A wrong output is that of all records: halves would only repeat it.
        if rows == 1 || self.setup.on_error == OnError::Stop || reason != "python_error" {
            return self.rejected(piece, reason, detail, pieces, output);
        }
        halve(&piece, pieces);
        Ok(())
    }

    fn ended(
        &mut self,
        piece: Piece,
        row: Option<usize>,
        detail: &str,
        pieces: &mut Vec<Piece>,
        output: &mut Output,
    ) -> Result<(), OperatorError> {
        let rows = piece.batch.num_rows();
        tracing::warn!(operator = self.setup.launch.operator, rows, "{detail}");
        if self.setup.on_error == OnError::Stop {
            return Err(self.stops(&piece, detail));
        }
        let most = match self.setup.on_error {
            OnError::Retry => self.setup.restart,
            _ => 1,
        };
        match row.filter(|row| *row < rows) {
            _ if rows == 1 && piece.tries < most => {
                pieces.push(Piece { tries: piece.tries + 1, ..piece });
                Ok(())
            }
            _ if rows == 1 => self.give_up(&piece.batch, "python_crash", detail, output),
            Some(row) => {
                around(&piece, row, true, pieces);
                Ok(())
            }
            None => {
                halve(&piece, pieces);
                Ok(())
            }
        }
    }

    fn timed_out(
        &mut self,
        piece: Piece,
        row: Option<usize>,
        detail: &str,
        pieces: &mut Vec<Piece>,
        output: &mut Output,
    ) -> Result<(), OperatorError> {
        let rows = piece.batch.num_rows();
        tracing::warn!(operator = self.setup.launch.operator, rows, "{detail}");
        let row = if rows == 1 { Some(0) } else { row.filter(|row| *row < rows) };
        match (self.setup.on_error, row) {
            (OnError::Stop, _) => Err(self.stops(&piece, detail)),
            (OnError::Retry, Some(_)) if rows == 1 && piece.tries < self.setup.restart => {
                pieces.push(Piece { tries: piece.tries + 1, ..piece });
                Ok(())
            }
            (OnError::Retry, Some(row)) if rows > 1 => {
                around(&piece, row, true, pieces);
                Ok(())
            }
            (_, Some(row)) => {
                around(&piece, row, false, pieces);
                self.give_up(&piece.batch.slice(row, 1), "python_timeout", detail, output)
            }
            (_, None) => {
                halve(&piece, pieces);
                Ok(())
            }
        }
    }

    /// Makes a dead letter of a record that ended its process.
    fn give_up(
        &mut self,
        record: &RecordBatch,
        reason: &str,
        detail: &str,
        output: &mut Output,
    ) -> Result<(), OperatorError> {
        self.deaths += 1;
        if self.deaths > self.setup.restart {
            let text = format!(
                "{} records in a row ended its process (`restart: {}`); the last time:\n{detail}",
                self.deaths, self.setup.restart
            );
            return Err(OperatorError::new(text));
        }
        letters(record, reason, detail, output);
        Ok(())
    }
}

/// Says why a step cannot start.
pub(crate) fn cannot_start(operator: &str, error: &StartError) -> String {
    let trace = if error.traceback.is_empty() { String::new() } else { format!("\n{}", error.traceback) };
    format!("the step `{operator}` cannot start: {}{trace}", error.message)
}

/// The text of a fault.
pub(crate) fn detail(fault: &Fault) -> String {
    match fault {
        Fault::Failed { detail, .. } | Fault::Ended { detail, .. } | Fault::TimedOut { detail, .. } => {
            detail.clone()
        }
    }
}

fn arrow(error: arrow_schema::ArrowError) -> OperatorError {
    OperatorError::new(error.to_string())
}

/// Makes a dead letter of each record.
fn letters(batch: &RecordBatch, reason: &str, detail: &str, output: &mut Output) {
    for row in 0..batch.num_rows() {
        let letter = DeadLetter::of_row(batch, row, reason.to_owned(), detail.to_owned());
        output.dead_letters.push(letter);
    }
}

fn part(piece: &Piece, start: usize, length: usize, tries: u32) -> Piece {
    Piece { batch: piece.batch.slice(start, length), tries }
}

fn halve(piece: &Piece, pieces: &mut Vec<Piece>) {
    let rows = piece.batch.num_rows();
    pieces.push(part(piece, rows / 2, rows - rows / 2, 0));
    pieces.push(part(piece, 0, rows / 2, 0));
}

/// Puts back the records before and after a row, and the row by itself if it gets another try.
fn around(piece: &Piece, row: usize, again: bool, pieces: &mut Vec<Piece>) {
    pieces.push(part(piece, row + 1, piece.batch.num_rows() - row - 1, 0));
    if again {
        pieces.push(part(piece, row, 1, 1));
    }
    pieces.push(part(piece, 0, row, 0));
}

/// Numbers the rows that come from one row: 0, 1, 2 ...
fn indices(origins: &[u32], rows: usize) -> Vec<u32> {
    let mut next = vec![0u32; rows];
    let number = |origin: &u32| {
        next.get_mut(*origin as usize).map_or(0, |next| {
            *next += 1;
            *next - 1
        })
    };
    origins.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_one_row_are_numbered() {
        assert_eq!(indices(&[0, 2, 2, 0, 2], 3), [0, 0, 1, 1, 2]);
    }
}
