//! Decoded frames.
#![expect(unsafe_code, reason = "planes lie in memory of a C library")]
use crate::layout::{AvFrame, FRAME_CORRUPT, FRAME_KEY, NO_TIME};
use crate::{Error, Library};
use std::ffi::{CStr, c_int};
use std::fmt;
use std::sync::Arc;

/// Form in which pixels are stored, by ffmpeg's number (`AVPixelFormat`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PixelFormat(pub i32);

impl PixelFormat {
    /// Luma, and two planes of chroma at half the width and height.
    pub const YUV420P: Self = Self(0);
    /// Red, green and blue, one byte each, in one plane.
    pub const RGB24: Self = Self(2);
    /// Luma, and two planes of chroma at half the width.
    pub const YUV422P: Self = Self(4);
    /// Luma, and two planes of chroma.
    pub const YUV444P: Self = Self(5);
    /// Luma alone.
    pub const GRAY8: Self = Self(8);
    /// As [`PixelFormat::YUV420P`], in full range.
    pub const YUVJ420P: Self = Self(12);
    /// As [`PixelFormat::YUV422P`], in full range.
    pub const YUVJ422P: Self = Self(13);
    /// As [`PixelFormat::YUV444P`], in full range.
    pub const YUVJ444P: Self = Self(14);
    /// As [`PixelFormat::YUV420P`], with 10 bits in two bytes, the lower ones first.
    pub const YUV420P10: Self = Self(62);

    /// Whether all levels are used although the frame may not say so.
    pub(crate) fn is_of_jpeg(self) -> bool {
        matches!(self, Self::YUVJ420P | Self::YUVJ422P | Self::YUVJ444P)
    }
}

/// Matrix between luma and chroma and red, green and blue (`AVColorSpace`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Matrix {
    /// Planes are red, green and blue.
    Rgb,
    /// ITU-R BT.709: high definition.
    Bt709,
    /// The video does not say.
    Unspecified,
    /// ITU-R BT.601 with 625 lines; the same numbers as [`Matrix::Smpte170m`].
    Bt470bg,
    /// ITU-R BT.601 with 525 lines.
    Smpte170m,
    /// ITU-R BT.2020 with constant luminance not kept.
    Bt2020,
    /// Any other, by ffmpeg's number.
    Other(i32),
}

impl Matrix {
    fn of(number: c_int) -> Self {
        match number {
            0 => Self::Rgb,
            1 => Self::Bt709,
            2 => Self::Unspecified,
            5 => Self::Bt470bg,
            6 => Self::Smpte170m,
            9 => Self::Bt2020,
            other => Self::Other(other),
        }
    }
}

/// Levels that luma and chroma use (`AVColorRange`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Range {
    /// The video does not say: limited, unless the pixel format has full range.
    Unspecified,
    /// 16 to 235, chroma to 240.
    Limited,
    /// 0 to 255.
    Full,
}

/// A plane of a frame.
#[derive(Debug, Clone, Copy)]
pub struct Plane<'a> {
    /// First byte of the first row.
    start: *const u8,
    stride: isize,
    row: usize,
    rows: usize,
    _frame: std::marker::PhantomData<&'a [u8]>,
}

// SAFETY: a plane is a shared slice with steps; nothing writes to it while the frame is alive.
unsafe impl Send for Plane<'_> {}
// SAFETY: as above.
unsafe impl Sync for Plane<'_> {}

impl<'a> Plane<'a> {
    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the bytes of a row that are pixels.
    pub fn row_bytes(&self) -> usize {
        self.row
    }

    /// Returns the bytes from a row to the one below it; below 0 if rows are stored from the last to the first.
    pub fn stride(&self) -> isize {
        self.stride
    }

    /// Returns the pixels of a row, or `None` below the last one.
    pub fn row(&self, number: usize) -> Option<&'a [u8]> {
        (number < self.rows).then(|| {
            // SAFETY: ffmpeg has `row` bytes at each of `rows` steps from the start, in a buffer that the frame owns and
            // nothing writes to; a step of a row below the last is within that buffer.
            unsafe { std::slice::from_raw_parts(self.start.offset(self.stride * number as isize), self.row) }
        })
    }

    /// Returns all rows with the bytes between them, which may have any value; `None` if rows are stored from the last to the
    /// first. Row `n` starts at `n * stride`.
    pub fn bytes(&self) -> Option<&'a [u8]> {
        let stride = usize::try_from(self.stride).ok().filter(|stride| *stride >= self.row)?;
        let length = match self.rows {
            0 => 0,
            rows => stride * (rows - 1) + self.row,
        };
        // SAFETY: as for `row`, and what lies between rows is part of the same buffer.
        Some(unsafe { std::slice::from_raw_parts(self.start, length) })
    }

    /// Appends the rows without anything between them.
    pub fn append(&self, bytes: &mut Vec<u8>) {
        match self.bytes() {
            Some(all) if self.stride == self.row as isize => bytes.extend_from_slice(all),
            _ => (0..self.rows).filter_map(|row| self.row(row)).for_each(|row| bytes.extend_from_slice(row)),
        }
    }
}

/// A decoded frame. A clone shares the pixels, which live as long as the last clone.
#[derive(Clone)]
pub struct Frame(Arc<Owned>);

/// An `AVFrame` that is freed when it is dropped.
pub(crate) struct Owned {
    frame: *mut AvFrame,
    library: Arc<Library>,
}

// SAFETY: the frame belongs to one owner, who only reads it once it is in a `Frame`. Its buffers are counted with atomics by
// ffmpeg, which may give them back to their decoder from any thread.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: it was allocated by this library, and is freed once.
        unsafe { (self.library.util.free_frame)(&raw mut self.frame) };
    }
}

