//! The frames of a video with their times, read from the container. They are decoded only if the container lacks display
//! times.
//!
//! ffmpeg writes a line for each packet (its format `framecrc`): stream, decoding time, presentation time, duration, size,
//! checksum and, unless it is a key frame, flags. The sorted presentation times are the frames if decoding gives the same
//! times. It gives others if the container stores decoding times only (H.264 in AVI), or took them for presentation times
//! (copies of such files). [`super::clock`] compares; then the decoder's order counts.
use super::clock::{Clock, agreed};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use tidemill_media::planes::Matrix;

/// Most frames missing in one gap.
const MOST_MISSING: i64 = 100_000;
/// ffmpeg's value for a missing time.
const NO_TIME: i64 = i64::MIN;
/// Packet flag: a key frame.
const KEY: u64 = 1;
/// Packet flag: the frame is not shown.
const DISCARD: u64 = 4;
/// Levels of ffmpeg's messages.
const LEVELS: [&str; 5] = ["panic", "fatal", "error", "warning", "info"];

/// Content of a video file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// Frames in display order.
    pub frames: Vec<FrameTime>,
    /// Seconds of one unit of the times: numerator and denominator.
    pub time_base: (u64, u64),
    /// Stored width and height.
    pub size: (u32, u32),
    /// Colour matrix, if [`super::planes`] can convert the pictures.
    pub matrix: Option<Matrix>,
    /// ffmpeg's complaint while it read the container, after which it stops; or a note that frames share a time.
    pub complaint: Option<String>,
    /// Source of the times.
    pub(super) clock: Clock,
    /// Frames left out because another has the same time.
    pub(super) lost: usize,
    /// Facts about the times of packets.
    pub(super) packets: Packets,
}

/// Facts about the times of a video's packets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Packets {
    /// Number of packets that are shown.
    pub(super) count: usize,
    /// Some have no presentation time.
    pub(super) lack_times: bool,
    /// They are displayed in storage order, according to the container.
    pub(super) are_in_order: bool,
}

/// A frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FrameTime {
    /// Display time, in units of the time base.
    pub time: i64,
    /// Whether it is decoded without other frames.
    pub is_key: bool,
}

/// Error of reading an index.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// ffmpeg cannot be started.
    #[error("cannot start {program}: {error}")]
    Start {
        /// The program.
        program: String,
        /// Cause.
        error: std::io::Error,
    },
    /// There is no video in the file.
    #[error("{0}")]
    Unreadable(String),
}

impl Index {
    /// Reads the index of a file, up to the first damage.
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn read(program: &Path, file: &Path) -> Result<Self, IndexError> {
        let (text, told, words) = packets(program, file, "")?;
        let mut index = match Self::parse(&text) {
            Ok(index) if !index.frames.is_empty() => index,
            Ok(_) => {
                let none = || "there are no frames in it".to_owned();
                return Err(IndexError::Unreadable(words.unwrap_or_else(none)));
            }
            Err(line) => return Err(IndexError::Unreadable(words.unwrap_or(line))),
        };
        if !agreed(program, file, &mut index, words.is_some())? && index.packets.lack_times {
            // Containers such as MPEG-PS lack the presentation time of some packets; ffmpeg derives it from those around
            // them.
            let (text, ..) = packets(program, file, "+genpts")?;
            index = Self::parse(&text).map_err(IndexError::Unreadable)?;
        }
        if words.is_some() {
            index.fill_gaps();
        }
        // A time that goes back is raised to the one before, so such frames cannot be distinguished.
        let lost = (index.lost > 0)
            .then(|| format!("its times go back: {} frames without their own time are left out", index.lost));
        let all: Vec<String> = [words, index.complaint.take(), lost].into_iter().flatten().collect();
        let complaint = (!all.is_empty()).then(|| all.join("; "));
        Ok(Self { matrix: matrix(&told, index.size), complaint, ..index })
    }

