//! Files with videos.
#![expect(unsafe_code, reason = "functions of a C library")]
use crate::decoder::limit;
use crate::layout::{
    ATTACHED_PICTURE, AvCodecParameters, AvDictionary, AvFormatContext, AvRational, AvStream, DISCARD_ALL,
    DISCARD_DEFAULT, DISPLAY_MATRIX, END, NO_TIME, VIDEO,
};
use crate::{Codec, Error, Library, Packet, Settings};
use std::ffi::{CStr, CString, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// A stream of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Stream {
    /// Number within the file.
    pub number: usize,
    /// Whether it is a video; the other fields are of little use if not.
    pub is_video: bool,
    /// Whether it is a picture beside the others, such as the cover of an album.
    pub is_cover: bool,
    /// Form in which it is compressed.
    pub codec: Codec,
    /// Width and height in pixels as stored; 0 if unknown.
    pub size: (u32, u32),
    /// Seconds of one unit of times: numerator and denominator.
    pub time_base: (u32, u32),
    /// Time of the first frame, in units of the time base.
    pub start: Option<i64>,
    /// Length, in units of the time base.
    pub duration: Option<i64>,
    /// Number of frames as the container states it.
    pub frames: Option<u64>,
    /// Mean frames per second: numerator and denominator.
    pub rate: Option<(u32, u32)>,
    /// Degrees by which frames are to be turned clockwise before they are shown, 0 to 359.
    pub rotation: u32,
    /// Whether frames are to be mirrored too, or only.
    pub is_mirrored: bool,
    /// Data that the container states once for all packets, as [`crate::Decoder::new`] takes them.
    pub extradata: Vec<u8>,
}

/// A frame as its packet states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Time to show it, in units of the stream's time base.
    pub pts: Option<i64>,
    /// Time to decode it, in units of the stream's time base.
    pub dts: Option<i64>,
    /// Whether it is decoded without others.
    pub is_key: bool,
    /// Whether it is needed to decode others but is not shown.
    pub is_hidden: bool,
}

/// An open file. Only local files are opened, even if the file names other addresses.
#[derive(Debug)]
pub struct File {
    context: *mut AvFormatContext,
    library: Arc<Library>,
    streams: Vec<Stream>,
    /// The stream whose packets are returned, if it is one alone.
    selected: Option<usize>,
}

// SAFETY: a context may be used by one thread after the other.
unsafe impl Send for File {}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: it was opened by this library, and is closed once.
        unsafe { (self.library.formats.close)(&raw mut self.context) };
    }
}

/// Options by name, freed when they are dropped.
struct Options<'a>(*mut AvDictionary, &'a Library);

impl Drop for Options<'_> {
    fn drop(&mut self) {
        // SAFETY: it was allocated by this library or is null, and is freed once.
        unsafe { (self.1.util.free_dictionary)(&raw mut self.0) };
    }
}

impl Options<'_> {
    fn set(&mut self, name: &CStr, value: &CStr) -> Result<(), Error> {
        // SAFETY: name and value end with a zero, and are copied.
        let code = unsafe { (self.1.util.set_entry)(&raw mut self.0, name.as_ptr(), value.as_ptr(), 0) };
        self.1.checked(code, "an option of the file").map(|_| ())
    }
}

