//! Classifiers that end with a map from class to probability give a tensor.
use crate::onnx::{FLOAT, INT64, Message, integer, port};
use std::path::Path;
use tidemill_inference::backend::{BackendError, backend};
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::error::ModelError;
use tidemill_inference::inspect;
use tidemill_inference::model::Model;
use tidemill_inference::steps::{Cell, OutputColumn};
use tidemill_inference::tensor::TensorData;
use tidemill_spec::digest::sha256;

/// ONNX's number of texts.
const STRING: u64 = 8;

fn floats(name: &str, values: &[f32]) -> Message {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Message::default().text(1, name).bytes(7, &bytes).number(20, 6)
}

fn integers(name: &str, values: &[u64]) -> Message {
    let all = Message::default().text(1, name).number(20, 7);
    values.iter().fold(all, |all, value| all.number(8, *value))
}

fn texts(name: &str, values: &[&str]) -> Message {
    let all = Message::default().text(1, name).number(20, 8);
    values.iter().fold(all, |all, value| all.text(9, value))
}

fn node(operator: &str, from: &str, to: &[&str], attributes: &[Message]) -> Message {
    let node = Message::default().text(1, from);
    let node = to.iter().fold(node, |node, to| node.text(2, to)).text(4, operator).text(7, "ai.onnx.ml");
    attributes.iter().fold(node, |node, attribute| node.message(5, attribute))
}

/// A classifier of two numbers, as skl2onnx writes it: `label` and `output_probability`.
fn classifier(classes: &Message, map: &Message, label: u64) -> Vec<u8> {
    let post = Message::default().text(1, "post_transform").text(4, "SOFTMAX").number(20, 3);
    let weights = [
        floats("coefficients", &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]),
        floats("intercepts", &[0.0, 0.0, 0.0]),
        integer("multi_class", 1),
        post,
        classes.clone(),
    ];
    let linear = node("LinearClassifier", "x", &["label", "scores"], &weights);
    let zip_map = node("ZipMap", "scores", &["output_probability"], std::slice::from_ref(map));
    // A sequence of maps from int64 or text to float.
    let float = Message::default().message(1, &Message::default().number(1, FLOAT));
    let entry = Message::default().number(1, label).message(2, &float);
    let sequence = Message::default().message(1, &Message::default().message(5, &entry));
    let output = Message::default()
        .text(1, "output_probability")
        .message(2, &Message::default().message(4, &sequence));
    let graph = Message::default()
        .message(1, &linear)
        .message(1, &zip_map)
        .text(2, "graph")
        .message(11, &port("x", FLOAT, &[2]))
        .message(12, &port("label", label, &[]))
        .message(12, &output);
    let opset = Message::default().text(1, "ai.onnx.ml").number(2, 1);
    Message::default().number(1, 8).message(7, &graph).message(8, &opset).0
}

const MANIFEST: &str = "
inputs: [{name: x, column: x, type: tensor, dtype: float32, shape: [batch, 2]}]
outputs:
  - {name: output_probability, column: scores, type: tensor, dtype: float32, shape: [batch, 3]}
  - name: output_probability
    column: class
    type: text
    dtype: float32
    shape: [batch, 3]
    postprocess: [argmax: {labels_metadata: output_probability}]
";

