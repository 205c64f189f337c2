//! The outputs of a record do not depend on the others of its batch.

use crate::onnx::{FLOAT, INT64, cast, joining, node};
use crate::shapes::{floats, folder, integers, loaded, model, port};
use std::path::Path;
use tidemill_inference::steps::{Cell, OutputColumn};
use tidemill_inference::verify;

#[test]
fn a_mask_belongs_to_the_record_wherever_records_are_counted() {
    let nodes = [node("Identity", "x", "y", &[]), node("Identity", "m", "n", &[])];
    let pooled = model(
        &nodes,
        &[port("x", FLOAT, "3 batch 2"), port("m", FLOAT, "3 batch")],
        &[port("y", FLOAT, "3 batch 2"), port("n", FLOAT, "3 batch")],
    );
    let folder = folder(
        &pooled,
        "inputs:\n\
         - {name: x, column: x, type: tensor, dtype: float32, shape: [3, batch, 2]}\n\
         - {name: m, column: m, type: tensor, dtype: float32, shape: [3, batch]}\n\
         outputs:\n\
         - {name: y, column: y, type: tensor, dtype: float32, shape: [3, batch, 2], postprocess: [mean_pool: {mask: m}]}\n",
    );
    for mut model in loaded(folder.path()) {
        let first = [Cell::Float32(&[1.0, 1.0, 10.0, 10.0, 100.0, 100.0]), Cell::Float32(&[1.0, 0.0, 0.0])];
        let second = [Cell::Float32(&[2.0, 2.0, 20.0, 20.0, 200.0, 200.0]), Cell::Float32(&[0.0, 1.0, 1.0])];
        let rows = [model.prepare(&first).unwrap(), model.prepare(&second).unwrap()];
        let raw = model.run(&rows).unwrap();
        assert_eq!(floats(&model.finish(raw)[0]), [1.0, 1.0, 110.0, 110.0], "{}", model.backend());
    }
    assert_verified(folder.path());
}

#[test]
fn texts_without_a_mask_come_out_as_they_do_alone() {
    let nodes = [cast("x", "float", FLOAT), node("ReduceMean", "float", "y", &[integers("axes", &[1])])];
    let means = model(&nodes, &[port("x", INT64, "batch length")], &[port("y", FLOAT, "batch 1")]);
    let folder = folder(
        &means,
        "inputs: [{name: x, column: x, type: text, dtype: int64, shape: [batch, any], \
         preprocess: [characters: {alphabet: abc}]}]\n\
         outputs:\n\
         - {name: y, column: y, type: float64, dtype: float32, shape: [batch, 1]}\n\
         - {name: y, column: z, type: tensor, dtype: float32, shape: [batch, 1]}\n",
    );
    for mut model in loaded(folder.path()) {
        let texts = ["cc", "cccccccc", "ab", "b", "ccccaaaa", ""];
        let mut rows = model.no_rows();
        texts.iter().for_each(|text| model.prepare_into(&[Cell::Text(text)], &mut rows).unwrap());
        let raw = model.run_rows(&mut rows).unwrap();
        let columns = model.finish(raw);
        // A model reads at least one character: the padding, which is 0.
        let expected = [3.0, 3.0, 1.5, 2.0, 2.0, 0.0];
        assert_eq!(columns[0], OutputColumn::Float64(expected.to_vec()), "{}", model.backend());
        assert_eq!(floats(&columns[1]), expected.map(|value| value as f32), "{}", model.backend());
    }
    assert_verified(folder.path());
}

#[test]
fn a_model_that_mixes_records_is_refused() {
    let nodes = [
        node("ReduceMean", "x", "mean", &[integers("axes", &[0])]),
        joining("Sub", &["x", "mean"], "y", &[]),
    ];
    let mixing = model(&nodes, &[port("x", FLOAT, "batch 3")], &[port("y", FLOAT, "batch 3")]);
    let ports = "inputs: [{name: x, column: x, type: tensor, dtype: float32, shape: [batch, 3]}]\n\
                 outputs: [{name: y, column: y, type: tensor, dtype: float32, shape: [batch, 3]}]\n";
    let mixed = folder(&mixing, ports);
    let report = verify(&mixed.path().join("m.yaml"), Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
    assert!(!report.is_usable());
    let rten = report.backends.into_iter().find(|backend| backend.backend == "rten").unwrap();
    let text = rten.result.unwrap_err().into_diagnostics().render(false);
    assert!(
        text.contains("E0564") && text.contains("depend on the others") && text.contains("write 1 instead"),
        "{text}"
    );
    assert_verified(folder(&mixing, &ports.replace("batch", "1")).path());
}

fn assert_verified(folder: &Path) {
    let report = verify(&folder.join("m.yaml"), Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
    assert!(report.is_usable(), "{:?}", report.backends);
}
