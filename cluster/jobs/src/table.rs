//! Tables of text: a header and lines of cells between commas, where each cell knows its place. Lines that start with `#` and empty lines do
//! not count. Cells have no quotes: ids and numbers need none.
use crate::Time;
use std::path::Path;
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics, nearest};
use tidemill_spec::span::{SourceFile, Span};
use tidemill_spec::units::TimeSpan;

/// Findings after which reading stops.
const ENOUGH: usize = 20;

/// A column that a table may have.
pub(crate) struct Column {
    /// Name in the header.
    pub(crate) name: &'static str,
    /// Meaning; columns of the same meaning are alternatives. Empty: not used.
    pub(crate) meaning: &'static str,
}

/// Declares a column.
pub(crate) const fn column(name: &'static str, meaning: &'static str) -> Column {
    Column { name, meaning }
}

/// A cell with its place.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) column: &'static str,
    span: Span,
}

/// A table whose header was checked.
pub(crate) struct Table {
    header: Span,
    meanings: Vec<(&'static str, &'static str)>,
    lines: Vec<(usize, String)>,
    source: Arc<SourceFile>,
    pub(crate) found: Diagnostics,
}

/// A line of a table.
pub(crate) struct Row<'a> {
    cells: Vec<Cell>,
    table: &'a [(&'static str, &'static str)],
}

/// Reads a file.
pub(crate) fn read(path: &Path) -> Result<String, Diagnostics> {
    std::fs::read_to_string(path).map_err(|error| {
        let mut found = Diagnostics::new();
        found.push(Diagnostic::error("E0102", format!("cannot read {}: {error}", path.display())));
        found
    })
}

/// Splits a line into trimmed cells with their offsets.
fn cells(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut start = 0;
    line.split(',').map(move |cell| {
        let offset = start + (cell.len() - cell.trim_start().len());
        start += cell.len() + 1;
        (offset, cell.trim())
    })
}

impl Table {
    /// Reads the header and splits the lines.
    pub(crate) fn parse(text: &str, name: &str, columns: &[Column]) -> Result<Self, Diagnostics> {
        let source = SourceFile::new(name, text);
        let mut lines = Vec::new();
        let mut offset = 0;
        for line in text.split_inclusive('\n') {
            let content = line.trim_end_matches(['\n', '\r']);
            if !content.trim().is_empty() && !content.trim_start().starts_with('#') {
                lines.push((offset, content.to_owned()));
            }
            offset += line.len();
        }
        let mut found = Diagnostics::new();
        if lines.is_empty() {
            let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
            let empty = Diagnostic::error("E0104", format!("{name} has no header"));
            found.push(
                empty.at(Span::new(&source, 0, 0)).with_help(format!("columns are {}", names.join(", "))),
            );
            return Err(found);
        }
        let (start, header) = lines.remove(0);
        let mut meanings: Vec<(&'static str, &'static str)> = Vec::new();
        for (offset, cell) in cells(&header) {
            let span = Span::new(&source, start + offset, start + offset + cell.len());
            let Some(column) = columns.iter().find(|column| column.name == cell) else {
                let names = || columns.iter().map(|column| column.name);
                let help = nearest(cell, names()).map_or_else(
                    || format!("columns are {}", names().collect::<Vec<_>>().join(", ")),
                    |near| format!("did you mean `{near}`?"),
                );
                found.push(
                    Diagnostic::error("E0103", format!("unknown column `{cell}`")).at(span).with_help(help),
                );
                meanings.push(("", ""));
                continue;
            };
            let is_twice =
                meanings.iter().any(|(_, meaning)| !meaning.is_empty() && *meaning == column.meaning);
            if is_twice {
                let message = format!("a second column for the {}", column.meaning);
                found.push(Diagnostic::error("E0107", message).at(span).with_help("remove one of them"));
            }
            meanings.push((column.name, column.meaning));
        }
        let header = Span::new(&source, start, start + header.len());
        if found.has_errors() { Err(found) } else { Ok(Self { header, meanings, lines, source, found }) }
    }

