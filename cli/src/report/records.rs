//! Sample records for people: pictures and sounds, and values beside the truth.
use super::windows;
use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch};
use base64::Engine;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;
use tidemill_engine::{Observer, Program, Sample, SampleOptions};
use tidemill_operators::format::MediaFormat;
use tidemill_operators::ground_truth;
use tidemill_operators::raw_image::RawImage;
use tidemill_operators::record::METADATA_COLUMNS;
use tidemill_operators::values::{Values, row_values};
use tidemill_operators::vision::track_path::{Step, steps};
use tidemill_spec::workflow::{Sink, Workflow};

/// Most samples shown per sink.
const MOST: usize = 12;
/// Most wrong ones of them, if there are right ones too.
const MOST_WRONG: usize = 6;
/// Most samples with pictures for a sink that is not judged record by record: they look alike.
const MOST_PICTURES: usize = 3;
/// Line colour of a box, and the divisor of the longer side for its width.
const BOX: (image::Rgb<u8>, u32) = (image::Rgb([255, 214, 0]), 200);
/// Column of the boxes of a track without a ground truth that names one.
const PATH: &str = "path";
/// Bytes of source records kept by the engine, to find those of a sample.
const RECENT_BYTES: usize = 64 << 20;
/// Bytes of pictures and sounds in all of a report.
const MEDIA_BUDGET: usize = 2 << 20;
/// Most bytes of one picture or sound; larger pictures are scaled down.
const MEDIUM: usize = 160 << 10;
/// Side of a picture that was scaled down.
const SMALL_SIDE: u32 = 560;

/// A picture or a sound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Medium {
    /// Shown; the address has the data.
    Picture(String),
    /// Played; the address has the data.
    Sound(String),
    /// Described only.
    Other(String),
}

/// A value, and the truth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    /// Column.
    pub(crate) name: String,
    /// Value; `None` if only the truth has such a column.
    pub(crate) value: Option<String>,
    /// The truth, if known.
    pub(crate) truth: Option<String>,
    /// Whether the sink is judged by this column.
    pub(crate) judged: bool,
}

/// A sample.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Shown {
    /// Milliseconds from the intended emission to the arrival.
    pub(crate) latency_ms: f64,
    /// Right or wrong, if known.
    pub(crate) right: Option<bool>,
    /// Pictures and sounds, with their source.
    pub(crate) media: Vec<(String, Medium)>,
    /// Values.
    pub(crate) pairs: Vec<Pair>,
}

/// The samples of a sink.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SinkRecords {
    /// Sink id.
    pub(crate) sink: String,
    /// Sinks with the same input, which are not shown again.
    pub(crate) others: Vec<String>,
    /// Wrong ones first.
    pub(crate) samples: Vec<Shown>,
}

/// Returns the engine's settings for samples of this workflow's report.
pub(crate) fn sample_options(workflow: &Workflow, program: &Program) -> SampleOptions {
    let links = tidemill_app::samples::links(workflow, program);
    SampleOptions { most: MOST, most_wrong: MOST, recent_bytes: RECENT_BYTES, links, newest: None }
}

/// The samples of all sinks that have some.
pub(crate) fn collect(workflow: &Workflow, observer: &Observer) -> Vec<SinkRecords> {
    let mut budget = MEDIA_BUDGET;
    let is_judged = |sink: &Sink| sink.ground_truth.is_some();
    let mut shown: Vec<SinkRecords> = Vec::new();
    for sink in &workflow.sinks {
        let same = workflow.sinks.iter().filter(|other| other.input.from.value == sink.input.from.value);
        let first = same.clone().find(|other| is_judged(other)).or(same.clone().next());
        if first.is_some_and(|first| first.id.value != sink.id.value) && !is_judged(sink) {
            continue;
        }
        let others = same.filter(|other| other.id.value != sink.id.value && !is_judged(other));
        let others = others.map(|other| other.id.value.clone()).collect();
        let mut samples = choose(observer.samples(&sink.id));
        if samples.iter().all(|sample| sample.right.is_none()) {
            samples.retain(|sample| !windows::is_early(&row_values(&sample.record, 0)));
            if samples.iter().any(|sample| sample.sources.values().any(has_picture)) {
                samples.truncate(MOST_PICTURES);
            }
        }
        let truths = truths(workflow, sink, &samples);
        let samples: Vec<Shown> =
            samples.iter().map(|sample| show(sink, sample, &truths, &mut budget)).collect();
        if !samples.is_empty() {
            shown.push(SinkRecords { sink: sink.id.value.clone(), others, samples });
        }
    }
    shown
}