impl Owned {
    pub(crate) fn new(library: &Arc<Library>) -> Result<Self, Error> {
        // SAFETY: takes no arguments.
        let frame = unsafe { (library.util.new_frame)() };
        match frame.is_null() {
            true => Err(Error::Memory("a frame")),
            false => Ok(Self { frame, library: Arc::clone(library) }),
        }
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut AvFrame {
        self.frame
    }

    /// Takes it as a frame with pixels.
    pub(crate) fn into_frame(self) -> Frame {
        Frame(Arc::new(self))
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("size", &self.size())
            .field("format", &self.format_name())
            .field("pts", &self.pts())
            .field("is_key", &self.is_key())
            .finish_non_exhaustive()
    }
}

impl Frame {
    pub(crate) fn raw(&self) -> &AvFrame {
        // SAFETY: it was allocated by ffmpeg, so it is at least as long as its beginning; nothing writes to it.
        unsafe { &*self.0.frame }
    }

    /// Returns width and height in pixels.
    pub fn size(&self) -> (u32, u32) {
        let side = |side: c_int| u32::try_from(side).unwrap_or(0);
        (side(self.raw().width), side(self.raw().height))
    }

    /// Returns the form in which its pixels are stored.
    pub fn format(&self) -> PixelFormat {
        PixelFormat(self.raw().format)
    }

    /// Returns ffmpeg's name of the format, such as `yuv420p`.
    pub fn format_name(&self) -> String {
        // SAFETY: the function takes any number and returns a static string that ends with a zero, or null.
        let name = unsafe { (self.0.library.util.format_name)(self.raw().format) };
        if name.is_null() {
            return "unknown".to_owned();
        }
        // SAFETY: as above.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// Returns the time to show it, in units of the stream's time base, as its packet stated it.
    pub fn pts(&self) -> Option<i64> {
        Some(self.raw().pts).filter(|time| *time != NO_TIME)
    }

    /// Returns the time to show it as ffmpeg guesses it from those of all packets; the program `ffmpeg` takes this one.
    pub fn guessed_pts(&self) -> Option<i64> {
        Some(self.raw().best_effort_pts).filter(|time| *time != NO_TIME)
    }

    /// Returns whether it was decoded without other frames.
    pub fn is_key(&self) -> bool {
        self.raw().flags & FRAME_KEY != 0
    }

    /// Returns whether parts of it may be wrong because data were damaged or missing.
    pub fn is_corrupt(&self) -> bool {
        self.raw().flags & FRAME_CORRUPT != 0 || self.raw().decode_errors != 0
    }

    /// Returns its colour matrix.
    pub fn matrix(&self) -> Matrix {
        Matrix::of(self.raw().matrix)
    }

    /// Returns the levels it uses, as the video states them.
    pub fn range(&self) -> Range {
        match self.raw().range {
            1 => Range::Limited,
            2 => Range::Full,
            _ => Range::Unspecified,
        }
    }

    /// Returns whether it uses all levels from 0 to 255, by its range or its format.
    pub fn has_full_range(&self) -> bool {
        self.range() == Range::Full || self.format().is_of_jpeg()
    }

    /// Returns its planes: luma and chromas, or one plane of packed pixels. Empty for formats without pixels in memory.
    pub fn planes(&self) -> Vec<Plane<'_>> {
        let (raw, util) = (self.raw(), &self.0.library.util);
        // SAFETY: the functions take any number.
        let count = unsafe { (util.planes)(raw.format) };
        let (mut across, mut down) = (0, 0);
        // SAFETY: as above; both places are valid.
        unsafe { (util.chroma_shifts)(raw.format, &raw mut across, &raw mut down) };
        let (_, height) = self.size();
        let plane = |number: usize| {
            let start = raw.data.get(number).copied().filter(|start| !start.is_null())?;
            // SAFETY: the function takes any number.
            let row = unsafe { (util.row_bytes)(raw.format, raw.width, number as c_int) };
            let is_chroma = number == 1 || number == 2;
            let shift = if is_chroma { u32::try_from(down).ok()? } else { 0 };
            Some(Plane {
                start,
                stride: raw.line_sizes.get(number).copied()? as isize,
                row: usize::try_from(row).ok()?,
                // Odd heights are rounded up.
                rows: height.div_ceil(1u32.checked_shl(shift)?) as usize,
                _frame: std::marker::PhantomData,
            })
        };
        (0..usize::try_from(count).unwrap_or(0)).map_while(plane).collect()
    }

    /// Appends luma, then rows with half a row of each chroma side by side: ffmpeg's form `pgmyuv`. Returns whether it did:
    /// the frame must be [`PixelFormat::YUV420P`] or [`PixelFormat::YUVJ420P`] with even sides.
    pub fn append_side_by_side(&self, bytes: &mut Vec<u8>) -> bool {
        let (width, height) = self.size();
        let is_stored_so = matches!(self.format(), PixelFormat::YUV420P | PixelFormat::YUVJ420P);
        let planes = self.planes();
        let [luma, first, second] = planes.as_slice() else { return false };
        if !is_stored_so || width % 2 + height % 2 > 0 {
            return false;
        }
        bytes.reserve(luma.rows * luma.row * 3 / 2);
        luma.append(bytes);
        for row in 0..first.rows {
            for plane in [first, second] {
                plane.row(row).into_iter().for_each(|row| bytes.extend_from_slice(row));
            }
        }
        true
    }
}
