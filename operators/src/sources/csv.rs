//! `csv`: the rows of a CSV file.
//!
//! ```yaml
//! - id: readings
//!   kind: csv
//!   options:
//!     path: data/readings.csv
//!     columns: {sensor: text, at: int64, temperature: float64}
//!     event_time: at        # with time_unit: s | ms | us | ns (default ms); text with date, time and zone has none
//!     out_of_order: 2s
//! ```
//! A column may be a tensor, as in [`super::jsonl`]; its field is a JSON list, `"[1, 2.5, 3]"`.
//!
//! The first line names the columns; declared columns are found by name, others are skipped. An empty field is an empty
//! value (null), in a text column an empty text. A line without any character is no row; one of blanks is. Fields may be
//! quoted and may then contain line breaks. Dead letters, each with its line: `invalid_utf8`, `wrong_columns` (more or
//! fewer fields than the first line), `bad_value`, `open_quote` (a quote that is not closed; the lines after it are read as
//! if it were not there), `line_too_long` (`max_line`, default 8MiB), `time_jump` (`max_jump`, default 365d: an event time
//! so far ahead that the next record does not confirm it). A million rows of four columns through a filter and a window
//! into a file take 0.6 s in `tidemill run` on two cores of a virtual machine, built as `make demo` builds it: 560 ns a
//! row.
//!
//! ```
//! use tidemill_operators::api::SourceRead;
//! use tidemill_operators::kind::EndContext;
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::SourceFile, yaml};
//! let folder = tempfile::tempdir().unwrap();
//! std::fs::write(folder.path().join("r.csv"), "sensor,at,t\na,1000,20.5\nb,oops,1\n").unwrap();
//! let id = "readings".into();
//! let context = EndContext::new(&id, folder.path());
//! let yaml = "path: r.csv\ncolumns: {t: float64, at: int64}\nevent_time: at";
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", yaml)).unwrap();
//! let readings = Registry::builtin().source("csv").unwrap().bind(&context, &options).unwrap();
//! let mut reader = (readings.make)().unwrap();
//! let Ok(SourceRead::Rows { payload, times, dead_letters, .. }) = reader.read(8, 1 << 20) else { panic!() };
//! assert_eq!((payload.num_rows(), times), (1, Some(vec![1_000_000])));
//! assert_eq!(dead_letters[0].detail, "r.csv, line 3: column `at`: `oops` is not int64");
//! ```
use super::cells::{Refusal, push_text};
use super::lines::{Lines, NextLine};
use super::table::{self, Fields, Format, Options};
use crate::api::BoundSource;
use crate::kind::{EndContext, SourceKind};
use csv_core::ReadRecordResult;
use memchr::{memchr_iter, memchr2};
use std::collections::HashMap;
use std::str;
use tidemill_spec::diagnostic::{Diagnostics, suggestion};
use tidemill_spec::types::Column;
use tidemill_spec::value::Value;

/// The kind `csv`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Csv;

impl SourceKind for Csv {
    fn kind(&self) -> &'static str {
        "csv"
    }

    fn summary(&self) -> &'static str {
        "The rows of a CSV file."
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(Options)
    }

    fn shown_by_opening(&self) -> &'static str {
        "is there, and its first line names the columns"
    }

    fn bind(&self, context: &EndContext<'_>, options: &Value) -> Result<BoundSource, Diagnostics> {
        let read: Options = options.deserialize_into()?;
        table::have_event_time(options)?;
        table::bind(self.kind(), context, &read, true, CsvFormat::new)
    }
}

pub(super) struct CsvFormat {
    /// Created once and reset, because creating one computes its tables (15 us).
    reader: csv_core::Reader,
    /// Field index of each declared column.
    places: Vec<usize>,
    /// Number of fields of a record.
    width: usize,
    /// The unquoted fields of a record with quotes, one after the other.
    text: Vec<u8>,
    /// Ends of the fields.
    ends: Vec<usize>,
    /// Whether the fields are read from the record itself, one byte apart, and not from `text`.
    is_plain: bool,
}

impl CsvFormat {
    pub(super) fn new() -> Self {
        // `Reader::default()` has no tables.
        let reader = csv_core::Reader::new();
        Self { reader, places: Vec::new(), width: 0, text: Vec::new(), ends: Vec::new(), is_plain: false }
    }