impl File {
    /// Opens a file and reads what it says of its streams. Frames above the settings' limit are not decoded to find out more. If
    /// they are strict, packets end at damage that the container could skip.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open(library: &Arc<Library>, path: &Path, settings: &Settings) -> Result<Self, Error> {
        let failed = |reason: String| Error::Open { path: path.to_owned(), reason };
        // Opening a pipe would wait for its writer.
        if std::fs::metadata(path).is_ok_and(|of| !of.is_file()) {
            return Err(failed("it is no regular file".to_owned()));
        }
        // So that ffmpeg takes it for no address.
        let name = [b"file:", path.as_os_str().as_bytes()].concat();
        let name = CString::new(name).map_err(|_| failed("its name has a zero".to_owned()))?;
        let mut options = Options(null_mut(), library);
        options.set(c"protocol_whitelist", c"file,crypto,data")?;
        if settings.strict {
            options.set(c"err_detect", c"explode")?;
        }
        let mut context = null_mut();
        // SAFETY: the name ends with a zero; without a context the function allocates one, and frees it if it fails.
        let code =
            unsafe { (library.formats.open)(&raw mut context, name.as_ptr(), null(), &raw mut options.0) };
        if code < 0 {
            return Err(failed(library.words(code)));
        }
        let mut file = Self { context, library: Arc::clone(library), streams: Vec::new(), selected: None };
        file.find_streams(settings.max_pixels).map_err(|error| failed(error.to_string()))?;
        file.streams = (0..file.raw_streams().len()).filter_map(|number| file.stream(number)).collect();
        Ok(file)
    }

    /// Lets ffmpeg decode the first frames where the container says too little.
    fn find_streams(&mut self, max_pixels: u64) -> Result<(), Error> {
        let most = CString::new(limit(max_pixels).to_string()).unwrap_or_default();
        let count = self.raw_streams().len();
        let library = Arc::clone(&self.library);
        let mut options = Vec::with_capacity(count);
        for _ in 0..count {
            let mut of = Options(null_mut(), &library);
            of.set(c"max_pixels", &most)?;
            of.set(c"threads", c"1")?;
            options.push(of);
        }
        let mut raw: Vec<*mut AvDictionary> = options.iter().map(|of| of.0).collect();
        let first = if raw.is_empty() { null_mut() } else { raw.as_mut_ptr() };
        // SAFETY: the context is open, and there are options for each of its streams. The function replaces the options by
        // those it did not use.
        let code = unsafe { (self.library.formats.find_streams)(self.context, first) };
        for (of, raw) in options.iter_mut().zip(raw) {
            of.0 = raw;
        }
        self.library.checked(code, "finding streams").map(|_| ())
    }

    pub(crate) fn library(&self) -> &Arc<Library> {
        &self.library
    }

    /// Returns the streams. Those found while packets are read are not among them.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// Returns the first stream that is a video.
    pub fn video(&self) -> Option<&Stream> {
        self.streams.iter().find(|stream| stream.is_video)
    }

    fn raw_streams(&self) -> &[*mut AvStream] {
        // SAFETY: the context is open.
        let raw = unsafe { &*self.context };
        match raw.stream_count {
            0 => &[],
            // SAFETY: it has that many streams there, until the next call that reads packets.
            count => unsafe { std::slice::from_raw_parts(raw.streams, count as usize) },
        }
    }

    /// Returns what ffmpeg knows of a stream.
    fn raw_stream(&self, number: usize) -> Option<&AvStream> {
        // SAFETY: streams live as long as the context, and are only written to through `&mut self`.
        self.raw_streams().get(number).map(|stream| unsafe { &**stream })
    }

    pub(crate) fn parameters(&self, number: usize) -> Result<*const AvCodecParameters, Error> {
        let stream = self.raw_stream(number).ok_or(Error::NoStream(number))?;
        Ok(stream.parameters.cast_const())
    }

    fn stream(&self, number: usize) -> Option<Stream> {
        let raw = self.raw_stream(number)?;
        // SAFETY: each stream has parameters, as long as it lives.
        let parameters = unsafe { &*raw.parameters };
        let side = |side: c_int| u32::try_from(side).unwrap_or(0);
        let extradata = match usize::try_from(parameters.extradata_size) {
            // SAFETY: there are that many bytes.
            Ok(size) if size > 0 && !parameters.extradata.is_null() => unsafe {
                std::slice::from_raw_parts(parameters.extradata, size).to_vec()
            },
            _ => Vec::new(),
        };
        let time = |time: i64| Some(time).filter(|time| *time != NO_TIME);
        let (rotation, is_mirrored) = self.display(parameters);
        Some(Stream {
            number,
            is_video: parameters.kind == VIDEO,
            is_cover: raw.disposition & ATTACHED_PICTURE != 0,
            codec: Codec::of(parameters.codec),
            size: (side(parameters.width), side(parameters.height)),
            time_base: pair(raw.time_base).unwrap_or((0, 1)),
            start: time(raw.start_time),
            duration: time(raw.duration),
            frames: u64::try_from(raw.frames).ok().filter(|frames| *frames > 0),
            rate: pair(raw.average_rate).filter(|(frames, _)| *frames > 0),
            rotation,
            is_mirrored,
            extradata,
        })
    }

    /// Returns the rotation that the display matrix states, and whether it mirrors.
    fn display(&self, parameters: &AvCodecParameters) -> (u32, bool) {
        // SAFETY: the parameters have that many entries there.
        let found = unsafe {
            (self.library.codecs.side_data)(parameters.side_data, parameters.side_data_count, DISPLAY_MATRIX)
        };
        // SAFETY: the function returns an entry of these parameters, or null.
        let Some(found) = (unsafe { found.as_ref() }) else { return (0, false) };
        if found.data.is_null() || found.size < 9 * size_of::<i32>() {
            return (0, false);
        }
        // SAFETY: it has nine numbers; they may lie anywhere.
        let matrix = unsafe { found.data.cast::<[i32; 9]>().read_unaligned() };
        // SAFETY: the function reads nine numbers.
        let anticlockwise = unsafe { (self.library.util.rotation)(matrix.as_ptr()) };
        let [a, b, c, d] = [matrix[0], matrix[1], matrix[3], matrix[4]].map(i64::from);
        // A matrix without a rotation gives no number. Mirroring changes the sign of an area.
        let rotation =
            if anticlockwise.is_finite() { (-anticlockwise).round().rem_euclid(360.0) as u32 } else { 0 };
        (rotation, a * d < b * c)
    }

    /// Lets [`File::read`] return packets of this stream alone.
    ///
    /// # Errors
    /// [`Error::NoStream`].
    pub fn select(&mut self, stream: usize) -> Result<(), Error> {
        if stream >= self.raw_streams().len() {
            return Err(Error::NoStream(stream));
        }
        for (number, raw) in self.raw_streams().iter().enumerate() {
            // SAFETY: the stream is alive, and nothing else refers to it during this call; its user sets this member.
            unsafe { (**raw).discard = if number == stream { DISCARD_DEFAULT } else { DISCARD_ALL } };
        }
        self.selected = Some(stream);
        Ok(())
    }

    /// Reads the next packet; `None` at the end.
    ///
    /// # Errors
    /// [`Error::Damaged`] or [`Error::Refused`] where the container cannot be read further.
    pub fn read(&mut self) -> Result<Option<Packet>, Error> {
        let mut packet = Packet::new(&self.library)?;
        loop {
            // SAFETY: the context is open, the packet is empty.
            let code = unsafe { (self.library.formats.read)(self.context, packet.as_mut_ptr()) };
            if code == END {
                return Ok(None);
            }
            self.library.checked(code, "reading a packet")?;
            // ffmpeg still returns others that it read while it looked for streams.
            if self.selected.is_none_or(|selected| selected == packet.stream()) {
                return Ok(Some(packet));
            }
            packet.clear();
        }
    }

    /// Goes to the last key frame that the container lists at or before a time, in units of the stream's time base. Flush the
    /// stream's decoder afterwards. The first frames may still be later than the time, if the container lists times of
    /// decoding; then go to an earlier time.
    ///
    /// # Errors
    /// [`Error::NoStream`], or [`Error::Refused`] if there is no such frame.
    pub fn seek(&mut self, stream: usize, pts: i64) -> Result<(), Error> {
        self.raw_stream(stream).ok_or(Error::NoStream(stream))?;
        let number = c_int::try_from(stream).map_err(|_| Error::NoStream(stream))?;
        // SAFETY: the context is open and has this stream.
        let code = unsafe { (self.library.formats.seek)(self.context, number, i64::MIN, pts, pts, 0) };
        self.library.checked(code, "seeking").map(|_| ())
    }

    /// Reads the packets from here to the end, and returns those of a stream in the order they are stored, with the error
    /// that ended reading early, if any.
    ///
    /// # Errors
    /// [`Error::NoStream`].
    pub fn index(&mut self, stream: usize) -> Result<(Vec<Entry>, Option<Error>), Error> {
        self.raw_stream(stream).ok_or(Error::NoStream(stream))?;
        let mut entries = Vec::new();
        loop {
            match self.read() {
                Ok(Some(packet)) if packet.stream() == stream => entries.push(Entry {
                    pts: packet.pts(),
                    dts: packet.dts(),
                    is_key: packet.is_key(),
                    is_hidden: packet.is_hidden(),
                }),
                Ok(Some(_)) => {}
                Ok(None) => return Ok((entries, None)),
                Err(error) => return Ok((entries, Some(error))),
            }
        }
    }
}

/// Returns both numbers of a fraction that has a value.
fn pair(of: AvRational) -> Option<(u32, u32)> {
    let (numerator, denominator) = (of.numerator.try_into().ok()?, of.denominator.try_into().ok()?);
    (denominator > 0).then_some((numerator, denominator))
}
