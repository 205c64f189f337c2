//! Both backends agree for every model: within 1e-4, on inputs from a fixed generator.
use std::path::{Path, PathBuf};
use tidemill_inference::backend::{self, BackendError};
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::tensor::{Tensor, TensorData};
use tidemill_spec::types::ElementType;

const TOLERANCE: f32 = 1e-4;

/// Manifests of the test models and of the shipped models.
fn manifests() -> Vec<PathBuf> {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = Vec::new();
    for folder in [crate_folder.join("testdata"), crate_folder.join("../../models/vqa")] {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        all.extend(entries.map(|e| e.unwrap().path()).filter(|p| p.extension().is_some_and(|e| e == "yaml")));
    }
    all.sort();
    all
}

/// Numbers between -1 and 1, or whole ones from 0 to 4, deterministic.
fn input(element: ElementType, shape: Vec<usize>, seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let length = shape.iter().product();
    let data = match element {
        ElementType::Float32 => {
            TensorData::Float32((0..length).map(|_| (next() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect())
        }
        ElementType::Int64 => TensorData::Int64((0..length).map(|_| (next() % 5) as i64).collect()),
        other => panic!("no test model takes {other}"),
    };
    Tensor::new(shape, data).unwrap()
}

fn assert_close(manifest: &Path, rten: &Tensor, ort: &Tensor) {
    assert_eq!(rten.shape(), ort.shape(), "{}", manifest.display());
    // At 8 bits a value between two steps may be rounded up or down, and later layers propagate the difference.
    let quantised = manifest.file_stem().is_some_and(|name| name.to_string_lossy().ends_with("-int8"));
    let tolerance = if quantised { 0.1 } else { TOLERANCE };
    match (rten.as_f32(), ort.as_f32()) {
        (Some(a), Some(b)) => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                let close = (a - b).abs() <= tolerance * b.abs().max(1.0);
                assert!(close, "{}: value {i} is {a} and {b}", manifest.display());
            }
        }
        _ => assert_eq!(rten, ort, "{}", manifest.display()),
    }
}

#[test]
fn backends_agree() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let ort = match backend::backend("ort", here) {
        Ok(ort) => ort,
        Err(error @ BackendError::Unavailable { .. }) if std::env::var("CI").as_deref() != Ok("true") => {
            eprintln!("left out: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let rten = backend::backend("rten", here).unwrap();
    let manifests = manifests();
    assert!(manifests.len() >= 8, "{manifests:?}");
    for manifest in &manifests {
        let blueprint = Blueprint::read(manifest)
            .unwrap_or_else(|errors| panic!("{}: {}", manifest.display(), errors[0]));
        let facts = &blueprint.facts;
        let mut sessions = [rten.load(facts).unwrap(), ort.load(facts).unwrap()];
        let outputs: Vec<usize> = (0..facts.outputs.len()).collect();
        for batch in if blueprint.one_by_one { vec![1] } else { vec![1, 2, 5] } {
            let inputs: Vec<Tensor> = facts
                .inputs
                .iter()
                .enumerate()
                .map(|(i, port)| {
                    let shape =
                        port.shape.as_ref().unwrap().iter().enumerate().map(
                            |(d, dimension)| match dimension {
                                tidemill_inference::facts::Dimension::Fixed(size) => *size,
                                tidemill_inference::facts::Dimension::Free(_) if d == 0 => batch,
                                // The width for models that accept any.
                                tidemill_inference::facts::Dimension::Free(_) => 64,
                            },
                        );
                    let tidemill_inference::facts::PortElement::Known(element) = port.element else {
                        panic!("{}", port.type_text())
                    };
                    input(element, shape.collect(), (batch * 10 + i) as u64)
                })
                .collect();
            let [a, b] = sessions.each_mut().map(|session| session.run(&inputs, &outputs).unwrap());
            assert_eq!(a.len(), b.len());
            for (a, b) in a.iter().zip(&b) {
                assert_close(manifest, a, b);
            }
        }
    }
}

#[test]
fn integers_that_rten_cannot_take_are_an_error() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let facts = tidemill_inference::inspect(&here.join("testdata/text_sum.onnx")).unwrap();
    let mut session = backend::backend("rten", here).unwrap().load(&facts).unwrap();
    let text = Tensor::new(vec![1, 6], TensorData::Int64(vec![1 << 40, 0, 0, 0, 0, 0])).unwrap();
    let extra = Tensor::zeros(ElementType::Float32, vec![1, 2]);
    let error = session.run(&[text, extra], &[0]).unwrap_err();
    assert!(error.to_string().contains("32 bits"), "{error}");
}

#[test]
fn a_session_refuses_other_numbers_of_inputs() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let facts = tidemill_inference::inspect(&here.join("testdata/identity.onnx")).unwrap();
    for registered in backend::registered() {
        let Ok(backend) = (registered.open)(here) else { continue };
        let mut session = backend.load(&facts).unwrap();
        assert!(session.run(&[], &[0]).is_err());
        assert!(session.run(&[Tensor::zeros(ElementType::Float32, vec![1, 4])], &[7]).is_err());
        assert!(
            session.run(&[Tensor::zeros(ElementType::Float32, vec![1, 5])], &[0]).is_err()
                || registered.name == "rten"
        );
    }
}
