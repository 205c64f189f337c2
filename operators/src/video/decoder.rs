//! The pixels of frames, from any frame on: decoded by a child process, or in this process.
pub use super::child::{Child, read_jpeg, read_pixels, read_planes};
use super::in_process::InProcess;
pub use super::in_process::Unsuited;
use super::index::Index;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidemill_avcodec::Library;

/// Time without output or work after which a decoder is considered to hang.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Format of the returned frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format {
    /// Size of frames; `None` for that of the video.
    pub size: Option<(u32, u32)>,
    /// JPEG instead of uncompressed pixels; by a child process only.
    pub jpeg: bool,
    /// Interval between the returned frames, at least 1.
    pub every: u32,
    /// Decoding threads, at least 1.
    pub threads: u32,
    /// Whether planes may be converted to pixels in this process if the size is unchanged, which is faster.
    pub planes: bool,
}

/// A video that is being decoded. Both ways give the same frames, times and pixels of videos that are not damaged.
#[expect(clippy::large_enum_variant, reason = "there is one for each file")]
pub enum Decoder {
    /// By a child process; a fault in a decoder ends the child alone.
    Child(Child),
    /// By ffmpeg's libraries in this process.
    InProcess(Box<InProcess>),
}

impl Decoder {
    /// Decodes by a child process, from a frame on. Frames come in display order. Some may precede the requested one if the
    /// container gives no better position, and all frames come if those to skip have no even distance.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(
        program: &Path,
        file: &Path,
        index: &Index,
        first: usize,
        format: &Format,
    ) -> std::io::Result<Self> {
        Child::start(program, file, index, first, format).map(Self::Child)
    }

    /// Decodes in this process, as [`Decoder::start`] does. Frames of more than `max_pixels` are left out.
    ///
    /// # Errors
    /// [`Unsuited`] for videos that only a child process can decode.
    pub fn start_in_process(
        library: &Arc<Library>,
        file: &Path,
        index: &Index,
        first: usize,
        format: &Format,
        max_pixels: u64,
    ) -> Result<Self, Unsuited> {
        let started = InProcess::start(library, file, index, first, format, max_pixels)?;
        Ok(Self::InProcess(Box::new(started)))
    }

    /// Time of the next picture, in units of the index; `None` at the end. The picture must then be taken by
    /// [`Decoder::read`] or [`Decoder::skip`].
    pub fn next_time(&mut self) -> Option<i64> {
        match self {
            Self::Child(child) => child.next_time(),
            Self::InProcess(own) => own.next_time(),
        }
    }

    /// Appends the next picture: JPEG, or a picture as in [`crate::raw_image`]. At most `most` bytes.
    ///
    /// # Errors
    /// The decoder ended, hung or returned something else; then `bytes` is unchanged.
    pub fn read(&mut self, bytes: &mut Vec<u8>, most: usize) -> std::io::Result<()> {
        match self {
            Self::Child(child) => child.read(bytes, most),
            Self::InProcess(own) => own.read(bytes, most),
        }
    }

    /// Leaves out the next picture.
    ///
    /// # Errors
    /// As [`Decoder::read`].
    pub fn skip(&mut self, most: usize) -> std::io::Result<()> {
        match self {
            Self::Child(child) => child.skip(most),
            Self::InProcess(own) => {
                own.skip();
                Ok(())
            }
        }
    }

    /// Waits for the end. Returns whether the decoder ended by itself, and its complaints.
    pub fn finish(self) -> (bool, Option<String>) {
        match self {
            Self::Child(child) => child.finish(),
            Self::InProcess(own) => own.finish(),
        }
    }
}
