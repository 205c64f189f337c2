//! Models that read a line of text from a picture: scores of characters for each step along it (CTC).
use super::draft::{Draft, Entry, Step};
use super::pictures::{self, Picture};
use super::ports::{self, Side};
use super::subject::{Subject, Tried};
use super::{tensors, yaml};
use tidemill_inference::alphabet;
use tidemill_inference::facts::{Dimension, Port};

/// Height and width of lines of text if the file accepts any.
const LINE: (usize, usize) = (48, 640);
/// Largest height of a line without an alphabet in the file.
const HIGHEST: usize = 64;

/// An alphabet in the file's metadata.
struct Alphabet {
    key: String,
    /// Whether the classes have an additional one for the space.
    space: bool,
}

/// Returns an entry of the metadata with as many lines as an output has classes: with the blank, or with blank and space.
fn alphabet_of(port: &Port, subject: &Subject<'_>) -> Option<Alphabet> {
    let [_, _, Dimension::Fixed(classes)] = port.shape.as_deref()? else { return None };
    subject.facts.metadata.iter().find_map(|(key, text)| {
        let lines = alphabet::lines(text).count();
        let fits = lines > 1 && (lines + 1 == *classes || lines + 2 == *classes);
        fits.then(|| Alphabet { key: key.clone(), space: lines + 2 == *classes })
    })
}

/// Drafts a reader of lines.
pub(super) fn draft(subject: &Subject<'_>) -> Option<Draft> {
    let picture = pictures::of_any(subject)?;
    let with_alphabet = subject.outputs.iter().find_map(|port| Some((*port, alphabet_of(port, subject)?)));
    let size = (picture.height.unwrap_or(LINE.0), picture.width.unwrap_or(LINE.1));
    let tried = match &with_alphabet {
        Some(_) => picture.tried(subject, size),
        None => {
            let is_line = picture.height.is_some_and(|height| height <= HIGHEST) && size.1 > size.0;
            is_line.then(|| picture.tried(subject, size))?
        }
    };
    let (port, alphabet) = match with_alphabet {
        Some((port, alphabet)) => (port, Some(alphabet)),
        None => {
            let mut all = subject.outputs.iter();
            (
                *all.find(|port| {
                    ports::is_float(port) && is_of_steps(subject, port, tried.as_ref(), size.1)
                })?,
                None,
            )
        }
    };
    let shape = steps_shape(subject, port, tried.as_ref());
    let mut outputs = vec![output(port, alphabet.as_ref(), shape)];
    for other in subject.outputs.iter().filter(|other| other.name != port.name) {
        outputs.push(tensors::output(subject, other, subject.output_sides(other, tried.as_ref())));
    }
    let mut inputs = vec![input(subject, &picture, size, alphabet.is_some())];
    inputs.extend(pictures::others(subject, &picture));
    Some(Draft { inputs, outputs, ..Draft::default() })
}

/// The shape of the scores: where a run shows one, of the run; open steps are closed by the decoder.
fn steps_shape(subject: &Subject<'_>, port: &Port, tried: Option<&Tried>) -> Vec<Side> {
    let mut shape = subject.output_sides(port, tried);
    // Steps first, then records, as recurrent networks give them.
    if !shape.contains(&Side::Batch)
        && let [_, records @ Side::Size(1), _] = shape.as_mut_slice()
    {
        *records = Side::Batch;
    }
    for side in &mut shape {
        if matches!(side, Side::Open(_)) {
            *side = Side::Any;
        }
    }
    shape
}

/// Whether an output has scores of many classes for each step along the line.
fn is_of_steps(subject: &Subject<'_>, port: &Port, tried: Option<&Tried>, width: usize) -> bool {
    let shape = steps_shape(subject, port, tried);
    let row = Side::row(&shape);
    let [steps, Side::Size(classes)] = row.as_slice() else { return false };
    let is_along = match steps {
        Side::Size(steps) => *steps > 1 && *steps <= width,
        _ => true,
    };
    shape.len() == 3 && *classes >= 10 && is_along
}

