//! The records to try a model on, from the arguments.
use super::given::{Column, Form, Given, Mistake};
use super::{tables, usage};
use crate::arguments::TryArguments;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tidemill_app::failure::{Failure, Kind};
use tidemill_inference::blueprint::Blueprint;
use tidemill_operators::values::shortened;
use tidemill_spec::diagnostic::suggestion;

/// Letters of a text in the name of its record.
const NAME: usize = 40;

/// Values by column.
pub(super) type Values = BTreeMap<String, Arc<Given>>;

/// A record to run.
pub(super) struct Record {
    /// Its origin: a file, a text, a row.
    pub(super) name: String,
    /// A value for each column that the model reads.
    pub(super) values: Values,
}

/// Collects the records of all arguments, in the order of files, texts and rows.
///
/// # Errors
/// Files that cannot be read, values of another type, columns without a value.
pub(super) fn collect(arguments: &TryArguments, blueprint: &Blueprint) -> Result<Vec<Record>, Failure> {
    let columns = Column::all(blueprint);
    let mut fixed = fixed(&arguments.set, &columns)?;
    let mut texts = arguments.texts.as_slice();
    let mut free: Vec<&Column> = columns.iter().filter(|column| !fixed.contains_key(&column.name)).collect();
    if let [text] = texts
        && free.len() > 1
    {
        // A question beside pictures belongs to each of them.
        let column = text_column(&free)?;
        fixed.insert(column.name.clone(), Arc::new(Given::Text(text.clone())));
        free.retain(|other| other.name != column.name);
        texts = &[];
    }
    let of = |kind: Kind, name: String, values: Values| {
        let values: Values =
            fixed.iter().map(|(name, value)| (name.clone(), Arc::clone(value))).chain(values).collect();
        match columns.iter().find(|column| !values.contains_key(&column.name)) {
            None => Ok(Record { name, values }),
            Some(column) => {
                let message = format!("{name} has no value for {}", column.described());
                Err(Failure::new(kind, message).with_help(format!("add `--set {}=VALUE`", column.name)))
            }
        }
    };
    let mut records = Vec::new();
    for path in &arguments.inputs {
        if tables::is_table(path) && !takes_any_file(&free) {
            for (name, values) in tables::rows(path, &free, arguments.most_rows as usize)? {
                records.push(of(Kind::Configuration, name, values)?);
            }
            continue;
        }
        let column = file_column(&free, path)?;
        let name = path.display().to_string();
        let value = Given::of_file(column, path);
        let value = value.map_err(|mistake| mistake.failure(Kind::Configuration, &name))?;
        let values = [(column.name.clone(), Arc::new(value))].into();
        records.push(of(Kind::Usage, name, values)?);
    }
    for text in texts {
        let values = [(text_column(&free)?.name.clone(), Arc::new(Given::Text(text.clone())))].into();
        records.push(of(Kind::Usage, format!("{:?}", shortened(text, NAME)), values)?);
    }
    for (number, row) in arguments.rows.iter().enumerate() {
        let name = format!("row {}", number + 1);
        let value: Value = serde_json::from_str(row)
            .map_err(|error| usage(format!("--row {row}: no JSON: {error}"), EXAMPLE))?;
        let values = tables::object(&value, &free, Path::new(""));
        let values = values.map_err(|mistake| mistake.failure(Kind::Usage, &name).with_help(EXAMPLE))?;
        records.push(of(Kind::Usage, name, values)?);
    }
    if records.is_empty() {
        if !free.is_empty() || fixed.is_empty() {
            let read: Vec<String> = free.iter().map(|column| column.described()).collect();
            let message = format!("nothing to run the model on; it reads {}", read.join(", "));
            return Err(usage(message, advice(&free)));
        }
        records.push(of(Kind::Usage, "the values of --set".to_owned(), Values::new())?);
    }
    Ok(records)
}

const EXAMPLE: &str = "write a JSON object, such as `--row '{\"age\": 3, \"colour\": \"red\"}'`";

/// The values that all records have.
fn fixed(set: &[String], columns: &[Column]) -> Result<Values, Failure> {
    let mut fixed = Values::new();
    for written in set {
        let Some((name, text)) = written.split_once('=') else {
            return Err(usage(format!("--set {written}: no `=`"), "write `--set COLUMN=VALUE`"));
        };
        let Some(column) = columns.iter().find(|column| column.name == name) else {
            let names = columns.iter().map(|column| column.name.as_str());
            let help = suggestion(name, names, "columns that the model reads");
            return Err(usage(format!("--set {written}: the model reads no column `{name}`"), help));
        };
        let value = Given::of_text(column, text, Path::new(""));
        let value =
            value.map_err(|mistake: Mistake| mistake.failure(Kind::Usage, &format!("--set {name}")))?;
        fixed.insert(name.to_owned(), Arc::new(value));
    }
    Ok(fixed)
}

/// How to give values to these columns.
fn advice(free: &[&Column]) -> String {
    let first = free.iter().find(|column| column.form() == Form::File).or(free.first());
    match first.map(|column| (column.form(), column.name.as_str())) {
        Some((Form::File, _)) => "name a file: `tidemill models try MANIFEST FILE`".to_owned(),
        Some((Form::Text, _)) => "write `--text TEXT`, or name a text file".to_owned(),
        Some((Form::Tensor, name)) => {
            format!("write `--set {name}='[...]'`, or name a file with the JSON list")
        }
        Some((Form::Feature, name)) => {
            format!("write `--row '{{\"{name}\": ...}}'`, or name a table (.csv, .jsonl, .parquet)")
        }
        None => "write `--set COLUMN=VALUE`".to_owned(),
    }
}

