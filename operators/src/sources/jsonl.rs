//! `jsonl`: a file with one JSON object per line.
//!
//! ```yaml
//! - {id: readings, kind: jsonl, options: {path: data/readings.jsonl, columns: {sensor: text, temperature: float64}}}
//! ```
//! A column may be a tensor, such as `"tensor<float32>[8]"` or `"tensor<int64>[2, 3]"` (in quotes within `{...}`): its
//! field is a list of that shape, or of all values in order. Another length, another type or a null in the list is a
//! `bad_value`.
//!
//! Declared columns are read from the fields of that name, others are skipped; `null` is an empty value. Options
//! `event_time`, `time_unit`, `time_zone`, `out_of_order`, `max_jump`, `max_line` are those of [`super::csv`]. Dead
//! letters, each with its line: `invalid_utf8`, `wrong_columns` (a declared field is missing), `bad_value` (not a JSON object,
//! or a value of another type or beyond its range), `line_too_long`, `time_jump`.
//!
//! ```
//! use tidemill_operators::api::SourceRead;
//! use tidemill_operators::kind::EndContext;
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::SourceFile, yaml};
//! let folder = tempfile::tempdir().unwrap();
//! std::fs::write(folder.path().join("r.jsonl"), "{\"t\": 20.5, \"x\": []}\n{\"t\": \"cold\"}\n").unwrap();
//! let id = "readings".into();
//! let context = EndContext::new(&id, folder.path());
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", "path: r.jsonl\ncolumns: {t: float64}")).unwrap();
//! let readings = Registry::builtin().source("jsonl").unwrap().bind(&context, &options).unwrap();
//! let mut reader = (readings.make)().unwrap();
//! let Ok(SourceRead::Rows { payload, dead_letters, .. }) = reader.read(8, 1 << 20) else { panic!() };
//! assert_eq!(payload.num_rows(), 1);
//! assert_eq!(dead_letters[0].detail, "r.jsonl, line 2: field `t`: \"cold\" is not float64");
//! ```
use super::cells::{Refusal, float, shorten};
use super::lines::Lines;
use super::table::{self, Fields, Format, Options};
use crate::api::BoundSource;
use crate::kind::{EndContext, SourceKind};
use crate::relational::expression::Cell;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::fmt;
use std::str;
use std::sync::Arc;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::types::{Column, ColumnType};
use tidemill_spec::value::Value;

/// The kind `jsonl`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Jsonl;

impl SourceKind for Jsonl {
    fn kind(&self) -> &'static str {
        "jsonl"
    }

    fn summary(&self) -> &'static str {
        "A file with one JSON object per line."
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(Options)
    }

    fn bind(&self, context: &EndContext<'_>, options: &Value) -> Result<BoundSource, Diagnostics> {
        let read: Options = options.deserialize_into()?;
        table::have_event_time(options)?;
        table::bind(self.kind(), context, &read, false, JsonlFormat::default)
    }
}

#[derive(Default)]
pub(super) struct JsonlFormat {
    places: Places,
}

/// Index of the declared columns, found without a scan, regardless of their number.
#[derive(Clone, Default)]
pub(super) struct Places {
    by_name: Arc<HashMap<String, usize>>,
    /// The column after the last one found: writers keep the order of fields.
    next: usize,
}

impl Places {
    pub(super) fn of(columns: &[Column]) -> Self {
        let by_name = columns.iter().enumerate().map(|(place, column)| (column.name.clone(), place));
        Self { by_name: Arc::new(by_name.collect()), next: 0 }
    }

    /// Returns the index of the column of that name among `columns`, from which `self` was built.
    fn find(&mut self, columns: &[Column], name: &str) -> Option<usize> {
        let place = match columns.get(self.next) {
            Some(column) if column.name == name => self.next,
            _ => *self.by_name.get(name)?,
        };
        self.next = if place + 1 < columns.len() { place + 1 } else { 0 };
        Some(place)
    }
}

impl Format for JsonlFormat {
    fn start(&mut self, _: &mut Lines, columns: &[Column]) -> Result<(), (String, String)> {
        self.places = Places::of(columns);
        Ok(())
    }

    fn parse(&mut self, record: &[u8], columns: &[Column], fields: &mut Fields) -> Result<(), Refusal> {
        parse_object(record, columns, &mut self.places, fields).map_err(|found| (found.reason, found.detail))
    }
}

/// A finding in a JSON object.
pub(super) struct Found {
    pub(super) reason: &'static str,
    pub(super) detail: String,
    /// Bytes before it.
    pub(super) at: usize,
}