fn input(subject: &Subject<'_>, picture: &Picture<'_>, size: (usize, usize), has_alphabet: bool) -> Entry {
    let (height, width) = size;
    let entry = picture.entry(subject, size, Vec::new());
    let sizing = match picture.width {
        None => Step::guessed(
            format!("fit_height: {{height: {height}, width: {width}}}"),
            "`width` is that of the longest line; shorter ones are padded with black. Without it, and with `any` in `shape`, lines keep their width",
        ),
        Some(_) => Step::guessed(
            format!("fit_height: {{height: {height}, width: {width}}}"),
            "or `resize`, which does not keep the ratio of the sides",
        ),
    };
    let normalize = "normalize: {mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}";
    let maker = "its documentation has mean and std, and says whether it wants `bgr: {}`";
    let colours = match (picture.channels, has_alphabet) {
        (1, _) => vec![Step::known("grey: {}")],
        (_, true) => vec![Step::guessed("bgr: {}", "as PP-OCR"), Step::guessed(normalize, maker)],
        (_, false) => vec![Step::guessed(normalize, maker)],
    };
    let normalizes = picture.is_float();
    entry.step(sizing).steps(colours.into_iter().filter(|_| normalizes || picture.channels == 1))
}

fn output(port: &Port, alphabet: Option<&Alphabet>, shape: Vec<Side>) -> Entry {
    let step = match alphabet {
        Some(Alphabet { key, space: true }) => Step::guessed(
            format!("ctc_decode: {{alphabet_metadata: {}, alphabet: \" \", blank: 0}}", yaml::scalar(key)),
            "the blank first, then the characters of the file, then the space",
        ),
        Some(Alphabet { key, space: false }) => Step::guessed(
            format!("ctc_decode: {{alphabet_metadata: {}, blank: 0}}", yaml::scalar(key)),
            "the blank first, then the characters of the file",
        ),
        None => Step::guessed(
            "ctc_decode: {alphabet_file: CHARACTERS.txt, blank: 0}",
            "a file with the text of a class in each line; the blank is often the first or the last class",
        ),
    };
    Entry::new(&port.name, "text", "text", ports::dtype(port), shape).step(step)
}

#[cfg(test)]
mod tests {
    use super::super::cases::{Case, body};

    #[test]
    fn a_recogniser_of_text_is_known_by_its_alphabet() {
        let text = Case::new("rec")
            .input("x", "float32 [n.0, 3, ?, n.1]")
            .output("softmax_11.tmp_0", "float32 [n.2, n.3, 6]")
            .metadata("character", "a\nb\nc\nd\n")
            .shape("softmax_11.tmp_0", &[1, 80, 6])
            .draft();
        assert_eq!(
            body(&text),
            "\
backends: [ort, rten]
inputs:
  - name: x
    column: image
    type: image
    dtype: float32
    shape: [batch, 3, 48, 640]
    # guessed: the size; the file takes any
    preprocess:
      - fit_height: {height: 48, width: 640} # guessed: `width` is that of the longest line; shorter ones are padded with black. Without it, and with `any` in `shape`, lines keep their width
      - bgr: {} # guessed: as PP-OCR
      - normalize: {mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]} # guessed: its documentation has mean and std, and says whether it wants `bgr: {}`
outputs:
  - name: softmax_11.tmp_0
    column: text
    type: text
    dtype: float32
    shape: [batch, 80, 6]
    postprocess:
      - ctc_decode: {alphabet_metadata: character, alphabet: \" \", blank: 0} # guessed: the blank first, then the characters of the file, then the space
"
        );
    }

    #[test]
    fn steps_may_come_before_records() {
        let case = Case::new("captcha")
            .input("input1", "float32 [1, 1, 64, image_width]")
            .output("387", "float32 [1, seqlen]")
            .shape("387", &[80, 1, 8210]);
        let text = case.draft();
        assert!(text.contains("shape: [80, batch, 8210]\n"), "{text}");
        assert!(text.contains("- grey: {}\n") && text.contains("alphabet_file: CHARACTERS.txt"), "{text}");
        let text = Case::new("captcha")
            .input("image", "float32 [batch, 3, 60, 160]")
            .output("logits", "float32 [20, batch, 37]")
            .draft();
        assert!(text.contains("shape: [20, batch, 37]\n") && text.contains("ctc_decode"), "{text}");
    }
}
