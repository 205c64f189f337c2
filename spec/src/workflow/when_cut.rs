//! Behaviour of an edge between two machines while the link between them is cut: `when_cut`.
use crate::deserializer::coded;
use crate::diagnostic::{Diagnostic, Diagnostics, ENOUGH};
use crate::plan::Freshness;
use crate::span::Located;
use crate::units::{Bytes, TimeSpan};
use crate::workflow::{Input, Operator, Workflow};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

const CODE: &str = "E0215";

/// Behaviour of the sending side of an edge while it cannot reach the receiving one.
#[derive(Debug, Clone, PartialEq)]
pub enum WhenCut {
    /// It continues and keeps the undelivered records.
    Buffer(CutBuffer),
    /// The run ends.
    Stop(CutStop),
    /// It continues with another variant of the operator after the edge.
    Degrade(CutDegrade),
}

impl WhenCut {
    /// Returns the limits on records kept while the edge is cut; none: as usual.
    pub fn kept(&self) -> Option<CutBuffer> {
        match self {
            Self::Buffer(buffer) => Some(buffer.clone()),
            Self::Degrade(CutDegrade { size, time, .. }) => {
                Some(CutBuffer { size: size.clone(), time: time.clone() })
            }
            Self::Stop(_) => None,
        }
    }
}

/// Stand-in on the sending side while an edge is cut.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct CutDegrade {
    /// The variant that answers: the id in its manifest, or its path in `variants`. The sending side loads it at the
    /// start of the run.
    pub variant: Located<String>,
    /// Time that the edge is cut before the variant answers. Default: 2s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Located<TimeSpan>>,
    /// Bytes that the sending machine keeps meanwhile, as with `buffer`. Default: 512MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Located<Bytes>>,
    /// Time for which the sending side continues, as with `buffer`. Default: 10min.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Located<TimeSpan>>,
}

impl CutDegrade {
    /// Creates settings with this variant and defaults.
    pub fn new(variant: impl Into<String>) -> Self {
        Self { variant: variant.into().into(), after: None, size: None, time: None }
    }

    /// Returns how long the edge is cut before the variant answers.
    pub fn after(&self) -> TimeSpan {
        self.after.as_ref().map_or(TimeSpan(2_000_000_000), |after| after.value)
    }

    /// Returns the limit on bytes kept.
    pub fn size(&self) -> Bytes {
        self.kept().size()
    }

    /// Returns how long the sending side continues.
    pub fn time(&self) -> TimeSpan {
        self.kept().time()
    }

    fn kept(&self) -> CutBuffer {
        CutBuffer { size: self.size.clone(), time: self.time.clone() }
    }

    fn is_short(&self) -> bool {
        self.after.is_none() && self.size.is_none() && self.time.is_none()
    }
}

/// `degrade: small`, or `degrade: {variant: small, after: 2s}`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LongDegrade {
    variant: Located<String>,
    #[serde(default)]
    after: Option<Located<TimeSpan>>,
    #[serde(default)]
    size: Option<Located<Bytes>>,
    #[serde(default)]
    time: Option<Located<TimeSpan>>,
}

