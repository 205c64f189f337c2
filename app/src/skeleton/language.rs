//! Drafts the sections of a manifest for a language model with a cache, by the names that Hugging Face's exporters give.
use super::{BLANK_COLUMN, Guess, column, element, input, scalar};
use std::fmt::Write;
use tidemill_inference::facts::ModelFacts;

const TOKENS: &str = "input_ids";
const MASK: &str = "attention_mask";
const POSITIONS: &str = "position_ids";
const FLAG: &str = "use_cache_branch";
const SCORES: &str = "logits";
/// Names of the cache among the inputs, and among the outputs.
const CACHE: (&str, &str) = ("past_key_values.", "present.");

/// Returns the sections from `inputs` on; `None` for another model.
pub(super) fn sections(facts: &ModelFacts) -> Option<String> {
    let has = |name: &str| facts.inputs.iter().any(|port| port.name == name);
    let prompt = facts.inputs.iter().find(|port| port.name == TOKENS)?;
    let is_cached = facts.inputs.iter().any(|port| port.name.starts_with(CACHE.0));
    if !is_cached || facts.outputs.iter().all(|port| port.name != SCORES) {
        return None;
    }
    let mut text = format!(
        "inputs:\n  - name: {TOKENS}\n    column: {BLANK_COLUMN}\n    type: text\n    dtype: {}\n    \
         shape: [batch, any]\n    preprocess: [tokenize: {{file: tokenizer.json}}] # beside the model\n",
        element(prompt)
    );
    let is_filled = |name: &str| [TOKENS, MASK, POSITIONS, FLAG].contains(&name) || name.starts_with(CACHE.0);
    for port in facts.inputs.iter().filter(|port| !is_filled(&port.name)) {
        input(&mut text, port, &Guess::Tensor, &column(port, &facts.inputs));
    }
    let _ = write!(text, "outputs: []\ngenerate:\n  logits: {}\n", scalar(SCORES));
    for (key, name) in [("mask", MASK), ("positions", POSITIONS)] {
        if has(name) {
            let _ = writeln!(text, "  {key}: {name}");
        }
    }
    let flag = if has(FLAG) { format!(", flag: {FLAG}") } else { String::new() };
    let _ = write!(
        text,
        "  cache: {{inputs: {}, outputs: {}{flag}}}\n  \
         end: 0 # a guess: `eos_token_id` of its generation_config.json\n  max_tokens: 64\n  \
         # its documentation has the largest number of tokens and the text around a prompt:\n  \
         # max_context: 2048\n  # template: \"{{}}\"\n  column: text\n",
        CACHE.0, CACHE.1
    );
    Some(text)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use tidemill_spec::manifest::Manifest;

    #[test]
    fn a_language_model_is_drafted_as_one() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../operators/inference/testdata/language");
        let drafted = |name: &str| {
            let facts = tidemill_inference::inspect(&folder.join(name)).expect("a test model");
            super::super::manifest(&facts, &folder)
        };
        let text = drafted("writer.onnx");
        let manifest = Manifest::parse(&text, "m.yaml").unwrap_or_else(|found| panic!("{text}{found}"));
        let generate = manifest.generate.expect("it generates");
        let names = [generate.mask, generate.positions].map(|name| name.expect("the file has it").value);
        assert_eq!(names, ["attention_mask", "position_ids"]);
        assert!(generate.cache.is_some_and(|cache| cache.flag.is_none()));
        assert_eq!(manifest.inputs.len(), 1);
        assert!(!drafted("writer_whole.onnx").contains("generate:"), "without a cache it may be any model");
    }
}
