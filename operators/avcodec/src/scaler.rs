//! Conversion of frames to red, green and blue.
#![expect(unsafe_code, reason = "functions of a C library")]
use crate::layout::SwsContext;
use crate::{Error, Frame, Library, PixelFormat, Plane};
use std::ffi::{CStr, c_int};
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// Gives identical pixels on every processor, and no dark white (253 without `full_chroma_int`).
const FLAGS: &CStr = c"bilinear+accurate_rnd+full_chroma_int+bitexact";
/// Middle of a pair of rows, in 256ths of a row: where chroma of [`PixelFormat::YUV420P`] lies, as in MPEG-2.
const MIDDLE: i64 = 128;
/// The lower row of a pair. Then chroma of even rows is a mean, and that of others a row of chroma.
const LOWER: i64 = 256;
/// Unit of contrast and saturation.
const ONE: c_int = 1 << 16;
/// Bytes behind the last row that code for wide registers may write to.
const SLACK: usize = 256;

/// Rows converted to find the last one with [`Interpolation::Means`], and the one of them that is taken.
const TAIL: (usize, usize) = (8, 6);

/// Makes chroma for rows between two rows of chroma, if a frame has half as many (4:2:0) and is not scaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Interpolation {
    /// Three quarters of the nearer row and one quarter of the other: ffmpeg 8.
    #[default]
    Exact,
    /// The mean of both in every even row and the last, and the nearer one in the others: ffmpeg 7.0, if the number of rows
    /// is even and at least 8. Frames with others are converted exactly.
    Means,
}

/// Converts frames to pixels of a size.
#[derive(Debug)]
pub struct Scaler {
    library: Arc<Library>,
    size: Option<(u32, u32)>,
    max_pixels: u64,
    interpolation: Interpolation,
    /// The last conversion.
    last: Option<(Form, Conversion)>,
}

/// A conversion of frames of one form.
#[derive(Debug)]
struct Conversion {
    all: Context,
    /// With [`Interpolation::Means`].
    tail: Option<Tail>,
}

/// The conversion of the last row.
#[derive(Debug)]
struct Tail {
    context: Context,
    /// Copies of the last row of luma.
    luma: Vec<u8>,
    pixels: Vec<u8>,
}

/// Form of a frame, and size of its pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Form {
    from: (c_int, c_int),
    format: PixelFormat,
    matrix: c_int,
    is_full: bool,
    to: (c_int, c_int),
}

/// An `SwsContext` that is freed when it is dropped.
#[derive(Debug)]
struct Context(*mut SwsContext, Arc<Library>);

// SAFETY: a context may be used by one thread after the other.
unsafe impl Send for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(scaling) = &self.1.scaling {
            // SAFETY: it was allocated by this library, and is freed once.
            unsafe { (scaling.free_context)(self.0) };
        }
    }
}

impl Scaler {
    /// Creates a scaler to a size in pixels, or that of each frame; results above `max_pixels` are refused.
    ///
    /// # Errors
    /// [`Error::NoScaler`].
    pub fn new(
        library: &Arc<Library>,
        size: Option<(u32, u32)>,
        max_pixels: u64,
        interpolation: Interpolation,
    ) -> Result<Self, Error> {
        match library.scaling {
            Some(_) => Ok(Self { library: Arc::clone(library), size, max_pixels, interpolation, last: None }),
            None => Err(Error::NoScaler(library.folder().to_owned())),
        }
    }

    /// Returns the size of the pixels, unless it is that of each frame.
    pub fn size(&self) -> Option<(u32, u32)> {
        self.size
    }

