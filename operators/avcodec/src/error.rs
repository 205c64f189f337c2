//! Errors of this crate.
use std::path::PathBuf;

/// Advice where the libraries are missing or of another version.
pub(crate) const HELP: &str = "run `tidemill doctor --fix` or `scripts/fetch-library.sh avcodec` (needs network and python3), or name a folder with \
                               libavutil.so.60, libavcodec.so.62, libavformat.so.62 and libswscale.so.9 of ffmpeg 8";

/// Why a video cannot be read or decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The folder has no such library.
    #[error("there is no {name} in `{}`: {HELP}", folder.display())]
    Missing {
        /// The folder.
        folder: PathBuf,
        /// Name of the library, such as `libavcodec`.
        name: &'static str,
    },
    /// The system cannot load a library, or the library lacks a function.
    #[error("cannot load `{}`: {reason}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// The system's error, or the missing function.
        reason: String,
    },
    /// The library has a version whose structs may differ.
    #[error("`{}` has version {found}, but {needed} is needed: {HELP}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: String,
        /// Version that is needed.
        needed: String,
    },
    /// The file cannot be opened, or is no video.
    #[error("cannot open `{}`: {reason}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// ffmpeg's error.
        reason: String,
    },
    /// The file has no such stream.
    #[error("the file has no stream {0}")]
    NoStream(usize),
    /// The libraries have no decoder for it.
    #[error(
        "these libraries cannot decode {0}: use others, such as those of the Python package `av`, or the ffmpeg program"
    )]
    NoDecoder(String),
    /// The data are damaged. The next call may succeed.
    #[error("damaged data: {0}")]
    Damaged(&'static str),
    /// A library refused a call.
    #[error("{what} failed: {text}")]
    Refused {
        /// The call.
        what: &'static str,
        /// ffmpeg's number of the error, below 0.
        code: i32,
        /// ffmpeg's words for it.
        text: String,
    },
    /// The decoder holds as many frames as it can: receive one first.
    #[error("the decoder is full: call `receive` until it returns nothing, then `send` again")]
    Full,
    /// A unit was sent after the decoder was drained.
    #[error("the decoder was drained: call `flush` before the next unit")]
    Drained,
    /// A frame would be larger than allowed.
    #[error("a frame of {width} x {height} pixels is above the limit of {most} pixels")]
    TooLarge {
        /// Columns.
        width: u32,
        /// Rows.
        height: u32,
        /// The limit on the product.
        most: u64,
    },
    /// The folder has no libswscale, which converts frames.
    #[error("there is no libswscale in `{}`, which converts frames to pixels: {HELP}", .0.display())]
    NoScaler(PathBuf),
    /// There is not enough memory.
    #[error("not enough memory for {0}")]
    Memory(&'static str),
}
