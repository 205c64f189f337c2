//! Records of a tap as lines: for people with their pictures below, or as JSON.
use super::picture::{Pictures, size_of};
use super::saved::Folder;
use crate::answer::Answer;
use crate::arguments::{OutputForm, TapArguments};
use crate::visible::visible;
use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::Path;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::machine::event_moment;
use tidemill_operators::record::{METADATA_COLUMNS, Metadata};
use tidemill_operators::relational::expression::Expression;
use tidemill_operators::sinks::json_rows;
use tidemill_operators::values::{Values, shortened};
use tidemill_spec::types::{ColumnType, StreamType};

/// Longest value in a line for people, in characters.
const LONGEST: usize = 120;

/// Shows records.
pub(super) struct Shown {
    stream: StreamType,
    columns: Vec<String>,
    condition: Option<Expression>,
    /// Pictures and sounds among the shown columns: index, name.
    media: Vec<(usize, String)>,
    is_json: bool,
    limit: Option<u64>,
    pictures: Pictures,
    folder: Option<Folder>,
    count: u64,
}

impl Shown {
    /// # Errors
    /// Columns or a condition that do not fit the records; a folder that cannot be made.
    pub(super) fn new(arguments: &TapArguments, stream: &StreamType) -> anyhow::Result<Self> {
        let names =
            || stream.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>().join(", ");
        for wanted in &arguments.columns {
            if !stream.columns.iter().any(|column| column.name == *wanted) {
                return Err(Failure::new(
                    Kind::Usage,
                    format!("`{}` has no column `{wanted}`", arguments.edge),
                )
                .with_help(format!("its columns: {}", names()))
                .into());
            }
        }
        let condition = arguments.condition.as_deref().map(|text| condition(text, stream)).transpose()?;
        let is_shown = |name: &String| arguments.columns.is_empty() || arguments.columns.contains(name);
        let media = stream.columns.iter().enumerate().filter(|(_, column)| {
            matches!(column.column_type, ColumnType::Image | ColumnType::Audio | ColumnType::Bytes)
                && is_shown(&column.name)
        });
        let is_json = arguments.output == OutputForm::Json;
        Ok(Self {
            stream: stream.clone(),
            columns: arguments.columns.clone(),
            condition,
            media: media.map(|(index, column)| (index, column.name.clone())).collect(),
            is_json,
            limit: arguments.limit,
            pictures: if is_json { Pictures::Words } else { Pictures::of(arguments.pictures) },
            folder: arguments.save.as_deref().map(|path| Folder::open(path, &arguments.edge)).transpose()?,
            count: 0,
        })
    }

    /// Number of records shown so far.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Shows the records of a batch that fulfil the condition, up to the limit.
    pub(super) fn show(&mut self, batch: &RecordBatch, out: &mut Answer) -> anyhow::Result<()> {
        let holds = self.condition.as_ref().map(|condition| condition.holds(batch).0);
        let chosen = (0..batch.num_rows()).filter(|row| holds.as_ref().is_none_or(|holds| holds.value(*row)));
        for row in chosen {
            if self.limit.is_some_and(|limit| self.count >= limit) {
                break;
            }
            self.count += 1;
            let mut values = json_rows(&self.stream, &batch.slice(row, 1))
                .map_err(|error| Failure::new(Kind::Defect, error.to_string()))?
                .pop()
                .unwrap_or_default();
            self.describe_media(batch, row, &mut values)?;
            if !self.columns.is_empty() {
                values.retain(|name, _| name.starts_with('_') || self.columns.contains(name));
            }
            match self.is_json {
                true => writeln!(out, "{}", Value::Object(values))?,
                false => self.show_line(batch, row, &values, out)?,
            }
        }
        Ok(out.flush()?)
    }

