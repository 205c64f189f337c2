//! Findings about files: the problem, its place, and a correction.
//!
//! Codes are stable: `E01xx` syntax and values, `E02xx` workflow graph, `E03xx` infrastructure, `E04xx` plan,
//! `E05xx` model manifest, `E06xx` types of connected ports.
//!
//! ```
//! use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
//! use tidemill_spec::span::{SourceFile, Span};
//! let source = SourceFile::new("workflow.yaml", "version: 1\nraet: 40/s\n");
//! let mut all = Diagnostics::new();
//! all.push(
//!     Diagnostic::error("E0103", "unknown key `raet`")
//!         .at(Span::new(&source, 11, 15))
//!         .with_help("did you mean `rate`?"),
//! );
//! let text = all.render(false);
//! assert!(text.starts_with("error[E0103]: unknown key `raet`"), "{text}");
//! assert!(text.contains("workflow.yaml:2:1"), "{text}");
//! assert!(all.into_result(()).is_err());
//! ```
use crate::span::Span;
use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;

/// Checks stop after this many findings: more are not read, and suggestions take time.
pub(crate) const ENOUGH: usize = 100;
/// Begins the help for a file whose folder is missing.
pub(crate) const NO_FOLDER: &str = "there is no folder";

/// Severity of a diagnostic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file can be used; something in it is probably a mistake.
    Warning,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Stable code, such as `E0103`.
    pub code: &'static str,
    /// Error or warning.
    pub severity: Severity,
    /// The problem.
    pub message: String,
    /// Its place.
    pub span: Span,
    /// A few words written under the underlined text; may be empty.
    pub label: String,
    /// Other relevant places, each with a few words.
    pub related: Vec<(Span, String)>,
    /// The correction.
    pub help: Option<String>,
}

impl Diagnostic {
    /// Creates an error without a place; see [`Diagnostic::at`].
    pub fn error(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            severity: Severity::Error,
            message: message.into(),
            span: Span::nowhere(),
            label: String::new(),
            related: Vec::new(),
            help: None,
        }
    }

    /// Creates a warning without a place.
    pub fn warning(code: &'static str, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(code, message) }
    }

    /// Sets the place that the diagnostic points at.
    #[must_use]
    pub fn at(mut self, span: Span) -> Self {
        self.span = span;
        self
    }

    /// Adds a few words under the underlined text.
    #[must_use]
    pub fn with_label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Adds a correction.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Adds another relevant place, with a few words about it.
    #[must_use]
    pub fn with_related(mut self, span: Span, label: impl Into<String>) -> Self {
        self.related.push((span, label.into()));
        self
    }

    /// Returns the name of the file, where known.
    pub fn file(&self) -> Option<&str> {
        self.span.source().map(|source| source.name())
    }

    /// Returns the line, counted from 1.
    pub fn line(&self) -> Option<usize> {
        self.span.line()
    }

    /// Returns the column in characters, counted from 1.
    pub fn column(&self) -> Option<usize> {
        self.span.column()
    }

    /// Returns the offending line of the file.
    pub fn snippet(&self) -> Option<&str> {
        self.span.line_text()
    }

    /// Returns the rustc-style text, without a line break at the end.
    pub fn render(&self, colour: bool) -> String {
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let mut group: Group<'_> =
            Group::with_title(level.primary_title(self.message.as_str()).id(self.code));
        if let Some(source) = self.span.source() {
            let mut annotation = AnnotationKind::Primary.span(self.span.range());
            if !self.label.is_empty() {
                annotation = annotation.label(self.label.as_str());
            }
            let mut snippet = Snippet::source(source.text()).path(source.name()).annotation(annotation);
            for (span, label) in &self.related {
                if span.source().is_some_and(|other| std::sync::Arc::ptr_eq(other, source)) {
                    snippet =
                        snippet.annotation(AnnotationKind::Context.span(span.range()).label(label.as_str()));
                }
            }
            group = group.element(snippet);
            for (span, label) in &self.related {
                let Some(other) = span.source().filter(|other| !std::sync::Arc::ptr_eq(other, source)) else {
                    continue;
                };
                group = group.element(
                    Snippet::source(other.text())
                        .path(other.name())
                        .annotation(AnnotationKind::Context.span(span.range()).label(label.as_str())),
                );
            }
        }
        if let Some(help) = &self.help {
            group = group.element(Level::HELP.message(help.as_str()));
        }
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        renderer.render(&[group]).to_string()
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

/// The form of `--output json`: code, severity, message, file, line, column, snippet, help.
impl Serialize for Diagnostic {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Diagnostic", 8)?;
        out.serialize_field("code", self.code)?;
        out.serialize_field("severity", &self.severity)?;
        out.serialize_field("message", &self.message)?;
        out.serialize_field("file", &self.file())?;
        out.serialize_field("line", &self.line())?;
        out.serialize_field("column", &self.column())?;
        out.serialize_field("snippet", &self.snippet())?;
        out.serialize_field("help", &self.help)?;
        out.end()
    }
}

