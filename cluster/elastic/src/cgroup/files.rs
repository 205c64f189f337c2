//! Reading and writing the files of control groups.
use super::GroupError;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Exceeds the size of all files that are read often.
const LONGEST: usize = 4096;

fn error(path: &Path, source: io::Error) -> GroupError {
    // An open file of a removed group returns "no such device".
    let no_such_device = rustix::io::Errno::NODEV.raw_os_error();
    match source.kind() == io::ErrorKind::NotFound || source.raw_os_error() == Some(no_such_device) {
        true => GroupError::Gone { path: path.to_owned() },
        false => GroupError::System { path: path.to_owned(), source },
    }
}

/// Reads a whole file.
pub(super) fn read(path: &Path) -> Result<String, GroupError> {
    fs::read_to_string(path).map_err(|source| error(path, source))
}

/// Replaces the content of an existing file.
pub(super) fn write(path: &Path, text: &str) -> Result<(), GroupError> {
    let opened = OpenOptions::new().write(true).truncate(true).open(path);
    let mut file = opened.map_err(|source| error(path, source))?;
    file.write_all(text.as_bytes()).map_err(|source| match error(path, source) {
        GroupError::System { path, source } => GroupError::Refused { path, value: text.to_owned(), source },
        gone => gone,
    })
}

/// Parses a file that contains a number.
pub(super) fn number(path: &Path, text: &str) -> Result<u64, GroupError> {
    let format = || GroupError::Format { path: path.to_owned(), what: "a number", text: text.to_owned() };
    text.trim().parse().map_err(|_| format())
}

/// Parses the number after a name in a file with one line per name.
pub(super) fn field(path: &Path, text: &str, name: &'static str) -> Result<u64, GroupError> {
    let format = || GroupError::Format { path: path.to_owned(), what: name, text: text.to_owned() };
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.trim().parse().ok()).ok_or_else(format)
}

/// A file that is read often and stays open.
#[derive(Debug)]
pub(super) struct Watched {
    path: PathBuf,
    file: File,
    text: String,
}

impl Watched {
    pub(super) fn open(path: PathBuf) -> Result<Self, GroupError> {
        let file = File::open(&path).map_err(|source| error(&path, source))?;
        Ok(Self { path, file, text: String::new() })
    }

    /// Reads its current content.
    pub(super) fn text(&mut self) -> Result<&str, GroupError> {
        let mut bytes = [0; LONGEST];
        let length = self.file.read_at(&mut bytes, 0).map_err(|source| error(&self.path, source))?;
        self.text.clear();
        self.text.push_str(&String::from_utf8_lossy(&bytes[..length]));
        Ok(&self.text)
    }

    pub(super) fn number(&mut self) -> Result<u64, GroupError> {
        let path = self.path.clone();
        number(&path, self.text()?)
    }

    pub(super) fn fields<const N: usize>(
        &mut self,
        names: [&'static str; N],
    ) -> Result<[u64; N], GroupError> {
        let path = self.path.clone();
        let text = self.text()?;
        let mut values = [0; N];
        for (value, name) in values.iter_mut().zip(names) {
            *value = field(&path, text, name)?;
        }
        Ok(values)
    }
}
