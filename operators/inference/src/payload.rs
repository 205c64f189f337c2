//! Bytes that a model's run carries where its device is elsewhere: its tensors, by the manifest.
use crate::blueprint::names_beside;
use crate::facts::{self, ModelFacts, PortElement};
use tidemill_spec::manifest::{Dimension, InputType, Manifest, ModelInput, Preprocess};
use tidemill_spec::types::ElementType;

/// Bytes of one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payload {
    /// Of the inputs.
    pub inputs: u64,
    /// Of the inputs if those of pictures were bytes; none where none has floats.
    pub byte_inputs: Option<u64>,
    /// Of the outputs.
    pub outputs: u64,
}

/// Why the bytes of a record are not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// The manifest leaves a dimension open.
    #[error("`{0}` has a dimension `any`: give its usual size with `--any N`")]
    Open(String),
    /// A tensor of texts.
    #[error("`{0}` is a tensor of texts, whose bytes a manifest does not say")]
    Texts(String),
    /// A detection head reads an output whose shape only the file says.
    #[error("the shape of `{0}` is only in the model's file, which is not here")]
    File(String),
    /// It runs step by step.
    #[error("it runs once for each step of a loop; only models that run once a record are judged")]
    Steps,
}

/// Returns the bytes of a record's tensors. `any` is the size of dimensions that the manifest leaves open; without it, tokens
/// are as many as their step takes at most. `file` has the facts of the model's file, if it is here.
///
/// Constants, and states that stay on the device, go there with the model and are not counted.
///
/// # Errors
/// Tensors whose size is not known.
pub fn payload(
    manifest: &Manifest,
    any: Option<u32>,
    file: impl FnOnce() -> Option<ModelFacts>,
) -> Result<Payload, PayloadError> {
    if manifest.repeat.is_some() || manifest.decoder.is_some() || manifest.generate.is_some() {
        return Err(PayloadError::Steps);
    }
    let (mut inputs, mut byte_inputs, mut has_floats) = (0, 0, false);
    for input in &manifest.inputs {
        let values = values(&input.shape, any.or_else(|| most_tokens(input)), &input.name)?;
        let bytes = values * width(input.dtype, &input.name)?;
        let is_float_picture = input.input_type == InputType::Image && input.dtype.is_float();
        has_floats |= is_float_picture;
        inputs += bytes;
        byte_inputs += if is_float_picture { values } else { bytes };
    }
    let mut outputs = 0;
    let mut counted: Vec<&str> = Vec::new();
    for output in &manifest.outputs {
        if !counted.contains(&output.name.as_str()) {
            counted.push(&output.name);
            outputs += values(&output.shape, any, &output.name)? * width(output.dtype, &output.name)?;
        }
    }
    let beside = manifest.outputs.iter().flat_map(names_beside).map(|name| name.as_str());
    let beside: Vec<&str> = beside.filter(|name| !counted.contains(name)).collect();
    if let Some(first) = beside.first() {
        let facts = file().ok_or_else(|| PayloadError::File((*first).to_owned()))?;
        for name in &beside {
            outputs += of_file(&facts, name, any)?;
        }
    }
    Ok(Payload { inputs, byte_inputs: has_floats.then_some(byte_inputs), outputs })
}

/// Values of one record of a tensor of this shape.
fn values(shape: &[Dimension], any: Option<u32>, name: &str) -> Result<u64, PayloadError> {
    let size = |dimension: &Dimension| match dimension {
        Dimension::Fixed(size) => Ok(u64::from(*size)),
        Dimension::Batch => Ok(1),
        Dimension::Any => any.map(u64::from).ok_or_else(|| PayloadError::Open(name.to_owned())),
    };
    Dimension::row(shape).iter().map(size).product()
}

/// Most tokens of an input, where a step makes tokens.
fn most_tokens(input: &ModelInput) -> Option<u32> {
    input.preprocess.iter().find_map(|step| match step.value {
        Preprocess::Tokenize { most, .. } => Some(most),
        _ => None,
    })
}

/// Bytes of one value.
fn width(element: ElementType, name: &str) -> Result<u64, PayloadError> {
    element.bytes().ok_or_else(|| PayloadError::Texts(name.to_owned()))
}

