//! Reads frames in their order, each video by a decoder of its own.
use super::clips::{Clip, Clips, Entry};
use crate::api::{DeadLetter, OperatorError, Source, SourcePosition, SourceRead};
use crate::values::Values;
use crate::video::decoder::{Decoder, Format};
use crate::video::pool::FramePool;
use arrow_array::builder::StringBuilder;
use arrow_array::{ArrayRef, BinaryArray, Int64Array, RecordBatch};
use arrow_buffer::OffsetBufferBuilder;
use arrow_schema::SchemaRef;
use std::path::PathBuf;
use std::sync::Arc;
use tidemill_avcodec::Library;

/// Most bytes of one read, below the 2 GiB limit of offsets in a column.
const READ_LIMIT: usize = 1 << 30;
/// Restarts of a decoder for one frame.
const TRIES: u32 = 3;

pub(super) struct Reader {
    clips: Clips,
    /// By video.
    running: Vec<Option<Running>>,
    /// By video: the frame from which on the decoder finds none.
    ended: Vec<Option<usize>>,
    /// By video: planes could not be read, so pixels are requested.
    plain: Vec<bool>,
    decoding: Decoding,
    schema: SchemaRef,
    /// Event time of the first frames, microseconds.
    start: i64,
    max_pixels: u64,
    next: usize,
    sizes: Vec<u32>,
    /// Bytes of the largest read so far, the estimate for the next.
    largest: usize,
    pool: Arc<FramePool>,
}

/// How videos are decoded.
pub(super) struct Decoding {
    pub(super) program: PathBuf,
    /// Decodes in this process.
    pub(super) library: Option<Arc<Library>>,
    pub(super) format: Format,
}

/// The decoder of a video.
struct Running {
    decoder: Decoder,
    /// Time of the next picture, if known.
    pending: Option<i64>,
    /// Earlier frames have passed.
    at: usize,
    /// Requested start, until its first picture was seen.
    sought: Option<usize>,
    /// A picture has arrived.
    has_given: bool,
}

/// Result of reading a frame.
enum Got {
    Picture,
    /// Reason and detail.
    Letter(&'static str, String),
}

impl Reader {
    pub(super) fn new(
        clips: Clips,
        decoding: Decoding,
        schema: &SchemaRef,
        start: i64,
        max_pixels: u64,
    ) -> Self {
        Self {
            running: clips.clips.iter().map(|_| None).collect(),
            ended: vec![None; clips.clips.len()],
            plain: vec![false; clips.clips.len()],
            clips,
            decoding,
            schema: Arc::clone(schema),
            start,
            max_pixels,
            next: 0,
            sizes: Vec::new(),
            largest: 0,
            pool: Arc::default(),
        }
    }