fn has_picture(record: &RecordBatch) -> bool {
    row_values(record, 0).keys().any(|name| binary(record, name).is_some_and(is_picture))
}

fn is_picture(bytes: &[u8]) -> bool {
    MediaFormat::of(bytes).is_some_and(MediaFormat::is_picture)
}

/// Chooses wrong ones and others, about equally if there are enough.
fn choose(samples: Vec<Sample>) -> Vec<Sample> {
    let (mut chosen, others): (Vec<Sample>, Vec<Sample>) =
        samples.into_iter().partition(|sample| sample.right == Some(false));
    let wrong = MOST_WRONG.max(MOST.saturating_sub(others.len()));
    chosen.truncate(wrong);
    let room = MOST - chosen.len();
    chosen.extend(others.into_iter().take(room));
    chosen
}

type Truths = BTreeMap<String, Vec<(String, String)>>;

/// All columns of the ground truth by key.
fn truths(workflow: &Workflow, sink: &Sink, samples: &[Sample]) -> Truths {
    let Some(truth) = &sink.ground_truth else { return Truths::new() };
    let keys = samples.iter().filter_map(|sample| text_of(&row_values(&sample.record, 0), &truth.key.value));
    // It was read when the run started; if it is gone now, the samples have no truth.
    ground_truth::rows(&workflow.resolve(&truth.path.value), &truth.key.value, &keys.collect())
        .unwrap_or_default()
}

fn show(sink: &Sink, sample: &Sample, truths: &Truths, budget: &mut usize) -> Shown {
    let values = row_values(&sample.record, 0);
    let truth = sink.ground_truth.as_ref();
    let key = truth.and_then(|truth| text_of(&values, &truth.key.value));
    let known = key.and_then(|key| truths.get(&key)).map_or(&[][..], Vec::as_slice);
    let known_of =
        |name: &str| known.iter().find(|(column, _)| column == name).map(|(_, value)| value.clone());
    let path_column =
        truth.and_then(|truth| truth.boxes.as_ref()).map_or(PATH, |column| column.value.as_str());
    // Long values are cut, but a path is needed as a whole.
    let path = text(&sample.record, path_column).and_then(path_of).unwrap_or_default();
    let mut media = Vec::new();
    let mut pairs: Vec<Pair> = Vec::new();
    let mut told = BTreeSet::new();
    let batches = std::iter::once((None, &sample.record));
    for (source, batch) in batches.chain(sample.sources.iter().map(|(id, batch)| (Some(id), batch))) {
        for (name, value) in row_values(batch, 0) {
            if let Some(bytes) = binary(batch, &name) {
                let from = source.map_or(name.clone(), |source| format!("{source}: {name}"));
                let area = values_frame(batch).and_then(|frame| path.iter().find(|step| step.0 == frame));
                let drawn = area.and_then(|(_, area)| with_box(bytes, *area, budget));
                media.push((from, drawn.unwrap_or_else(|| medium(bytes, budget))));
                continue;
            }
            let boxes = path_text(&path).filter(|_| source.is_none() && name == path_column);
            let Some(value) = boxes.or_else(|| shown(&value)) else { continue };
            let judged = source.is_none() && truth.is_some_and(|truth| truth.prediction == *name);
            let column = truth
                .filter(|_| judged)
                .and_then(|truth| truth.truth.as_ref())
                .map_or(name.as_str(), |column| column.value.as_str());
            let is_key = truth.is_some_and(|truth| truth.key == *name);
            let truth = known_of(column).filter(|_| source.is_none() && !is_key);
            if truth.is_some() || is_key {
                told.insert(column.to_owned());
            }
            // A source value that is unchanged in the record is shown once.
            let known = pairs.iter().any(|pair| pair.name == name && pair.value.as_deref() == Some(&value));
            if !known {
                let name = match source {
                    Some(source) if pairs.iter().any(|pair| pair.name == name) => format!("{source}: {name}"),
                    _ => name,
                };
                pairs.push(Pair { name, value: Some(value), truth, judged });
            }
        }
    }
    let key = truth.map(|truth| truth.key.value.as_str());
    let only_truth = known.iter().filter(|(name, _)| !told.contains(name) && Some(name.as_str()) != key);
    pairs.extend(only_truth.map(|(name, value)| Pair {
        name: name.clone(),
        value: None,
        truth: Some(value.clone()),
        judged: false,
    }));
    Shown { latency_ms: sample.latency as f64 / 1e6, right: sample.right, media, pairs }
}