    /// Splits a record into fields and counts them. `None` if it has a line break (a lone carriage return) outside quotes.
    fn split(&mut self, record: &[u8]) -> Option<usize> {
        // The reader removes a byte order mark before a record, which concatenated files have.
        self.is_plain = memchr2(b'"', b'\r', record).is_none() && !record.starts_with(b"\xef\xbb\xbf");
        if self.is_plain {
            self.ends.clear();
            self.ends.extend(memchr_iter(b',', record));
            self.ends.push(record.len());
            return Some(self.ends.len());
        }
        // A field never grows, and there is at most one more field than there are bytes.
        self.text.resize(record.len() + 1, 0);
        self.ends.resize(record.len() + 2, 0);
        self.reader.reset();
        let (mut read, mut written, mut fields) = (0, 0, 0);
        loop {
            let (result, r, w, e) =
                self.reader.read_record(&record[read..], &mut self.text[written..], &mut self.ends[fields..]);
            (read, written, fields) = (read + r, written + w, fields + e);
            // At the end of the input the next call, with empty input, closes the record.
            if !matches!(result, ReadRecordResult::InputEmpty) {
                return (read == record.len()).then_some(fields);
            }
        }
    }

    /// Returns a field of the last split record.
    fn field<'a>(&'a self, record: &'a [u8], index: usize) -> &'a [u8] {
        let text = if self.is_plain { record } else { &self.text[..] };
        let start = match index {
            0 => 0,
            _ => self.ends[index - 1] + usize::from(self.is_plain),
        };
        &text[start..self.ends[index]]
    }
}

impl Format for CsvFormat {
    fn start(&mut self, lines: &mut Lines, columns: &[Column]) -> Result<(), (String, String)> {
        let help = "the first line of a CSV file names its columns, for instance `sensor,temperature`";
        let mut first = lines.next();
        // Blank lines above the names are skipped.
        while matches!(first, Ok(NextLine::Record(_))) && lines.record().trim_ascii().is_empty() {
            first = lines.next();
        }
        match first {
            Ok(NextLine::Record(_)) => {}
            Ok(NextLine::End) => return Err(("the file is empty".into(), help.into())),
            Ok(NextLine::TooLong(_)) => return Err(("the first line is too long".into(), help.into())),
            Ok(NextLine::OpenQuote { .. }) => {
                let help = "close the quote, or write a quote within a name twice";
                return Err(("a quote in the first line is not closed".into(), help.into()));
            }
            Err(e) => return Err((format!("cannot read it: {e}"), "check the file and the disk".into())),
        }
        self.width = self.split(lines.record()).ok_or_else(|| {
            let help = "end lines with a line feed, for instance with `dos2unix` or `mac2unix`";
            ("the first line ends with a lone carriage return".to_owned(), help.to_owned())
        })?;
        let mut names = Vec::new();
        for index in 0..self.width {
            match str::from_utf8(self.field(lines.record(), index)) {
                Ok(name) => names.push(name.trim().to_owned()),
                Err(_) => {
                    return Err(("the first line is not UTF-8".into(), "save the file as UTF-8".into()));
                }
            }
        }
        self.places.clear();
        // A name with its index, and whether it occurs twice.
        let mut known: HashMap<&str, (usize, bool)> = HashMap::with_capacity(names.len());
        for (place, name) in names.iter().enumerate() {
            known.entry(name).and_modify(|(_, twice)| *twice = true).or_insert((place, false));
        }
        for column in columns {
            let Some(&(place, twice)) = known.get(column.name.as_str()) else {
                if let ([one], Some(separator)) =
                    (names.as_slice(), [';', '\t', '|'].into_iter().find(|c| names[0].contains(*c)))
                {
                    return Err((
                        format!("the columns are separated by {separator:?}: `{one}`"),
                        "save the file with commas between the columns".into(),
                    ));
                }
                let shown = names.iter().map(String::as_str).take(40);
                return Err((
                    format!("the first line does not name the declared column `{}`", column.name),
                    suggestion(&column.name, shown, "columns of the file"),
                ));
            };
            if twice {
                return Err((
                    format!("the first line names `{}` twice", column.name),
                    "rename one of them".into(),
                ));
            }
            self.places.push(place);
        }
        Ok(())
    }

