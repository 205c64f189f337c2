//! Exit codes, and error messages: a [`Failure`] has a code by its kind, [`Diagnostics`] are configuration errors, broken
//! pipes are none, and others are defects.
use crate::terminal::Terminal;
use serde_json::{Value, json};
use std::io::Write;
use tidemill_app::failure::{Failure, Kind};
use tidemill_spec::diagnostic::Diagnostics;

/// Result of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All is well.
    Success,
    /// The answer is "no".
    No,
    /// Wrong arguments.
    Usage,
    /// Data differs from what was written: a state, a source or an output was damaged or replaced.
    Data,
    /// A named object is missing: a state, a checkpoint, a run.
    Missing,
    /// An external obstacle: a port in use.
    Unavailable,
    /// A defect, or the panic of an operator.
    Bug,
    /// A file has invalid content.
    Configuration,
    /// Ctrl-C.
    Interrupted,
}

impl Exit {
    /// Returns the number for the shell.
    pub(crate) fn code(self) -> u8 {
        match self {
            Exit::Success => 0,
            Exit::No => 1,
            Exit::Usage => 2,
            Exit::Data => 65,
            Exit::Missing => 66,
            Exit::Unavailable => 69,
            Exit::Bug => 70,
            Exit::Configuration => 78,
            Exit::Interrupted => 130,
        }
    }
}

impl From<Kind> for Exit {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::No => Exit::No,
            Kind::Usage => Exit::Usage,
            Kind::Unavailable => Exit::Unavailable,
            Kind::Defect => Exit::Bug,
            Kind::Configuration => Exit::Configuration,
            Kind::Data => Exit::Data,
            Kind::Missing => Exit::Missing,
        }
    }
}

/// Whether the reader of stdout has closed it.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let pipe = |cause: &(dyn std::error::Error + 'static)| {
        let io = cause.downcast_ref::<std::io::Error>();
        io.is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
    };
    error.chain().any(pipe)
}

/// Writes an error as JSON, for verbs with JSON answers: `findings` as in `validate`. Those without a file have no code and
/// no position.
pub(crate) fn write_json(error: &anyhow::Error, out: &mut dyn Write) {
    if is_closed_pipe(error) {
        return;
    }
    let findings = match (error.downcast_ref::<Diagnostics>(), error.downcast_ref::<Failure>()) {
        (Some(findings), _) => json!(findings),
        (None, Some(failure)) => match failure.placed() {
            Some(finding) => json!([finding]),
            None => json!([nowhere(&failure.to_string(), failure.help())]),
        },
        (None, None) => json!([nowhere(&format!("{error:#}"), None)]),
    };
    // An error of stdout has no receiver; the text on stderr follows.
    let _ = writeln!(out, "{:#}", json!({"version": 1, "ok": false, "findings": findings}));
}

fn nowhere(message: &str, help: Option<&str>) -> Value {
    json!({
        "code": null, "severity": "error", "message": message, "file": null, "line": null, "column": null,
        "snippet": null, "help": help,
    })
}

/// Prints an error to stderr and returns the exit code.
pub(crate) fn explain(error: &anyhow::Error, terminal: &Terminal) -> Exit {
    if is_closed_pipe(error) {
        return Exit::Success;
    }
    if let Some(findings) = error.downcast_ref::<Diagnostics>() {
        terminal.findings(findings);
        return Exit::Configuration;
    }
    if let Some(failure) = error.downcast_ref::<Failure>() {
        match failure.placed() {
            Some(finding) => terminal.findings(&finding.into()),
            None => terminal.error(&failure.to_string(), failure.help()),
        }
        return failure.kind().into();
    }
    terminal.error(&format!("{error:#}"), None);
    match error.chain().any(|cause| cause.is::<std::io::Error>()) {
        true => Exit::Unavailable, // a disk, a folder, a terminal: nothing of ours
        false => Exit::Bug,
    }
}
