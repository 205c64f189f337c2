//! A decoder: a child process of ffmpeg that reads coded frames from its standard input and writes pictures to its standard
//! output, as those of [`tidemill_operators::video`].
//!
//! It looks at nothing ahead and keeps no frame that it need not: after each frame comes a delimiter, because it would
//! otherwise wait for the next frame to know where this one ends. It ends when its standard input is closed, as after a
//! process was killed.
use crate::decoder::{Codec, Coded, DecodeError, Decoder, Decoders, PictureForm, Pictures, Times, Unit};
use crate::event_time::monotonic;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidemill_media::planes::{Conversion, Matrix};
use tidemill_operators::record::EventTime;
use tidemill_operators::video::decoder::{read_jpeg, read_pixels, read_planes};

/// Longest time for which it takes no data, or gives no picture of many frames.
const PATIENCE: Duration = Duration::from_secs(5);
/// Frames without a picture that are many: more than any order of frames keeps.
const MANY: usize = 48;
/// Boundary of JPEG pictures.
const BOUNDARY: &str = "frame";

/// Makes decoders that are children; see the module.
#[derive(Debug, Clone)]
pub struct Ffmpeg {
    /// The program.
    pub program: PathBuf,
}

impl Decoders for Ffmpeg {
    fn start(
        &self,
        coded: &Coded,
        form: &PictureForm,
        pictures: Arc<dyn Pictures>,
    ) -> Result<Box<dyn Decoder>, DecodeError> {
        let of_start = |error| DecodeError::Start { program: self.program.display().to_string(), error };
        Ok(Box::new(Process::start(self, coded, form, pictures).map_err(of_start)?))
    }
}

/// How pictures come through the pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piped {
    Jpeg,
    Pixels,
    Planes,
}

impl Piped {
    /// Planes are half as large as pixels, and have an even size. `size`: that of the camera, if it is known.
    pub(crate) fn of(size: Option<(u32, u32)>, form: &PictureForm) -> Self {
        match form.size.or(size) {
            _ if form.jpeg => Self::Jpeg,
            Some(size) if Matrix::takes(size) => Self::Planes,
            _ => Self::Pixels,
        }
    }

    /// The arguments that make such pictures.
    pub(crate) fn arguments(self, form: &PictureForm) -> String {
        let mut flags = "flags=bilinear+accurate_rnd+full_chroma_int+bitexact".to_owned();
        if self == Self::Planes {
            flags += &format!(":out_range=tv:out_color_matrix={}", Matrix::Bt601.name());
        }
        let scale = match form.size {
            Some((width, height)) => format!("scale={width}:{height}:{flags}"),
            None => format!("scale={flags}"),
        };
        let format = match self {
            Self::Jpeg => ",format=yuvj420p -f mpjpeg -c:v mjpeg -q:v 3",
            Self::Pixels => ",format=rgb24 -f image2pipe -c:v ppm",
            Self::Planes => ",format=yuv420p -f image2pipe -c:v pgmyuv",
        };
        format!(
            "-map 0:v:0 -fps_mode passthrough -filter_threads 1 -vf {scale}{format} -threads 1 -flush_packets 1 pipe:1"
        )
    }
}

fn arguments(coded: &Coded, form: &PictureForm) -> Vec<String> {
    let mut all = "-hide_banner -nostdin -nostats -loglevel quiet -protocol_whitelist pipe -fflags nobuffer -flags low_delay \
                   -nofind_stream_info -threads 1 -max_error_rate 1 -f"
        .to_owned();
    all += match coded.codec {
        Codec::H264 => " h264",
        Codec::H265 => " hevc",
        Codec::Jpeg => " mpjpeg",
    };
    all += " -i pipe:0 ";
    all += &Piped::of(coded.size, form).arguments(form);
    all.split_whitespace().map(str::to_owned).collect()
}

struct Process {
    child: Child,
    input: ChildStdin,
    codec: Codec,
    progress: Arc<Mutex<Progress>>,
    reader: Option<JoinHandle<()>>,
}

/// What the thread that reads the pictures has seen.
struct Progress {
    times: Times,
    last: Instant,
    has_ended: bool,
}

