//! Examples from a dataset that a sink of kind `dataset` has collected.
//!
//! ```
//! use std::collections::BTreeMap;
//! use tidemill_dataset::{Column, Description, Form, Shard};
//! use tidemill_training::collected::{self, Encodings};
//! let folder = tempfile::tempdir()?;
//! let text = "{\"word\":\"ab\",\"kind\":\"x\"}\n{\"word\":\"b\",\"kind\":\"y\"}\n";
//! std::fs::write(folder.path().join("rows-000001.jsonl"), text)?;
//! let mut description = Description::new(vec![Column::new("word", Form::Text)], "kind");
//! let shard = Shard { file: "rows-000001.jsonl".into(), rows: 2, bytes: text.len() as u64, classes: BTreeMap::new() };
//! description.shards.push(shard);
//! description.save(folder.path())?;
//!
//! // Without an encoding of its own, a text is its characters, each a vector with a 1 at its place in the alphabet.
//! let found = collected::read(folder.path(), &[], "kind", &Encodings::new())?;
//! assert_eq!(found.examples.get(0), (&[1.0, 0.0, 0.0, 1.0][..], 0));
//! assert_eq!(found.examples.get(1), (&[0.0, 1.0, 0.0, 0.0][..], 1));
//! assert_eq!(found.names, ["x", "y"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
use crate::characters::Characters;
use crate::data::Examples;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tidemill_dataset::{Cell, Form, Rows};
use tidemill_random::mixed;

/// Most characters of a text that has no encoding of its own.
const MOST_CHARACTERS: usize = 64;

/// Encodings of texts, by column.
pub type Encodings = BTreeMap<String, Characters>;

/// A column of inputs as numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its form.
    pub encoding: Encoding,
}

/// Form of a column as numbers.
#[derive(Debug, Clone, PartialEq)]
pub enum Encoding {
    /// One number, as it is.
    Number,
    /// The numbers of a tensor of this shape.
    Tensor(Vec<usize>),
    /// The characters of a text.
    Characters(Characters),
}

impl Column {
    /// Returns how many numbers it has.
    pub fn width(&self) -> usize {
        match &self.encoding {
            Encoding::Number => 1,
            Encoding::Tensor(shape) => shape.iter().product(),
            Encoding::Characters(characters) => characters.width(),
        }
    }
}

/// Examples with the names of their classes.
#[derive(Debug, Clone, PartialEq)]
pub struct Collected {
    /// Inputs, with the values of all columns one after another, and classes.
    pub examples: Examples,
    /// Name of each class.
    pub names: Vec<String>,
    /// Columns of the inputs, in order.
    pub columns: Vec<Column>,
}

/// Why a dataset gives no examples.
#[derive(Debug, thiserror::Error)]
pub enum CollectedError {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] tidemill_dataset::DatasetError),
    /// It has no such column.
    #[error("the dataset has no column `{name}`, it has: {known}")]
    Column {
        /// The name.
        name: String,
        /// Columns that it has.
        known: String,
    },
    /// It has another label.
    #[error("the label of the dataset is `{found}`, not `{wanted}`")]
    Label {
        /// Its label.
        found: String,
        /// The wanted one.
        wanted: String,
    },
    /// It has no rows.
    #[error(
        "the dataset has no rows ({left_out} records were left out: they had no label or no value of an input)"
    )]
    Empty {
        /// Records that the sink has left out.
        left_out: u64,
    },
}

impl CollectedError {
    /// Returns advice.
    pub fn help(&self) -> &'static str {
        match self {
            Self::Read(error) => error.help(),
            Self::Column { .. } => {
                "`inputs` names columns of the dataset; add the column to `inputs` of the sink"
            }
            Self::Label { .. } => "write the label of the sink that has collected the dataset",
            Self::Empty { .. } => "collect records with labels first",
        }
    }
}

