//! Receivers of messages while files become a running program.
use crate::choice::Skipped;
use tidemill_spec::diagnostic::Diagnostics;

/// Receives messages for users that are no errors: a terminal shows them, a server logs them, [`Silent`] drops them.
pub trait Listener {
    /// Reports progress.
    fn note(&self, text: &str);

    /// Reports something that is probably not intended.
    fn warning(&self, text: &str);

    /// Warnings that point into files.
    fn warnings(&self, findings: &Diagnostics);

    /// Reports a variant that is left out.
    fn skipped(&self, skipped: &Skipped) {
        match skipped {
            Skipped::Note(text) => self.note(text),
            Skipped::Warning(text) => self.warning(text),
        }
    }
}

/// Drops everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Listener for Silent {
    fn note(&self, _: &str) {}
    fn warning(&self, _: &str) {}
    fn warnings(&self, _: &Diagnostics) {}
}