    /// Appends the picture of a frame.
    fn frame(&mut self, clip: usize, frame: usize, bytes: &mut Vec<u8>) -> Result<Got, OperatorError> {
        let of = &self.clips.clips[clip];
        let Some(index) = &of.index else { return Ok(Got::Letter("video_unreadable", String::new())) };
        // Scaled frames are decoded in full first.
        let sizes = [index.size, self.decoding.format.size.unwrap_or(index.size)];
        let too_large = sizes
            .into_iter()
            .find(|(width, height)| u64::from(*width) * u64::from(*height) > self.max_pixels);
        if let Some((width, height)) = too_large {
            let most = self.max_pixels;
            return Ok(Got::Letter(
                "frame_too_large",
                format!("{width} x {height} pixels, at most {most} are allowed"),
            ));
        }
        if self.ended[clip].is_some_and(|ended| frame >= ended) {
            return Ok(undecodable(of, frame));
        }
        let most = usize::try_from(self.max_pixels).unwrap_or(usize::MAX / 4) * 3;
        let wanted = index.frames[frame].time;
        let (mut deaths, mut from_the_start) = (0, false);
        loop {
            if self.running[clip].as_ref().is_none_or(|running| running.at > frame) {
                let first = if from_the_start { 0 } else { frame };
                self.running[clip] = Some(self.begin(of, first, !self.plain[clip])?);
            }
            let Some(running) = &mut self.running[clip] else { continue };
            let has_given = running.has_given;
            let time = running.pending.take().or_else(|| running.decoder.next_time());
            let is_there = match time {
                None => {
                    let Some(ended) = self.running[clip].take() else { continue };
                    let has_missed = ended.sought.is_some_and(|first| first > 0);
                    let (is_well, words) = ended.decoder.finish();
                    // No frame came from the requested start: the container's times mislead the decoder.
                    if has_missed && !from_the_start {
                        from_the_start = true;
                        continue;
                    }
                    if is_well {
                        self.ended[clip] = Some(frame);
                        return Ok(undecodable(of, frame));
                    }
                    tracing::warn!(
                        video = %of.file.display(), frame, "ffmpeg ended early: {}", words.unwrap_or_default()
                    );
                    false
                }
                // Decoding starts after the requested frame, so the container's times mislead it.
                Some(time) if time > wanted && running.sought.is_some_and(|first| first > 0) => {
                    (self.running[clip], from_the_start) = (None, true);
                    continue;
                }
                Some(time) if time > wanted => {
                    (running.pending, running.at) = (Some(time), frame + 1);
                    return Ok(undecodable(of, frame));
                }
                Some(time) if time < wanted => {
                    running.sought = None;
                    let is_read = running.decoder.skip(most).is_ok();
                    running.has_given |= is_read;
                    is_read
                }
                Some(_) => {
                    (running.sought, running.at) = (None, frame + 1);
                    if running.decoder.read(bytes, most).is_ok() {
                        running.has_given = true;
                        return Ok(Got::Picture);
                    }
                    false
                }
            };
            if !is_there {
                self.running[clip] = None;
                // A part of the stream with an odd size has no planes.
                if !has_given && !self.plain[clip] && index.matrix.is_some() {
                    self.plain[clip] = true;
                    continue;
                }
                deaths += 1;
                if deaths > TRIES {
                    let text = format!("ffmpeg ended {deaths} times at frame {frame} of `{}`", of.camera);
                    return Ok(Got::Letter("decoder_failed", text));
                }
            }
        }
    }

    fn begin(&self, clip: &Clip, first: usize, planes: bool) -> Result<Running, OperatorError> {
        let index = clip.index.as_ref().ok_or_else(|| OperatorError::new("a video without frames"))?;
        let first = index.entry(first);
        let Decoding { program, library, format } = &self.decoding;
        let format = Format { planes, ..format.clone() };
        let decoder = match library {
            Some(library) => {
                let decoder =
                    Decoder::start_in_process(library, &clip.file, index, first, &format, self.max_pixels);
                decoder.map_err(|error| {
                    let name = clip.file.file_name().unwrap_or_default().display();
                    OperatorError::new(format!("`{name}`: {error}: write `decoder: process`"))
                })?
            }
            None => Decoder::start(program, &clip.file, index, first, &format).map_err(|error| {
                OperatorError::new(format!("cannot start {}: {error}", program.display()))
            })?,
        };
        Ok(Running { decoder, pending: None, at: first, sought: Some(first), has_given: false })
    }