/// Bytes of one record of an output of the file, whose first dimension counts records.
fn of_file(facts: &ModelFacts, name: &str, any: Option<u32>) -> Result<u64, PayloadError> {
    let port = facts.outputs.iter().find(|port| port.name == name);
    let Some((port, shape)) = port.and_then(|port| Some((port, port.shape.as_ref()?))) else {
        return Err(PayloadError::Open(name.to_owned()));
    };
    let PortElement::Known(element) = port.element else { return Err(PayloadError::Open(name.to_owned())) };
    let size = |dimension: &facts::Dimension| match dimension {
        facts::Dimension::Fixed(size) => Ok(*size as u64),
        facts::Dimension::Free(_) => any.map(u64::from).ok_or_else(|| PayloadError::Open(name.to_owned())),
    };
    let values: u64 = shape.iter().skip(1).map(size).product::<Result<u64, PayloadError>>()?;
    Ok(values * width(element, name)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Port;
    use std::path::Path;

    fn manifest(ports: &str) -> Manifest {
        let digest = "a".repeat(64);
        let text = format!(
            "version: 1\nid: m\ndescription: a model\nfile: m.onnx\nsha256: {digest}\nlicence: MIT\n\
             origin: {{kind: external, note: by hand}}\nbackends: [rten]\n{ports}"
        );
        Manifest::parse(&text, "m.yaml").unwrap_or_else(|found| panic!("{found}"))
    }

    const PICTURE: &str = "inputs: [{name: image, column: image, type: image, dtype: float32, shape: [batch, 3, 10, 20], \
                           preprocess: [{resize: {width: 20, height: 10}}]}]\n";

    #[test]
    fn tensors_are_counted_once() {
        let two = "outputs: [{name: scores, column: a, type: tensor, dtype: float32, shape: [batch, 6]}, \
                   {name: scores, column: b, type: text, dtype: float32, shape: [batch, 6], \
                   postprocess: [{argmax: {labels: [a, b, c, d, e, f]}}]}]";
        let found = payload(&manifest(&format!("{PICTURE}{two}")), None, || None);
        assert_eq!(found, Ok(Payload { inputs: 2400, byte_inputs: Some(600), outputs: 24 }));
    }

    #[test]
    fn open_dimensions_need_a_size() {
        let open = "inputs: [{name: sound, column: sound, type: audio, dtype: float32, shape: [batch, any], \
                    preprocess: [{resample: {sample_rate: 8000}}]}]\n\
                    outputs: [{name: y, column: y, type: tensor, dtype: float32, shape: [batch, 2]}]";
        let open = manifest(open);
        assert_eq!(payload(&open, None, || None), Err(PayloadError::Open("sound".into())));
        let known = payload(&open, Some(8000), || None);
        assert_eq!(known, Ok(Payload { inputs: 32_000, byte_inputs: None, outputs: 8 }));
        let text = "inputs: [{name: ids, column: text, type: text, dtype: int64, shape: [batch, any], \
                    preprocess: [{tokenize: {file: tokenizer.json, most: 100}}]}]\n\
                    outputs: [{name: y, column: y, type: tensor, dtype: float32, shape: [batch, 2]}]";
        assert_eq!(payload(&manifest(text), None, || None).map(|found| found.inputs), Ok(800));
    }

    #[test]
    fn outputs_beside_a_head_are_those_of_the_file() {
        let head = "outputs: [{name: boxes, column: boxes, type: tensor, dtype: float32, shape: [batch, 50, 4], \
                    postprocess: [{decode_boxes: {scores: each, scores_from: scores, threshold: 0.5, iou: 0.5}}]}]";
        let head = manifest(&format!("{PICTURE}{head}"));
        assert_eq!(payload(&head, None, || None), Err(PayloadError::File("scores".into())));
        let mut facts = ModelFacts::of_nothing(Path::new("m.yaml"));
        facts.outputs.push(Port {
            name: "scores".into(),
            element: PortElement::Known(ElementType::Float32),
            shape: Some(vec![
                facts::Dimension::Free("batch".into()),
                facts::Dimension::Fixed(50),
                facts::Dimension::Fixed(3),
            ]),
        });
        let found = payload(&head, None, || Some(facts)).map(|found| found.outputs);
        assert_eq!(found, Ok(50 * 4 * 4 + 50 * 3 * 4));
    }
}