    /// Appends the pixels of a frame: rows of red, green and blue, one byte each, with nothing between them. Returns their
    /// width and height. They are those of ffmpeg's filter `scale` with `bilinear+accurate_rnd+full_chroma_int+bitexact`.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::Memory`], or [`Error::Refused`] for a frame that cannot be converted; `pixels` is
    /// unchanged then.
    pub fn append(&mut self, frame: &Frame, pixels: &mut Vec<u8>) -> Result<(u32, u32), Error> {
        let (width, height) = self.size.unwrap_or_else(|| frame.size());
        let most = self.max_pixels.min(c_int::MAX as u64 / 3);
        if u64::from(width) * u64::from(height) > most {
            return Err(Error::TooLarge { width, height, most });
        }
        let raw = frame.raw();
        let form = Form {
            from: (raw.width, raw.height),
            format: frame.format(),
            matrix: raw.matrix,
            is_full: frame.has_full_range(),
            to: (width as c_int, height as c_int),
        };
        // A stream may change its form.
        let mut conversion = match self.last.take() {
            Some((last, conversion)) if last == form => conversion,
            _ => self.conversion(&form, frame)?,
        };
        let result = self.convert(&mut conversion, frame, (width, height), pixels);
        self.last = Some((form, conversion));
        result.map(|()| (width, height))
    }

    fn convert(
        &self,
        conversion: &mut Conversion,
        frame: &Frame,
        (width, height): (u32, u32),
        pixels: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let (raw, start) = (frame.raw(), pixels.len());
        let row = 3 * width as usize;
        let length = row * height as usize;
        pixels.try_reserve(length + SLACK).map_err(|_| Error::Memory("pixels"))?;
        // SAFETY: the capacity is at least that much.
        let first = unsafe { pixels.as_mut_ptr().add(start) };
        let planes: [*const u8; 4] = std::array::from_fn(|number| raw.data[number].cast_const());
        let strides = std::array::from_fn(|number| raw.line_sizes[number]);
        // SAFETY: the context was made for frames of this form, whose planes ffmpeg padded as it needs; the rows fit.
        unsafe { self.scale(&conversion.all, &planes, &strides, raw.height, first, (row, height)) }?;
        // SAFETY: all rows were written.
        unsafe { pixels.set_len(start + length) };
        if let Some(tail) = &mut conversion.tail {
            self.convert_tail(tail, frame, &mut pixels[start + length - row..])?;
        }
        Ok(())
    }

    /// Converts the last row once more: with the chroma of an even row, which is a mean.
    fn convert_tail(&self, tail: &mut Tail, frame: &Frame, last: &mut [u8]) -> Result<(), Error> {
        let planes = frame.planes();
        let [luma, chromas @ ..] = planes.as_slice() else { return Ok(()) };
        let [rows, taken] = [TAIL.0, TAIL.1];
        let (bytes, row) = (luma.row_bytes(), last.len());
        let stride = bytes.next_multiple_of(64);
        let source = luma.rows().checked_sub(1).and_then(|row| luma.row(row)).unwrap_or_default();
        tail.luma.resize(rows * stride + SLACK, 0);
        tail.luma.chunks_exact_mut(stride).take(rows).for_each(|copy| copy[..bytes].copy_from_slice(source));
        let (mut starts, mut strides) =
            ([tail.luma.as_ptr(), null(), null(), null()], [stride as c_int, 0, 0, 0]);
        for (number, chroma) in chromas.iter().enumerate().take(2) {
            let first = chroma.rows().checked_sub(rows / 2).and_then(|first| chroma.row(first));
            starts[number + 1] = first.unwrap_or_default().as_ptr();
            strides[number + 1] = chroma.stride() as c_int;
        }
        tail.pixels.resize(rows * row + SLACK, 0);
        // SAFETY: the context was made for frames of this many rows; there are as many of luma, and half as many of chroma
        // at the end of planes of at least that many. The pixels fit.
        unsafe {
            let first = tail.pixels.as_mut_ptr();
            self.scale(&tail.context, &starts, &strides, rows as c_int, first, (row, rows as u32))?;
        }
        last.copy_from_slice(&tail.pixels[taken * row..][..row]);
        Ok(())
    }