/// Parses all boxes of a track, if the text has nothing else.
fn path_of(text: &str) -> Option<Vec<Step>> {
    let path: Vec<Step> = steps(text).collect();
    (!path.is_empty() && path.len() == text.split(';').count()).then_some(path)
}

/// Number of boxes of a path and its first and last frame, in place of hundreds of coordinates.
fn path_text(path: &[Step]) -> Option<String> {
    let (first, last) = (path.first()?, path.last()?);
    Some(match path.len() {
        1 => format!("1 box, in frame {}", first.0),
        all => format!("{all} boxes, frames {} to {}", first.0, last.0),
    })
}

/// The frame number of a source record.
fn values_frame(record: &RecordBatch) -> Option<u64> {
    row_values(record, 0).get("frame").and_then(serde_json::Value::as_u64)
}

/// Returns a picture with a box drawn on it; `None` if it cannot be decoded within the limits or there is no room for it.
fn with_box(bytes: &[u8], [left, top, width, height]: [f64; 4], budget: &mut usize) -> Option<Medium> {
    let mut whole = decoded(bytes)?.into_rgb8();
    let (colour, part) = BOX;
    let line = i64::from(whole.width().max(whole.height()) / part).max(1);
    // A line this far outside is invisible.
    let pixel = |at: f64| at.round().clamp(-1e6, 1e6) as i64;
    let edges = |from: f64, length: f64| (pixel(from), pixel(from + length));
    let ((left, right), (top, bottom)) = (edges(left, width), edges(top, height));
    for (x, y, pixel) in whole.enumerate_pixels_mut() {
        let (x, y) = (i64::from(x), i64::from(y));
        let is_near = |at: i64, edge: i64| (at - edge).abs() < line;
        let is_along_x = (left - line..=right + line).contains(&x);
        let is_along_y = (top - line..=bottom + line).contains(&y);
        if is_along_x && (is_near(y, top) || is_near(y, bottom))
            || is_along_y && (is_near(x, left) || is_near(x, right))
        {
            *pixel = colour;
        }
    }
    let bytes = small(&whole.into())?;
    spend(&bytes, budget).then(|| Medium::Picture(address("image/jpeg", &bytes)))
}

/// Most characters of a value.
const LONGEST: usize = 240;

/// A value as text; tensors without values are left out.
fn shown(value: &serde_json::Value) -> Option<String> {
    match value {
        serde_json::Value::Object(_) => None,
        serde_json::Value::Null => Some("(empty)".to_owned()),
        serde_json::Value::String(text) => match text.char_indices().nth(LONGEST) {
            Some((end, _)) => Some(format!("{}…", &text[..end])),
            None => Some(text.clone()),
        },
        other => Some(other.to_string()),
    }
}

fn text_of(values: &Values, column: &str) -> Option<String> {
    match values.get(column)? {
        serde_json::Value::String(text) => Some(text.clone()),
        serde_json::Value::Null => None,
        other => Some(other.to_string()),
    }
}

fn text<'a>(batch: &'a RecordBatch, name: &str) -> Option<&'a str> {
    let column = batch.column_by_name(name)?.as_string_opt::<i32>()?;
    column.is_valid(0).then(|| column.value(0))
}

