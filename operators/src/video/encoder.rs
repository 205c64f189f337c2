//! A video file made of frames, by a child process.
use super::index::{complaint, named};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::JoinHandle;

/// How a video is stored.
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
    /// By the ending of the file's name.
    pub fn of(file: &Path) -> Option<Self> {
        match file.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "mp4" | "m4v" => Some(Self::Mp4),
            "mkv" => Some(Self::Matroska),
            "avi" => Some(Self::Avi),
            _ => None,
        }
    }
}

/// Writes frames of one size.
pub struct Encoder {
    child: Child,
    frames: Option<ChildStdin>,
    words: Option<JoinHandle<String>>,
}

impl Encoder {
    /// Begins a video of frames of this size, so many per second (numerator, denominator), in this file, which is there already.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(
        program: &Path,
        file: &Path,
        container: Container,
        (width, height): (u32, u32),
        (frames, seconds): (u64, u64),
    ) -> std::io::Result<Self> {
        let mut command = Command::new(program);
        command.args(["-nostdin", "-hide_banner", "-nostats", "-loglevel", "error", "-y", "-f", "rawvideo"]);
        command.args(["-pix_fmt", "rgb24", "-video_size", &format!("{width}x{height}")]);
        command.args(["-framerate", &format!("{frames}/{seconds}"), "-i", "pipe:0"]);
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
            // Sides have to be even for this kind of pixels.
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
            // What cannot be read is not told.
            let _ = words.read_to_end(&mut text);
            complaint(&String::from_utf8_lossy(&text), &name).unwrap_or_default()
        };
        let words = std::thread::Builder::new().name("video-words".into()).spawn(listen)?;
        Ok(Self { child, frames: Some(frames), words: Some(words) })
    }

    /// Adds a frame: red, green and blue of each pixel, row by row.
    ///
    /// # Errors
    /// What ffmpeg says, if it has ended.
    pub fn write(&mut self, pixels: &[u8]) -> std::io::Result<()> {
        let written = self.frames.as_mut().map(|frames| frames.write_all(pixels));
        match written {
            Some(Ok(())) => Ok(()),
            _ => Err(self.ended()),
        }
    }

    /// Ends the video; then the file is whole.
    ///
    /// # Errors
    /// What ffmpeg says.
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

impl Drop for Encoder {
    fn drop(&mut self) {
        // Of a video that was not finished nothing is needed.
        drop(self.frames.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