impl<'de> Deserialize<'de> for CutDegrade {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = CutDegrade;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the id of a variant, or a map `{variant: small, after: 2s}`")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<CutDegrade, E> {
                Ok(CutDegrade::new(text))
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<CutDegrade, A::Error> {
                let LongDegrade { variant, after, size, time } =
                    LongDegrade::deserialize(MapAccessDeserializer::new(map))?;
                Ok(CutDegrade { variant, after, size, time })
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Limits on the records to keep while an edge is cut.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CutBuffer {
    /// Bytes that the sending machine keeps in memory and on its disk, at least 1MiB; when they are full, its sources
    /// wait. Default: 512MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Located<Bytes>>,
    /// Time for which the sending side continues, and for which the cluster waits before another machine gets its work. Default: 10min.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Located<TimeSpan>>,
}

impl CutBuffer {
    /// The least `size`.
    pub const LEAST_SIZE: Bytes = Bytes(1 << 20);

    /// Returns the limit on bytes kept.
    pub fn size(&self) -> Bytes {
        self.size.as_ref().map_or(Bytes(512 << 20), |size| size.value)
    }

    /// Returns how long the sending side continues.
    pub fn time(&self) -> TimeSpan {
        self.time.as_ref().map_or(TimeSpan(600_000_000_000), |time| time.value)
    }
}

/// Condition for the end of a run because an edge is cut.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CutStop {
    /// Time that the edge is cut before the run ends. Default: 10s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Located<TimeSpan>>,
}

impl CutStop {
    /// Returns how long the edge may be cut.
    pub fn after(&self) -> TimeSpan {
        self.after.as_ref().map_or(TimeSpan(10_000_000_000), |after| after.value)
    }
}

#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "WhenCutSettings")]
struct LongWhenCut {
    /// The sending side continues and keeps the undelivered records; they arrive once, in order, when the link is back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    buffer: Option<CutBuffer>,
    /// The run ends as failed, with the edge as its reason. Its last checkpoint and what its sinks committed stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stop: Option<CutStop>,
    /// Another variant of the operator after the edge answers on the sending side: its id, or a map with settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<DegradeSchema>")]
    degrade: Option<CutDegrade>,
}

impl<'de> Deserialize<'de> for WhenCut {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = WhenCut;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "`buffer`, `stop`, or a map `{buffer: {size: 512MiB, time: 10min}}` or `{degrade: small}`",
                )
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<WhenCut, E> {
                match text {
                    "buffer" => Ok(WhenCut::Buffer(CutBuffer::default())),
                    "stop" => Ok(WhenCut::Stop(CutStop::default())),
                    "degrade" => Err(E::custom(coded(
                        CODE,
                        "`degrade` needs the variant that answers",
                        "write `when_cut: {degrade: small}`, with one of the operator's variants",
                    ))),
                    other => Err(E::custom(coded(
                        CODE,
                        format!("`{other}` is not a behaviour while an edge is cut"),
                        "write `buffer` or `stop`, or `{degrade: small}` with a variant; without `when_cut` the sources before the edge wait",
                    ))),
                }
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<WhenCut, A::Error> {
                let long = LongWhenCut::deserialize(MapAccessDeserializer::new(map))?;
                match (long.buffer, long.stop, long.degrade) {
                    (Some(buffer), None, None) => Ok(WhenCut::Buffer(buffer)),
                    (None, Some(stop), None) => Ok(WhenCut::Stop(stop)),
                    (None, None, Some(degrade)) => Ok(WhenCut::Degrade(degrade)),
                    _ => Err(serde::de::Error::custom(coded(
                        CODE,
                        "`when_cut` has one setting",
                        "write `when_cut: buffer`, `when_cut: {buffer: {size: 512MiB, time: 10min}}`, `when_cut: {degrade: small}` or `when_cut: stop`",
                    ))),
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl Serialize for WhenCut {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = match self {
            Self::Buffer(buffer) if *buffer == CutBuffer::default() => {
                return serializer.serialize_str("buffer");
            }
            Self::Stop(stop) if *stop == CutStop::default() => return serializer.serialize_str("stop"),
            _ => serializer.serialize_map(Some(1))?,
        };
        match self {
            Self::Buffer(buffer) => map.serialize_entry("buffer", buffer)?,
            Self::Stop(stop) => map.serialize_entry("stop", stop)?,
            Self::Degrade(degrade) if degrade.is_short() => {
                map.serialize_entry("degrade", &degrade.variant)?
            }
            Self::Degrade(degrade) => map.serialize_entry("degrade", degrade)?,
        }
        map.end()
    }
}

impl JsonSchema for WhenCut {
    fn schema_name() -> Cow<'static, str> {
        "WhenCut".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let long = generator.subschema_for::<LongWhenCut>();
        json_schema!({
            "description": "Behaviour of the sending side of an edge while it cannot reach the receiving one: `buffer`, `stop`, or a map with settings.",
            "anyOf": [{"enum": ["buffer", "stop"]}, long]
        })
    }
}

/// The short and the long form, for editors.
struct DegradeSchema;

impl JsonSchema for DegradeSchema {
    fn schema_name() -> Cow<'static, str> {
        "CutDegradeForm".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let long = generator.subschema_for::<CutDegrade>();
        json_schema!({
            "description": "The variant that answers while the edge is cut: its id, or a map with settings.",
            "anyOf": [{"type": "string"}, long]
        })
    }
}

impl Workflow {
    /// Returns the settings for cut edges, by the receiving operator or sink and the number of its input.
    pub fn when_cut(&self) -> BTreeMap<(String, u32), WhenCut> {
        let of_operators = self.operators.iter().flat_map(|operator| {
            (0..).zip(&operator.inputs).map(move |(number, input)| (&operator.id, number, input))
        });
        let all = of_operators.chain(self.sinks.iter().map(|sink| (&sink.id, 0, &sink.input)));
        all.filter_map(|(id, number, input)| {
            let when_cut = input.when_cut.as_ref()?.value.clone();
            Some(((id.value.clone(), number), when_cut))
        })
        .collect()
    }
}

/// Finds invalid settings on the edges into operators and sinks.
pub(super) fn check(workflow: &Workflow, found: &mut Diagnostics) {
    for operator in &workflow.operators {
        for input in &operator.inputs {
            check_input(input, Receiver::Operator(operator), found);
        }
    }
    for sink in &workflow.sinks {
        check_input(&sink.input, Receiver::Sink(&sink.id), found);
    }
}

/// The receiver of an edge.
enum Receiver<'a> {
    Operator(&'a Operator),
    Sink(&'a str),
}

impl Receiver<'_> {
    /// Why no variant can replace it: the reason, and a correction.
    fn cannot_degrade(&self) -> Option<(String, String)> {
        let operator = match self {
            Self::Sink(id) => {
                return Some((
                    format!("`{id}` is a sink: it has no variant that could answer in its place"),
                    "write `buffer` or `stop`".to_owned(),
                ));
            }
            Self::Operator(operator) => operator,
        };
        let id = &operator.id;
        if operator.variants.is_empty() {
            return Some((
                format!("`{id}` has no variant that could answer in its place"),
                "write `buffer` or `stop`".to_owned(),
            ));
        }
        if operator.inputs.len() > 1 {
            return Some((
                format!("`{id}` has several inputs: a variant needs all of them to answer"),
                format!("join them before `{id}` and write `degrade` there, or write `buffer` or `stop`"),
            ));
        }
        None
    }
}

fn check_input(input: &Input, receiver: Receiver<'_>, found: &mut Diagnostics) {
    let Some(when_cut) = &input.when_cut else { return };
    if found.len() >= ENOUGH {
        return;
    }
    let mut refuse = |span: &crate::span::Span, message: String, help: &str| {
        found.push(Diagnostic::error(CODE, message).at(span.clone()).with_help(help));
    };
    if let WhenCut::Degrade(degrade) = &when_cut.value {
        if let Some((message, help)) = receiver.cannot_degrade() {
            refuse(&when_cut.span, message, &help);
        }
        if let Some(after) = degrade.after.as_ref().filter(|after| after.value.0 == 0) {
            let message = "a variant cannot answer before the edge is cut".to_owned();
            refuse(&after.span, message, "write a time such as `2s`, or leave it out");
        }
    }
    if let WhenCut::Stop(stop) = &when_cut.value
        && let Some(after) = stop.after.as_ref().filter(|after| after.value.0 == 0)
    {
        let message = "a run cannot stop before its edge is cut".to_owned();
        refuse(&after.span, message, "write a time such as `10s`, or leave it out");
    }
    let Some(kept) = when_cut.value.kept() else { return };
    if let Some(size) = kept.size.as_ref().filter(|size| size.value < CutBuffer::LEAST_SIZE) {
        let least = CutBuffer::LEAST_SIZE;
        refuse(&size.span, format!("a buffer of {}", size.value), &format!("write {least} or more"));
    }
    if let Some(time) = kept.time.as_ref().filter(|time| time.value.0 == 0) {
        let message = "a buffer with a time of 0".to_owned();
        refuse(&time.span, message, "write a time such as `10min`, or leave it out");
    }
    if let Some(freshness) = input.freshness.filter(|freshness| *freshness != Freshness::Block) {
        let word = match freshness {
            Freshness::Latest => "latest",
            _ => "drop_oldest",
        };
        let what = if matches!(when_cut.value, WhenCut::Degrade(_)) { "degrade" } else { "buffer" };
        refuse(
            &when_cut.span,
            format!("`freshness: {word}` drops waiting records, but `when_cut: {what}` keeps them"),
            "leave out one of the two",
        );
    }
}
