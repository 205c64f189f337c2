//! Models that write a text token by token: no draft can know their second file, so this one says what is to be written.
use super::draft::{Draft, Entry};
use super::ports::Side;
use super::subject::Subject;
use super::tensors;
use tidemill_inference::facts::Port;

/// Names of inputs and outputs that carry the tokens before.
const CACHES: &[&str] =
    &["past_key_values", "past.", "past_key", "present.", "present_key", "cache_position"];
/// Names of inputs of a decoder after an encoder.
const DECODERS: &[&str] =
    &["decoder_input_ids", "encoder_hidden_states", "use_cache_branch", "encoder_attention_mask"];

fn has(port: &Port, names: &[&str]) -> bool {
    names.iter().any(|name| port.name.contains(name))
}

/// Drafts a model that reads its own tokens, or the encoder of one.
pub(super) fn draft(subject: &Subject<'_>) -> Option<Draft> {
    let is_decoder = subject.inputs.iter().any(|port| has(port, DECODERS));
    let has_cache = subject.inputs.iter().any(|port| has(port, CACHES));
    let encoder = || encoder_beside(subject);
    let remarks = if is_decoder {
        vec![
            "This file is the decoder of a model that writes a text token by token: it has no manifest of its own.",
            "Draft one for the encoder, and name this file under `decoder:` there; see",
            "docs/reference/model.md#decoder.",
        ]
    } else if has_cache {
        vec![
            "This file is a language model: it writes a text token by token and reads its own cache.",
            "Write `generate:` by hand; see docs/generation.md. The inputs and outputs of the cache are left out here.",
        ]
    } else if encoder() {
        vec![
            "guessed: this file is the encoder of a model that writes a text token by token, with a decoder beside it.",
            "Write `decoder:` by hand and remove `outputs`; see docs/reference/model.md#decoder.",
        ]
    } else {
        return None;
    };
    let remarks: Vec<String> = remarks.into_iter().map(str::to_owned).collect();
    if !is_decoder && !has_cache {
        let rest = subject.without(&[(String::new(), Vec::new())], &[]);
        let mut draft = super::sounds::draft(&rest).unwrap_or_else(|| tensors::draft(&rest));
        draft.remarks.splice(0..0, remarks);
        return Some(draft);
    }
    let is_kept = |port: &&&Port| !has(port, CACHES);
    let inputs: Vec<Entry> =
        subject.inputs.iter().filter(is_kept).map(|port| tensors::input(subject, port)).collect();
    let outputs = subject.outputs.iter().filter(is_kept);
    let outputs: Vec<Entry> =
        outputs.map(|port| tensors::output(subject, port, subject.output_sides(port, None))).collect();
    Some(Draft { remarks, inputs, outputs, ..Draft::default() })
}

/// Whether the file gives vectors of steps and has a decoder beside it.
fn encoder_beside(subject: &Subject<'_>) -> bool {
    let files =
        ["decoder_model.onnx", "decoder_model_merged.onnx", "decoder.onnx", "decoder_model_quantized.onnx"];
    let gives_steps = subject
        .outputs
        .iter()
        .any(|port| matches!(subject.output_sides(port, None).as_slice(), [Side::Batch, _, Side::Size(_)]));
    let stem = subject.facts.path.file_stem().map(|stem| stem.to_string_lossy().to_ascii_lowercase());
    let is_encoder = stem.is_some_and(|stem| stem.contains("encode"));
    is_encoder && gives_steps && files.iter().any(|file| subject.beside.path(file).is_some())
}

#[cfg(test)]
mod tests {
    use super::super::cases::{Case, body};

    #[test]
    fn a_language_model_says_what_is_missing() {
        let text = Case::new("model")
            .input("input_ids", "int64 [batch, sequence]")
            .input("past_key_0", "float32 [batch, 4, past, 64]")
            .output("logits", "float32 [batch, sequence, 32000]")
            .output("present_key_0", "float32 [batch, 4, total, 64]")
            .draft();
        assert_eq!(
            body(&text),
            "\
backends: [ort, rten]
# This file is a language model: it writes a text token by token and reads its own cache.
# Write `generate:` by hand; see docs/generation.md. The inputs and outputs of the cache are left out here.
inputs:
  - name: input_ids
    column: COLUMN-input_ids
    type: tensor
    dtype: int64
    shape: [batch, SIZE-OF-sequence]
    # the file leaves sizes open: write those of your records
outputs:
  - name: logits
    column: COLUMN-logits
    type: tensor
    dtype: float32
    shape: [batch, SIZE-OF-sequence, 32000]
    # the file leaves sizes open: write those of your records
"
        );
    }

    #[test]
    fn an_encoder_is_known_by_its_decoder() {
        let case = Case::new("encoder_model")
            .input("input_values", "float32 [batch, length]")
            .output("last_hidden_state", "float32 [batch, steps, 288]");
        let text = case.beside("decoder_model_merged.onnx", "").draft();
        assert!(text.contains("# Write `decoder:` by hand") && text.contains("type: audio"), "{text}");
    }
}