    /// Parses ffmpeg's output; an error has the part that was not understood.
    fn parse(text: &str) -> Result<Self, String> {
        let mut index = Self {
            frames: Vec::new(),
            time_base: (0, 0),
            size: (0, 0),
            matrix: None,
            complaint: None,
            clock: Clock::Packets,
            lost: 0,
            packets: Packets { are_in_order: true, ..Packets::default() },
        };
        for line in text.lines() {
            let wrong = || format!("ffmpeg wrote `{line}`");
            if let Some(rest) = line.strip_prefix("#tb 0: ") {
                index.time_base = pair(rest, '/').ok_or_else(wrong)?;
            } else if let Some(rest) = line.strip_prefix("#dimensions 0: ") {
                let (width, height) = pair(rest, 'x').ok_or_else(wrong)?;
                index.size =
                    (u32::try_from(width).map_err(|_| wrong())?, u32::try_from(height).map_err(|_| wrong())?);
            } else if !line.starts_with('#') && !line.is_empty() {
                let fields: Vec<&str> = line.split(',').map(str::trim).collect();
                // Without a presentation time frames are shown in decoding order.
                let time = fields.get(2).and_then(|time| time.parse().ok()).filter(|time| *time != NO_TIME);
                let lacks_time = time.is_none();
                let time = time.or_else(|| fields.get(1).and_then(|time| time.parse().ok()));
                let flags = fields.iter().find_map(|field| flags(field));
                // Packets before the start of a cut clip: needed to decode later ones, never shown.
                if flags.is_some_and(|flags| flags & DISCARD > 0) {
                    continue;
                }
                let is_key = flags.is_none_or(|flags| flags & KEY > 0);
                let time = time.ok_or_else(wrong)?;
                index.packets.lack_times |= lacks_time;
                index.packets.are_in_order &= index.frames.last().is_none_or(|last| last.time < time);
                index.frames.push(FrameTime { time, is_key });
            }
        }
        if index.time_base.0 == 0 || index.time_base.1 == 0 {
            return Err("there is no video in it".to_owned());
        }
        index.packets.count = index.frames.len();
        index.frames.sort_unstable();
        index.frames.dedup_by_key(|frame| frame.time);
        index.lost = index.packets.count - index.frames.len();
        Ok(index)
    }

    /// Adds the missing frames of gaps if frames are otherwise evenly spaced, so that the others keep their numbers: some
    /// frames of a damaged file are not even listed. Decoding never returns the added ones.
    pub(super) fn fill_gaps(&mut self) {
        let mut steps: Vec<i64> = self.frames.windows(2).map(|two| two[1].time - two[0].time).collect();
        steps.sort_unstable();
        let Some(&middle) = steps.get(steps.len() / 2) else { return };
        // Times may be rounded, as in Matroska, so the mean of the usual steps is more exact than any of them.
        let usual: Vec<f64> =
            steps.iter().filter(|step| **step * 2 < middle * 3).map(|step| *step as f64).collect();
        let step = usual.iter().sum::<f64>() / usual.len().max(1) as f64;
        let is_even = usual.iter().all(|usual| (usual - step).abs() <= (0.1 * step).max(1.0));
        if step < 1.0 || !is_even || usual.len() * 2 < steps.len() {
            return;
        }
        let mut all = Vec::with_capacity(self.frames.len());
        for (at, frame) in self.frames.iter().enumerate() {
            if let Some(before) = at.checked_sub(1).map(|before| self.frames[before].time) {
                let missing = ((frame.time - before) as f64 / step).round() as i64 - 1;
                // A gap of hours is a wrong time.
                for number in 1..=if missing > MOST_MISSING { 0 } else { missing } {
                    let time = before + (number as f64 * step).round() as i64;
                    all.push(FrameTime { time, is_key: false });
                }
            }
            all.push(*frame);
        }
        self.frames = all;
    }

    /// Returns the microseconds from the first frame to this one.
    pub fn microseconds(&self, frame: usize) -> i64 {
        let first = self.frames.first().map_or(0, |first| first.time);
        let units = i128::from(self.frames[frame].time) - i128::from(first);
        let (numerator, denominator) = (i128::from(self.time_base.0), i128::from(self.time_base.1));
        i64::try_from((units * numerator * 1_000_000).div_euclid(denominator)).unwrap_or(i64::MAX)
    }

    /// Returns the frame at which decoding starts for this one. Frames of a damaged container depend on where reading
    /// starts, and so do times that are not the container's; then it is always the first frame.
    pub fn entry(&self, frame: usize) -> usize {
        let is_anywhere = self.complaint.is_none() && self.clock == Clock::Packets;
        if is_anywhere { frame } else { 0 }
    }

    /// Returns the container time in seconds at which reading starts for this frame and none before it: halfway from the
    /// previous one.
    pub(super) fn begin(&self, frame: usize) -> f64 {
        let seconds = |time: i64| time as f64 * self.time_base.0 as f64 / self.time_base.1 as f64;
        let own = seconds(self.frames[frame].time);
        let before = frame.checked_sub(1).map_or(own, |before| seconds(self.frames[before].time));
        f64::midpoint(own, before)
    }

    /// Returns the distance between frames, if it is constant.
    pub(super) fn step(&self) -> Option<i64> {
        let mut steps = self.frames.windows(2).map(|two| two[1].time - two[0].time);
        let first = steps.next()?;
        (first > 0 && steps.all(|step| step == first)).then_some(first)
    }
}

