//! Generation of a text by a language model: a prompt in, the text after it out, token by token.
//!
//! ```
//! use tidemill_spec::manifest::Manifest;
//! let text = format!("
//! version: 1
//! id: writer
//! description: answers a question
//! file: model.onnx
//! sha256: {}
//! licence: MIT
//! origin: {{kind: external, note: made by hand}}
//! backends: [ort]
//! inputs:
//!   - name: input_ids
//!     column: prompt
//!     type: text
//!     dtype: int64
//!     shape: [batch, any]
//!     preprocess: [{{tokenize: {{file: tokenizer.json}}}}]
//! outputs: []
//! generate:
//!   logits: logits
//!   mask: attention_mask
//!   positions: position_ids
//!   cache: {{inputs: past_key_values., outputs: present.}}
//!   end: 2
//!   max_tokens: 64
//!   sampling: {{temperature: 0.8, top_p: 0.95, seed: 1}}
//!   column: answer
//! ", "a".repeat(64));
//! let manifest = Manifest::parse(&text, "writer.yaml")?;
//! assert_eq!(manifest.generate.map(|generate| generate.max_tokens.value), Some(64));
//! # Ok::<(), tidemill_spec::diagnostic::Diagnostics>(())
//! ```
use super::{Cache, InputType, Manifest, Preprocess, TokenValues};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::span::{Located, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Place of the prompt in a template.
pub const PROMPT: &str = "{}";

/// A loop that writes a text after a prompt: the input with the step `tokenize`. The text is decoded by the same
/// `tokenizer.json`, without special tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Generate {
    /// Output with the scores of the next token after each token: `[batch, tokens, vocabulary]`.
    pub logits: Located<String>,
    /// Input that gets a 1 for each token so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask: Option<Located<String>>,
    /// Input that gets the position of each token that is read, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positions: Option<Located<String>>,
    /// Outputs that the model reads again with the next token. Without it, all tokens are read again for each new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<Cache>,
    /// Tokens that end the text, by number or by their text in `tokenizer.json`: one or a list.
    pub end: Located<EndTokens>,
    /// Largest number of tokens of one text.
    pub max_tokens: Located<u32>,
    /// Largest number of tokens of prompt and text together. A record with a longer prompt is a dead letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_context: Option<Located<u32>>,
    /// Random choice of tokens. Default: the most likely token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    /// Divides the positive scores of tokens that occurred before, and multiplies the negative ones. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<Located<f64>>,
    /// Texts that end the text; they are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<Located<String>>,
    /// Column of the operator's output stream that gets the text.
    pub column: Located<String>,
    /// Text around the prompt, which stands for `{}`. Default: the prompt alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<Located<String>>,
}

/// Tokens that end a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum EndTokens {
    /// One token.
    One(EndToken),
    /// Any of several.
    Several(Vec<EndToken>),
}

impl EndTokens {
    /// The tokens.
    pub fn all(&self) -> &[EndToken] {
        match self {
            Self::One(token) => std::slice::from_ref(token),
            Self::Several(tokens) => tokens,
        }
    }
}

/// A token that ends a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum EndToken {
    /// Its number.
    Number(u32),
    /// Its text in `tokenizer.json`, such as `</s>`.
    Name(String),
}

/// Random choice of a token by its probability, after all of these steps in this order. The same record has the same
/// text, whatever the batch or the worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sampling {
    /// Divisor of the scores: below 1, likely tokens become more likely. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<Located<f64>>,
    /// Number of the most likely tokens among which it is chosen. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<Located<u32>>,
    /// Share of the probability: it is chosen among the most likely tokens that together have at least this one.
    /// Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<Located<f64>>,
    /// Seed of the random numbers, of which each record has its own. Default: 0.
    #[serde(default)]
    pub seed: u64,
}

