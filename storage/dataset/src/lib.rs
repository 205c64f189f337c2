//! Labelled records in a folder: the sink `dataset` writes them, and trainings read them.
//!
//! ```text
//! answered/
//!   dataset.json          columns, classes with their counts, and the shards with their committed rows and bytes
//!   rows-000007.jsonl     {"features":[0.1,...],"question":"how many rings are there","answer":"two"}
//!   rows-000008.jsonl
//! ```
//! A shard only grows, and `dataset.json` is replaced as a whole after it has grown. So a reader that takes as many bytes of each shard as
//! `dataset.json` says sees whole rows, also while a run writes. Labels are texts in the rows, whatever their column was.
//!
//! | module | holds |
//! |---|---|
//! | `description` | `dataset.json`: [`Description`] |
//! | `rows` | the rows of all shards: [`Rows`] |
//!
//! ```
//! use std::collections::BTreeMap;
//! use tidemill_dataset::{Cell, Column, Description, Form, Rows, Shard};
//! let folder = tempfile::tempdir()?;
//! let text = "{\"width\":3.5,\"kind\":\"van\"}\n{\"width\":2.0,\"kind\":\"car\"}\n";
//! std::fs::write(folder.path().join("rows-000001.jsonl"), text)?;
//! let classes = BTreeMap::from([("van".to_owned(), 1), ("car".to_owned(), 1)]);
//! let mut description = Description::new(vec![Column::new("width", Form::Number)], "kind");
//! description.shards.push(Shard { file: "rows-000001.jsonl".into(), rows: 2, bytes: text.len() as u64, classes });
//! description.save(folder.path())?;
//!
//! let rows = Rows::open(folder.path())?;
//! assert_eq!(rows.description().classes()["car"], 1);
//! let rows: Vec<_> = rows.collect::<Result<_, _>>()?;
//! assert_eq!((&rows[0].label[..], &rows[0].inputs[..]), ("van", &[Cell::Numbers(vec![3.5])][..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
mod description;
mod rows;

pub use description::{Column, Description, FILE, Form, Shard, shard_name, shard_number};
pub use rows::{Cell, Row, Rows};

use std::path::PathBuf;

/// Why a dataset cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// A file cannot be read.
    #[error("`{}` cannot be read: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Cause.
        error: std::io::Error,
    },
    /// The folder has no `dataset.json`.
    #[error("`{}` is no dataset: it has no `{FILE}`", folder.display())]
    None {
        /// The folder.
        folder: PathBuf,
    },
    /// `dataset.json` is invalid.
    #[error("`{}`, line {line}, column {column}: {what}", path.display())]
    Description {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// Description.
        what: String,
    },
    /// `dataset.json` has a version that is not known.
    #[error("`{}` has version {found} of the format, and {known} is known", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The version of this program.
        known: u32,
    },
    /// A shard is shorter than `dataset.json` says.
    #[error("`{}` has {found} bytes, and {expected} are recorded", path.display())]
    Short {
        /// The shard.
        path: PathBuf,
        /// Its bytes.
        found: u64,
        /// The recorded bytes.
        expected: u64,
    },
    /// A row is invalid.
    #[error("`{}`, line {line}: {what}", path.display())]
    Row {
        /// The shard.
        path: PathBuf,
        /// Line, from 1.
        line: u64,
        /// Description.
        what: String,
    },
}

impl DatasetError {
    /// Returns advice.
    pub fn help(&self) -> &'static str {
        match self {
            Self::File { .. } => "check that the folder is there and can be read",
            Self::None { .. } => "name the folder that a sink of kind `dataset` has in `path`",
            Self::Description { .. } | Self::Row { .. } => "restore the file, or collect the records again",
            Self::Version { .. } => "use the version of the program that wrote it",
            Self::Short { .. } => {
                "a run is continuing it or has lost rows: read it again, and if that does not help collect the records again"
            }
        }
    }
}
