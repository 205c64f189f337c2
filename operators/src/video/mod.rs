//! Videos by ffmpeg: content and frames of files, and files encoded from frames.
//!
//! | part | |
//! |---|---|
//! | [`program`], [`library`] | where ffmpeg and its libraries are |
//! | [`index`] | the frames of a file with their times |
//! | `clock` | the source of these times: container or decoder |
//! | [`decoder`] | their pixels, from any of them on: by a [`child`] process, or [`in_process`] by the libraries |
//! | [`planes`](tidemill_media::planes) | conversion of the planes that most videos store |
//! | [`pool`] | reused buffers for pixels |
//! | [`encoder`] | a file of frames |
//! | [`drawing`] | boxes and texts on pixels |
//! | [`stills`] | single frames |
//!
//! Pixels are written once, by the pipe or by the conversion from planes, into the buffer of a record's column. The buffer
//! is reused when no record refers to it any more. ffmpeg ends by itself when the other end of the pipe is closed, as after
//! a process was killed.
pub mod child;
mod clock;
pub mod decoder;
pub mod drawing;
pub mod encoder;
pub mod in_process;
pub mod index;
pub mod library;
#[cfg(test)]
mod planes_as_ffmpeg;
pub mod pool;
pub mod program;
pub mod stills;
