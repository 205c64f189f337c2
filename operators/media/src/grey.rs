//! Grey pictures.
use image::{GrayImage, Luma, RgbImage};

/// Converts to grey as Pillow's `convert("L")`, bit for bit: 0.299 red + 0.587 green + 0.114 blue, rounded to
/// the nearest level.
///
/// OpenCV's `COLOR_RGB2GRAY` rounds these shares to 15 bits instead of 16. It gives one level more or less
/// for 0.1 % of all colours, and the same for the others.
///
/// ```
/// use image::{Rgb, RgbImage};
/// use tidemill_media::grey::grey;
/// let picture = RgbImage::from_pixel(1, 1, Rgb([255, 0, 0]));
/// assert_eq!(grey(&picture).get_pixel(0, 0).0, [76]);
/// ```
pub fn grey(image: &RgbImage) -> GrayImage {
    const SHARES: [u32; 3] = [19_595, 38_470, 7_471];
    const HALF: u32 = 1 << 15;
    let mut grey = GrayImage::new(image.width(), image.height());
    let (pixels, _) = image.as_raw().as_chunks::<3>();
    for (Luma([to]), [red, green, blue]) in grey.pixels_mut().zip(pixels) {
        let sum = SHARES[0] * u32::from(*red) + SHARES[1] * u32::from(*green) + SHARES[2] * u32::from(*blue);
        *to = ((sum + HALF) >> 16) as u8;
    }
    grey
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of `Image.convert("L")` of Pillow 13.0.
    #[test]
    fn shades_are_those_of_pillow() {
        // In the first four, OpenCV differs by one level.
        let colours = [
            ([0, 1, 201], 24),
            ([54, 203, 221], 161),
            ([133, 15, 52], 54),
            ([206, 50, 154], 108),
            ([0, 0, 0], 0),
            ([255, 255, 255], 255),
            ([0, 0, 255], 29),
            ([0, 255, 0], 150),
            ([255, 0, 0], 76),
            ([18, 214, 135], 146),
            ([116, 203, 177], 174),
            ([169, 138, 199], 154),
        ];
        for (colour, shade) in colours {
            let picture = RgbImage::from_pixel(1, 1, image::Rgb(colour));
            assert_eq!(grey(&picture).as_raw(), &[shade], "{colour:?}");
        }
    }
}