/// Reads all rows of a dataset. `inputs`: columns in the order of the values, all if none are named; `encodings`: of texts. A text without
/// one gets the characters that its column has, as many as the longest text has and at most 64.
///
/// # Errors
/// See [`CollectedError`].
pub fn read(
    folder: &Path,
    inputs: &[String],
    label: &str,
    encodings: &Encodings,
) -> Result<Collected, CollectedError> {
    let rows = Rows::open(folder)?;
    let description = rows.description().clone();
    if description.label != label {
        return Err(CollectedError::Label { found: description.label, wanted: label.to_owned() });
    }
    let known = &description.inputs;
    let place = |name: &String| {
        known.iter().position(|column| column.name == *name).ok_or_else(|| CollectedError::Column {
            name: name.clone(),
            known: known.iter().map(|column| format!("`{}`", column.name)).collect::<Vec<_>>().join(", "),
        })
    };
    let places: Vec<usize> = match inputs {
        [] => (0..known.len()).collect(),
        inputs => inputs.iter().map(place).collect::<Result<_, _>>()?,
    };
    let columns = columns(folder, &description, &places, encodings)?;
    let (mut values, mut classes) = (Vec::new(), Vec::new());
    for row in rows {
        let row = row?;
        for (place, column) in places.iter().zip(&columns) {
            match (&row.inputs[*place], &column.encoding) {
                (Cell::Numbers(numbers), _) => values.extend_from_slice(numbers),
                (Cell::Text(text), Encoding::Characters(characters)) => characters.append(text, &mut values),
                // A column is text or numbers in all rows.
                (Cell::Text(_), Encoding::Number | Encoding::Tensor(_)) => {}
            }
        }
        classes.push(row.label);
    }
    if classes.is_empty() {
        let left_out = description.without_label + description.without_input;
        return Err(CollectedError::Empty { left_out });
    }
    let names: BTreeSet<&String> = classes.iter().collect();
    let numbers: BTreeMap<&String, usize> =
        names.iter().enumerate().map(|(number, name)| (*name, number)).collect();
    let labels = classes.iter().filter_map(|name| numbers.get(name).copied()).collect();
    let names: Vec<String> = names.into_iter().cloned().collect();
    let width = columns.iter().map(Column::width).sum();
    let examples = Examples { inputs: width, classes: names.len(), values, labels };
    Ok(Collected { examples, names, columns })
}

/// Gives each column its form; texts without an encoding are read once more for that.
fn columns(
    folder: &Path,
    description: &tidemill_dataset::Description,
    places: &[usize],
    encodings: &Encodings,
) -> Result<Vec<Column>, CollectedError> {
    let columns = places.iter().map(|place| {
        let column = &description.inputs[*place];
        let encoding = match (&column.form, encodings.get(&column.name)) {
            (Form::Number, _) => Encoding::Number,
            (Form::Tensor { shape }, _) => Encoding::Tensor(shape.clone()),
            (Form::Text, Some(characters)) => Encoding::Characters(characters.clone()),
            (Form::Text, None) => Encoding::Characters(characters_of(folder, *place)?),
        };
        Ok(Column { name: column.name.clone(), encoding })
    });
    columns.collect()
}

fn characters_of(folder: &Path, place: usize) -> Result<Characters, CollectedError> {
    let (mut alphabet, mut longest) = (BTreeSet::new(), 1);
    for row in Rows::open(folder)? {
        if let Cell::Text(text) = &row?.inputs[place] {
            alphabet.extend(text.chars());
            longest = longest.max(text.chars().count());
        }
    }
    // A text without characters still has a place for one.
    if alphabet.is_empty() {
        alphabet.insert(' ');
    }
    Ok(Characters::new(&alphabet.into_iter().collect::<String>(), longest.min(MOST_CHARACTERS)))
}

impl Collected {
    /// Numbers the classes in the order of `names`, with those that it does not name after them.
    #[must_use]
    pub fn named(mut self, names: &[String]) -> Self {
        let mut all = names.to_vec();
        all.extend(self.names.iter().filter(|name| !names.contains(name)).cloned());
        let place = |name: &String| all.iter().position(|other| other == name).unwrap_or_default();
        let places: Vec<usize> = self.names.iter().map(place).collect();
        self.examples.labels.iter_mut().for_each(|label| *label = places[*label]);
        self.examples.classes = all.len();
        self.names = all;
        self
    }

