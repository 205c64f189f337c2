//! `jsonl`: a file with one JSON object a line.
//!
//! ```yaml
//! - {id: readings, kind: jsonl, options: {path: data/readings.jsonl, columns: {sensor: text, temperature: float64}}}
//! ```
//! Declared columns are read from the fields of that name, others are skipped; `null` is an empty value. Options
//! `event_time`, `time_unit`, `out_of_order`, `max_line` are those of [`super::csv`]. Dead letters, each with its line:
//! `invalid_utf8`, `wrong_columns` (a declared field is missing), `bad_value` (no JSON object, or a value of another
//! type), `line_too_long`.
//!
//! ```
//! use tidemill_operators::api::SourceRead;
//! use tidemill_operators::kind::EndContext;
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::SourceFile, yaml};
//! let folder = tempfile::tempdir().unwrap();
//! std::fs::write(folder.path().join("r.jsonl"), "{\"t\": 20.5, \"x\": []}\n{\"t\": \"cold\"}\n").unwrap();
//! let id = "readings".into();
//! let context = EndContext { id: &id, base: folder.path() };
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", "path: r.jsonl\ncolumns: {t: float64}")).unwrap();
//! let readings = Registry::builtin().source("jsonl").unwrap().bind(&context, &options).unwrap();
//! let mut reader = (readings.make)().unwrap();
//! let Ok(SourceRead::Rows { payload, dead_letters, .. }) = reader.read(8, 1 << 20) else { panic!() };
//! assert_eq!(payload.num_rows(), 1);
//! assert_eq!(dead_letters[0].detail, "r.jsonl, line 2: field `t`: \"cold\" is no float64");
//! ```
use super::lines::Lines;
use super::table::{self, Field, Format, Options, Refusal, shorten};
use crate::api::BoundSource;
use crate::kind::{EndContext, SourceKind};
use serde_json::Value as Json;
use std::str;
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
        "A file with one JSON object a line."
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(Options)
    }

    fn bind(&self, context: &EndContext<'_>, options: &Value) -> Result<BoundSource, Diagnostics> {
        let options: Options = options.deserialize_into()?;
        table::bind(self.kind(), context, &options, false, || JsonlFormat)
    }
}

struct JsonlFormat;

impl Format for JsonlFormat {
    fn start(&mut self, _: &mut Lines, _: &[Column]) -> Result<(), (String, String)> {
        Ok(())
    }

    fn parse(&mut self, record: &[u8], columns: &[Column], fields: &mut Vec<Field>) -> Result<(), Refusal> {
        let text = str::from_utf8(record).map_err(|e| {
            ("invalid_utf8", format!("byte {} of the record is not UTF-8", e.valid_up_to() + 1))
        })?;
        let object: serde_json::Map<String, Json> =
            serde_json::from_str(text).map_err(|e| ("bad_value", format!("no JSON object: {e}")))?;
        for column in columns {
            let Some(value) = object.get(&column.name) else {
                let detail =
                    format!("there is no field `{}`; write null where a value is unknown", column.name);
                return Err(("wrong_columns", detail));
            };
            let field = match (&column.column_type, value) {
                (_, Json::Null) => Some(Field::Null),
                (ColumnType::Int64, Json::Number(n)) => n.as_i64().map(Field::Int),
                (ColumnType::Float64, Json::Number(n)) => n.as_f64().map(Field::Float),
                (ColumnType::Bool, Json::Bool(b)) => Some(Field::Bool(*b)),
                (ColumnType::Text, Json::String(text)) => Some(Field::Text(text.clone())),
                _ => None,
            };
            fields.push(field.ok_or_else(|| {
                let shown = shorten(&value.to_string());
                ("bad_value", format!("field `{}`: {shown} is no {}", column.name, column.column_type))
            })?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{int64, text};
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
        let reasons: Vec<_> = dead.iter().map(|(at, d)| (*at, d.reason)).collect();
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
        assert!(dead[0].1.detail.contains("line 4: field `n`: 1.5 is no int64"), "{}", dead[0].1.detail);
    }

    #[test]
    fn an_empty_file_ends_at_once() {
        assert_eq!(read(b"\n\n").0.len(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
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
