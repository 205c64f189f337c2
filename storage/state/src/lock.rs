//! Exclusive access to a state. The system releases the lock when the process ends, in every case.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::error::StoreError;

/// The holder of a state, as in the lock file. It stays there after the holder has ended: only the lock itself shows
/// whether the state is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The process.
    pub pid: u32,
    /// The machine's name.
    pub host: String,
    /// Start time, in UTC: `2026-11-23T08:30:00Z`.
    pub since: String,
    /// The command line.
    pub command: String,
}

impl Holder {
    /// Creates the holder for this process, from now on.
    pub fn this_process() -> Self {
        let arguments: Vec<_> =
            std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
        #[allow(clippy::disallowed_methods, reason = "people read the date; the engine's clock knows none")]
        let now = SystemTime::now();
        Self {
            pid: std::process::id(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            since: utc(now.duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_secs())),
            command: arguments.join(" "),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, host, since, command } = self;
        write!(f, "process {pid} on {host} since {since} ({command})")
    }
}

/// Seconds since 1970 as a date and time of the Gregorian calendar.
fn utc(seconds: u64) -> String {
    // Days since 0000-03-01, so that a leap day is the last of its year; 400 years have 146097 days.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153; // 0 is March
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    let time = seconds % 86_400;
    let (hour, minute, second) = (time / 3_600, time / 60 % 60, time % 60);
    format!("{:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z", era * 400 + year)
}

/// The lock; dropping it releases it.
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock, or reports its holder.
    pub(crate) fn take(path: &Path, place: &str) -> Result<Self, StoreError> {
        let error = |source| StoreError::new("locked", path, source);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(error)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                let read = file.read_to_string(&mut text);
                let holder = read.ok().and_then(|_| serde_json::from_str(&text).ok());
                return Err(StoreError::Locked { place: place.to_owned(), holder });
            }
            Err(TryLockError::Error(source)) => return Err(error(source)),
        }
        let mut text = serde_json::to_vec(&Holder::this_process()).map_err(|e| error(e.into()))?;
        text.push(b'\n');
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(&text)).map_err(error)?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_become_dates() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(951_868_799), "2000-02-29T23:59:59Z");
        assert_eq!(utc(1_767_225_599), "2025-12-31T23:59:59Z");
        assert_eq!(utc(4_107_542_400), "2100-03-01T00:00:00Z");
    }
}
