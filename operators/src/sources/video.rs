//! `video`: the frames of a video file, or of all videos of a folder in parallel.
//!
//! ```yaml
//! - id: cameras
//!   kind: video
//!   key: camera            # all frames of a camera take the same way
//!   options:
//!     path: clips          # a file, or a folder of .mp4, .mkv, .mov, .avi, .webm, .m4v and .ts files
//!     every: 2             # each second frame; default: all
//!     scale: 320x192       # default: as they are
//!     frames: raw          # raw | jpeg
//!     decoder: process     # process | library
//! ```
//! A frame is a record `{camera: text, frame: int64, image: image}`: the name of the file without its extension, the number
//! of the frame in it (from 0, skipped frames included), and the picture. `raw` pictures are not compressed (see
//! [`crate::raw_image`]): fast to make and to read, large on links; `jpeg` is for links. The event time is the frame's time
//! in the container, relative to the first frame of its file, plus `start`. Videos of a folder start together: frames come
//! by time, at equal times by the name of the file.
//!
//! Dead letters: `frame_undecodable` (the data of the frame is damaged), `frame_too_large` (more than `max_pixels`, default
//! 64 million), `video_unreadable` (no video in the file), `video_incomplete` (the file ends too early, or is damaged where
//! its frames are listed), `decoder_failed` (ffmpeg died of this frame repeatedly). Frames that refer to a damaged one are
//! returned as the decoder makes them, until the next key frame.
//!
//! ffmpeg decodes, in one process per file (see [`crate::video`]); one that dies is started again at the next frame. With
//! `decoder: library` its libraries decode in this process, which takes less processor time and gives the same frames of
//! intact videos; but a fault in them ends this process, so files must be trusted. A position is a number of a frame, and decoding starts there at the key frame before it: the result is identical byte by
//! byte. (A file whose container is damaged is always decoded from the first frame. If only the data of frames is damaged,
//! the frames that refer to a damaged one may look different after a seek: the decoder conceals with the data that it has.)
mod clips;
mod reader;

use crate::api::{BoundSource, ListFiles, MakeSource, OperatorError, SourceInput};
use crate::kind::{EndContext, SourceKind};
use crate::record::payload_schema;
use crate::sources::directory::Folder;
use crate::video::decoder::Format;
use crate::video::{library, program};
use clips::Clips;
use reader::{Decoding, Reader};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::SourceFacts;
use tidemill_spec::span::Located;
use tidemill_spec::types::{Column, ColumnType, StreamType};
use tidemill_spec::value::Value;

/// Extensions of video files, lower case.
const ENDINGS: &[&str] = &["mp4", "mkv", "mov", "avi", "webm", "m4v", "ts"];

/// The kind `video`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Video;

/// Options of `video`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Options {
    /// A video file, or a folder of them, relative to the workflow file.
    path: Located<String>,
    /// Reads every n-th frame. Default: 1, all.
    #[serde(default = "one")]
    every: Located<u32>,
    /// Size of the pictures, such as `320x192`. Default: that of the video.
    #[serde(default)]
    scale: Option<Located<String>>,
    /// `raw`, pixels that are not compressed, or `jpeg`. Default: raw.
    #[serde(default)]
    frames: Frames,
    /// Event time of the first frame, in seconds since 1970. Default: 0.
    #[serde(default)]
    start: f64,
    /// Threads that decode each file. Default: 1.
    #[serde(default = "one")]
    threads: Located<u32>,
    /// `process`, a process of ffmpeg for each file, or `library`, ffmpeg's libraries in this process: faster, but a fault in
    /// them ends it, so files must be trusted. Default: process.
    #[serde(default)]
    decoder: Option<Located<Decoder>>,
    /// Largest frame, in pixels (width times height). Default: 64000000.
    #[serde(default = "default_pixels")]
    max_pixels: u64,
}

/// Format of frames in records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Frames {
    /// Uncompressed pixels.
    #[default]
    Raw,
    /// JPEG.
    Jpeg,
}

