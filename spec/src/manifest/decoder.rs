//! The second half of an encoder-decoder: writes a text token by token from the encoder's output.
//!
//! ```
//! use tidemill_spec::manifest::Manifest;
//! let digest = "a".repeat(64);
//! let text = format!("
//! version: 1
//! id: recogniser
//! description: writes down what is said
//! file: encoder.onnx
//! sha256: {digest}
//! licence: MIT
//! origin: {{kind: external, note: made by hand}}
//! backends: [ort]
//! inputs:
//!   - name: samples
//!     column: audio
//!     type: audio
//!     dtype: float32
//!     shape: [batch, any]
//!     preprocess: [{{resample: {{sample_rate: 16000}}}}]
//! outputs: []
//! decoder:
//!   file: decoder.onnx
//!   sha256: {digest}
//!   tokenizer: {{file: tokenizer.bin, sha256: {digest}}}
//!   encoded: {{output: hidden, input: encoder_hidden}}
//!   feed: {{input: token, output: logits, start: 1}}
//!   end: 2
//!   cache: {{inputs: past., outputs: present., fixed: .encoder., flag: use_cache}}
//!   max_tokens: 200
//!   tokens_per_second: 6.5
//!   column: question
//! ");
//! let manifest = Manifest::parse(&text, "recogniser.yaml")?;
//! assert_eq!(manifest.decoder.map(|decoder| decoder.end), Some(2));
//! # Ok::<(), tidemill_spec::diagnostic::Diagnostics>(())
//! ```
use super::{Dimension, InputType, LoopFeed, Manifest, ModelInput, Preprocess, Sampling};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::span::Located;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A decoder; `file` of the manifest is then the encoder. It writes token by token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Decoder {
    /// The decoder's ONNX file; relative as `file` of the manifest.
    pub file: Located<String>,
    /// sha256 of the decoder's file, 64 hexadecimal digits.
    #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
    pub sha256: Located<String>,
    /// The texts of the tokens.
    pub tokenizer: Tokenizer,
    /// Tensor from the encoder to the decoder.
    pub encoded: Encoded,
    /// Inputs that need a 1 for each value of the encoder's input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask: Option<Mask>,
    /// The token that is fed back.
    pub feed: LoopFeed,
    /// The token that ends the text.
    pub end: u32,
    /// Outputs of the decoder that it reads again with the next token.
    pub cache: Cache,
    /// Largest number of tokens of one text.
    pub max_tokens: Located<u32>,
    /// Largest number of tokens for each second of sound, which bounds the text of a recogniser for noise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<Located<f64>>,
    /// Random choice of tokens. Default: the most likely token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    /// Divides the positive scores of tokens that occurred before, and multiplies the negative ones. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<Located<f64>>,
    /// Column of the operator's output stream that gets the text.
    pub column: Located<String>,
    /// Characters of the text: it becomes lower case, other characters are left out, and several blanks become one.
    /// Default: the text of the model, unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alphabet: Option<String>,
}

/// A file with the text of each token: a `tokenizer.json` of Hugging Face's tokenizers, or, under a name without `.json`,
/// for each token a length in one byte (or two: the low 7 bits with the highest bit set, then the rest) and the bytes; there,
/// U+2581 stands for a blank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tokenizer {
    /// The file; relative as `file` of the manifest.
    pub file: Located<String>,
    /// sha256 of the file, 64 hexadecimal digits.
    #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
    pub sha256: Located<String>,
}

/// The tensor that goes from the encoder to the decoder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Encoded {
    /// Output of the encoder.
    pub output: Located<String>,
    /// Input of the decoder.
    pub input: Located<String>,
}

/// Inputs that mark the valid values of the encoder's input; all are valid.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mask {
    /// Input of the encoder.
    pub encoder: Located<String>,
    /// Input of the decoder.
    pub decoder: Located<String>,
}

/// Outputs of the decoder that it reads again: output `outputs`X becomes input `inputs`X.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// Prefix of the names of the inputs.
    pub inputs: Located<String>,
    /// Prefix of the names of the outputs.
    pub outputs: Located<String>,
    /// Part of the names of tensors that do not change after the first token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<String>,
    /// Input that is true if there is a cache: false with the first token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flag: Option<Located<String>>,
}

