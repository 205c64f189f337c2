//! Converts records to videos: decode, draw, encode.
use super::pace::pace;
use crate::api::OperatorError;
use crate::raw_image::RawImage;
use crate::record::Metadata;
use crate::sinks::journal::Journal;
use crate::sinks::staging::write_error;
use crate::sinks::whole_file::WholeFile;
use crate::video::decoder::{Decoder, Format};
use crate::video::drawing::{Canvas, Label};
use crate::video::encoder::{Container, Encoder};
use crate::video::index::Index;
use crate::vision::track_path::steps;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type, Int8Type, Int64Type, UInt64Type};
use arrow_array::{
    Array, ArrayRef, Float64Array, Int8Array, Int64Array, RecordBatch, StringArray, UInt64Array,
};
use arrow_schema::{DataType, Field, Schema};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// Most bytes of a frame.
const MOST: usize = 256 << 20;
/// Restarts of ffmpeg if it ends in the middle of a video, as at sources.
const TRIES: u32 = 3;

/// Settings of the videos.
pub(super) struct Render {
    pub(super) program: PathBuf,
    /// Videos to draw on, and the output file of each.
    pub(super) outputs: Vec<(PathBuf, PathBuf)>,
    pub(super) container: Container,
    pub(super) columns: Columns,
    pub(super) size: Option<(u32, u32)>,
    pub(super) every: u32,
    pub(super) overwrite: bool,
}

/// Positions of columns in batches, including metadata.
#[derive(Debug, Clone)]
pub(super) struct Columns {
    /// `None` if there is one video.
    pub(super) camera: Option<usize>,
    /// `None` if the boxes contain it.
    pub(super) frame: Option<usize>,
    pub(super) boxes: Boxes,
    pub(super) id: Option<usize>,
    pub(super) text: Vec<usize>,
}

/// Position of boxes.
#[derive(Debug, Clone)]
pub(super) enum Boxes {
    /// Left, top, width, height: one box per record.
    Columns([usize; 4]),
    /// A tensor of such rows as shares of the picture, followed by a score.
    Rows {
        /// Its column.
        column: usize,
        /// Values in a row, at least 5.
        width: usize,
    },
    /// A text with all boxes of a track, see [`crate::vision::track_path`].
    Path(usize),
}

/// Boxes of a video by frame.
type Labels = HashMap<i64, Vec<Label>>;

/// Stored data of a record, without its camera: frame, the bits of the sides, colour, text, path. An equal row with -1
/// retracts it.
type Row = (Option<i64>, [u64; 4], u64, Arc<str>, Option<Arc<str>>);

impl Columns {
    /// Schema of the stored data: camera, frame, box, colour and text.
    pub(super) fn schema(&self) -> Schema {
        let field = |name: &str, data_type: DataType| Field::new(name, data_type, true);
        let mut fields = vec![field("camera", DataType::Utf8), field("frame", DataType::Int64)];
        fields.extend(["left", "top", "width", "height"].map(|name| field(name, DataType::Float64)));
        fields.extend([field("colour", DataType::UInt64), field("text", DataType::Utf8)]);
        fields.extend([field("path", DataType::Utf8), field("change", DataType::Int8)]);
        Schema::new(fields)
    }