/// Who decodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Decoder {
    /// A child process for each file.
    #[default]
    Process,
    /// Libraries in this process.
    Library,
}

fn one() -> Located<u32> {
    Located::new(1, tidemill_spec::span::Span::nowhere())
}

fn default_pixels() -> u64 {
    64_000_000
}

impl SourceKind for Video {
    fn kind(&self) -> &'static str {
        "video"
    }

    fn summary(&self) -> &'static str {
        "The frames of a video, or of all videos of a folder side by side."
    }

    fn options_schema(&self) -> schemars::Schema {
        schemars::schema_for!(Options)
    }

    fn facts(&self) -> SourceFacts {
        SourceFacts { size_of_frames: Some("scale"), ..SourceFacts::DEFAULT }
    }

    fn shown_by_opening(&self) -> &'static str {
        "has videos, and a program that decodes them is there"
    }

    fn bind(&self, context: &EndContext<'_>, options: &Value) -> Result<BoundSource, Diagnostics> {
        let options: Options = options.deserialize_into()?;
        let mut errors = Diagnostics::new();
        let wrong = |text: String, help: &str| Diagnostic::error("E0606", text).with_help(help.to_owned());
        for (name, number) in [("every", &options.every), ("threads", &options.threads)] {
            if number.value == 0 {
                errors.push(wrong(format!("`{name}` is 0"), "write 1 or more").at(number.span.clone()));
            }
        }
        let size = options.scale.as_ref().map(|scale| (scale, parse_size(scale)));
        if let Some((scale, None)) = &size {
            let text = format!("`{scale}` is not the size of a picture");
            errors.push(wrong(text, "write width and height, such as `320x192`").at(scale.span.clone()));
        }
        if !(options.start.is_finite() && options.start.abs() < 9e12) {
            errors
                .push(wrong(format!("`start: {}` is not a time", options.start), "write seconds since 1970"));
        }
        let in_process = options.decoder.as_ref().filter(|decoder| decoder.value == Decoder::Library);
        if let (Some(decoder), Frames::Jpeg) = (in_process, options.frames) {
            let text = "`decoder: library` does not make JPEG frames".to_owned();
            errors.push(wrong(text, "write `frames: raw` or `decoder: process`").at(decoder.span.clone()));
        }
        let library = in_process.filter(|_| context.opens()).and_then(|decoder| {
            let failed = |text: String| {
                let text = format!("source `{}`: {text}", context.id);
                errors
                    .push(Diagnostic::error("E0615", text).at(decoder.span.clone()).with_help(library::HELP));
            };
            library::load(context.base).map_err(failed).ok()
        });
        let path = context.path(&options.path);
        let (program, videos) = match context.opens() {
            true => opened(context, &path, &options.path, &mut errors),
            // The host that opens it finds the program and the videos.
            false => (PathBuf::new(), 1),
        };
        errors.into_result(())?;
        let output = StreamType::new([
            Column::new("camera", ColumnType::Text),
            Column::new("frame", ColumnType::Int64),
            Column::new("image", ColumnType::Image),
        ]);
        let schema = payload_schema(&output);
        let format = Format {
            size: size.and_then(|(_, size)| size),
            jpeg: options.frames == Frames::Jpeg,
            every: options.every.value,
            threads: options.threads.value,
            planes: true,
        };
        let start = (options.start * 1e6).round() as i64;
        let (max_pixels, written) = (options.max_pixels, options.path.value.clone());
        let input = input(&path, &written);
        // The videos of a folder start together.
        let at_one_time = u32::try_from(videos).unwrap_or(u32::MAX).max(1);
        let make: MakeSource = Arc::new(move || {
            let files = files(&path, &written)
                .map_err(|(message, help)| OperatorError::new(format!("{message}: {help}")))?;
            let clips = Clips::read(&program, &files, format.every as usize)?;
            let decoding =
                Decoding { program: program.clone(), library: library.clone(), format: format.clone() };
            Ok(Box::new(Reader::new(clips, decoding, &schema, start, max_pixels)))
        });
        Ok(BoundSource {
            has_event_times: true,
            at_one_time,
            input: Some(input),
            ..context.source(self.kind(), output, make)
        })
    }
}

