//! The short and the long form of an operator's inputs.
use super::{Batching, DeviceChoice, OnPanic, Operator, WhenCut};
use crate::backend::BackendChoice;
use crate::deserializer::coded;
use crate::plan::Freshness;
use crate::span::{Located, Span};
use crate::value::Value;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;

/// One input: `images`, or `{from: images, freshness: latest}`, or `{from: images, when_cut: buffer}`.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// Id of a source or operator.
    pub from: Located<String>,
    /// Freshness policy of this edge; none: by the kind of the source.
    pub freshness: Option<Freshness>,
    /// Behaviour while the link of this edge is cut; none: the sources before it wait.
    pub when_cut: Option<Located<WhenCut>>,
}

impl Input {
    /// Returns the place of the reference.
    pub fn span(&self) -> &Span {
        &self.from.span
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LongInput {
    /// Id of a source or operator.
    from: Located<String>,
    /// Losses that this edge permits; none: by the kind of the source.
    #[serde(default)]
    freshness: Option<Freshness>,
    /// Behaviour of the sending side while the link to the receiving machine is cut; none: the sources before the edge
    /// wait.
    #[serde(default)]
    when_cut: Option<Located<WhenCut>>,
}

impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Input;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an id, or a map `{from: id, freshness: latest}`")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Input, E> {
                Ok(Input { from: text.into(), freshness: None, when_cut: None })
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<Input, A::Error> {
                let long = LongInput::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Input { from: long.from, freshness: long.freshness, when_cut: long.when_cut })
            }
        }
        struct Anything(Input);
        impl<'de> Deserialize<'de> for Anything {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Visitor).map(Anything)
            }
        }
        let Located { value: Anything(mut input), span } = Located::deserialize(deserializer)?;
        if input.from.span.source().is_none() {
            input.from.span = span;
        }
        Ok(input)
    }
}

impl Serialize for Input {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.freshness.is_none() && self.when_cut.is_none() {
            return self.from.serialize(serializer);
        }
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("from", &self.from)?;
        if let Some(freshness) = &self.freshness {
            map.serialize_entry("freshness", freshness)?;
        }
        if let Some(when_cut) = &self.when_cut {
            map.serialize_entry("when_cut", when_cut)?;
        }
        map.end()
    }
}

impl JsonSchema for Input {
    fn schema_name() -> Cow<'static, str> {
        "Input".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let long = generator.subschema_for::<LongInput>();
        json_schema!({
            "description": "One input: an id, or a map with permitted losses and the behaviour while the edge is cut.",
            "anyOf": [{"type": "string"}, long]
        })
    }
}

/// An operator in a workflow file: `input` for one input, `inputs` for several.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Operator")]
pub(super) struct OperatorForm {
    /// Id, unique in the workflow.
    #[schemars(regex(pattern = r"^[a-z][a-z0-9_-]*$"))]
    id: Located<String>,
    /// Operator kind.
    kind: Located<String>,
    /// Its only input.
    #[serde(default)]
    input: Option<Input>,
    /// Inputs, in order of its ports.
    #[serde(default)]
    inputs: Option<Vec<Input>>,
    /// Candidate model manifests, relative to the workflow file; only for kind `ml`.
    #[serde(default)]
    variants: Vec<Located<String>>,
    /// Inference backend. Default: auto.
    #[serde(default)]
    backend: Option<Located<BackendChoice>>,
    /// Where the model runs: `cpu`, on the processors of its worker; `proxy`, there in a process of its own; a kind of device, on one
    /// of that kind, on this or another machine.
    /// Default: the plan decides.
    #[serde(default)]
    device: Option<Located<DeviceChoice>>,
    /// Batches for the model.
    #[serde(default)]
    batching: Option<Batching>,
    /// Reaction to a panic. Default: stop.
    #[serde(default)]
    on_panic: OnPanic,
    /// Number of workers, 0 to 3, whose loss the operator survives without a restart: each of them runs it. Default: that of `slo`.
    #[serde(default)]
    survive: Option<Located<u32>>,
    /// Settings by kind.
    #[serde(default = "Value::empty_map")]
    options: Value,
}

impl TryFrom<OperatorForm> for Operator {
    type Error = String;

    fn try_from(form: OperatorForm) -> Result<Self, String> {
        let inputs = match (form.input, form.inputs) {
            (Some(_), Some(_)) => {
                return Err(coded(
                    "E0204",
                    format!("operator `{}` has both `input` and `inputs`", form.id),
                    "keep `inputs: [...]`, or `input` if there is only one",
                ));
            }
            (Some(input), None) => vec![input],
            (None, Some(inputs)) => inputs,
            (None, None) => Vec::new(),
        };
        Ok(Operator {
            id: form.id,
            kind: form.kind,
            inputs,
            variants: form.variants,
            backend: form.backend,
            device: form.device,
            batching: form.batching,
            on_panic: form.on_panic,
            survive: form.survive,
            options: form.options,
        })
    }
}
