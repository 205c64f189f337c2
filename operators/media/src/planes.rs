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
//! On x86-64 the same code is compiled twice, for every processor and for those with AVX2, and chosen when it runs. The
//! arithmetic is that of whole numbers, so both give the same pixels; tests compare them for all values.
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
/// Pixels converted together. The compiler vectorises loops of this length and does not unroll them first; with 32, 64 and 256
/// they take longer.
const TOGETHER: usize = 128;
/// Pixels converted together that share chroma with another.
const PAIRS: usize = TOGETHER / 2;
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

/// A plane: rows of bytes at equal distances.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// The first row and what follows.
    pub bytes: &'a [u8],
    /// Bytes from the start of a row to that of the next.
    pub stride: usize,
}

impl<'a> Rows<'a> {
    #[inline(always)]
    fn row(self, number: usize, length: usize) -> &'a [u8] {
        &self.bytes[number * self.stride..][..length]
    }

    /// Whether there are that many rows of this length.
    fn has(self, rows: usize, length: usize) -> bool {
        self.stride >= length && self.bytes.len() >= (rows - 1) * self.stride + length
    }
}

/// Rows of chroma of a row of pixels: the first chroma above and below, then the second above and below.
type Chroma<'a, T> = [&'a T; 4];

/// The conversion of chroma by a matrix: changes of colours with a step of chroma, in units of fixed-point numbers.
///
/// Red follows from the second chroma, blue from the first, green from both.
#[derive(Debug)]
pub struct Conversion {
    red: i32,
    blue: i32,
    green_first: i32,
    green_second: i32,
}

impl Conversion {
    /// Creates the conversion of this matrix.
    pub fn new(matrix: Matrix) -> Self {
        let (red, blue) = matrix.shares();
        let green = 1.0 - red - blue;
        let steps = |coefficient: f64| (coefficient * f64::from(ONE) * 255.0 / 224.0).round() as i32;
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
        let (row, rows) = (width as usize, height as usize);
        let (luma, chroma) = planes.split_at(row * rows);
        assert_eq!(chroma.len(), row * rows / 2, "half as much chroma as luma");
        let of = |bytes| Rows { bytes, stride: row };
        self.append_rows(width, height, [of(luma), of(chroma), of(&chroma[row / 2..])], picture);
    }

    /// Appends a picture as [`Conversion::append`] does, from luma and two planes of chroma where a decoder has them.
    ///
    /// # Panics
    /// Without [`Matrix::takes`] of the size, or if a plane has too few rows.
    pub fn append_rows(&self, width: u32, height: u32, planes: [Rows<'_>; 3], picture: &mut Vec<u8>) {
        assert!(Matrix::takes((width, height)), "a size that is converted here");
        let (row, rows) = (width as usize, height as usize);
        let [luma, chromas @ ..] = planes;
        assert!(luma.has(rows, row), "{rows} rows of luma");
        assert!(chromas.into_iter().all(|plane| plane.has(rows / 2, row / 2)), "half as many of each chroma");
        RawImage::write_header(width, height, picture);
        picture.reserve(3 * row * rows);
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2, the only thing that the function asks for.
            #[expect(unsafe_code, reason = "a function compiled for processors with more instructions")]
            return unsafe { self.append_with_avx2((row, rows), planes, picture) };
        }
        self.append_pixels((row, rows), planes, picture);
    }

