//! The file of dead letters of a run, which its coordinator writes in the folder of its controller: what is committed goes where the next
//! controller finds it, before the checkpoint that counts on it.
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

/// In the order of the bytes.
fn row(offset: u64) -> String {
    format!("{offset:020}")
}

/// Puts the file where it is written, as far as it was shared, a part at a time.
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
        let offset = name.parse::<u64>().map_err(|_| format!("`{name}` is no place in a file"))?;
        let part = lead.get(&kind, name).map_err(told)?.filter(|_| offset <= end);
        let part = part.ok_or_else(|| {
            format!("the bytes from {end} to {offset} of the dead letters of run {run}, or those behind, are missing")
        })?;
        // What a leader wrote before a checkpoint that did not come to be is written again.
        file.set_len(offset).and_then(|()| file.write_all_at(&part, offset)).map_err(failed)?;
        end = offset + part.len() as u64;
    }
    Ok(())
}

/// Shares what is committed of the file at `path`.
pub(in super::super) fn share(lead: &Arc<Lead>, run: &str, path: PathBuf) -> Share {
    // What is behind the last checkpoint was cut off when the file was opened.
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
    /// Something was shared.
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
        // Whoever goes on wants a file that was there, also one in which nothing stands yet.
        if bytes.is_empty() && self.is_there {
            return Ok(());
        }
        let told = |error: PostgresError| error.to_string();
        let names = self.lead.names(&self.kind).map_err(told)?;
        let own = row(self.shared);
        // Behind it are parts of a try that no checkpoint followed.
        let mut changes: Vec<Change<'_>> =
            names.iter().filter(|name| **name > own).map(|name| Change::delete(&self.kind, name)).collect();
        changes.push(Change::put(&self.kind, &own, &bytes));
        self.lead.write(&changes).map_err(told)?;
        self.shared += bytes.len() as u64;
        self.is_there = true;
        Ok(())
    }
}
