//! Models with a value for each token or character of a text give its labelled parts, also for texts of different lengths in
//! one batch.
use crate::onnx::{FLOAT, INT64, Message, floats, joining};
use serde_json::{Value as Json, json};
use std::path::Path;
use std::sync::Arc;
use tidemill_inference::backend::Backend;
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::error::ModelError;
use tidemill_inference::model::Model;
use tidemill_inference::preprocess::tokens::Tokenizer;
use tidemill_inference::steps::{Cell, OutputColumn};
use tidemill_spec::digest::sha256;

/// Number of rows of the models' tables, more than there are tokens.
const ROWS: usize = 3000;
const LABELS: [&str; 5] = ["O", "B-A", "I-A", "B-B", "I-B"];
const TEXTS: [&str; 4] =
    ["the street reads pictures of Zürich", "the", "machine 😀 the street, the machine", ""];

/// A tensor of a record's places, with further dimensions.
fn port(name: &str, element: u64, width: Option<u64>) -> Message {
    let free = |name: &str| Message::default().text(2, name);
    let shape = Message::default().message(1, &free("batch")).message(1, &free("places"));
    let shape =
        width.iter().fold(shape, |shape, width| shape.message(1, &Message::default().number(1, *width)));
    let tensor = Message::default().number(1, element).message(2, &shape);
    Message::default().text(1, name).message(2, &Message::default().message(1, &tensor))
}

/// A folder with a model that looks up a row of the table for each number.
fn folder(table: &[f32], width: usize, ports: &str) -> tempfile::TempDir {
    let weights = floats("table", &[(table.len() / width) as u64, width as u64], table);
    let graph = Message::default()
        .message(1, &joining("Gather", &["table", "ids"], "scores", &[]))
        .text(2, "graph")
        .message(5, &weights)
        .message(11, &port("ids", INT64, None))
        .message(12, &port("scores", FLOAT, Some(width as u64)));
    let opset = Message::default().text(1, "").number(2, 17);
    let model = Message::default().number(1, 8).message(7, &graph).message(8, &opset).0;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.onnx"), &model).unwrap();
    let manifest = format!(
        "version: 1\nid: m\ndescription: x\nfile: m.onnx\nsha256: {}\nlicence: MIT\n\
         origin: {{kind: external, note: made by the test}}\nbackends: [ort, rten]\n{ports}",
        sha256(&model)
    );
    std::fs::write(folder.path().join("m.yaml"), manifest).unwrap();
    folder
}

/// The first column for these texts, on each backend: all texts at once, then one by one.
fn results(folder: &Path, texts: &[&str]) -> Vec<Vec<String>> {
    let blueprint = Blueprint::read(&folder.join("m.yaml"))
        .unwrap_or_else(|errors| panic!("{}", ModelError::collect(errors).render(false)));
    assert!(!blueprint.one_by_one, "texts of different lengths are run together");
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let backends = crate::backends_here().filter_map(|backend| (backend.open)(here).ok());
    let mut all = Vec::new();
    for backend in backends {
        let backend: Arc<dyn Backend> = backend;
        let mut model = Model::load(Arc::clone(&blueprint), backend.as_ref()).unwrap();
        let rows: Vec<_> = texts.iter().map(|text| model.prepare(&[Cell::Text(text)]).unwrap()).collect();
        let mut run = |rows: &[_]| {
            let raw = model.run(rows).unwrap();
            let OutputColumn::Text(texts) = model.finish(raw).remove(0) else { panic!("texts") };
            texts
        };
        let alone: Vec<String> = rows.iter().flat_map(|row| run(std::slice::from_ref(row))).collect();
        all.push(run(&rows));
        all.push(alone);
    }
    assert!(all.len() >= 2, "rten is built in");
    all
}

/// Label and score of a token.
fn scored(id: u32) -> (usize, f32) {
    (id as usize % 7 % LABELS.len(), 1.0 + (id % 16) as f32 / 16.0)
}

