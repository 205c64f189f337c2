//! Values of columns as a user gives them: files, texts and JSON.
use serde_json::Value;
use std::path::Path;
use tidemill_app::failure::{Failure, Kind};
use tidemill_inference::blueprint::{Blueprint, Wanted};
use tidemill_inference::cell::Cell;
use tidemill_inference::tensor::TensorData;
use tidemill_spec::types::{ColumnType, ElementType};

/// A column that the model reads.
#[derive(Debug, Clone)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) wanted: Wanted,
}

/// Form in which a column is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A file: a picture, a sound, or any bytes.
    File,
    Text,
    Tensor,
    /// A number, a truth value or a category.
    Feature,
}

impl Column {
    /// The columns that the model reads, each once.
    pub(super) fn all(blueprint: &Blueprint) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for read in blueprint.read_columns() {
            if all.iter().all(|column| column.name != read.name.value) {
                all.push(Self { name: read.name.value, wanted: read.wanted });
            }
        }
        all
    }

    pub(super) fn form(&self) -> Form {
        match &self.wanted {
            Wanted::Exactly(ColumnType::Image | ColumnType::Audio | ColumnType::Bytes) => Form::File,
            Wanted::Exactly(ColumnType::Tensor { .. }) => Form::Tensor,
            Wanted::Exactly(_) => Form::Text,
            Wanted::Feature(_) => Form::Feature,
        }
    }

    /// The name, with the type in words.
    pub(super) fn described(&self) -> String {
        let words = match &self.wanted {
            Wanted::Exactly(ColumnType::Image) => "a picture".to_owned(),
            Wanted::Exactly(ColumnType::Audio) => "a sound".to_owned(),
            Wanted::Exactly(ColumnType::Bytes) => "a file".to_owned(),
            Wanted::Exactly(ColumnType::Text) => "a text".to_owned(),
            Wanted::Exactly(other) => format!("{other}, a JSON list"),
            Wanted::Feature(feature) if feature.categories.is_empty() => "a number".to_owned(),
            Wanted::Feature(feature) => format!("one of {}", some(&feature.categories)),
        };
        format!("`{}` ({words})", self.name)
    }
}

/// The first of many words.
fn some(words: &[String]) -> String {
    const MOST: usize = 8;
    let mut text = words.iter().take(MOST).cloned().collect::<Vec<_>>().join(", ");
    if words.len() > MOST {
        text.push_str(", ...");
    }
    text
}

/// A mistake in a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mistake {
    /// A file that cannot be read.
    File(String),
    /// A value of another type.
    Value(String),
}

impl Mistake {
    /// Returns the error of a value from `place`, which has this kind unless a file is the cause.
    pub(super) fn failure(self, kind: Kind, place: &str) -> Failure {
        match self {
            Mistake::File(text) => Failure::new(Kind::Configuration, text),
            Mistake::Value(text) => Failure::new(kind, format!("{place}: {text}")),
        }
    }
}

/// A value of a column.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Given {
    Missing,
    Bytes(Vec<u8>),
    Text(String),
    Float(f64),
    Integer(i64),
    Truth(bool),
    Tensor(TensorData),
}

