//! Folders of files: the common part of `image_directory`, `wav_directory` and `file_directory`.
//!
//! The folder is listed once, when a reader is made: regular files with a matching extension, by name, except hidden ones.
//! A name that is not UTF-8 cannot be a key and is a dead letter. The position is the index of the next file and its name,
//! so that a changed folder is noticed. Two files whose names differ only in their extension would have one key, and are
//! refused, unless whole names are the keys.
use crate::api::{
    BoundSource, DeadLetter, ListFiles, MakeSource, OperatorError, Source, SourceInput, SourcePosition,
    SourceRead,
};
use crate::kind::EndContext;
use crate::record::payload_schema;
use crate::sources::cells::Refusal;
use crate::values::Values;
use arrow_array::builder::StringBuilder;
use arrow_array::{ArrayRef, BinaryArray, RecordBatch};
use arrow_buffer::{Buffer, OffsetBufferBuilder};
use arrow_schema::SchemaRef;
use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::span::Located;
use tidemill_spec::types::StreamType;

/// Most bytes of one read, far below the 2 GiB limit of offsets in a column.
const READ_LIMIT: usize = 1 << 30;
/// Bytes by which the buffer grows for a file larger than its metadata says.
const GROW_BY: usize = 64 << 10;

/// Checks the content of a file without decoding it.
type Check = Arc<dyn Fn(&[u8]) -> Result<(), Refusal> + Send + Sync>;

/// A folder of files of one kind.
#[derive(Clone)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    /// Extensions without dot, lower case; none: all files.
    pub(super) endings: Vec<String>,
    /// Whether records have the whole name too.
    pub(super) gives_names: bool,
    /// Whether the key is the whole name.
    pub(super) has_whole_keys: bool,
    /// Largest file, bytes.
    pub(super) file_limit: u64,
    /// Check of a file's content.
    pub(super) check: Check,
}

impl Folder {
    /// Checks that there are files, if they may be opened.
    pub(super) fn bind(
        self,
        kind: &str,
        context: &EndContext<'_>,
        path: &Located<String>,
        output: StreamType,
    ) -> Result<BoundSource, Diagnostics> {
        let written = path.value.clone();
        if context.opens() {
            self.list_keys(&written).map_err(|(message, help)| {
                Diagnostic::error("E0609", format!("source `{}`: {message}", context.id))
                    .at(path.span.clone())
                    .with_help(help)
            })?;
        }
        let schema = payload_schema(&output);
        let (folder, of_folder) = (self.clone(), written.clone());
        let names: ListFiles = Arc::new(move || {
            folder.list_keys(&of_folder).map_err(|(message, _)| std::io::Error::other(message))
        });
        let input = SourceInput::Folder { path: self.path.clone(), names, may_grow: true };
        let make: MakeSource = Arc::new(move || {
            let files = self
                .list_keys(&written)
                .map_err(|(message, help)| OperatorError::new(format!("{message}: {help}")))?;
            Ok(Box::new(Reader {
                folder: self.clone(),
                files,
                next: 0,
                schema: Arc::clone(&schema),
                largest: 0,
            }))
        });
        Ok(BoundSource { input: Some(input), ..context.source(kind, output, make) })
    }

    /// Lists files as [`Folder::list`]; the keys of their records must differ too.
    fn list_keys(&self, written: &str) -> Result<Vec<OsString>, (String, String)> {
        let files = self.list(written)?;
        let mut known = HashMap::with_capacity(files.len());
        for name in &files {
            if let Some(other) = known.insert(self.key_of(name), name) {
                return Err((
                    format!(
                        "`{}` and `{}` in `{}` would have the same key",
                        other.display(),
                        name.display(),
                        self.path.display()
                    ),
                    match self.gives_names {
                        true => "write `key_from: name`, or rename one of them".to_owned(),
                        false => "rename one of them, or put one into another folder".to_owned(),
                    },
                ));
            }
        }
        Ok(files)
    }

