//! Models of tables: operators of `ai.onnx.ml` (trees, linear models), or one row of few floats.
use super::draft::{Draft, Entry};
use super::ports::{self, Side};
use super::subject::{Subject, Tried};
use super::{scores, tensors, yaml};
use tidemill_inference::facts::{Port, PortElement};
use tidemill_spec::manifest::BLANK_COLUMN;
use tidemill_spec::types::ElementType;

/// Most columns of a model without operators of tables; a longer row is a vector.
const MOST_COLUMNS: usize = 256;

/// Most columns that are named one by one.
const MOST_NAMED: usize = 4096;

/// Drafts a model with operators of `ai.onnx.ml`.
pub(super) fn draft_of_operators(subject: &Subject<'_>) -> Option<Draft> {
    let is_row = |port: &&Port| port.shape.as_ref().is_some_and(|shape| (1..=2).contains(&shape.len()));
    let is_table =
        subject.facts.uses("ai.onnx.ml") && !subject.is_rest() && subject.inputs.iter().all(is_row);
    is_table.then(|| drafted(subject))
}

/// Drafts a model that reads one row of floats.
pub(super) fn draft_of_columns(subject: &Subject<'_>) -> Option<Draft> {
    let &[port] = subject.inputs.as_slice() else { return None };
    let sides = subject.input_sides(port);
    let fits = matches!(sides.as_slice(), [Side::Batch, Side::Size(columns)] if *columns <= MOST_COLUMNS);
    let is_vector = ports::is_named(port, &["embed", "vec", "feat", "hidden", "noise", "latent"]);
    let is_row = fits && !is_vector && ports::is_float(port) && !subject.is_rest();
    is_row.then(|| drafted(subject))
}

fn drafted(subject: &Subject<'_>) -> Draft {
    let is_open =
        |port: &&Port| subject.output_sides(port, None).iter().any(|side| matches!(side, Side::Open(_)));
    // Large forests take long to load.
    let tried = if subject.outputs.iter().any(is_open) { subject.tried(&[]) } else { None };
    let mut remarks = Vec::new();
    if subject.outputs.iter().any(|port| is_map(subject, port)) && !subject.facts.class_labels.is_empty() {
        remarks.push(format!("its classes in order are {}", yaml::list(&subject.facts.class_labels)));
    }
    let is_lost = |port: &&&Port| matches!(port.element, PortElement::Other(_)) && port.shape.is_none();
    let lost: Vec<&str> = subject.outputs.iter().filter(is_lost).map(|port| port.name.as_str()).collect();
    if !lost.is_empty() {
        remarks.push(format!("left out, because they are no tensors: {}", yaml::list(&lost)));
    }
    Draft {
        remarks,
        inputs: subject.inputs.iter().map(|port| input(subject, port)).collect(),
        outputs: subject
            .outputs
            .iter()
            .filter(|port| !is_lost(port))
            .flat_map(|port| outputs(subject, port, tried.as_ref()))
            .collect(),
        ..Draft::default()
    }
}

fn input(subject: &Subject<'_>, port: &Port) -> Entry {
    use ElementType::{Float16, Float32, Float64, Int32, Int64, Text};
    let sides = subject.input_sides(port);
    let width = match Side::row(&sides).as_slice() {
        [] => Some(1),
        [Side::Size(width)] => Some(*width),
        _ => None,
    };
    let is_single = subject.inputs.len() > 1;
    match (ports::element(port), width) {
        // One input for each column, which has its name.
        (Some(Text), Some(1)) if is_single => Entry::new(&port.name, &named(port), "text", "text", sides)
            .guess("the column has the name of the input"),
        (Some(Text), Some(1)) => super::texts::as_it_is(subject, port),
        (Some(Float16 | Float32 | Float64 | Int32 | Int64), Some(1)) if is_single => {
            Entry::features(&port.name, vec![named(port)], ports::dtype(port), sides)
                .guess("the column has the name of the input")
        }
        (Some(Float16 | Float32 | Float64 | Int32 | Int64), Some(width)) if width <= MOST_NAMED => {
            let start = match is_single {
                true => format!("{BLANK_COLUMN}-{}", yaml::identifier(&port.name)),
                false => BLANK_COLUMN.to_owned(),
            };
            let columns = (1..=width).map(|at| format!("{start}-{at}")).collect();
            Entry::features(&port.name, columns, ports::dtype(port), sides)
                .note("the columns in the order of the training; for a category `{column: NAME, categories: [a, b]}`")
        }
        _ => tensors::input(subject, port),
    }
}

/// The name of an input as that of a column.
fn named(port: &Port) -> String {
    // Names that start with `_` belong to the engine.
    port.name.trim_start_matches('_').to_owned()
}

/// Whether an output is a list of dictionaries from classes to probabilities, which is read as a tensor.
fn is_map(subject: &Subject<'_>, port: &Port) -> bool {
    subject.facts.maps.contains(&port.name)
}

/// Drafts the columns of an output: a label and its score, or one column.
fn outputs(subject: &Subject<'_>, port: &Port, tried: Option<&Tried>) -> Vec<Entry> {
    let shape = subject.output_sides(port, tried);
    let is_of_classes = subject.outputs.len() == 1
        && ports::is_float(port)
        && (subject.maker(port) == "Softmax" || ports::is_named(port, &["logit", "prob"]));
    match Side::vector(&shape).filter(|classes| is_of_classes && *classes > 1) {
        Some(classes) => scores::label_and_score(subject, port, shape, classes, tried),
        None => vec![output(subject, port, tried)],
    }
}

