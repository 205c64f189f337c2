//! OpenCV's `INTER_AREA`: the mean of all that a new pixel covers.
use super::Pixels;
use super::opencv::{Centre, blended, ratio};

/// A part of a pixel less than this is not counted.
const LEAST: f64 = 1e-3;
/// Most pixels whose sum fits in 32 bits.
const MOST: f64 = (1 << 24) as f64;

/// `INTER_AREA`. Where a side grows, it blends neighbours at their borders instead.
pub(super) fn area(from: Pixels<'_>, width: usize, height: usize) -> Vec<[u8; 3]> {
    let (x, y) = (ratio(from.width, width), ratio(from.height, height));
    if x < 1.0 || y < 1.0 {
        return blended(from, width, height, Centre::Area);
    }
    let is_whole = |ratio: f64| (ratio - ratio.round()).abs() < f64::EPSILON;
    if is_whole(x) && is_whole(y) && x * y <= MOST {
        return whole(from, width, height, (x.round() as usize, y.round() as usize));
    }
    parts(from, width, height)
}

/// Means of blocks of whole pixels, `block` wide and high.
pub(super) fn whole(from: Pixels<'_>, width: usize, height: usize, block: (usize, usize)) -> Vec<[u8; 3]> {
    let scale = 1.0 / (block.0 * block.1) as f32;
    let mut sums = vec![[0u32; 3]; width];
    let mut pixels = Vec::with_capacity(width * height);
    for y in 0..height {
        sums.fill([0; 3]);
        for row in y * block.1..(y + 1) * block.1 {
            for (sum, old) in sums.iter_mut().zip(from.row(row).chunks_exact(block.0)) {
                for pixel in old {
                    for channel in 0..3 {
                        sum[channel] += u32::from(pixel[channel]);
                    }
                }
            }
        }
        if block == (2, 2) {
            pixels.extend(sums.iter().map(|sum| sum.map(|sum| ((sum + 2) >> 2) as u8)));
        } else {
            pixels.extend(sums.iter().map(|sum| sum.map(|sum| (sum as f32 * scale).round_ties_even() as u8)));
        }
    }
    pixels
}

/// The old pixels that a new one covers, and the share of each in it.
struct Covered {
    start: usize,
    shares: Vec<f32>,
}

fn covered(from: usize, to: usize) -> Vec<Covered> {
    let ratio = ratio(from, to);
    let covered = (0..to).map(|at| {
        let (start, end) = (at as f64 * ratio, at as f64 * ratio + ratio);
        let length = ratio.min(from as f64 - start);
        let last = (end.floor() as usize).min(from - 1);
        let first = (start.ceil() as usize).min(last);
        let mut shares = Vec::with_capacity(last - first + 2);
        let before = first as f64 - start;
        if before > LEAST {
            shares.push((before / length) as f32);
        }
        let start = first - shares.len();
        shares.extend((first..last).map(|_| (1.0 / length) as f32));
        let after = end - last as f64;
        if after > LEAST {
            shares.push((after.min(1.0).min(length) / length) as f32);
        }
        Covered { start, shares }
    });
    covered.collect()
}

/// Means of parts of pixels.
fn parts(from: Pixels<'_>, width: usize, height: usize) -> Vec<[u8; 3]> {
    let columns = covered(from.width, width);
    let (mut row, mut sums) = (vec![[0f32; 3]; width], vec![[0f32; 3]; width]);
    let mut pixels = Vec::with_capacity(width * height);
    // The last row that was summed along x: the next row of the result may need it too.
    let mut there = usize::MAX;
    for Covered { start, shares } in covered(from.height, height) {
        sums.fill([0.0; 3]);
        for (y, share) in (start..).zip(shares) {
            if there != y {
                sum_columns(from.row(y), &columns, &mut row);
                there = y;
            }
            for (sum, value) in sums.as_flattened_mut().iter_mut().zip(row.as_flattened()) {
                *sum += share * value;
            }
        }
        pixels.extend(sums.iter().map(|sum| sum.map(|value| value.round_ties_even() as u8)));
    }
    pixels
}

fn sum_columns(old: &[[u8; 3]], columns: &[Covered], row: &mut [[f32; 3]]) {
    for (new, Covered { start, shares }) in row.iter_mut().zip(columns) {
        let mut sum = [0f32; 3];
        for (pixel, share) in old[*start..].iter().zip(shares) {
            for channel in 0..3 {
                sum[channel] += f32::from(pixel[channel]) * share;
            }
        }
        *new = sum;
    }
}
