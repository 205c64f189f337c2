//! Inputs and outputs of a file whose format names none, such as TorchScript.
use crate::facts::{self, Dimension, ModelFacts, Port, PortElement};
use std::path::Path;
use tidemill_spec::manifest::{self, Manifest};
use tidemill_spec::types::ElementType;

/// Adds those of the manifest's ONNX file, in its order: the other file was made from it. Without one, those of the manifest.
pub(super) fn fill(facts: &mut ModelFacts, manifest: &Manifest, folder: &Path) {
    let onnx = folder.join(&manifest.file.value);
    // One that cannot be read is told where it is compared itself.
    if !manifest.file.is_empty()
        && onnx != facts.path
        && let Ok(read) = facts::inspect(&onnx)
    {
        (facts.inputs, facts.outputs) = (read.inputs, read.outputs);
        return;
    }
    let inputs = manifest.inputs.iter().map(|input| port(&input.name, input.dtype, &input.shape));
    facts.inputs = inputs.collect();
    let outputs = manifest.outputs.iter().map(|output| port(&output.name, output.dtype, &output.shape));
    facts.outputs = outputs.collect();
}

fn port(name: &str, element: ElementType, shape: &[manifest::Dimension]) -> Port {
    let sizes = shape.iter().map(|dimension| match dimension {
        manifest::Dimension::Batch => Dimension::Free("batch".to_owned()),
        manifest::Dimension::Fixed(size) => Dimension::Fixed(*size as usize),
        manifest::Dimension::Any => Dimension::Free(String::new()),
    });
    Port { name: name.to_owned(), element: PortElement::Known(element), shape: Some(sizes.collect()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_spec::span::Located;

    #[test]
    fn ports_are_those_of_the_onnx_file_or_of_the_manifest() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
        let mut manifest = Manifest::load(folder.join("image_means.yaml")).unwrap();
        let onnx = facts::inspect(&folder.join("image_means.onnx")).unwrap();
        let mut filled = ModelFacts::of_bytes(&folder.join("image_means.pt"), b"x");
        fill(&mut filled, &manifest, &folder);
        assert_eq!((&filled.inputs, &filled.outputs), (&onnx.inputs, &onnx.outputs));
        manifest.file = Located::new(String::new(), manifest.file.span.clone());
        let mut filled = ModelFacts::of_bytes(&folder.join("image_means.pt"), b"x");
        fill(&mut filled, &manifest, &folder);
        let names = |ports: &[Port]| ports.iter().map(|port| port.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&filled.inputs), names(&onnx.inputs));
        assert_eq!(filled.inputs[0].type_text(), onnx.inputs[0].type_text());
    }
}
