//! Dead letters of a run, in the file that the workflow names.
use crate::exit::{Exit, Failure};
use tidemill_engine::LetterWriter;
use tidemill_operators::api::{DeadLetter, OperatorError};
use tidemill_operators::dead_letters::DeadLetterWriter;
use tidemill_spec::workflow::Workflow;

/// The writer of the workflow's dead letters, if it names a file.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn letter_writer(workflow: &Workflow) -> Result<Option<Box<dyn LetterWriter>>, Failure> {
    let Some(path) = &workflow.run.dead_letters else { return Ok(None) };
    let writer = DeadLetterWriter::create(&workflow.resolve(&path.value))
        .map_err(|error| Failure::new(Exit::Configuration, format!("dead letters: {error}")))?;
    Ok(Some(Box::new(FileLetters(writer))))
}

/// The engine's view of the file.
struct FileLetters(DeadLetterWriter);

impl LetterWriter for FileLetters {
    fn write(&mut self, operator: &str, letter: &DeadLetter, epoch: u64) -> Result<(), OperatorError> {
        self.0.write(operator, letter, epoch)
    }

    fn commit(&mut self, epoch: u64) -> Result<(), OperatorError> {
        self.0.commit(epoch)
    }

    fn close(&mut self) -> Result<(), OperatorError> {
        self.0.close()
    }
}
