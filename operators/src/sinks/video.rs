//! `video`: draws detections on the frames of a video, as a video for people.
//!
//! ```yaml
//! - id: annotated
//!   kind: video
//!   input: tracks                       # a record for each box: camera, frame, left, top, width, height, ...
//!   options:
//!     path: out/{camera}.mp4
//!     over: clips                       # the videos that the records come from
//!     id: vehicle                       # decides the colour
//!     text: [track, class]              # stands at the box; without it, the id does
//! ```
//! `over` is a video file or a folder of them; in a folder the column `camera` has the file name without extension, and
//! `{camera}` in `path` makes a file for each. The frames are read from there, so records need not carry pictures. A record
//! is a box in the frame whose number (from 0) is in the column `frame`, at `left`, `top`, `width`, `height` in pixels.
//! `box` names other columns, or a single one: a tensor of rows `left, top, width, height, score, ...` in shares of the
//! picture, as detectors give them (those with a score above 0 are drawn), or a text with all boxes of a track, as `track`
//! gives it with `path: true` (then there is no column `frame`). If boxes were found in scaled frames, `scale` has their
//! size as at the source. `every` writes only every n-th frame, as at the source.
//!
//! The extension determines the format: `.mp4` and `.mkv` are H.264, `.avi` has a JPEG for each frame. Files appear whole
//! when the run ends, replacing older ones, with the records of the last complete checkpoint; frames without records are
//! shown too. Until then the records wait in a hidden file beside them, `.NAME.rows`. Each record is drawn once, also after
//! restarts; a run with a state can be continued by another process. After such a run `.NAME.rows` stays; the next new run
//! takes it over, and it may be deleted.
//!
//! Rows may be retracted (`_change` = -1): the video shows the final ones. So with `id: vehicle` after `associate`, each
//! vehicle has the colour of its final identity over all cameras, from its first frame on.
mod pace;
mod render;
#[cfg(test)]
mod tests;
mod writer;

use crate::api::{BoundSink, MakeDurableSink, Sink};
use crate::kind::{EndContext, InputPort, TypedSinkKind};
use crate::record::METADATA_COLUMNS;
use crate::sources::video::parse_size;
use crate::video::encoder::Container;
use crate::video::program;
use render::{Boxes, Columns, Render};
use schemars::JsonSchema;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::{Form, SinkFacts};
use tidemill_spec::publication::Publication;
use tidemill_spec::span::Located;
use tidemill_spec::types::{ColumnType, ElementType};
use writer::Writer;

/// Placeholder for the name of a camera in a path.
const CAMERA: &str = "{camera}";

/// The kind `video`; see the module.
#[derive(Debug, Clone, Copy)]
pub struct Video;

/// Options of `video`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// The file, relative to the workflow file, ending in .mp4, .mkv or .avi; `{camera}` stands for the name of a camera.
    path: Located<String>,
    /// Video to draw on, or a folder of them, relative to the workflow file.
    over: Located<String>,
    /// Column with the name of the camera, if `over` is a folder. Default: camera.
    #[serde(default)]
    camera: Option<Located<String>>,
    /// Column with the number of the frame, from 0, if `box` does not contain it. Default: frame.
    #[serde(default)]
    frame: Option<Located<String>>,
    /// Columns with left, top, width and height of the box in pixels; or one with a tensor of such rows in shares of
    /// the picture, or with the path of a track. Default: left, top, width, height.
    #[serde(default, rename = "box")]
    boxes: Option<Vec<Located<String>>>,
    /// Column that decides the colour and appears at the box. Default: none.
    #[serde(default)]
    id: Option<Located<String>>,
    /// Columns that appear at the box. Default: none.
    #[serde(default)]
    text: Vec<Located<String>>,
    /// Size of the pictures to which the boxes refer, such as `320x192`, and of the written video. Default: that of the video.
    #[serde(default)]
    scale: Option<Located<String>>,
    /// Writes every n-th frame. Default: 1, all.
    #[serde(default)]
    every: Option<Located<u32>>,
    /// Whether to replace files of an earlier run; if not, an existing file is an error. Default: true.
    #[serde(default = "yes")]
    overwrite: bool,
}

fn yes() -> bool {
    true
}

