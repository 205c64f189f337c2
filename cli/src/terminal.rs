//! Standard error, with or without colours, and the log.
use crate::arguments::{ColorChoice, LogFormat, LogLevel};
use crate::visible::{visible, visible_but_colours};
use std::io::{IsTerminal, Write};
use tidemill_app::listener::Listener;
use tidemill_spec::diagnostic::{Diagnostics, Severity};
use tracing_subscriber::EnvFilter;

/// Use of stderr.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terminal {
    colour: bool,
    quiet: bool,
    interactive: bool,
}

impl Terminal {
    /// Determines it from the flags, `NO_COLOR` and stderr.
    pub(crate) fn new(choice: ColorChoice, quiet: bool) -> Self {
        let interactive = std::io::stderr().is_terminal();
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        let colour = match choice {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => interactive && !refused,
        };
        Self { colour, quiet, interactive }
    }

    /// True if a progress line may be redrawn in place.
    pub(crate) fn animates(&self) -> bool {
        self.interactive && !self.quiet
    }

    /// True if there may be colour.
    pub(crate) fn paints(&self) -> bool {
        self.colour
    }

    /// True if only errors are printed.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Prints a prominent line that is no error.
    pub(crate) fn alarm(&self, text: &str) {
        line(&format!("{} {}", self.painted("warning:", "1;33"), visible(text)));
    }

    /// Prints an error with advice.
    pub(crate) fn error(&self, text: &str, help: Option<&str>) {
        line(&format!("{} {}", self.painted("error:", "1;31"), visible(text)));
        if let Some(help) = help {
            line(&format!("{} {}", self.painted("help:", "1;36"), visible(help)));
        }
    }

    /// Prints findings as rustc does, and their number.
    pub(crate) fn findings(&self, findings: &Diagnostics) {
        line(&self.rendered(findings));
        let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
        if errors > 1 {
            line(&format!("\n{} {errors} errors", self.painted("error:", "1;31")));
        }
    }

    /// Prints a worker process's standard error; lines of a JSON log stay whole.
    pub(crate) fn relay(&self, worker: &str, text: &str) {
        match text.starts_with('{') {
            true => line(&visible(text)),
            false => line(&format!("{} {}", self.painted(&format!("{worker}:"), "2"), visible(text))),
        }
    }

    fn rendered(&self, findings: &Diagnostics) -> String {
        let text = findings.render(self.colour);
        if self.colour { visible_but_colours(&text).into_owned() } else { visible(&text).into_owned() }
    }

    fn painted(&self, text: &str, style: &str) -> String {
        if self.colour { format!("\u{1b}[{style}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

impl Listener for Terminal {
    fn note(&self, text: &str) {
        if !self.quiet {
            line(&visible(text));
        }
    }

    fn warning(&self, text: &str) {
        if !self.quiet {
            line(&format!("{} {}", self.painted("warning:", "1;33"), visible(text)));
        }
    }

    fn warnings(&self, findings: &Diagnostics) {
        if !self.quiet && !findings.is_empty() {
            line(&format!("{}\n", self.rendered(findings)));
        }
    }
}

/// Writes a line and shows its control characters. A closed stderr is no error: there is no other place to report it.
fn line(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Sends the log to stderr.
pub(crate) fn start_log(level: LogLevel, format: LogFormat, terminal: &Terminal) {
    let filter = EnvFilter::new(level.as_filter());
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // A reader of stderr that has gone is no reason to panic.
        .log_internal_errors(false);
    match format {
        LogFormat::Text => log.with_ansi(terminal.colour).init(),
        LogFormat::Json => log.json().init(),
    }
}
