//! Columns of text, aligned.
use crate::visible::visible;
use std::io::{self, Write};

/// Separator of columns.
const BETWEEN: &str = "  ";
/// Width below which a column of words is not wrapped.
const NARROW: usize = 12;

/// Alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table with a header line.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    columns: Vec<(String, Side)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows. A column without a cell is not printed.
    pub(crate) fn new(columns: &[(&'static str, Side)]) -> Self {
        Self::of(columns.iter().map(|(name, side)| ((*name).to_owned(), *side)).collect())
    }

    /// A table without rows, whose columns are known only now.
    pub(crate) fn of(columns: Vec<(String, Side)>) -> Self {
        Self { columns, rows: Vec::new() }
    }

    /// Adds a row; it has a cell for each column.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| visible(&cell).into_owned()).collect());
    }

    /// Writes the table; on a terminal no wider than that is (see [`columns`]).
    ///
    /// # Errors
    /// `out` fails.
    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write_within(columns(), out)
    }

    /// Writes the table with `others` characters beside it.
    ///
    /// # Errors
    /// Errors of `out`.
    pub(crate) fn write_beside(&self, others: usize, out: &mut dyn Write) -> io::Result<()> {
        self.write_within(columns().map(|columns| columns.saturating_sub(others)), out)
    }

    /// Writes the table within `most` characters, if there is a limit: columns of words are wrapped, the widest first;
    /// numbers stay whole.
    ///
    /// # Errors
    /// Errors of `out`.
    fn write_within(&self, most: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
        let header = self.columns.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        let used: Vec<usize> = (0..self.columns.len())
            .filter(|column| {
                self.rows.iter().any(|row| row.get(*column).is_some_and(|cell| !cell.is_empty()))
            })
            .collect();
        let widths = self.widths(&used, most);
        let width = widths.iter().sum::<usize>() + BETWEEN.len() * widths.len().saturating_sub(1);
        if most.is_some_and(|most| width > most) {
            return self.write_lists(&used, most, out);
        }
        for row in std::iter::once(&header).chain(&self.rows) {
            let cell = |column: &usize| row.get(*column).map_or("", String::as_str);
            let cells: Vec<Vec<String>> =
                used.iter().zip(&widths).map(|(column, width)| wrapped(cell(column), *width)).collect();
            for height in 0..cells.iter().map(Vec::len).max().unwrap_or(0) {
                let mut line = String::new();
                for ((column, width), lines) in used.iter().zip(&widths).zip(&cells) {
                    let cell = lines.get(height).map_or("", String::as_str);
                    let gap = " ".repeat(width.saturating_sub(cell.chars().count()));
                    match self.columns[*column].1 {
                        Side::Left => line.extend([cell, &gap]),
                        Side::Right => line.extend([gap.as_str(), cell]),
                    }
                    line.push_str(BETWEEN);
                }
                writeln!(out, "{}", line.trim_end())?;
            }
        }
        Ok(())
    }

    /// Writes each row as a list, its first cell above the others: a terminal too narrow for the columns would break them
    /// anywhere.
    fn write_lists(&self, used: &[usize], most: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
        let Some((first, others)) = used.split_first() else { return Ok(()) };
        let name = others.iter().map(|column| self.columns[*column].0.chars().count()).max().unwrap_or(0);
        for row in &self.rows {
            let cell = |column: &usize| row.get(*column).map_or("", String::as_str);
            writeln!(out, "{}", cell(first))?;
            for column in others.iter().filter(|column| !cell(column).is_empty()) {
                let beginning = format!("  {:<name$}  ", self.columns[*column].0);
                hanging_within(out, &beginning, cell(column), most)?;
            }
        }
        Ok(())
    }

    /// Widths of the printed columns.
    fn widths(&self, used: &[usize], most: Option<usize>) -> Vec<usize> {
        let mut widths: Vec<usize> = used.iter().map(|column| self.width(*column)).collect();
        let Some(most) = most else { return widths };
        let room = most.saturating_sub(BETWEEN.len() * widths.len().saturating_sub(1));
        let mut words: Vec<usize> = (0..used.len()).collect();
        words.retain(|index| self.columns[used[*index]].1 == Side::Left);
        while let Some(&widest) = words.iter().max_by_key(|index| widths[**index]) {
            let excess = widths.iter().sum::<usize>().saturating_sub(room);
            if excess == 0 {
                break;
            }
            // Columns of words share the deficit: none gets narrower than the next one as long as that is wider.
            let next = words.iter().filter(|index| **index != widest).map(|index| widths[*index]).max();
            let least = next.unwrap_or(0).max(self.longest_word(used[widest])).max(NARROW);
            let narrower = widths[widest].saturating_sub(excess).max(least);
            if narrower >= widths[widest] {
                words.retain(|index| *index != widest);
            } else {
                widths[widest] = narrower;
            }
        }
        widths
    }

    fn width(&self, column: usize) -> usize {
        self.lengths(column, |cell| cell.chars().count())
    }

    fn longest_word(&self, column: usize) -> usize {
        self.lengths(column, |cell| unbroken(cell).map(|word| word.chars().count()).max().unwrap_or(0))
    }

    fn lengths(&self, column: usize, of: impl Fn(&str) -> usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| of(cell)).chain([of(&self.columns[column].0)]).max().unwrap_or(0)
    }
}