fn binary<'a>(batch: &'a RecordBatch, name: &str) -> Option<&'a [u8]> {
    let index = batch.schema_ref().index_of(name).ok().filter(|index| *index >= METADATA_COLUMNS)?;
    let column = batch.column(index).as_binary_opt::<i32>()?;
    column.is_valid(0).then(|| column.value(0))
}

fn medium(bytes: &[u8], budget: &mut usize) -> Medium {
    let size = tidemill_app::figures::bytes(bytes.len() as u64);
    let Some(format) = MediaFormat::of(bytes) else {
        return Medium::Other(format!("{size} of an unknown format"));
    };
    let kind = format.media_type();
    if !format.is_picture() {
        return match spend(bytes, budget) {
            true => Medium::Sound(address(kind, bytes)),
            false => Medium::Other(format!("a sound of {size}, too large for this page")),
        };
    }
    let smaller = if !format.is_of_browsers() || bytes.len() > MEDIUM { smaller(bytes) } else { None };
    if !format.is_of_browsers() && smaller.is_none() {
        return Medium::Other(format!("a picture of {size} in a format that this page cannot show"));
    }
    let (kind, bytes) = smaller.as_deref().map_or((kind, bytes), |smaller| ("image/jpeg", smaller));
    match spend(bytes, budget) {
        true => Medium::Picture(address(kind, bytes)),
        false => Medium::Other(format!("a picture of {size}, too large for this page")),
    }
}

/// Encodes a generated picture for the page; `None` if there is no room for it.
pub(super) fn picture(of: &image::RgbImage, budget: &mut usize) -> Option<Medium> {
    let mut bytes = Vec::new();
    image::codecs::jpeg::JpegEncoder::new_with_quality(&mut bytes, 85).encode_image(of).ok()?;
    spend(&bytes, budget).then(|| Medium::Picture(address("image/jpeg", &bytes)))
}

fn spend(bytes: &[u8], budget: &mut usize) -> bool {
    let fits = bytes.len() <= MEDIUM && bytes.len() <= *budget;
    if fits {
        *budget -= bytes.len();
    }
    fits
}

fn address(kind: &str, bytes: &[u8]) -> String {
    format!("data:{kind};base64,{}", base64::engine::general_purpose::STANDARD.encode(bytes))
}

/// Pixels of the largest picture that is scaled down for a page.
const LARGEST_PICTURE: u64 = 16_000_000;

/// Returns a smaller picture; `None` if it cannot be decoded within the limits.
fn smaller(bytes: &[u8]) -> Option<Vec<u8>> {
    small(&decoded(bytes)?)
}

/// Decodes a picture; `None` if that exceeds the limits.
fn decoded(bytes: &[u8]) -> Option<image::DynamicImage> {
    if let Ok(frame) = RawImage::parse(bytes) {
        let fits = u64::from(frame.width) * u64::from(frame.height) <= LARGEST_PICTURE;
        let pixels = fits.then(|| frame.pixels.to_vec())?;
        return Some(image::RgbImage::from_raw(frame.width, frame.height, pixels)?.into());
    }
    let reader = || image::ImageReader::new(Cursor::new(bytes)).with_guessed_format().ok();
    // A user waits for the page.
    let (width, height) = reader()?.into_dimensions().ok()?;
    if u64::from(width) * u64::from(height) > LARGEST_PICTURE {
        return None;
    }
    let mut reader = reader()?;
    let mut limits = image::Limits::default();
    limits.max_alloc = Some(256 << 20);
    reader.limits(limits);
    reader.decode().ok()
}