impl Manifest {
    pub(super) fn check_decoder(&self, found: &mut Diagnostics) {
        let Some(decoder) = &self.decoder else {
            // Texts of a batch are padded to the longest; sounds and pictures of any length are run one by one.
            let opens = |step: &Located<Preprocess>| {
                use Preprocess::{Characters, FitHeight, Tokenize};
                matches!(step.value, Tokenize { .. } | Characters { .. } | FitHeight { .. })
            };
            let is_open = |input: &&ModelInput| {
                input.shape.contains(&Dimension::Any)
                    && input.input_type != InputType::Audio
                    && !input.preprocess.iter().any(opens)
            };
            if let Some(input) = self.inputs.iter().find(is_open) {
                found.push(
                    Diagnostic::error("E0502", format!("input `{}` has no fixed size", input.name))
                        .at(input.shape.span.clone())
                        .with_help(
                            "`any` is for texts, sounds, and `fit_height` without a width; write numbers",
                        ),
                );
            }
            return;
        };
        for digest in [&decoder.sha256, &decoder.tokenizer.sha256] {
            super::check::digest(digest, found);
        }
        Sampling::check(decoder.sampling.as_ref(), decoder.repetition_penalty.as_ref(), found);
        let mut wrong = |message: &str, span: &crate::span::Span, help: &str| {
            found.push(Diagnostic::error("E0509", message).at(span.clone()).with_help(help));
        };
        let sound = matches!(self.inputs.as_slice(), [one] if one.input_type == InputType::Audio);
        if !sound || !self.outputs.is_empty() || self.repeat.is_some() {
            wrong(
                "a model with a decoder reads one sound and gives one text",
                &decoder.column.span,
                "describe one input of type audio, `outputs: []` and no `loop`",
            );
        }
        if decoder.max_tokens.value == 0 {
            wrong("a text of 0 tokens", &decoder.max_tokens.span, "write 1 or more");
        }
        if let Some(rate) = &decoder.tokens_per_second
            && !(rate.value > 0.0 && rate.value.is_finite())
        {
            wrong("no tokens at all", &rate.span, "write a number above 0, such as 6.5");
        }
        if decoder.alphabet.as_ref().is_some_and(String::is_empty) {
            wrong(
                "an alphabet without characters",
                &decoder.column.span,
                "leave `alphabet` out, or name them",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(changes: &[(&str, &str)]) -> Vec<&'static str> {
        let digest = "a".repeat(64);
        let mut text = format!(
            "version: 1\nid: r\ndescription: x\nfile: e.onnx\nsha256: {digest}\nlicence: MIT\n\
             origin: {{kind: fetched, package: p, package_version: '1', package_sha256: {digest}}}\nbackends: [ort]\n\
             inputs:\n  - name: s\n    column: audio\n    type: audio\n    dtype: float32\n    shape: [batch, any]\n    \
             preprocess: [{{resample: {{sample_rate: 16000}}}}]\noutputs: []\ndecoder:\n  file: d.onnx\n  sha256: {digest}\n  \
             tokenizer: {{file: t.bin, sha256: {digest}}}\n  encoded: {{output: h, input: h}}\n  \
             feed: {{input: t, output: l, start: 1}}\n  end: 2\n  cache: {{inputs: past., outputs: present.}}\n  \
             max_tokens: 200\n  column: question\n"
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
            Err(found) => found.iter().map(|diagnostic| diagnostic.code).collect(),
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert_eq!(codes(&[]), [""; 0]);
        for (old, new, code) in [
            ("  max_tokens: 200", "  max_tokens: 0", "E0509"),
            ("  column: question", "  tokens_per_second: 0\n  column: question", "E0509"),
            ("  column: question", "  sampling: {top_p: 0}\n  column: question", "E0509"),
            ("  column: question", "  sampling: {seed: 7}\n  column: question", ""),
            ("  column: question", "  column: _question", "E0508"),
            ("  column: question", "  column: question\n  alphabet: ''", "E0509"),
            ("tokenizer: {file: t.bin, sha256: a", "tokenizer: {file: t.bin, sha256: g", "E0501"),
            ("package_sha256: a", "package_sha256: A", "E0501"),
            ("shape: [batch, any]", "shape: [batch, 16000]", ""),
            ("[{resample: {sample_rate: 16000}}]", "[{resample: {sample_rate: 0}}]", "E0503"),
            (
                "[{resample: {sample_rate: 16000}}]",
                "[{resample: {sample_rate: 16000}}, {pad_or_trim: {seconds: 2s}}]",
                "E0502",
            ),
        ] {
            let wanted: Vec<&str> = [code].into_iter().filter(|code| !code.is_empty()).collect();
            assert_eq!(codes(&[(old, new)]), wanted, "{new}");
        }
    }

    #[test]
    fn tensors_have_one_length() {
        let text = "version: 1\nid: r\ndescription: x\nfile: e.onnx\nsha256: ".to_owned()
            + &"a".repeat(64)
            + "\nlicence: MIT\norigin: {kind: external, note: x}\nbackends: [ort]\ninputs:\n  - {name: s, column: x, \
               type: tensor, dtype: float32, shape: [batch, any]}\noutputs:\n  \
               - {name: y, column: y, type: tensor, dtype: float32, shape: [batch, 3]}\n";
        let found = Manifest::parse(&text, "m.yaml").expect_err("columns of tensors have one shape");
        assert!(found.to_string().contains("has no fixed size"), "{found}");
    }
}
