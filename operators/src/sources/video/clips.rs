//! The videos of a source and the order in which their frames are read.
use crate::api::OperatorError;
use crate::video::index::{Index, IndexError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Words in complaints that mean missing data.
const DAMAGED: &[&str] = &[
    "partial file",
    "truncat",
    "corrupt",
    "invalid data",
    "moov",
    "end of file",
    "prematurely",
    "exceeds",
    "times go back",
    "ffmpeg died",
];

/// The videos, and the order of their frames.
pub(super) struct Clips {
    pub(super) clips: Vec<Clip>,
    /// The entries in reading order.
    pub(super) order: Vec<Entry>,
}

/// A video file.
pub(super) struct Clip {
    /// Name of the file without its extension.
    pub(super) camera: String,
    pub(super) file: PathBuf,
    /// `None` if it cannot be read.
    pub(super) index: Option<Index>,
    /// Dead letter of the file, after its last frame: reason and detail.
    pub(super) letter: Option<(&'static str, String)>,
}

/// An item of a video: a frame or its dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) clip: u32,
    pub(super) frame: Option<u32>,
}

impl Clips {
    /// Reads the indexes of the files; every `every`-th frame of each file is in the order.
    ///
    /// # Errors
    /// ffmpeg cannot be started, or a name is not UTF-8. A file that is no video becomes a dead letter.
    pub(super) fn read(program: &Path, files: &[PathBuf], every: usize) -> Result<Self, OperatorError> {
        let mut clips = Vec::with_capacity(files.len());
        for (file, index) in files.iter().zip(indexes(program, files)) {
            let stem = file.file_stem().and_then(|stem| stem.to_str()).ok_or_else(|| {
                OperatorError::new(format!("`{}`: the name of a video must be UTF-8", file.display()))
            })?;
            let name = file.file_name().unwrap_or_default().display().to_string();
            let (index, letter) = match index {
                Ok(index) => {
                    let is_damage = |words: &&String| {
                        let words = words.to_lowercase();
                        DAMAGED.iter().any(|damage| words.contains(damage))
                    };
                    let letter = index.complaint.as_ref().filter(is_damage).map(|words| {
                        let text =
                            format!("reading `{name}` only up to frame {}: {words}", index.frames.len());
                        ("video_incomplete", text)
                    });
                    (Some(index), letter)
                }
                Err(IndexError::Unreadable(words)) => {
                    (None, Some(("video_unreadable", format!("`{name}`: {words}"))))
                }
                Err(error @ IndexError::Start { .. }) => return Err(OperatorError::new(error.to_string())),
            };
            clips.push(Clip { camera: stem.to_owned(), file: file.clone(), index, letter });
        }
        let order = order(&clips, every);
        Ok(Self { clips, order })
    }

    /// Microseconds from the first frame of the video.
    pub(super) fn microseconds(&self, entry: Entry) -> i64 {
        let Some(index) = &self.clips[entry.clip as usize].index else { return 0 };
        let last = index.frames.len().saturating_sub(1);
        index.microseconds(entry.frame.map_or(last, |frame| frame as usize))
    }

    /// Name of an entry in positions; empty after the last one.
    pub(super) fn name(&self, at: usize) -> String {
        let Some(entry) = self.order.get(at) else { return format!("end of {}", self.order.len()) };
        let camera = &self.clips[entry.clip as usize].camera;
        match entry.frame {
            Some(frame) => format!("{camera}/{frame} of {}", self.order.len()),
            None => format!("{camera}/end of {}", self.order.len()),
        }
    }
}

/// Reads the indexes of the files, as many at a time as there are processors: a program reads each.
fn indexes(program: &Path, files: &[PathBuf]) -> Vec<Result<Index, IndexError>> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let read = Mutex::new(Vec::with_capacity(files.len()));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(file) = files.get(number) else { return };
            let index = Index::read(program, file);
            read.lock().unwrap_or_else(PoisonError::into_inner).push((number, index));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..processors.min(files.len()) {
            scope.spawn(work);
        }
        work();
    });
    let mut read = read.into_inner().unwrap_or_else(PoisonError::into_inner);
    read.sort_unstable_by_key(|(number, _)| *number);
    read.into_iter().map(|(_, index)| index).collect()
}

/// Orders by time, then by file; the dead letter of a file follows its last frame.
fn order(clips: &[Clip], every: usize) -> Vec<Entry> {
    let mut all: Vec<(i64, u32, u32)> = Vec::new();
    for (number, clip) in (0u32..).zip(clips) {
        let frames = clip.index.as_ref().map_or(0, |index| index.frames.len());
        let times = (0..frames).step_by(every.max(1));
        if let Some(index) = &clip.index {
            all.extend(times.map(|frame| (index.microseconds(frame), number, frame as u32)));
        }
        if clip.letter.is_some() {
            let last = clip.index.as_ref().map_or(0, |index| index.microseconds(frames - 1));
            all.push((last, number, u32::MAX));
        }
    }
    all.sort_unstable();
    let entry = |(_, clip, frame)| Entry { clip, frame: (frame != u32::MAX).then_some(frame) };
    all.into_iter().map(entry).collect()
}
