//! Cache of model outputs, one file each. A file is written under a temporary name and renamed, so every file is whole.
use crate::error::ProfileError;
use arrow_array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use std::path::{Path, PathBuf};
use tidemill_spec::digest::sha256;

/// A folder with outputs by the digests of model and input.
#[derive(Debug, Clone)]
pub struct OutputCache {
    folder: PathBuf,
}

impl OutputCache {
    /// Creates a cache in that folder, which is created at the first write.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Returns the key of an output: a digest of everything that determines it.
    ///
    /// # Errors
    /// When the batch cannot be encoded.
    pub fn key(model: &str, operator: &str, input: &RecordBatch) -> Result<String, ProfileError> {
        let mut bytes = encoded(input).map_err(|error| ProfileError::file(Path::new("(memory)"), error))?;
        bytes.extend_from_slice(model.as_bytes());
        bytes.extend_from_slice(operator.as_bytes());
        Ok(sha256(&bytes))
    }

    /// Returns a cached output; an unreadable file counts as absent.
    pub fn get(&self, key: &str) -> Option<RecordBatch> {
        read(&self.file(key)).ok()
    }

    /// Stores an output.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn put(&self, key: &str, output: &RecordBatch) -> Result<(), ProfileError> {
        let path = self.file(key);
        let bytes = encoded(output).map_err(|error| ProfileError::file(&path, error))?;
        write_whole(&path, &bytes)
    }

    fn file(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.arrow"))
    }
}

/// Encodes a batch as an Arrow stream.
fn encoded(batch: &RecordBatch) -> std::io::Result<Vec<u8>> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).map_err(std::io::Error::other)?;
    writer.write(batch).map_err(std::io::Error::other)?;
    writer.finish().map_err(std::io::Error::other)?;
    writer.into_inner().map_err(std::io::Error::other)
}

/// Writes a batch to a file, whole or not at all.
///
/// # Errors
/// When it cannot be written.
pub fn write(path: &Path, batch: &RecordBatch) -> Result<(), ProfileError> {
    let bytes = encoded(batch).map_err(|error| ProfileError::file(path, error))?;
    write_whole(path, &bytes)
}

/// Reads the batch of a file.
///
/// # Errors
/// When it cannot be read or has none.
pub fn read(path: &Path) -> std::io::Result<RecordBatch> {
    let file = std::io::BufReader::new(std::fs::File::open(path)?);
    let mut reader = StreamReader::try_new(file, None).map_err(std::io::Error::other)?;
    match reader.next() {
        Some(batch) => batch.map_err(std::io::Error::other),
        None => Err(std::io::Error::other("no batch")),
    }
}

/// Writes a file under a temporary name and renames it; creates folders.
///
/// # Errors
/// When it cannot be written.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), ProfileError> {
    let failed = |error| ProfileError::file(path, error);
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.partial", std::process::id()));
    let temporary = path.with_file_name(name);
    std::fs::write(&temporary, bytes).and_then(|()| std::fs::rename(&temporary, path)).map_err(|error| {
        let _ = std::fs::remove_file(&temporary); // the first error is the one to tell
        failed(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::tests::batch;

    #[test]
    fn what_was_put_in_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let cache = OutputCache::new(folder.path().join("new"));
        let input = batch(&[1, 2, 3]);
        let key = OutputCache::key("model", "op", &input).unwrap();
        assert_eq!(key, OutputCache::key("model", "op", &batch(&[1, 2, 3])).unwrap());
        assert_ne!(key, OutputCache::key("other", "op", &input).unwrap());
        assert_ne!(key, OutputCache::key("model", "op", &batch(&[1, 2, 4])).unwrap());
        assert_eq!(cache.get(&key), None);
        cache.put(&key, &input).unwrap();
        assert_eq!(cache.get(&key), Some(input.clone()));
        // An output without rows is cached too.
        cache.put(&key, &input.slice(0, 0)).unwrap();
        assert_eq!(cache.get(&key).map(|output| output.num_rows()), Some(0));
        std::fs::write(folder.path().join("new").join(format!("{key}.arrow")), "broken").unwrap();
        assert_eq!(cache.get(&key), None);
        let names: Vec<_> = std::fs::read_dir(folder.path().join("new")).unwrap().flatten().collect();
        assert_eq!(names.len(), 1, "{names:?}");
    }
}
