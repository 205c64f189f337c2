//! Replays of recordings.
use super::arrivals::Times;
use super::rows::RowsReader;
use super::{
    Description, VERSION, arrivals_of, cannot, is_recorded, journal_of, owner, read_as, recorded, records_of,
    rows_of,
};
use crate::failure::{Failure, Kind};
use crate::preparation::Prepared;
use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tidemill_engine::EpochLog;
use tidemill_engine::clock::{Clock, WallClock};
use tidemill_operators::api::{BoundSource, MakeSource, OperatorError, Source, SourcePosition, SourceRead};
use tidemill_operators::journal::{Journal, JournalError};
use tidemill_operators::record::payload_schema;

/// Pace of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Speed {
    /// As fast as the workflow takes the records.
    #[default]
    Max,
    /// As recorded, this many times as fast.
    Times(f64),
}

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<f64>() {
            _ if text == "max" => Ok(Self::Max),
            Ok(times) if times.is_finite() && times > 0.0 => Ok(Self::Times(times)),
            _ => Err("write `1` for the pace of the recording, `4` for four times that, or `max`".to_owned()),
        }
    }
}

fn description(folder: &Path) -> Result<Description, Failure> {
    let path = folder.join(super::DESCRIPTION);
    let wrong = |error: String| {
        Failure::new(Kind::Data, format!("`{}` is no recording: {error}", folder.display()))
            .with_help("`tidemill run WORKFLOW --record DIR` makes one")
    };
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(wrong(format!("it has no `{}`", super::DESCRIPTION)));
        }
        text => text.map_err(|error| cannot("read", &path, &error))?,
    };
    let read: Description =
        serde_json::from_str(&text).map_err(|error| wrong(format!("`{}`: {error}", super::DESCRIPTION)))?;
    match read.recording {
        VERSION => Ok(read),
        other => Err(wrong(format!("its version is {other}, this program reads {VERSION}"))),
    }
}

/// Checks that a folder is a recording, before anything of it is read.
///
/// # Errors
/// It is none, of another version, or not whole.
pub fn look(folder: &Path) -> Result<(), Failure> {
    description(folder)?;
    match super::epochs_of(folder) {
        path if path.is_file() => Ok(()),
        path => Err(not_whole(&path)),
    }
}

fn not_whole(missing: &Path) -> Failure {
    let text = format!("the recording is not whole: `{}` is missing", missing.display());
    Failure::new(Kind::Data, text).with_help("copy the whole folder again")
}

/// Has a run read its sources from a recording. `logs`: its [epochs](super::epochs_of). Returns whether the recorded run
/// came to an end.
///
/// # Errors
/// It is no recording, or one of other sources, or it is damaged.
pub fn read_from(
    folder: &Path,
    logs: &BTreeMap<String, EpochLog>,
    speed: Speed,
    prepared: &mut Prepared,
) -> Result<bool, Failure> {
    let description = description(folder)?;
    let mut firsts = Vec::new();
    for source in recorded(prepared) {
        check(source, &description, folder)?;
        if let Speed::Times(_) = speed {
            let path = arrivals_of(folder, &source.id);
            let mut arrivals = Times::open(&path).map_err(|error| cannot("read", &path, &error))?;
            let first = arrivals.of(0).map_err(|text| Failure::new(Kind::Data, text))?;
            firsts.extend(first.map(|(at, _)| at));
        }
    }
    let zero = firsts.into_iter().min().unwrap_or(0);
    let clock = Arc::new(OnceLock::new());
    let program = &mut prepared.program;
    for source in program.sources.values_mut().filter(|source| is_recorded(source)) {
        let make = reader(folder, source)?;
        let stages = program.plan.stages.iter().filter(|stage| stage.operator == source.id);
        let until = stages.filter_map(|stage| Some(logs.get(&stage.id)?.stop().sequence)).max();
        let pace = match speed {
            Speed::Max => None,
            Speed::Times(times) => Some((arrivals_of(folder, &source.id), times)),
        };
        let (name, clock) = (source.id.clone(), Arc::clone(&clock));
        let make: MakeSource = Arc::new(move || {
            let pace = pace.as_ref().map(|(path, times)| {
                let arrivals = Times::open(path).map_err(|error| OperatorError::new(error.to_string()))?;
                Ok::<_, OperatorError>(Pace { arrivals, times: *times, zero, clock: Arc::clone(&clock) })
            });
            Ok(Box::new(Replayed {
                source: name.clone(),
                inner: make()?,
                pace: pace.transpose()?,
                progress: Some((0, until.unwrap_or(0))),
            }))
        });
        // Nothing is connected, and nobody waits.
        (source.feeds, source.requests) = (None, None);
        read_as(source, make);
    }
    Ok(description.ended)
}