    /// Divides the examples into those to learn from and those that are held out: about `held_out` of all. The inputs alone decide, so
    /// equal inputs are on the same side, and an example that was held out once is so in each later dataset.
    pub fn split(&self, held_out: f64) -> (Examples, Examples) {
        let empty = || Examples { values: Vec::new(), labels: Vec::new(), ..self.examples.clone() };
        let (mut learnt, mut held) = (empty(), empty());
        for index in 0..self.examples.len() {
            let (values, label) = self.examples.get(index);
            let digest = values.iter().fold(0, |digest, value| mixed(digest ^ value.to_bits()));
            let side =
                if (digest >> 11) as f64 / (1u64 << 53) as f64 >= held_out { &mut learnt } else { &mut held };
            side.values.extend_from_slice(values);
            side.labels.push(label);
        }
        (learnt, held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;
    use tidemill_dataset::{Description, Shard, shard_name};

    fn dataset(folder: &Path, rows: usize) {
        let inputs = vec![
            tidemill_dataset::Column::new("size", Form::Number),
            tidemill_dataset::Column::new("word", Form::Text),
            tidemill_dataset::Column::new("features", Form::Tensor { shape: vec![2] }),
        ];
        let mut description = Description::new(inputs, "kind");
        let mut text = String::new();
        for row in 0..rows {
            let kind = ["b", "a", "c"][row % 3];
            let _ = writeln!(
                text,
                "{{\"size\":{row},\"word\":\"x{}\",\"features\":[{row},0.5],\"kind\":\"{kind}\"}}",
                row % 2
            );
        }
        std::fs::write(folder.join(shard_name(1)), &text).unwrap();
        let (file, bytes) = (shard_name(1), text.len() as u64);
        description.shards.push(Shard { file, rows: rows as u64, bytes, ..Shard::default() });
        description.save(folder).unwrap();
    }

    #[test]
    fn columns_are_in_the_wanted_order() {
        let folder = tempfile::tempdir().unwrap();
        dataset(folder.path(), 3);
        let encodings = Encodings::from([("word".to_owned(), Characters::new("1x", 2))]);
        let wanted = ["features".to_owned(), "word".to_owned()];
        let found = read(folder.path(), &wanted, "kind", &encodings).unwrap();
        assert_eq!(found.names, ["a", "b", "c"]);
        assert_eq!(found.columns.iter().map(Column::width).collect::<Vec<_>>(), [2, 4]);
        assert_eq!(found.examples.get(0), (&[0.0, 0.5, 0.0, 1.0, 0.0, 0.0][..], 1));
        assert_eq!(found.examples.get(1), (&[1.0, 0.5, 0.0, 1.0, 1.0, 0.0][..], 0));
        let named = found.named(&["z".to_owned(), "b".to_owned()]);
        assert_eq!(named.names, ["z", "b", "a", "c"]);
        assert_eq!((named.examples.labels.as_slice(), named.examples.classes), (&[1, 2, 3][..], 4));
    }

    #[test]
    fn what_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let read = |inputs: &[&str], label: &str| {
            let inputs: Vec<String> = inputs.iter().map(|name| (*name).to_owned()).collect();
            read(folder.path(), &inputs, label, &Encodings::new()).unwrap_err()
        };
        assert!(matches!(read(&[], "kind"), CollectedError::Read(_)));
        dataset(folder.path(), 0);
        assert!(matches!(read(&[], "kind"), CollectedError::Empty { .. }));
        let error = read(&["sizes"], "kind");
        assert!(error.to_string().contains("`size`, `word`, `features`"), "{error}");
        assert!(read(&[], "kinds").to_string().contains("is `kind`, not `kinds`"));
        assert!(!error.help().is_empty());
    }

    #[test]
    fn what_is_held_out_stays_so() {
        let folder = tempfile::tempdir().unwrap();
        let held = |rows: usize| {
            dataset(folder.path(), rows);
            let all = read(folder.path(), &["size".to_owned()], "kind", &Encodings::new()).unwrap();
            let (learnt, held) = all.split(0.3);
            assert_eq!(learnt.len() + held.len(), rows);
            held
        };
        let (few, many) = (held(300), held(900));
        assert!((60..=120).contains(&few.len()), "{}", few.len());
        assert_eq!(many.values[..few.len()], few.values);
    }
}