    /// Returns the names of the files in order, or an error with advice. `written`: the path in the workflow.
    pub(super) fn list(&self, written: &str) -> Result<Vec<OsString>, (String, String)> {
        let shown = self.path.display();
        let entries = std::fs::read_dir(&self.path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => (
                format!("the folder `{shown}` does not exist"),
                super::missing_help(
                    written,
                    &self.path,
                    "write a path relative to the workflow file, or create the folder",
                ),
            ),
            ErrorKind::NotADirectory => (
                format!("`{shown}` is not a folder"),
                "write the path of the folder that holds the files".to_owned(),
            ),
            ErrorKind::PermissionDenied => (
                format!("cannot read the folder `{shown}`: permission denied"),
                format!("allow reading, for instance with `chmod u+rx {shown}`"),
            ),
            _ => (
                format!("cannot read the folder `{shown}`: {error}"),
                "check the path and the disk".to_owned(),
            ),
        })?;
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|e| {
                (format!("cannot read the folder `{shown}`: {e}"), "check the disk".to_owned())
            })?;
            let name = entry.file_name();
            let ending = Path::new(&name).extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase);
            let fits = self.endings.is_empty() || ending.is_some_and(|e| self.endings.contains(&e));
            // Follows links; a folder or a pipe named x.png is not read.
            let regular = || std::fs::metadata(entry.path()).map_or(true, |m| m.is_file());
            if fits && !name.as_encoded_bytes().starts_with(b".") && regular() {
                files.push(name);
            }
        }
        if files.is_empty() {
            let endings: Vec<String> = self.endings.iter().map(|e| format!(".{e}")).collect();
            let which = match endings.is_empty() {
                true => String::new(),
                false => format!(" that ends with {}", endings.join(" or ")),
            };
            return Err((
                format!("there is no file in `{shown}`{which}"),
                "put files there, or write the path of another folder".to_owned(),
            ));
        }
        files.sort_unstable();
        Ok(files)
    }

    /// Appends the checked content of the file and returns its name as text. The caller cuts off partial data of a refused
    /// file.
    fn read<'a>(&self, name: &'a OsStr, contents: &mut Vec<u8>) -> Result<&'a str, Refusal> {
        let path = self.path.join(name);
        let name = name
            .to_str()
            .ok_or_else(|| ("file_name_invalid", format!("`{}`: the name is not UTF-8", name.display())))?;
        let start = contents.len();
        append_file(&path, self.file_limit as usize, contents)
            .map_err(|e| ("file_unreadable", format!("cannot read `{name}`: {e}")))?;
        let bytes = &contents[start..];
        if bytes.is_empty() {
            return Err(("file_empty", format!("`{name}` is empty")));
        }
        if bytes.len() as u64 > self.file_limit {
            return Err(("file_too_large", format!("`{name}` has more than {} bytes", self.file_limit)));
        }
        (self.check)(bytes).map_err(|(reason, detail)| (reason, format!("`{name}`: {detail}")))?;
        Ok(name)
    }

    /// The name, without its extension unless whole names are the keys.
    fn key_of<'a>(&self, name: &'a OsStr) -> &'a OsStr {
        if self.has_whole_keys { name } else { Path::new(name).file_stem().unwrap_or(name) }
    }

    /// Values of the dead letter of a refused file.
    fn values(&self, name: &OsStr) -> Values {
        let mut values = Values::from_iter([("file".to_owned(), name.to_string_lossy().into())]);
        if let Ok(metadata) = std::fs::metadata(self.path.join(name)) {
            values.insert("bytes".to_owned(), metadata.len().into());
        }
        values
    }
}

