//! The table of a `lookup`: rows of a file, found by their key.
use super::keys::Keys;
use crate::api::OperatorError;
use crate::sources::table::{Form, Whole, WholeError, read_whole};
use arrow_array::RecordBatch;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tidemill_spec::types::Column;
use tidemill_spec::units::Bytes;

/// A table. Its first columns are the key.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) rows: RecordBatch,
    by_key: HashMap<Box<[u8]>, u32>,
}

/// A row that no key finds.
#[derive(Debug, PartialEq, Eq)]
enum Unfound {
    /// A part of its key is empty.
    Empty(usize),
    /// It has the key of an earlier row.
    Twice { first: usize, row: usize },
}

impl Table {
    fn of(rows: RecordBatch, keys: usize) -> Result<Self, Unfound> {
        let values = Keys::from_arrays(rows.columns().iter().take(keys));
        let mut by_key = HashMap::with_capacity(rows.num_rows());
        let mut key = Vec::new();
        for row in 0..rows.num_rows() {
            key.clear();
            if !values.encode(row, &mut key) {
                return Err(Unfound::Empty(row));
            }
            match by_key.entry(key.as_slice().into()) {
                Entry::Vacant(entry) => drop(entry.insert(row as u32)),
                Entry::Occupied(entry) => return Err(Unfound::Twice { first: *entry.get() as usize, row }),
            }
        }
        Ok(Self { rows, by_key })
    }

    /// Returns the table with the rows of another one.
    pub(super) fn again(rows: RecordBatch, keys: usize) -> Result<Self, OperatorError> {
        Self::of(rows, keys).map_err(|_| {
            OperatorError::new(
                "lookup: the rows of the table are not one for each key: start the run from the beginning",
            )
        })
    }

    /// Returns the row of an encoded key.
    pub(super) fn row(&self, key: &[u8]) -> Option<u32> {
        self.by_key.get(key).copied()
    }
}

/// Error of reading a table.
#[derive(Debug, thiserror::Error)]
pub(super) enum TableError {
    /// The file is not right.
    #[error(transparent)]
    File(#[from] WholeError),
    /// It has no rows: it may be about to be written.
    #[error("`{}` has no rows", path.display())]
    Empty { path: PathBuf },
    /// A key is empty.
    #[error("`{name}`, line {line}: the key {columns} is empty")]
    NoKey { name: String, line: u64, columns: String },
    /// A key is there twice.
    #[error("`{name}`, line {line}: the key {columns} is that of line {first}")]
    Twice { name: String, line: u64, first: u64, columns: String },
    /// It changed meanwhile.
    #[error("`{}` changed while it was read", path.display())]
    Changed { path: PathBuf },
}

impl TableError {
    /// Returns advice.
    pub(super) fn help(&self) -> String {
        match self {
            Self::File(error) => error.help(),
            Self::Empty { .. } => "write one row for each key".to_owned(),
            Self::NoKey { .. } => "write a key, or remove the line".to_owned(),
            Self::Twice { .. } => "keep one of the two lines, or add a column to `key`".to_owned(),
            Self::Changed { .. } => {
                "start again when it is complete; to replace it, write another file and rename it".to_owned()
            }
        }
    }
}

/// Identity of a file and of its content, without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
    number: (u64, u64),
}

impl Stamp {
    /// Returns the stamp of the file at a path, if it is there.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let found = std::fs::metadata(path).ok()?;
        Some(Self { modified: found.modified().ok(), bytes: found.len(), number: (found.dev(), found.ino()) })
    }
}

/// A file, and the columns to read from it.
#[derive(Debug)]
pub(super) struct Place {
    /// The path in the workflow.
    pub(super) written: String,
    /// Resolved relative to the workflow file.
    pub(super) path: PathBuf,
    pub(super) form: Form,
    /// Columns, those of the key first.
    pub(super) columns: Vec<Column>,
    /// Number of columns of the key.
    pub(super) keys: usize,
    /// Most bytes of the values.
    pub(super) most: Bytes,
}

impl Place {
    /// Reads the table, with the stamp of the file.
    pub(super) fn read(&self) -> Result<(Table, Stamp), TableError> {
        let before = Stamp::of(&self.path);
        let read = self.read_now();
        match before {
            // Whatever is wrong with it may be so because it was being written.
            Some(stamp) if before == Stamp::of(&self.path) => Ok((read?, stamp)),
            Some(_) => Err(TableError::Changed { path: self.path.clone() }),
            None => read.and_then(|_| Err(TableError::Changed { path: self.path.clone() })),
        }
    }

    fn read_now(&self) -> Result<Table, TableError> {
        let whole = read_whole((&self.written, &self.path), &self.columns, self.form, self.most)?;
        let Whole { rows, lines, name } = whole;
        if rows.num_rows() == 0 {
            return Err(TableError::Empty { path: self.path.clone() });
        }
        let shown = rows.clone();
        Table::of(rows, self.keys).map_err(|unfound| match unfound {
            Unfound::Empty(row) => {
                let columns = self.key_names().join(", ");
                TableError::NoKey { name, line: lines[row], columns }
            }
            Unfound::Twice { first, row } => {
                let values = crate::values::payload_values(&shown, row);
                let parts = self.key_names().into_iter().zip(values.values());
                let columns: Vec<String> =
                    parts.map(|(column, value)| format!("{column} = {value}")).collect();
                let (line, first) = (lines[row], lines[first]);
                TableError::Twice { name, line, first, columns: columns.join(", ") }
            }
        })
    }

    fn key_names(&self) -> Vec<String> {
        self.columns.iter().take(self.keys).map(|column| format!("`{}`", column.name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_spec::types::ColumnType;

    fn place(folder: &Path, keys: usize) -> Place {
        Place {
            written: "t.csv".into(),
            path: folder.join("t.csv"),
            form: Form::Csv,
            columns: vec![Column::new("site", ColumnType::Text), Column::new("n", ColumnType::Int64)],
            keys,
            most: Bytes(1 << 20),
        }
    }

    #[test]
    fn a_key_is_in_one_row() {
        let folder = tempfile::tempdir().unwrap();
        for (content, keys, message) in [
            ("site,n\na,1\nb,2\n\na,3\n", 1, "`t.csv`, line 5: the key `site` = \"a\" is that of line 2"),
            (
                "site,n\na,1\na,2\na,1\n",
                2,
                "`t.csv`, line 4: the key `site` = \"a\", `n` = 1 is that of line 2",
            ),
            ("site,n\na,1\na,\n", 2, "`t.csv`, line 3: the key `site`, `n` is empty"),
            ("site,n\n", 1, "has no rows"),
            ("site,n\na,x\n", 1, "`t.csv`, line 2: column `n`: `x` is not int64"),
        ] {
            std::fs::write(folder.path().join("t.csv"), content).unwrap();
            let error = place(folder.path(), keys).read().unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
            assert!(!error.help().is_empty());
        }
        let error = place(&folder.path().join("elsewhere"), 1).read().unwrap_err();
        assert!(error.to_string().contains("does not exist"), "{error}");
    }

    #[test]
    fn another_file_has_another_stamp() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.csv");
        assert_eq!(Stamp::of(&path), None);
        std::fs::write(&path, "site,n\na,1\n").unwrap();
        let (_, stamp) = place(folder.path(), 1).read().unwrap();
        assert_eq!(Some(stamp), Stamp::of(&path));
        std::fs::write(folder.path().join("new"), "site,n\na,2\n").unwrap();
        std::fs::rename(folder.path().join("new"), &path).unwrap();
        assert_ne!(Some(stamp), Stamp::of(&path));
    }
}
