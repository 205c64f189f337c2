//! OpenCV's `resize` of 8-bit pictures, in its arithmetic: whole numbers for `INTER_LINEAR` and
//! `INTER_CUBIC`, floats for `INTER_AREA`.
//!
//! Weights are whole numbers of which [`ONE`] is the unit. A picture is scaled row by row: those of the
//! source along x, kept while a row of the result needs them, then several of them along y.
use super::{Pixels, area};

/// One, in units of weights.
const ONE: i32 = 1 << WEIGHT_BITS;
/// Bits of the fraction of a weight.
pub(super) const WEIGHT_BITS: u32 = 11;
/// Bits of a row that are dropped before the weights of rows, so that it fits in 16 bits.
const DROPPED: u32 = 4;

/// Place between old pixels of a new one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Centre {
    /// Centres of pixels are at halves.
    Half,
    /// `INTER_AREA` when it enlarges: blends only at the border between two old pixels.
    Area,
}

/// Returns the pixels that a new side covers per pixel, as computed by OpenCV.
pub(super) fn ratio(from: usize, to: usize) -> f64 {
    1.0 / (to as f64 / from as f64)
}

/// Returns the old pixel left of each new one, and the distance from its centre, 0 to 1.
pub(super) fn places(from: usize, to: usize, centre: Centre) -> impl Iterator<Item = (i64, f32)> {
    let (ratio, inverse) = (ratio(from, to), to as f64 / from as f64);
    (0..to).map(move |at| match centre {
        Centre::Half => {
            let place = ((at as f64 + 0.5) * ratio - 0.5) as f32;
            let before = place.floor();
            (before as i64, place - before)
        }
        Centre::Area => {
            let before = (at as f64 * ratio).floor();
            let place = ((at as f64 + 1.0) - (before + 1.0) * inverse) as f32;
            (before as i64, if place <= 0.0 { 0.0 } else { place - place.floor() })
        }
    })
}

/// Rounds a weight to the nearest whole number.
pub(super) fn weight(value: f32) -> i32 {
    (value * ONE as f32).round_ties_even() as i32
}

/// The row or column nearest to `at` that exists.
pub(super) fn clamped(at: i64, length: usize) -> usize {
    at.clamp(0, length as i64 - 1) as usize
}

/// `INTER_NEAREST`: the old pixel at the upper left corner of each new one.
pub(super) fn nearest(from: Pixels<'_>, width: usize, height: usize) -> Vec<[u8; 3]> {
    let along = |from: usize, to: usize| {
        let ratio = ratio(from, to);
        (0..to).map(move |at| ((at as f64 * ratio).floor() as usize).min(from - 1))
    };
    let columns: Vec<usize> = along(from.width, width).collect();
    from.picked(&columns, along(from.height, height))
}

/// `INTER_LINEAR`: blends the four nearest pixels, also when it shrinks.
pub(super) fn linear(from: Pixels<'_>, width: usize, height: usize) -> Vec<[u8; 3]> {
    // OpenCV does the same: the four nearest are then all that a new pixel covers.
    if from.width == 2 * width && from.height == 2 * height {
        return area::whole(from, width, height, (2, 2));
    }
    blended(from, width, height, Centre::Half)
}

/// Blends two pixels of two rows.
pub(super) fn blended(from: Pixels<'_>, width: usize, height: usize, centre: Centre) -> Vec<[u8; 3]> {
    let columns: Vec<([usize; 2], [i32; 2])> = places(from.width, width, centre)
        .map(|(before, place)| match before {
            ..0 => ([0, 0], [ONE, 0]),
            _ if before as usize >= from.width - 1 => ([from.width - 1; 2], [ONE, 0]),
            _ => ([before as usize, before as usize + 1], [weight(1.0 - place), weight(place)]),
        })
        .collect();
    let mut rows = Rows::<i16, 2>::new(width);
    let mut pixels = vec![[0; 3]; width * height];
    for (to, (before, place)) in pixels.chunks_exact_mut(width).zip(places(from.height, height, centre)) {
        let [above, below] = [before, before + 1].map(|y| clamped(y, from.height));
        for y in [above, below] {
            rows.fill(y, |row| {
                let (row, _) = row.as_chunks_mut::<3>();
                let old = from.row(y);
                for (new, (at, weights)) in row.iter_mut().zip(&columns) {
                    let (left, right) = (old[at[0]], old[at[1]]);
                    for channel in 0..3 {
                        let sum =
                            i32::from(left[channel]) * weights[0] + i32::from(right[channel]) * weights[1];
                        new[channel] = (sum >> DROPPED) as i16;
                    }
                }
            });
        }
        let [upper, lower] = [weight(1.0 - place), weight(place)];
        let to = to.as_flattened_mut();
        for ((to, above), below) in to.iter_mut().zip(rows.get(above)).zip(rows.get(below)) {
            // Each product is cut and not rounded: the code of OpenCV for processors with vectors has no room
            // for more.
            let sum = ((i32::from(*above) * upper) >> 16) + ((i32::from(*below) * lower) >> 16);
            *to = ((sum + 2) >> 2) as u8;
        }
    }
    pixels
}