    /// Converts rows of planes to pixels.
    ///
    /// # Safety
    /// The planes have this many rows of the form that the context was made for, and the pixels have room for the rows and
    /// [`SLACK`]. Rows are written from the first to the last, so that what is written behind a row is replaced.
    unsafe fn scale(
        &self,
        context: &Context,
        planes: &[*const u8; 4],
        strides: &[c_int; 4],
        height: c_int,
        pixels: *mut u8,
        (row, rows): (usize, u32),
    ) -> Result<(), Error> {
        let scaling = self.scaling()?;
        let (targets, target_strides) =
            ([pixels, null_mut(), null_mut(), null_mut()], [row as c_int, 0, 0, 0]);
        // SAFETY: the caller says so; all arrays have four entries.
        let written = unsafe {
            (scaling.scale)(
                context.0,
                planes.as_ptr(),
                strides.as_ptr(),
                0,
                height,
                targets.as_ptr(),
                target_strides.as_ptr(),
            )
        };
        let what = "converting a frame to pixels";
        match self.library.checked(written, what)? {
            written if written.cast_unsigned() == rows => Ok(()),
            written => Err(Error::Refused { what, code: 0, text: format!("{written} of {rows} rows") }),
        }
    }

    fn scaling(&self) -> Result<&crate::library::Scaling, Error> {
        self.library.scaling.as_ref().ok_or_else(|| Error::NoScaler(self.library.folder().to_owned()))
    }

    fn conversion(&self, form: &Form, frame: &Frame) -> Result<Conversion, Error> {
        let planes = frame.planes();
        let rows: Vec<usize> = planes.iter().map(Plane::rows).collect();
        let halves = matches!(rows[..], [luma, first, second] if 2 * first == luma && first == second && luma >= TAIL.0);
        if self.interpolation == Interpolation::Exact || form.from != form.to || !halves {
            return Ok(Conversion { all: self.context(form, MIDDLE)?, tail: None });
        }
        let few = (form.from.0, TAIL.0 as c_int);
        let tail = self.context(&Form { from: few, to: few, ..*form }, LOWER)?;
        let tail = Tail { context: tail, luma: Vec::new(), pixels: Vec::new() };
        Ok(Conversion { all: self.context(form, LOWER)?, tail: Some(tail) })
    }

    /// Creates a context, for chroma at this place between rows.
    fn context(&self, form: &Form, place: i64) -> Result<Context, Error> {
        let (scaling, util) = (self.scaling()?, &self.library.util);
        // SAFETY: takes no arguments.
        let context = Context(unsafe { (scaling.new_context)() }, Arc::clone(&self.library));
        if context.0.is_null() {
            return Err(Error::Memory("a scaler"));
        }
        let set = |name: &CStr, value: i64| {
            // SAFETY: the context is alive and its first member is its class; the name ends with a zero.
            let code = unsafe { (util.set_number)(context.0.cast(), name.as_ptr(), value, 0) };
            self.library.checked(code, "an option of the scaler")
        };
        // SAFETY: as above.
        let code = unsafe { (util.set_option)(context.0.cast(), c"sws_flags".as_ptr(), FLAGS.as_ptr(), 0) };
        self.library.checked(code, "the flags of the scaler")?;
        let full = i64::from(form.is_full);
        set(c"srcw", form.from.0.into())?;
        set(c"srch", form.from.1.into())?;
        set(c"src_format", form.format.0.into())?;
        set(c"src_range", full)?;
        set(c"dstw", form.to.0.into())?;
        set(c"dsth", form.to.1.into())?;
        set(c"dst_format", PixelFormat::RGB24.0.into())?;
        set(c"dst_range", 0)?;
        if form.format == PixelFormat::YUV420P || place != MIDDLE {
            set(c"src_v_chr_pos", place)?;
        }
        // SAFETY: the context is alive; filters may be null.
        let code = unsafe { (scaling.prepare)(context.0, null_mut(), null_mut()) };
        self.library.checked(code, "a scaler for this pixel format")?;
        // SAFETY: the function takes any number and returns a static array.
        let table = unsafe { (scaling.coefficients)(form.matrix) };
        // SAFETY: the context is alive, the tables are static. The function fails for formats without a matrix, which need
        // none.
        unsafe { (scaling.set_colours)(context.0, table, full as c_int, table, 0, 0, ONE, ONE) };
        Ok(context)
    }
}
