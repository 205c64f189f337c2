//! Columns of text, aligned.
use std::io::{self, Write};

/// Which side of a column its cells lean on.
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
    columns: Vec<(&'static str, Side)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows. A column without a cell is not printed.
    pub(crate) fn new(columns: &[(&'static str, Side)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; it has a cell for each column.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Writes the table.
    ///
    /// # Errors
    /// Those of `out`.
    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let header = self.columns.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>();
        let used: Vec<usize> = (0..self.columns.len())
            .filter(|column| {
                self.rows.iter().any(|row| row.get(*column).is_some_and(|cell| !cell.is_empty()))
            })
            .collect();
        for row in std::iter::once(&header).chain(&self.rows) {
            let mut line = String::new();
            for column in &used {
                let width = self.width(*column);
                let cell = row.get(*column).map_or("", String::as_str);
                let gap = " ".repeat(width.saturating_sub(cell.chars().count()));
                match self.columns[*column].1 {
                    Side::Left => line.extend([cell, &gap]),
                    Side::Right => line.extend([gap.as_str(), cell]),
                }
                line.push_str("  ");
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).chain([self.columns[column].0.len()]).max().unwrap_or(0)
    }
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
}
