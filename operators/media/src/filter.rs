//! Scales pictures by the filters of the libraries that models were trained with.
//!
//! The same picture scaled by two filters differs in many pixels, and a model may answer differently. So each
//! filter follows one of Pillow or OpenCV:
//!
//! | filter | follows | differs, in levels of 255 |
//! |---|---|---|
//! | `PillowBilinear` | Pillow's `BILINEAR` | by 1 in 13 % of the values |
//! | `PillowNearest`, `PillowBox`, `PillowBicubic`, `PillowLanczos` | Pillow's `NEAREST`, `BOX`, `BICUBIC`, `LANCZOS` | nowhere |
//! | `OpencvNearest`, `OpencvLinear`, `OpencvArea` | OpenCV's `INTER_NEAREST`, `INTER_LINEAR`, `INTER_AREA` | nowhere |
//! | `OpencvLanczos4` | OpenCV's `INTER_LANCZOS4` | nowhere, on 140 pictures with sides of 1 to 90 |
//! | `OpencvCubic` | OpenCV's `INTER_CUBIC` | by 1 in 3 % of the values |
//!
//! Measured with Pillow 11.3 and OpenCV 5.0 (its 4.14 gives the same bytes) on 400 pictures with sides of 1
//! to 90 and 23 of usual and extreme sizes, of noise, blurred noise, and black and white.
//! `testdata/make_filters.py` makes the references of the tests.
//!
//! Pillow scales along x first and cuts levels to 0..=255 before it scales along y. Pillow 13 chooses the
//! order by the sizes: where it begins with y, `BICUBIC` and `LANCZOS` differ from those before it by up to
//! 56 levels at sharp edges. The order here is always that of Pillow 12 and older.
//!
//! ```
//! use image::{Rgb, RgbImage};
//! use tidemill_media::filter::{Filter, scaled};
//! let picture = RgbImage::from_fn(4, 1, |x, _| Rgb([[0, 0, 0], [90, 90, 90], [90, 90, 90], [90, 90, 90]][x as usize]));
//! // The filters of Pillow average over all that a new pixel covers; OpenCV's default takes the nearest.
//! assert_eq!(scaled(picture.clone(), 1, 1, Filter::PillowBox).get_pixel(0, 0).0, [68; 3]);
//! assert_eq!(scaled(picture, 1, 1, Filter::OpencvLinear).get_pixel(0, 0).0, [90; 3]);
//! ```
use crate::raw_image::RawImage;
use image::RgbImage;

mod area;
mod lanczos;
mod opencv;
mod pillow;

/// How a picture is scaled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Filter {
    /// `BILINEAR` of Pillow.
    #[default]
    PillowBilinear,
    /// `NEAREST` of Pillow: the old pixel under the centre of each new one.
    PillowNearest,
    /// `BOX` of Pillow.
    PillowBox,
    /// `BICUBIC` of Pillow.
    PillowBicubic,
    /// `LANCZOS` of Pillow.
    PillowLanczos,
    /// `INTER_NEAREST` of OpenCV: the old pixel under the upper left corner of each new one.
    OpencvNearest,
    /// `INTER_LINEAR` of OpenCV.
    OpencvLinear,
    /// `INTER_CUBIC` of OpenCV.
    OpencvCubic,
    /// `INTER_LANCZOS4` of OpenCV.
    OpencvLanczos4,
    /// `INTER_AREA` of OpenCV.
    OpencvArea,
}

/// Scales a picture to this size; its aspect ratio is not kept. The result is the same on every processor.
pub fn scaled(image: RgbImage, width: u32, height: u32, filter: Filter) -> RgbImage {
    if image.dimensions() == (width, height) {
        return image;
    }
    let (from_width, from_height) = image.dimensions();
    scale(RawImage { width: from_width, height: from_height, pixels: image.as_raw() }, width, height, filter)
}

/// Scales a picture where it is, as [`scaled`] does. A picture or a result without pixels gives black ones or
/// none.
pub fn scale(picture: RawImage<'_>, width: u32, height: u32, filter: Filter) -> RgbImage {
    let black = || RgbImage::new(width, height);
    let (pixels, _) = picture.pixels.as_chunks::<3>();
    let count = picture.width as usize * picture.height as usize;
    if width == 0 || height == 0 || count == 0 || pixels.len() < count {
        return black();
    }
    let from = Pixels { width: picture.width as usize, height: picture.height as usize, pixels };
    let (to_width, to_height) = (width as usize, height as usize);
    let pixels = match filter {
        Filter::PillowNearest => pillow::nearest(from, to_width, to_height),
        Filter::PillowBilinear => return pillow::bilinear(picture, width, height).unwrap_or_else(black),
        Filter::PillowBox => pillow::BOX.convolved(from, to_width, to_height),
        Filter::PillowBicubic => pillow::BICUBIC.convolved(from, to_width, to_height),
        Filter::PillowLanczos => pillow::LANCZOS.convolved(from, to_width, to_height),
        Filter::OpencvNearest => opencv::nearest(from, to_width, to_height),
        Filter::OpencvLinear => opencv::linear(from, to_width, to_height),
        Filter::OpencvCubic => opencv::cubic(from, to_width, to_height),
        Filter::OpencvLanczos4 => lanczos::lanczos(from, to_width, to_height),
        Filter::OpencvArea => area::area(from, to_width, to_height),
    };
    RgbImage::from_raw(width, height, pixels.into_flattened()).unwrap_or_else(black)
}

/// Pixels of a picture, row by row.
#[derive(Clone, Copy)]
struct Pixels<'a> {
    width: usize,
    height: usize,
    pixels: &'a [[u8; 3]],
}

impl<'a> Pixels<'a> {
    fn row(&self, y: usize) -> &'a [[u8; 3]] {
        &self.pixels[y * self.width..(y + 1) * self.width]
    }

    /// Returns the pixels in these columns and rows.
    fn picked(&self, columns: &[usize], rows: impl ExactSizeIterator<Item = usize>) -> Vec<[u8; 3]> {
        let mut pixels = Vec::with_capacity(columns.len() * rows.len());
        for y in rows {
            let row = self.row(y);
            pixels.extend(columns.iter().map(|x| row[*x]));
        }
        pixels
    }
}

#[cfg(test)]
mod tests;