    fn letter(&self, entry: Entry, reason: &'static str, detail: String) -> DeadLetter {
        let clip = &self.clips.clips[entry.clip as usize];
        let mut values = Values::from_iter([("camera".to_owned(), clip.camera.clone().into())]);
        if let Some(frame) = entry.frame {
            values.insert("frame".to_owned(), frame.into());
        }
        let time = self.start.saturating_add(self.clips.microseconds(entry));
        DeadLetter { id: None, time: Some(time), reason: reason.into(), detail, values }
    }
}

fn undecodable(clip: &Clip, frame: usize) -> Got {
    let seconds = clip.index.as_ref().map_or(0.0, |index| index.microseconds(frame) as f64 / 1e6);
    Got::Letter(
        "frame_undecodable",
        format!("frame {frame} of `{}`, at {seconds:.3} s, is damaged", clip.camera),
    )
}

impl Source for Reader {
    fn read(&mut self, rows: usize, bytes: usize) -> Result<SourceRead, OperatorError> {
        if self.next >= self.clips.order.len() {
            return Ok(SourceRead::End);
        }
        // Frames are read directly into the buffer of the column, which is reused when no record refers to it any more.
        let mut contents = self.pool.take(self.largest.min(bytes.saturating_mul(2)));
        let (mut cameras, mut frames, mut times) = (StringBuilder::new(), Vec::new(), Vec::new());
        let mut ends = OffsetBufferBuilder::<i32>::new(rows.min(self.clips.order.len() - self.next));
        let (mut dead_letters, mut offsets) = (Vec::new(), Vec::new());
        self.sizes.clear();
        let start = self.next;
        while let Some(&entry) = self.clips.order.get(self.next)
            && self.next - start < rows.max(1)
            && (self.next == start || contents.len() < bytes.min(READ_LIMIT))
        {
            let (before, clip) = (contents.len(), entry.clip as usize);
            let got = match entry.frame {
                Some(frame) => self.frame(clip, frame as usize, &mut contents)?,
                None => match &self.clips.clips[clip].letter {
                    Some((reason, detail)) => Got::Letter(reason, detail.clone()),
                    None => Got::Letter("video_incomplete", String::new()),
                },
            };
            let camera = &self.clips.clips[clip].camera;
            let length = contents.len() - before;
            self.sizes.push(u32::try_from(length + camera.len() + size_of::<i64>()).unwrap_or(u32::MAX));
            match (got, entry.frame) {
                (Got::Picture, Some(frame)) => {
                    cameras.append_value(camera);
                    frames.push(i64::from(frame));
                    times.push(self.start.saturating_add(self.clips.microseconds(entry)));
                    ends.push_length(length);
                    offsets.push((self.next - start) as u64);
                }
                (Got::Letter(reason, detail), _) => dead_letters.push(self.letter(entry, reason, detail)),
                (Got::Picture, None) => {}
            }
            self.next += 1;
        }
        self.largest = self.largest.max(contents.len());
        let contents = BinaryArray::new(ends.finish(), self.pool.share(contents), None);
        let columns: Vec<ArrayRef> =
            vec![Arc::new(cameras.finish()), Arc::new(Int64Array::from(frames)), Arc::new(contents)];
        let payload = RecordBatch::try_new(Arc::clone(&self.schema), columns)
            .map_err(|error| OperatorError::new(format!("video: {error}")))?;
        let offsets = (!dead_letters.is_empty()).then_some(offsets);
        Ok(SourceRead::Rows { payload, times: Some(times), dead_letters, offsets })
    }

    fn position(&self) -> SourcePosition {
        SourcePosition(format!("{}:{}", self.next, self.clips.name(self.next)))
    }

    fn seek(&mut self, position: &SourcePosition) -> Result<(), OperatorError> {
        let parsed =
            position.0.split_once(':').and_then(|(next, name)| Some((next.parse::<usize>().ok()?, name)));
        let Some((next, name)) = parsed else {
            return Err(OperatorError::new(format!("`{}` is not a position in a video", position.0)));
        };
        if next > self.clips.order.len() || self.clips.name(next) != name {
            return Err(OperatorError::new(format!(
                "the videos have changed since the checkpoint (frame `{name}` is no longer number {next}): start the run \
                 from the beginning"
            )));
        }
        self.next = next;
        Ok(())
    }

    fn sizes(&self) -> Option<&[u32]> {
        Some(&self.sizes)
    }

    fn len_hint(&self) -> Option<u64> {
        Some(self.clips.order.len() as u64)
    }
}