impl Process {
    fn start(
        of: &Ffmpeg,
        coded: &Coded,
        form: &PictureForm,
        pictures: Arc<dyn Pictures>,
    ) -> std::io::Result<Self> {
        let mut child = Command::new(&of.program)
            .args(arguments(coded, form))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(ErrorKind::BrokenPipe.into());
        };
        let progress = Progress { times: Times::default(), last: monotonic(), has_ended: false };
        let progress = Arc::new(Mutex::new(progress));
        // From here on dropping it ends the child.
        let mut process = Self { child, input, codec: coded.codec, progress, reader: None };
        // Otherwise a write of much data to a child that hangs would never return.
        rustix::io::ioctl_fionbio(&process.input, true)?;
        let (piped, most) = (Piped::of(coded.size, form), form.most_bytes());
        let progress = Arc::clone(&process.progress);
        let read = move || {
            let next_time = || {
                let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
                progress.last = monotonic();
                progress.times.picture()
            };
            read_all(output, piped, most, next_time, pictures.as_ref());
            progress.lock().unwrap_or_else(PoisonError::into_inner).has_ended = true;
        };
        process.reader = Some(std::thread::Builder::new().name("camera-pictures".into()).spawn(read)?);
        Ok(process)
    }

    fn write(&mut self, mut data: &[u8]) -> Result<(), DecodeError> {
        let timeout = Timespec::try_from(PATIENCE).ok();
        while !data.is_empty() {
            match self.input.write(data) {
                Ok(0) => return Err(DecodeError::Ended),
                Ok(written) => data = &data[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    match poll(&mut [PollFd::new(&self.input, PollFlags::OUT)], timeout.as_ref()) {
                        Ok(0) => return Err(DecodeError::Hung),
                        Ok(_) | Err(rustix::io::Errno::INTR) => {}
                        Err(_) => return Err(DecodeError::Ended),
                    }
                }
                Err(_) => return Err(DecodeError::Ended),
            }
        }
        Ok(())
    }
}

impl Decoder for Process {
    fn send(&mut self, unit: &Unit) -> Result<(), DecodeError> {
        {
            let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
            if progress.has_ended {
                return Err(DecodeError::Ended);
            }
            if progress.times.pending() > MANY && progress.last.elapsed() > PATIENCE {
                return Err(DecodeError::Hung);
            }
            progress.times.sent(unit.time);
        }
        match self.codec {
            Codec::H264 => {
                self.write(&unit.data)?;
                self.write(&[0, 0, 0, 1, 0x09, 0xF0])
            }
            Codec::H265 => {
                self.write(&unit.data)?;
                self.write(&[0, 0, 0, 1, 0x46, 0x01, 0x50])
            }
            Codec::Jpeg => {
                let length = unit.data.len();
                let header =
                    format!("--{BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {length}\r\n\r\n");
                self.write(header.as_bytes())?;
                self.write(&unit.data)?;
                self.write(b"\r\n")
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself and must still be reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// Reads pictures until the child ends or writes something else; `next_time` returns the time of one that begins to come.
pub(crate) fn read_all(
    mut output: ChildStdout,
    piped: Piped,
    most: usize,
    mut next_time: impl FnMut() -> Option<EventTime>,
    pictures: &dyn Pictures,
) {
    let conversion = Conversion::new(Matrix::Bt601);
    let (mut planes, mut unwanted) = (Vec::new(), Vec::new());
    loop {
        // The picture has a time once it comes.
        let mut first = [0];
        if output.read_exact(&mut first).is_err() {
            return;
        }
        let time = next_time();
        let is_wanted = time.is_some_and(|time| pictures.wants(time));
        let pipe = &mut first.as_slice().chain(&mut output);
        let mut bytes = if is_wanted { pictures.buffer() } else { std::mem::take(&mut unwanted) };
        bytes.clear();
        let is_read = match piped {
            Piped::Jpeg => read_jpeg(pipe, &mut bytes, most),
            Piped::Pixels => read_pixels(pipe, &mut bytes, most),
            Piped::Planes => read_planes(pipe, &conversion, &mut planes, &mut bytes, most),
        };
        match time {
            _ if is_read.is_err() => return,
            Some(time) if is_wanted => pictures.picture(time, bytes),
            _ => unwanted = bytes,
        }
    }
}