    fn parse(&mut self, record: &[u8], columns: &[Column], fields: &mut Fields) -> Result<(), Refusal> {
        if let Err(error) = str::from_utf8(record) {
            return Err((
                "invalid_utf8",
                format!("byte {} of the record is not UTF-8", error.valid_up_to() + 1),
            ));
        }
        let Some(found) = self.split(record) else {
            return Err(("bad_value", "a lone carriage return outside quotes".into()));
        };
        if found != self.width {
            let mut detail = format!("{found} fields, but the first line has {}", self.width);
            let breaks = record.iter().filter(|byte| **byte == b'\n').count();
            if breaks > 0 {
                detail.push_str(&format!("; the record has {} lines: is a quote left open?", breaks + 1));
            }
            return Err(("wrong_columns", detail));
        }
        for (column, place) in columns.iter().zip(&self.places) {
            // Quotes are ASCII: parts of valid UTF-8 between them are valid.
            let text =
                str::from_utf8(self.field(record, *place)).map_err(|e| ("invalid_utf8", e.to_string()))?;
            push_text(text, column, fields)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::SourceRead;
    use crate::record::{boolean, float64, int64, text};
    use crate::sources::test::{bind, check_seeks, drain};
    use crate::testing::only;
    use proptest::prelude::*;

    const COLUMNS: &str = "path: t.csv\ncolumns: {n: int64, s: text, b: bool, f: float64}";

    fn read(
        content: &[u8],
        yaml: &str,
    ) -> (Vec<arrow_array::RecordBatch>, Vec<(u64, crate::api::DeadLetter)>) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t.csv"), content).unwrap();
        let source = bind(&Csv, folder.path(), yaml).unwrap();
        check_seeks(&source);
        drain(&source, 1000, usize::MAX)
    }

    #[test]
    fn quotes_empty_values_and_other_columns() {
        let content = "\u{feff}x,s,n,b,f\r\n1,\"a, \"\"b\"\"\nc\",-7,TRUE,1e3\r\n\n2,,,,\r\n";
        let (batches, dead) = read(content.as_bytes(), COLUMNS);
        assert!(dead.is_empty(), "{dead:?}");
        let batch = &batches[0];
        assert_eq!(batch.num_rows(), 2);
        assert_eq!(int64(batch.column(0)).unwrap().iter().collect::<Vec<_>>(), [Some(-7), None]);
        assert_eq!(
            text(batch.column(1)).unwrap().iter().collect::<Vec<_>>(),
            [Some("a, \"b\"\nc"), Some("")]
        );
        assert_eq!(boolean(batch.column(2)).unwrap().iter().collect::<Vec<_>>(), [Some(true), None]);
        assert_eq!(float64(batch.column(3)).unwrap().iter().collect::<Vec<_>>(), [Some(1000.0), None]);
    }

    #[test]
    fn a_tensor_is_a_list_in_quotes() {
        let content = b"n,s,v\n1,a,\"[1, 2.5]\"\n2,b,\n3,c,[7]\n4,d,\"[1,2,3]\"\n";
        let (batches, dead) = read(content, "path: t.csv\ncolumns: {n: int64, v: 'tensor<float32>[2]'}");
        let numbers = int64(batches[0].column(0)).unwrap().iter().flatten().collect::<Vec<_>>();
        assert_eq!(numbers, [1, 2]);
        assert_eq!(crate::sinks::rows::tensor_text(batches[0].column(1), 0, &[2]), "[1.0,2.5]");
        assert!(arrow_array::Array::is_null(batches[0].column(1), 1));
        assert_eq!(
            dead[0].1.detail,
            "t.csv, line 4: column `v`: `[7]` has 1 values, tensor<float32>[2] needs 2"
        );
        assert_eq!(dead.len(), 2);
    }

    /// Only a line without any character is no row.
    #[test]
    fn rows_that_look_empty_are_rows() {
        let columns = "path: t.csv\ncolumns: {s: text}";
        let (batches, dead) = read(b"  \n\ns\n  \n\n\"\"\n\t\r\n\r\n\"\n\"\n\" \"\n", columns);
        assert!(dead.is_empty(), "{dead:?}");
        assert_eq!(
            text(batches[0].column(0)).unwrap().iter().flatten().collect::<Vec<_>>(),
            ["  ", "", "\t", "\n", " "]
        );
        let (batches, dead) = read(b"n\n \n1\n", "path: t.csv\ncolumns: {n: int64}");
        assert_eq!(int64(batches[0].column(0)).unwrap().iter().collect::<Vec<_>>(), [None, Some(1)]);
        assert!(dead.is_empty(), "{dead:?}");
        let (_, dead) = read(b"n,s\n1,a\n  \n,\n", "path: t.csv\ncolumns: {n: int64, s: text}");
        assert_eq!(dead.len(), 1, "{dead:?}");
        assert_eq!(dead[0].1.detail, "t.csv, line 3: 1 fields, but the first line has 2");
    }

    #[test]
    fn bad_rows_are_dead_letters_with_their_line() {
        let long = "9".repeat(200);
        let content = [
            b"n,s,b,f\n1,a,1,1\n1,\xff,1,1\n1,a\nx,a,1,1\n1,a,maybe,1\n1,a,1,".as_slice(),
            long.as_bytes(),
            b"9\n2,z,0,2\n",
        ]
        .concat();
        let (batches, dead) = read(&content, &format!("{COLUMNS}\nmax_line: 100B"));
        assert_eq!(int64(batches[0].column(0)).unwrap().iter().flatten().collect::<Vec<_>>(), [1, 2]);
        let reasons: Vec<_> = dead.iter().map(|(at, d)| (*at, &*d.reason)).collect();
        assert_eq!(
            reasons,
            [
                (1, "invalid_utf8"),
                (2, "wrong_columns"),
                (3, "bad_value"),
                (4, "bad_value"),
                (5, "line_too_long")
            ]
        );
        assert_eq!(dead[2].1.detail, "t.csv, line 5: column `n`: `x` is not int64");
    }

    #[test]
    fn quotes_within_fields_and_lone_carriage_returns_swallow_no_rows() {
        let columns = "path: t.csv\ncolumns: {n: int64, s: text}";
        let (batches, dead) = read(b"n,s\n1,5\" disk\n2,b\n3,x\r4,y\n5,\"a\"b\n6,z\r\n", columns);
        assert_eq!(int64(batches[0].column(0)).unwrap().iter().flatten().collect::<Vec<_>>(), [1, 2, 5, 6]);
        assert_eq!(
            text(batches[0].column(1)).unwrap().iter().flatten().collect::<Vec<_>>(),
            ["5\" disk", "b", "ab", "z"]
        );
        assert_eq!(dead.len(), 1);
        assert_eq!(dead[0].1.detail, "t.csv, line 4: a lone carriage return outside quotes");
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t.csv"), "n,s\r1,a\r").unwrap();
        let error = only(bind(&Csv, folder.path(), columns).err().unwrap());
        assert!(error.message.contains("carriage return"), "{error}");
    }

    #[test]
    fn an_open_quote_is_a_dead_letter_and_the_rows_behind_it_are_found() {
        let numbers = |content: &str, columns: &str| {
            let (batches, dead) =
                read(content.as_bytes(), &format!("path: t.csv\ncolumns: {columns}\nmax_line: 2kB"));
            let numbers: Vec<i64> =
                batches.iter().flat_map(|batch| int64(batch.column(0)).unwrap().iter().flatten()).collect();
            (numbers, dead.into_iter().map(|(_, letter)| (letter.reason, letter.detail)).collect::<Vec<_>>())
        };
        // 20 rows; fewer or more than `max_line` after the quote; in the last column and in another one.
        for filler in [1, 300] {
            for (line, columns) in [("{n},{quote}{text}", "n,s"), ("{quote}{text},{n}", "s,n")] {
                let row = |n: i64| {
                    let quote = if n == 7 { "\"" } else { "" };
                    let text = "x".repeat(filler);
                    line.replace("{n}", &n.to_string()).replace("{quote}", quote).replace("{text}", &text)
                };
                let rows: Vec<String> = (0..20).map(row).collect();
                let content = format!("{columns}\n{}\n", rows.join("\n"));
                let (found, dead) = numbers(&content, "{n: int64, s: text}");
                assert_eq!(found, (0..20).filter(|n| *n != 7).collect::<Vec<_>>(), "{content}");
                let [(reason, detail)] = &dead[..] else { panic!("{dead:?}") };
                assert_eq!(*reason, "open_quote");
                assert!(
                    detail.starts_with("t.csv, line 9: a quoted field opens here and is not closed"),
                    "{detail}"
                );
            }
        }
        let (_, dead) = numbers("n,s\n1,\"a\nb\",c\n", "{n: int64, s: text}");
        assert_eq!(
            dead,
            [(
                "wrong_columns".into(),
                "t.csv, line 2: 3 fields, but the first line has 2; the record has 2 lines: is a quote left open?".into()
            )]
        );
    }

    #[test]
    fn numbers_beyond_float64_are_dead_letters_and_written_infinities_are_not() {
        let columns = "path: t.csv\ncolumns: {f: float64}";
        let (batches, dead) = read(b"f\n1e999\n-1e999\ninf\n-Infinity\nNaN\n1e308\n1e-999\n", columns);
        let found: Vec<f64> = float64(batches[0].column(0)).unwrap().iter().flatten().collect();
        assert_eq!(found[..2], [f64::INFINITY, f64::NEG_INFINITY]);
        assert!(found[2].is_nan());
        assert_eq!(found[3..], [1e308, 0.0]);
        assert_eq!(
            dead.iter().map(|(at, letter)| (*at, &*letter.reason)).collect::<Vec<_>>(),
            [(0, "bad_value"), (1, "bad_value")]
        );
        assert_eq!(dead[0].1.detail, "t.csv, line 2: column `f`: `1e999` does not fit into float64");
    }

    #[test]
    fn compressed_files_are_read_whatever_their_name() {
        use std::io::Write;
        let text = b"n,s\n1,a\n2,b\n";
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(text).unwrap();
        for packed in [gzip.finish().unwrap(), zstd::encode_all(&text[..], 1).unwrap()] {
            let (batches, dead) = read(&packed, "path: t.csv\ncolumns: {n: int64, s: text}");
            assert_eq!(int64(batches[0].column(0)).unwrap().iter().flatten().collect::<Vec<_>>(), [1, 2]);
            assert!(dead.is_empty(), "{dead:?}");
        }
    }

    #[test]
    fn a_file_that_was_cut_off_fails_behind_its_rows() {
        let text: String = (0..50_000).map(|n| format!("{}\n", n * 7_919 % 10_007)).collect();
        let packed = zstd::encode_all(format!("n\n{text}").as_bytes(), 1).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t.zst"), &packed[..packed.len() - 2]).unwrap();
        let source = bind(&Csv, folder.path(), "path: t.zst\ncolumns: {n: int64}").unwrap();
        let mut reader = (source.make)().unwrap();
        let mut rows = 0;
        let error = loop {
            match reader.read(1_000_000, usize::MAX) {
                Ok(SourceRead::Rows { payload, .. }) => rows += payload.num_rows(),
                Ok(other) => panic!("it is not whole: {other:?}"),
                Err(error) => break error.message,
            }
        };
        assert!(rows > 0);
        assert!(error.ends_with("t.zst`: the zstd data end too early: the file was truncated"), "{error}");
    }

    #[test]
    fn what_is_often_taken_for_a_path_is_explained() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t.csv"), "n,V\n").unwrap();
        for (yaml, help) in [
            (
                "path: ~/data.csv\ncolumns: {n: int64}",
                "`~` is not expanded: write `${HOME}/data.csv` or the whole path",
            ),
            (
                "path: https://example.org/a/data.csv\ncolumns: {n: int64}",
                "addresses are not fetched: fetch it first, for instance with `curl -L -o data.csv \
                 https://example.org/a/data.csv`, and write the path of the file, or pipe it in and write `path: \"-\"`",
            ),
            ("path: t.csv\ncolumns: {v: int64}", "did you mean `V`?"),
        ] {
            assert_eq!(only(bind(&Csv, folder.path(), yaml).err().unwrap()).help.as_deref(), Some(help));
        }
    }

