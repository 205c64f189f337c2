//! Pictures as most videos store them, made into pixels.
//!
//! Such a picture is three planes: luma, and two of chroma at half the width and height (`yuv420p`). Over the pipe of ffmpeg they are
//! half as many bytes as red, green and blue, and they become those here: the same on every processor and with every ffmpeg. They are
//! the pixels that the exact conversion (`accurate_rnd+bitexact`) of ffmpeg 7.0.2 gives, bit by bit; a test of `tidemill-operators` compares them.
//!
//! The conversion is that of ITU-R BT.601 and BT.709 for luma of 16 to 235 and chroma of 16 to 240, with its coefficients in units of
//! steps of luma: what chroma adds is rounded to whole steps, and all three colours become brightness in the same way. A chroma is that of
//! its pair of columns; of an even row it is the mean of the row of chroma and the one above.
//!
//! ```
//! use tidemill_media::planes::{Conversion, Matrix};
//! // Eight by eight pixels: luma, then rows of both chromas side by side.
//! let mut planes = vec![126; 8 * 8];
//! planes.extend([128; 8 * 4]);
//! let mut picture = Vec::new();
//! Conversion::new(Matrix::Bt709).append(8, 8, &planes, &mut picture);
//! assert!(picture.starts_with(b"P6\n8 8\n255\n\x7e\x7e\x7e"));
//! ```
use crate::raw_image::RawImage;

/// Unit of fixed-point numbers.
const ONE: i64 = 1 << 16;
/// Brightness that a step of luma stands for beyond one, in units of fixed-point numbers.
const BEYOND: i32 = (ONE * 255 / 219 - ONE) as i32;
/// By so many whole steps, and this share of one, the darkest luma is above black.
const BLACK: (i16, i32) = (20, 5822);
/// Pixels that are converted together: loops over so many become instructions that take eight numbers at once.
const TOGETHER: usize = 8;
/// Fewer rows are converted by other rules in ffmpeg. A picture that is turned has its columns as rows.
const FEWEST: u32 = 8;

/// How luma and chroma are made of red, green and blue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Matrix {
    /// Standard definition, and what does not say.
    Bt601,
    /// High definition.
    Bt709,
}

impl Matrix {
    /// That of a video stream as ffmpeg describes it, `Stream #0:0: Video: h264 (High), yuv420p(tv, bt709, progressive), 480x288`; none
    /// where its pictures are stored in another way.
    pub fn of_stream(line: &str) -> Option<Self> {
        // The file says its language in front of that.
        let (_, rest) = line.rsplit_once("Video: ")?;
        let (_, rest) = rest.split_once(" yuv420p")?;
        // Without parentheses nothing is told.
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

    /// As ffmpeg calls it.
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

/// What a value of chroma adds to a colour, in steps of luma.
#[derive(Debug, Clone, Copy)]
struct Steps {
    /// For each of its own steps: whole ones, and a share of one in units of fixed-point numbers.
    whole: i16,
    share: u16,
    /// For chroma that is no colour.
    grey: i16,
}

impl Steps {
    /// In units of fixed-point numbers for each of its own steps.
    fn of(unit: i64) -> Self {
        Self { whole: (unit >> 16) as i16, share: (unit & (ONE - 1)) as u16, grey: (unit >> 9) as i16 }
    }

    #[inline]
    fn at(self, chroma: u8) -> i16 {
        let share = (u32::from(self.share) * u32::from(chroma)) >> 16;
        self.whole * i16::from(chroma) + share as i16 - self.grey
    }
}

/// Brightness of so many steps of luma and chroma together.
#[inline]
fn level(steps: i16) -> u8 {
    let beyond = (BEYOND * i32::from(steps) + BLACK.1) >> 16;
    (steps - BLACK.0 + beyond as i16).clamp(0, 255) as u8
}

/// What a matrix makes of chroma.
#[derive(Debug)]
pub struct Conversion {
    /// Red follows from the second chroma, blue from the first, green from both.
    red: Steps,
    blue: Steps,
    green_first: Steps,
    green_second: Steps,
}

impl Conversion {
    /// That of this matrix.
    pub fn new(matrix: Matrix) -> Self {
        let (red, blue) = matrix.shares();
        let green = 1.0 - red - blue;
        // Levels that a step of luma, and one of chroma, stand for.
        let luma = ONE * 255 / 219;
        let chroma = |coefficient: f64| (coefficient * ONE as f64 * 255.0 / 224.0).round() as i64;
        let (to_red, to_blue) = (chroma(2.0 * (1.0 - red)), chroma(2.0 * (1.0 - blue)));
        let (first, second) =
            (chroma(2.0 * (1.0 - blue) * blue / green), chroma(2.0 * (1.0 - red) * red / green));
        let steps = |coefficient: i64| Steps::of((coefficient * ONE + ONE / 2) / luma);
        Self {
            red: steps(to_red),
            blue: steps(to_blue),
            green_first: steps(-first),
            green_second: steps(-second),
        }
    }

    /// Appends a picture as in [`crate::raw_image`] of planes as `pgmyuv` has them: rows of luma, then rows that have half a row of
    /// each chroma side by side.
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
        // What chroma adds to red, green and blue of each pair of columns.
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

/// Pixels of a row of luma, and of what chroma adds to each pair of them.
fn line(luma: &[u8], added: &[[i16; 3]], pixels: &mut [u8]) {
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
fn together(luma: &[u8; TOGETHER], added: &[[i16; 3]; TOGETHER / 2]) -> [u8; 3 * TOGETHER] {
    let steps: [i16; 3 * TOGETHER] =
        std::array::from_fn(|at| i16::from(luma[at / 3]) + added[at / 6][at % 3]);
    steps.map(level)
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

    /// By another implementation of the same rules, which ffmpeg 7.0.2 agreed with.
    #[test]
    fn pixels_are_the_same_everywhere() {
        let planes: Vec<u8> = (0..16 * 8 * 3 / 2).map(|at| ((at * 89 + 7) % 256) as u8).collect();
        let expected = [
            (Matrix::Bt601, [0, 25, 2, 13, 129, 105, 255, 125, 255], 4_233_043_661),
            (Matrix::Bt709, [0, 12, 2, 3, 116, 105, 255, 153, 255], 1_592_850_909),
        ];
        for (matrix, first, all) in expected {
            let mut picture = Vec::new();
            Conversion::new(matrix).append(16, 8, &planes, &mut picture);
            let pixels = RawImage::parse(&picture).unwrap().pixels;
            let sum =
                pixels.iter().fold(0u32, |sum, value| sum.wrapping_mul(31).wrapping_add((*value).into()));
            assert_eq!((&pixels[..9], sum), (&first[..], all), "{matrix:?}");
        }
    }
}
