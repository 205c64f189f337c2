//! JSON Schema (2020-12) of all files, generated from the types, for editors.
//!
//! The committed files are `spec/schemas/*.schema.json`. The program that knows the operator kinds adds their options
//! to the workflow's schema:
//!
//! ```
//! use tidemill_spec::schema::{self, Section};
//! let options = schemars::json_schema!({
//!     "type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]
//! });
//! let schema = schema::workflow(&[(Section::Sources, "image_directory", options)]);
//! assert!(schema.pointer("/$defs/Source/properties/kind/enum").is_some());
//! ```
use crate::backend::BackendChoice;
use crate::infrastructure::Infrastructure;
use crate::job::JobFile;
use crate::manifest::Manifest;
use crate::plan::Plan;
use crate::profile::Profile;
use crate::workflow::Workflow;
use crate::workflow_test::WorkflowTests;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

/// A list of the workflow whose items have options by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Section {
    /// `sources`.
    Sources,
    /// `operators`.
    Operators,
    /// `sinks`.
    Sinks,
}

impl Section {
    /// Name of the items' definition in the schema.
    fn definition(self) -> &'static str {
        match self {
            Section::Sources => "Source",
            Section::Operators => "Operator",
            Section::Sinks => "Sink",
        }
    }
}

/// Returns all schemas by the name of their file: `workflow`, `infrastructure`, `plan`, `model`, `profile`, `test`, `job`.
/// The workflow's is without the options of any kind.
pub fn all() -> Vec<(&'static str, Schema)> {
    vec![
        ("workflow", workflow(&[])),
        ("infrastructure", document::<Infrastructure>("A Tidemill infrastructure")),
        ("plan", document::<Plan>("A Tidemill plan")),
        ("model", document::<Manifest>("A Tidemill model manifest")),
        ("profile", document::<Profile>("A Tidemill profile")),
        ("test", document::<WorkflowTests>("Tests of a Tidemill workflow")),
        ("job", document::<JobFile>("A Tidemill job")),
    ]
}

/// Returns the text of a schema file.
pub fn to_text(schema: &Schema) -> String {
    // `{:#}` of a JSON value is its indented form, with the keys in the order of the types.
    format!("{:#}\n", schema.as_value())
}

fn document<T: JsonSchema>(title: &str) -> Schema {
    let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>();
    schema.insert("title".to_string(), json!(title));
    if let Some(version) = schema.pointer_mut("/properties/version") {
        *version = json!({"description": "Format version.", "const": 1});
    }
    schema
}

/// Adds the names and descriptions of the backends to the schema of workflows or models.
pub fn name_backends(schema: &mut Schema, backends: &[(&str, &str)]) {
    const AUTO: (&str, &str) = (
        BackendChoice::AUTO,
        "The faster one of the available backends, by a short measurement on this machine.",
    );
    for (definition, first) in [("Backend", None), ("BackendChoice", Some(AUTO))] {
        let pointer = format!("/$defs/{definition}");
        let Some(named) = schema.pointer_mut(&pointer).and_then(Value::as_object_mut) else { continue };
        let of = |(name, what): (&str, &str)| json!({"type": "string", "const": name, "description": what});
        let values: Vec<Value> = first.into_iter().chain(backends.iter().copied()).map(of).collect();
        named.remove("type");
        named.shift_insert(0, "oneOf".to_string(), Value::Array(values));
    }
}

/// Returns the schema of workflows, with the options of these kinds. Once a section has a kind, others are rejected
/// there.
pub fn workflow(options: &[(Section, &str, Schema)]) -> Schema {
    let mut schema = document::<Workflow>("A Tidemill workflow");
    if let Some(operator) = schema.pointer_mut("/$defs/Operator").and_then(Value::as_object_mut) {
        operator.insert("oneOf".to_string(), json!([{"required": ["input"]}, {"required": ["inputs"]}]));
    }
    for (section, kind, options) in options {
        add_options(&mut schema, *section, kind, options);
    }
    schema
}

fn add_options(schema: &mut Schema, section: Section, kind: &str, options: &Schema) {
    let item = section.definition();
    let mut options = options.clone().to_value();
    let prefix = format!("{item}_{kind}_");
    let mut definitions = Map::new();
    if let Some(map) = options.as_object_mut() {
        map.remove("$schema");
        if let Some(Value::Object(own)) = map.remove("$defs") {
            definitions = own;
        }
    }
    move_references(&mut options, &prefix);
    let needed = options.get("required").and_then(Value::as_array).is_some_and(|keys| !keys.is_empty());
    if let Some(shared) = schema.get_mut("$defs").and_then(Value::as_object_mut) {
        for (name, mut definition) in definitions {
            move_references(&mut definition, &prefix);
            shared.insert(format!("{prefix}{name}"), definition);
        }
    }
    let Some(item) = schema.pointer_mut(&format!("/$defs/{item}")).and_then(Value::as_object_mut) else {
        return;
    };
    let mut then = json!({"properties": {"options": options}});
    if needed {
        then["required"] = json!(["options"]);
    }
    let case = json!({"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": then});
    push(item, "allOf", case);
    if let Some(kinds) =
        item.get_mut("properties").and_then(|p| p.get_mut("kind")).and_then(Value::as_object_mut)
    {
        push(kinds, "enum", json!(kind));
    }
}

fn push(map: &mut Map<String, Value>, key: &str, item: Value) {
    if let Value::Array(items) = map.entry(key).or_insert_with(|| json!([])) {
        items.push(item);
    }
}

/// Definitions of several kinds share one object, so each gets the kind's prefix.
fn move_references(value: &mut Value, prefix: &str) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match (key.as_str(), value) {
                    ("$ref", Value::String(target)) => {
                        if let Some(name) = target.strip_prefix("#/$defs/") {
                            *target = format!("#/$defs/{prefix}{name}");
                        }
                    }
                    (_, value) => move_references(value, prefix),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| move_references(item, prefix)),
        _ => {}
    }
}