impl Given {
    /// The value as the model reads it.
    pub(super) fn cell(&self) -> Cell<'_> {
        match self {
            Self::Missing => Cell::Missing,
            Self::Bytes(bytes) => Cell::Bytes(bytes),
            Self::Text(text) => Cell::Text(text),
            Self::Float(value) => Cell::Float(*value),
            Self::Integer(value) => Cell::Integer(*value),
            Self::Truth(value) => Cell::Truth(*value),
            Self::Tensor(data) => match data {
                TensorData::Float32(values) => Cell::Float32(values),
                TensorData::Float16(values) => Cell::Float16(values),
                TensorData::Float64(values) => Cell::Float64(values),
                TensorData::Int64(values) => Cell::Int64(values),
                TensorData::Int32(values) => Cell::Int32(values),
                TensorData::Int8(values) => Cell::Int8(values),
                TensorData::Uint8(values) => Cell::Uint8(values),
                TensorData::Bool(values) => Cell::Bool(values),
                TensorData::Text(values) => Cell::Texts(values),
            },
        }
    }

    /// Copies a value out of a table.
    pub(super) fn of_cell(cell: Cell<'_>) -> Self {
        match cell {
            Cell::Missing => Self::Missing,
            Cell::Bytes(bytes) => Self::Bytes(bytes.to_vec()),
            Cell::Text(text) => Self::Text(text.to_owned()),
            Cell::Float(value) => Self::Float(value),
            Cell::Integer(value) => Self::Integer(value),
            Cell::Truth(value) => Self::Truth(value),
            Cell::Float32(values) => Self::Tensor(TensorData::Float32(values.to_vec())),
            Cell::Float16(values) => Self::Tensor(TensorData::Float16(values.to_vec())),
            Cell::Float64(values) => Self::Tensor(TensorData::Float64(values.to_vec())),
            Cell::Int64(values) => Self::Tensor(TensorData::Int64(values.to_vec())),
            Cell::Int32(values) => Self::Tensor(TensorData::Int32(values.to_vec())),
            Cell::Int8(values) => Self::Tensor(TensorData::Int8(values.to_vec())),
            Cell::Uint8(values) => Self::Tensor(TensorData::Uint8(values.to_vec())),
            Cell::Bool(values) => Self::Tensor(TensorData::Bool(values.to_vec())),
            Cell::Texts(values) => Self::Tensor(TensorData::Text(values.to_vec())),
        }
    }

    /// Reads the value of a column from a file of its own.
    pub(super) fn of_file(column: &Column, path: &Path) -> Result<Self, Mistake> {
        let cannot =
            |why: &dyn std::fmt::Display| Mistake::File(format!("cannot read {}: {why}", path.display()));
        let bytes = std::fs::read(path).map_err(|error| cannot(&error))?;
        let text = |bytes: Vec<u8>| {
            String::from_utf8(bytes)
                .map_err(|_| cannot(&format_args!("it is not text in UTF-8, as {} is", column.described())))
        };
        match column.form() {
            Form::File => Ok(Self::Bytes(bytes)),
            Form::Text => {
                let mut text = text(bytes)?;
                let length = text.trim_end_matches(['\n', '\r']).len();
                text.truncate(length);
                Ok(Self::Text(text))
            }
            Form::Tensor | Form::Feature => {
                let text = String::from_utf8(bytes).map_err(|_| {
                    cannot(&format_args!(
                        "it is not JSON. {} is a tensor; of a sound, `slices` in a workflow makes such windows",
                        column.described()
                    ))
                })?;
                let value = serde_json::from_str(&text)
                    .map_err(|error| cannot(&format_args!("{} is JSON, but {error}", column.described())))?;
                Self::of_json(column, &value, Path::new("")).map_err(|mistake| match mistake {
                    Mistake::Value(text) => Mistake::File(format!("{}: {text}", path.display())),
                    file @ Mistake::File(_) => file,
                })
            }
        }
    }

    /// Reads a value that is written as text; files are relative to `folder`.
    pub(super) fn of_text(column: &Column, text: &str, folder: &Path) -> Result<Self, Mistake> {
        match column.form() {
            Form::Text => Ok(Self::Text(text.to_owned())),
            _ if text.is_empty() => Ok(Self::Missing),
            Form::File => Self::of_file(column, &folder.join(text)),
            Form::Tensor => {
                let value = serde_json::from_str(text).map_err(|error| {
                    Mistake::Value(format!("{} is JSON, but {error}", column.described()))
                })?;
                Self::of_json(column, &value, folder)
            }
            Form::Feature => {
                if matches!(&column.wanted, Wanted::Feature(feature) if !feature.categories.is_empty()) {
                    return Ok(Self::Text(text.to_owned()));
                }
                let words = text.trim();
                match (words.parse::<i64>(), words.parse::<f64>(), words.to_ascii_lowercase().as_str()) {
                    (Ok(whole), _, _) => Ok(Self::Integer(whole)),
                    (_, Ok(number), _) => Ok(Self::Float(number)),
                    (_, _, "true") => Ok(Self::Truth(true)),
                    (_, _, "false") => Ok(Self::Truth(false)),
                    _ => Err(Mistake::Value(format!("`{text}` is no value of {}", column.described()))),
                }
            }
        }
    }

    /// Reads a JSON value; files are relative to `folder`.
    pub(super) fn of_json(column: &Column, value: &Value, folder: &Path) -> Result<Self, Mistake> {
        let wrong = || {
            let text = value.to_string();
            let text = tidemill_operators::values::shortened(&text, 40);
            Err(Mistake::Value(format!("{text} is no value of {}", column.described())))
        };
        match (&column.wanted, value) {
            (_, Value::Null) => Ok(Self::Missing),
            (Wanted::Exactly(ColumnType::Tensor { element, shape }), value) => {
                tensor(value, *element, shape).map(Self::Tensor).map_err(|why| {
                    Mistake::Value(format!("the list does not fit {}: {why}", column.described()))
                })
            }
            (Wanted::Exactly(_), Value::String(text)) => Self::of_text(column, text, folder),
            (Wanted::Feature(feature), Value::String(text)) if !feature.categories.is_empty() => {
                Ok(Self::Text(text.clone()))
            }
            (Wanted::Feature(_), Value::Bool(value)) => Ok(Self::Truth(*value)),
            (Wanted::Feature(_), Value::Number(number)) => match (number.as_i64(), number.as_f64()) {
                (Some(whole), _) => Ok(Self::Integer(whole)),
                (None, Some(number)) => Ok(Self::Float(number)),
                (None, None) => wrong(),
            },
            _ => wrong(),
        }
    }
}