/// Reads the declared fields of an object; `places` is of these columns.
pub(super) fn parse_object(
    record: &[u8],
    columns: &[Column],
    places: &mut Places,
    fields: &mut Fields,
) -> Result<(), Found> {
    let text = str::from_utf8(record).map_err(|e| Found {
        reason: "invalid_utf8",
        detail: format!("byte {} of the record is not UTF-8", e.valid_up_to() + 1),
        at: e.valid_up_to(),
    })?;
    let mut values = vec![None; columns.len()];
    let mut field = String::new();
    let mut json = serde_json::Deserializer::from_str(text);
    let read = Object { columns, places, values: &mut values, field: &mut field }.deserialize(&mut json);
    read.and_then(|()| json.end()).map_err(|error| Found {
        reason: "bad_value",
        detail: no_object(text, &error, &field),
        at: place_of(text, &error),
    })?;
    for (column, value) in columns.iter().zip(values) {
        let Some(value) = value else {
            let detail = format!("there is no field `{}`; write null where a value is unknown", column.name);
            return Err(Found { reason: "wrong_columns", detail, at: 0 });
        };
        of_json(value, &column.column_type, fields).map_err(|why| Found {
            reason: "bad_value",
            detail: format!("field `{}`: {} {why}", column.name, shorten(value)),
            // The value is a part of the text.
            at: (value.as_ptr() as usize).saturating_sub(text.as_ptr() as usize),
        })?;
    }
    Ok(())
}

/// Bytes of a text before an error of its JSON.
fn place_of(text: &str, error: &serde_json::Error) -> usize {
    let before: usize = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
    (before + error.column().saturating_sub(1)).min(text.len())
}

/// Adds a raw JSON value as a value of a column; an error is a message.
fn of_json(value: &str, column_type: &ColumnType, fields: &mut Fields) -> Result<(), String> {
    let is_number = value.starts_with(|c: char| c == '-' || c.is_ascii_digit());
    let text: String;
    if let ColumnType::Tensor { element, shape } = column_type
        && value != "null"
    {
        return fields.push_list(value, *element, shape);
    }
    fields.push(match column_type {
        _ if value == "null" => Cell::Null,
        ColumnType::Int64 if is_number => Cell::Int(value.parse().map_err(|_| {
            let is_whole = !value.contains(['.', 'e', 'E']);
            if is_whole { "does not fit into int64" } else { "is not int64" }
        })?),
        ColumnType::Float64 if is_number => Cell::Float(float(value)?),
        ColumnType::Bool if value == "true" => Cell::Bool(true),
        ColumnType::Bool if value == "false" => Cell::Bool(false),
        ColumnType::Text if value.starts_with('"') => {
            text =
                serde_json::from_str(value).map_err(|error| format!("is not a text: {}", reason(&error)))?;
            Cell::Text(&text)
        }
        other => return Err(format!("is not {other}")),
    });
    Ok(())
}

/// Extracts the declared fields of an object as raw values; the last of several equal names counts.
struct Object<'a, 'de> {
    columns: &'a [Column],
    places: &'a mut Places,
    values: &'a mut [Option<&'de str>],
    /// The current field.
    field: &'a mut String,
}

impl<'de> DeserializeSeed<'de> for Object<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_key_seed(Name(self.field))?.is_some() {
            match self.places.find(self.columns, self.field) {
                Some(column) => self.values[column] = Some(map.next_value::<&RawValue>()?.get()),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        self.field.clear();
        Ok(())
    }
}

/// Reads the name of a field into a reused buffer.
struct Name<'a>(&'a mut String);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E>(self, name: &str) -> Result<(), E> {
        self.0.clear();
        self.0.push_str(name);
        Ok(())
    }
}

/// The message for a record that is no object. `field`: the current one, if any.
fn no_object(text: &str, error: &serde_json::Error, field: &str) -> String {
    let text = text.trim();
    if text.starts_with('[') || text == "]" || text.ends_with("},") {
        return "not a JSON object but a part of an array: write one object per line, for instance with \
                `jq -c '.[]' array.json > lines.jsonl`"
            .into();
    }
    let place = match field {
        "" => String::new(),
        field => format!(", in or after field `{}`", shorten(field)),
    };
    format!("not a JSON object: {} (column {}{place})", reason(error), error.column())
}