    /// Replaces pictures and sounds by what is known of them, and writes their files.
    fn describe_media(&self, batch: &RecordBatch, row: usize, values: &mut Values) -> anyhow::Result<()> {
        for (index, name) in &self.media {
            let column = batch.column(METADATA_COLUMNS + index).as_binary::<i32>();
            if arrow_array::Array::is_null(column, row) {
                continue;
            }
            let bytes = column.value(row);
            let mut about = json!({"bytes": bytes.len()});
            if let Some((width, height)) = size_of(bytes) {
                (about["width"], about["height"]) = (width.into(), height.into());
            }
            if let Some(folder) = &self.folder {
                let metadata = Metadata::of(batch);
                let several = (self.media.len() > 1).then_some(name.as_str());
                if let Some(path) =
                    folder.write(metadata.times.value(row), &metadata.id(row), several, bytes)?
                {
                    about["file"] = path.to_string_lossy().into();
                }
            }
            values.insert(name.clone(), about);
        }
        Ok(())
    }

    fn show_line(
        &self,
        batch: &RecordBatch,
        row: usize,
        values: &Values,
        out: &mut Answer,
    ) -> io::Result<()> {
        let time = Metadata::of(batch).times.value(row);
        write!(out, "{}", event_moment(time))?;
        for (name, value) in values.iter().filter(|(name, _)| *name != "_time") {
            let is_medium = self.media.iter().any(|(_, medium)| medium == name);
            let text = if is_medium { medium(name, value) } else { format!("{name}={}", plain(value)) };
            write!(out, "  {text}")?;
        }
        writeln!(out)?;
        for (index, _) in &self.media {
            let column = batch.column(METADATA_COLUMNS + index).as_binary::<i32>();
            if !arrow_array::Array::is_null(column, row)
                && let Some(picture) = self.pictures.draw(column.value(row))
            {
                out.control(&picture);
            }
        }
        Ok(())
    }
}

fn condition(text: &str, stream: &StreamType) -> Result<Expression, Failure> {
    let compiled = Expression::compile(text, stream).map_err(|error| {
        let failure = Failure::new(Kind::Usage, format!("`--where`: {error}"));
        match error.help {
            Some(help) => failure.with_help(help),
            None => failure,
        }
    })?;
    match compiled.result() {
        Some(ColumnType::Bool) => Ok(compiled),
        found => {
            let found = found.map_or_else(|| "null".to_owned(), |found| found.to_string());
            Err(Failure::new(Kind::Usage, format!("`--where` must be a bool, `{text}` is {found}"))
                .with_help("write a comparison, such as `score > 0.9`"))
        }
    }
}

/// A picture or a sound in words.
fn medium(name: &str, value: &Value) -> String {
    let size = match (&value["width"], &value["height"]) {
        (Value::Number(width), Value::Number(height)) => format!("{width}x{height}"),
        _ => match value["bytes"].as_u64() {
            Some(bytes) => format!("{bytes} bytes"),
            None => return format!("{name}=null"),
        },
    };
    match value["file"].as_str().map(Path::new).and_then(Path::file_name) {
        Some(file) => format!("{name} {size} {}", file.to_string_lossy()),
        None => format!("{name} {size}"),
    }
}

/// A value without quotes if it is one word.
fn plain(value: &Value) -> String {
    let text = match value {
        Value::String(text)
            if !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c == '"') =>
        {
            text.clone()
        }
        other => other.to_string(),
    };
    visible(&shortened(&text, LONGEST)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_one_line_and_none_is_long() {
        assert_eq!(plain(&json!("car")), "car");
        assert_eq!(plain(&json!("a red car")), "\"a red car\"");
        assert_eq!(plain(&json!("two\nlines")), "\"two\\nlines\"");
        assert_eq!(plain(&json!("\u{1b}[2J")), "\\u001b[2J");
        assert_eq!(plain(&json!("")), "\"\"");
        assert_eq!(plain(&json!([0.5, 1])), "[0.5,1]");
        assert_eq!(plain(&json!(vec![1; 1000])).chars().count(), LONGEST);
    }

    #[test]
    fn media_are_named_with_their_size() {
        assert_eq!(medium("image", &json!({"bytes": 9, "width": 640, "height": 360})), "image 640x360");
        let saved = json!({"bytes": 9, "width": 640, "height": 360, "file": "pictures/cam1-7.jpg"});
        assert_eq!(medium("image", &saved), "image 640x360 cam1-7.jpg");
        assert_eq!(medium("sound", &json!({"bytes": 900})), "sound 900 bytes");
        assert_eq!(medium("image", &Value::Null), "image=null");
    }
}
