//! `INTER_LANCZOS4` of OpenCV's `resize` of 8-bit pictures: a blend of the 64 nearest pixels, in its arithmetic.
use super::Pixels;
use super::opencv::{Centre, Rows, WEIGHT_BITS, clamped, places, weight};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_PI_4};

/// Old pixels that a new one blends, along x or y.
const NEAR: usize = 8;

/// Sines and cosines of multiples of an eighth of a circle, so that only one of each is computed.
const TURNS: [[f64; 2]; NEAR] = [
    [1.0, 0.0],
    [-FRAC_1_SQRT_2, -FRAC_1_SQRT_2],
    [0.0, 1.0],
    [FRAC_1_SQRT_2, -FRAC_1_SQRT_2],
    [-1.0, 0.0],
    [FRAC_1_SQRT_2, FRAC_1_SQRT_2],
    [0.0, -1.0],
    [-FRAC_1_SQRT_2, FRAC_1_SQRT_2],
];

/// Weights at this distance from the fourth of eight pixels.
fn weights(place: f32) -> [i32; NEAR] {
    let (sine, cosine) = (-f64::from(place + 3.0) * FRAC_PI_4).sin_cos();
    let mut sum = 0.0;
    let floats: [f32; NEAR] = std::array::from_fn(|at| {
        let distance = place + 3.0 - at as f32;
        let value = if distance.abs() >= 1e-6 {
            let angle = -f64::from(distance) * FRAC_PI_4;
            ((TURNS[at][0] * sine + TURNS[at][1] * cosine) / (angle * angle)) as f32
        } else {
            // The pixel itself: after the division below, the others are nothing.
            1e30
        };
        sum += value;
        value
    });
    let inverse = 1.0 / sum;
    floats.map(|value| weight(value * inverse))
}

/// Scales a picture, also when it shrinks, with the pixels around each new one alone.
pub(super) fn lanczos(from: Pixels<'_>, width: usize, height: usize) -> Vec<[u8; 3]> {
    let around = |before: i64, length: usize| -> [usize; NEAR] {
        std::array::from_fn(|at| clamped(before + at as i64 - 3, length))
    };
    let columns: Vec<([usize; NEAR], [i32; NEAR])> = places(from.width, width, Centre::Half)
        .map(|(before, place)| (around(before, from.width), weights(place)))
        .collect();
    let mut rows = Rows::<i32, NEAR>::new(width);
    let mut sums = vec![0; 3 * width];
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
                        new[channel] = (0..NEAR).map(|of| i32::from(near[of][channel]) * weights[of]).sum();
                    }
                }
            });
        }
        // Half of the unit, for rounding. The largest sum of all pictures still fits into 32 bits.
        sums.fill(1 << (2 * WEIGHT_BITS - 1));
        for (y, weight) in around.into_iter().zip(weights(place)) {
            sums.iter_mut().zip(rows.get(y)).for_each(|(sum, value)| *sum += value * weight);
        }
        for (to, sum) in to.as_flattened_mut().iter_mut().zip(&sums) {
            *to = (sum >> (2 * WEIGHT_BITS)).clamp(0, 255) as u8;
        }
    }
    pixels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_those_of_opencv() {
        // Of `interpolateLanczos4`, times 2048.
        assert_eq!(weights(0.0), [0, 0, 0, 2048, 0, 0, 0, 0]);
        assert_eq!(weights(20_000.0 / 100_001.0), [-28, 99, -274, 1906, 448, -149, 50, -5]);
        assert_eq!(weights(40_000.0 / 100_001.0), [-31, 130, -358, 1521, 993, -293, 104, -19]);
    }

    #[test]
    fn the_largest_sum_fits_into_32_bits() {
        for place in 0..10_000 {
            let all = weights(place as f32 / 10_000.0);
            let above: i64 = all.iter().filter(|weight| **weight > 0).map(|weight| i64::from(*weight)).sum();
            let below: i64 = all.iter().filter(|weight| **weight < 0).map(|weight| i64::from(*weight)).sum();
            let sum = 255 * (above * above + below * below) + (1 << (2 * WEIGHT_BITS - 1));
            assert!(sum <= i64::from(i32::MAX), "{place}: {sum}");
        }
    }
}
