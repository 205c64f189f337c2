//! Who is told what happens while files become a running program.
use crate::choice::Skipped;
use tidemill_spec::diagnostic::Diagnostics;

/// Takes what a user should know although it is no error: a terminal shows it, a server logs it, [`Silent`] drops it.
pub trait Listener {
    /// A line about what is going on.
    fn note(&self, text: &str);

    /// A line about something that is probably not intended.
    fn warning(&self, text: &str);

    /// Warnings that point into files.
    fn warnings(&self, findings: &Diagnostics);

    /// A variant that is left out.
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
