//! Decoders of streams of packets.
#![expect(unsafe_code, reason = "functions of a C library")]
use crate::frame::Owned;
use crate::layout::{AGAIN, AvCodec, AvCodecContext, AvCodecParameters, END, PADDING, VIDEO};
use crate::{Error, File, Frame, Library, Packet};
use std::ffi::{CStr, CString, c_int};
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// Form in which a video is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Codec {
    /// MPEG-1 video.
    Mpeg1,
    /// MPEG-2 video.
    Mpeg2,
    /// MPEG-4 part 2.
    Mpeg4,
    /// H.264, also called AVC.
    H264,
    /// H.265, also called HEVC.
    H265,
    /// Pictures in JPEG, one after the other.
    Mjpeg,
    /// VP8.
    Vp8,
    /// VP9.
    Vp9,
    /// AV1. Libraries without libdav1d cannot decode it.
    Av1,
    /// Any other, by ffmpeg's number (`AVCodecID`).
    Other(i32),
}

/// Most errors in a row that a decoder without threads returns before it needs the next packet: more than the frames it holds.
const MOST_ERRORS: u32 = 40;

/// Codecs with ffmpeg's numbers.
const NUMBERS: [(Codec, c_int); 9] = [
    (Codec::Mpeg1, 1),
    (Codec::Mpeg2, 2),
    (Codec::Mjpeg, 7),
    (Codec::Mpeg4, 12),
    (Codec::H264, 27),
    (Codec::Vp8, 139),
    (Codec::Vp9, 167),
    (Codec::H265, 173),
    (Codec::Av1, 225),
];

impl Codec {
    pub(crate) fn of(number: c_int) -> Self {
        NUMBERS.iter().find(|(_, of)| *of == number).map_or(Self::Other(number), |(codec, _)| *codec)
    }

    fn number(self) -> c_int {
        match self {
            Self::Other(number) => number,
            codec => NUMBERS.iter().find(|(of, _)| *of == codec).map_or(0, |(_, number)| *number),
        }
    }

    /// Returns ffmpeg's name, such as `h264`.
    pub fn name(self, library: &Library) -> String {
        // SAFETY: the function takes any number and returns a static string that ends with a zero.
        unsafe { CStr::from_ptr((library.codecs.name)(self.number())) }.to_string_lossy().into_owned()
    }
}

/// Settings of a decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Threads, at least 1. More than one delay each frame by that many packets, unless `low_delay` is set.
    pub threads: u32,
    /// Whether frames come as soon as they can: threads share a frame instead of taking one each, and frames that are stored
    /// in the order they are shown in are not held back. A video that states no order may lose frames or their order.
    pub low_delay: bool,
    /// Whether damaged frames are left out instead of concealed.
    pub strict: bool,
    /// Most pixels of a frame. Memory for frames of a million pixels more is never taken.
    pub max_pixels: u64,
}

impl Default for Settings {
    /// Returns one thread, no low delay, damaged frames left out, and at most 8192 x 8192 pixels.
    fn default() -> Self {
        Self { threads: 1, low_delay: false, strict: true, max_pixels: 8192 * 8192 }
    }
}

/// A decoder of one stream. Dropping it ends its threads; frames that it returned stay valid.
#[derive(Debug)]
pub struct Decoder {
    context: *mut AvCodecContext,
    library: Arc<Library>,
    /// Buffer that units are copied to, with the padding that ffmpeg reads beyond their end.
    unit: Packet,
    settings: Settings,
    is_drained: bool,
    has_ended: bool,
    /// Errors since the last frame or packet.
    errors: u32,
}

// SAFETY: a context may be used by one thread after the other.
unsafe impl Send for Decoder {}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: it was allocated by this library, and is freed once. The function waits for the context's threads.
        unsafe { (self.library.codecs.free_context)(&raw mut self.context) };
    }
}

/// Parameters that are freed when they are dropped.
struct Parameters<'a>(*mut AvCodecParameters, &'a Library);

impl Drop for Parameters<'_> {
    fn drop(&mut self) {
        // SAFETY: they were allocated by this library, and are freed once, with their extradata.
        unsafe { (self.1.codecs.free_parameters)(&raw mut self.0) };
    }
}

