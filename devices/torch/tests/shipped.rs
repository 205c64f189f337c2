//! The shipped models as TorchScript and as packages.
//!
//! `scripts/test-backends.sh torch` writes the TorchScript files and names their folder in `TIDEMILL_TORCH_MODELS`,
//! `scripts/test-backends.sh packages` those of packages in `TIDEMILL_TORCH_PACKAGES`.
#[path = "../../shipped.rs"]
mod shipped;

use shipped::{Program, Reference, files, folder, input};

fn program() -> Program {
    Program::start("torch", env!("CARGO_BIN_EXE_tidemill-device-torch"))
}

#[test]
fn outputs_are_those_of_onnx_runtime() {
    let models = files(&folder("TIDEMILL_TORCH_MODELS"), "pt");
    assert!(models.len() >= 21, "the repository has 21 models, found {}", models.len());
    program().compare(&models);
}

#[test]
#[ignore = "scripts/test-backends.sh packages writes the packages, for which it needs PyTorch"]
fn outputs_of_packages_are_those_of_onnx_runtime() {
    let models = files(&folder("TIDEMILL_TORCH_PACKAGES"), "pt2");
    assert!(models.len() >= 2, "found {} packages", models.len());
    program().compare(&models);
}

/// A package does not notice itself that an input is too small, and would read beyond it.
#[test]
#[ignore = "scripts/test-backends.sh packages writes the packages, for which it needs PyTorch"]
fn a_package_refuses_an_input_of_another_shape_and_the_session_continues() {
    let path = folder("TIDEMILL_TORCH_PACKAGES").join("scene-features-tiny.pt2");
    let reference = Reference::of(&path);
    let mut shape = reference.inputs[0].shape.clone();
    let sides = shape.len();
    shape.swap(1, sides - 1);
    let program = program();
    let refused = program.run_on(&path, &reference, &[(shape, input(&path, 0))]);
    let told = refused.expect_err("a picture with its sides swapped").to_string();
    assert!(told.contains("scene-features-tiny.pt2 failed to run"), "{told}");
    program.run(&path, &reference).expect("the session continues");
}

#[test]
fn a_file_that_is_no_model_is_refused_and_the_session_continues() {
    let refused = program().refuses("broken.pt", b"PK\x03\x04 no zip");
    assert!(!refused.contains("frame #"), "addresses of a call stack help nobody: {refused}");
}

#[test]
fn a_wrong_number_of_inputs_is_told() {
    let path = folder("TIDEMILL_TORCH_MODELS").join("scene-features-tiny.pt");
    let none = Reference { inputs: Vec::new(), ..Reference::of(&path) };
    let told = program().run(&path, &none).expect_err("it needs a picture").to_string();
    assert!(told.contains("scene-features-tiny.pt failed to run"), "{told}");
}
