//! Recordings (`--record DIR`) and their replays (`--replay DIR`).
use crate::arguments::RunArguments;
use crate::terminal::Terminal;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::{bytes, grouped};
use tidemill_app::listener::Listener;
use tidemill_app::preparation::Prepared;
use tidemill_app::recording::{Recording, epochs_of, replaying};
use tidemill_engine::EpochLog;
use tidemill_spec::units::Bytes;

/// Limit of a recording, unless another one is given.
const LIMIT: Bytes = Bytes(10 << 30);

/// The recording in `--replay`; none: it names an epoch log.
pub(super) fn replayed(arguments: &RunArguments) -> Option<&Path> {
    arguments.replay.as_deref().filter(|path| path.is_dir())
}

/// The epoch log to repeat.
pub(super) fn log_to_read(arguments: &RunArguments) -> Option<PathBuf> {
    replayed(arguments).map(epochs_of).or_else(|| arguments.replay.clone())
}

/// The epoch log to write.
pub(super) fn log_to_write(arguments: &RunArguments) -> Option<PathBuf> {
    arguments.record.as_deref().map(epochs_of).or_else(|| arguments.epoch_log.clone())
}

/// Makes the folder of a recording.
///
/// # Errors
/// The workflow cannot be recorded, or the folder not be made; a pace without a recording.
pub(super) fn begin(arguments: &RunArguments, prepared: &Prepared) -> Result<Option<Recording>, Failure> {
    if arguments.speed.is_some() && replayed(arguments).is_none() {
        let text = "`--speed` is the pace of a recording, and `--replay` names an epoch log";
        return Err(Failure::new(Kind::Usage, text)
            .with_help("`--record DIR` makes a recording; the pace of files is `--rate`"));
    }
    if let Some(folder) = replayed(arguments) {
        if arguments.processes {
            return Err(Failure::new(Kind::Usage, "the processes of workers cannot read a recording")
                .with_help("leave out `--processes`: the results are the same"));
        }
        replaying::look(folder)?;
    }
    let limit = arguments.record_size.unwrap_or(LIMIT);
    arguments.record.as_deref().map(|folder| Recording::create(folder, limit, prepared)).transpose()
}

/// Has the run read its sources through the recording, or from one.
///
/// # Errors
/// Files that cannot be made, or read, or are of another workflow.
pub(super) fn take_part(
    arguments: &RunArguments,
    recording: Option<&mut Recording>,
    logs: Option<&BTreeMap<String, EpochLog>>,
    prepared: &mut Prepared,
    terminal: &Terminal,
) -> Result<(), Failure> {
    if let Some(recording) = recording {
        return recording.take_part(prepared);
    }
    let (Some(folder), Some(logs)) = (replayed(arguments), logs) else { return Ok(()) };
    let speed = arguments.speed.unwrap_or_default();
    let has_ended = replaying::read_from(folder, logs, speed, prepared)?;
    terminal.note(&match has_ended {
        true => format!("replays the recording `{}`", folder.display()),
        false => format!(
            "replays the recording `{}` up to its last complete epoch: the run that made it was killed",
            folder.display()
        ),
    });
    Ok(())
}

/// Completes a recording and says how large it is.
pub(super) fn finish(recording: Recording, arguments: &RunArguments, terminal: &Terminal) -> Option<Failure> {
    let folder = arguments.record.as_deref().unwrap_or(Path::new("")).display();
    match recording.finish() {
        Ok((records, size)) => {
            let records = match records {
                1 => "1 record".to_owned(),
                records => format!("{} records", grouped(records)),
            };
            terminal.note(&format!(
                "recorded {records}, {} in `{folder}`: `tidemill run {} --replay {folder}` repeats the run",
                bytes(size),
                arguments.workflow.display()
            ));
            None
        }
        Err(failure) => Some(failure),
    }
}

/// Ends the run when its recording is about to reach its limit.
pub(super) struct Watch<'a> {
    recording: Option<&'a mut Recording>,
    is_told: bool,
}

impl<'a> Watch<'a> {
    /// The run has begun.
    pub(super) fn new(mut recording: Option<&'a mut Recording>) -> Self {
        if let Some(recording) = &mut recording {
            recording.begin();
        }
        Self { recording, is_told: false }
    }

    pub(super) fn look(&mut self, run: &tidemill_engine::Run, terminal: &Terminal) {
        let full =
            self.recording.as_ref().filter(|_| !self.is_told).and_then(|recording| recording.is_full());
        if let Some(limit) = full {
            self.is_told = true;
            terminal.warning(&format!(
                "the recording has come to its limit of {limit}, so the run ends; `--record-size` sets another one"
            ));
            run.stopper().stop();
        }
    }
}