/// Drafts an output: a label, one value, or probabilities of classes.
pub(super) fn output(subject: &Subject<'_>, port: &Port, tried: Option<&Tried>) -> Entry {
    if is_map(subject, port) {
        let shape = subject.output_sides(port, tried);
        return Entry::new(&port.name, "probabilities", "tensor", "float32", shape)
            .note("the file gives dictionaries; their values in the order of the classes are read");
    }
    let mut shape = subject.output_sides(port, tried);
    // Some converters write a fixed number of labels.
    if shape.is_empty() {
        shape.push(Side::Batch);
    }
    let is_label = ports::is_named(port, &["label", "class"]) || !ports::is_float(port);
    let is_first = |port: &Port, others: fn(&Port) -> bool| {
        subject.outputs.iter().find(|port| others(port)).is_some_and(|first| first.name == port.name)
    };
    let element = ports::element(port);
    match Side::vector(&shape) {
        Some(1) => {
            let (kind, column) = match element {
                Some(ElementType::Text) => ("text", "label"),
                Some(element) if element.is_float() => ("float64", "value"),
                Some(element) if element.is_integer() && is_label => ("int64", "label"),
                _ => ("tensor", "value"),
            };
            let is_free = match column {
                "label" => is_first(port, |port| !ports::is_float(port)),
                _ => is_first(port, ports::is_float),
            };
            let column = if is_free { column.to_owned() } else { subject.output_column(port) };
            Entry::new(&port.name, &column, kind, ports::dtype(port), shape)
        }
        Some(classes)
            if ports::is_float(port) && subject.outputs.len() > 1 && is_first(port, ports::is_float) =>
        {
            let is_probability = ports::is_named(port, &["prob"])
                || tried.is_some_and(|tried| tried.probabilities.contains(&port.name));
            let column = if is_probability { "probabilities" } else { "scores" };
            let entry = Entry::new(&port.name, column, "tensor", ports::dtype(port), shape);
            let labels = &subject.facts.class_labels;
            match labels.len() == classes {
                true => entry.note(format!("its classes in order are {}", yaml::list(labels))),
                false => entry,
            }
        }
        _ => tensors::output(subject, port, shape),
    }
}

#[cfg(test)]
mod tests {
    use super::super::cases::{Case, body};

    #[test]
    fn a_row_of_numbers_asks_for_its_columns() {
        let text = Case::new("forest")
            .input("X", "float32 [?, 4]")
            .output("output_label", "string [?]")
            .map("output_probability", 3)
            .operator("ai.onnx.ml.TreeEnsembleClassifier")
            .operator("ai.onnx.ml.ZipMap")
            .classes(&["setosa", "versicolor", "virginica"])
            .draft();
        assert_eq!(
            body(&text),
            "\
backends: [ort] # `rten` has no operators of ai.onnx.ml
# its classes in order are [setosa, versicolor, virginica]
inputs:
  - name: X
    type: features
    columns: [COLUMN-1, COLUMN-2, COLUMN-3, COLUMN-4]
    dtype: float32
    shape: [batch, 4]
    # the columns in the order of the training; for a category `{column: NAME, categories: [a, b]}`
outputs:
  - name: output_label
    column: label
    type: text
    dtype: text
    shape: [batch]
  - name: output_probability
    column: probabilities
    type: tensor
    dtype: float32
    shape: [batch, 3]
    # the file gives dictionaries; their values in the order of the classes are read
"
        );
    }

    #[test]
    fn inputs_of_columns_have_their_names() {
        let text = Case::new("titanic")
            .input("age", "float32 [?, 1]")
            .input("port", "string [?, 1]")
            .output("label", "int64 [?]")
            .output("probabilities", "float32 [?, 2]")
            .operator("ai.onnx.ml.LinearClassifier")
            .draft();
        assert!(text.contains("type: features\n    columns: [age]"), "{text}");
        assert!(text.contains("column: port\n    type: text\n    dtype: text"), "{text}");
        assert!(
            text.contains("column: label\n    type: int64") && text.contains("column: probabilities"),
            "{text}"
        );
    }

    #[test]
    fn regressions_and_small_networks_give_a_value() {
        let text = Case::new("boost")
            .input("input", "float32 [?, 2]")
            .output("variable", "float32 [?, 1]")
            .operator("ai.onnx.ml.TreeEnsembleRegressor")
            .draft();
        assert!(text.contains("column: value\n    type: float64"), "{text}");
        let text = Case::new("mlp").input("input", "float32 [n, 3]").output("y", "float32 [n, 1]").draft();
        assert!(
            text.contains("backends: [ort, rten]")
                && text.contains("columns: [COLUMN-1, COLUMN-2, COLUMN-3]"),
            "{text}"
        );
        let text = Case::new("mlp").input("x", "float32 [n, 4]").output("logits", "float32 [n, 3]").draft();
        assert!(text.contains("argmax: {}") && text.contains("softmax: {}"), "{text}");
        let text = Case::new("outliers")
            .input("X", "float32 [?, 2]")
            .output("label", "int64 [?, 1]")
            .output("scores", "float32 [?, 1]")
            .operator("ai.onnx.ml.TreeEnsembleRegressor")
            .draft();
        assert!(
            text.contains("column: label\n    type: int64") && text.contains("column: value\n"),
            "{text}"
        );
    }

    #[test]
    fn several_rows_are_tensors() {
        let case =
            Case::new("deepcut").input("input_1", "float32 [a, 21]").input("input_2", "float32 [b, 21]");
        let text = case.output("dense", "float32 [c, 1]").draft();
        assert!(text.contains("type: tensor") && !text.contains("features"), "{text}");
    }
}
