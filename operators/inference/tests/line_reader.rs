//! Recognisers of text in lines: the aspect ratio is kept, blue may come first, the alphabet may be in the model file. The
//! model is a tiny one; see testdata/make_testdata.py.
use image::{ImageFormat, Rgb, RgbImage};
use std::io::Cursor;
use std::path::Path;
use tidemill_inference::backend::{self, BackendError};
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::error::ModelError;
use tidemill_inference::model::Model;
use tidemill_inference::steps::{Cell, OutputColumn};
use tidemill_spec::digest::sha256;

fn testdata() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata"))
}

/// A picture with one colour per column, `scale` times the size that the model reads.
fn picture(columns: &str, scale: u32) -> Vec<u8> {
    let colours: Vec<Rgb<u8>> = columns
        .chars()
        .map(|c| match c {
            'r' => Rgb([255, 0, 0]),
            'g' => Rgb([0, 255, 0]),
            'b' => Rgb([0, 0, 255]),
            ' ' => Rgb([255, 255, 255]),
            _ => Rgb([0, 0, 0]),
        })
        .collect();
    let width = u32::try_from(colours.len()).unwrap() * scale;
    let picture = RgbImage::from_fn(width, 4 * scale, |x, _| colours[(x / scale) as usize]);
    let mut bytes = Cursor::new(Vec::new());
    picture.write_to(&mut bytes, ImageFormat::Png).unwrap();
    bytes.into_inner()
}

/// Compares the texts that a model reads.
fn compare(mut model: Model) {
    let lines = [("rrr.bb", 1), ("g.g  rb", 1), ("bbbbrrrrgggg", 1), ("r", 1), ("rrgb", 5)];
    let mut rows = Vec::new();
    for (columns, scale) in lines {
        rows.push(model.prepare(&[Cell::Bytes(&picture(columns, scale))]).unwrap());
    }
    let raw = model.run(&rows).unwrap();
    let Some(OutputColumn::Text(texts)) = model.finish(raw).into_iter().next() else { panic!("texts") };
    assert_eq!(texts, ["rb", "gg rb", "brg", "r", "rgb"]);
}

#[test]
fn lines_of_any_length_are_read() {
    let blueprint = Blueprint::read(&testdata().join("line_reader.yaml")).unwrap();
    compare(Model::load(blueprint, backend::backend("rten", testdata()).unwrap().as_ref()).unwrap());
}

#[test]
fn onnx_runtime_reads_its_own_format() {
    let folder = tempfile::tempdir().unwrap();
    let file = std::fs::read(testdata().join("line_reader.ort")).unwrap();
    std::fs::write(folder.path().join("line_reader.ort"), &file).unwrap();
    let text = std::fs::read_to_string(testdata().join("line_reader.yaml")).unwrap();
    let digest = text.lines().find_map(|line| line.strip_prefix("sha256: ")).unwrap();
    let text = text.replace("line_reader.onnx", "line_reader.ort").replace(digest, &sha256(&file));
    let path = folder.path().join("m.yaml");
    std::fs::write(&path, text).unwrap();
    let blueprint = Blueprint::read(&path).unwrap();
    let rten = backend::backend("rten", testdata()).unwrap();
    let refused = Model::load(blueprint.clone(), rten.as_ref()).err().unwrap().to_string();
    assert!(refused.contains("only the backend ort reads"), "{refused}");
    match backend::backend("ort", testdata()) {
        Err(BackendError::Unavailable { .. }) if std::env::var("CI").as_deref() != Ok("true") => {}
        found => compare(Model::load(blueprint, found.unwrap().as_ref()).unwrap()),
    }
}

#[test]
fn an_alphabet_that_the_file_does_not_have_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(testdata().join("line_reader.yaml")).unwrap();
    for name in ["line_reader.onnx", "ctc.onnx"] {
        std::fs::copy(testdata().join(name), folder.path().join(name)).unwrap();
    }
    let path = folder.path().join("m.yaml");
    for (from, to, message) in [
        (
            "alphabet_metadata: character",
            "alphabet_metadata: letters",
            "no metadata `letters`; it has: `character`",
        ),
        ("alphabet: \" \"", "alphabet: \" xy\"", "ctc_decode of 6 characters and blank 0"),
        ("alphabet_metadata: character, alphabet: \" \", ", "", "`ctc_decode` has no characters"),
    ] {
        assert!(text.contains(from), "{from}");
        std::fs::write(&path, text.replace(from, to)).unwrap();
        let errors = ModelError::collect(Blueprint::read(&path).unwrap_err());
        assert!(errors.to_string().contains(message), "{errors}");
        assert!(errors.to_string().contains("m.yaml:"), "it has a place: {errors}");
    }
}