    /// Returns the stored data of a batch, one row for each box or track.
    pub(super) fn of(&self, batch: &RecordBatch) -> Vec<ArrayRef> {
        let mut cameras: Vec<Option<String>> = Vec::new();
        let mut frames: Vec<Option<i64>> = Vec::new();
        let mut sides: [Vec<f64>; 4] = Default::default();
        let (mut colours, mut texts): (Vec<u64>, Vec<String>) = (Vec::new(), Vec::new());
        let (mut paths, mut changes): (Vec<Option<&str>>, Vec<i8>) = (Vec::new(), Vec::new());
        let frame = self.frame.map(|column| batch.column(column).as_primitive::<Int64Type>());
        let change = Metadata::of(batch).changes;
        for row in 0..batch.num_rows() {
            let camera = self.camera.map(|column| batch.column(column).as_string::<i32>());
            let camera =
                camera.filter(|column| column.is_valid(row)).map(|column| column.value(row).to_owned());
            let id = self.id.map(|column| plain(batch.column(column), row));
            let mut text: Vec<String> =
                self.text.iter().map(|column| plain(batch.column(*column), row)).collect();
            if self.text.is_empty() {
                text.extend(id.clone());
            }
            text.retain(|text| !text.is_empty());
            let text = text.join(" ");
            let mut add = |sides_of: [f64; 4], text: String, number: u64| {
                cameras.push(camera.clone());
                frames.push(frame.filter(|frame| frame.is_valid(row)).map(|frame| frame.value(row)));
                sides.iter_mut().zip(sides_of).for_each(|(all, side)| all.push(side));
                colours.push(id.as_ref().map_or(number, |id| number_of(id)));
                texts.push(text);
                changes.push(change.value(row));
            };
            match &self.boxes {
                Boxes::Columns(columns) => {
                    let side = |column: usize| number(batch.column(column), row);
                    if let [Some(left), Some(top), Some(width), Some(height)] = columns.map(side) {
                        add([left, top, width, height], text, 0);
                        paths.push(None);
                    }
                }
                Boxes::Path(column) => {
                    if let Some(column) =
                        batch.column(*column).as_string_opt::<i32>().filter(|of| of.is_valid(row))
                    {
                        add([0.0; 4], text, 0);
                        paths.push(Some(column.value(row)));
                    }
                }
                Boxes::Rows { column, width } => {
                    let column = batch.column(*column).as_fixed_size_list();
                    if column.is_null(row) {
                        continue;
                    }
                    let values = column.value(row);
                    let values = values.as_primitive::<Float32Type>().values();
                    for of in values.chunks_exact(*width).filter(|of| of[4] > 0.0) {
                        let text = if text.is_empty() { format!("{:.2}", of[4]) } else { text.clone() };
                        // The class determines the colour.
                        let class = of.get(5).map_or(0, |class| *class as u64);
                        add([of[0], of[1], of[2], of[3]].map(f64::from), text, class);
                        paths.push(None);
                    }
                }
            }
        }
        let [left, top, width, height] = sides.map(|side| Arc::new(Float64Array::from(side)) as ArrayRef);
        vec![
            Arc::new(StringArray::from(cameras)),
            Arc::new(Int64Array::from(frames)),
            left,
            top,
            width,
            height,
            Arc::new(UInt64Array::from(colours)),
            Arc::new(StringArray::from(texts)),
            Arc::new(StringArray::from(paths)),
            Arc::new(Int8Array::from(changes)),
        ]
    }
}

/// Formats a plain value for a frame.
fn plain(column: &ArrayRef, row: usize) -> String {
    if column.is_null(row) {
        return String::new();
    }
    let text = match column.data_type() {
        DataType::Int64 => column.as_primitive::<Int64Type>().value(row).to_string(),
        DataType::Float64 => format!("{:.2}", column.as_primitive::<Float64Type>().value(row)),
        DataType::Boolean => column.as_boolean().value(row).to_string(),
        _ => column.as_string_opt::<i32>().map_or_else(String::new, |column| column.value(row).to_owned()),
    };
    // Only ASCII letters can be drawn.
    text.chars().take(40).map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect()
}

fn number(column: &ArrayRef, row: usize) -> Option<f64> {
    if column.is_null(row) {
        return None;
    }
    match column.data_type() {
        DataType::Int64 => Some(column.as_primitive::<Int64Type>().value(row) as f64),
        DataType::Float64 => Some(column.as_primitive::<Float64Type>().value(row)).filter(|v| v.is_finite()),
        _ => None,
    }
}