impl TypedSinkKind for Video {
    type Options = Options;
    const KIND: &'static str = "video";
    const ACCEPTS_REVISIONS: bool = true;
    const FACTS: SinkFacts = SinkFacts {
        publication: Publication::AtEnd,
        reads: &["over"],
        form: Form::Videos,
        ..SinkFacts::DEFAULT
    };
    const SUMMARY: &'static str =
        "Videos with drawn boxes, identities and texts, which appear when the run ends.";

    fn bind_typed(
        &self,
        context: &EndContext<'_>,
        input: &InputPort,
        options: Options,
    ) -> Result<BoundSink, Diagnostics> {
        let mut errors = Diagnostics::new();
        let over = context.path(&options.over);
        // If files may not be opened, the path decides.
        let is_of_many = if context.opens() { over.is_dir() } else { options.path.contains(CAMERA) };
        let columns = columns(context, input, &options, is_of_many, &mut errors);
        let wrong = |at: &Located<String>, text: String, help: &str| {
            Diagnostic::error("E0606", text).at(at.span.clone()).with_help(help.to_owned())
        };
        let container = Container::of(Path::new(options.path.as_str()));
        if container.is_none() {
            let text = format!("`{}` has no extension of a video format", options.path);
            errors.push(wrong(&options.path, text, "end it in .mp4, .mkv or .avi"));
        }
        if is_of_many != options.path.contains(CAMERA) {
            let (text, help) = match is_of_many {
                true => (
                    format!(
                        "`{}` is a folder, and all its videos would be written into one file",
                        options.over
                    ),
                    "write `{camera}` in the path, such as `out/{camera}.mp4`, or name one video",
                ),
                false => (
                    format!("`{{camera}}` is for videos of a folder, but `{}` is not a folder", options.over),
                    "write a path without it, or the folder of the videos",
                ),
            };
            errors.push(wrong(&options.path, text, help));
        }
        let (program, videos) = match context.opens() {
            true => opened(context, &over, &options.over, &mut errors),
            false => (PathBuf::new(), vec![over]),
        };
        let size = options.scale.as_ref().map(|scale| (scale, parse_size(scale)));
        if let Some((scale, None)) = &size {
            let text = format!("`{scale}` is not the size of a picture");
            errors.push(wrong(scale, text, "write width and height, such as `320x192`"));
        }
        if let Some(every) = options.every.as_ref().filter(|every| every.value == 0) {
            errors.push(
                Diagnostic::error("E0606", "`every` is 0")
                    .at(every.span.clone())
                    .with_help("write 1 or more"),
            );
        }
        errors.into_result(())?;
        let (Some(columns), Some(container)) = (columns, container) else { return Err(Diagnostics::new()) };
        let path = context.path(&options.path);
        let outputs: Vec<PathBuf> = videos.iter().map(|video| output(&path, video)).collect();
        let render = Arc::new(Render {
            program,
            outputs: videos.into_iter().zip(outputs.iter().cloned()).collect(),
            container,
            columns,
            size: size.and_then(|(_, size)| size),
            every: options.every.map_or(1, |every| every.value),
            overwrite: options.overwrite,
        });
        let rows = rows_file(&path);
        let (again, rows_again) = (Arc::clone(&render), rows.clone());
        let durable: MakeDurableSink = Arc::new(move |token| {
            Ok(Box::new(Writer::open(Arc::clone(&again), &rows_again, true, token)?) as Box<dyn Sink>)
        });
        let make =
            move || Ok(Box::new(Writer::open(Arc::clone(&render), &rows, false, None)?) as Box<dyn Sink>);
        let sink = context.sink(Self::KIND, input, outputs, Arc::new(make));
        Ok(BoundSink { durable: Some(durable), ..sink })
    }
}

/// Finds the encoder and the videos to draw on; reports missing ones.
fn opened(
    context: &EndContext<'_>,
    over: &Path,
    written: &Located<String>,
    errors: &mut Diagnostics,
) -> (PathBuf, Vec<PathBuf>) {
    let videos = crate::sources::video::files(over, written).map_err(|(message, help)| {
        Diagnostic::error("E0609", format!("sink `{}`: {message}", context.id))
            .at(written.span.clone())
            .with_help(help)
    });
    let program = program::find(context.base).map_err(|missing| {
        Diagnostic::error("E0615", format!("sink `{}`: {missing}", context.id))
            .at(context.id.span.clone())
            .with_help(program::HELP)
    });
    for error in [videos.as_ref().err(), program.as_ref().err()].into_iter().flatten() {
        errors.push(error.clone());
    }
    (program.unwrap_or_default(), videos.unwrap_or_default())
}

