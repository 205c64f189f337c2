//! Models that read the samples of a sound.
use super::draft::{Draft, Entry, Step};
use super::ports::{self, Side};
use super::subject::Subject;
use super::{scores, tensors};
use serde_json::Value;
use tidemill_inference::facts::Port;
use tidemill_spec::types::ElementType;
use tidemill_spec::units::TimeSpan;

/// Samples per second of most models of speech.
const RATE: u64 = 16_000;
/// Fewer samples are no sound.
const FEWEST: usize = 2000;
/// Names of inputs with samples.
const NAMES: &[&str] = &["audio", "wav", "samples", "speech", "sound", "pcm", "input_values", "signal"];

/// The input with samples.
struct Sound<'a> {
    port: &'a Port,
    shape: Vec<Side>,
    /// Samples, if the file fixes their number.
    samples: Option<usize>,
    is_named: bool,
}

fn sound<'a>(subject: &Subject<'a>, port: &'a Port) -> Option<Sound<'a>> {
    if !matches!(ports::element(port), Some(ElementType::Float32 | ElementType::Float16)) {
        return None;
    }
    let shape = subject.input_sides(port);
    let is_named = ports::is_named(port, NAMES);
    // Where samples are the only dimension, none counts records.
    let shape = match shape.as_slice() {
        [Side::Batch] if is_named => vec![Side::Any],
        _ => shape,
    };
    let row = Side::row(&shape);
    let samples = match row.as_slice() {
        [samples] | [Side::Size(1), samples] => samples,
        _ => return None,
    };
    let samples = match samples {
        Side::Size(samples) if *samples >= FEWEST => Some(*samples),
        // Any name would do for a row that is free.
        Side::Open(name) if is_named || name.to_ascii_lowercase().contains("sample") => None,
        Side::Any => None,
        _ => return None,
    };
    Some(Sound { port, shape, samples, is_named })
}

/// Drafts a model of sounds.
pub(super) fn draft(subject: &Subject<'_>) -> Option<Draft> {
    let mut all = subject.inputs.iter().filter_map(|port| sound(subject, port));
    let found = all.next()?;
    let settings = subject.beside.json("preprocessor_config.json").unwrap_or_default();
    let rate = settings.get("sampling_rate").and_then(Value::as_u64).filter(|rate| *rate > 0);
    let mut steps = vec![match rate {
        Some(rate) => Step::known(format!("resample: {{sample_rate: {rate}}}")),
        None => {
            Step::guessed(format!("resample: {{sample_rate: {RATE}}}"), "the rate of most models of speech")
        }
    }];
    let rate = rate.unwrap_or(RATE);
    if let Some(samples) = found.samples {
        let length = TimeSpan((samples as u64).saturating_mul(1_000_000_000) / rate);
        steps.push(Step::guessed(
            format!("pad_or_trim: {{seconds: {length}}}"),
            format!("{samples} samples at this rate"),
        ));
    }
    if settings.get("do_normalize").and_then(Value::as_bool) == Some(true) {
        steps.push(Step::known("standardize: {}"));
    }
    let open = |side: &Side| match side {
        Side::Open(_) => Side::Any,
        side => side.clone(),
    };
    let shape: Vec<Side> = found.shape.iter().map(open).collect();
    let entry = Entry::new(&found.port.name, "audio", "audio", ports::dtype(found.port), shape);
    let entry = match found.is_named {
        true => entry,
        false => {
            entry.guess("the samples of a sound, from -1 to 1; for a vector `type: tensor` without steps")
        }
    };
    // A second of sound, which no model is too long for.
    let length = found.samples.unwrap_or(rate as usize);
    let one = |side: &Side| match side {
        Side::Batch => 1,
        Side::Size(size) => *size,
        Side::Any | Side::Open(_) => length,
    };
    let tried = subject.tried(&[(&found.port.name, found.shape.iter().map(one).collect())]);
    let mut outputs = Vec::new();
    let mut remarks = Vec::new();
    for port in &subject.outputs {
        let shape = subject.output_sides(port, tried.as_ref());
        let declared = subject.output_sides(port, None);
        let is_open = found.samples.is_none() && declared.iter().any(|side| matches!(side, Side::Open(_)));
        match (Side::vector(&shape), is_open) {
            (Some(length), false) if ports::is_float(port) && scores::is_embedding(subject, port, length) => {
                outputs.push(scores::embedding(port, shape));
            }
            (Some(classes), false) if ports::is_float(port) && outputs.is_empty() && shape.len() > 1 => {
                outputs.extend(scores::label_and_score(subject, port, shape, classes));
            }
            (_, true) if shape.len() == 3 => outputs.push(steps_of_text(port, &declared)),
            (_, is_open) => {
                if is_open {
                    remarks.push(format!(
                        "`{}` has another length for each sound: `pad_or_trim` fixes it, and the length of the sound",
                        port.name
                    ));
                }
                outputs.push(tensors::output(subject, port, declared_or(&shape, &declared, is_open)));
            }
        }
    }
    let rest = subject.inputs.iter().filter(|port| port.name != found.port.name);
    let inputs = std::iter::once(entry.steps(steps)).chain(rest.map(|port| tensors::input(subject, port)));
    Some(Draft { remarks, inputs: inputs.collect(), outputs, ..Draft::default() })
}

