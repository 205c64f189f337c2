//! Whether the model of a server is the one that a manifest describes: names, types and shapes of inputs and outputs.
use super::elements;
use serde::{Deserialize, Deserializer};
use tidemill_inference::facts::{Dimension, ModelFacts, Port, PortElement};

/// A model as its server describes it.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Description {
    #[serde(default, deserialize_with = "none_if_null")]
    pub(super) inputs: Vec<Declared>,
    #[serde(default, deserialize_with = "none_if_null")]
    pub(super) outputs: Vec<Declared>,
}

/// An input or output.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Declared {
    pub(super) name: String,
    pub(super) datatype: String,
    /// -1: any size.
    #[serde(default, deserialize_with = "none_if_null")]
    pub(super) shape: Vec<i64>,
}

fn none_if_null<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

impl Description {
    /// Some servers say nothing about some models.
    pub(super) fn is_silent(&self) -> bool {
        self.inputs.is_empty() && self.outputs.is_empty()
    }

    /// Returns everything in which the model of the server differs from the file.
    pub(super) fn differences(&self, facts: &ModelFacts) -> Vec<String> {
        let mut found = differing("input", &self.inputs, &facts.inputs);
        found.extend(differing("output", &self.outputs, &facts.outputs));
        let needed =
            self.inputs.iter().filter(|tensor| facts.inputs.iter().all(|port| port.name != tensor.name));
        found.extend(
            needed.map(|tensor| format!("the server needs an input `{}`, which the file lacks", tensor.name)),
        );
        found
    }
}

fn differing(kind: &str, there: &[Declared], here: &[Port]) -> Vec<String> {
    let difference = |port: &Port| {
        let Some(tensor) = there.iter().find(|tensor| tensor.name == port.name) else {
            let names: Vec<&str> = there.iter().map(|tensor| tensor.name.as_str()).collect();
            return Some(format!("the server has no {kind} `{}`, but {}", port.name, names.join(", ")));
        };
        let agrees = is_same_type(&port.element, &tensor.datatype) && is_same_shape(port, &tensor.shape);
        let declared = format!("{} {:?}", tensor.datatype, tensor.shape);
        (!agrees).then(|| {
            format!(
                "{kind} `{}` is {declared} on the server, and {} in the file",
                port.name,
                port.type_text()
            )
        })
    };
    here.iter().filter_map(difference).collect()
}

fn is_same_type(element: &PortElement, datatype: &str) -> bool {
    match element {
        PortElement::Known(element) => elements::name(*element) == datatype,
        // No column has it: no run asks for it.
        PortElement::Other(_) => true,
    }
}

/// Whether the server takes all shapes that the file takes.
fn is_same_shape(port: &Port, there: &[i64]) -> bool {
    let Some(here) = &port.shape else { return true };
    let fits = |(here, there): (&Dimension, &i64)| match here {
        _ if *there < 0 => true,
        Dimension::Fixed(size) => usize::try_from(*there) == Ok(*size),
        Dimension::Free(_) => false,
    };
    here.len() == there.len() && here.iter().zip(there).all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tidemill_spec::types::ElementType;

    fn facts() -> ModelFacts {
        let port = |name: &str, element, shape| Port {
            name: name.into(),
            element: PortElement::Known(element),
            shape,
        };
        let batch = || Dimension::Free("batch".into());
        let pixels = port("pixels", ElementType::Float32, Some(vec![batch(), Dimension::Fixed(3)]));
        let scores = port("scores", ElementType::Float16, None);
        ModelFacts {
            inputs: vec![pixels],
            outputs: vec![scores],
            ..ModelFacts::of_bytes(Path::new("m.onnx"), b"")
        }
    }

    fn found(json: &str) -> String {
        serde_json::from_str::<Description>(json).unwrap().differences(&facts()).join("; ")
    }

    #[test]
    fn models_that_agree_have_no_differences() {
        let scores = r#""outputs": [{"name": "scores", "datatype": "FP16", "shape": [-1, 7]}]"#;
        for shape in ["[-1, 3]", "[-1, -1]"] {
            let json = format!(
                r#"{{"name": "m", "inputs": [{{"name": "pixels", "datatype": "FP32", "shape": {shape}}}], {scores}}}"#
            );
            assert_eq!(found(&json), "");
        }
        for json in [r#"{"name": "m", "versions": null}"#, r#"{"inputs": null, "outputs": []}"#] {
            assert!(serde_json::from_str::<Description>(json).unwrap().is_silent(), "{json}");
        }
    }

    #[test]
    fn differences_are_told() {
        let text = found(
            r#"{"inputs": [{"name": "pixels", "datatype": "UINT8", "shape": [1, 3]}, {"name": "more", "datatype": "FP32"}],
                "outputs": [{"name": "Scores", "datatype": "FP16", "shape": [-1]}]}"#,
        );
        let expected = "input `pixels` is UINT8 [1, 3] on the server, and [batch, 3] float32 in the file; \
                        the server has no output `scores`, but Scores; \
                        the server needs an input `more`, which the file lacks";
        assert_eq!(text, expected);
        for (datatype, shape) in
            [("FP32", "[1, 3]"), ("FP32", "[-1, 4]"), ("FP32", "[-1]"), ("FP64", "[-1, 3]")]
        {
            let text = found(&format!(
                r#"{{"inputs": [{{"name": "pixels", "datatype": "{datatype}", "shape": {shape}}}],
                     "outputs": [{{"name": "scores", "datatype": "FP16", "shape": []}}]}}"#
            ));
            assert!(text.starts_with("input `pixels` is") && !text.contains(';'), "{text}");
        }
    }
}
