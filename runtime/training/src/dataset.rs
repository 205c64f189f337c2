//! Examples of files.
use crate::collected::{self, Collected, CollectedError, Encodings};
use crate::csv::{self, CsvError};
use std::path::{Path, PathBuf};

/// The reason why a dataset cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// It is no file that is known.
    #[error("{} is no dataset: name a folder of a sink `dataset`, or a file `.csv` with a header", path.display())]
    Unknown {
        /// The path.
        path: PathBuf,
    },
    /// The CSV file is wrong.
    #[error(transparent)]
    Csv(#[from] CsvError),
    /// The folder is wrong.
    #[error("{error}: {}", error.help())]
    Collected {
        /// Cause.
        #[from]
        error: CollectedError,
    },
}

impl DatasetError {
    /// Returns the column that the dataset lacks, if that is the error.
    pub fn column(&self) -> Option<&str> {
        match self {
            Self::Csv(CsvError::Column { column, .. }) => Some(column),
            Self::Collected { error: CollectedError::Column { name, .. } } => Some(name),
            _ => None,
        }
    }
}

/// Reads a dataset: a `.csv` file, or a folder that a sink of kind `dataset` has written.
///
/// # Errors
/// It cannot be read, or has no such columns.
pub fn read(
    path: &Path,
    inputs: &[String],
    label: &str,
    encodings: &Encodings,
) -> Result<Collected, DatasetError> {
    if path.is_dir() {
        return Ok(collected::read(path, inputs, label, encodings)?);
    }
    match path.extension().is_some_and(|extension| extension == "csv") && path.is_file() {
        true => Ok(csv::read(path, inputs, label)?),
        false => Err(DatasetError::Unknown { path: path.to_owned() }),
    }
}