/// Runs ffmpeg with these reader flags. Returns the lines of packets, the information and the complaints.
fn packets(program: &Path, file: &Path, flags: &str) -> Result<(String, String, Option<String>), IndexError> {
    let mut command = command(program);
    command.args(["-loglevel", "level+info"]);
    if !flags.is_empty() {
        command.args(["-fflags", flags]);
    }
    command.arg("-i").arg(named(file)).args(["-map", "0:v:0", "-c", "copy", "-f", "framecrc", "pipe:1"]);
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| IndexError::Start { program: program.display().to_string(), error })?;
    let (told, complaints) = by_level(&String::from_utf8_lossy(&output.stderr));
    let words = died(output.status).or_else(|| complaint(&complaints, file));
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), told, words))
}

/// Parses the flags of a packet; a packet without flags is a key frame and nothing else.
fn flags(field: &str) -> Option<u64> {
    field.strip_prefix("F=0x").and_then(|digits| u64::from_str_radix(digits, 16).ok())
}

fn pair(text: &str, between: char) -> Option<(u64, u64)> {
    let (first, second) = text.trim().split_once(between)?;
    Some((first.parse().ok()?, second.parse().ok()?))
}

/// The common ffmpeg command line: quiet, without a terminal, with the container's own times.
pub(super) fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["-nostdin", "-hide_banner", "-nostats", "-loglevel", "error", "-copyts"]);
    // Only local files may be opened, even if a file names other addresses.
    command.args(["-protocol_whitelist", "file,pipe,crypto,data"]);
    command
}

/// Reports that ffmpeg died, which it does not do itself. The build that `make setup` fetches crashes on MPEG transport
/// streams that ffmpeg itself wrote.
fn died(status: ExitStatus) -> Option<String> {
    status.signal().map(|signal| {
        format!("ffmpeg crashed on it (signal {signal}); another version may read it: `TIDEMILL_FFMPEG=/usr/bin/ffmpeg`, for instance")
    })
}

/// Returns a file name that ffmpeg does not take for an address or an option.
pub(super) fn named(file: &Path) -> OsString {
    let mut name = OsString::from("file:");
    name.push(file);
    name
}

/// Splits lines with levels such as `[mov @ 0x1] [error] moov atom not found` into information and complaints. Warnings are
/// neither.
fn by_level(words: &str) -> (String, String) {
    let (mut told, mut complaints) = (String::new(), String::new());
    // A line without a level continues the one before.
    let mut level = "error";
    for line in words.lines() {
        let text = match leveled(line) {
            Some((found, text)) => {
                level = found;
                text
            }
            None => line,
        };
        let lines = match level {
            "info" => &mut told,
            "warning" => continue,
            _ => &mut complaints,
        };
        lines.push_str(text);
        lines.push('\n');
    }
    (told, complaints)
}

/// Returns level and text of a line with a level, which is at the start or after the component's name. Further right is
/// text from the file.
fn leveled(line: &str) -> Option<(&'static str, &str)> {
    let tag = |text: &'_ str| {
        LEVELS.into_iter().find(|level| text.strip_prefix(level).is_some_and(|rest| rest.starts_with("] ")))
    };
    let inside = line.strip_prefix('[')?;
    let (level, behind) = match tag(inside) {
        Some(level) => (level, inside),
        None => {
            let (who, rest) = inside.split_once("] [")?;
            (tag(rest).filter(|_| who.contains(" @ 0x"))?, rest)
        }
    };
    Some((level, &behind[level.len() + 2..]))
}

/// Returns the colour matrix of the stream that is read, if it is stated and pictures of this size can be converted here.
fn matrix(told: &str, size: (u32, u32)) -> Option<Matrix> {
    // Streams of the file come first, and there may be several. Deeper indentation marks the file's own metadata.
    let written = told
        .lines()
        .skip_while(|line| !line.starts_with("Output #0"))
        .find(|line| line.starts_with("  Stream #0:0"));
    written.and_then(Matrix::of_stream).filter(|_| Matrix::takes(size))
}