/// Appends the content of a file, at most `limit` + 1 bytes.
fn append_file(path: &Path, limit: usize, contents: &mut Vec<u8>) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    let most = contents.len().saturating_add(limit).saturating_add(1);
    // One byte more than the metadata says, so that the end is seen without growing the buffer.
    let expected = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX).saturating_add(1);
    let mut filled = contents.len();
    contents.resize(filled.saturating_add(expected).min(most), 0);
    loop {
        if filled == contents.len() {
            if filled == most {
                return Ok(());
            }
            contents.resize(filled.saturating_add(GROW_BY).min(most), 0);
        }
        match file.read(&mut contents[filled..]) {
            Ok(0) => {
                contents.truncate(filled);
                return Ok(());
            }
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

struct Reader {
    folder: Folder,
    files: Vec<OsString>,
    next: usize,
    schema: SchemaRef,
    /// Bytes of the largest read so far, the estimate for the next.
    largest: usize,
}

impl Reader {
    /// Name of a file; empty after the last one.
    fn name_at(&self, index: usize) -> Cow<'_, str> {
        self.files.get(index).map_or("".into(), |name| name.to_string_lossy())
    }
}

impl Source for Reader {
    fn read(&mut self, rows: usize, bytes: usize) -> Result<SourceRead, OperatorError> {
        if self.next >= self.files.len() {
            return Ok(SourceRead::End);
        }
        // The files are read directly into the buffer of the column.
        let (mut keys, mut contents) =
            (StringBuilder::new(), Vec::with_capacity(self.largest.min(bytes.saturating_mul(2))));
        let mut names = StringBuilder::new();
        let mut ends = OffsetBufferBuilder::<i32>::new(rows.min(self.files.len() - self.next));
        let (mut dead_letters, mut offsets, mut size) = (Vec::new(), Vec::new(), 0usize);
        let start = self.next;
        let most = bytes.min(READ_LIMIT.saturating_sub(self.folder.file_limit as usize));
        while self.next < self.files.len()
            && self.next - start < rows.max(1)
            && (self.next == start || size < most)
        {
            let before = contents.len();
            match self.folder.read(&self.files[self.next], &mut contents) {
                Ok(name) => {
                    keys.append_value(self.folder.key_of(OsStr::new(name)).to_str().unwrap_or(name));
                    names.append_value(name);
                    let length = contents.len() - before;
                    size += length + name.len();
                    ends.push_length(length);
                    offsets.push((self.next - start) as u64);
                }
                Err((reason, detail)) => {
                    contents.truncate(before);
                    let values = self.folder.values(&self.files[self.next]);
                    dead_letters.push(DeadLetter {
                        id: None,
                        time: None,
                        reason: reason.into(),
                        detail,
                        values,
                    });
                }
            }
            self.next += 1;
        }
        self.largest = self.largest.max(contents.len());
        let contents = BinaryArray::new(ends.finish(), Buffer::from_vec(contents), None);
        let mut columns: Vec<ArrayRef> = vec![Arc::new(keys.finish())];
        if self.folder.gives_names {
            columns.push(Arc::new(names.finish()));
        }
        columns.push(Arc::new(contents));
        let payload = RecordBatch::try_new(Arc::clone(&self.schema), columns)
            .map_err(|e| OperatorError::new(format!("{}: {e}", self.folder.path.display())))?;
        let offsets = (!dead_letters.is_empty()).then_some(offsets);
        Ok(SourceRead::Rows { payload, times: None, dead_letters, offsets })
    }

    fn position(&self) -> SourcePosition {
        let name = self.name_at(self.next);
        SourcePosition(format!("{}:{name}", self.next))
    }

    fn seek(&mut self, position: &SourcePosition) -> Result<(), OperatorError> {
        let parsed =
            position.0.split_once(':').and_then(|(index, name)| Some((index.parse::<usize>().ok()?, name)));
        let Some((index, name)) = parsed else {
            return Err(OperatorError::new(format!("`{}` is not a position in a folder", position.0)));
        };
        if index > self.files.len() || self.name_at(index) != name {
            return Err(OperatorError::new(format!(
                "the files in `{}` have changed since the checkpoint (`{name}` is no longer number {index}): \
                 start the run from the beginning",
                self.folder.path.display()
            )));
        }
        self.next = index;
        Ok(())
    }

    fn len_hint(&self) -> Option<u64> {
        Some(self.files.len() as u64)
    }
}
