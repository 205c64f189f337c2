//! Shares the file of dead letters, which a run's coordinator writes in its controller's folder: committed bytes are stored for the next
//! controller before the checkpoint that refers to them.
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_app::letters::Share;
use tidemill_postgres::{Change, Lead, PostgresError};

pub(super) fn kind(run: &str) -> String {
    format!("letters:{run}")
}

/// Sorts by offset.
fn row(offset: u64) -> String {
    format!("{offset:020}")
}

/// Restores the shared bytes of the file, part by part.
pub(in super::super) fn restore(lead: &Lead, run: &str, path: &Path) -> Result<(), String> {
    let told = |error: PostgresError| error.to_string();
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let kind = kind(run);
    let names = lead.names(&kind).map_err(told)?;
    if names.is_empty() {
        return Ok(());
    }
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
    let (file, mut end) = (File::create(path).map_err(failed)?, 0);
    for name in &names {
        let offset = name.parse::<u64>().map_err(|_| format!("`{name}` is not a position in a file"))?;
        let part = lead.get(&kind, name).map_err(told)?.filter(|_| offset <= end);
        let part = part.ok_or_else(|| {
            format!("the bytes from {end} to {offset} of the dead letters of run {run}, or later ones, are missing")
        })?;
        // Bytes of a leader that reached no checkpoint are written again.
        file.set_len(offset).and_then(|()| file.write_all_at(&part, offset)).map_err(failed)?;
        end = offset + part.len() as u64;
    }
    Ok(())
}

/// Shares the committed bytes of the file at `path`.
pub(in super::super) fn share(lead: &Arc<Lead>, run: &str, path: PathBuf) -> Share {
    // Bytes after the last checkpoint were truncated when the file was opened.
    let shared = fs::metadata(&path).map_or(0, |metadata| metadata.len());
    let mut shared = Shared { lead: Arc::clone(lead), kind: kind(run), path, shared, is_there: false };
    Box::new(move || shared.share())
}

struct Shared {
    lead: Arc<Lead>,
    kind: String,
    path: PathBuf,
    /// Bytes of the file that are shared.
    shared: u64,
    /// Whether something was shared.
    is_there: bool,
}

impl Shared {
    fn share(&mut self) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("{}: {error}", self.path.display());
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(self.shared)).and_then(|_| file.read_to_end(&mut bytes)).map_err(failed)?;
        // The next controller needs the file even if it is empty.
        if bytes.is_empty() && self.is_there {
            return Ok(());
        }
        let told = |error: PostgresError| error.to_string();
        let names = self.lead.names(&self.kind).map_err(told)?;
        let own = row(self.shared);
        // Later rows are from a try without a checkpoint.
        let mut changes: Vec<Change<'_>> =
            names.iter().filter(|name| **name > own).map(|name| Change::delete(&self.kind, name)).collect();
        changes.push(Change::put(&self.kind, &own, &bytes));
        self.lead.write(&changes).map_err(told)?;
        self.shared += bytes.len() as u64;
        self.is_there = true;
        Ok(())
    }
}
