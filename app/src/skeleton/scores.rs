//! Outputs that have one value for each class: the label of the best and its score.
use super::draft::{Entry, Step};
use super::labels;
use super::ports::{self, Side};
use super::subject::{Subject, Tried};
use tidemill_inference::facts::Port;

/// More labels than these are better in a file of their own.
const MANY: usize = 50;

/// Drafts a label and its score, or for one class the value itself.
pub(super) fn label_and_score(
    subject: &Subject<'_>,
    port: &Port,
    shape: Vec<Side>,
    classes: usize,
    tried: Option<&Tried>,
) -> Vec<Entry> {
    let dtype = ports::dtype(port);
    if classes == 1 {
        return vec![single(subject, port, shape)];
    }
    let labels = labels::of(subject, classes);
    let label = match &labels {
        Some(labels) => {
            let text = format!("argmax: {{{}}}", labels.key);
            let step = match &labels.origin {
                Some(origin) => Step::guessed(text, origin.clone()),
                None => Step::known(text),
            };
            Entry::new(&port.name, "label", "text", dtype.clone(), shape.clone()).step(step)
        }
        None => Entry::new(&port.name, "label", "int64", dtype.clone(), shape.clone())
            .note("for names of classes: `type: text`, and `argmax: {labels: [...]}` or `argmax: {labels_file: FILE}`")
            .step(Step::guessed("argmax: {}", "a score for each class; for all of them remove the step, `type: tensor`")),
    };
    let label =
        match labels.as_ref().is_some_and(|labels| labels.key.starts_with("labels:")) && classes > MANY {
            true => label
                .note("`labels_file: labels.txt` instead of `labels` reads a file with a label in each line"),
            false => label,
        };
    let is_probability = matches!(subject.maker(port), "Softmax" | "Sigmoid")
        || tried.is_some_and(|tried| tried.probabilities.contains(&port.name));
    let softmax = (!is_probability).then(|| {
        Step::guessed(
            "softmax: {}",
            "the file gives logits; `sigmoid: {}` if classes do not exclude each other",
        )
    });
    let score =
        Entry::new(&port.name, "score", "float64", dtype, shape).steps(softmax).step(Step::known("max: {}"));
    vec![label, score]
}

/// Drafts one value for each record.
pub(super) fn single(subject: &Subject<'_>, port: &Port, shape: Vec<Side>) -> Entry {
    let (kind, column) = match ports::element(port) {
        Some(element) if element.is_float() => ("float64", "score"),
        Some(element) if element.is_integer() => ("int64", "value"),
        _ => ("tensor", "value"),
    };
    let column = if subject.outputs.len() == 1 { column.to_owned() } else { subject.output_column(port) };
    Entry::new(&port.name, &column, kind, ports::dtype(port), shape)
}

/// Whether an output is a vector that stands for the record, not scores of classes.
pub(super) fn is_embedding(subject: &Subject<'_>, port: &Port, length: usize) -> bool {
    let named = ports::is_named(port, &["embed", "feature", "pooler", "vector"]);
    named
        || length >= 64 && subject.maker(port) != "Softmax" && labels::of(subject, length).is_none() && {
            let maker = subject.maker(port);
            matches!(
                maker,
                "Div" | "LpNormalization" | "Tanh" | "Flatten" | "GlobalAveragePool" | "ReduceMean"
            )
        }
}

/// Drafts a vector that stands for the record.
pub(super) fn embedding(port: &Port, shape: Vec<Side>) -> Entry {
    Entry::new(&port.name, "embedding", "tensor", ports::dtype(port), shape)
        .guess("a vector that stands for the record; `postprocess: [l2_norm: {}]` gives it the length 1")
}

#[cfg(test)]
mod tests {
    use super::super::cases::Case;

    #[test]
    fn probabilities_get_no_softmax() {
        let model = || Case::new("c").input("x", "float32 [n, 3, 32, 32]").output("y", "float32 [n, 5]");
        assert!(model().draft().contains("softmax: {}"));
        let text = model().shape("y", &[1, 5]).gives_probabilities("y").draft();
        assert!(text.contains("max: {}") && !text.contains("softmax"), "{text}");
    }
}