/// Weights of `INTER_CUBIC` at this distance from the second of four pixels.
fn cubic_weights(place: f32) -> [f32; 4] {
    const A: f32 = -0.75;
    let (x, rest) = (place, 1.0 - place);
    let first = ((A * (x + 1.0) - 5.0 * A) * (x + 1.0) + 8.0 * A) * (x + 1.0) - 4.0 * A;
    let second = ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let third = ((A + 2.0) * rest - (A + 3.0)) * rest * rest + 1.0;
    [first, second, third, 1.0 - first - second - third]
}

/// `INTER_CUBIC`: blends the sixteen nearest pixels, also when it shrinks.
pub(super) fn cubic(from: Pixels<'_>, width: usize, height: usize) -> Vec<[u8; 3]> {
    let around = |before: i64, length: usize| [-1, 0, 1, 2].map(|step| clamped(before + step, length));
    let columns: Vec<([usize; 4], [i32; 4])> = places(from.width, width, Centre::Half)
        .map(|(before, place)| (around(before, from.width), cubic_weights(place).map(weight)))
        .collect();
    let mut rows = Rows::<i32, 4>::new(width);
    let mut pixels = vec![[0; 3]; width * height];
    for (to, (before, place)) in pixels.chunks_exact_mut(width).zip(places(from.height, height, Centre::Half))
    {
        let around = around(before, from.height);
        for y in around {
            rows.fill(y, |row| {
                let (row, _) = row.as_chunks_mut::<3>();
                let old = from.row(y);
                for (new, (at, weights)) in row.iter_mut().zip(&columns) {
                    let near = at.map(|at| old[at]);
                    for channel in 0..3 {
                        new[channel] = (0..4).map(|of| i32::from(near[of][channel]) * weights[of]).sum();
                    }
                }
            });
        }
        let weights = cubic_weights(place).map(weight);
        let near = around.map(|y| rows.get(y));
        blend_four(near, weights, to.as_flattened_mut());
    }
    pixels
}

/// Blends four rows. Compiled twice, since only newer processors multiply several numbers of 32 bits at once.
fn blend_four(rows: [&[i32]; 4], weights: [i32; 4], to: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, the only thing that the function asks for.
        #[expect(unsafe_code, reason = "a function compiled for processors with more instructions")]
        return unsafe { blend_four_with_avx2(rows, weights, to) };
    }
    blend_four_anywhere(rows, weights, to);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn blend_four_with_avx2(rows: [&[i32]; 4], weights: [i32; 4], to: &mut [u8]) {
    blend_four_anywhere(rows, weights, to);
}

#[inline(always)]
fn blend_four_anywhere(rows: [&[i32]; 4], weights: [i32; 4], to: &mut [u8]) {
    const HALF: i32 = 1 << (2 * WEIGHT_BITS - 1);
    let [a, b, c, d] = rows;
    for ((((to, a), b), c), d) in to.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        let sum = a * weights[0] + b * weights[1] + c * weights[2] + d * weights[3];
        *to = ((sum + HALF) >> (2 * WEIGHT_BITS)).clamp(0, 255) as u8;
    }
}

/// Rows of the source scaled along x, the last few.
pub(super) struct Rows<T, const KEPT: usize> {
    rows: [Vec<T>; KEPT],
    /// Their numbers.
    of: [usize; KEPT],
}

impl<T: Copy + Default, const KEPT: usize> Rows<T, KEPT> {
    pub(super) fn new(width: usize) -> Self {
        Self { rows: std::array::from_fn(|_| vec![T::default(); 3 * width]), of: [usize::MAX; KEPT] }
    }

    /// Computes a row unless it is there. Rows used together follow each other, so they have different
    /// places.
    pub(super) fn fill(&mut self, y: usize, compute: impl FnOnce(&mut [T])) {
        let place = y % KEPT;
        if self.of[place] != y {
            compute(&mut self.rows[place]);
            self.of[place] = y;
        }
    }

    pub(super) fn get(&self, y: usize) -> &[T] {
        &self.rows[y % KEPT]
    }
}