impl Decoder {
    /// Creates a decoder of units that come from elsewhere, such as a camera.
    ///
    /// `extradata` is what the container states once for all units: `avcC` of H.264 in MP4, for instance. Without any, units
    /// state it themselves (H.264 with start codes).
    ///
    /// # Errors
    /// [`Error::NoDecoder`], or [`Error::Damaged`] where the extradata are wrong.
    pub fn new(
        library: &Arc<Library>,
        codec: Codec,
        extradata: &[u8],
        settings: &Settings,
    ) -> Result<Self, Error> {
        // SAFETY: takes no arguments.
        let parameters = Parameters(unsafe { (library.codecs.new_parameters)() }, library);
        if parameters.0.is_null() {
            return Err(Error::Memory("parameters of a codec"));
        }
        let too_long = |_| Error::Damaged("extradata of more than 2 GiB");
        let length = c_int::try_from(extradata.len()).map_err(too_long)?;
        // SAFETY: ffmpeg allocated the parameters. The copy of the extradata is allocated as it asks: by its own function,
        // with zeros behind the end.
        unsafe {
            let of = &mut *parameters.0;
            (of.kind, of.codec) = (VIDEO, codec.number());
            if length > 0 {
                let copy = (library.util.zeroed)(extradata.len() + PADDING).cast::<u8>();
                if copy.is_null() {
                    return Err(Error::Memory("extradata"));
                }
                copy.copy_from_nonoverlapping(extradata.as_ptr(), extradata.len());
                (of.extradata, of.extradata_size) = (copy, length);
            }
        }
        // SAFETY: the parameters are alive until the end of this function.
        unsafe { Self::of_parameters(library, parameters.0, settings) }
    }

    /// Creates a decoder of a file's stream.
    ///
    /// # Errors
    /// [`Error::NoStream`], or as [`Decoder::new`].
    pub fn of_stream(file: &File, stream: usize, settings: &Settings) -> Result<Self, Error> {
        let parameters = file.parameters(stream)?;
        // SAFETY: they are alive as long as the file is.
        unsafe { Self::of_parameters(file.library(), parameters, settings) }
    }

    /// # Safety
    /// The parameters are allocated by this library, and alive during the call.
    unsafe fn of_parameters(
        library: &Arc<Library>,
        parameters: *const AvCodecParameters,
        settings: &Settings,
    ) -> Result<Self, Error> {
        // SAFETY: the caller says so.
        let parameters = unsafe { &*parameters };
        let codec = Codec::of(parameters.codec);
        let decoder = decoder_of(library, codec).ok_or_else(|| Error::NoDecoder(codec.name(library)))?;
        let side = |side: c_int| u32::try_from(side).unwrap_or(0);
        let (width, height) = (side(parameters.width), side(parameters.height));
        let most = settings.max_pixels;
        if u64::from(width) * u64::from(height) > most {
            return Err(Error::TooLarge { width, height, most });
        }
        let unit = Packet::new(library)?;
        // SAFETY: the decoder is one of this library.
        let context = unsafe { (library.codecs.new_context)(decoder) };
        if context.is_null() {
            return Err(Error::Memory("a decoder"));
        }
        let new = Self {
            context,
            library: Arc::clone(library),
            unit,
            settings: *settings,
            is_drained: false,
            has_ended: false,
            errors: 0,
        };
        // SAFETY: both are alive; the function copies the parameters.
        let code = unsafe { (library.codecs.use_parameters)(context, parameters) };
        library.checked(code, "the parameters of the stream")?;
        new.set()?;
        // SAFETY: the context was made for this decoder.
        let code = unsafe { (library.codecs.open)(context, decoder, null_mut()) };
        library.checked(code, "opening the decoder")?;
        Ok(new)
    }

    /// Sets options by name.
    fn set(&self) -> Result<(), Error> {
        let Settings { threads, low_delay, strict, max_pixels } = self.settings;
        self.number(c"threads", i64::from(threads.clamp(1, 64)))?;
        self.number(c"max_pixels", limit(max_pixels))?;
        if low_delay {
            self.option(c"flags", c"+low_delay")?;
            self.option(c"thread_type", c"slice")?;
        }
        if strict {
            self.option(c"err_detect", c"explode")?;
        }
        Ok(())
    }

    fn number(&self, name: &CStr, value: i64) -> Result<(), Error> {
        // SAFETY: the context is alive and its first member is its class, as the function needs; the name ends with a zero.
        let code = unsafe { (self.library.util.set_number)(self.context.cast(), name.as_ptr(), value, 0) };
        self.library.checked(code, "an option of the decoder").map(|_| ())
    }

    fn option(&self, name: &CStr, value: &CStr) -> Result<(), Error> {
        // SAFETY: as for `number`.
        let code =
            unsafe { (self.library.util.set_option)(self.context.cast(), name.as_ptr(), value.as_ptr(), 0) };
        self.library.checked(code, "an option of the decoder").map(|_| ())
    }

