//! Texts after a prompt: the tokens of the reference, the cache, the options, and mismatches.
//! `testdata/language/make.py` says where the files come from.
use arrow_array::cast::AsArray;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_inference::backend;
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::error::ModelError;
use tidemill_inference::model::Model;
use tidemill_inference::preprocess::tokens::Tokenizer;
use tidemill_inference::steps::{Cell, OutputColumn};
use tidemill_spec::manifest::Manifest;

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/language")
}

/// The manifest of that name with changes.
fn changed(name: &str, changes: &[(&str, &str)]) -> Result<Arc<Blueprint>, String> {
    let path = testdata().join(name);
    let mut text = std::fs::read_to_string(&path).unwrap();
    for (old, new) in changes {
        assert!(text.contains(old), "{old}");
        text = text.replace(old, new);
    }
    let manifest = Manifest::parse(&text, name).map_err(|found| found.render(false))?;
    Blueprint::check(manifest, &path).map_err(|errors| ModelError::collect(errors).render(false))
}

/// The model on each backend of this machine.
fn models(name: &str, changes: &[(&str, &str)]) -> Vec<Model> {
    let blueprint = changed(name, changes).unwrap_or_else(|errors| panic!("{errors}"));
    let here = ["rten", "ort"].into_iter().filter_map(|name| backend::backend(name, &testdata()).ok());
    here.map(|backend| Model::load(blueprint.clone(), backend.as_ref()).unwrap()).collect()
}

fn texts(model: &mut Model, prompts: &[&str]) -> (Vec<String>, u64) {
    let rows: Vec<_> = prompts.iter().map(|prompt| model.prepare(&[Cell::Text(prompt)]).unwrap()).collect();
    let raw = model.run(&rows).unwrap();
    let cut_off = raw.cut_off;
    let mut columns = model.finish(raw);
    let Some(OutputColumn::Text(texts)) = columns.pop() else { panic!("a text is the last column") };
    assert!(columns.is_empty(), "one column");
    (texts, cut_off)
}

/// The prompts and what the reference writes after them.
fn reference(kind: &str) -> (Vec<String>, Vec<String>, u64) {
    let text = std::fs::read(testdata().join("texts.json")).unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&text).unwrap();
    let tokenizer = Tokenizer::read(&testdata().join("tokenizer.json")).unwrap();
    let ids = |row: &Value| -> Vec<u32> { serde_json::from_value(row[kind].clone()).unwrap() };
    let prompts = rows.iter().map(|row| row["prompt"].as_str().unwrap().to_owned()).collect();
    let cut_off = rows.iter().filter(|row| ids(row).len() == 24).count() as u64;
    (prompts, rows.iter().map(|row| tokenizer.decode(&ids(row)).unwrap()).collect(), cut_off)
}

const SAMPLED: &str = "max_tokens: 24\n  sampling: {temperature: 0.9, top_k: 20, top_p: 0.9, seed: 7}";
const WITHOUT_END: &str = "max_tokens: 24\n  stop: [zzz]";

#[test]
fn texts_are_those_of_the_reference_with_and_without_a_cache() {
    let cases = [
        ("greedy", "max_tokens: 24"),
        ("penalty", "max_tokens: 24\n  repetition_penalty: 1.5"),
        ("sampled", SAMPLED),
    ];
    for (kind, options) in cases {
        let (prompts, expected, cut_off) = reference(kind);
        let prompts: Vec<&str> = prompts.iter().map(String::as_str).collect();
        for name in ["writer.yaml", "writer_whole.yaml"] {
            for mut model in models(name, &[("max_tokens: 24", options)]) {
                let found = texts(&mut model, &prompts);
                assert_eq!(found, (expected.clone(), cut_off), "{kind} {name} {}", model.backend());
            }
        }
    }
}

#[test]
fn the_text_of_a_record_does_not_depend_on_the_others() {
    let (prompts, expected, _) = reference("sampled");
    for mut model in models("writer.yaml", &[("max_tokens: 24", SAMPLED)]) {
        for (prompt, expected) in prompts.iter().zip(&expected).rev() {
            assert_eq!(texts(&mut model, &[prompt]).0, [expected.as_str()]);
        }
    }
}

#[test]
fn the_operator_counts_texts_that_were_cut_and_rejects_prompts() {
    let (_, expected, _) = reference("greedy");
    let long = "a".repeat(64);
    for backend in crate::texts::backends() {
        let output = crate::texts::run(&testdata(), "writer.yaml", backend, &["The tide", "", &long, "a"]);
        let output = output.unwrap_or_else(|errors| panic!("{errors}"));
        let answers = output.batches[0].column_by_name("answer").unwrap().as_string::<i32>();
        let answers: Vec<&str> = answers.iter().flatten().collect();
        assert_eq!(answers, [expected[0].as_str(), expected[2].as_str()], "{backend}");
        let letters: Vec<&str> = output.dead_letters.iter().map(|letter| letter.reason.as_ref()).collect();
        assert_eq!(letters, ["prompt_empty", "prompt_too_long"], "{backend}");
        assert_eq!(output.notes, [("text_cut_off".into(), 2)], "{backend}");
    }
}

