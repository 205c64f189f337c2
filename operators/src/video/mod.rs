//! Videos by a child process of ffmpeg: what is in a file, its frames, and files made of frames.
//!
//! | part | |
//! |---|---|
//! | [`program`] | where ffmpeg is |
//! | [`index`] | the frames of a file with their times |
//! | `clock` | whose times these are: the container's or the decoder's |
//! | [`decoder`] | their pixels, from any of them on |
//! | [`planes`] | pixels of pictures as most videos store them |
//! | [`pool`] | the buffers into which they come |
//! | [`encoder`] | a file of frames |
//! | [`drawing`] | boxes and texts on pixels |
//! | [`stills`] | single frames |
//!
//! Pixels are written once into the buffer that a record's column then has, and that is filled again when no record refers
//! to it any more: by the pipe, or by what makes pixels of planes. ffmpeg ends by itself when the pipe's other end is gone, as after
//! a process that was killed.
mod clock;
pub mod decoder;
pub mod drawing;
pub mod encoder;
pub mod index;
#[cfg(test)]
mod planes_as_ffmpeg;
pub mod pool;
pub mod program;
pub mod stills;
