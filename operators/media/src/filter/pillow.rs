//! Pillow's `Image.resize` of 8-bit pictures.
use super::{Filter, Pixels};
use crate::raw_image::RawImage;
use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};
use image::RgbImage;
use std::cell::RefCell;

/// Most bytes of a thread's intermediate results that are kept for the next picture.
const KEPT_BYTES: usize = 16 << 20;

/// `NEAREST`: the old pixel under the centre of each new one.
pub(super) fn nearest(from: Pixels<'_>, width: usize, height: usize) -> Vec<[u8; 3]> {
    let columns: Vec<usize> = centres(from.width, width).collect();
    from.picked(&columns, centres(from.height, height))
}

/// Adds the ratio again and again as Pillow does, which decides where a centre is on a border.
fn centres(from: usize, to: usize) -> impl ExactSizeIterator<Item = usize> {
    let ratio = from as f64 / to as f64;
    let mut centre = ratio * 0.5;
    (0..to).map(move |_| {
        let at = centre as usize;
        centre += ratio;
        at.min(from - 1)
    })
}

/// The other filters: a convolution along x, then along y, over all that a new pixel covers. Only a buffer whose length
/// contradicts its size gives none.
pub(super) fn convolved(picture: RawImage<'_>, width: u32, height: u32, filter: Filter) -> Option<RgbImage> {
    thread_local! {
        // Its intermediate picture is as large as the result is high: fresh memory for each costs a fault per page.
        static RESIZER: RefCell<Resizer> = RefCell::new(Resizer::new());
    }
    let filter = match filter {
        Filter::PillowBox => FilterType::Box,
        Filter::PillowBicubic => FilterType::CatmullRom,
        Filter::PillowLanczos => FilterType::Lanczos3,
        _ => FilterType::Bilinear,
    };
    let mut resized = RgbImage::new(width, height);
    let from = TypedImageRef::<U8x3>::from_buffer(picture.width, picture.height, picture.pixels).ok()?;
    let mut to = TypedImage::<U8x3>::from_buffer(width, height, &mut resized).ok()?;
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter));
    // `resize` would compile every kind of pixel here: a minute of processor time more, in the library and in its
    // tests.
    RESIZER.with_borrow_mut(|resizer| {
        let result = resizer.resize_typed(&from, &mut to, &options);
        if resizer.size_of_internal_buffers() > KEPT_BYTES {
            resizer.reset_internal_buffers();
        }
        result.ok()
    })?;
    Some(resized)
}