/// All findings, in order. An error type: `Result<T, Diagnostics>`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Diagnostics(Vec<Diagnostic>);

impl Diagnostics {
    /// Creates an empty collection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one finding.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.0.push(diagnostic);
    }

    /// Adds all findings of another collection.
    pub fn append(&mut self, other: Diagnostics) {
        self.0.extend(other.0);
    }

    /// Whether there are no findings, not even warnings.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of findings, including warnings.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is at least one error.
    pub fn has_errors(&self) -> bool {
        self.0.iter().any(|d| d.severity == Severity::Error)
    }

    /// Iterates over the findings.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.0.iter()
    }

    /// Returns the value, unless there is an error; drops warnings (print them before).
    pub fn into_result<T>(self, value: T) -> Result<T, Diagnostics> {
        if self.has_errors() { Err(self) } else { Ok(value) }
    }

    /// Sorts by place; findings without a place come last.
    pub fn sort(&mut self) {
        self.0.sort_by_key(|d| {
            let nowhere = d.span.source().is_none();
            (nowhere, d.file().unwrap_or_default().to_string(), d.span.range().start)
        });
    }

    /// Returns all findings as rustc-style text, with an empty line between them.
    pub fn render(&self, colour: bool) -> String {
        // All files of a missing folder are one mistake: the first one stands for them.
        let folder = |d: &Diagnostic| d.help.iter().find(|help| help.starts_with(NO_FOLDER)).cloned();
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        self.0.iter().filter_map(folder).for_each(|folder| *counts.entry(folder).or_default() += 1);
        let text = |d: &Diagnostic| match folder(d).map(|folder| (counts.remove(&folder), folder)) {
            None | Some((Some(1), _)) => Some(d.render(colour)),
            Some((None, _)) => None,
            Some((Some(count), folder)) => {
                let all = format!("{folder}: {} more files of it are missing", count - 1);
                Some(d.clone().with_help(all).render(colour))
            }
        };
        let texts: Vec<String> = self.0.iter().filter_map(text).collect();
        texts.join("\n\n")
    }
}

impl From<Diagnostic> for Diagnostics {
    fn from(diagnostic: Diagnostic) -> Self {
        Self(vec![diagnostic])
    }
}

impl FromIterator<Diagnostic> for Diagnostics {
    fn from_iter<I: IntoIterator<Item = Diagnostic>>(iter: I) -> Self {
        Self(iter.into_iter().collect())
    }
}

impl IntoIterator for Diagnostics {
    type Item = Diagnostic;
    type IntoIter = std::vec::IntoIter<Diagnostic>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Diagnostics {
    type Item = &'a Diagnostic;
    type IntoIter = std::slice::Iter<'a, Diagnostic>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl Extend<Diagnostic> for Diagnostics {
    fn extend<I: IntoIterator<Item = Diagnostic>>(&mut self, iter: I) {
        self.0.extend(iter);
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Diagnostics {}

/// Returns the nearest of `candidates` to `word`, if it is similar enough; a difference in case only comes first.
///
/// ```
/// use tidemill_spec::diagnostic::nearest;
/// assert_eq!(nearest("v", ["t", "V"]), Some("V"));
/// assert_eq!(nearest("raet", ["name", "rate"]), Some("rate"));
/// assert_eq!(nearest("colour", ["name", "rate"]), None);
/// ```
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Long words come only from broken files, and the distance is quadratic in their length.
    if word.len() > 256 {
        return None;
    }
    let lower = word.to_lowercase();
    candidates
        .into_iter()
        .take(2_000)
        .filter(|candidate| candidate.len() <= 256)
        .map(|candidate| match candidate.to_lowercase() == lower {
            true => (0, candidate),
            false => (strsim::damerau_levenshtein(word, candidate), candidate),
        })
        .filter(|(distance, candidate)| {
            *distance <= (word.chars().count().max(candidate.chars().count()) / 3).max(1)
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns help for a word that is not in `candidates`: the nearest one, else all of them.
pub fn suggestion<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str> + Clone,
    what: &str,
) -> String {
    match nearest(word, candidates.clone()) {
        Some(found) => format!("did you mean `{found}`?"),
        None => {
            let all: Vec<String> = candidates.into_iter().take(40).map(|c| format!("`{c}`")).collect();
            if all.is_empty() {
                format!("there are no {what}")
            } else {
                format!("{what}: {}", all.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_one_missing_folder_are_shown_once() {
        let missing = |file: &str, folder: &str| {
            let help = format!("{NO_FOLDER} `{folder}`; check the path");
            Diagnostic::error("E0102", format!("the file `{folder}/{file}` does not exist")).with_help(help)
        };
        let all: Diagnostics =
            [missing("a", "models"), missing("b", "models"), missing("c", "models"), missing("a", "data")]
                .into_iter()
                .collect();
        let text = all.render(false);
        assert!(text.contains("models/a") && !text.contains("models/b"), "{text}");
        assert!(text.contains("check the path: 2 more files of it are missing"), "{text}");
        assert!(text.contains("data/a") && text.matches("more files").count() == 1, "{text}");
    }
}
