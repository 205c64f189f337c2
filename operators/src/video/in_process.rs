//! The pixels of frames, decoded in this process by ffmpeg's libraries.
//!
//! A thread for each file decodes ahead, so that decoding and conversion take turns on no processor; where there is one
//! processor alone, frames are decoded when they are wanted. What is ahead are references to the decoder's own planes:
//! they become pixels when a frame is read, once.
use super::clock::Clock;
use super::decoder::{Format, PATIENCE};
use super::index::Index;
use crate::raw_image::RawImage;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidemill_avcodec::{
    Decoder, Error, File, Frame, Interpolation, Library, Matrix as FrameMatrix, PixelFormat, Scaler, Settings,
};
use tidemill_media::planes::{Conversion, Matrix, Rows};

/// Most frames decoded ahead.
const FRAMES_AHEAD: usize = 3;
/// Longest time that a decoded frame is meant to wait, by the pace at which frames were taken before.
const TIME_AHEAD: Duration = Duration::from_millis(20);
/// Weight of the last interval between two frames in the pace, one in this many.
const PACE: u32 = 8;
/// Seconds by which ffmpeg's program goes back where packets may be stored later than they are shown.
const BACK: f64 = 3.0 / 23.0;

/// Why a video cannot be decoded in this process.
#[derive(Debug, thiserror::Error)]
pub enum Unsuited {
    /// Its frames are to be turned or mirrored before they are shown.
    #[error("its frames are to be turned by {rotation} degrees{}, which the library does not do", if *.is_mirrored { " and mirrored" } else { "" })]
    Turned {
        /// Degrees clockwise.
        rotation: u32,
        /// Mirrored too, or only.
        is_mirrored: bool,
    },
    /// The libraries have no decoder, or not enough memory.
    #[error("{0}")]
    Library(#[from] Error),
    /// There is no thread to decode with.
    #[error("no thread to decode with: {0}")]
    Thread(std::io::Error),
}

/// A video that is being decoded in this process.
pub struct InProcess {
    frames: Frames,
    /// The frame whose time was returned.
    pending: Option<Frame>,
    /// Times of the frames to come, if their order identifies them.
    counted: Option<std::vec::IntoIter<i64>>,
    planes: Option<(Matrix, Conversion)>,
    scaler: Scaler,
    side_by_side: Vec<u8>,
}

/// Source of frames.
enum Frames {
    /// The file could not be opened.
    None(String),
    Here(Box<Stream>),
    Ahead(Ahead),
}

impl InProcess {
    /// See [`super::decoder::Decoder::start_in_process`].
    pub(super) fn start(
        library: &Arc<Library>,
        path: &Path,
        index: &Index,
        first: usize,
        format: &Format,
        max_pixels: u64,
    ) -> Result<Self, Unsuited> {
        let scaler = Scaler::new(library, format.size, max_pixels, Interpolation::Means)?;
        let frames = match Stream::open(library, path, index, first, format, max_pixels) {
            // Another processor decodes ahead.
            Ok(stream) if std::thread::available_parallelism().is_ok_and(|count| count.get() > 1) => {
                Frames::Ahead(Ahead::start(stream)?)
            }
            Ok(stream) => Frames::Here(Box::new(stream)),
            Err(Unsuited::Library(
                error @ (Error::Open { .. } | Error::Damaged(_) | Error::Refused { .. }),
            )) => Frames::None(error.to_string()),
            Err(error) => return Err(error),
        };
        let times = || index.frames.iter().map(|frame| frame.time).collect::<Vec<_>>().into_iter();
        Ok(Self {
            frames,
            pending: None,
            counted: (index.clock == Clock::Count).then(times),
            planes: index
                .matrix
                .filter(|_| format.planes && format.size.is_none())
                .map(|matrix| (matrix, Conversion::new(matrix))),
            scaler,
            side_by_side: Vec::new(),
        })
    }