/// Finds the decoder and the number of videos; reports missing ones.
fn opened(
    context: &EndContext<'_>,
    path: &Path,
    written: &Located<String>,
    errors: &mut Diagnostics,
) -> (PathBuf, usize) {
    let program = program::find(context.base).map_err(|missing| {
        Diagnostic::error("E0615", format!("source `{}`: {missing}", context.id))
            .at(context.id.span.clone())
            .with_help(program::HELP)
    });
    let listed = files(path, written).map_err(|(message, help)| {
        Diagnostic::error("E0609", format!("source `{}`: {message}", context.id))
            .at(written.span.clone())
            .with_help(help)
    });
    for error in [program.as_ref().err(), listed.as_ref().err()].into_iter().flatten() {
        errors.push(error.clone());
    }
    (program.unwrap_or_default(), listed.map_or(1, |files| files.len()))
}

/// Returns the file, or those of the folder by name; the names without extension must differ. An error is a message with
/// advice.
pub(crate) fn files(path: &Path, written: &str) -> Result<Vec<PathBuf>, (String, String)> {
    if path.is_dir() {
        let names = folder(path).list(written)?;
        let files: Vec<PathBuf> = names.into_iter().map(|name| path.join(name)).collect();
        if let Some((one, other)) = same_camera(&files) {
            return Err((
                format!("`{}` and `{}` would be the same camera", one.display(), other.display()),
                "rename one of them".to_owned(),
            ));
        }
        return Ok(files);
    }
    match std::fs::File::open(path) {
        Ok(_) if !path.is_file() => Err((
            format!("`{}` is neither a file nor a folder", path.display()),
            "write the path of a video file or of a folder of them".to_owned(),
        )),
        Ok(_) => Ok(vec![path.to_owned()]),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err((
            format!("the file `{}` does not exist", path.display()),
            super::missing_help(written, path, "write a path relative to the workflow file"),
        )),
        Err(error) => Err((
            format!("cannot read the file `{}`: {error}", path.display()),
            "check the path and its permissions".to_owned(),
        )),
    }
}

/// Returns two files whose names differ only in their extension. They need not be adjacent: `a.avi`, `a.b.mp4`, `a.mp4`.
fn same_camera(files: &[PathBuf]) -> Option<(&Path, &Path)> {
    let mut known: BTreeMap<&OsStr, &Path> = BTreeMap::new();
    files.iter().find_map(|file| Some((known.insert(file.file_stem()?, file)?, file.as_path())))
}

fn folder(path: &Path) -> Folder {
    Folder {
        path: path.to_owned(),
        endings: ENDINGS.iter().map(|ending| (*ending).to_owned()).collect(),
        gives_names: false,
        has_whole_keys: false,
        file_limit: u64::MAX,
        check: Arc::new(|_| Ok(())),
    }
}

fn input(path: &Path, written: &str) -> SourceInput {
    if !path.is_dir() {
        return SourceInput::File { path: path.to_owned(), may_grow: false };
    }
    let (folder, written) = (folder(path), written.to_owned());
    let names: ListFiles =
        Arc::new(move || folder.list(&written).map_err(|(message, _)| std::io::Error::other(message)));
    // A further file changes the order of all frames.
    SourceInput::Folder { path: path.to_owned(), names, may_grow: false }
}

/// Parses width and height in `320x192`.
pub fn parse_size(text: &str) -> Option<(u32, u32)> {
    let (width, height) = text.split_once('x')?;
    let side = |text: &str| text.trim().parse().ok().filter(|side| (1..=16_384).contains(side));
    Some((side(width)?, side(height)?))
}

#[cfg(test)]
mod tests;
