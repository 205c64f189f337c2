//! Models that read the samples of a sound.
use super::draft::{Draft, Entry, Step};
use super::ports::{self, Side};
use super::subject::{Subject, Tried};
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
    let found = subject.inputs.iter().find_map(|port| sound(subject, port))?;
    let settings = subject.beside.json("preprocessor_config.json").unwrap_or_default();
    let known = settings.get("sampling_rate").and_then(Value::as_u64).filter(|rate| *rate > 0);
    let rate = known.unwrap_or(RATE);
    let second = rate as usize;
    let run = |length: usize| {
        let shape = found.shape.iter().map(|side| match side {
            Side::Batch => 1,
            Side::Size(size) => *size,
            Side::Any | Side::Open(_) => length,
        });
        subject.tried(&[(&found.port.name, shape.collect())])
    };
    let text = subject.outputs.first().filter(|port| found.samples.is_none() && is_text(subject, port));
    let text = text.filter(|_| subject.outputs.len() == 1);
    let mut tried = run(found.samples.unwrap_or(second));
    let varies = found.samples.is_none()
        && text.is_none()
        && varies(subject, tried.as_ref(), || run(second.saturating_mul(2)));
    let samples = found.samples.or(varies.then_some(second));
    if text.is_some() {
        tried = None;
    }
    let mut steps = vec![match known {
        Some(rate) => Step::known(format!("resample: {{sample_rate: {rate}}}")),
        None => {
            Step::guessed(format!("resample: {{sample_rate: {RATE}}}"), "the rate of most models of speech")
        }
    }];
    if let Some(samples) = samples {
        let length = TimeSpan((samples as u64).saturating_mul(1_000_000_000) / rate);
        let guess = match varies {
            true => "an output is as long as the sound, so all sounds get one length".to_owned(),
            false => format!("{samples} samples at this rate"),
        };
        steps.push(Step::guessed(format!("pad_or_trim: {{seconds: {length}}}"), guess));
    }
    if settings.get("do_normalize").and_then(Value::as_bool) == Some(true) {
        steps.push(Step::known("standardize: {}"));
    }
    let closed = |side: &Side| match side {
        Side::Open(_) | Side::Any => samples.map_or(Side::Any, Side::Size),
        side => side.clone(),
    };
    let shape = found.shape.iter().map(closed).collect();
    let entry = Entry::new(&found.port.name, "audio", "audio", ports::dtype(found.port), shape);
    let entry = match found.is_named {
        true => entry,
        false => {
            entry.guess("the samples of a sound, from -1 to 1; for a vector `type: tensor` without steps")
        }
    };
    let mut outputs = Vec::new();
    for port in &subject.outputs {
        let shape = subject.output_sides(port, tried.as_ref());
        match Side::vector(&shape) {
            _ if text.is_some() => outputs.push(steps_of_text(port, &shape)),
            Some(length) if ports::is_float(port) && scores::is_embedding(subject, port, length) => {
                outputs.push(scores::embedding(port, shape));
            }
            Some(classes) if ports::is_float(port) && outputs.is_empty() && shape.len() > 1 => {
                outputs.extend(scores::label_and_score(subject, port, shape, classes, tried.as_ref()));
            }
            _ => outputs.push(tensors::output(subject, port, shape)),
        }
    }
    let rest = subject.inputs.iter().filter(|port| port.name != found.port.name);
    let inputs = std::iter::once(entry.steps(steps)).chain(rest.map(|port| tensors::input(subject, port)));
    Some(Draft { inputs: inputs.collect(), outputs, ..Draft::default() })
}

fn is_open(subject: &Subject<'_>, port: &Port) -> bool {
    subject.output_sides(port, None).iter().any(|side| matches!(side, Side::Open(_)))
}

/// Whether an output has scores of characters for each step of the sound.
fn is_text(subject: &Subject<'_>, port: &Port) -> bool {
    let shape = subject.output_sides(port, None);
    let has_classes = matches!(shape.as_slice(), [Side::Batch, Side::Open(_), Side::Size(_)]);
    has_classes && ports::is_named(port, &["logit", "prob", "ctc"])
}

/// Whether an output is longer for a longer sound, by two trials or else by the file.
fn varies(subject: &Subject<'_>, short: Option<&Tried>, run: impl FnOnce() -> Option<Tried>) -> bool {
    if !subject.outputs.iter().any(|port| is_open(subject, port)) {
        return false;
    }
    match short.zip(run()) {
        Some((short, long)) => {
            subject.outputs.iter().any(|port| short.shapes.get(&port.name) != long.shapes.get(&port.name))
        }
        None => true,
    }
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
    fn an_output_as_long_as_the_sound_fixes_its_length() {
        let text = Case::new("mel")
            .input("input", "float32 [batch_size, samples]")
            .output("output", "float32 [time, 1, c, 32]")
            .draft();
        assert!(
            text.contains("shape: [batch, 16000]") && text.contains("pad_or_trim: {seconds: 1s}"),
            "{text}"
        );
        let text = Case::new("tags").input("audio", "float32 [n]").output("output", "float32 [n, 4]").draft();
        assert!(text.contains("shape: [any]") && !text.contains("pad_or_trim"), "{text}");
    }

    #[test]
    fn few_values_are_no_sound() {
        let text =
            Case::new("x").input("input", "float32 [batch, n]").output("y", "float32 [batch, 2]").draft();
        assert!(text.contains("type: tensor") && text.contains("SIZE-OF-n"), "{text}");
    }
}