    /// See [`super::decoder::Decoder::next_time`].
    pub(super) fn next_time(&mut self) -> Option<i64> {
        let (time, frame) = match &mut self.frames {
            Frames::None(_) => None,
            Frames::Here(stream) => stream.next(),
            Frames::Ahead(ahead) => ahead.next(),
        }?;
        self.pending = Some(frame);
        self.counted.as_mut().map_or(Some(time), Iterator::next)
    }

    /// See [`super::decoder::Decoder::read`].
    pub(super) fn read(&mut self, bytes: &mut Vec<u8>, most: usize) -> std::io::Result<()> {
        let frame = self.pending.take().ok_or_else(|| std::io::Error::from(ErrorKind::UnexpectedEof))?;
        let (width, height) = frame.size();
        let (to_width, to_height) = self.scaler.size().unwrap_or((width, height));
        let length = (to_width as usize).saturating_mul(to_height as usize).saturating_mul(3);
        if length > most {
            let text = format!("a frame of {length} bytes");
            return Err(std::io::Error::new(ErrorKind::FileTooLarge, text));
        }
        if let Some((matrix, conversion)) = &self.planes
            && is_stored_as(*matrix, &frame)
        {
            let planes = frame.planes();
            let rows: Vec<Rows<'_>> = planes
                .iter()
                .filter_map(|plane| {
                    Some(Rows { bytes: plane.bytes()?, stride: usize::try_from(plane.stride()).ok()? })
                })
                .collect();
            if let &[luma, first, second] = rows.as_slice() {
                conversion.append_rows(width, height, [luma, first, second], bytes);
                return Ok(());
            }
            // Rows are stored from the last to the first.
            self.side_by_side.clear();
            if frame.append_side_by_side(&mut self.side_by_side) {
                conversion.append(width, height, &self.side_by_side, bytes);
                return Ok(());
            }
        }
        let start = bytes.len();
        RawImage::write_header(to_width, to_height, bytes);
        self.scaler.append(&frame, bytes).map(|_| ()).map_err(|error| {
            bytes.truncate(start);
            std::io::Error::new(ErrorKind::InvalidData, error)
        })
    }

    /// See [`super::decoder::Decoder::skip`].
    pub(super) fn skip(&mut self) {
        self.pending = None;
    }

    /// See [`super::decoder::Decoder::finish`].
    pub(super) fn finish(mut self) -> (bool, Option<String>) {
        while self.next_time().is_some() {}
        match &self.frames {
            Frames::None(words) => (false, Some(words.clone())),
            Frames::Here(_) => (true, None),
            Frames::Ahead(ahead) if ahead.hangs => {
                (false, Some(format!("the decoder has done nothing for {PATIENCE:?}")))
            }
            Frames::Ahead(_) => (true, None),
        }
    }
}

/// Whether a frame has the planes that are converted here, with these colours.
fn is_stored_as(matrix: Matrix, frame: &Frame) -> bool {
    let own = match frame.matrix() {
        FrameMatrix::Bt709 => Matrix::Bt709,
        FrameMatrix::Unspecified | FrameMatrix::Bt470bg | FrameMatrix::Smpte170m => Matrix::Bt601,
        _ => return false,
    };
    own == matrix
        && frame.format() == PixelFormat::YUV420P
        && !frame.has_full_range()
        && Matrix::takes(frame.size())
}

/// A file and the decoder of its first video.
struct Stream {
    file: File,
    decoder: Decoder,
    /// Time of the first frame, distance between frames, and how many of these lie between those to return.
    every: Option<(i64, i64, i64)>,
    /// Time of the last frame.
    last: Option<i64>,
    /// Time from a frame to the next by the rate that the container states, at least 1.
    usual: i64,
    is_drained: bool,
}

impl Stream {
    fn open(
        library: &Arc<Library>,
        path: &Path,
        index: &Index,
        first: usize,
        format: &Format,
        max_pixels: u64,
    ) -> Result<Self, Unsuited> {
        let settings =
            Settings { threads: format.threads.max(1), low_delay: false, strict: true, max_pixels };
        type Opened = (File, usize, (u32, u32), Option<(u32, u32)>);
        let open = || -> Result<Opened, Unsuited> {
            let mut file = File::open(library, path, &settings)?;
            let video = file.video().ok_or(Error::NoStream(0))?;
            let (number, time_base, rate) = (video.number, video.time_base, video.rate);
            if video.rotation != 0 || video.is_mirrored {
                let (rotation, is_mirrored) = (video.rotation, video.is_mirrored);
                return Err(Unsuited::Turned { rotation, is_mirrored });
            }
            file.select(number)?;
            Ok((file, number, time_base, rate))
        };
        let (mut file, mut number, time_base, rate) = open()?;
        let first = index.entry(first);
        if first > 0 {
            let unit = f64::from(time_base.0) / f64::from(time_base.1.max(1));
            let time = ((index.begin(first) - BACK) / unit).floor() as i64;
            // Without such a place it starts at the beginning, and earlier frames are skipped.
            if file.seek(number, time).is_err() {
                (file, number, ..) = open()?;
            }
        }
        let decoder = Decoder::of_stream(&file, number, &settings)?;
        let start = index.frames.first().map_or(0, |first| first.time);
        let step = index.step().filter(|_| format.every > 1 && index.clock != Clock::Count);
        let every = step.map(|step| (start, step, i64::from(format.every)));
        let units = |(frames, seconds): (u32, u32)| {
            let unit = f64::from(time_base.0) / f64::from(time_base.1.max(1));
            (f64::from(seconds) / f64::from(frames.max(1)) / unit).round() as i64
        };
        let usual = rate.map_or(1, units).max(1);
        Ok(Self { file, decoder, every, last: None, usual, is_drained: false })
    }