/// Returns a JPEG small enough for a page; `None` if it is impossible.
fn small(whole: &image::DynamicImage) -> Option<Vec<u8>> {
    // Noise is hardly compressible.
    [SMALL_SIDE, SMALL_SIDE / 2].into_iter().find_map(|side| {
        let small = whole.thumbnail(side, side).into_rgb8();
        let mut out = Vec::new();
        image::codecs::jpeg::JpegEncoder::new_with_quality(&mut out, 80).encode_image(&small).ok()?;
        (out.len() <= MEDIUM).then_some(out)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn png(side: u32) -> Vec<u8> {
        // Noise, which does not compress.
        let mut state = 1u32;
        let picture = image::RgbImage::from_fn(side, side, |_, _| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            image::Rgb([(state >> 24) as u8, (state >> 16) as u8, (state >> 8) as u8])
        });
        let mut out = Cursor::new(Vec::new());
        picture.write_to(&mut out, image::ImageFormat::Png).unwrap();
        out.into_inner()
    }

    #[test]
    fn a_box_is_drawn_where_the_path_has_it() {
        assert_eq!(
            path_of("7,1.5,2,30,40;9,2,2,30,40").map(|path| path_text(&path)).unwrap().unwrap(),
            "2 boxes, frames 7 to 9"
        );
        assert_eq!(path_of("no path; at all"), None);
        let mut budget = MEDIA_BUDGET;
        let grey = image::RgbImage::from_pixel(100, 80, image::Rgb([90, 90, 90]));
        let mut bytes = Cursor::new(Vec::new());
        grey.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
        let Some(Medium::Picture(address)) =
            with_box(&bytes.into_inner(), [20.0, 10.0, 40.0, 90.0], &mut budget)
        else {
            panic!("no picture");
        };
        let data = address.strip_prefix("data:image/jpeg;base64,").unwrap();
        let data = base64::engine::general_purpose::STANDARD.decode(data).unwrap();
        let drawn = image::load_from_memory(&data).unwrap().into_rgb8();
        let is_drawn = |x: u32, y: u32| {
            let at = |place: u32, side: u32, all: u32| place * side / all;
            let pixel = drawn.get_pixel(at(x, drawn.width(), 100), at(y, drawn.height(), 80));
            pixel.0[0] > 180 && pixel.0[2] < 90
        };
        assert!(is_drawn(20, 40) && is_drawn(60, 40) && is_drawn(40, 10), "its sides");
        assert!(!is_drawn(40, 40) && !is_drawn(80, 40) && !is_drawn(40, 79), "neither inside nor outside");
    }

    #[test]
    fn media_are_bounded() {
        let (small, large) = (png(20), png(900));
        assert!(large.len() > MEDIUM);
        let mut budget = MEDIA_BUDGET;
        let of = |medium: Medium| match medium {
            Medium::Picture(text) | Medium::Sound(text) | Medium::Other(text) => text,
        };
        assert!(of(medium(&small, &mut budget)).starts_with("data:image/png;base64,iVBOR"));
        assert_eq!(budget, MEDIA_BUDGET - small.len());
        let shown = of(medium(&large, &mut budget));
        assert!(shown.starts_with("data:image/jpeg;base64,") && shown.len() < 2 * MEDIUM, "{}", shown.len());
        let mut nothing = 3;
        assert!(matches!(medium(&small, &mut nothing), Medium::Other(text) if text.contains("too large")));
        assert_eq!(nothing, 3);
        let sound = [b"RIFF\x24\0\0\0WAVE".as_slice(), &[0; 100]].concat();
        assert!(matches!(medium(&sound, &mut budget), Medium::Sound(_)));
        let sound = medium(b"fLaC\0\0\0\x22", &mut budget);
        assert!(matches!(sound, Medium::Sound(text) if text.starts_with("data:audio/flac;base64,")));
        let mut tiff = Cursor::new(Vec::new());
        image::RgbImage::new(9, 9).write_to(&mut tiff, image::ImageFormat::Tiff).unwrap();
        assert!(
            of(medium(&tiff.into_inner(), &mut budget)).starts_with("data:image/jpeg;base64,"),
            "browsers show none"
        );
        let broken = [&[0xff, 0xd8, 0xff][..], &vec![0; MEDIUM]].concat();
        assert!(matches!(medium(&broken, &mut budget), Medium::Other(_)));
        assert!(matches!(medium(b"what", &mut budget), Medium::Other(text) if text.contains("4 B")));
    }
}