/// The file for a video.
fn output(path: &Path, video: &Path) -> PathBuf {
    let camera = video.file_stem().unwrap_or_default().to_string_lossy();
    PathBuf::from(path.to_string_lossy().replace(CAMERA, &camera))
}

/// Path of the waiting records.
fn rows_file(path: &Path) -> PathBuf {
    // A camera may be in a folder's name; the rows of all cameras are in one file.
    let path = PathBuf::from(path.to_string_lossy().replace(CAMERA, "all"));
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    path.with_file_name(format!(".{name}.rows"))
}

/// Assigns the columns.
fn columns(
    context: &EndContext<'_>,
    input: &InputPort,
    options: &Options,
    several: bool,
    errors: &mut Diagnostics,
) -> Option<Columns> {
    let mut find = |name: Located<String>, expected: &str, accepts: &dyn Fn(&ColumnType) -> bool| match input
        .column(context.id, 0, &name, expected, accepts)
    {
        Ok((index, _)) => Some(METADATA_COLUMNS + index),
        Err(error) => {
            errors.push(error);
            None
        }
    };
    let or = |given: &Option<Located<String>>, default: &str| {
        given.clone().unwrap_or_else(|| default.to_owned().into())
    };
    let is_text = |t: &ColumnType| *t == ColumnType::Text;
    let is_plain = |t: &ColumnType| {
        matches!(t, ColumnType::Text | ColumnType::Int64 | ColumnType::Float64 | ColumnType::Bool)
    };
    let is_number = |t: &ColumnType| matches!(t, ColumnType::Int64 | ColumnType::Float64);
    let is_rows = |t: &ColumnType| matches!(t, ColumnType::Tensor { element: ElementType::Float32, shape } if matches!(shape[..], [_, width] if width >= 5));
    let camera = several.then(|| find(or(&options.camera, "camera"), "text", &is_text));
    let is_boxes = |t: &ColumnType| is_rows(t) || is_text(t);
    let boxes = match options.boxes.as_deref() {
        Some([one]) => find(one.clone(), "text or tensor<float32>[N, 5 or more]", &is_boxes).map(|column| {
            match &input.stream.columns[column - METADATA_COLUMNS].column_type {
                ColumnType::Tensor { shape, .. } => {
                    Boxes::Rows { column, width: shape.last().copied().unwrap_or(6) }
                }
                _ => Boxes::Path(column),
            }
        }),
        Some([left, top, width, height]) => [left, top, width, height]
            .map(|name| find(name.clone(), "int64 or float64", &is_number))
            .into_iter()
            .collect::<Option<Vec<usize>>>()
            .and_then(|four| four.try_into().ok())
            .map(Boxes::Columns),
        None => ["left", "top", "width", "height"]
            .map(|name| find(name.to_owned().into(), "int64 or float64", &is_number))
            .into_iter()
            .collect::<Option<Vec<usize>>>()
            .and_then(|four| four.try_into().ok())
            .map(Boxes::Columns),
        Some(other) => {
            let text = format!("`box` of `{}` names {} columns", context.id, other.len());
            let at = other.first().map_or_else(|| options.path.span.clone(), |first| first.span.clone());
            errors.push(
                Diagnostic::error("E0606", text)
                    .at(at)
                    .with_help("name left, top, width and height, or one column with a tensor of such rows"),
            );
            return None;
        }
    };
    // The path of a track has the numbers of its frames.
    let has_path = matches!(boxes, Some(Boxes::Path(_)));
    let frame = (!has_path).then(|| find(or(&options.frame, "frame"), "int64", &|t| *t == ColumnType::Int64));
    let plain = "text, int64, float64 or bool";
    let id = options.id.as_ref().map(|name| find(name.clone(), plain, &is_plain));
    let text: Vec<Option<usize>> =
        options.text.iter().map(|name| find(name.clone(), plain, &is_plain)).collect();
    Some(Columns {
        camera: match camera {
            Some(found) => Some(found?),
            None => None,
        },
        frame: match frame {
            Some(found) => Some(found?),
            None => None,
        },
        boxes: boxes?,
        id: match id {
            Some(found) => Some(found?),
            None => None,
        },
        text: text.into_iter().collect::<Option<Vec<usize>>>()?,
    })
}