impl Sampling {
    /// Finds wrong options of a choice of tokens.
    pub(super) fn check(
        sampling: Option<&Self>,
        repetition_penalty: Option<&Located<f64>>,
        found: &mut Diagnostics,
    ) {
        let mut wrong = |message: String, span: &Span, help: &str| {
            found.push(Diagnostic::error("E0509", message).at(span.clone()).with_help(help));
        };
        let is_positive = |value: &Located<f64>| value.value > 0.0 && value.value.is_finite();
        if let Some(temperature) = sampling.and_then(|sampling| sampling.temperature.as_ref())
            && !is_positive(temperature)
        {
            let help = "write a number above 0, such as 0.8; for the most likely token leave `sampling` out";
            wrong(format!("a temperature of {temperature}"), &temperature.span, help);
        }
        if let Some(top_k) = sampling.and_then(|sampling| sampling.top_k.as_ref())
            && top_k.value == 0
        {
            wrong("a choice among 0 tokens".to_owned(), &top_k.span, "write 1 or more, such as 40");
        }
        if let Some(top_p) = sampling.and_then(|sampling| sampling.top_p.as_ref())
            && !(is_positive(top_p) && top_p.value <= 1.0)
        {
            let help = "write a number above 0, at most 1, such as 0.95";
            wrong(format!("`top_p` is {top_p}"), &top_p.span, help);
        }
        if let Some(penalty) = repetition_penalty.filter(|penalty| !is_positive(penalty)) {
            let help = "write a number above 0, such as 1.1";
            wrong(format!("a repetition penalty of {penalty}"), &penalty.span, help);
        }
    }
}

impl Generate {
    /// Whether the loop fills this input of the model.
    pub fn fills(&self, input: &str) -> bool {
        let names = [&self.mask, &self.positions].into_iter().flatten();
        let flag = self.cache.iter().filter_map(|cache| cache.flag.as_ref());
        names.chain(flag).any(|name| name.value == input)
            || self.cache.as_ref().is_some_and(|cache| input.starts_with(cache.inputs.as_str()))
    }
}

impl Manifest {
    /// Position of the input that reads the prompt of a model with `generate`: the one with the numbers of tokens.
    pub fn prompt(&self) -> Option<usize> {
        let reads = |step: &Located<Preprocess>| {
            matches!(step.value, Preprocess::Tokenize { give: TokenValues::Ids, .. })
        };
        self.inputs.iter().position(|input| input.preprocess.iter().any(reads))
    }

