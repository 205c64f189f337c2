//! Exit codes, and errors that know theirs.
use crate::terminal::Terminal;
use std::fmt;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::span::Span;

/// How the command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All is well.
    Success,
    /// The answer is "no".
    No,
    /// Wrong arguments.
    Usage,
    /// Something outside is in the way: a port in use.
    Unavailable,
    /// A defect, or the panic of an operator.
    Bug,
    /// A file does not say what it should.
    Configuration,
    /// Ctrl-C.
    Interrupted,
}

impl Exit {
    /// The number that the shell sees.
    pub(crate) fn code(self) -> u8 {
        match self {
            Exit::Success => 0,
            Exit::No => 1,
            Exit::Usage => 2,
            Exit::Unavailable => 69,
            Exit::Bug => 70,
            Exit::Configuration => 78,
            Exit::Interrupted => 130,
        }
    }
}

/// An error with an exit code of its own; others are defects, but for [`Diagnostics`], which are configuration
/// errors, and broken pipes, which are none.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
    help: Option<String>,
    place: Span,
}

impl Failure {
    /// An error with this code and text.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), help: None, place: Span::nowhere() }
    }

    /// The same with the place in a file that it is about.
    pub(crate) fn at(mut self, place: Span) -> Self {
        self.place = place;
        self
    }

    /// The same with how to mend it.
    pub(crate) fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Says on stderr what went wrong and gives the exit code.
pub(crate) fn explain(error: &anyhow::Error, terminal: &Terminal) -> Exit {
    let pipe = |cause: &(dyn std::error::Error + 'static)| {
        let io = cause.downcast_ref::<std::io::Error>();
        io.is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
    };
    if error.chain().any(pipe) {
        return Exit::Success;
    }
    if let Some(findings) = error.downcast_ref::<Diagnostics>() {
        terminal.findings(findings);
        return Exit::Configuration;
    }
    if let Some(failure) = error.downcast_ref::<Failure>() {
        if failure.place.source().is_some() {
            let mut finding = Diagnostic::error("E0701", &failure.message).at(failure.place.clone());
            finding.help.clone_from(&failure.help);
            terminal.findings(&finding.into());
        } else {
            terminal.error(&failure.message, failure.help.as_deref());
        }
        return failure.exit;
    }
    terminal.error(&format!("{error:#}"), None);
    match error.chain().any(|cause| cause.is::<std::io::Error>()) {
        true => Exit::Unavailable, // a disk, a folder, a terminal: nothing of ours
        false => Exit::Bug,
    }
}
