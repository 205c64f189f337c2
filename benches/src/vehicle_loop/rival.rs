//! The rival: a loop over videos, written to win. It handles camera after camera: frames, from a pipe of ffmpeg or from its
//! libraries in this process, are detected, cut out and embedded in batches, and followed by the tracker's own functions; at the end the tracks of all
//! cameras are linked at once. It has no repeated checks, no waiting and no recovery.
use crate::model_stage::Stage;
use anyhow::{Context, anyhow, bail};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use tidemill_engine::clock::{Clock, WallClock};
use tidemill_incremental::chains::{Item, Rules, batch};
use tidemill_inference::steps::{Cell, OutputColumn};
use tidemill_inference::tensor::TensorData;
use tidemill_media::planes::Conversion;
use tidemill_operators::raw_image::RawImage;
use tidemill_operators::video::decoder::{Decoder, Format, read_planes};
use tidemill_operators::video::index::Index;
use tidemill_operators::video::{library, program};
use tidemill_tracking::bounding_box::BoundingBox;
use tidemill_tracking::tracker::{Detection, Track, Tracker, TrackerSettings};

/// The task of the loop.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Task {
    /// Manifest of the detector.
    pub(crate) detector: PathBuf,
    /// Manifest of the embedding.
    pub(crate) appearance: PathBuf,
    pub(crate) backend: String,
    /// Frames and boxes per call of the models.
    pub(crate) batches: [usize; 2],
    /// Milliseconds between two frames.
    pub(crate) between_frames: i64,
    pub(crate) likeness: f64,
    /// Most milliseconds between two cameras.
    pub(crate) within: i64,
    /// The videos `CAMERA.mp4`.
    pub(crate) clips: PathBuf,
    pub(crate) threads: usize,
    /// Whether ffmpeg's libraries decode in this process, and not a child.
    pub(crate) in_process: bool,
    /// Files for the lines, and for the loop's own report.
    pub(crate) out: PathBuf,
    pub(crate) outcome: PathBuf,
}

/// A contestant's own report at its end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) frames: u64,
    /// Seconds from the first frame to the last line, after loading the models.
    pub(crate) seconds: f64,
    /// 99th percentile of the time from reading a frame until the tracker has seen it, milliseconds.
    pub(crate) p99_ms: f64,
}

/// Numbers of a box: left, top, width and height as shares of the picture, score, class.
const NUMBERS: usize = 6;

/// Frames of a video as uncompressed pixels, converted from planes as in Tidemill.
struct Frames {
    from: Feed,
    left: usize,
}

enum Feed {
    Pipe { child: Child, conversion: Conversion, planes: Vec<u8> },
    Library(Decoder),
}

