//! `file_directory`: the files of a folder, by name.
//!
//! ```yaml
//! - {id: files, kind: file_directory, key: key, rate: 40/s, options: {path: data/unknown, endings: [bin, dat]}}
//! ```
//! Every file is one record `{key: text, name: text, bytes: bytes}`; the key is the name without its
//! extension, or with it if `key_from` is `name`. For models that read files as they are, such as those that recognise
//! types of files. Dead letters: `file_name_invalid` (not UTF-8), `file_empty`, `file_too_large` (`max_file`, default 64MiB),
//! `file_unreadable`.
//!
//! ```
//! use tidemill_operators::api::SourceRead;
//! use tidemill_operators::kind::EndContext;
//! use tidemill_operators::registry::Registry;
//! use tidemill_spec::{span::SourceFile, yaml};
//! let folder = tempfile::tempdir().unwrap();
//! std::fs::write(folder.path().join("unknown.bin"), [0, 1, 2]).unwrap();
//! let id = "files".into();
//! let context = EndContext::new(&id, folder.path());
//! let options = yaml::parse(&SourceFile::new("workflow.yaml", "path: .")).unwrap();
//! let files = Registry::builtin().source("file_directory").unwrap().bind(&context, &options).unwrap();
//! assert_eq!(files.output.to_string(), "{key: text, name: text, bytes: bytes}");
//! let mut reader = (files.make)().unwrap();
//! let Ok(SourceRead::Rows { payload, .. }) = reader.read(8, 1 << 20) else { panic!() };
//! assert_eq!(payload.num_rows(), 1);
//! ```
use super::directory::Folder;
use crate::api::BoundSource;
use crate::kind::{EndContext, SourceKind};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::span::Located;
use tidemill_spec::types::{Column, ColumnType, StreamType};
use tidemill_spec::units::Bytes;
use tidemill_spec::value::Value;

/// The kind `file_directory`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct FileDirectory;

/// Options of `file_directory`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Options {
    /// The folder, relative to the workflow file.
    path: Located<String>,
    /// Endings of the names of files to read, such as `pdf`. Default: all files.
    #[serde(default)]
    endings: Vec<Located<String>>,
    /// Text of a record's key. Default: stem.
    #[serde(default)]
    key_from: KeyFrom,
    /// Largest file. Default: 64MiB.
    #[serde(default = "super::lines::default_max_file")]
    max_file: Bytes,
}

/// Text of a record's key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum KeyFrom {
    /// The file's name without its extension; two files that differ only there are an error.
    #[default]
    Stem,
    /// The whole name.
    Name,
}

impl SourceKind for FileDirectory {
    fn kind(&self) -> &'static str {
        "file_directory"
    }

    fn summary(&self) -> &'static str {
        "The files of a folder as they are, by name."
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(Options)
    }

    fn shown_by_opening(&self) -> &'static str {
        "is a folder with files"
    }

    fn bind(&self, context: &EndContext<'_>, options: &Value) -> Result<BoundSource, Diagnostics> {
        let options: Options = options.deserialize_into()?;
        let mut errors = Diagnostics::new();
        for ending in &options.endings {
            if ending.is_empty() || ending.contains(['.', '/', '*']) {
                let inner = ending.rsplit(['.', '/', '*']).next().unwrap_or_default();
                let help = format!(
                    "write what follows the last dot, such as `{}`",
                    if inner.is_empty() { "pdf" } else { inner }
                );
                let error = Diagnostic::error("E0606", format!("`{ending}` is not the ending of a name"));
                errors.push(error.at(ending.span.clone()).with_help(help));
            }
        }
        errors.into_result(())?;
        let output = StreamType::new([
            Column::new("key", ColumnType::Text),
            Column::new("name", ColumnType::Text),
            Column::new("bytes", ColumnType::Bytes),
        ]);
        let folder = Folder {
            path: context.path(&options.path),
            endings: options.endings.iter().map(|ending| ending.to_ascii_lowercase()).collect(),
            gives_names: true,
            has_whole_keys: options.key_from == KeyFrom::Name,
            file_limit: options.max_file.0.min(super::lines::MAX_FILE_LIMIT),
            check: Arc::new(|_| Ok(())),
        };
        folder.bind(self.kind(), context, &options.path, output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{binary, text};
    use crate::sources::test::{bind, check_seeks, drain};
    use crate::testing::only;

    #[test]
    fn files_are_read_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
        write("a.PDF", b"%PDF");
        write("b", &[0xff, 0]);
        write("c.txt", b"");
        write("d.bin", &[7; 30]);
        write(".hidden", b"x");
        std::fs::create_dir(folder.path().join("e")).unwrap();
        let source = bind(&FileDirectory, folder.path(), "path: .\nmax_file: 20B").unwrap();
        let (batches, dead) = drain(&source, 100, usize::MAX);
        let column = |at: usize| text(batches[0].column(at)).unwrap().iter().flatten().collect::<Vec<_>>();
        assert_eq!((column(0), column(1)), (vec!["a", "b"], vec!["a.PDF", "b"]));
        let contents = binary(batches[0].column(2)).unwrap();
        assert_eq!((contents.value(0), contents.value(1)), (&b"%PDF"[..], &[0xff, 0][..]));
        let reasons: Vec<_> = dead.iter().map(|(at, letter)| (*at, &*letter.reason)).collect();
        assert_eq!(reasons, [(2, "file_empty"), (3, "file_too_large")]);
        check_seeks(&source);
        let some = bind(&FileDirectory, folder.path(), "{path: ., endings: [Pdf]}").unwrap();
        assert_eq!(drain(&some, 100, usize::MAX).0[0].num_rows(), 1);
    }

    #[test]
    fn files_that_differ_in_their_ending_need_whole_names_as_keys() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["data.csv", "data.json", "other"] {
            std::fs::write(folder.path().join(name), name).unwrap();
        }
        let error = only(bind(&FileDirectory, folder.path(), "path: .").err().unwrap());
        assert_eq!(error.code, "E0609");
        assert!(error.message.contains("`data.csv` and `data.json`"), "{error}");
        assert!(error.help.unwrap().contains("`key_from: name`"));
        let source = bind(&FileDirectory, folder.path(), "path: .\nkey_from: name").unwrap();
        let (batches, _) = drain(&source, 100, usize::MAX);
        let keys: Vec<&str> = text(batches[0].column(0)).unwrap().iter().flatten().collect();
        assert_eq!(keys, ["data.csv", "data.json", "other"]);
    }

    #[test]
    fn wrong_endings_and_empty_folders_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let error =
            only(bind(&FileDirectory, folder.path(), "{path: ., endings: [\"*.pdf\"]}").err().unwrap());
        assert_eq!((error.code, error.column()), ("E0606", Some(21)));
        assert!(error.help.unwrap().contains("such as `pdf`"));
        let error = only(bind(&FileDirectory, folder.path(), "path: .").err().unwrap());
        assert_eq!(error.code, "E0609");
        assert!(error.message.contains("no file in"), "{error}");
    }
}