/// Writes a line of words; on a terminal it is wrapped.
///
/// # Errors
/// Errors of `out`.
pub(crate) fn paragraph(out: &mut dyn Write, text: &str) -> io::Result<()> {
    let lines = wrapped(text, columns().unwrap_or(usize::MAX));
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))
}

/// Writes a text after a prefix; on a terminal further lines are indented below its first.
///
/// # Errors
/// Errors of `out`.
pub(crate) fn hanging(out: &mut dyn Write, beginning: &str, text: &str) -> io::Result<()> {
    hanging_within(out, beginning, text, columns())
}

fn hanging_within(out: &mut dyn Write, beginning: &str, text: &str, most: Option<usize>) -> io::Result<()> {
    let indent = beginning.chars().count();
    // If the prefix takes most of the width, the terminal's own wrapping is better.
    let room = most.map(|most| most.saturating_sub(indent)).filter(|room| *room >= 2 * NARROW);
    let lines = wrapped(text, room.unwrap_or(usize::MAX));
    for (number, line) in lines.iter().enumerate() {
        let beginning = if number == 0 { beginning } else { "" };
        writeln!(out, "{beginning:<indent$}{line}")?;
    }
    Ok(())
}

/// Wraps a text at `width` characters, at spaces, but not between a number and its unit; longer words stay whole.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in unbroken(text) {
        let Some(line) = lines.last_mut() else { break };
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// Splits into words; a number includes its unit.
fn unbroken(text: &str) -> impl Iterator<Item = &str> {
    let mut after_number = false;
    let mut begin = 0;
    let mut words = Vec::new();
    for (end, _) in text.match_indices(' ') {
        let last = text[begin..end].rsplit(' ').next().unwrap_or_default();
        let is_number = last.parse::<f64>().is_ok();
        if !is_number || after_number {
            words.push(&text[begin..end]);
            begin = end + 1;
        }
        after_number = is_number && !after_number;
    }
    words.push(&text[begin..]);
    words.into_iter()
}

/// Width of a line, as for the help: that of the terminal on standard output, else `COLUMNS`; `None` for a file or a pipe.
pub(crate) fn columns() -> Option<usize> {
    let of_terminal = terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
    of_terminal.or_else(|| std::env::var("COLUMNS").ok()?.parse().ok()).filter(|columns| *columns > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_empty_ones_vanish() {
        let mut table = Table::new(&[("name", Side::Left), ("none", Side::Left), ("n", Side::Right)]);
        table.row(["a".into(), String::new(), "100".into()]);
        table.row(["long one".into(), String::new(), "7".into()]);
        let mut text = Vec::new();
        table.write(&mut text).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), "name        n\na         100\nlong one    7\n");
    }

    #[test]
    fn further_lines_stand_below_the_first() {
        let text_of = |most: Option<usize>, beginning: &str| {
            let mut text = Vec::new();
            hanging_within(&mut text, beginning, "one two three four five six seven", most).unwrap();
            String::from_utf8(text).unwrap()
        };
        assert_eq!(text_of(Some(30), "ok  "), "ok  one two three four five\n    six seven\n");
        let whole = "ok  one two three four five six seven\n";
        assert_eq!((text_of(None, "ok  ").as_str(), text_of(Some(10), "ok  ").as_str()), (whole, whole));
    }

    fn lines(table: &Table, most: usize) -> Vec<String> {
        let mut text = Vec::new();
        table.write_within(Some(most), &mut text).unwrap();
        String::from_utf8(text).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn words_are_wrapped_and_numbers_are_not() {
        let mut table = Table::new(&[("worker", Side::Left), ("busy", Side::Right), ("with", Side::Left)]);
        table.row(["edge-small-0".into(), "36.2 %".into(), "features 30 %, speech 5.2 %, pair 0.1 %".into()]);
        let expected = [
            "worker          busy  with",
            "edge-small-0  36.2 %  features 30 %, speech",
            "                      5.2 %, pair 0.1 %",
        ];
        // A unit stays with its number.
        assert_eq!([lines(&table, 44), lines(&table, 47)], [expected, expected]);
        assert_eq!(lines(&table, 200).len(), 2);
        // If the columns do not fit each row is a list.
        let list =
            ["edge-small-0", "  busy  36.2 %", "  with  features 30 %, speech", "        5.2 %, pair 0.1 %"];
        assert_eq!(lines(&table, 32), list);
    }

    #[test]
    fn several_columns_of_words_share_what_is_missing() {
        let mut table = Table::new(&[("a", Side::Left), ("b", Side::Left)]);
        table.row([
            "one two three four five six".into(),
            "one two three four five six seven eight nine".into(),
        ]);
        let expected = [
            "a              b",
            "one two three  one two three four five six",
            "four five six  seven eight nine",
        ];
        assert_eq!(lines(&table, 42), expected);
    }

    proptest::proptest! {
        /// Wrapping loses no word, and no line exceeds the width if words are short.
        #[test]
        fn wrapped_text_has_all_words(words in proptest::collection::vec("[a-z]{1,8}", 1..40), width in 8usize..60) {
            let text = words.join(" ");
            let lines = wrapped(&text, width);
            proptest::prop_assert!(lines.iter().all(|line| line.chars().count() <= width));
            proptest::prop_assert_eq!(lines.join(" "), text);
        }
    }
}
