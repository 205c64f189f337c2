//! Converts pictures from the form in which most videos store them to pixels.
//!
//! Such a picture is three planes: luma, and two of chroma at half the width and height (`yuv420p`). Over the pipe of
//! ffmpeg they take half as many bytes as red, green and blue. The conversion here is reproducible on every processor
//! and with every ffmpeg. A test of `tidemill-operators` compares the pixels with those of ffmpeg with
//! `accurate_rnd+full_chroma_int`: within one level where colours do not change from column to column. Where they do,
//! ffmpeg blends chroma between columns and this does not.
//!
//! The conversion is that of ITU-R BT.601 and BT.709 for luma of 16 to 235 and chroma of 16 to 240, rounded to the
//! nearest level: white is 255 and black is 0. A chroma is that of its pair of columns; in an even row it is the mean
//! of the row of chroma and the one above.
//!
//! ```
//! use tidemill_media::planes::{Conversion, Matrix};
//! // Eight by eight pixels: luma, then rows of both chromas side by side.
//! let mut planes = vec![126; 8 * 8];
//! planes.extend([128; 8 * 4]);
//! let mut picture = Vec::new();
//! Conversion::new(Matrix::Bt709).append(8, 8, &planes, &mut picture);
//! assert!(picture.starts_with(b"P6\n8 8\n255\n\x80\x80\x80"));
//! ```
use crate::raw_image::RawImage;

/// Unit of fixed-point numbers.
const ONE: i32 = 1 << 14;
/// Levels per step of luma, in units of fixed-point numbers.
const LUMA: i32 = (ONE * 255 + 109) / 219;
/// Added to every level: the darkest luma is black, and levels are rounded to the nearest.
const BLACK: i32 = ONE / 2 - 16 * LUMA;
/// Pixels converted together: the compiler vectorises loops of this length.
const TOGETHER: usize = 8;
/// Least number of rows and columns: ffmpeg converts smaller pictures by other rules.
const FEWEST: u32 = 8;

/// Matrix between luma and chroma and red, green and blue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Matrix {
    /// Standard definition, and unspecified.
    Bt601,
    /// High definition.
    Bt709,
}

impl Matrix {
    /// Returns the matrix of a video stream as ffmpeg describes it, `Stream #0:0: Video: h264 (High), yuv420p(tv,
    /// bt709, progressive), 480x288`; none where its pictures are stored in another form.
    pub fn of_stream(line: &str) -> Option<Self> {
        // The file states its language before that.
        let (_, rest) = line.rsplit_once("Video: ")?;
        let (_, rest) = rest.split_once(" yuv420p")?;
        // Without parentheses nothing is specified.
        let Some(told) = rest.strip_prefix('(') else { return rest.starts_with(',').then_some(Self::Bt601) };
        let mut matrix = Self::Bt601;
        for word in told.split_once(')')?.0.split(", ") {
            // The matrix, then primaries and transfer where these differ.
            match word.split('/').next().unwrap_or(word) {
                "bt709" => matrix = Self::Bt709,
                "tv" | "unknown" | "bt470bg" | "smpte170m" | "progressive" => {}
                field if field.contains("first") || field.contains("coded") => {}
                _ => return None,
            }
        }
        Some(matrix)
    }

    /// Whether pictures of this size can be converted here.
    pub fn takes((width, height): (u32, u32)) -> bool {
        [width, height].into_iter().all(|side| side.is_multiple_of(2) && side >= FEWEST)
    }

    /// Returns ffmpeg's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bt601 => "smpte170m",
            Self::Bt709 => "bt709",
        }
    }

    /// Shares of red and blue in luma.
    fn shares(self) -> (f64, f64) {
        match self {
            Self::Bt601 => (0.299, 0.114),
            Self::Bt709 => (0.2126, 0.0722),
        }
    }
}

/// Change of a colour with a step of chroma, in units of fixed-point numbers.
#[derive(Debug, Clone, Copy)]
struct Steps(i32);

