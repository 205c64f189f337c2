//! Language models with a cache, by the names that Hugging Face's exporters give.
use super::draft::{Draft, Entry, Step};
use super::ports::{self, Side};
use super::subject::Subject;
use super::{tensors, yaml};
use serde_json::Value;
use std::fmt::Write;
use tidemill_spec::manifest::BLANK_COLUMN;

const TOKENS: &str = "input_ids";
const MASK: &str = "attention_mask";
const POSITIONS: &str = "position_ids";
const FLAG: &str = "use_cache_branch";
const SCORES: &str = "logits";
/// Names of the cache among the inputs, and among the outputs.
const CACHE: (&str, &str) = ("past_key_values.", "present.");

/// Drafts a model that continues a prompt.
pub(super) fn draft(subject: &Subject<'_>) -> Option<Draft> {
    let has = |name: &str| subject.inputs.iter().any(|port| port.name == name);
    let prompt = subject.inputs.iter().find(|port| port.name == TOKENS)?;
    let is_cached = subject.inputs.iter().any(|port| port.name.starts_with(CACHE.0));
    if !is_cached || has("encoder_hidden_states") || subject.outputs.iter().all(|port| port.name != SCORES) {
        return None;
    }
    let tokenizer = subject.beside.path("tokenizer.json");
    let step =
        format!("tokenize: {{file: {}}}", yaml::scalar(tokenizer.as_deref().unwrap_or("tokenizer.json")));
    let step = match tokenizer {
        Some(_) => Step::known(step),
        None => Step::guessed(step, "put the model's tokenizer.json there"),
    };
    let shape = vec![Side::Batch, Side::Any];
    let mut inputs = vec![Entry::new(TOKENS, BLANK_COLUMN, "text", ports::dtype(prompt), shape).step(step)];
    let is_filled = |name: &str| [TOKENS, MASK, POSITIONS, FLAG].contains(&name) || name.starts_with(CACHE.0);
    inputs.extend(
        subject.inputs.iter().filter(|port| !is_filled(&port.name)).map(|port| tensors::input(subject, port)),
    );
    let mut text = format!("generate:\n  logits: {SCORES}\n");
    for (key, name) in [("mask", MASK), ("positions", POSITIONS)] {
        if has(name) {
            let _ = writeln!(text, "  {key}: {name}");
        }
    }
    let flag = if has(FLAG) { format!(", flag: {FLAG}") } else { String::new() };
    let _ = writeln!(text, "  cache: {{inputs: {}, outputs: {}{flag}}}", CACHE.0, CACHE.1);
    let _ = match end(subject) {
        Some(end) => writeln!(text, "  end: {end}"),
        None => writeln!(text, "  end: 0 # guessed: take `eos_token_id` of its generation_config.json"),
    };
    text.push_str(
        "  max_tokens: 64 # guessed: the longest text that you want\n  \
         # its documentation has the largest number of tokens and the text around a prompt:\n  \
         # max_context: 2048\n  # template: \"{}\"\n  column: text\n",
    );
    Some(Draft { inputs, sections: text, ..Draft::default() })
}

/// The tokens that end a text, from the files beside the model.
fn end(subject: &Subject<'_>) -> Option<String> {
    let files = ["generation_config.json", "config.json"];
    let end = files.iter().find_map(|file| subject.beside.json(file)?.get("eos_token_id").cloned())?;
    let is_number = |value: &Value| value.as_u64().is_some();
    let is_end =
        is_number(&end) || end.as_array().is_some_and(|all| !all.is_empty() && all.iter().all(is_number));
    is_end.then(|| end.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::cases::Case;
    use tidemill_spec::manifest::Manifest;

    fn model() -> Case {
        Case::new("writer")
            .input("input_ids", "int64 [batch, n]")
            .input("attention_mask", "int64 [batch, all]")
            .input("past_key_values.0.key", "float32 [batch, 2, past, 8]")
            .input("past_key_values.0.value", "float32 [batch, 2, past, 8]")
            .output("logits", "float32 [batch, n, 64]")
            .output("present.0.key", "float32 [batch, 2, all, 8]")
            .output("present.0.value", "float32 [batch, 2, all, 8]")
    }

    #[test]
    fn a_language_model_is_drafted_as_one() {
        let case = model()
            .beside("generation_config.json", r#"{"eos_token_id": [2, 3]}"#)
            .beside("tokenizer.json", "{}");
        let text =
            case.with(|subject| super::draft(subject).map(|draft| draft.to_yaml())).unwrap_or_default();
        assert!(text.contains("- tokenize: {file: tokenizer.json}\n"), "{text}");
        assert!(text.contains("  mask: attention_mask\n") && !text.contains("positions"), "{text}");
        assert!(text.contains("  end: [2,3]\n"), "{text}");
    }

    #[test]
    fn drafts_of_language_models_are_manifests() {
        let folder =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../operators/inference/testdata/language");
        let drafted = |name: &str| {
            let facts = tidemill_inference::inspect(&folder.join(name)).unwrap();
            super::super::manifest(&facts, &folder)
        };
        let text = drafted("writer.onnx");
        let manifest = Manifest::parse(&text, "m.yaml").unwrap_or_else(|found| panic!("{text}{found}"));
        let generate = manifest.generate.unwrap();
        let names = [generate.mask, generate.positions].map(|name| name.unwrap().value);
        assert_eq!(names, ["attention_mask", "position_ids"]);
        assert!(generate.cache.is_some_and(|cache| cache.flag.is_none()));
        assert_eq!(manifest.inputs.len(), 1);
        assert!(!drafted("writer_whole.onnx").contains("generate:"), "without a cache it may be any model");
    }
}
