//! Models that a backend would compute differently from the ONNX standard, or whose library panics.

use crate::onnx::{FLOAT, INT64, Message, cast, floats, integer, integers, joining, model, node, port, text};
use std::path::Path;
use tidemill_inference::backend::{Session, backend};
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::choice;
use tidemill_inference::error::ModelError;
use tidemill_inference::facts::inspect;
use tidemill_inference::tensor::{Tensor, TensorData};
use tidemill_inference::verify;
use tidemill_spec::digest::sha256;

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The session of the model on a backend, or the error.
fn loaded(name: &str, bytes: &[u8]) -> Result<Box<dyn Session>, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    std::fs::write(&path, bytes).unwrap();
    let backend = backend(name, here()).map_err(|error| error.to_string())?;
    backend.load(&inspect(&path).unwrap()).map_err(|error| error.to_string())
}

fn run(bytes: &[u8], input: &Tensor) -> Result<Tensor, String> {
    let mut session = loaded("rten", bytes)?;
    let mut given = session.run(std::slice::from_ref(input), &[0]).map_err(|error| error.to_string())?;
    Ok(given.remove(0))
}

fn tensor(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::new(shape.to_vec(), TensorData::Float32(values.to_vec())).unwrap()
}

fn whole(values: &[i64]) -> Tensor {
    Tensor::new(vec![1, values.len()], TensorData::Int64(values.to_vec())).unwrap()
}

#[test]
fn an_old_softmax_runs_where_it_means_the_same() {
    let softmax = |opset, row: &[u64], attributes: &[Message]| {
        model(
            opset,
            &[node("Softmax", "x", "y", attributes)],
            &[],
            &port("x", FLOAT, row),
            &port("y", FLOAT, row),
        )
    };
    let matrix = tensor(&[1, 2], &[0.0, 0.0]);
    assert_eq!(run(&softmax(11, &[2], &[]), &matrix).unwrap(), tensor(&[1, 2], &[0.5, 0.5]));
    let cube = tensor(&[1, 2, 1], &[0.0, 0.0]);
    let halves = tensor(&[1, 2, 1], &[0.5, 0.5]);
    assert_eq!(run(&softmax(13, &[2, 1], &[integer("axis", 1)]), &cube).unwrap(), halves);
    assert_eq!(run(&softmax(11, &[2, 1], &[integer("axis", 1)]), &cube).unwrap(), halves);
    let error = run(&softmax(11, &[2, 1], &[]), &cube).unwrap_err();
    assert!(error.contains("Softmax `y` of opset 11") && error.contains("count together"), "{error}");
    let other = tensor(&[1, 2, 2], &[0.0; 4]);
    assert!(run(&softmax(11, &[2, 2], &[integer("axis", 1)]), &other).is_err());
    assert!(run(&softmax(11, &[2, 2], &[integer("axis", -2)]), &other).is_err());
    assert!(run(&softmax(11, &[2, 2], &[integer("axis", 2)]), &other).is_ok());
    assert!(run(&softmax(11, &[2, 2], &[integer("axis", -1)]), &other).is_ok());
}

#[test]
fn a_cubic_resize_is_refused() {
    let resize = |mode| {
        model(
            17,
            &[joining("Resize", &["x", "", "s"], "y", &[text("mode", mode)])],
            &[floats("s", &[4], &[1.0, 1.0, 2.0, 2.0])],
            &port("x", FLOAT, &[1, 2, 2]),
            &port("y", FLOAT, &[1, 4, 4]),
        )
    };
    assert!(loaded("rten", &resize("linear")).is_ok());
    let error = loaded("rten", &resize("cubic")).err().unwrap();
    assert!(error.contains("Resize `y` of opset 17") && error.contains("cubic"), "{error}");
    if let Err(error) = loaded("ort", &resize("cubic")) {
        assert!(error.contains("not available"), "{error}");
    }
}

/// A model of int64 that joins its input with a constant.
fn joined(operator: &str, constant: i64) -> Vec<u8> {
    let nodes = [joining(operator, &["x", "c"], "y", &[])];
    model(17, &nodes, &[integers("c", &[constant])], &port("x", INT64, &[2]), &port("y", INT64, &[2]))
}

#[test]
fn integers_beyond_32_bits_are_refused_wherever_they_begin() {
    assert_eq!(run(&joined("Add", 7), &whole(&[1, 2])), Ok(whole(&[8, 9])));
    let error = run(&joined("Add", 3_000_000_000), &whole(&[1, 2])).unwrap_err();
    assert!(error.contains("int64") && error.contains("constant `c`"), "{error}");
    for (operator, constant, input) in
        [("Add", 7, i32::MAX as i64), ("Sub", 7, i32::MIN as i64), ("Mul", 70_000, 70_000)]
    {
        let error = run(&joined(operator, constant), &whole(&[1, input])).unwrap_err();
        assert!(error.contains("int64") && error.contains(operator), "{error}");
    }
}