/// Numbers determine colours themselves, so that neighbours differ; texts do by their hash.
fn number_of(id: &str) -> u64 {
    id.parse().unwrap_or_else(|_| xxh3_64(id.as_bytes()))
}

impl Render {
    /// Refuses existing files that must not be replaced.
    pub(super) fn check_outputs(&self) -> Result<(), OperatorError> {
        let there = self.outputs.iter().map(|(_, file)| file).find(|file| !self.overwrite && file.exists());
        there.map_or(Ok(()), |file| Err(write_error(file, &std::io::ErrorKind::AlreadyExists.into())))
    }

    /// Makes all videos from the stored rows, one after the other: memory holds the boxes of one.
    pub(super) fn videos(&self, journal: &Journal) -> Result<(), OperatorError> {
        for (video, file) in &self.outputs {
            let camera = video.file_stem().unwrap_or_default().to_string_lossy();
            let own = if self.columns.camera.is_some() { camera.as_ref() } else { "" };
            let mut rows: BTreeMap<Row, i64> = BTreeMap::new();
            for batch in journal.batches()? {
                collect(&batch?, own, &mut rows);
            }
            self.video(video, file, &labels(rows))?;
        }
        Ok(())
    }

    fn video(&self, video: &Path, file: &Path, labels: &Labels) -> Result<(), OperatorError> {
        let index = match Index::read(&self.program, video) {
            Ok(index) => index,
            // The source has reported it; there is nothing to draw on.
            Err(error) => {
                tracing::warn!(video = %video.display(), "no frames to draw on: {error}");
                return Ok(());
            }
        };
        for tries in 1u32.. {
            match self.drawn(video, file, &index, labels, tries > TRIES)? {
                None => return Ok(()),
                Some(words) => {
                    tracing::warn!(video = %video.display(), "ffmpeg ended early; restarting it: {words}");
                }
            }
        }
        Ok(())
    }

    /// Draws a video from start to end. Returns ffmpeg's message if it ended early; then there is no file. `takes_part`: an
    /// incomplete video is accepted, as the source has reported the missing part.
    fn drawn(
        &self,
        video: &Path,
        file: &Path,
        index: &Index,
        labels: &Labels,
        takes_part: bool,
    ) -> Result<Option<String>, OperatorError> {
        let failed = |error: &dyn std::fmt::Display| {
            OperatorError::new(format!("cannot create `{}`: {error}", file.display()))
        };
        let whole = WholeFile::create(file, true)?;
        let content = whole.content().map_err(|error| failed(&error))?;
        // The file has no name yet; ffmpeg reaches it through this process.
        let reached = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), content.as_raw_fd()));
        let format = Format { size: self.size, jpeg: false, every: self.every, threads: 1, planes: true };
        let mut decoder =
            Decoder::start(&self.program, video, index, 0, &format).map_err(|error| failed(&error))?;
        let every = self.every.max(1) as usize;
        let pace = pace(index, self.every);
        let mut encoder: Option<(Encoder, (u32, u32))> = None;
        let mut pixels = Vec::new();
        // The decoded frame, and the next to write.
        let (mut next, mut due) = (0, 0);
        let mut broken = None;
        while let Some(time) = decoder.next_time() {
            pixels.clear();
            match decoder.read(&mut pixels, MOST) {
                Ok(()) => {}
                Err(error) => {
                    broken = Some(error.to_string());
                    break;
                }
            }
            while index.frames.get(next).is_some_and(|frame| frame.time < time) {
                next += 1;
            }
            if next % every != 0 {
                continue;
            }
            let picture = RawImage::parse(&pixels).map_err(|error| failed(&error))?;
            let (size, start) = ((picture.width, picture.height), pixels.len() - picture.pixels.len());
            let (encoder, of) = match &mut encoder {
                Some(started) => started,
                None => {
                    let started = Encoder::start(&self.program, &reached, self.container, size, pace);
                    encoder.insert((started.map_err(|error| failed(&error))?, size))
                }
            };
            if size != *of {
                return Err(failed(&"the size of its frames changes"));
            }
            let own = labels.get(&(next as i64));
            if let Some(mut canvas) = Canvas::new(size.0, size.1, &mut pixels[start..]) {
                // Shares of the picture become pixels.
                let (wide, high) = match self.columns.boxes {
                    Boxes::Rows { .. } => (f64::from(size.0), f64::from(size.1)),
                    Boxes::Columns(_) | Boxes::Path(_) => (1.0, 1.0),
                };
                for label in own.into_iter().flatten() {
                    canvas.label(&label.scaled(wide, high));
                }
            }
            // If frames could not be decoded, this one is shown in their place, so that later ones stay in time.
            while due <= next && due < index.frames.len() {
                let time = u64::try_from(index.microseconds(due)).unwrap_or(0);
                encoder.write(&pixels[start..], time).map_err(|error| failed(&error))?;
                due += every;
            }
        }
        // It may be in the middle of a frame that is not read.
        let (is_well, words) = match broken.is_some() {
            true => (false, None),
            false => decoder.finish(),
        };
        if !is_well {
            let words = broken.or(words).unwrap_or_else(|| "without a message".to_owned());
            if !takes_part {
                return Ok(Some(words));
            }
            tracing::warn!(video = %video.display(), "it ends early: {words}");
        }
        match encoder {
            Some((encoder, _)) => encoder.finish().map_err(|error| failed(&error))?,
            // No frame could be decoded, which the source has reported.
            None => return Ok(None),
        }
        drop(content);
        whole.finish()?;
        Ok(None)
    }
}