/// Returns the first lines of ffmpeg's messages, without memory addresses and the folder of the file.
pub(super) fn complaint(words: &str, file: &Path) -> Option<String> {
    let folder = file.parent().map(|parent| format!("{}/", parent.display())).unwrap_or_default();
    let line = |line: &str| {
        let text = line.trim();
        // `[h264 @ 0x31f258c0] error while decoding`
        let text = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((_, rest)) => rest.trim(),
            None => text,
        };
        let text = text.strip_prefix("Error opening input file ").map_or(text, |_| "");
        text.replace("file:", "").replace(&folder, "")
    };
    let mut lines: Vec<String> = words.lines().map(line).filter(|line| !line.is_empty()).collect();
    lines.dedup();
    lines.truncate(3);
    (!lines.is_empty()).then(|| lines.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It has written nothing then, as if the file were empty.
    #[test]
    fn a_reader_that_dies_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("ffmpeg");
        std::fs::write(&program, "#!/bin/sh\nkill -SEGV $$\n").unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let error = Index::read(&program, Path::new("a.ts")).unwrap_err().to_string();
        assert!(error.contains("signal 11") && error.contains("TIDEMILL_FFMPEG"), "{error}");
    }

    #[test]
    fn packets_become_frames_in_the_order_they_are_shown() {
        let text = "#software: Lavf\n#tb 0: 1/10240\n#dimensions 0: 480x288\n0, -2048, 0, 1024, 6961, 0x14f5f180\n\
                    0, -1024, 3072, 1024, 3400, 0xd4be8d60, F=0x0\n0, 0, 1024, 1024, 3284, 0x95fb4633, F=0x0, S=1, 8, 0x0\n\
                    0, 1024, 2048, 1024, 3284, 0x95fb4633, F=0x0\n0, 1024, 4096, 1024, 1, 0x1\n";
        let index = Index::parse(text).unwrap();
        assert_eq!((index.size, index.time_base), ((480, 288), (1, 10240)));
        let times: Vec<(i64, bool)> = index.frames.iter().map(|frame| (frame.time, frame.is_key)).collect();
        assert_eq!(times, [(0, true), (1024, false), (2048, false), (3072, false), (4096, true)]);
        assert_eq!(index.microseconds(3), 300_000);
        assert_eq!(index.step(), Some(1024));
        assert!((index.begin(2) - 0.15).abs() < 1e-9);
        assert!(Index::parse("").is_err());
        assert!(Index::parse("#tb 0: 1/10\n0, NOPTS, NOPTS, 0, 1, 0x1\n").is_err());
    }

    #[test]
    fn frames_that_are_not_listed_keep_their_numbers() {
        let of = |times: &[i64]| {
            let frames = times.iter().map(|time| FrameTime { time: *time, is_key: false }).collect();
            let mut index = Index { frames, ..Index::parse("#tb 0: 1/1000\n#dimensions 0: 2x2\n").unwrap() };
            index.fill_gaps();
            index.frames.iter().map(|frame| frame.time).collect::<Vec<_>>()
        };
        assert_eq!(of(&[0, 33, 67, 100, 200, 233, 267]), [0, 33, 67, 100, 133, 167, 200, 233, 267]);
        assert_eq!(of(&[0, 40, 80, 280, 320]), [0, 40, 80, 120, 160, 200, 240, 280, 320]);
        for even_enough in [&[5][..], &[0, 100], &[0, 40, 80], &[0, 10, 30, 70, 150]] {
            assert_eq!(of(even_enough), even_enough);
        }
    }

    #[test]
    fn what_is_told_is_no_complaint() {
        let words = "[mov,mp4 @ 0x26] [warning] STSZ atom truncated\n[info] Input #0, mov, from 'a.mp4':\n\
                     [info]   Metadata:\n[info]     comment         : see\n                    : [error] moov atom not found\n\
                     [info]   Stream #0:0[0x1](und): Video: mjpeg, yuvj420p(pc), 8x8\n\
                     [mov,mp4 @ 0x26] [error] error reading header\n  in two lines\n[fatal] no more\n\
                     [info] Output #0, framecrc, to 'pipe:1':\n[info]   Metadata:\n\
                     [info]     Stream #0:0: Video: x, yuv420p, 8x8: y\n\
                     [info]   Stream #0:0(x): Video: y, yuv420p, : Video: h264, yuv420p(tv, bt709, progressive), 8x8, q=2-31\n";
        let (told, complaints) = by_level(words);
        assert_eq!(complaints, "error reading header\n  in two lines\nno more\n");
        let said = complaint(&complaints, Path::new("a.mp4"));
        assert_eq!(said.as_deref(), Some("error reading header; in two lines; no more"));
        assert_eq!(matrix(&told, (8, 8)), Some(Matrix::Bt709));
        assert_eq!((matrix(&told, (8, 9)), matrix("", (8, 8))), (None, None));
        assert_eq!(leveled("[x] [error] y"), None, "nobody says it");
    }

    #[test]
    fn complaints_name_no_addresses() {
        let words = "[mov,mp4 @ 0x26b0fe40] moov atom not found\n[in#0 @ 0x1] Error opening input: Invalid data found\n\
                     Error opening input file file:/a/b/c.mp4.\n";
        let said = complaint(words, Path::new("/a/b/c.mp4"));
        assert_eq!(said.as_deref(), Some("moov atom not found; Error opening input: Invalid data found"));
        assert_eq!(complaint("", Path::new("x")), None);
    }
}