/// The message of an error without its position, which counts lines within the record.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{float64, int64, text};
    use crate::sources::test::{bind, check_seeks, drain};
    use proptest::prelude::*;

    fn read(content: &[u8]) -> (Vec<arrow_array::RecordBatch>, Vec<(u64, crate::api::DeadLetter)>) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t.jsonl"), content).unwrap();
        let yaml = "path: t.jsonl\ncolumns: {n: int64, s: text}\nmax_line: 60B";
        let source = bind(&Jsonl, folder.path(), yaml).unwrap();
        check_seeks(&source);
        drain(&source, 1000, usize::MAX)
    }

    #[test]
    fn good_and_bad_lines() {
        let content = b"{\"n\": 1, \"s\": \"a\", \"x\": {}}\n\n{\"n\": null, \"s\": null}\n{\"n\": 1.5, \"s\": \"\"}\n\
            {\"n\": 1}\n[1]\n{\"n\": 1, \"s\": \"\xff\"}\n{\"n\": 1, \"s\": \"01234567890123456789012345678901234567890123456789\"}\n\
            {\"n\": 2, \"s\": \"\\u00e9\"}";
        let (batches, dead) = read(content);
        assert_eq!(int64(batches[0].column(0)).unwrap().iter().collect::<Vec<_>>(), [Some(1), None, Some(2)]);
        assert_eq!(text(batches[0].column(1)).unwrap().value(2), "é");
        let reasons: Vec<_> = dead.iter().map(|(at, d)| (*at, &*d.reason)).collect();
        assert_eq!(
            reasons,
            [
                (2, "bad_value"),
                (3, "wrong_columns"),
                (4, "bad_value"),
                (5, "invalid_utf8"),
                (6, "line_too_long")
            ]
        );
        assert!(dead[0].1.detail.contains("line 4: field `n`: 1.5 is not int64"), "{}", dead[0].1.detail);
    }

    /// Tensors of every type come out as they went in: read, written by the sink's writer, and read again.
    #[test]
    fn lists_come_out_as_they_went_in() {
        use crate::kind::{EndContext, InputPort};
        use crate::sinks::rows::Rows;
        use tidemill_spec::span::Span;
        let types = "{a: 'tensor<float32>[2]', b: 'tensor<float16>[2]', c: 'tensor<float64>[2, 1]', d: 'tensor<int64>[2]', \
            e: 'tensor<int32>[1]', f: 'tensor<int8>[1]', g: 'tensor<uint8>[2]', h: 'tensor<bool>[2]', i: 'tensor<text>[2]'}";
        let line = "{\"a\":[0.1,-2.0],\"b\":[0.5,65504.0],\"c\":[[0.1],[1e300]],\"d\":[1,-9223372036854775808],\
            \"e\":[-2147483648],\"f\":[-128],\"g\":[0,255],\"h\":[true,false],\"i\":[\"é\",\"a \\\"b\\\"\"]}\n";
        let empty = "{\"a\":null,\"b\":null,\"c\":null,\"d\":null,\"e\":null,\"f\":null,\"g\":null,\"h\":null,\"i\":null}\n";
        let content = format!("{line}{empty}{line}");
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t.jsonl"), &content).unwrap();
        let source = bind(&Jsonl, folder.path(), &format!("path: t.jsonl\ncolumns: {types}")).unwrap();
        check_seeks(&source);
        let (batches, dead) = drain(&source, 1000, usize::MAX);
        assert!(dead.is_empty(), "{dead:?}");
        let id = "out".into();
        let port = InputPort { from: "in".into(), stream: source.output.clone(), span: Span::nowhere() };
        let rows = Rows::choose(&EndContext::new(&id, folder.path()), &port, None, false).unwrap();
        let mut out = Vec::new();
        for batch in &batches {
            rows.json(&crate::record::first_records(batch).unwrap(), &mut out).unwrap();
        }
        assert_eq!(String::from_utf8(out).unwrap().replace("1e+300", "1e300"), content);
    }

    #[test]
    fn a_list_that_does_not_fit_is_a_dead_letter() {
        let content =
            "{\"v\": [1, 2]}\n{\"v\": [1, 2, 3]}\n{\"v\": [1, null]}\n{\"v\": 1}\n{\"v\": [[1], [2]]}\n";
        assert_eq!(
            details(content, "{v: 'tensor<float32>[2]'}"),
            [
                "t.jsonl, line 2: field `v`: [1, 2, 3] has more than 2 values, tensor<float32>[2] needs 2",
                "t.jsonl, line 3: field `v`: [1, null] has an empty value (null) at position 1, a tensor has none",
                "t.jsonl, line 4: field `v`: 1 is not tensor<float32>[2]",
                "t.jsonl, line 5: field `v`: [[1], [2]] has lists in lists more than 1 deep",
            ]
        );
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t.jsonl"), "").unwrap();
        for (declared, message) in [
            ("tensor<double>[2]", "`tensor<double>[2]` is not the type of a tensor"),
            ("tensor<float32>[5000, 5000]", "has more than 16777216 values"),
        ] {
            let yaml = format!("path: t.jsonl\ncolumns: {{v: '{declared}'}}");
            let error = crate::testing::only(bind(&Jsonl, folder.path(), &yaml).err().unwrap());
            assert!(error.message.contains(message) && error.line() == Some(2), "{error}");
        }
    }

    /// The details of the dead letters of lines with these columns.
    fn details(content: &str, columns: &str) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t.jsonl"), content).unwrap();
        let source = bind(&Jsonl, folder.path(), &format!("path: t.jsonl\ncolumns: {columns}")).unwrap();
        drain(&source, 1000, usize::MAX).1.into_iter().map(|(_, letter)| letter.detail).collect()
    }

    #[test]
    fn what_is_wrong_is_said_with_line_and_field() {
        let content = "{\"f\": 1, \"n\": 2}\n{\"f\": 1e999, \"n\": 2}\n{\"f\": 1, \"n\": 9223372036854775808}\n\
            {\"f\": 1, \"n\": 2.0}\n{\"f\": 1, \"n\": }\n{\"f\": 1\n7\n{\"n\": 1, \"f\": 2} x\n{\"other\": 1e999, \"f\": 1, \"n\": 1}\n";
        assert_eq!(
            details(content, "{f: float64, n: int64}"),
            [
                "t.jsonl, line 2: field `f`: 1e999 does not fit into float64",
                "t.jsonl, line 3: field `n`: 9223372036854775808 does not fit into int64",
                "t.jsonl, line 4: field `n`: 2.0 is not int64",
                "t.jsonl, line 5: not a JSON object: expected value (column 15, in or after field `n`)",
                "t.jsonl, line 6: not a JSON object: EOF while parsing an object (column 7, in or after field `f`)",
                "t.jsonl, line 7: not a JSON object: invalid type: integer `7`, expected an object (column 1)",
                "t.jsonl, line 8: not a JSON object: trailing characters (column 18)",
            ]
        );
        let text = details("{\"s\": \"\\ud800\"}\n{\"s\": 1}\n", "{s: text}");
        assert!(text[0].starts_with("t.jsonl, line 1: field `s`: \"\\ud800\" is not a text: "), "{text:?}");
        assert_eq!(text[1], "t.jsonl, line 2: field `s`: 1 is not text");
    }

    #[test]
    fn an_array_is_known_as_one() {
        for content in ["[{\"n\": 1}, {\"n\": 2}]", "[\n{\"n\": 1},\n{\"n\": 2}\n]\n"] {
            for detail in details(content, "{n: int64}") {
                assert!(detail.ends_with("`jq -c '.[]' array.json > lines.jsonl`"), "{detail}");
            }
        }
    }

    #[test]
    fn of_two_fields_of_one_name_the_last_counts() {
        let (batches, _) = read(b"{\"n\": \"x\", \"s\": null, \"n\": -0}\n");
        assert_eq!(int64(batches[0].column(0)).unwrap().value(0), 0);
    }

    #[test]
    fn an_empty_file_ends_at_once() {
        assert_eq!(read(b"\n\n").0.len(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn floats_come_back_bit_by_bit(values in prop::collection::vec(any::<u64>().prop_map(f64::from_bits), 1..100)) {
            let values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
            let lines = values.iter().map(|value| format!("{{\"f\":{}}}\n", serde_json::to_string(value).unwrap()));
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("t.jsonl"), lines.collect::<String>()).unwrap();
            let source = bind(&Jsonl, folder.path(), "path: t.jsonl\ncolumns: {f: float64}").unwrap();
            let (batches, dead) = drain(&source, 1000, usize::MAX);
            prop_assert!(dead.is_empty());
            let found = batches.iter().flat_map(|batch| float64(batch.column(0)).unwrap().iter().flatten());
            prop_assert!(found.map(f64::to_bits).eq(values.iter().map(|value| value.to_bits())));
        }

        #[test]
        fn places_are_those_of_the_columns(
            columns in prop::collection::hash_set("[a-d]{0,2}", 0..12), names in prop::collection::vec("[a-e]{0,2}", 0..40),
        ) {
            let columns: Vec<Column> =
                columns.into_iter().map(|name| Column::new(name, ColumnType::Text)).collect();
            let mut places = Places::of(&columns);
            for name in names {
                let expected = columns.iter().position(|column| column.name == name);
                prop_assert_eq!(places.find(&columns, &name), expected);
            }
        }

        #[test]
        fn any_bytes_any_reads_any_seeks(
            parts in prop::collection::vec(prop::sample::select(vec![
                "{\"n\":1,\"s\":\"a\"}", "\n", "[", "{", "\"", "}", "\r", "1", "{\"n\":2,\"s\":null}\n",
            ]), 0..60),
        ) {
            read(parts.concat().as_bytes());
        }
    }
}