/// Adds the rows of a camera; retracted ones cancel out.
fn collect(batch: &RecordBatch, own: &str, rows: &mut BTreeMap<Row, i64>) {
    let text = |column: usize| batch.column(column).as_string::<i32>();
    let (camera, texts, paths) = (text(0), text(7), text(8));
    let frame = batch.column(1).as_primitive::<Int64Type>();
    let sides = [2, 3, 4, 5].map(|column| batch.column(column).as_primitive::<Float64Type>());
    let colour = batch.column(6).as_primitive::<UInt64Type>();
    let change = batch.column(9).as_primitive::<Int8Type>();
    for row in 0..batch.num_rows() {
        let name = if camera.is_valid(row) { camera.value(row) } else { "" };
        if name != own {
            continue;
        }
        let key = (
            frame.is_valid(row).then(|| frame.value(row)),
            sides.map(|side| side.value(row).to_bits()),
            colour.value(row),
            texts.value(row).into(),
            paths.is_valid(row).then(|| paths.value(row).into()),
        );
        let count = match rows.entry(key) {
            Entry::Vacant(entry) => entry.insert(0),
            Entry::Occupied(entry) if *entry.get() + i64::from(change.value(row)) == 0 => {
                entry.remove();
                continue;
            }
            Entry::Occupied(entry) => entry.into_mut(),
        };
        *count += i64::from(change.value(row));
    }
}

/// Groups the remaining boxes by frame.
fn labels(rows: BTreeMap<Row, i64>) -> Labels {
    let mut labels = Labels::new();
    let stays = rows.into_iter().filter(|(_, count)| *count > 0).map(|(row, _)| row);
    for (frame, sides, colour, text, path) in stays {
        let label = |[left, top, width, height]: [f64; 4]| Label {
            left,
            top,
            width,
            height,
            colour,
            text: Arc::clone(&text),
        };
        match (&path, frame) {
            (Some(path), _) => {
                for (frame, sides) in steps(path) {
                    let Ok(frame) = i64::try_from(frame) else { continue };
                    labels.entry(frame).or_default().push(label(sides));
                }
            }
            (None, Some(frame)) => {
                labels.entry(frame).or_default().push(label(sides.map(f64::from_bits)));
            }
            (None, None) => {}
        }
    }
    labels
}
