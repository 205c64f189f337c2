//! Conversion of frames to red, green and blue.
#![expect(unsafe_code, reason = "functions of a C library")]
use crate::layout::SwsContext;
use crate::{Error, Frame, Library, PixelFormat};
use std::ffi::{CStr, c_int};
use std::ptr::null_mut;
use std::sync::Arc;

/// Gives identical pixels on every processor, and no dark white (253 without `full_chroma_int`).
const FLAGS: &CStr = c"bilinear+accurate_rnd+full_chroma_int+bitexact";
/// Middle of a pair of rows, in 256ths of a row: where chroma of [`PixelFormat::YUV420P`] lies, as in MPEG-2.
const MIDDLE: i64 = 128;
/// Unit of contrast and saturation.
const ONE: c_int = 1 << 16;
/// Bytes behind the last row that code for wide registers may write to.
const SLACK: usize = 256;

/// Converts frames to pixels of a size.
#[derive(Debug)]
pub struct Scaler {
    library: Arc<Library>,
    size: Option<(u32, u32)>,
    max_pixels: u64,
    /// The last conversion.
    last: Option<(Form, Context)>,
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
    pub fn new(library: &Arc<Library>, size: Option<(u32, u32)>, max_pixels: u64) -> Result<Self, Error> {
        match library.scaling {
            Some(_) => Ok(Self { library: Arc::clone(library), size, max_pixels, last: None }),
            None => Err(Error::NoScaler(library.folder().to_owned())),
        }
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
        let context = match self.last.take() {
            Some((last, context)) if last == form => context,
            _ => self.context(&form)?,
        };
        let result = self.convert(&context, frame, (width, height), pixels);
        self.last = Some((form, context));
        result.map(|()| (width, height))
    }

    fn convert(
        &self,
        context: &Context,
        frame: &Frame,
        (width, height): (u32, u32),
        pixels: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let scaling = self.scaling()?;
        let (raw, start) = (frame.raw(), pixels.len());
        let row = 3 * width as usize;
        let length = row * height as usize;
        pixels.try_reserve(length + SLACK).map_err(|_| Error::Memory("pixels"))?;
        // SAFETY: the capacity is at least that much.
        let first = unsafe { pixels.as_mut_ptr().add(start) };
        let (targets, strides) = ([first, null_mut(), null_mut(), null_mut()], [row as c_int, 0, 0, 0]);
        // SAFETY: the context was made for frames of this form, whose planes ffmpeg padded as it needs; rows are written from
        // the first to the last, so that what is written behind a row is replaced, and behind the last there is slack.
        let rows = unsafe {
            (scaling.scale)(
                context.0,
                raw.data.as_ptr().cast(),
                raw.line_sizes.as_ptr(),
                0,
                raw.height,
                targets.as_ptr(),
                strides.as_ptr(),
            )
        };
        self.library.checked(rows, "converting a frame to pixels")?;
        if rows.cast_unsigned() != height {
            let text = format!("{rows} of {height} rows");
            return Err(Error::Refused { what: "converting a frame to pixels", code: 0, text });
        }
        // SAFETY: all rows were written.
        unsafe { pixels.set_len(start + length) };
        Ok(())
    }

    fn scaling(&self) -> Result<&crate::library::Scaling, Error> {
        self.library.scaling.as_ref().ok_or_else(|| Error::NoScaler(self.library.folder().to_owned()))
    }

    fn context(&self, form: &Form) -> Result<Context, Error> {
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
        let code =
            unsafe { (util.set_option)(context.0.cast(), c"sws_flags".as_ptr(), FLAGS.as_ptr(), 0) };
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
        if form.format == PixelFormat::YUV420P {
            set(c"src_v_chr_pos", MIDDLE)?;
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
