use super::*;
use image::Rgb;
use proptest::prelude::*;
use serde::Deserialize;

const ALL: [Filter; 10] = [
    Filter::PillowBilinear,
    Filter::PillowNearest,
    Filter::PillowBox,
    Filter::PillowBicubic,
    Filter::PillowLanczos,
    Filter::OpencvNearest,
    Filter::OpencvLinear,
    Filter::OpencvCubic,
    Filter::OpencvLanczos4,
    Filter::OpencvArea,
];

/// A picture as scaled by Pillow or OpenCV, made by `testdata/make_filters.py`.
#[derive(Deserialize)]
struct Reference {
    filter: String,
    from: (u32, u32),
    to: (u32, u32),
    pixels: String,
}

/// The picture of the references.
fn picture(width: u32, height: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| {
        let mixed = (x * 31 + y * 17) ^ (x * y * 5);
        let blue = [0, 255, mixed as u8][((x / 3 + y / 2) % 3) as usize];
        Rgb([mixed as u8, (mixed * 7) as u8, blue])
    })
}

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let (pairs, _) = hexadecimal.as_bytes().as_chunks::<2>();
    pairs.iter().map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn filters_follow_their_libraries() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/filters.json");
    let references: Vec<Reference> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    for filter in ALL {
        let of_filter: Vec<_> =
            references.iter().filter(|reference| reference.filter == format!("{filter:?}")).collect();
        assert_eq!(of_filter.len(), 9, "{filter:?}");
        // The code of OpenCV for vectors rounds `INTER_CUBIC` as floats do.
        let most = u8::from(matches!(filter, Filter::PillowBilinear | Filter::OpencvCubic));
        for Reference { from, to, pixels, .. } in of_filter {
            let result = scaled(picture(from.0, from.1), to.0, to.1, filter);
            assert_eq!(result.dimensions(), *to);
            let expected = bytes(pixels);
            assert_eq!(result.as_raw().len(), expected.len());
            for (at, (found, expected)) in result.as_raw().iter().zip(&expected).enumerate() {
                let off = found.abs_diff(*expected);
                assert!(off <= most, "{filter:?} from {from:?} to {to:?}, at {at}: {found} for {expected}");
            }
        }
    }
}

#[test]
fn any_size_becomes_any_size() {
    let sizes = [(1, 1), (1, 700), (700, 1), (3, 5), (64, 64)];
    for filter in ALL {
        for (from, to) in sizes.iter().flat_map(|from| sizes.map(|to| (*from, to))) {
            let result =
                scaled(RgbImage::from_pixel(from.0, from.1, Rgb([10, 200, 255])), to.0, to.1, filter);
            assert_eq!(result.dimensions(), to);
            // A plain colour stays, but for what OpenCV's rounding of weights and cutting takes off.
            let off =
                result.as_raw().iter().zip([10u8, 200, 255].iter().cycle()).map(|(a, b)| a.abs_diff(*b));
            assert!(off.max() <= Some(1), "{filter:?} from {from:?} to {to:?}");
        }
        let empty = scaled(RgbImage::new(0, 4), 2, 2, filter);
        assert_eq!(empty, RgbImage::new(2, 2), "{filter:?}");
        assert_eq!(scaled(picture(4, 4), 0, 3, filter), RgbImage::new(0, 3), "{filter:?}");
    }
}

#[test]
fn equal_sizes_change_nothing() {
    for filter in ALL {
        assert_eq!(scaled(picture(9, 7), 9, 7, filter), picture(9, 7), "{filter:?}");
    }
}

#[test]
fn means_of_very_large_areas_do_not_overflow() {
    let white = RgbImage::from_pixel(4200, 4200, Rgb([255; 3]));
    assert_eq!(scaled(white, 1, 1, Filter::OpencvArea).get_pixel(0, 0).0, [255; 3]);
}

/// The rules of whole numbers by definition, in a plain form, on random pictures.
fn by_definition(image: &RgbImage, width: u32, height: u32) -> RgbImage {
    let places = |from: u32, to: u32| -> Vec<(i64, i64, i64)> {
        let ratio = 1.0 / (f64::from(to) / f64::from(from));
        let places = (0..to).map(|at| {
            let place = ((f64::from(at) + 0.5) * ratio - 0.5) as f32;
            let part = place - place.floor();
            let round = |weight: f32| (weight * 2048.0).round_ties_even() as i64;
            (place.floor() as i64, round(1.0 - part), round(part))
        });
        places.collect()
    };
    let (columns, rows) = (places(image.width(), width), places(image.height(), height));
    RgbImage::from_fn(width, height, |x, y| {
        let ((x, left, right), (y, upper, lower)) = (columns[x as usize], rows[y as usize]);
        let last = i64::from(image.width()) - 1;
        // Beyond the first and last column there is no blending.
        let (left, right) = if x < 0 || x >= last { (2048, 0) } else { (left, right) };
        Rgb(std::array::from_fn(|channel| {
            let at = |x: i64, y: i64| {
                let (x, y) = (x.clamp(0, last), y.clamp(0, i64::from(image.height()) - 1));
                i64::from(image.get_pixel(x as u32, y as u32).0[channel])
            };
            let row = |y: i64| (at(x, y) * left + at(x + 1, y) * right) >> 4;
            ((((row(y) * upper) >> 16) + ((row(y + 1) * lower) >> 16) + 2) >> 2) as u8
        }))
    })
}

proptest! {
    #[test]
    fn linear_is_that_of_its_definition(from in (1u32..40, 1u32..40), to in (1u32..40, 1u32..40), seed: u32) {
        prop_assume!(from != (2 * to.0, 2 * to.1) && from != to);
        let image = RgbImage::from_fn(from.0, from.1, |x, y| {
            let mixed = (x + 40 * y).wrapping_mul(2_654_435_761).wrapping_add(seed);
            Rgb([(mixed >> 24) as u8, (mixed >> 16) as u8, (mixed >> 8) as u8])
        });
        let result = scaled(image.clone(), to.0, to.1, Filter::OpencvLinear);
        prop_assert_eq!(result, by_definition(&image, to.0, to.1));
    }
}