#[test]
fn a_stop_text_ends_the_text_and_is_left_out() {
    let (prompts, expected, _) = reference("greedy");
    let whole = &expected[0];
    let stop: String = whole.chars().skip(5).take(2).collect();
    let option = format!("max_tokens: 24\n  stop: [{}, zzz]", serde_json::to_string(&stop).unwrap());
    let at = whole.find(&stop).unwrap();
    for mut model in models("writer.yaml", &[("max_tokens: 24", &option)]) {
        assert_eq!(texts(&mut model, &[&prompts[0]]), (vec![whole[..at].to_owned()], 0));
    }
    for mut model in models("writer.yaml", &[("max_tokens: 24", WITHOUT_END)]) {
        assert_eq!(texts(&mut model, &[&prompts[0]]), (vec![whole.clone()], 1));
    }
}

#[test]
fn a_template_is_around_the_prompt() {
    let (prompts, expected, _) = reference("greedy");
    let (before, after) = prompts[1].split_once("lo, w").unwrap();
    let option = format!("max_tokens: 24\n  template: '{before}{{}}{after}'");
    for mut model in models("writer.yaml", &[("max_tokens: 24", &option)]) {
        assert_eq!(texts(&mut model, &["lo, w"]).0, [expected[1].as_str()]);
    }
}

#[test]
fn prompts_that_do_not_fit_are_rejected() {
    for mut model in models("writer.yaml", &[("max_context: 64", "max_context: 10")]) {
        let reason = |model: &mut Model, text: &str| match model.prepare(&[Cell::Text(text)]) {
            Ok(_) => String::new(),
            Err(rejected) => rejected.to_string(),
        };
        assert!(reason(&mut model, "0123456789").contains("more than 9 tokens"));
        assert!(reason(&mut model, "").contains("no tokens"));
        assert_eq!(reason(&mut model, "abcdefghi"), "");
        // One token is left after nine.
        let (texts, cut_off) = texts(&mut model, &["abcdefghi"]);
        assert_eq!((texts[0].chars().count(), cut_off), (1, 1));
    }
    let limited = [("{file: tokenizer.json}", "{file: tokenizer.json, most: 4}")];
    for mut model in models("writer.yaml", &limited) {
        assert!(model.prepare(&[Cell::Text("abcd")]).is_ok());
        let rejected = model.prepare(&[Cell::Text("abcde")]).unwrap_err();
        assert_eq!(rejected.reason, "prompt_too_long");
    }
}

/// The column is added to the scores at each step: a token that is far above the others is written each time.
#[test]
fn tensors_of_columns_are_read_at_each_step() {
    let column =
        "  - {name: shift, column: shift, type: tensor, dtype: float32, shape: [batch, 64]}\noutputs: []";
    let changes = [("constants: [{name: shift, value: 0}]\n", ""), ("outputs: []", column)];
    let mut shift = vec![0f32; 64];
    shift[5] = 1000.0;
    for mut model in models("writer_whole.yaml", &changes) {
        let row = model.prepare(&[Cell::Text("a"), Cell::Float32(&shift)]).unwrap();
        let raw = model.run(&[row]).unwrap();
        let columns = model.finish(raw);
        let [OutputColumn::Text(texts)] = columns.as_slice() else { panic!("one text") };
        assert_eq!(*texts, ["d".repeat(24)], "{}", model.backend());
    }
}

#[test]
fn backends_are_compared_by_the_scores() {
    let report = tidemill_inference::verify(&testdata().join("writer.yaml"), &testdata());
    let report = report.unwrap_or_else(|errors| panic!("{errors:?}"));
    assert!(report.is_usable(), "{:?}", report.backends);
    assert_eq!(report.output.columns.len(), 1);
}

#[test]
fn what_does_not_fit_the_file_is_shown_at_its_place() {
    let cases: &[(&str, &str, &str)] = &[
        ("logits: logits", "logits: scores", "has no output `scores`"),
        ("logits: logits", "logits: present.0.key", "the end token"),
        ("mask: attention_mask", "mask: attention", "has no input `attention`"),
        ("mask: attention_mask\n  ", "", "reads `attention_mask`"),
        ("positions: position_ids", "positions: past_key_values.0.key", "gets int64 or int32"),
        ("inputs: past_key_values.", "inputs: past.", "no input of the file starts with `past.`"),
        ("outputs: present.", "outputs: now.", "needs the output `now.0.key`"),
        ("cache: {inputs", "cache: {flag: use_cache, inputs", "has no input `use_cache`"),
        ("end: <|end|>", "end: [3, 64]", "the end token 64 is not among 64 tokens"),
    ];
    for (old, new, message) in cases {
        let changes = [(*old, *new), ("end: <|end|>", "end: 63")];
        let changes = &changes[..1 + usize::from(*new == "logits: present.0.key")];
        let found = changed("writer.yaml", changes).err().unwrap_or_else(|| panic!("{new} is accepted"));
        assert!(found.contains(message), "{new}: {found}");
        assert!(found.contains("writer.yaml:"), "{new}: {found}");
    }
}

#[test]
fn an_end_token_that_the_tokenizer_lacks_is_an_error() {
    let blueprint = changed("writer.yaml", &[("end: <|end|>", "end: <|stop|>")]).unwrap();
    let rten = backend::backend("rten", &testdata()).unwrap();
    let error = Model::load(blueprint, rten.as_ref()).err().unwrap();
    assert_eq!(error.to_string(), "generate: the tokenizer has no token `<|stop|>`");
}
