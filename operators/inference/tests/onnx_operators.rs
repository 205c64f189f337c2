//! The operator tests of the ONNX standard on every backend of this machine; see `scripts/onnx_operator_tests.sh`.
use half::f16;
use std::path::{Path, PathBuf};
use tidemill_inference::backend::registered;
use tidemill_inference::inspect;
use tidemill_inference::tensor::{Tensor, TensorData};

/// Tests in which a backend is known to differ and no model is refused: random numbers, values on the border of two 8-bit
/// steps, rare forms of average and inverse pooling on ONNX Runtime, and the single position of an output of size 1, on
/// which even the backends agree with each other.
const KNOWN: &[&str] = &[
    "ort test_averagepool_3d_dilations_large_count_include_pad_is_1_ceil_mode_is_True",
    "ort test_bernoulli_seed",
    "ort test_bernoulli_seed_expanded",
    "ort test_maxunpool_export_with_output_shape",
    "ort test_resize_downsample_scales_cubic_align_corners",
    "ort test_resize_downsample_scales_linear_align_corners",
    "rten test_dynamicquantizelinear",
    "rten test_dynamicquantizelinear_expanded",
    "rten test_resize_downsample_scales_linear_align_corners",
];

/// The fields of a message of protocol buffers: number, integer and bytes.
fn fields(mut rest: &[u8]) -> Vec<(u64, u64, &[u8])> {
    fn varint(rest: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        while let Some((byte, after)) = rest.split_first() {
            *rest = after;
            value |= u64::from(byte & 127) << shift;
            shift += 7;
            if byte & 128 == 0 || shift > 63 {
                break;
            }
        }
        value
    }
    let mut found = Vec::new();
    while !rest.is_empty() {
        let key = varint(&mut rest);
        let (integer, length) = match key & 7 {
            0 => (varint(&mut rest), 0),
            1 => (0, 8),
            2 => (0, varint(&mut rest) as usize),
            _ => (0, 4),
        };
        let (bytes, after) = rest.split_at(length.min(rest.len()));
        rest = after;
        found.push((key >> 3, integer, bytes));
    }
    found
}

/// Reads a tensor file, if Tidemill supports its element type.
fn tensor(path: &Path) -> Option<Tensor> {
    let bytes = std::fs::read(path).ok()?;
    let fields = fields(&bytes);
    let shape = fields.iter().filter(|field| field.0 == 1).map(|field| field.1 as usize).collect();
    let raw = fields.iter().find(|field| field.0 == 9).map_or(&[][..], |field| field.2);
    let data = match fields.iter().find(|field| field.0 == 2)?.1 {
        1 => TensorData::Float32(
            raw.chunks_exact(4).map(|value| f32::from_le_bytes(value.try_into().unwrap())).collect(),
        ),
        2 => TensorData::Uint8(raw.to_vec()),
        7 => TensorData::Int64(
            raw.chunks_exact(8).map(|value| i64::from_le_bytes(value.try_into().unwrap())).collect(),
        ),
        10 => TensorData::Float16(
            raw.chunks_exact(2).map(|value| f16::from_le_bytes(value.try_into().unwrap())).collect(),
        ),
        _ => return None,
    };
    Tensor::new(shape, data).ok()
}

fn tensors(folder: &Path, kind: &str) -> Option<Vec<Tensor>> {
    let path = |i: usize| folder.join(format!("{kind}_{i}.pb"));
    (0..).map(path).take_while(|path| path.exists()).map(|path| tensor(&path)).collect()
}

/// Describes how a backend's output differs from the standard.
fn wrong(given: &Tensor, right: &Tensor) -> Option<String> {
    if given.shape() != right.shape() {
        return Some(format!("{given} instead of {right}"));
    }
    let close =
        |(a, b): &(f64, f64)| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-3 * b.abs().max(1.0);
    let pairs = given.data().to_f64().into_iter().zip(right.data().to_f64());
    pairs.into_iter().find(|pair| !close(pair)).map(|(a, b)| format!("{a} instead of {b}"))
}

#[test]
#[ignore = "standard: scripts/onnx_operator_tests.sh"]
fn no_backend_gives_what_the_standard_does_not_say() {
    let folder =
        PathBuf::from(std::env::var_os("TIDEMILL_ONNX_TESTS").expect("a folder in TIDEMILL_ONNX_TESTS"));
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut tests: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    tests.sort();
    let mut wrongs = Vec::new();
    for backend in registered() {
        let Ok(opened) = (backend.open)(here) else { continue };
        let (mut right, mut refused, mut other, mut differ) = (0, 0, 0, 0);
        for test in &tests {
            let data = test.join("test_data_set_0");
            let ports = (tensors(&data, "input"), tensors(&data, "output"));
            let ((Some(inputs), Some(outputs)), Ok(facts)) = (ports, inspect(&test.join("model.onnx")))
            else {
                other += 1;
                continue;
            };
            let wanted: Vec<usize> = (0..outputs.len()).collect();
            match opened.load(&facts).and_then(|mut session| session.run(&inputs, &wanted)) {
                Err(_) => refused += 1,
                Ok(given) => {
                    match given.iter().zip(&outputs).find_map(|(given, right)| wrong(given, right)) {
                        None => right += 1,
                        Some(why) => {
                            differ += 1;
                            let name = test.file_name().unwrap_or_default().to_string_lossy();
                            wrongs.push(format!("{} {name}: {why}", backend.name));
                        }
                    }
                }
            }
        }
        println!(
            "{}: {right} right, {refused} refused, {differ} differ, {other} of other types",
            backend.name
        );
    }
    let is_known = |wrong: &String| wrong.split_once(':').is_some_and(|(name, _)| KNOWN.contains(&name));
    println!("{}", wrongs.join("\n"));
    assert!(wrongs.iter().all(is_known), "a difference that is not known, see above");
}
