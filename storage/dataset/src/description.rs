//! `dataset.json`.
use crate::DatasetError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

/// Name of the file that describes a dataset.
pub const FILE: &str = "dataset.json";

/// Version of the format.
const VERSION: u32 = 1;

/// The columns of a dataset, and its shards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    version: u32,
    /// Columns of inputs, in order.
    pub inputs: Vec<Column>,
    /// Name of the label.
    pub label: String,
    /// Records without a label, which were left out.
    #[serde(default)]
    pub without_label: u64,
    /// Records without a value in a column of inputs, or with one that is no finite number, which were left out.
    #[serde(default)]
    pub without_input: u64,
    /// Rows of shards that were removed because newer ones came.
    #[serde(default)]
    pub removed: u64,
    /// Files with the rows, the oldest first.
    pub shards: Vec<Shard>,
}

/// A column of inputs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its values.
    #[serde(flatten)]
    pub form: Form,
}

impl Column {
    /// Creates a column.
    pub fn new(name: impl Into<String>, form: Form) -> Self {
        Self { name: name.into(), form }
    }
}

/// Form of the values of a column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Form {
    /// A number; true is 1 and false is 0.
    Number,
    /// Numbers of this shape.
    Tensor {
        /// Size of each dimension.
        shape: Vec<usize>,
    },
    /// A text.
    Text,
}

impl Form {
    /// Returns how many numbers a value has; a text has none.
    pub fn width(&self) -> Option<usize> {
        match self {
            Self::Number => Some(1),
            Self::Tensor { shape } => Some(shape.iter().product()),
            Self::Text => None,
        }
    }
}

/// A file with rows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// Its name in the folder.
    pub file: String,
    /// Committed rows.
    pub rows: u64,
    /// Bytes of these rows.
    pub bytes: u64,
    /// Rows of each class.
    pub classes: BTreeMap<String, u64>,
}

/// Returns the name of the shard of a number.
pub fn shard_name(number: u64) -> String {
    format!("rows-{number:06}.jsonl")
}

/// Returns the number of the shard of a name, if it is one.
pub fn shard_number(name: &str) -> Option<u64> {
    let number = name.strip_prefix("rows-")?.strip_suffix(".jsonl")?.parse().ok()?;
    (shard_name(number) == name).then_some(number)
}

impl Description {
    /// Creates the description of a dataset without rows.
    pub fn new(inputs: Vec<Column>, label: impl Into<String>) -> Self {
        let label = label.into();
        Self {
            version: VERSION,
            inputs,
            label,
            without_label: 0,
            without_input: 0,
            removed: 0,
            shards: Vec::new(),
        }
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> u64 {
        self.shards.iter().map(|shard| shard.rows).sum()
    }

    /// Returns the rows of each class.
    pub fn classes(&self) -> BTreeMap<String, u64> {
        let mut classes = BTreeMap::new();
        for (class, rows) in self.shards.iter().flat_map(|shard| &shard.classes) {
            *classes.entry(class.clone()).or_insert(0) += rows;
        }
        classes
    }

    /// Whether the rows of both have the same columns.
    pub fn has_columns_of(&self, other: &Self) -> bool {
        self.inputs == other.inputs && self.label == other.label
    }

    /// Reads the description of the dataset in a folder.
    ///
    /// # Errors
    /// There is none, or it is invalid.
    pub fn load(folder: &Path) -> Result<Self, DatasetError> {
        let path = folder.join(FILE);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(DatasetError::None { folder: folder.to_owned() });
            }
            Err(error) => return Err(DatasetError::File { path, error }),
        };
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let invalid = |error: &serde_json::Error| DatasetError::Description {
            path: path.clone(),
            line: error.line(),
            column: error.column(),
            what: error.to_string(),
        };
        let Versioned { version } = serde_json::from_slice(&bytes).map_err(|error| invalid(&error))?;
        if version != VERSION {
            return Err(DatasetError::Version { path, found: version, known: VERSION });
        }
        let read: Self = serde_json::from_slice(&bytes).map_err(|error| invalid(&error))?;
        let wrong = |what: String| DatasetError::Description { path: path.clone(), line: 1, column: 1, what };
        // A name with a folder in it would lead elsewhere.
        if let Some(shard) = read.shards.iter().find(|shard| shard_number(&shard.file).is_none()) {
            return Err(wrong(format!(
                "`{}` is no name of a shard, such as `{}`",
                shard.file,
                shard_name(1)
            )));
        }
        Ok(read)
    }

    /// Writes the description into a folder. The file has the old contents or the new ones, whatever happens; it is durable once
    /// [`Description::sync`] is done.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, folder: &Path) -> io::Result<()> {
        let new = folder.join(format!(".{FILE}.new"));
        let write = || -> io::Result<()> {
            let mut file = File::create(&new)?;
            file.write_all(&serde_json::to_vec_pretty(self)?)?;
            file.write_all(b"\n")?;
            drop(file);
            tidemill_disk::rename(&new, &folder.join(FILE))
        };
        write().inspect_err(|_| {
            // The new file is of no use.
            let _ = tidemill_disk::remove(&new);
        })
    }

    /// Makes the description in a folder durable.
    ///
    /// # Errors
    /// The disk fails.
    pub fn sync(folder: &Path) -> io::Result<()> {
        tidemill_disk::sync_all(&File::open(folder.join(FILE))?)?;
        tidemill_disk::sync_folder(folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let inputs = vec![
            Column::new("features", Form::Tensor { shape: vec![2, 3] }),
            Column::new("question", Form::Text),
            Column::new("age", Form::Number),
        ];
        let mut description = Description::new(inputs, "answer");
        let classes = BTreeMap::from([("red".to_owned(), 3)]);
        description.shards.push(Shard { file: shard_name(7), rows: 3, bytes: 90, classes: classes.clone() });
        description.shards.push(Shard { file: shard_name(8), rows: 3, bytes: 91, classes });
        description.save(folder.path()).unwrap();
        let read = Description::load(folder.path()).unwrap();
        assert_eq!(read, description);
        assert_eq!((read.rows(), read.classes()["red"]), (6, 6));
        let widths: Vec<_> = read.inputs.iter().map(|column| column.form.width()).collect();
        assert_eq!(widths, [Some(6), None, Some(1)]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        Description::sync(folder.path()).unwrap();
    }

    #[test]
    fn invalid_ones_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let load = || Description::load(folder.path()).unwrap_err();
        assert!(matches!(load(), DatasetError::None { .. }));
        let path = folder.path().join(FILE);
        std::fs::write(&path, "{\"version\": 1,\n \"inputs\": 3}").unwrap();
        let error = load();
        assert!(matches!(error, DatasetError::Description { line: 2, .. }), "{error}");
        std::fs::write(&path, "{\"version\": 9}").unwrap();
        assert!(load().to_string().contains("version 9"));
        let mut other = Description::new(Vec::new(), "a");
        other.shards.push(Shard { file: "../rows-000001.jsonl".into(), ..Shard::default() });
        other.save(folder.path()).unwrap();
        assert!(load().to_string().contains("no name of a shard"));
        assert!(!load().help().is_empty());
    }

    #[test]
    fn shards_have_numbers() {
        assert_eq!(shard_number(&shard_name(12)), Some(12));
        assert_eq!(shard_number(&shard_name(1_234_567)), Some(1_234_567));
        assert_eq!(shard_number("rows-12.jsonl"), None);
        assert_eq!(shard_number("rows-0000+1.jsonl"), None);
    }
}
