//! Examples from a CSV file with a header: a column for each input, and one for the class.
use crate::collected::{Collected, Column, Encoding};
use crate::data::Examples;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The reason why a CSV file is no dataset.
#[derive(Debug, thiserror::Error)]
pub enum CsvError {
    /// It cannot be read as CSV.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: csv::Error,
    },
    /// It has no such column.
    #[error("{}: there is no column `{column}`: the header has {known}", path.display())]
    Column {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// The columns of the file.
        known: String,
    },
    /// A value is no number.
    #[error("{}:{line}: column `{column}` has `{found}`: write a number", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The line, from 1 on.
        line: u64,
        /// The column.
        column: String,
        /// The text that was found.
        found: String,
    },
    /// It has no row.
    #[error("{}: there is no row after the header", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// Reads examples from a CSV file. The classes are the texts of the label's column, in their order: as numbers where all are numbers, else as
/// texts.
///
/// # Errors
/// The file cannot be read, has no such columns, or an input is no finite number.
///
/// ```
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("fruits.csv");
/// std::fs::write(&path, "weight,colour,fruit\n120,0.2,apple\n8,0.9,cherry\n130,0.3,apple\n")?;
/// let read = tidemill_training::csv::read(&path, &["weight".into(), "colour".into()], "fruit")?;
/// assert_eq!(read.names, ["apple", "cherry"]);
/// assert_eq!(read.examples.get(1), (&[8.0, 0.9][..], 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read(path: &Path, inputs: &[String], label: &str) -> Result<Collected, CsvError> {
    let failed = |error| CsvError::File { path: path.to_owned(), error };
    let mut reader = csv::Reader::from_path(path).map_err(failed)?;
    let header = reader.headers().map_err(failed)?.clone();
    let place = |column: &str| {
        let known = || header.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        header.iter().position(|name| name == column).ok_or_else(|| CsvError::Column {
            path: path.to_owned(),
            column: column.to_owned(),
            known: known(),
        })
    };
    let places = inputs.iter().map(|column| place(column)).collect::<Result<Vec<usize>, CsvError>>()?;
    let of_label = place(label)?;
    let (mut values, mut classes) = (Vec::new(), Vec::new());
    for record in reader.records() {
        let record = record.map_err(failed)?;
        for (column, place) in inputs.iter().zip(&places) {
            let found = record.get(*place).unwrap_or_default();
            let number = found.trim().parse::<f64>().ok().filter(|number| number.is_finite());
            values.push(number.ok_or_else(|| CsvError::Value {
                path: path.to_owned(),
                line: record.position().map_or(0, csv::Position::line),
                column: column.clone(),
                found: found.to_owned(),
            })?);
        }
        classes.push(record.get(of_label).unwrap_or_default().trim().to_owned());
    }
    if classes.is_empty() {
        return Err(CsvError::Empty { path: path.to_owned() });
    }
    let names = in_order(&classes);
    let labels = classes.iter().filter_map(|class| names.iter().position(|name| name == class)).collect();
    let examples = Examples { inputs: inputs.len(), classes: names.len(), values, labels };
    let column = |name: &String| Column { name: name.clone(), encoding: Encoding::Number };
    Ok(Collected { examples, names, columns: inputs.iter().map(column).collect() })
}

fn in_order(classes: &[String]) -> Vec<String> {
    let mut names: Vec<String> = classes.iter().collect::<BTreeSet<_>>().into_iter().cloned().collect();
    let number = |name: &String| name.parse::<f64>().ok().filter(|number| number.is_finite());
    if names.iter().all(|name| number(name).is_some()) {
        names.sort_by(|one, other| number(one).unwrap_or(0.0).total_cmp(&number(other).unwrap_or(0.0)));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Collected, CsvError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        std::fs::write(&path, text).unwrap();
        read(&path, &["x".to_owned()], "y")
    }

    #[test]
    fn mistakes_name_their_place() {
        for (text, words) in [
            ("x,z\n1,a\n", "no column `y`: the header has `x`, `z`"),
            ("x,y\n1,a\ntwo,b\n", "a.csv:3: column `x` has `two`: write a number"),
            ("x,y\nNaN,a\n", "write a number"),
            ("x,y\n", "no row"),
            ("x,y\n1\n", "a.csv"),
        ] {
            let error = of(text).unwrap_err().to_string();
            assert!(error.contains(words), "`{words}` is not in {error}");
        }
    }

    #[test]
    fn classes_that_are_numbers_are_in_the_order_of_numbers() {
        assert_eq!(of("y,x\n10,1\n9,1\n10,2\n").unwrap().names, ["9", "10"]);
        let read = of("y,x\nb,1\n9,1\n").unwrap();
        assert_eq!((read.names, read.examples.labels), (vec!["9".to_owned(), "b".to_owned()], vec![1, 0]));
    }
}
