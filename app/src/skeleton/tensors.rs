//! Tensors as they are: inputs and outputs for which no family knows more.
use super::draft::{Draft, Entry};
use super::ports::{self, Side};
use super::subject::Subject;
use tidemill_inference::facts::{Port, PortElement};
use tidemill_spec::types::ElementType;

/// Drafts an input whose column has tensors.
pub(super) fn input(subject: &Subject<'_>, port: &Port) -> Entry {
    let sides = subject.input_sides(port);
    let is_alone = !sides.contains(&Side::Batch) && sides.len() > 1;
    let entry = Entry::new(&port.name, &subject.input_column(port), "tensor", ports::dtype(port), sides);
    let entry = match &port.shape {
        None => entry.note("the file does not say the shape: write that of a record after `batch`"),
        Some(_) if is_alone => entry.note("no dimension counts records: they are run one by one"),
        Some(_) => entry,
    };
    let is_spectrum = ports::is_named(port, &["mel", "fbank", "spec"]) || {
        let row = entry_row(subject, port);
        let row = match row.as_slice() {
            [Side::Size(1), inner @ ..] => inner,
            row => row,
        };
        let is_bands = |bands: usize, frames: usize| matches!(bands, 40 | 64 | 80 | 128) && frames > bands;
        matches!(*row, [Side::Size(a), Side::Size(b)] if is_bands(a, b) || is_bands(b, a))
    };
    match is_spectrum && ports::is_float(port) {
        true => entry.guess("a spectrum of a sound; `log_mel` on `type: audio` may compute it"),
        false => entry,
    }
}

fn entry_row(subject: &Subject<'_>, port: &Port) -> Vec<Side> {
    Side::row(&subject.input_sides(port))
}

/// Drafts an output whose column has tensors.
pub(super) fn output(subject: &Subject<'_>, port: &Port, shape: Vec<Side>) -> Entry {
    let is_known = !shape.is_empty() && (port.shape.is_some() || shape.len() > 1);
    let kind = match ports::element(port).filter(|_| is_known && Side::vector(&shape) == Some(1)) {
        Some(ElementType::Text) => "text",
        Some(ElementType::Bool) => "bool",
        Some(element) if element.is_float() => "float64",
        Some(_) => "int64",
        None => "tensor",
    };
    let entry = Entry::new(&port.name, &subject.output_column(port), kind, ports::dtype(port), shape);
    match (&port.element, is_known) {
        (PortElement::Other(_), _) => entry.note("no tensor that a manifest can name: remove this output"),
        (_, false) => entry.note("the file does not say the shape: write that of a record after `batch`"),
        (_, true) => entry,
    }
}

/// Drafts outputs as they are.
pub(super) fn outputs(subject: &Subject<'_>, tried: Option<&super::subject::Tried>) -> Vec<Entry> {
    let draft = |port: &&Port| output(subject, port, subject.output_sides(port, tried));
    subject.outputs.iter().map(draft).collect()
}

/// Drafts an input of a model that no family recognises.
fn alone(subject: &Subject<'_>, port: &Port) -> Entry {
    let entry = input(subject, port);
    let is_sequence = ports::is_whole(port) && matches!(entry_row(subject, port).as_slice(), [Side::Open(_)]);
    match is_sequence {
        true => entry.guess(
            "characters or tokens of a text: `type: text`, shape `[batch, any]`, and the step `characters` or `tokenize`",
        ),
        false => entry,
    }
}

/// Drafts a model of tensors.
pub(super) fn draft(subject: &Subject<'_>) -> Draft {
    let tried = subject.tried(&[]);
    Draft {
        remarks: subject.exporter.comments(),
        inputs: subject.inputs.iter().map(|port| alone(subject, port)).collect(),
        outputs: outputs(subject, tried.as_ref()),
        ..Draft::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::cases::{Case, body};

    #[test]
    fn tensors_are_described_as_they_are() {
        let text = Case::new("x")
            .input("serving:0", "float32 [unk__749, 172, 8]")
            .output("onset", "float32 [unk__750, 88]")
            .output("z", "float32 [unk__751, t, 8]")
            .draft();
        assert_eq!(
            body(&text),
            "\
backends: [ort, rten]
inputs:
  - name: \"serving:0\"
    column: COLUMN
    type: tensor
    dtype: float32
    shape: [batch, 172, 8]
outputs:
  - name: onset
    column: COLUMN-onset
    type: tensor
    dtype: float32
    shape: [batch, 88]
  - name: z
    column: COLUMN-z
    type: tensor
    dtype: float32
    shape: [batch, SIZE-OF-t, 8]
    # the file leaves sizes open: write those of your records
"
        );
    }

    #[test]
    fn spectra_are_named() {
        for shape in ["[batch, 1, 80, 3000]", "[1, 1, 128, 1024]"] {
            let text = Case::new("x")
                .input("x", &format!("float32 {shape}"))
                .output("y", "float32 [1, 8, 8]")
                .draft();
            assert!(text.contains("# guessed: a spectrum of a sound"), "{text}");
        }
    }
}
