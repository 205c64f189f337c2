//! Why something could not be done, with what to do about it.
use std::fmt;
use tidemill_spec::diagnostic::Diagnostic;
use tidemill_spec::span::Span;

/// What kind of failure it is; a command turns it into its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The answer is "no": no plan keeps the service levels.
    No,
    /// Options that do not fit together or name what is not there.
    Usage,
    /// Something outside fails: a port in use, a full disk, a missing library.
    Unavailable,
    /// A defect of Tidemill, or the panic of an operator.
    Defect,
    /// A file does not say what it should.
    Configuration,
    /// What is read is not what was written: a state that is damaged, a source or an output that was replaced.
    Data,
    /// What is named is not there: a state, a checkpoint, a run.
    Missing,
}

/// An error with its kind, and often the place in a file that it is about and how to fix it.
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
    /// An error of this kind with this text.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), help: None, place: Span::nowhere() }
    }

    /// Sets the place in a file that it is about.
    #[must_use]
    pub fn at(mut self, place: Span) -> Self {
        self.place = place;
        self
    }

    /// Adds how to fix it.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// How to fix it, if that is known.
    pub fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// As a finding, if it is about a place in a file.
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
