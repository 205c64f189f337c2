//! Inputs of a file that its manifest leaves out, and where they belong.
use crate::error::ModelError;
use crate::facts::{Dimension, ModelFacts, Port};
use tidemill_spec::manifest::Manifest;

/// The error of an input that nothing feeds, at the list of the manifest where it most likely belongs.
pub(super) fn error(manifest: &Manifest, facts: &ModelFacts, port: &Port) -> ModelError {
    let (name, found) = (port.name.clone(), port.type_text());
    let inputs = manifest.inputs.last().map(|input| &input.name.span);
    let (advice, list) = if let Some(output) = after(manifest, facts, port) {
        let list = manifest.states.last().map(|state| &state.input.span);
        let advice = format!(
            "if it is `{}` of the record before, list it under `states`: `{{input: {name}, output: {}, shape: [...]}}`; \
             otherwise add it to `inputs`",
            output.name, output.name
        );
        (advice, list)
    } else if is_one_value(port) {
        let list = manifest.constants.last().map(|constant| &constant.name.span);
        let advice = format!(
            "if it is the same for every record, list it under `constants`: `{{name: {name}, value: ...}}`; otherwise add it to \
             `inputs`"
        );
        (advice, list)
    } else {
        let places = match (&manifest.repeat, &manifest.generate) {
            (Some(_), _) => "`inputs` or to `loop`",
            (_, Some(_)) => "`inputs`, or to `mask`, `positions` or `cache` of `generate`,",
            _ => "`inputs`",
        };
        let advice = format!(
            "add it to {places} in the manifest; `tidemill models inspect FILE --manifest` writes the lines"
        );
        (advice, None)
    };
    let span = list.or(inputs).unwrap_or(&manifest.file.span).clone();
    ModelError::NotFed { name, found, advice, span }
}

/// The output that may be the input's value with the next record: of the same type, and read by nothing else.
fn after<'a>(manifest: &Manifest, facts: &'a ModelFacts, port: &Port) -> Option<&'a Port> {
    let sizes = |port: &Port| {
        let size = |side: &Dimension| match side {
            Dimension::Fixed(size) => Some(*size),
            Dimension::Free(_) => None,
        };
        port.shape.as_ref().map(|shape| shape.iter().map(size).collect::<Vec<_>>())
    };
    let shape = sizes(port).filter(|shape| shape.len() > 1 && shape.iter().any(Option::is_some))?;
    facts.outputs.iter().find(|output| {
        output.element == port.element
            && sizes(output).as_ref() == Some(&shape)
            && manifest.outputs.iter().all(|known| known.name != output.name.as_str())
            && manifest.states.iter().all(|known| known.output != output.name.as_str())
    })
}

/// Whether the input is one value, such as a sample rate.
fn is_one_value(port: &Port) -> bool {
    let is_one = |side: &Dimension| *side == Dimension::Fixed(1);
    port.shape.as_ref().is_some_and(|shape| shape.iter().all(is_one))
}