fn declared_or(shape: &[Side], declared: &[Side], is_open: bool) -> Vec<Side> {
    if is_open { declared.to_vec() } else { shape.to_vec() }
}

/// Drafts scores of characters for each step of a sound of any length.
fn steps_of_text(port: &Port, declared: &[Side]) -> Entry {
    let side = |side: &Side| match side {
        Side::Open(_) => Side::Any,
        side => side.clone(),
    };
    let shape = declared.iter().map(side).collect();
    Entry::new(&port.name, "text", "text", ports::dtype(port), shape)
        .guess("scores of characters (CTC); for vectors `type: tensor` with `mean_pool: {}`")
        .step(Step::guessed(
            "ctc_decode: {alphabet_file: CHARACTERS.txt, blank: 0}",
            "a file with the text of a class in each line",
        ))
}

#[cfg(test)]
mod tests {
    use super::super::cases::{Case, body};

    #[test]
    fn a_sound_of_fixed_length() {
        let text = Case::new("commands")
            .input("waveform", "float32 [batch, 16000]")
            .output("scores", "float32 [batch, 3]")
            .beside("labels.txt", "yes\nno\nup\n")
            .draft();
        assert_eq!(
            body(&text),
            "\
backends: [ort, rten]
inputs:
  - name: waveform
    column: audio
    type: audio
    dtype: float32
    shape: [batch, 16000]
    preprocess:
      - resample: {sample_rate: 16000} # guessed: the rate of most models of speech
      - pad_or_trim: {seconds: 1s} # guessed: 16000 samples at this rate
outputs:
  - name: scores
    column: label
    type: text
    dtype: float32
    shape: [batch, 3]
    postprocess:
      - argmax: {labels_file: labels.txt} # guessed: `labels.txt` has as many labels as there are classes
  - name: scores
    column: score
    type: float64
    dtype: float32
    shape: [batch, 3]
    postprocess:
      - softmax: {} # guessed: the file gives logits; `sigmoid: {}` if classes do not exclude each other
      - max: {}
"
        );
    }

    #[test]
    fn a_sound_of_any_length() {
        let text = Case::new("wav2vec2")
            .input("input_values", "float32 [batch, length]")
            .output("logits", "float32 [batch, steps, 32]")
            .beside("preprocessor_config.json", r#"{"sampling_rate": 8000, "do_normalize": true}"#)
            .draft();
        assert!(
            text.contains("shape: [batch, any]") && text.contains("- resample: {sample_rate: 8000}\n"),
            "{text}"
        );
        assert!(text.contains("- standardize: {}\n") && text.contains("shape: [batch, any, 32]"), "{text}");
    }

    #[test]
    fn few_values_are_no_sound() {
        let text =
            Case::new("x").input("input", "float32 [batch, n]").output("y", "float32 [batch, 2]").draft();
        assert!(text.contains("type: tensor") && text.contains("SIZE-OF-n"), "{text}");
    }
}
