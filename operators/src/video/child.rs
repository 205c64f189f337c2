//! The pixels of frames, from any frame on, decoded by a child process.
//!
//! ffmpeg writes pictures to its standard output, and one line with the time of each to its standard error, which has
//! nothing else; a thread reads those. A frame that could not be decoded is noticed because its time is missing.
use super::clock::Clock;
use super::decoder::{Format, PATIENCE};
use super::index::{Index, command, complaint, named};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{self, ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;
use tidemill_machine::Process;
use tidemill_media::planes::{Conversion, Matrix};

/// Most times of frames that wait; the full pipe stops ffmpeg long before.
const TIMES: usize = 1024;
/// Capacity of the pipe of pictures, if the system allows it. A pipe of 64 KiB, the default, is filled and emptied seven
/// times for a picture of 480 x 288 pixels, and each time one of both processes has to wake up.
#[cfg(target_os = "linux")]
const PIPE: usize = 1 << 20;
/// Longest header of a picture.
const HEADER: usize = 256;
/// Complaints kept.
const COMPLAINTS: usize = 8;
/// Filter that marks frames, so that another one prints their times.
pub(super) const MARK: &str = "metadata=mode=add:key=tidemill:value=1";

/// A video that is being decoded. Dropping it ends the child.
pub struct Child {
    child: process::Child,
    pictures: ChildStdout,
    heard: Receiver<Message>,
    form: Form,
    complaints: Vec<String>,
    file: PathBuf,
    patience: Duration,
    /// CPU time of the child at the last wait without output.
    worked: Option<Duration>,
    /// Times of the frames to come, if their order identifies them.
    counted: Option<std::vec::IntoIter<i64>>,
    /// The last skipped picture.
    skipped: Vec<u8>,
}

/// Form of the pictures in the pipe.
enum Form {
    Jpeg,
    Pixels,
    /// Planes of this matrix, and the last planes read.
    Planes(Matrix, Conversion, Vec<u8>),
}

enum Message {
    /// The next picture is a frame of this time.
    Frame(i64),
    Complaint(String),
}

impl Child {
    /// Decodes from a frame on. Frames come in display order. Some may precede the requested one if the container gives no
    /// better position, and all frames come if those to skip have no even distance.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(
        program: &Path,
        file: &Path,
        index: &Index,
        first: usize,
        format: &Format,
    ) -> std::io::Result<Self> {
        let mut command = command(program);
        // Standard error carries the times of frames only: a complaint inside a line would cost that frame its time, and
        // all that follow theirs.
        command.args(["-loglevel", "quiet"]);
        let first = index.entry(first);
        if first > 0 {
            // The reader skips earlier frames. If the times of a file start late, ffmpeg would skip by that much more.
            command.args(["-noaccurate_seek", "-seek_timestamp", "1"]);
            command.args(["-ss", &format!("{:.6}", index.begin(first))]);
        }
        // A damaged frame is left out and not concealed.
        command.args(["-err_detect", "explode", "-threads", &format.threads.max(1).to_string()]);
        command.args(["-max_error_rate", "1"]);
        command.arg("-i").arg(named(file)).args(["-map", "0:v:0", "-fps_mode", "passthrough"]);
        let form = match index.matrix {
            _ if format.jpeg => Form::Jpeg,
            Some(matrix) if format.planes && format.size.is_none() => {
                Form::Planes(matrix, Conversion::new(matrix), Vec::new())
            }
            _ => Form::Pixels,
        };
        command.args(["-filter_threads", "1", "-vf", &filters(index, format, &form)]);
        match form {
            Form::Jpeg => command.args(["-f", "mpjpeg", "-c:v", "mjpeg", "-q:v", "3", "-threads", "1"]),
            Form::Pixels => command.args(["-f", "image2pipe", "-c:v", "ppm", "-threads", "1"]),
            Form::Planes(..) => command.args(["-f", "image2pipe", "-c:v", "pgmyuv", "-threads", "1"]),
        };
        let mut child = command
            .arg("pipe:1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let missing = || std::io::Error::from(ErrorKind::BrokenPipe);
        let (pictures, words) =
            (child.stdout.take().ok_or_else(missing)?, child.stderr.take().ok_or_else(missing)?);
        #[cfg(target_os = "linux")]
        if rustix::pipe::fcntl_getpipe_size(&pictures).is_ok_and(|size| size < PIPE) {
            // The user may have reached the limit on large pipes; a small one works as well.
            let _ = rustix::pipe::fcntl_setpipe_size(&pictures, PIPE);
        }
        let (tell, heard) = sync_channel(TIMES);
        let listen = move || {
            for line in BufReader::new(words).split(b'\n') {
                let Ok(line) = line else { return };
                let line = String::from_utf8_lossy(&line);
                let message = match time_in(&line) {
                    Some(time) => Message::Frame(time),
                    None if line.trim().is_empty() || line.starts_with("tidemill=") => continue,
                    None => Message::Complaint(line.into_owned()),
                };
                // The decoder is gone, and the child will be soon.
                if tell.send(message).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("video-times".into()).spawn(listen)?;
        let (complaints, file) = (Vec::new(), file.to_owned());
        let times = || index.frames.iter().map(|frame| frame.time).collect::<Vec<_>>().into_iter();
        let counted = (index.clock == Clock::Count).then(times);
        let (skipped, worked) = (Vec::new(), None);
        Ok(Self {
            child,
            pictures,
            heard,
            form,
            complaints,
            file,
            patience: PATIENCE,
            worked,
            counted,
            skipped,
        })
    }

    /// Time of the next picture, in units of the index; `None` at the end. The picture must then be taken by
    /// [`Child::read`].
    pub fn next_time(&mut self) -> Option<i64> {
        loop {
            match self.heard.recv_timeout(self.patience) {
                Ok(Message::Frame(time)) => {
                    return self.counted.as_mut().map_or(Some(time), Iterator::next);
                }
                Ok(Message::Complaint(words)) => self.complain(words),
                Err(RecvTimeoutError::Timeout) if goes_on(&self.child, &mut self.worked) => {}
                Err(RecvTimeoutError::Timeout) => {
                    // The pending lines are read, then the end.
                    let _ = self.child.kill();
                    self.complain(format!("ffmpeg sent nothing for {:?}", self.patience));
                }
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    fn complain(&mut self, words: String) {
        if self.complaints.len() < COMPLAINTS {
            self.complaints.push(words);
        }
    }

    /// Appends the next picture: JPEG, or a picture as in [`crate::raw_image`], its pixels straight from the pipe unless
    /// they are converted from planes. At most `most` bytes.
    ///
    /// # Errors
    /// The child ended, hung or wrote something else; then `bytes` is unchanged.
    pub fn read(&mut self, bytes: &mut Vec<u8>, most: usize) -> std::io::Result<()> {
        let start = bytes.len();
        let pipe = &mut Awaited {
            pipe: &mut self.pictures,
            child: &mut self.child,
            patience: self.patience,
            worked: &mut self.worked,
        };
        let result = match &mut self.form {
            Form::Jpeg => read_jpeg(pipe, bytes, most),
            Form::Pixels => read_pixels(pipe, bytes, most),
            Form::Planes(_, conversion, planes) => read_planes(pipe, conversion, planes, bytes, most),
        };
        if result.is_err() {
            bytes.truncate(start);
        }
        result
    }

    /// Takes the next picture out of the pipe, as [`Child::read`] does.
    ///
    /// # Errors
    /// As [`Child::read`].
    pub fn skip(&mut self, most: usize) -> std::io::Result<()> {
        let mut skipped = std::mem::take(&mut self.skipped);
        skipped.clear();
        let result = self.read(&mut skipped, most);
        self.skipped = skipped;
        result
    }

    /// Waits for the end. Returns whether the child ended by itself, and ffmpeg's complaints.
    pub fn finish(mut self) -> (bool, Option<String>) {
        while self.next_time().is_some() {}
        let is_well = self.child.wait().is_ok_and(|status| status.success());
        (is_well, complaint(&self.complaints.join("\n"), &self.file))
    }

    /// Process id of the child, for tests that end it.
    pub fn child(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended by itself and must still be reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The pipe of a child that is killed if it stays silent.
struct Awaited<'a> {
    pipe: &'a mut ChildStdout,
    child: &'a mut process::Child,
    patience: Duration,
    worked: &'a mut Option<Duration>,
}

impl Read for Awaited<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let timeout = Timespec::try_from(self.patience).ok();
        loop {
            match poll(&mut [PollFd::new(&*self.pipe, PollFlags::IN)], timeout.as_ref()) {
                Ok(0) if goes_on(self.child, self.worked) => {}
                Ok(0) => {
                    let _ = self.child.kill();
                    return Err(std::io::Error::new(ErrorKind::TimedOut, "ffmpeg sent nothing"));
                }
                Ok(_) => return self.pipe.read(buffer),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Whether a child has used CPU time since the last call: if frames are skipped or large, no output comes for a long time.
fn goes_on(child: &process::Child, worked: &mut Option<Duration>) -> bool {
    let now = Process::of(child.id()).time();
    let before = std::mem::replace(worked, now);
    now.is_some() && now != before
}

/// Appends a Netpbm picture with its header. Returns its width, its rows, and where its samples start; refuses a picture of
/// more than `most` bytes of pixels.
fn read_netpbm(
    pipe: &mut impl Read,
    bytes: &mut Vec<u8>,
    format: &[u8; 2],
    most: usize,
) -> std::io::Result<(u32, u32, usize)> {
    let start = bytes.len();
    // The shortest header is that of one pixel; the rest of a longer one is read byte by byte.
    read_exactly(pipe, bytes, 11)?;
    let (width, height, header) = loop {
        match crate::raw_image::read_header(&bytes[start..], format) {
            Ok(found) => break found,
            Err(_) if bytes.len() - start < HEADER => read_exactly(pipe, bytes, 1)?,
            Err(error) => return Err(std::io::Error::new(ErrorKind::InvalidData, error)),
        }
    };
    let samples = width as usize * height as usize;
    // Planes take half the bytes of pixels.
    let (length, pixels) = match format {
        b"P6" => (samples.saturating_mul(3), samples.saturating_mul(3)),
        _ => (samples, samples.saturating_mul(2)),
    };
    if pixels > most {
        return Err(std::io::Error::new(ErrorKind::FileTooLarge, format!("a frame of {pixels} bytes")));
    }
    // The shortest header was followed by some of them.
    let here = bytes.len() - start;
    read_exactly(pipe, bytes, header + length - here)?;
    Ok((width, height, header))
}

/// Appends a picture converted from planes, which arrive as one picture of 1.5 times the height.
///
/// # Errors
/// See [`Child::read`].
pub fn read_planes(
    pipe: &mut impl Read,
    conversion: &Conversion,
    planes: &mut Vec<u8>,
    bytes: &mut Vec<u8>,
    most: usize,
) -> std::io::Result<()> {
    planes.clear();
    let (width, rows, header) = read_netpbm(pipe, planes, b"P5", most)?;
    let size = (width, rows / 3 * 2);
    if !rows.is_multiple_of(3) || !Matrix::takes(size) {
        let text = format!("planes of {width} x {rows}");
        return Err(std::io::Error::new(ErrorKind::InvalidData, text));
    }
    conversion.append(size.0, size.1, &planes[header..], bytes);
    Ok(())
}

/// Appends an uncompressed picture of at most `most` bytes of pixels.
///
/// # Errors
/// See [`Child::read`].
pub fn read_pixels(pipe: &mut impl Read, bytes: &mut Vec<u8>, most: usize) -> std::io::Result<()> {
    read_netpbm(pipe, bytes, b"P6", most).map(|_| ())
}

/// Appends a JPEG picture of at most `most` bytes.
///
/// # Errors
/// See [`Child::read`].
pub fn read_jpeg(pipe: &mut impl Read, bytes: &mut Vec<u8>, most: usize) -> std::io::Result<()> {
    let mut header = Vec::new();
    while !header.ends_with(b"\r\n\r\n") {
        if header.len() > HEADER {
            return Err(std::io::Error::from(ErrorKind::InvalidData));
        }
        read_exactly(pipe, &mut header, 1)?;
    }
    let text = String::from_utf8_lossy(&header).to_ascii_lowercase();
    let length =
        text.split_once("content-length:").and_then(|(_, rest)| rest.lines().next()?.trim().parse().ok());
    match length {
        Some(length) if length <= most => read_exactly(pipe, bytes, length)?,
        Some(length) => {
            return Err(std::io::Error::new(ErrorKind::FileTooLarge, format!("a frame of {length} bytes")));
        }
        None => return Err(std::io::Error::from(ErrorKind::InvalidData)),
    }
    let mut end = Vec::new();
    read_exactly(pipe, &mut end, 2)
}

fn read_exactly(pipe: &mut impl Read, bytes: &mut Vec<u8>, length: usize) -> std::io::Result<()> {
    bytes.reserve(length);
    match pipe.take(length as u64).read_to_end(bytes)? {
        read if read == length => Ok(()),
        _ => Err(std::io::Error::from(ErrorKind::UnexpectedEof)),
    }
}

/// Filters that skip frames, scale, convert to pixels or to the input of JPEG, and print the time of each frame.
fn filters(index: &Index, format: &Format, form: &Form) -> String {
    let mut all = Vec::new();
    let first = index.frames.first().map_or(0, |first| first.time);
    if let (true, Some(step)) = (format.every > 1 && index.clock != Clock::Count, index.step()) {
        all.push(format!("select=not(mod(round((pts-({first}))/{step})\\,{}))", format.every));
    }
    // Gives identical pixels on every processor, and no dark white (253 without `full_chroma_int`). If a stream changes its
    // storage format, planes keep the first one.
    let mut flags = "flags=bilinear+accurate_rnd+full_chroma_int+bitexact".to_owned();
    if let Form::Planes(matrix, ..) = form {
        flags += &format!(":out_range=tv:out_color_matrix={}", matrix.name());
    }
    all.push(match format.size {
        Some((width, height)) => format!("scale={width}:{height}:{flags}"),
        None => format!("scale={flags}"),
    });
    let stored = match form {
        Form::Jpeg => "format=yuvj420p",
        Form::Pixels => "format=rgb24",
        Form::Planes(..) => "format=yuv420p",
    };
    all.push(stored.to_owned());
    all.push(MARK.to_owned());
    all.push("metadata=mode=print:key=tidemill:file='pipe\\:2':direct=1".to_owned());
    all.join(",")
}

/// Parses the time in `frame:12   pts:12288   pts_time:1.2`.
pub(super) fn time_in(line: &str) -> Option<i64> {
    let rest = line.strip_prefix("frame:")?;
    let (_, rest) = rest.split_once("pts:")?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::video::program;

    #[test]
    fn times_are_found() {
        assert_eq!(time_in("frame:1    pts:1024    pts_time:0.1"), Some(1024));
        assert_eq!(time_in("frame:1    pts:-5    pts_time:-0.1"), Some(-5));
        assert_eq!(time_in("[h264 @ 0x1] frame: pts"), None);
    }

    #[test]
    fn a_child_that_hangs_is_ended() {
        let program = program::find(Path::new(".")).expect(program::HELP);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("grey.mp4");
        let made = std::process::Command::new(&program)
            .args(["-nostdin", "-loglevel", "error", "-f", "lavfi", "-i", "color=gray:size=640x480:rate=10"])
            .args(["-frames:v", "500", "-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p"])
            .arg(&file)
            .status();
        assert!(made.unwrap().success());
        let index = Index::read(&program, &file).unwrap();
        let format = Format { size: None, jpeg: false, every: 1, threads: 1, planes: true };
        let mut decoder = Child::start(&program, &file, &index, 0, &format).unwrap();
        let (mut picture, mut frames) = (Vec::new(), 0);
        assert!(decoder.next_time().is_some());
        decoder.read(&mut picture, usize::MAX).unwrap();
        let child = rustix::process::Pid::from_raw(decoder.child() as i32).unwrap();
        rustix::process::kill_process(child, rustix::process::Signal::STOP).unwrap();
        decoder.patience = Duration::from_millis(100);
        while decoder.next_time().is_some() && decoder.read(&mut picture, usize::MAX).is_ok() {
            frames += 1;
        }
        assert!(frames < 499, "some were in the pipe when it was stopped: {frames}");
        let (is_well, _) = decoder.finish();
        assert!(!is_well, "it was ended, so it is started again");
    }

    #[test]
    fn planes_are_read_as_a_picture() {
        let planes = |rows: usize| [&b"P5\n8 12\n255\n"[..], &vec![128; 8 * rows]].concat();
        let conversion = Conversion::new(Matrix::Bt601);
        let (mut last, mut bytes) = (Vec::new(), vec![7]);
        let mut read = |pipe: &[u8], most| {
            let mut bytes = vec![7];
            read_planes(&mut &pipe[..], &conversion, &mut last, &mut bytes, most).map(|()| bytes)
        };
        bytes.extend(b"P6\n8 8\n255\n");
        bytes.extend([130; 3 * 8 * 8]);
        assert_eq!(read(&planes(12), 192).unwrap(), bytes);
        assert_eq!(read(&planes(12), 191).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(read(&planes(11), 192).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(
            read(b"P5\n2 13\n255\n01234567890123456789012345", 99).unwrap_err().kind(),
            ErrorKind::InvalidData
        );
        assert_eq!(read(&planes(12)[1..], 192).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(read(&[b'5'; 2 * HEADER], 192).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