    /// Does the same as [`Self::append_pixels`], compiled for processors with AVX2. ARM's vectors need no such copy: each of its
    /// 64-bit processors has them.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn append_with_avx2(&self, size: (usize, usize), planes: [Rows<'_>; 3], picture: &mut Vec<u8>) {
        self.append_pixels(size, planes, picture);
    }

    #[inline(always)]
    fn append_pixels(&self, (row, rows): (usize, usize), planes: [Rows<'_>; 3], picture: &mut Vec<u8>) {
        let [luma, first, second] = planes;
        let of = |at: usize| (first.row(at, row / 2), second.row(at, row / 2));
        // Stays in the cache, and spares zeroing the picture first.
        let mut pixels = vec![0; 3 * row];
        for at in 0..rows {
            let below = of(at / 2);
            // The last row has the mean as well.
            let above = if at % 2 == 0 || at + 1 == rows { of((at / 2).saturating_sub(1)) } else { below };
            self.line(luma.row(at, row), [above.0, below.0, above.1, below.1], &mut pixels);
            picture.extend_from_slice(&pixels);
        }
    }

    /// Computes a row of pixels.
    #[inline(always)]
    fn line(&self, luma: &[u8], chroma: Chroma<'_, [u8]>, pixels: &mut [u8]) {
        let (some, rest) = luma.as_chunks::<TOGETHER>();
        let chroma = chroma.map(|row| row.as_chunks::<PAIRS>());
        let (some_pixels, rest_pixels) = pixels.as_chunks_mut::<{ 3 * TOGETHER }>();
        for (at, (luma, pixels)) in some.iter().zip(some_pixels).enumerate() {
            self.together(luma, chroma.map(|(some, _)| &some[at]), pixels);
        }
        if !rest.is_empty() {
            let (mut luma, mut last) = ([0; TOGETHER], [[0; PAIRS]; 4]);
            luma[..rest.len()].copy_from_slice(rest);
            for (last, (_, rest)) in last.iter_mut().zip(chroma) {
                last[..rest.len()].copy_from_slice(rest);
            }
            let mut pixels = [0; 3 * TOGETHER];
            self.together(&luma, last.each_ref(), &mut pixels);
            rest_pixels.copy_from_slice(&pixels[..rest_pixels.len()]);
        }
    }

    /// Computes pixels in loops that the compiler vectorises, each over arrays that do not overlap.
    ///
    /// Nothing wraps: all terms are below 2^24. The operators are the wrapping ones because the checks of a development build end
    /// vectorisation, which makes it 20 times slower.
    #[inline(always)]
    fn together(
        &self,
        luma: &[u8; TOGETHER],
        chroma: Chroma<'_, [u8; PAIRS]>,
        pixels: &mut [u8; 3 * TOGETHER],
    ) {
        let mut added = [[0; PAIRS]; 3];
        for at in 0..PAIRS {
            let first = i32::from(mean(chroma[0][at], chroma[1][at])) - 128;
            let second = i32::from(mean(chroma[2][at], chroma[3][at])) - 128;
            let green =
                self.green_first.wrapping_mul(first).wrapping_add(self.green_second.wrapping_mul(second));
            added[0][at] = self.red.wrapping_mul(second).wrapping_add(BLACK);
            added[1][at] = green.wrapping_add(BLACK);
            added[2][at] = self.blue.wrapping_mul(first).wrapping_add(BLACK);
        }
        // Left and right columns apart, so that they need no second copy of what chroma adds.
        let (luma, _) = luma.as_chunks::<2>();
        let mut bright = [[0; PAIRS]; 2];
        for at in 0..PAIRS {
            bright[0][at] = LUMA * i32::from(luma[at][0]);
            bright[1][at] = LUMA * i32::from(luma[at][1]);
        }
        let mut colours = [[[0; 2]; PAIRS]; 3];
        for (colour, added) in colours.iter_mut().zip(&added) {
            for at in 0..PAIRS {
                colour[at] = [level(bright[0][at], added[at]), level(bright[1][at], added[at])];
            }
        }
        let [red, green, blue] = colours.each_ref().map(|colour| colour.as_flattened());
        for at in 0..TOGETHER {
            pixels[3 * at] = red[at];
            pixels[3 * at + 1] = green[at];
            pixels[3 * at + 2] = blue[at];
        }
    }
}

/// Rounds to a level. An arithmetic shift rounds negative numbers down and a division up: both give black.
#[inline(always)]
fn level(bright: i32, added: i32) -> u8 {
    (bright.wrapping_add(added) >> ONE.trailing_zeros()).clamp(0, 255) as u8
}