    pub(super) fn check_generate(&self, found: &mut Diagnostics) {
        let Some(generate) = &self.generate else { return };
        Sampling::check(generate.sampling.as_ref(), generate.repetition_penalty.as_ref(), found);
        let mut wrong = |message: &str, span: &Span, help: &str| {
            found.push(Diagnostic::error("E0509", message).at(span.clone()).with_help(help));
        };
        let texts = self.inputs.iter().filter(|input| input.input_type == InputType::Text);
        match self.prompt().map(|at| &self.inputs[at]) {
            Some(prompt) if texts.count() == 1 => {
                for step in &prompt.preprocess {
                    if matches!(step.value, Preprocess::Tokenize { length: Some(_), .. }) {
                        let help = "remove `length`, and write `any` in `shape`; `most` bounds the prompt";
                        wrong("the padding would be a part of the prompt", &step.span, help);
                    }
                }
            }
            _ => wrong(
                "a model that generates reads one text, its prompt",
                &generate.column.span,
                "describe one input of type text with the step `tokenize`; name masks and positions under `generate`",
            ),
        }
        if !self.outputs.is_empty() || self.repeat.is_some() || self.decoder.is_some() {
            wrong(
                "a model that generates gives one text",
                &generate.column.span,
                "write `outputs: []`, and leave `loop` and `decoder` out",
            );
        }
        if generate.max_tokens.value == 0 {
            wrong("a text of 0 tokens", &generate.max_tokens.span, "write 1 or more");
        }
        if let Some(context) = &generate.max_context
            && context.value < 2
        {
            wrong("no place for a prompt and a token", &context.span, "write 2 or more");
        }
        if generate.end.all().is_empty() {
            let help = "write the number or the text of the token that ends a text";
            wrong("no token ends the text", &generate.end.span, help);
        }
        for stop in generate.stop.iter().filter(|stop| stop.is_empty()) {
            wrong("an empty text is everywhere", &stop.span, "write a text, such as \"\\n\\n\"");
        }
        if let Some(template) = &generate.template
            && template.matches(PROMPT).count() != 1
        {
            let help = "write `{}` once, where the prompt belongs";
            wrong("a template has one place for the prompt", &template.span, help);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(changes: &[(&str, &str)]) -> Vec<String> {
        let mut text = format!(
            "version: 1\nid: r\ndescription: x\nfile: e.onnx\nsha256: {}\nlicence: MIT\n\
             origin: {{kind: external, note: x}}\nbackends: [ort]\n\
             inputs:\n  - name: ids\n    column: prompt\n    type: text\n    dtype: int64\n    shape: [batch, any]\n    \
             preprocess: [{{tokenize: {{file: t.json}}}}]\noutputs: []\ngenerate:\n  logits: logits\n  mask: mask\n  \
             positions: places\n  cache: {{inputs: past., outputs: present., flag: flag}}\n  end: [2, </s>]\n  \
             max_tokens: 9\n  max_context: 99\n  sampling: {{temperature: 0.8, top_k: 40, top_p: 0.9, seed: 3}}\n  \
             repetition_penalty: 1.1\n  stop: [\"\\n\"]\n  column: answer\n  template: 'Q: {{}} A:'\n",
            "a".repeat(64)
        );
        for (old, new) in changes {
            assert!(text.contains(old), "{old}");
            text = text.replacen(old, new, 1);
        }
        match Manifest::parse(&text, "m.yaml") {
            Ok(manifest) => {
                let printed = manifest.to_yaml().unwrap_or_else(|error| panic!("{error}"));
                let again =
                    Manifest::parse(&printed, "m.yaml").unwrap_or_else(|error| panic!("{printed}{error}"));
                assert_eq!(again, manifest);
                Vec::new()
            }
            Err(found) => found.iter().map(|one| format!("{} {}", one.code, one.message)).collect(),
        }
    }

    #[test]
    fn wrong_options_are_refused() {
        assert_eq!(found(&[]), [""; 0]);
        assert_eq!(found(&[("end: [2, </s>]", "end: 2")]), [""; 0]);
        assert_eq!(found(&[("end: [2, </s>]", "end: <|im_end|>")]), [""; 0]);
        for (old, new, message) in [
            ("max_tokens: 9", "max_tokens: 0", "E0509 a text of 0 tokens"),
            ("max_context: 99", "max_context: 1", "E0509 no place"),
            ("temperature: 0.8", "temperature: 0", "E0509 a temperature of 0"),
            ("top_k: 40", "top_k: 0", "E0509 a choice among 0 tokens"),
            ("top_p: 0.9", "top_p: 1.5", "E0509 `top_p` is 1.5"),
            ("repetition_penalty: 1.1", "repetition_penalty: -1", "E0509 a repetition penalty of -1"),
            ("end: [2, </s>]", "end: []", "E0509 no token ends"),
            ("stop: [\"\\n\"]", "stop: [\"\"]", "E0509 an empty text"),
            ("'Q: {} A:'", "'Q: A:'", "E0509 a template has one place"),
            ("column: answer", "column: _answer", "E0508"),
            ("name: ids", "name: mask", "E0508 input `mask` is given twice"),
            ("{file: t.json}", "{file: t.json, give: mask}", "E0509 a model that generates reads one text"),
            ("outputs: []", "states: [{input: a, output: b, shape: [batch, 1]}]\noutputs: []", "E0507"),
        ] {
            let found = found(&[(old, new)]);
            assert!(found.len() == 1 && found[0].starts_with(message), "{new}: {found:?}");
        }
        let fixed = found(&[("{file: t.json}", "{file: t.json, length: 8}"), ("[batch, any]", "[batch, 8]")]);
        assert_eq!(fixed, ["E0509 the padding would be a part of the prompt"]);
    }

    #[test]
    fn inputs_of_the_loop_are_known() {
        let text = "logits: l\nmask: m\ncache: {inputs: past., outputs: present., flag: f}\nend: 1\nmax_tokens: 1\n\
                    column: c\n";
        let generate: Generate = crate::yaml::parse(&crate::span::SourceFile::new("g.yaml", text))
            .and_then(|tree| crate::document::convert(&tree, |_: &Generate| Diagnostics::new()))
            .unwrap_or_else(|error| panic!("{error}"));
        let fills = ["m", "past.0.key", "f", "l", "present.0.key", "ids"].map(|input| generate.fills(input));
        assert_eq!(fills, [true, true, true, false, false, false]);
    }
}