/// The entities of a text, by the rules of the pipelines of Hugging Face.
fn entities(tokenizer: &Tokenizer, text: &str) -> Json {
    let ids = tokenizer.encode(text, true, 512, None).unwrap().ids;
    let parts = tokenizer.parts(text, true, 512).unwrap().parts;
    let characters: Vec<char> = text.chars().collect();
    let mut groups: Vec<(usize, usize, &str, Vec<f32>)> = Vec::new();
    for (id, part) in ids.into_iter().zip(parts).filter(|(_, part)| !part.is_added) {
        let (label, score) = scored(id);
        let (begins, tag) = (LABELS[label].starts_with("B-"), LABELS[label].get(2..).unwrap_or("O"));
        match groups.last_mut() {
            Some(last) if last.2 == tag && !begins => {
                last.1 = part.end;
                last.3.push(score);
            }
            _ => groups.push((part.start, part.end, tag, vec![score])),
        }
    }
    let groups = groups.into_iter().filter(|group| group.2 != "O");
    let entities = groups.map(|(start, end, label, scores)| {
        let text: String = characters[start..end].iter().collect();
        let score = scores.iter().sum::<f32>() / scores.len() as f32;
        // As a 32-bit float is written.
        let score: Json = serde_json::from_str(&format!("{score:?}")).unwrap();
        json!({"start": start, "end": end, "label": label, "score": score, "text": text})
    });
    entities.collect()
}

#[test]
fn entities_of_texts_are_those_of_the_pipelines() {
    let mut table = vec![0.0; ROWS * LABELS.len()];
    for id in 0..ROWS {
        let (label, score) = scored(id as u32);
        table[id * LABELS.len() + label] = score;
    }
    // The second one pads before the tokens.
    for name in ["wordpiece", "byte_bpe", "unigram"] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("testdata/tokenizers/{name}.json"));
        let tokenizer = Tokenizer::read(&file).unwrap();
        for (shape, length) in [("any", ""), ("40", ", length: 40")] {
            let folder = folder(
                &table,
                LABELS.len(),
                &format!(
                    "inputs:\n- {{name: ids, column: text, type: text, dtype: int64, shape: [batch, {shape}], \
                     preprocess: [tokenize: {{file: t.json{length}}}]}}\noutputs:\n- {{name: scores, column: found, \
                     type: text, dtype: float32, shape: [batch, {shape}, 5], postprocess: [entities: {{labels: \
                     [O, B-A, I-A, B-B, I-B]}}]}}\n"
                ),
            );
            std::fs::copy(&file, folder.path().join("t.json")).unwrap();
            for found in results(folder.path(), &TEXTS) {
                for (found, text) in found.iter().zip(TEXTS) {
                    let expected = entities(&tokenizer, text);
                    let found: Json = serde_json::from_str(found).unwrap();
                    assert_eq!(found, expected, "{name}: {text:?}");
                }
            }
        }
    }
}

#[test]
fn labels_are_written_to_the_characters() {
    // Padding, a to d, others.
    let labels = [1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0];
    let folder = folder(
        &labels,
        2,
        "inputs:\n- {name: ids, column: text, type: text, dtype: int64, shape: [batch, any], \
         preprocess: [characters: {alphabet: abcd, unknown: 5}]}\noutputs:\n- {name: scores, column: marked, \
         type: text, dtype: float32, shape: [batch, any, 2], postprocess: [join: {labels: [\"\", \"+\"]}]}\n",
    );
    for found in results(folder.path(), &["abcd", "b", "", "a D?"]) {
        assert_eq!(found, ["ab+cd+", "b+", "", "a +D+?+"]);
    }
}

#[test]
fn labels_need_a_step_that_splits_the_text() {
    let folder = folder(
        &[0.0; 10],
        5,
        "inputs:\n- {name: ids, column: ids, type: tensor, dtype: int64, shape: [batch, 4]}\noutputs:\n\
         - {name: scores, column: found, type: text, dtype: float32, shape: [batch, 4, 5], postprocess: [entities: \
         {labels: [O, B-A, I-A, B-B]}]}\n",
    );
    let errors = Blueprint::read(&folder.path().join("m.yaml")).unwrap_err();
    let text = ModelError::collect(errors).render(false);
    assert!(text.contains("`entities` needs an input with the step `tokenize`"), "{text}");
    assert!(text.contains("4 labels for 5 values"), "{text}");
}