/// Rounded up. With `div_ceil` the compiler does not find the instruction for it: a frame takes a fifth longer.
#[inline(always)]
fn mean(one: u8, other: u8) -> u8 {
    ((u16::from(one) + u16::from(other) + 1) >> 1) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Converts pixel by pixel, by the rules as they are written above, in numbers that cannot overflow.
    fn plain(matrix: Matrix, (width, height): (u32, u32), planes: &[u8]) -> Vec<u8> {
        let of = Conversion::new(matrix);
        let (row, rows) = (width as usize, height as usize);
        let mut pixels = Vec::with_capacity(3 * row * rows);
        for (y, x) in (0..rows).flat_map(|y| (0..row).map(move |x| (y, x))) {
            let above = if y % 2 == 0 || y + 1 == rows { (y / 2).saturating_sub(1) } else { y / 2 };
            let chroma = |at: usize| {
                let of = |line: usize| u32::from(planes[row * (rows + line) + at + x / 2]);
                i64::from((of(y / 2) + of(above)).div_ceil(2)) - 128
            };
            let (first, second) = (chroma(0), chroma(row / 2));
            pixels.extend(pixel(&of, planes[y * row + x], first, second));
        }
        pixels
    }

    fn pixel(of: &Conversion, luma: u8, first: i64, second: i64) -> [u8; 3] {
        let green = i64::from(of.green_first) * first + i64::from(of.green_second) * second;
        [i64::from(of.red) * second, green, i64::from(of.blue) * first].map(|added| {
            let level = i64::from(LUMA) * i64::from(luma) + added + i64::from(BLACK);
            (level / i64::from(ONE)).clamp(0, 255) as u8
        })
    }

    /// Returns pixels converted for this processor and for every one.
    fn both(matrix: Matrix, (width, height): (u32, u32), planes: &[u8]) -> [Vec<u8>; 2] {
        let conversion = Conversion::new(matrix);
        // What was there stays there.
        let mut picture = b"before".to_vec();
        conversion.append(width, height, planes, &mut picture);
        let here = RawImage::parse(picture.strip_prefix(b"before").unwrap()).unwrap();
        assert_eq!((here.width, here.height), (width, height));
        let row = width as usize;
        let (luma, chroma) = planes.split_at(row * height as usize);
        // As a decoder has them: each plane by itself, with bytes between its rows.
        let apart = |plane: &[u8], length: usize, stride: usize| {
            let rows: Vec<u8> =
                plane.chunks(stride).flat_map(|row| row[..length].iter().copied().chain([9; 3])).collect();
            (rows, length + 3)
        };
        let apart =
            [apart(luma, row, row), apart(chroma, row / 2, row), apart(&chroma[row / 2..], row / 2, row)];
        let planes = apart.each_ref().map(|(bytes, stride)| Rows { bytes, stride: *stride });
        let mut everywhere = Vec::new();
        conversion.append_pixels((row, height as usize), planes, &mut everywhere);
        [here.pixels.to_vec(), everywhere]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        /// Of sizes around one and several times the number of pixels converted together.
        #[test]
        fn vectors_give_the_same_pixels(
            high_definition: bool,
            size in (4u32..300, 4u32..20).prop_map(|(width, height)| (2 * width, 2 * height)),
            seed: u32,
            most in 1u32..=256,
        ) {
            let matrix = if high_definition { Matrix::Bt709 } else { Matrix::Bt601 };
            let planes = noise(size, seed, most);
            let right = plain(matrix, size, &planes);
            let [here, everywhere] = both(matrix, size, &planes);
            prop_assert!(here == right, "{:?} {:?}, with the vectors of this processor", matrix, size);
            prop_assert!(everywhere == right, "{:?} {:?}, with the vectors of every processor", matrix, size);
        }
    }

    /// Returns planes of values below a limit; a picture of one byte for each value would be slow to generate.
    fn noise((width, height): (u32, u32), mut seed: u32, most: u32) -> Vec<u8> {
        let next = |_| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((seed >> 16) % most) as u8
        };
        (0..width * height * 3 / 2).map(next).collect()
    }

    #[test]
    fn vectors_give_the_same_pixels_of_all_values() {
        let size = (512, 256);
        for matrix in [Matrix::Bt601, Matrix::Bt709] {
            let conversion = Conversion::new(matrix);
            // A luma for each row, a second chroma for each pair of columns, a first for each picture.
            let mut planes: Vec<u8> = (0..=255).flat_map(|luma| [luma; 512]).collect();
            planes.extend((0..128).flat_map(|_| [0; 256].into_iter().chain(0..=255)));
            for first in 0..=255 {
                for line in planes[512 * 256..].chunks_exact_mut(512) {
                    line[..256].fill(first);
                }
                let pictures = both(matrix, size, &planes);
                let (here, _) = pictures[0].as_chunks::<3>();
                assert!(pictures[0] == pictures[1], "{matrix:?}, first chroma {first}");
                for (luma, line) in (0..=255).zip(here.chunks_exact(512)) {
                    for (second, pair) in (0..=255u8).zip(line.as_chunks::<2>().0) {
                        let right = pixel(&conversion, luma, i64::from(first) - 128, i64::from(second) - 128);
                        assert_eq!(*pair, [right; 2], "{matrix:?}, {luma}, {first}, {second}");
                    }
                }
            }
        }
    }

    #[test]
    fn means_are_rounded_up() {
        for (one, other) in (0..=255u8).flat_map(|one| (0..=255u8).map(move |other| (one, other))) {
            let right = (f64::from(one) + f64::from(other)) / 2.0;
            assert_eq!(f64::from(mean(one, other)), right.ceil());
        }
    }

    /// Prints the time of a frame, the best of many: `cargo test --release -p tidemill-media --lib planes -- --ignored --nocapture`.
    #[test]
    #[ignore = "long: make test-long"]
    #[expect(clippy::disallowed_methods, reason = "measures real time")]
    fn time_of_a_frame() {
        let best = |convert: &mut dyn FnMut()| {
            let times = (0..1000).map(|_| {
                let start = std::time::Instant::now();
                convert();
                start.elapsed()
            });
            times.min().unwrap()
        };
        for size in [(640, 360), (1280, 720), (854, 480)] {
            let (planes, conversion) = (noise(size, 7, 256), Conversion::new(Matrix::Bt709));
            let mut picture = Vec::new();
            let here = best(&mut || {
                picture.clear();
                conversion.append(size.0, size.1, &planes, &mut picture);
            });
            let (luma, chroma) = planes.split_at((size.0 * size.1) as usize);
            let everywhere = best(&mut || {
                picture.clear();
                let row = size.0 as usize;
                let of = |bytes| Rows { bytes, stride: row };
                let planes = [of(luma), of(chroma), of(&chroma[row / 2..])];
                conversion.append_pixels((row, size.1 as usize), planes, &mut picture);
            });
            println!("{size:?}: {here:?} on this processor, {everywhere:?} as compiled for every one");
        }
    }

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
