//! Policies in files: one key is the kind, whatever its name, so they are read key by key.
use super::{EdgePattern, Home, InfrastructurePolicy, Policy, PolicySide};
use crate::deserializer::coded;
use crate::diagnostic::nearest;
use crate::span::Located;
use crate::value::{Node, Value};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{DeserializeSeed, Error, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PolicyVisitor(Home::Workflow)).map(|read| read.policy)
    }
}

impl<'de> Deserialize<'de> for InfrastructurePolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PolicyVisitor(Home::Infrastructure))
    }
}

struct PolicyVisitor(Home);

impl<'de> Visitor<'de> for PolicyVisitor {
    type Value = InfrastructurePolicy;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map such as `{edge: cameras -> detect, rate_limit: {rps: 5}}`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<InfrastructurePolicy, A::Error> {
        let home = self.0;
        let (mut id, mut edge, mut side, mut workflow) = (None, None, PolicySide::default(), None);
        let mut kind: Option<(Located<String>, Value)> = None;
        while let Some(key) = map.next_key_seed(Key { home, first: kind.as_ref().map(|(kind, _)| kind) })? {
            match key.as_str() {
                "id" => id = map.next_value()?,
                "edge" => edge = Some(map.next_value_seed(Edge(home))?),
                "side" => side = map.next_value()?,
                "workflow" => workflow = map.next_value()?,
                _ => {
                    let options = map.next_value_seed(Options { home, kind: &key })?;
                    kind = Some((key, options));
                }
            }
        }
        let edge = edge.ok_or_else(|| Error::missing_field("edge"))?;
        let Some((kind, options)) = kind else {
            return Err(Error::custom(coded(
                home.code(),
                "the policy has no kind",
                "add the kind with its options, such as `rate_limit: {rps: 5}`",
            )));
        };
        Ok(InfrastructurePolicy { workflow, policy: Policy { id, edge, side, kind, options } })
    }
}

/// A key; fails at its place if it can be no other than a second kind.
struct Key<'a> {
    home: Home,
    /// The kind that was read before.
    first: Option<&'a Located<String>>,
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = Located<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let key = Located::<String>::deserialize(deserializer)?;
        if self.home.keys().contains(&key.as_str()) {
            return Ok(key);
        }
        if key == "workflow" {
            return Err(D::Error::custom(coded(
                self.home.code(),
                "a policy of a workflow is only for that workflow",
                "leave `workflow` out; policies of an infrastructure may have it",
            )));
        }
        let Some(first) = self.first else { return Ok(key) };
        let own = format!("write `{key}` as a policy of its own, `- {{edge: ..., {key}: {{...}}}}`");
        let help = match nearest(&key, self.home.keys().iter().copied()) {
            Some(known) => format!("did you mean `{known}`? otherwise {own}"),
            None => own,
        };
        let message = format!("a policy has one kind, but this one has `{first}` and `{key}`");
        Err(D::Error::custom(coded(self.home.code(), message, help)))
    }
}

struct Edge(Home);

impl<'de> DeserializeSeed<'de> for Edge {
    type Value = Located<EdgePattern>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let Located { value, span } = Located::<String>::deserialize(deserializer)?;
        let value = EdgePattern::parse(&value, self.0).map_err(D::Error::custom)?;
        Ok(Located { value, span })
    }
}

struct Options<'a> {
    home: Home,
    kind: &'a str,
}

impl<'de> DeserializeSeed<'de> for Options<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        match value.node {
            Node::Map(_) => return Ok(value),
            Node::Null => {
                value.node = Node::Map(Vec::new());
                return Ok(value);
            }
            _ => {}
        }
        let kind = self.kind;
        let help = match nearest(kind, self.home.keys().iter().copied()) {
            Some(known) => format!("did you mean the key `{known}`? options are written `{kind}: {{...}}`"),
            None => format!("write `{kind}: {{...}}`, or `{kind}: {{}}` without options"),
        };
        let message = format!("the options of the policy `{kind}` are a map, found {}", value.kind());
        Err(D::Error::custom(coded(self.home.code(), message, help)))
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        print(self, None, serializer)
    }
}

impl Serialize for InfrastructurePolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        print(&self.policy, self.workflow.as_ref(), serializer)
    }
}

fn print<S: Serializer>(
    policy: &Policy,
    workflow: Option<&Located<String>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(None)?;
    if let Some(id) = &policy.id {
        map.serialize_entry("id", id)?;
    }
    map.serialize_entry("edge", &policy.edge.value.to_string())?;
    if !policy.side.is_default() {
        map.serialize_entry("side", &policy.side)?;
    }
    if let Some(workflow) = workflow {
        map.serialize_entry("workflow", workflow)?;
    }
    map.serialize_entry(&policy.kind.value, &policy.options)?;
    map.end()
}

const MEANING: &str = "A setting of the transport of edges between operators. It has exactly one more key, its kind, with a map of options, such as `rate_limit: {rps: 5}`.";

fn schema(generator: &mut SchemaGenerator, home: Home) -> Schema {
    let id = "^[a-z][a-z0-9_-]*$";
    let end = r"(\*|[a-z][a-z0-9_-]*)";
    let mut schema = json_schema!({
        "description": MEANING,
        "type": "object",
        "properties": {
            "id": {
                "description": "Id, unique among the policies of the file. Default: the kind and a number, such as `rate_limit-1`.",
                "type": ["string", "null"],
                "pattern": id
            },
            "edge": {
                "description": "The edges that it applies to: `FROM -> TO` by ids of sources, operators and sinks. `*` in place of an id is any, and `*` alone all edges; a text that starts with `*` needs quotes.",
                "type": "string",
                "pattern": format!(r"^\s*(\*|{end}\s*->\s*{end})\s*$")
            },
            "side": generator.subschema_for::<PolicySide>()
        },
        "required": ["edge"],
        "propertyNames": {"pattern": id},
        "additionalProperties": {"type": ["object", "null"]},
        "minProperties": 2,
        "maxProperties": home.keys().len() + 1
    });
    if let Some(side) = schema.pointer_mut("/properties/side").and_then(serde_json::Value::as_object_mut) {
        side.insert("description".to_owned(), "The host that executes it. Default: sender.".into());
    }
    if home == Home::Infrastructure
        && let Some(keys) = schema.pointer_mut("/properties").and_then(serde_json::Value::as_object_mut)
    {
        let workflow = serde_json::json!({
            "description": "Name of the workflow that it is for. Default: all workflows.",
            "type": ["string", "null"],
            "pattern": id
        });
        keys.insert("workflow".to_owned(), workflow);
    }
    schema
}

impl JsonSchema for Policy {
    fn schema_name() -> Cow<'static, str> {
        "Policy".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        schema(generator, Home::Workflow)
    }
}

impl JsonSchema for InfrastructurePolicy {
    fn schema_name() -> Cow<'static, str> {
        "InfrastructurePolicy".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        schema(generator, Home::Infrastructure)
    }
}