    /// Sends a unit: the data of one frame, or of the parts of it that the stream has (a packet). `pts` is returned with its
    /// frame.
    ///
    /// # Errors
    /// [`Error::Full`] if frames must be received first, [`Error::Drained`], or [`Error::Damaged`], after which the next unit
    /// may be sent.
    pub fn send(&mut self, unit: &[u8], pts: i64) -> Result<(), Error> {
        if self.is_drained {
            return Err(Error::Drained);
        }
        // ffmpeg takes an empty packet for the end.
        if unit.is_empty() {
            return Err(Error::Damaged("a unit without data"));
        }
        self.unit.fill(unit, pts)?;
        let code = self.send_raw(self.unit.as_ptr());
        self.unit.clear();
        self.sent(code)
    }

    /// Sends a packet of a file. Its data are not copied.
    ///
    /// # Errors
    /// As [`Decoder::send`].
    pub fn send_packet(&mut self, packet: &Packet) -> Result<(), Error> {
        if self.is_drained {
            return Err(Error::Drained);
        }
        if packet.data().is_empty() {
            return Err(Error::Damaged("a packet without data"));
        }
        let code = self.send_raw(packet.as_ptr());
        self.sent(code)
    }

    fn send_raw(&mut self, packet: *const crate::layout::AvPacket) -> c_int {
        self.errors = 0;
        // SAFETY: the context is open; the packet is alive, or null, which is the end. ffmpeg takes its own reference.
        unsafe { (self.library.codecs.send)(self.context, packet) }
    }

    fn sent(&self, code: c_int) -> Result<(), Error> {
        match code {
            AGAIN => Err(Error::Full),
            _ => self.library.checked(code, "a packet").map(|_| ()),
        }
    }

    /// Returns the next frame in the order they are shown; `None` if it needs the next unit, or there are no more.
    ///
    /// # Errors
    /// [`Error::Damaged`] for a frame that cannot be decoded; the next one may be.
    pub fn receive(&mut self) -> Result<Option<Frame>, Error> {
        // Some decoders repeat an error for ever, with threads and damaged extradata.
        if self.errors > MOST_ERRORS + self.settings.threads {
            self.has_ended = self.is_drained;
            return Ok(None);
        }
        let mut frame = Owned::new(&self.library)?;
        // SAFETY: the context is open; the frame is alive and empty.
        let code = unsafe { (self.library.codecs.receive)(self.context, frame.as_mut_ptr()) };
        match code {
            AGAIN => return Ok(None),
            END => {
                self.has_ended = true;
                return Ok(None);
            }
            _ => {}
        }
        let result = self.library.checked(code, "a frame").and_then(|_| self.below_limit(frame.into_frame()));
        self.errors = if result.is_ok() { 0 } else { self.errors + 1 };
        result
    }

    fn below_limit(&self, frame: Frame) -> Result<Option<Frame>, Error> {
        let ((width, height), most) = (frame.size(), self.settings.max_pixels);
        match u64::from(width) * u64::from(height) <= most {
            true => Ok(Some(frame)),
            false => Err(Error::TooLarge { width, height, most }),
        }
    }

    /// Says that no unit follows, so that [`Decoder::receive`] returns the frames that were held back.
    ///
    /// # Errors
    /// As [`Decoder::send`]. A second call does nothing.
    pub fn drain(&mut self) -> Result<(), Error> {
        if self.is_drained {
            return Ok(());
        }
        let code = self.send_raw(null());
        self.sent(code)?;
        self.is_drained = true;
        Ok(())
    }

    /// Returns whether the last frame was received after [`Decoder::drain`].
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Forgets all units and frames, so that it can continue with a key frame elsewhere in the stream.
    pub fn flush(&mut self) {
        // SAFETY: the context is open.
        unsafe { (self.library.codecs.flush)(self.context) };
        (self.is_drained, self.has_ended, self.errors) = (false, false, 0);
    }
}

/// Returns the limit that ffmpeg is given for a number of pixels: it takes an `int`, and compares it with a width rounded up
/// for wide registers.
pub(crate) fn limit(max_pixels: u64) -> i64 {
    const ROUNDED: u64 = 64 * 16384;
    i64::try_from(max_pixels.saturating_add(ROUNDED)).unwrap_or(i64::MAX).min(i64::from(c_int::MAX))
}

/// Finds the decoder of a codec that needs no hardware.
fn decoder_of(library: &Library, codec: Codec) -> Option<*const AvCodec> {
    // The library's own decoder of AV1 decodes with hardware alone.
    let decoder = match codec {
        Codec::Av1 => ["libdav1d", "libaom-av1"].into_iter().find_map(|name| {
            let name = CString::new(name).ok()?;
            // SAFETY: the name ends with a zero.
            Some(unsafe { (library.codecs.find_by_name)(name.as_ptr()) }).filter(|found| !found.is_null())
        })?,
        // SAFETY: the function takes any number.
        _ => unsafe { (library.codecs.find)(codec.number()) },
    };
    (!decoder.is_null()).then_some(decoder)
}
