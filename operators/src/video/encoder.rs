//! Video files encoded from frames by a child process.
use super::index::{complaint, named};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::JoinHandle;

/// Container and codec of a video.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// H.264 in MP4, which browsers play.
    Mp4,
    /// H.264 in Matroska.
    Matroska,
    /// A JPEG for each frame, in AVI.
    Avi,
}

impl Container {
    /// Determines the container by the file name's extension.
    pub fn of(file: &Path) -> Option<Self> {
        match file.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "mp4" | "m4v" => Some(Self::Mp4),
            "mkv" => Some(Self::Matroska),
            "avi" => Some(Self::Avi),
            _ => None,
        }
    }
}

/// Display times of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// A constant rate.
    Even {
        /// Frames.
        frames: u64,
        /// Seconds in which they are shown.
        seconds: u64,
    },
    /// Each frame at its own time. A file whose format has one distance for all frames (AVI) uses `tick`.
    Own {
        /// Microseconds that divide all times, or 1000.
        tick: u64,
    },
}

/// Writes frames of one size.
pub struct Encoder {
    child: Child,
    frames: Option<ChildStdin>,
    words: Option<JoinHandle<String>>,
    /// Width and height, until the first frame with its own time is written.
    header: Option<(u32, u32)>,
    has_times: bool,
}

impl Encoder {
    /// Starts a video of frames of this size at this pace in an existing file.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(
        program: &Path,
        file: &Path,
        container: Container,
        (width, height): (u32, u32),
        pace: Pace,
    ) -> std::io::Result<Self> {
        let mut command = Command::new(program);
        command.args(["-nostdin", "-hide_banner", "-nostats", "-loglevel", "error", "-y"]);
        match pace {
            Pace::Even { frames, seconds } => {
                command.args([
                    "-f",
                    "rawvideo",
                    "-pix_fmt",
                    "rgb24",
                    "-video_size",
                    &format!("{width}x{height}"),
                ]);
                command.args(["-framerate", &format!("{frames}/{seconds}"), "-i", "pipe:0"]);
            }
            Pace::Own { tick } => {
                let unit = if container == Container::Avi {
                    format!("{tick}:1000000")
                } else {
                    "1:90000".to_owned()
                };
                command.args([
                    "-f",
                    "matroska",
                    "-i",
                    "pipe:0",
                    "-fps_mode",
                    "passthrough",
                    "-enc_time_base",
                    &unit,
                ]);
                if container == Container::Mp4 {
                    command.args(["-video_track_timescale", "90000"]);
                }
            }
        }
        match container {
            Container::Mp4 => {
                command.args(["-f", "mp4", "-movflags", "+faststart"]);
            }
            Container::Matroska => {
                command.args(["-f", "matroska"]);
            }
            Container::Avi => {
                command.args(["-f", "avi"]);
            }
        }
        match container {
            Container::Avi => command.args(["-c:v", "mjpeg", "-q:v", "3", "-pix_fmt", "yuvj420p"]),
            // This pixel format needs even sides.
            _ => command
                .args(["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-c:v", "libx264", "-preset", "veryfast"])
                .args(["-crf", "21", "-pix_fmt", "yuv420p"]),
        };
        let mut child = command
            .args(["-threads", "2"])
            .arg(named(file))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let missing = || std::io::Error::from(ErrorKind::BrokenPipe);
        let frames = child.stdin.take().ok_or_else(missing)?;
        let mut words = child.stderr.take().ok_or_else(missing)?;
        let name = file.to_owned();
        let listen = move || {
            let mut text = Vec::new();
            // An unreadable message is omitted.
            let _ = words.read_to_end(&mut text);
            complaint(&String::from_utf8_lossy(&text), &name).unwrap_or_default()
        };
        let words = std::thread::Builder::new().name("video-words".into()).spawn(listen)?;
        let has_times = matches!(pace, Pace::Own { .. });
        let header = has_times.then_some((width, height));
        Ok(Self { child, frames: Some(frames), words: Some(words), header, has_times })
    }

    /// Adds a frame: red, green and blue of each pixel, row by row, shown `microseconds` after the first unless the rate is
    /// constant.
    ///
    /// # Errors
    /// ffmpeg's message if it has ended.
    pub fn write(&mut self, pixels: &[u8], microseconds: u64) -> std::io::Result<()> {
        let mut before =
            self.header.take().map(|(width, height)| matroska_header(width, height)).unwrap_or_default();
        if self.has_times {
            before.extend(matroska_frame(pixels.len(), microseconds));
        }
        let written = self.frames.as_mut().map(|frames| {
            frames.write_all(&before)?;
            frames.write_all(pixels)
        });
        match written {
            Some(Ok(())) => Ok(()),
            _ => Err(self.ended()),
        }
    }

    /// Finishes the video; then the file is whole.
    ///
    /// # Errors
    /// ffmpeg's message.
    pub fn finish(mut self) -> std::io::Result<()> {
        drop(self.frames.take());
        if self.child.wait()?.success() { Ok(()) } else { Err(self.ended()) }
    }

    fn ended(&mut self) -> std::io::Error {
        drop(self.frames.take());
        let _ = self.child.wait();
        let words = self.words.take().and_then(|words| words.join().ok()).unwrap_or_default();
        let words = if words.is_empty() { "it ended".to_owned() } else { words };
        std::io::Error::other(format!("ffmpeg: {words}"))
    }
}

/// A Matroska element: its id, the length of its content, the content.
fn element(id: &[u8], content: &[u8]) -> Vec<u8> {
    [id, &length_of(content.len()), content].concat()
}

/// A length in eight bytes; the first marks the size.
fn length_of(length: usize) -> [u8; 8] {
    ((1 << 56) | length as u64).to_be_bytes()
}

/// The header of an uncompressed Matroska stream with times in microseconds; raw video has no times.
fn matroska_header(width: u32, height: u32) -> Vec<u8> {
    let number = |id: &[u8], number: u64| element(id, &number.to_be_bytes());
    let kind = [element(&[0x42, 0x82], b"matroska"), number(&[0x42, 0x87], 4), number(&[0x42, 0x85], 2)];
    let picture = [
        number(&[0xb0], width.into()),
        number(&[0xba], height.into()),
        element(&[0x2e, 0xb5, 0x24], b"RGB\x18"),
    ];
    let track = [
        number(&[0xd7], 1),
        number(&[0x73, 0xc5], 1),
        number(&[0x83], 1),
        element(&[0x86], b"V_UNCOMPRESSED"),
        element(&[0xe0], &picture.concat()),
    ];
    [
        element(&[0x1a, 0x45, 0xdf, 0xa3], &kind.concat()),
        // The segment has unknown length.
        vec![0x18, 0x53, 0x80, 0x67, 0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        element(&[0x15, 0x49, 0xa9, 0x66], &number(&[0x2a, 0xd7, 0xb1], 1000)),
        element(&[0x16, 0x54, 0xae, 0x6b], &element(&[0xae], &track.concat())),
    ]
    .concat()
}

/// The header of a frame: a cluster with its time and one block.
fn matroska_frame(length: usize, microseconds: u64) -> Vec<u8> {
    let time = element(&[0xe7], &microseconds.to_be_bytes());
    let block = [&[0xa3][..], &length_of(length + 4), &[0x81, 0, 0, 0x80]].concat();
    [&[0x1f, 0x43, 0xb6, 0x75][..], &length_of(time.len() + block.len() + length), &time, &block].concat()
}

impl Drop for Encoder {
    fn drop(&mut self) {
        // An unfinished video is discarded.
        drop(self.frames.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
