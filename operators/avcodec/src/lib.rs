//! Videos decoded in this process by [ffmpeg](https://ffmpeg.org)'s libraries, which are loaded at run time.
//!
//! Nothing is compiled: the libraries are those of ffmpeg 8 in the `opencv-python-headless` package of the Python package
//! index (`scripts/fetch-library.sh avcodec`), or any others of ffmpeg 8, such as those of the package `av`. Of the first,
//! every part that is fetched is under the LGPL or a licence that asks for less. Those of `av` decode AV1 too, but load
//! x264 and x265, which are under the GPL.
//!
//! A [`File`] gives packets, a [`Decoder`] turns them into [`Frame`]s, a [`Scaler`] turns those into pixels. Damaged data are
//! errors. But a fault in the libraries is a fault of this process: where a video may be malicious, or a crash must not
//! end anything else, decode in a child process.
//!
//! ```no_run
//! use tidemill_avcodec::{Decoder, File, Interpolation, Library, Scaler, Settings};
//! let library = Library::load(".tidemill/lib/avcodec-62".as_ref())?;
//! let settings = Settings::default();
//! let mut file = File::open(&library, "a.mp4".as_ref(), &settings)?;
//! let stream = file.video().expect("a video").number;
//! file.select(stream)?;
//! let mut decoder = Decoder::of_stream(&file, stream, &settings)?;
//! let mut scaler = Scaler::new(&library, Some((320, 180)), settings.max_pixels, Interpolation::Exact)?;
//! let mut pixels = Vec::new();
//! while !decoder.has_ended() {
//!     match file.read()? {
//!         Some(packet) => decoder.send_packet(&packet)?,
//!         None => decoder.drain()?,
//!     }
//!     while let Some(frame) = decoder.receive()? {
//!         pixels.clear();
//!         scaler.append(&frame, &mut pixels)?;
//!         println!("{:?}: {} bytes", frame.pts(), pixels.len());
//!     }
//! }
//! # Ok::<(), tidemill_avcodec::Error>(())
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
mod decoder;
mod error;
mod file;
mod frame;
mod layout;
mod library;
mod packet;
mod scaler;

pub use decoder::{Codec, Decoder, Settings};
pub use error::Error;
pub use file::{Entry, File, Stream};
pub use frame::{Frame, Matrix, PixelFormat, Plane, Range};
pub use library::{Library, Version, Versions};
pub use packet::Packet;
pub use scaler::{Interpolation, Scaler};