impl Steps {
    #[inline]
    fn at(self, chroma: u8) -> i32 {
        self.0 * (i32::from(chroma) - 128)
    }
}

/// The conversion of chroma by a matrix.
#[derive(Debug)]
pub struct Conversion {
    /// Red follows from the second chroma, blue from the first, green from both.
    red: Steps,
    blue: Steps,
    green_first: Steps,
    green_second: Steps,
}

impl Conversion {
    /// Creates the conversion of this matrix.
    pub fn new(matrix: Matrix) -> Self {
        let (red, blue) = matrix.shares();
        let green = 1.0 - red - blue;
        let steps = |coefficient: f64| Steps((coefficient * f64::from(ONE) * 255.0 / 224.0).round() as i32);
        let (to_red, to_blue) = (2.0 * (1.0 - red), 2.0 * (1.0 - blue));
        Self {
            red: steps(to_red),
            blue: steps(to_blue),
            green_first: steps(-to_blue * blue / green),
            green_second: steps(-to_red * red / green),
        }
    }

    /// Appends a picture as in [`crate::raw_image`] from planes as in `pgmyuv`: rows of luma, then rows with half a row
    /// of each chroma side by side.
    ///
    /// # Panics
    /// Without [`Matrix::takes`] of the size, or unless there are `width * height * 3 / 2` bytes of planes.
    pub fn append(&self, width: u32, height: u32, planes: &[u8], picture: &mut Vec<u8>) {
        assert!(Matrix::takes((width, height)), "a size that is converted here");
        let (row, rows) = (width as usize, height as usize);
        let (luma, chroma) = planes.split_at(row * rows);
        assert_eq!(chroma.len(), row * rows / 2, "half as much chroma as luma");
        RawImage::write_header(width, height, picture);
        let start = picture.len();
        picture.resize(start + 3 * row * rows, 0);
        let of = |at: usize| chroma[at * row..][..row].split_at(row / 2);
        // The contribution of chroma to red, green and blue of each pair of columns.
        let mut added = vec![[0; 3]; row / 2];
        let lines = luma.chunks_exact(row).zip(picture[start..].chunks_exact_mut(3 * row));
        for (at, (luma, pixels)) in lines.enumerate() {
            let below = of(at / 2);
            // The last row has the mean as well.
            let above = if at % 2 == 0 || at + 1 == rows { of((at / 2).saturating_sub(1)) } else { below };
            let chromas = below.0.iter().zip(above.0).zip(below.1.iter().zip(above.1));
            for (added, ((&first, &other), (&second, &another))) in added.iter_mut().zip(chromas) {
                let (first, second) = (mean(first, other), mean(second, another));
                let green = self.green_first.at(first) + self.green_second.at(second);
                *added = [self.red.at(second), green, self.blue.at(first)];
            }
            line(luma, &added, pixels);
        }
    }
}

/// Computes pixels from a row of luma and the contribution of chroma to each pair of them.
fn line(luma: &[u8], added: &[[i32; 3]], pixels: &mut [u8]) {
    let (some, rest) = luma.as_chunks::<TOGETHER>();
    let (some_added, rest_added) = added.as_chunks::<{ TOGETHER / 2 }>();
    let (some_pixels, rest_pixels) = pixels.as_chunks_mut::<{ 3 * TOGETHER }>();
    for ((luma, added), pixels) in some.iter().zip(some_added).zip(some_pixels) {
        *pixels = together(luma, added);
    }
    if !rest.is_empty() {
        let (mut luma, mut added) = ([0; TOGETHER], [[0; 3]; TOGETHER / 2]);
        luma[..rest.len()].copy_from_slice(rest);
        added[..rest_added.len()].copy_from_slice(rest_added);
        rest_pixels.copy_from_slice(&together(&luma, &added)[..rest_pixels.len()]);
    }
}