/// Whether a table is a file like any other for the model.
fn takes_any_file(free: &[&Column]) -> bool {
    use tidemill_inference::blueprint::Wanted;
    use tidemill_spec::types::ColumnType;
    matches!(free, [column] if matches!(column.wanted, Wanted::Exactly(ColumnType::Bytes)))
}

fn only<'a>(of: &[&'a Column], what: &str) -> Result<&'a Column, Failure> {
    match of {
        [column] => Ok(column),
        several => {
            let names: Vec<String> = several.iter().map(|column| column.described()).collect();
            let message = format!("{what} could be the value of {}", names.join(" or "));
            Err(usage(message, "say which: `--set COLUMN=VALUE` for the others, or for all of them"))
        }
    }
}

fn text_column<'a>(free: &[&'a Column]) -> Result<&'a Column, Failure> {
    let texts: Vec<&Column> = free.iter().copied().filter(|column| column.form() == Form::Text).collect();
    if texts.is_empty() {
        let read: Vec<String> = free.iter().map(|column| column.described()).collect();
        let read = if read.is_empty() { "nothing else".to_owned() } else { read.join(", ") };
        return Err(usage(format!("the model reads no text for `--text`, but {read}"), advice(free)));
    }
    only(&texts, "the text")
}

/// The column whose value is a file.
fn file_column<'a>(free: &[&'a Column], path: &Path) -> Result<&'a Column, Failure> {
    let of = |form: Form| -> Vec<&'a Column> {
        free.iter().copied().filter(|column| column.form() == form).collect()
    };
    let is_text = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("txt"));
    let order = match is_text {
        true => [Form::Text, Form::File, Form::Tensor],
        false => [Form::File, Form::Text, Form::Tensor],
    };
    // A list for a tensor is no text.
    let is_list = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json"));
    let order = if is_list { [Form::Tensor, Form::File, Form::Text] } else { order };
    let found = order.into_iter().map(of).find(|columns| !columns.is_empty());
    match found {
        Some(columns) => only(&columns, &format!("{}", path.display())),
        None if free.is_empty() => {
            let message = format!("{} is for no column: `--set` gives a value to each", path.display());
            Err(usage(message, "leave the file out, or one `--set`"))
        }
        None => {
            let read: Vec<String> = free.iter().map(|column| column.described()).collect();
            let message = format!("{} is no table; the model reads {}", path.display(), read.join(", "));
            Err(Failure::new(Kind::Configuration, message).with_help(advice(free)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_inference::blueprint::Wanted;
    use tidemill_spec::manifest::Feature;
    use tidemill_spec::types::{ColumnType, ElementType};

    fn column(name: &str, wanted: ColumnType) -> Column {
        Column { name: name.to_owned(), wanted: Wanted::Exactly(wanted) }
    }

    #[test]
    fn files_go_to_the_column_of_their_type() {
        let picture = column("picture", ColumnType::Image);
        let question = column("question", ColumnType::Text);
        let vector = column("vector", ColumnType::Tensor { element: ElementType::Float32, shape: vec![2] });
        let age = Column { name: "age".to_owned(), wanted: Wanted::Feature(Feature::plain("age")) };
        let all = [&picture, &question, &vector, &age];
        let of = |free: &[&Column], file: &str| {
            file_column(free, Path::new(file))
                .map(|column| column.name.clone())
                .map_err(|error| error.to_string())
        };
        assert_eq!(of(&all, "a.jpg").unwrap(), "picture");
        assert_eq!(of(&all, "a.TXT").unwrap(), "question");
        assert_eq!(of(&all, "a.json").unwrap(), "vector");
        assert_eq!(of(&[&question], "a.md").unwrap(), "question");
        let second = column("depth", ColumnType::Image);
        let error = of(&[&picture, &second], "a.jpg").unwrap_err();
        assert_eq!(error, "a.jpg could be the value of `picture` (a picture) or `depth` (a picture)");
        assert!(
            of(&[&age], "a.jpg").unwrap_err().contains("a.jpg is no table; the model reads `age` (a number)")
        );
        assert!(of(&[], "a.jpg").unwrap_err().contains("for no column"));
        assert!(text_column(&[&picture]).unwrap_err().to_string().contains("reads no text"));
    }

    #[test]
    fn values_for_all_records_name_their_column() {
        let columns = [column("question", ColumnType::Text), column("picture", ColumnType::Image)];
        let of = |text: &str| fixed(&[text.to_owned()], &columns);
        let values = of("question=a = b?").unwrap();
        assert_eq!(*values["question"], Given::Text("a = b?".to_owned()));
        let error = of("qestion=x").unwrap_err();
        assert!(error.help().unwrap().contains("`question`"), "{error}");
        assert_eq!(of("question").unwrap_err().kind(), Kind::Usage);
        let error = of("picture=none.png").unwrap_err();
        assert_eq!(error.kind(), Kind::Configuration, "{error}");
    }
}