#[test]
fn a_cast_beyond_32_bits_does_not_pass() {
    let cast_only =
        model(17, &[cast("x", "y", INT64)], &[], &port("x", FLOAT, &[2]), &port("y", INT64, &[2]));
    assert_eq!(run(&cast_only, &tensor(&[1, 2], &[1.5, -2.0])), Ok(whole(&[1, -2])));
    for large in [3e9, -3e9] {
        let error = run(&cast_only, &tensor(&[1, 2], &[0.0, large])).unwrap_err();
        assert!(error.contains("int64 output is at the limit"), "{error}");
    }
    let nodes = [cast("x", "i", INT64), joining("Add", &["i", "c"], "y", &[])];
    let arithmetic =
        model(17, &nodes, &[integers("c", &[1])], &port("x", FLOAT, &[2]), &port("y", INT64, &[2]));
    let error = run(&arithmetic, &tensor(&[1, 2], &[0.0, 0.0])).unwrap_err();
    assert!(error.contains("int64") && error.contains("Add `y`"), "{error}");
}

#[test]
fn the_end_of_a_slice_may_be_any_integer() {
    let nodes = [joining("Slice", &["x", "from", "to", "axes"], "y", &[])];
    let weights = [integers("from", &[0]), integers("to", &[i64::MAX]), integers("axes", &[1])];
    let slice = model(17, &nodes, &weights, &port("x", FLOAT, &[2]), &port("y", FLOAT, &[2]));
    let values = tensor(&[1, 2], &[1.0, 2.0]);
    assert_eq!(run(&slice, &values).unwrap(), values);
}

/// A product plus one number, on which rten 0.27.0 panics.
fn panicking() -> Vec<u8> {
    let nodes = [joining("MatMul", &["x", "w"], "p", &[]), joining("Add", &["p", "b"], "y", &[])];
    let weights = [floats("w", &[2, 3], &[1.0; 6]), floats("b", &[1], &[0.25])];
    model(17, &nodes, &weights, &port("x", FLOAT, &[2]), &port("y", FLOAT, &[3]))
}

fn folder(bytes: &[u8], row: u64) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.onnx"), bytes).unwrap();
    let manifest = format!(
        "version: 1\nid: m\ndescription: x\nfile: m.onnx\nsha256: {}\nlicence: MIT\n\
         origin: {{kind: external, note: made by the test}}\nbackends: [ort, rten]\n\
         inputs: [{{name: x, column: x, type: tensor, dtype: float32, shape: [batch, 2]}}]\n\
         outputs: [{{name: y, column: y, type: tensor, dtype: float32, shape: [batch, {row}]}}]\n",
        sha256(bytes)
    );
    std::fs::write(folder.path().join("m.yaml"), manifest).unwrap();
    folder
}

#[test]
fn a_panic_is_an_error_of_the_model() {
    // With one record the product is that of a vector, which may have another implementation.
    let values = tensor(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let error = run(&panicking(), &values).unwrap_err();
    assert!(error.contains("rten") && error.contains("m.onnx") && error.contains("a panic"), "{error}");
    let folder = folder(&panicking(), 3);
    let blueprint = Blueprint::read(&folder.path().join("m.yaml")).unwrap();
    match choice::load_with_memory(&blueprint, "auto", here(), None) {
        Ok((model, choice)) => {
            assert_eq!(model.backend(), "ort");
            assert!(choice.to_string().contains("without rten"), "{choice}");
        }
        Err(error) => assert!(matches!(error, ModelError::Trial { .. }), "{error}"),
    }
}

#[test]
fn an_output_that_counts_what_was_found_is_told_so() {
    // Non-zero elements of the input; zeros have none.
    let nodes = [node("NonZero", "x", "n", &[]), node("Transpose", "n", "t", &[]), cast("t", "y", FLOAT)];
    let found = model(17, &nodes, &[], &port("x", FLOAT, &[2]), &port("y", FLOAT, &[2]));
    let folder = folder(&found, 2);
    let report = verify(&folder.path().join("m.yaml"), here()).unwrap();
    assert!(!report.is_usable());
    for backend in report.backends {
        let error = backend.result.unwrap_err();
        if matches!(error, ModelError::Trial { .. }) {
            let text = ModelError::collect([error]).render(false);
            assert!(text.contains("found float32 [0, 2]") && text.contains("variable length"), "{text}");
        }
    }
}