    #[test]
    fn event_times() {
        let yaml = "path: t.csv\ncolumns: {at: float64}\nevent_time: at\ntime_unit: s\nout_of_order: 2s";
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t.csv"), "at\n1.5\n\"\"\n1e300\n").unwrap();
        let source = bind(&Csv, folder.path(), yaml).unwrap();
        assert_eq!(source.out_of_order_microseconds, 2_000_000);
        assert!(source.has_event_times);
        let mut reader = (source.make)().unwrap();
        let Ok(crate::api::SourceRead::Rows { times, dead_letters, .. }) = reader.read(9, 1 << 20) else {
            panic!()
        };
        assert_eq!(times, Some(vec![1_500_000]));
        assert_eq!(dead_letters.iter().map(|d| &*d.reason).collect::<Vec<_>>(), ["bad_value", "bad_value"]);
    }

    /// After a blank line, an open quote and an unconfirmed time, a pipe may stay silent for a long time.
    #[test]
    fn rows_that_a_pipe_has_given_do_not_wait_for_what_it_will_give() {
        use std::io::Write;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.csv");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        // Opened for reading too, so that opening does not wait for the other side.
        let mut pipe = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let yaml = "path: t.csv\ncolumns: {at: int64, s: text}\nevent_time: at\ntime_unit: s\nmax_jump: 10s";
        let source = bind(&Csv, folder.path(), yaml).unwrap();
        pipe.write_all(b"at,s\n").unwrap();
        let mut reader = (source.make)().unwrap();
        for (written, expected) in [
            ("1,a\n2,b\n\n", &[1, 2][..]),
            ("3,c\n4,\"two\n", &[3]),
            ("lines\"\n", &[4]),
            ("5,e\n9000,f\n", &[5]),
            ("9001,g\n6000", &[9000, 9001]),
        ] {
            pipe.write_all(written.as_bytes()).unwrap();
            let Ok(SourceRead::Rows { payload, dead_letters, .. }) = reader.read(100, 1 << 20) else {
                panic!()
            };
            assert!(dead_letters.is_empty(), "{dead_letters:?}");
            assert_eq!(int64(payload.column(0)).unwrap().values(), expected);
        }
        drop(pipe);
        let Ok(SourceRead::Rows { dead_letters, .. }) = reader.read(100, 1 << 20) else { panic!() };
        assert_eq!(dead_letters[0].reason, "wrong_columns");
        assert!(matches!(reader.read(100, 1 << 20), Ok(SourceRead::End)));
    }

    #[test]
    fn wrong_options() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t.csv"), "n,s\n").unwrap();
        std::fs::write(folder.path().join("empty.csv"), "").unwrap();
        std::fs::write(folder.path().join("excel.csv"), "n;s\n").unwrap();
        for (yaml, code, message) in [
            ("path: x.csv\ncolumns: {n: int64}", "E0609", "does not exist"),
            ("path: .\ncolumns: {n: int64}", "E0609", "is a folder"),
            ("path: empty.csv\ncolumns: {n: int64}", "E0609", "is empty"),
            ("path: excel.csv\ncolumns: {n: int64}", "E0609", "separated by ';': `n;s`"),
            ("path: t.csv\ncolumns: {nn: int64}", "E0609", "does not name the declared column `nn`"),
            ("path: t.csv\ncolumns: {n: int64}\nevent_time: m", "E0605", "no declared column"),
            ("path: t.csv\ncolumns: {s: bool}\nevent_time: s", "E0606", "expected int64, float64 or text"),
            ("path: t.csv\ncolumns: {}", "E0606", "no columns"),
            ("path: t.csv\ncolumns: {_n: int64}", "E0606", "starts with `_`"),
            (
                "path: t.csv\ncolumns: {n: int64}\ntime_unit: s",
                "E0606",
                "`time_unit` has no effect without `event_time`",
            ),
            ("path: t.csv\ncolumns: {n: int64}\nout_of_order: 0s", "E0606", "`out_of_order` has no effect"),
            (
                "event_time: null\npath: t.csv\ncolumns: {n: int64}\nmax_jump: 1d",
                "E0606",
                "`max_jump` has no effect",
            ),
        ] {
            let error = only(bind(&Csv, folder.path(), yaml).err().unwrap());
            assert_eq!(error.code, code, "{error}");
            assert!(error.message.contains(message), "{error}");
            assert!(error.help.is_some() && error.line().is_some(), "{error}");
        }
        assert!(bind(&Csv, folder.path(), "path: t.csv\ncolumns: {n: int}").is_err());
        let two = "path: t.csv\ncolumns: {n: int64}\ntime_unit: us\nmax_jump: none";
        let lines: Vec<_> = bind(&Csv, folder.path(), two).err().unwrap().iter().map(|e| e.line()).collect();
        assert_eq!(lines, [Some(3), Some(4)]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn floats_come_back_bit_by_bit(values in prop::collection::vec(any::<u64>().prop_map(f64::from_bits), 1..100)) {
            let values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
            let text: String = values.iter().map(|value| format!("{value:?}\n")).collect();
            let (batches, _) = read(format!("f\n{text}").as_bytes(), "path: t.csv\ncolumns: {f: float64}");
            let found = batches.iter().flat_map(|batch| float64(batch.column(0)).unwrap().iter().flatten());
            prop_assert!(found.map(f64::to_bits).eq(values.iter().map(|value| value.to_bits())));
        }

        #[test]
        fn any_bytes_any_reads_any_seeks(
            content in prop::collection::vec(prop::sample::select(b"1,a\"\n\r\xff-".to_vec()), 0..120),
        ) {
            let content = [b"n,s\n".as_slice(), &content].concat();
            read(&content, "path: t.csv\ncolumns: {n: int64, s: text}\nmax_line: 9B");
        }
    }
}