    /// Whether the header has this column.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.meanings.iter().any(|(column, _)| *column == name)
    }

    /// Requires a column for a meaning.
    pub(crate) fn require(&mut self, meaning: &str, help: &str) {
        if !self.meanings.iter().any(|(_, one)| *one == meaning) {
            let missing = Diagnostic::error("E0104", format!("no column for the {meaning}"));
            self.found.push(missing.at(self.header.clone()).with_help(help));
        }
    }

    /// Converts all lines; collects findings, at most some, and returns them instead if there are any.
    pub(crate) fn rows<T>(
        mut self,
        mut convert: impl FnMut(&Row<'_>) -> Result<T, Diagnostic>,
    ) -> Result<Vec<T>, Diagnostics> {
        if self.found.has_errors() {
            return Err(self.found);
        }
        let mut rows = Vec::with_capacity(self.lines.len());
        for (start, line) in &self.lines {
            let span = |offset: usize, length: usize| {
                Span::new(&self.source, start + offset, start + offset + length)
            };
            let cells: Vec<Cell> = cells(line)
                .zip(self.meanings.iter().map(|(column, _)| *column).chain(std::iter::repeat("")))
                .map(|((offset, cell), column)| Cell {
                    text: cell.to_owned(),
                    column,
                    span: span(offset, cell.len()),
                })
                .collect();
            let result = match cells.len() == self.meanings.len() {
                true => convert(&Row { cells, table: &self.meanings }),
                false => {
                    let (has, wants) = (cells.len(), self.meanings.len());
                    let message = format!("{has} cells; the header has {wants}");
                    let help = "separate cells by commas; leave a cell empty for its default";
                    Err(Diagnostic::error("E0105", message).at(span(0, line.len())).with_help(help))
                }
            };
            match result {
                Ok(row) => rows.push(row),
                Err(finding) => self.found.push(finding),
            }
            if self.found.len() >= ENOUGH {
                break;
            }
        }
        if rows.is_empty() && !self.found.has_errors() {
            let empty = Diagnostic::error("E0104", "no line after the header");
            self.found.push(empty.at(self.header.clone()).with_help("write a line for each entry"));
        }
        self.found.into_result(rows)
    }
}

impl Row<'_> {
    /// Returns the cell of a meaning; none if it is empty or there is no such column.
    pub(crate) fn cell(&self, meaning: &str) -> Option<&Cell> {
        let index = self.table.iter().position(|(_, one)| *one == meaning)?;
        self.cells.get(index).filter(|cell| !cell.text.is_empty())
    }

    /// Returns the cell of a meaning that each line needs.
    pub(crate) fn needed(&self, meaning: &str) -> Result<&Cell, Diagnostic> {
        self.cell(meaning).ok_or_else(|| {
            let span = self.cells.first().map(|cell| cell.span.clone()).unwrap_or_default();
            Diagnostic::error("E0104", format!("the {meaning} is missing")).at(span)
        })
    }
}

impl Cell {
    /// Creates a finding about this cell.
    pub(crate) fn wrong(&self, message: impl Into<String>, help: impl Into<String>) -> Diagnostic {
        Diagnostic::error("E0105", message).at(self.span.clone()).with_help(help)
    }

    /// Parses a whole number of at least `least`.
    pub(crate) fn count(&self, least: u32) -> Result<u32, Diagnostic> {
        self.text.parse().ok().filter(|count| *count >= least).ok_or_else(|| {
            self.wrong(
                format!("`{}` is no whole number of {least} or more", self.text),
                format!("write `{}`", least.max(1)),
            )
        })
    }

    /// Parses a finite number of 0 or more, at most `most`.
    pub(crate) fn number(&self, most: f64) -> Result<f64, Diagnostic> {
        let number = self.text.parse::<f64>().ok().filter(|number| (0.0..=most).contains(number));
        number.ok_or_else(|| {
            self.wrong(
                format!("`{}` is no number from 0 to {most}", self.text),
                "write a number such as `0.5`",
            )
        })
    }

    /// Parses a time with a unit, or also a plain number of seconds.
    pub(crate) fn time(&self, may_be_plain: bool) -> Result<Time, Diagnostic> {
        if may_be_plain && let Ok(seconds) = self.text.parse::<f64>() {
            let is_time = (0.0..=1e10).contains(&seconds);
            return is_time.then(|| Time((seconds * 1e3).round() as u64)).ok_or_else(|| {
                self.wrong(format!("`{}` is no time", self.text), "write seconds, such as `121`")
            });
        }
        let span = self.text.parse::<TimeSpan>();
        span.map(Time::from).map_err(|error| self.wrong(error.message, error.help))
    }
}
