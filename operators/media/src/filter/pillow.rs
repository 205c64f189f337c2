//! Pillow's `Image.resize` of 8-bit pictures.
use super::Pixels;
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

/// `BILINEAR`: averages over all that a new pixel covers. Only a buffer whose length contradicts its size
/// gives none.
pub(super) fn bilinear(picture: RawImage<'_>, width: u32, height: u32) -> Option<RgbImage> {
    thread_local! {
        // Its intermediate picture is as large as the result is high: fresh memory for each costs a fault per
        // page.
        static RESIZER: RefCell<Resizer> = RefCell::new(Resizer::new());
    }
    let mut resized = RgbImage::new(width, height);
    let from = TypedImageRef::<U8x3>::from_buffer(picture.width, picture.height, picture.pixels).ok()?;
    let mut to = TypedImage::<U8x3>::from_buffer(width, height, &mut resized).ok()?;
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
    // `resize` would compile every kind of pixel here: a minute of processor time more, in the library and in
    // its tests.
    RESIZER.with_borrow_mut(|resizer| {
        let result = resizer.resize_typed(&from, &mut to, &options);
        if resizer.size_of_internal_buffers() > KEPT_BYTES {
            resizer.reset_internal_buffers();
        }
        result.ok()
    })?;
    Some(resized)
}

/// A filter by its weights: the weight at a distance from its centre, and how far it reaches.
///
/// `fast_image_resize` chooses the order of the directions by their cost, and levels are cut to 0..=255
/// between them. So it differs from Pillow by up to 56 levels where weights are negative. These filters
/// follow Pillow to the bit.
#[derive(Clone, Copy)]
pub(super) struct Kernel {
    weight: fn(f64) -> f64,
    reach: f64,
}

/// `BOX`.
pub(super) const BOX: Kernel =
    Kernel { weight: |x| if x > -0.5 && x <= 0.5 { 1.0 } else { 0.0 }, reach: 0.5 };
/// `BICUBIC`.
pub(super) const BICUBIC: Kernel = Kernel { weight: cubic, reach: 2.0 };
/// `LANCZOS`.
pub(super) const LANCZOS: Kernel =
    Kernel { weight: |x| if (-3.0..3.0).contains(&x) { sinc(x) * sinc(x / 3.0) } else { 0.0 }, reach: 3.0 };

fn cubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    match x.abs() {
        x if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
        x if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
        _ => 0.0,
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let x = x * std::f64::consts::PI;
    x.sin() / x
}

/// Bits of a weight below one.
const WEIGHT_BITS: u32 = 22;
const HALF: i32 = 1 << (WEIGHT_BITS - 1);

/// The old pixels that make a new one, and their weights.
struct Weights {
    start: usize,
    weights: Vec<i32>,
}

impl Kernel {
    fn weights(self, from: usize, to: usize) -> Vec<Weights> {
        let ratio = from as f64 / to as f64;
        let scale = ratio.max(1.0);
        let reach = self.reach * scale;
        let inverse = 1.0 / scale;
        let weights = (0..to).map(|at| {
            let centre = (at as f64 + 0.5) * ratio;
            let start = (centre - reach + 0.5).max(0.0) as usize;
            let end = ((centre + reach + 0.5) as usize).min(from);
            let weights: Vec<f64> =
                (start..end).map(|old| (self.weight)((old as f64 - centre + 0.5) * inverse)).collect();
            let sum: f64 = weights.iter().sum();
            let share = |weight: f64| if sum == 0.0 { weight } else { weight / sum };
            let whole = |weight: f64| (weight * f64::from(1 << WEIGHT_BITS)).round() as i32;
            Weights { start, weights: weights.into_iter().map(|weight| whole(share(weight))).collect() }
        });
        weights.collect()
    }

    /// Scales along x, then along y.
    pub(super) fn convolved(self, from: Pixels<'_>, width: usize, height: usize) -> Vec<[u8; 3]> {
        let along_x;
        let from = if from.width == width {
            from
        } else {
            along_x = self.along_x(from, width);
            Pixels { width, height: from.height, pixels: &along_x }
        };
        if from.height == height { from.pixels.to_vec() } else { self.along_y(from, height) }
    }

    fn along_x(self, from: Pixels<'_>, width: usize) -> Vec<[u8; 3]> {
        let columns = self.weights(from.width, width);
        let mut pixels = Vec::with_capacity(width * from.height);
        for y in 0..from.height {
            let row = from.row(y);
            pixels.extend(columns.iter().map(|Weights { start, weights }| {
                let mut sum = [HALF; 3];
                for (pixel, weight) in row[*start..].iter().zip(weights) {
                    for channel in 0..3 {
                        sum[channel] += i32::from(pixel[channel]) * weight;
                    }
                }
                sum.map(level)
            }));
        }
        pixels
    }

    fn along_y(self, from: Pixels<'_>, height: usize) -> Vec<[u8; 3]> {
        let mut sums = vec![HALF; 3 * from.width];
        let mut pixels = vec![[0; 3]; from.width * height];
        let rows = self.weights(from.height, height);
        for (to, Weights { start, weights }) in pixels.chunks_exact_mut(from.width).zip(rows) {
            sums.fill(HALF);
            for (y, weight) in (start..).zip(weights) {
                add(&mut sums, from.row(y).as_flattened(), weight);
            }
            for (to, sum) in to.as_flattened_mut().iter_mut().zip(&sums) {
                *to = level(*sum);
            }
        }
        pixels
    }
}

fn level(sum: i32) -> u8 {
    (sum >> WEIGHT_BITS).clamp(0, 255) as u8
}

/// Adds a row. Compiled twice, since only newer processors multiply several numbers of 32 bits at once.
fn add(sums: &mut [i32], row: &[u8], weight: i32) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, the only thing that the function asks for.
        #[expect(unsafe_code, reason = "a function compiled for processors with more instructions")]
        return unsafe { add_with_avx2(sums, row, weight) };
    }
    add_anywhere(sums, row, weight);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_with_avx2(sums: &mut [i32], row: &[u8], weight: i32) {
    add_anywhere(sums, row, weight);
}

#[inline(always)]
fn add_anywhere(sums: &mut [i32], row: &[u8], weight: i32) {
    for (sum, value) in sums.iter_mut().zip(row) {
        *sum += i32::from(*value) * weight;
    }
}