/// Shape of nested lists; `None` if they have different lengths.
fn shape_of(value: &Value) -> Option<Vec<usize>> {
    let Value::Array(values) = value else { return Some(Vec::new()) };
    let mut inner = values.iter().map(shape_of);
    let first = inner.next().unwrap_or_else(|| Some(Vec::new()))?;
    inner.all(|other| other.as_ref() == Some(&first)).then(|| [&[values.len()], first.as_slice()].concat())
}

/// Reads nested lists of this shape, or one list of all values in order.
fn tensor(value: &Value, element: ElementType, shape: &[usize]) -> Result<TensorData, String> {
    let found = shape_of(value).ok_or("its lists have different lengths")?;
    let count: usize = shape.iter().product();
    if found != shape && found != [count] && !(found.is_empty() && count == 1) {
        return Err(format!("it has the shape {found:?}"));
    }
    let mut data = TensorData::zeros(element, 0);
    append(value, &mut data)?;
    Ok(data)
}

fn append(value: &Value, data: &mut TensorData) -> Result<(), String> {
    if let Value::Array(values) = value {
        return values.iter().try_for_each(|value| append(value, data));
    }
    let element = data.element();
    let wrong = || format!("{value} is not {element}");
    let within = |least: i64, most: i64| {
        value
            .as_i64()
            .filter(|number| (least..=most).contains(number))
            .map(|number| number as f64)
            .ok_or_else(wrong)
    };
    match data {
        TensorData::Int64(values) => values.push(value.as_i64().ok_or_else(wrong)?),
        TensorData::Bool(values) => values.push(value.as_bool().ok_or_else(wrong)?),
        TensorData::Text(values) => values.push(value.as_str().ok_or_else(wrong)?.to_owned()),
        data @ TensorData::Int32(_) => data.push(within(i32::MIN.into(), i32::MAX.into())?),
        data @ TensorData::Int8(_) => data.push(within(i8::MIN.into(), i8::MAX.into())?),
        data @ TensorData::Uint8(_) => data.push(within(0, u8::MAX.into())?),
        data => data.push(value.as_f64().ok_or_else(wrong)?),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tidemill_spec::manifest::Feature;

    fn column(wanted: Wanted) -> Column {
        Column { name: "c".to_owned(), wanted }
    }

    fn tensor_of(element: ElementType, shape: &[usize]) -> Column {
        column(Wanted::Exactly(ColumnType::Tensor { element, shape: shape.to_vec() }))
    }

    #[test]
    fn lists_become_tensors_of_their_type() {
        let of = |column: &Column, value: Value| Given::of_json(column, &value, Path::new(""));
        let matrix = tensor_of(ElementType::Float32, &[2, 2]);
        let right = Given::Tensor(TensorData::Float32(vec![1.0, 2.5, -3.0, 4.0]));
        assert_eq!(of(&matrix, json!([[1, 2.5], [-3, 4]])).unwrap(), right);
        assert_eq!(of(&matrix, json!([1, 2.5, -3, 4])).unwrap(), right);
        assert_eq!(Given::of_text(&matrix, "[1, 2.5, -3, 4]", Path::new("")).unwrap(), right);
        let large = i64::MAX - 1;
        let whole = tensor_of(ElementType::Int64, &[1]);
        assert_eq!(of(&whole, json!(large)).unwrap(), Given::Tensor(TensorData::Int64(vec![large])));
        let bytes = tensor_of(ElementType::Uint8, &[2]);
        for (column, value, why) in [
            (&matrix, json!([1, 2, 3]), "it has the shape [3]"),
            (&matrix, json!([[1, 2], [3]]), "different lengths"),
            (&matrix, json!([1, 2, 3, "4"]), "\"4\" is not float32"),
            (&bytes, json!([1, 256]), "256 is not uint8"),
            (&whole, json!([1.5]), "1.5 is not int64"),
        ] {
            let Err(Mistake::Value(text)) = of(column, value) else { panic!("{why}") };
            assert!(text.contains(why), "{text}");
        }
    }

    #[test]
    fn fields_of_a_table_become_numbers_or_categories() {
        let number = column(Wanted::Feature(Feature::plain("c")));
        let of = |text| Given::of_text(&number, text, Path::new(""));
        assert_eq!(of("3"), Ok(Given::Integer(3)));
        assert_eq!(of("-0.5"), Ok(Given::Float(-0.5)));
        assert_eq!(of("True"), Ok(Given::Truth(true)));
        assert_eq!(of(""), Ok(Given::Missing));
        assert_eq!(of("red"), Err(Mistake::Value("`red` is no value of `c` (a number)".to_owned())));
        let colours = Feature { categories: vec!["red".into(), "7".into()], ..Feature::plain("c") };
        let colours = column(Wanted::Feature(colours));
        assert_eq!(Given::of_text(&colours, "7", Path::new("")), Ok(Given::Text("7".to_owned())));
        let json = |value| Given::of_json(&colours, &value, Path::new(""));
        assert_eq!(json(json!(7)), Ok(Given::Integer(7)));
        assert_eq!(json(json!("red")), Ok(Given::Text("red".to_owned())));
        assert_eq!(json(Value::Null), Ok(Given::Missing));
        let Err(Mistake::Value(text)) = json(json!(["red"])) else { panic!("a list") };
        assert_eq!(text, "[\"red\"] is no value of `c` (one of red, 7)");
    }

    #[test]
    fn files_are_read_as_the_column_needs_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        std::fs::write(&path, "two\nlines\r\n").unwrap();
        let text = column(Wanted::Exactly(ColumnType::Text));
        let bytes = column(Wanted::Exactly(ColumnType::Image));
        assert_eq!(Given::of_file(&text, &path), Ok(Given::Text("two\nlines".to_owned())));
        let relative = Given::of_text(&bytes, "a.txt", folder.path());
        assert_eq!(relative, Ok(Given::Bytes(b"two\nlines\r\n".to_vec())));
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        let Err(Mistake::File(why)) = Given::of_file(&text, &path) else { panic!("no text") };
        assert!(why.contains("it is not text in UTF-8"), "{why}");
        let missing = Given::of_file(&bytes, &folder.path().join("none.png"));
        let Err(Mistake::File(why)) = missing else { panic!("no file") };
        assert!(why.contains("none.png: No such file"), "{why}");
    }
}