    /// Decodes the next frame. Damaged ones are left out.
    fn next(&mut self) -> Option<(i64, Frame)> {
        loop {
            match self.step() {
                Step::Frame(time, frame) => return Some((time, frame)),
                Step::Worked => {}
                Step::End => return None,
            }
        }
    }

    /// Decodes a packet, or takes a frame.
    fn step(&mut self) -> Step {
        match self.decoder.receive() {
            Ok(Some(frame)) => {
                let time = self.time(&frame);
                match self.is_wanted(time) {
                    true => Step::Frame(time, frame),
                    false => Step::Worked,
                }
            }
            // A damaged frame.
            Err(_) => Step::Worked,
            Ok(None) if self.is_drained || self.decoder.has_ended() => Step::End,
            Ok(None) => {
                match self.file.read() {
                    // A damaged packet is a frame that does not come.
                    Ok(Some(packet)) => {
                        let _ = self.decoder.send_packet(&packet);
                    }
                    // Nothing follows damage that the container cannot skip.
                    Ok(None) | Err(_) => {
                        self.is_drained = true;
                        let _ = self.decoder.drain();
                    }
                }
                Step::Worked
            }
        }
    }

    /// The time to show a frame, by the rule of ffmpeg's program: where nothing states it, it follows the last frame at the usual
    /// distance.
    fn time(&mut self, frame: &Frame) -> i64 {
        let next = || self.last.map_or(0, |last| last.saturating_add(self.usual));
        let time = frame.guessed_pts().unwrap_or_else(next);
        self.last = Some(time);
        time
    }

