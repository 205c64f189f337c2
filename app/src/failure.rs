//! Failures with advice.
use std::fmt;
use tidemill_spec::diagnostic::Diagnostic;
use tidemill_spec::span::Span;

/// Kind of a failure; a command turns it into its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The answer is "no": no plan keeps the service levels.
    No,
    /// Options that contradict each other or name unknown parts.
    Usage,
    /// An external failure: a port in use, a full disk, a missing library.
    Unavailable,
    /// A defect of Tidemill, or the panic of an operator.
    Defect,
    /// A file with invalid content.
    Configuration,
    /// Data differs from what was written: a damaged state, a replaced source or output.
    Data,
    /// A named object is missing: a state, a checkpoint, a run.
    Missing,
}

/// An error with its kind, and often its position in a file and advice.
///
/// ```
/// use tidemill_app::failure::{Failure, Kind};
///
/// let failure = Failure::new(Kind::Usage, "no infrastructure").with_help("give `--infra`");
/// assert_eq!((failure.kind(), failure.to_string().as_str()), (Kind::Usage, "no infrastructure"));
/// ```
#[derive(Debug)]
pub struct Failure {
    kind: Kind,
    message: String,
    help: Option<String>,
    place: Span,
}

impl Failure {
    /// Creates an error of this kind with this text.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), help: None, place: Span::nowhere() }
    }

    /// Sets its position in a file.
    #[must_use]
    pub fn at(mut self, place: Span) -> Self {
        self.place = place;
        self
    }

    /// Adds advice.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its advice, if any.
    pub fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// Converts to a finding, if it has a position in a file.
    pub fn placed(&self) -> Option<Diagnostic> {
        self.place.source()?;
        let mut finding = Diagnostic::error("E0701", &self.message).at(self.place.clone());
        finding.help.clone_from(&self.help);
        Some(finding)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