#[test]
fn both_kinds_of_classes_become_columns_of_a_tensor() {
    let numbers = classifier(
        &integers("classlabels_ints", &[7, 5, 9]),
        &integers("classlabels_int64s", &[7, 5, 9]),
        INT64,
    );
    let names = ["low", "middle", "high"];
    let named =
        classifier(&texts("classlabels_strings", &names), &texts("classlabels_strings", &names), STRING);
    for (file, classes) in [(numbers, ["7", "5", "9"]), (named, names)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.onnx");
        std::fs::write(&path, &file).unwrap();
        let facts = inspect(&path).unwrap();
        assert_eq!(facts.outputs[1].type_text(), "[?, 3] float32");
        assert_eq!(facts.maps, ["output_probability"]);
        assert_eq!(facts.metadata["output_probability"].lines().collect::<Vec<_>>(), classes);
        let manifest = format!(
            "version: 1\nid: m\ndescription: x\nfile: m.onnx\nsha256: {}\nlicence: MIT\n\
             origin: {{kind: external, note: made by the test}}\nbackends: [ort]{MANIFEST}",
            sha256(&file)
        );
        std::fs::write(folder.path().join("m.yaml"), &manifest).unwrap();
        let blueprint = Blueprint::read(&folder.path().join("m.yaml"))
            .unwrap_or_else(|errors| panic!("{}", ModelError::collect(errors).render(false)));
        let backend = match backend("ort", Path::new(env!("CARGO_MANIFEST_DIR"))) {
            Err(BackendError::Unavailable { .. }) if std::env::var("CI").as_deref() != Ok("true") => continue,
            found => found.unwrap(),
        };
        let mut model = Model::load(blueprint, backend.as_ref()).unwrap();
        let rows = [[1.0, 2.0], [3.0, -4.0]].map(|row| model.prepare(&[Cell::Float32(&row)]).unwrap());
        let raw = model.run(&rows).unwrap();
        let columns = model.finish(raw);
        let OutputColumn::Tensor(TensorData::Float32(scores)) = &columns[0] else { panic!("{columns:?}") };
        // The softmax of x, y and x + y.
        let expected = [0.090_030_57, 0.244_728_48, 0.665_240_94, 0.981_134, 0.000_894_68, 0.017_970_3];
        assert!(scores.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{scores:?}");
        assert_eq!(columns[1], OutputColumn::Text(vec![classes[2].to_owned(), classes[0].to_owned()]));
    }
}

#[test]
fn another_number_of_classes_is_refused() {
    let names = ["low", "middle", "high"];
    let file =
        classifier(&texts("classlabels_strings", &names), &texts("classlabels_strings", &names), STRING);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.onnx"), &file).unwrap();
    let manifest = format!(
        "version: 1\nid: m\ndescription: x\nfile: m.onnx\nsha256: {}\nlicence: MIT\n\
         origin: {{kind: external, note: made by the test}}\nbackends: [ort]{}",
        sha256(&file),
        MANIFEST
            .replace("[batch, 3]", "[batch, 4]")
            .replace("{labels_metadata: output_probability}", "{}")
            .replace("type: text", "type: int64")
    );
    std::fs::write(folder.path().join("m.yaml"), &manifest).unwrap();
    let errors = Blueprint::read(&folder.path().join("m.yaml")).unwrap_err();
    let text = ModelError::collect(errors).render(false);
    assert!(text.contains("expected [batch, 4] float32, found [?, 3] float32"), "{text}");
}

/// `OneHotEncoder` of scikit-learn refuses unknown categories unless it is made with `handle_unknown`.
#[test]
fn an_encoder_that_refuses_zeros_is_loaded() {
    let categories = [texts("cats_strings", &["a", "b"]), integer("zeros", 0)];
    let graph = Message::default()
        .message(1, &node("OneHotEncoder", "x", &["y"], &categories))
        .text(2, "graph")
        .message(11, &port("x", STRING, &[1]))
        .message(12, &port("y", FLOAT, &[2]));
    let opset = Message::default().text(1, "ai.onnx.ml").number(2, 1);
    let file = Message::default().number(1, 8).message(7, &graph).message(8, &opset).0;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.onnx"), &file).unwrap();
    let manifest = format!(
        "version: 1\nid: m\ndescription: x\nfile: m.onnx\nsha256: {}\nlicence: MIT\n\
         origin: {{kind: external, note: made by the test}}\nbackends: [ort]\n\
         inputs: [{{name: x, column: x, type: text, dtype: text, shape: [batch, 1]}}]\n\
         outputs: [{{name: y, column: y, type: tensor, dtype: float32, shape: [batch, 2]}}]\n",
        sha256(&file)
    );
    std::fs::write(folder.path().join("m.yaml"), &manifest).unwrap();
    let blueprint = Blueprint::read(&folder.path().join("m.yaml"))
        .unwrap_or_else(|errors| panic!("{}", ModelError::collect(errors).render(false)));
    let backend = match backend("ort", Path::new(env!("CARGO_MANIFEST_DIR"))) {
        Err(BackendError::Unavailable { .. }) if std::env::var("CI").as_deref() != Ok("true") => return,
        found => found.unwrap(),
    };
    let mut model = Model::load(blueprint, backend.as_ref()).unwrap();
    let row = model.prepare(&[Cell::Text("b")]).unwrap();
    // It gives [1, 1, 2], with a dimension of 1 more than the file declares.
    let raw = model.run(&[row]).unwrap();
    assert_eq!(model.finish(raw), [OutputColumn::Tensor(TensorData::Float32(vec![0.0, 1.0]))]);
    let unknown = model.prepare(&[Cell::Text("c")]).unwrap();
    assert!(model.run(&[unknown]).is_err());
}