    /// Whether a frame is not among those that `every` leaves out; the rule is that of the child's filter.
    fn is_wanted(&self, time: i64) -> bool {
        let Some((first, step, every)) = self.every else { return true };
        let number = (time.saturating_sub(first) as f64 / step as f64).round() as i64;
        number.rem_euclid(every) == 0
    }
}

enum Step {
    Frame(i64, Frame),
    Worked,
    End,
}

/// Frames that a thread decodes ahead. Dropping it ends the thread.
struct Ahead {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
    /// When the last frame was taken.
    taken: Option<Instant>,
    /// Mean time between two frames.
    pace: Duration,
    patience: Duration,
    hangs: bool,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    frames: VecDeque<(i64, Frame)>,
    /// Frames that may wait.
    limit: usize,
    /// The thread has ended.
    has_ended: bool,
    /// Nobody wants more.
    is_left: bool,
    /// Packets decoded, to tell a decoder that hangs.
    worked: u64,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that the thread has ended, also where it panicked.
struct Ending(Arc<Queue>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.lock().has_ended = true;
        self.0.changed.notify_all();
    }
}

impl Ahead {
    fn start(mut stream: Stream) -> Result<Self, Unsuited> {
        let queue = Arc::new(Queue::default());
        queue.lock().limit = FRAMES_AHEAD;
        let ending = Ending(Arc::clone(&queue));
        let decode = move || {
            let queue = &ending.0;
            loop {
                let step = stream.step();
                let mut state = queue.lock();
                state.worked += 1;
                match step {
                    Step::End => return,
                    Step::Worked => {}
                    Step::Frame(time, frame) => {
                        state.frames.push_back((time, frame));
                        if state.frames.len() == 1 {
                            queue.changed.notify_all();
                        }
                        while state.frames.len() >= state.limit && !state.is_left {
                            state = queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                        }
                    }
                }
                if state.is_left {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("video-decoder".into()).spawn(decode);
        let thread = Some(thread.map_err(Unsuited::Thread)?);
        Ok(Self { queue, thread, taken: None, pace: Duration::ZERO, patience: PATIENCE, hangs: false })
    }

    fn next(&mut self) -> Option<(i64, Frame)> {
        if self.hangs {
            return None;
        }
        let mut state = self.queue.lock();
        while state.frames.is_empty() && !state.has_ended {
            let before = state.worked;
            let (woken, waited) =
                self.queue.changed.wait_timeout(state, self.patience).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            if waited.timed_out() && state.worked == before && state.frames.is_empty() && !state.has_ended {
                self.hangs = true;
                return None;
            }
        }
        let next = state.frames.pop_front()?;
        #[expect(
            clippy::disallowed_methods,
            reason = "bounds how long a frame waits; no result depends on it"
        )]
        let now = Instant::now();
        if let Some(taken) = self.taken.replace(now) {
            self.pace = (self.pace * (PACE - 1) + (now - taken)) / PACE;
        }
        state.limit = limit(self.pace);
        // The thread waits for room alone, and there is some.
        if state.frames.len() < state.limit {
            self.queue.changed.notify_all();
        }
        Some(next)
    }
}

/// Frames that may wait: as many as are taken within [`TIME_AHEAD`], at least one.
fn limit(pace: Duration) -> usize {
    let within = TIME_AHEAD.as_nanos() / pace.as_nanos().max(1);
    usize::try_from(within).unwrap_or(FRAMES_AHEAD).clamp(1, FRAMES_AHEAD)
}

impl Drop for Ahead {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.is_left = true;
        state.frames.clear();
        self.queue.changed.notify_all();
        // It ends after the packet that it decodes.
        while !state.has_ended && !self.hangs {
            let before = state.worked;
            let (woken, waited) =
                self.queue.changed.wait_timeout(state, self.patience).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            self.hangs = waited.timed_out() && state.worked == before && !state.has_ended;
        }
        drop(state);
        match self.thread.take() {
            Some(thread) if !self.hangs => {
                // It panicked only if a frame was lost with it, which its end has told.
                let _ = thread.join();
            }
            // Nothing can end a thread from outside.
            Some(_) => tracing::error!(
                "a decoder hangs in ffmpeg's library; its thread stays until this process ends"
            ),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ahead_is_bounded_in_frames_and_time() {
        assert_eq!(limit(Duration::ZERO), FRAMES_AHEAD, "nothing was taken yet");
        assert_eq!(limit(Duration::from_millis(1)), FRAMES_AHEAD);
        assert_eq!(limit(Duration::from_millis(9)), 2);
        assert_eq!(limit(Duration::from_millis(40)), 1, "one is decoded while another is used");
    }
}