/// Returns how the records of a source are read from the recording.
fn reader(folder: &Path, source: &BoundSource) -> Result<MakeSource, Failure> {
    if let Some(reading) = &source.journalled {
        let journal = Journal::open_ended(&journal_of(folder, &source.id), owner(source));
        return Ok((reading.make)(journal.map_err(|error| damaged(&source.id, &error))?));
    }
    let (path, schema) = (rows_of(folder, &source.id), payload_schema(&source.output));
    Ok(Arc::new(move || {
        let rows = RowsReader::open(&path, Arc::clone(&schema));
        Ok(Box::new(rows.map_err(|error| OperatorError::new(format!("`{}`: {error}", path.display())))?))
    }))
}

/// Checks that a source is in the recording.
fn check(source: &BoundSource, description: &Description, folder: &Path) -> Result<(), Failure> {
    let of_another = |text: String| {
        Err(Failure::new(Kind::Configuration, text)
            .with_help("replay a recording of this workflow, or record again"))
    };
    let at = format!("the recording `{}`", folder.display());
    match description.sources.get(&source.id) {
        None => return of_another(format!("{at} does not have source `{}`", source.id)),
        Some(kind) if *kind != source.kind => {
            return of_another(format!(
                "source `{}` is of kind `{}`, in {at} it is of kind `{kind}`",
                source.id, source.kind
            ));
        }
        Some(_) => {}
    }
    let path = match &source.journalled {
        Some(_) => journal_of(folder, &source.id),
        None => rows_of(folder, &source.id),
    };
    if path.exists() { Ok(()) } else { Err(not_whole(&path)) }
}

fn damaged(source: &str, error: &JournalError) -> Failure {
    match error {
        JournalError::Damaged { path, reason } => {
            Failure::new(Kind::Data, format!("the recording is damaged: `{}`: {reason}", path.display()))
                .with_help("copy the folder again, or record again")
        }
        JournalError::OfAnother { .. } => Failure::new(
            Kind::Configuration,
            format!("source `{source}` gives other columns than the recorded one"),
        )
        .with_help("replay it with the source as it was; operators and sinks may change"),
        other => Failure::new(Kind::Unavailable, format!("source `{source}`: {other}")),
    }
}

/// The pace of a source.
struct Pace {
    arrivals: Times,
    times: f64,
    /// When the first record of all sources came, in the time of the recording.
    zero: i64,
    /// Begins with the first read of any source.
    clock: Arc<OnceLock<WallClock>>,
}

impl Pace {
    /// Waits until a record is due; returns how many came with it.
    fn wait(&mut self, record: u64) -> Result<u64, OperatorError> {
        let Some((at, until)) = self.arrivals.of(record).map_err(OperatorError::new)? else {
            return Ok(u64::MAX);
        };
        let due = (at.saturating_sub(self.zero).max(0) as f64 * 1000.0 / self.times) as i64;
        let clock = self.clock.get_or_init(WallClock::new);
        if let Some(left) = clock.real_time_until(due).filter(|left| *left > Duration::ZERO) {
            std::thread::sleep(left);
        }
        Ok(until - record)
    }
}

/// A source that is read from a recording.
struct Replayed {
    source: String,
    inner: Box<dyn Source>,
    pace: Option<Pace>,
    /// Records read, and those that the recorded run has emitted; unknown after a restart.
    progress: Option<(u64, u64)>,
}

impl Source for Replayed {
    fn read(&mut self, rows: usize, bytes: usize) -> Result<SourceRead, OperatorError> {
        let Some((read, until)) = self.progress else { return self.inner.read(rows, bytes) };
        if read >= until {
            return Ok(SourceRead::End);
        }
        let due = self.pace.as_mut().map_or(Ok(u64::MAX), |pace| pace.wait(read))?;
        let most = usize::try_from(due.min(until - read)).unwrap_or(usize::MAX);
        let part = self.inner.read(rows.min(most), bytes)?;
        if let SourceRead::End = part {
            return Err(OperatorError::new(format!(
                "the recording of source `{}` ends after {read} of {until} records: files of it are missing",
                self.source
            )));
        }
        self.progress = Some((read + records_of(&part), until));
        Ok(part)
    }

    fn position(&self) -> SourcePosition {
        self.inner.position()
    }

    fn seek(&mut self, position: &SourcePosition) -> Result<(), OperatorError> {
        (self.progress, self.pace) = (None, None);
        self.inner.seek(position)
    }

    fn sizes(&self) -> Option<&[u32]> {
        self.inner.sizes()
    }

    fn has_caught_up(&self) -> bool {
        self.inner.has_caught_up()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_factors() {
        assert_eq!("1".parse(), Ok(Speed::Times(1.0)));
        assert_eq!("0.5".parse(), Ok(Speed::Times(0.5)));
        assert_eq!("max".parse(), Ok(Speed::Max));
        for wrong in ["0", "-1", "fast", "inf", ""] {
            assert!(wrong.parse::<Speed>().is_err(), "{wrong}");
        }
    }
}