impl Frames {
    fn of(clip: &Path, in_process: bool) -> anyhow::Result<Self> {
        let program = program::find(Path::new("."))?;
        let index = Index::read(&program, clip)?;
        let left = index.frames.len();
        if in_process {
            let library =
                library::load(Path::new(".")).map_err(|error| anyhow!("{error}: {}", library::HELP))?;
            let format = Format { size: None, jpeg: false, every: 1, threads: 1, planes: true };
            let decoder = Decoder::start_in_process(&library, clip, &index, 0, &format, u64::MAX)?;
            return Ok(Self { from: Feed::Library(decoder), left });
        }
        let matrix = index.matrix.with_context(|| format!("{} has no planes", clip.display()))?;
        let mut command = Command::new(program);
        command.args(["-nostdin", "-loglevel", "error", "-threads", "1", "-i"]).arg(clip);
        command.args(["-fps_mode", "passthrough"]);
        command.args(["-f", "image2pipe", "-c:v", "pgmyuv", "-threads", "1", "pipe:1"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let conversion = Conversion::new(matrix);
        Ok(Self { from: Feed::Pipe { child, conversion, planes: Vec::new() }, left })
    }

    /// Reads the next picture with its header; false: there are no more.
    fn next(&mut self, picture: &mut Vec<u8>) -> anyhow::Result<bool> {
        picture.clear();
        if self.left == 0 {
            return Ok(false);
        }
        self.left -= 1;
        match &mut self.from {
            Feed::Pipe { child, conversion, planes } => {
                let pipe = child.stdout.as_mut().context("ffmpeg has no output")?;
                read_planes(pipe, conversion, planes, picture, usize::MAX)?;
            }
            Feed::Library(decoder) => {
                decoder.next_time().context("a frame that cannot be decoded")?;
                decoder.read(picture, usize::MAX)?;
            }
        }
        Ok(true)
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        if let Feed::Pipe { child, .. } = &mut self.from {
            // It has ended by itself where everything was read.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A box whose part of the picture awaits its embedding.
struct Waiting {
    frame: u64,
    detection: Detection,
}

/// The models of one thread, and its reused buffers.
struct Loop<'a> {
    task: &'a Task,
    detector: Stage,
    appearance: Stage,
    part: Vec<u8>,
    clock: WallClock,
    /// Nanoseconds from reading each frame until the tracker had seen it.
    took: Vec<i64>,
}

/// A track with its camera.
struct Seen {
    camera: String,
    track: Track,
}

impl<'a> Loop<'a> {
    fn load(task: &'a Task) -> anyhow::Result<Self> {
        let mut all = Self {
            task,
            detector: Stage::load(&task.detector, &task.backend)?,
            appearance: Stage::load(&task.appearance, &task.backend)?,
            part: Vec::new(),
            clock: WallClock::new(),
            took: Vec::new(),
        };
        all.detector.warm_up()?;
        all.appearance.warm_up()?;
        Ok(all)
    }

    /// Returns the boxes of a block of pictures, with their contents.
    fn look(&mut self, first: u64, pictures: &[Vec<u8>]) -> anyhow::Result<Vec<Waiting>> {
        for picture in pictures {
            self.detector.push(|_| Cell::Bytes(picture))?;
        }
        let boxes = floats(self.detector.run()?)?;
        let most = boxes.len() / pictures.len();
        let (mut found, mut embedded) = (Vec::new(), 0);
        for ((frame, picture), boxes) in (first..).zip(pictures).zip(boxes.chunks_exact(most)) {
            let picture = RawImage::parse(picture)?;
            let (width, height) = (f64::from(picture.width), f64::from(picture.height));
            for numbers in boxes.chunks_exact(NUMBERS) {
                let [left, top, wide, high, score, class] =
                    [0, 1, 2, 3, 4, 5].map(|index| f64::from(numbers[index]));
                let area = BoundingBox {
                    left: left * width,
                    top: top * height,
                    width: wide * width,
                    height: high * height,
                };
                if score <= 0.0 || area.width < 1.0 || area.height < 1.0 {
                    continue;
                }
                cut_out(&picture, &area, &mut self.part);
                let part = &self.part;
                self.appearance.push(|_| Cell::Bytes(part))?;
                let class = class as u32;
                found.push(Waiting {
                    frame,
                    detection: Detection { area, score, class, embedding: Vec::new() },
                });
                if self.appearance.rows() == self.task.batches[1] {
                    self.embed(&mut found, &mut embedded)?;
                }
            }
        }
        self.embed(&mut found, &mut embedded)?;
        Ok(found)
    }

    /// Adds the model's output to `found` from `embedded` on.
    fn embed(&mut self, found: &mut [Waiting], embedded: &mut usize) -> anyhow::Result<()> {
        if self.appearance.rows() == 0 {
            return Ok(());
        }
        let values = floats(self.appearance.run()?)?;
        let new = &mut found[*embedded..];
        let length = values.len() / new.len();
        for (waiting, embedding) in new.iter_mut().zip(values.chunks_exact(length)) {
            waiting.detection.embedding = embedding.to_vec();
        }
        *embedded = found.len();
        Ok(())
    }

    /// Returns all tracks of a camera.
    fn follow(&mut self, clip: &Path) -> anyhow::Result<Vec<Seen>> {
        let camera = clip.file_stem().context("a clip without a name")?.to_string_lossy().into_owned();
        let mut frames = Frames::of(clip, self.task.in_process)?;
        let mut tracker = Tracker::new(TrackerSettings::default());
        let (mut count, mut tracks) = (0, Vec::new());
        let mut block: Vec<Vec<u8>> = vec![Vec::new(); self.task.batches[0]];
        let mut read = vec![0; block.len()];
        loop {
            let mut filled = 0;
            while filled < block.len() && frames.next(&mut block[filled])? {
                read[filled] = self.clock.now();
                filled += 1;
            }
            if filled == 0 {
                break;
            }
            let found = self.look(count, &block[..filled])?;
            for boxes in found.chunk_by(|a, b| a.frame == b.frame) {
                let detections: Vec<Detection> = boxes.iter().map(|it| it.detection.clone()).collect();
                tracks.extend(tracker.step(boxes[0].frame, &detections).ended);
            }
            let looked_at = self.clock.now();
            self.took.extend(read[..filled].iter().map(|read| looked_at - read));
            count += filled as u64;
        }
        tracks.extend(tracker.finish());
        let seen = |track| Seen { camera: camera.clone(), track };
        Ok(tracks.into_iter().map(seen).collect())
    }
}

fn floats(column: OutputColumn) -> anyhow::Result<Vec<f32>> {
    match column {
        OutputColumn::Tensor(TensorData::Float32(values)) => Ok(values),
        _ => bail!("the model gives no float32 numbers"),
    }
}

/// Cuts out the part of a picture under a box, in whole pixels, at least one.
fn cut_out(picture: &RawImage<'_>, area: &BoundingBox, part: &mut Vec<u8>) {
    let start = |at: f64, most: u32| at.floor().clamp(0.0, f64::from(most) - 1.0);
    let (left, top) = (start(area.left, picture.width), start(area.top, picture.height));
    let end = |at: f64, start: f64, most: u32| at.ceil().clamp(start + 1.0, f64::from(most));
    let right = end(area.left + area.width, left, picture.width) as usize;
    let bottom = end(area.top + area.height, top, picture.height) as usize;
    let (left, top) = (left as usize, top as usize);
    part.clear();
    RawImage::write_header((right - left) as u32, (bottom - top) as u32, part);
    for row in top..bottom {
        let row = row * picture.width as usize;
        part.extend_from_slice(&picture.pixels[3 * (row + left)..3 * (row + right)]);
    }
}

/// Returns the vehicle of each track, a line each.
fn lines(tracks: &[Seen], task: &Task) -> String {
    let name = |seen: &Seen| format!("{}/{}", seen.camera, seen.track.number);
    let item = |seen: &Seen| {
        let time = |frame: u64| frame as i64 * task.between_frames;
        let track = &seen.track;
        let (start, end) = (time(track.first_frame), time(track.last_frame));
        Item::new(name(seen), seen.camera.as_str(), start, end, &track.embedding())
    };
    let items: Vec<Item> = tracks.iter().map(item).collect();
    let rules = Rules {
        least_likeness: task.likeness,
        shortest_gap: 0,
        longest_gap: task.within,
        transitions: Vec::new(),
    };
    let mut text = String::new();
    for membership in batch::chains(&items, &rules) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{} {}", membership.key, membership.chain);
    }
    text
}

/// Lists the clips of a folder, in order.
fn clips(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut clips: Vec<PathBuf> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    clips.sort();
    Ok(clips)
}

/// Follows the vehicles of all clips; the threads share only the list of clips.
pub(crate) fn run(task: &Task) -> anyhow::Result<Outcome> {
    let clips = clips(&task.clips)?;
    let mut loops = (0..task.threads).map(|_| Loop::load(task)).collect::<anyhow::Result<Vec<_>>>()?;
    let clock = WallClock::new();
    let started = clock.now();
    let next = AtomicUsize::new(0);
    let work = |mut own: Loop<'_>| -> anyhow::Result<(Vec<Seen>, Vec<i64>)> {
        let mut tracks = Vec::new();
        while let Some(clip) = clips.get(next.fetch_add(1, Ordering::Relaxed)) {
            tracks.extend(own.follow(clip)?);
        }
        Ok((tracks, own.took))
    };
    let work = &work;
    let parts = std::thread::scope(|scope| {
        let threads: Vec<_> = loops.drain(..).map(|own| scope.spawn(move || work(own))).collect();
        let joined = threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread died"))?);
        joined.collect::<anyhow::Result<Vec<_>>>()
    })?;
    let mut took: Vec<i64> = parts.iter().flat_map(|(_, took)| took.iter().copied()).collect();
    let tracks: Vec<Seen> = parts.into_iter().flat_map(|(tracks, _)| tracks).collect();
    std::fs::write(&task.out, lines(&tracks, task))?;
    let seconds = (clock.now() - started) as f64 / 1e9;
    took.sort_unstable();
    let place = (took.len() * 99).div_ceil(100).checked_sub(1).context("there is no frame")?;
    Ok(Outcome { frames: took.len() as u64, seconds, p99_ms: took[place] as f64 / 1e6 })
}