#[inline]
fn together(luma: &[u8; TOGETHER], added: &[[i32; 3]; TOGETHER / 2]) -> [u8; 3 * TOGETHER] {
    std::array::from_fn(|at| {
        let level = LUMA * i32::from(luma[at / 3]) + added[at / 6][at % 3] + BLACK;
        (level / ONE).clamp(0, 255) as u8
    })
}

/// Rounded up.
#[inline]
fn mean(one: u8, other: u8) -> u8 {
    (u16::from(one) + u16::from(other)).div_ceil(2) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_say_how_they_are_stored() {
        let of = |format: &str| {
            Matrix::of_stream(&format!("Stream #0:0: Video: h264 (High), {format}480x288, 10 fps"))
        };
        assert_eq!(of("yuv420p, "), Some(Matrix::Bt601));
        assert_eq!(of("yuv420p(progressive), "), Some(Matrix::Bt601));
        assert_eq!(of("yuv420p(tv, bt709, progressive), "), Some(Matrix::Bt709));
        assert_eq!(of("yuv420p(tv, bt709/unknown/unknown, top first), "), Some(Matrix::Bt709));
        assert_eq!(of("yuv420p(tv, unknown/bt709/bt709), "), Some(Matrix::Bt601));
        assert_eq!(of("yuv420p(tv, smpte170m/bt470bg/bt709), "), Some(Matrix::Bt601));
        for other in
            ["yuvj420p(pc), ", "yuv420p(pc), ", "yuv420p10le(tv), ", "yuv420p(tv, bt2020nc), ", "rgb24, "]
        {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(Matrix::of_stream("Stream #0:1: Audio: aac"), None);
        assert!(Matrix::takes((8, 8)));
        assert!([(9, 8), (8, 6), (6, 8), (0, 8)].into_iter().all(|size| !Matrix::takes(size)));
    }

    /// All combinations of some luma and chroma, in floating-point numbers.
    #[test]
    fn pixels_are_those_of_the_standard() {
        for (matrix, red, blue) in [(Matrix::Bt601, 0.299, 0.114), (Matrix::Bt709, 0.2126, 0.0722)] {
            let conversion = Conversion::new(matrix);
            for (first, second) in
                (0u8..=255).step_by(15).flat_map(|a| (0u8..=255).step_by(15).map(move |b| (a, b)))
            {
                let mut planes: Vec<u8> = (0..=255).collect();
                planes.extend((0..128).map(|at| if at % 16 < 8 { first } else { second }));
                let mut picture = Vec::new();
                conversion.append(16, 16, &planes, &mut picture);
                let pixels = RawImage::parse(&picture).unwrap().pixels;
                let [cb, cr] = [first, second].map(|chroma| (f64::from(chroma) - 128.0) * 255.0 / 224.0);
                let of_red = 2.0 * (1.0 - red) * cr;
                let of_blue = 2.0 * (1.0 - blue) * cb;
                let of_green = -(red * of_red + blue * of_blue) / (1.0 - red - blue);
                for (luma, pixel) in pixels.chunks_exact(3).enumerate() {
                    let bright = (luma as f64 - 16.0) * 255.0 / 219.0;
                    for (value, of) in pixel.iter().zip([of_red, of_green, of_blue]) {
                        let right = (bright + of).clamp(0.0, 255.0);
                        assert!((f64::from(*value) - right).abs() < 0.52, "{matrix:?}: {value}, not {right}");
                    }
                }
            }
        }
    }

    #[test]
    fn greys_have_their_level() {
        for (luma, level) in [(0, 0), (16, 0), (60, 51), (126, 128), (235, 255), (255, 255)] {
            let planes = [vec![luma; 64], vec![128; 32]].concat();
            let mut picture = Vec::new();
            Conversion::new(Matrix::Bt709).append(8, 8, &planes, &mut picture);
            assert!(RawImage::parse(&picture).unwrap().pixels.iter().all(|value| *value == level), "{luma}");
        }
    }
}
