//! The committed schemas match the types. `UPDATE_SCHEMAS=1` rewrites them.
//!
//! `workflow.schema.json` and `model.schema.json` are tested elsewhere: they also hold the options of all operator
//! kinds and the names of all backends, which this crate does not know.
use std::path::Path;
use tidemill_spec::schema::{self, Section};

#[test]
fn committed_schemas_are_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas");
    for (name, schema) in schema::all().into_iter().filter(|(name, _)| !["workflow", "model"].contains(name))
    {
        let path = folder.join(format!("{name}.schema.json"));
        let text = schema::to_text(&schema);
        if std::env::var_os("UPDATE_SCHEMAS").is_some() {
            std::fs::write(&path, &text).expect("the folder of the schemas can be written");
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == text, "{} is out of date: run the test with UPDATE_SCHEMAS=1", path.display());
    }
}

#[test]
fn schemas_refuse_unknown_keys_and_other_versions() {
    for (name, schema) in schema::all() {
        assert_eq!(schema.get("additionalProperties"), Some(&serde_json::json!(false)), "{name}");
        assert_eq!(schema.pointer("/properties/version/const"), Some(&serde_json::json!(1)), "{name}");
        assert_eq!(
            schema.get("$schema"),
            Some(&serde_json::json!("https://json-schema.org/draft/2020-12/schema")),
            "{name}"
        );
    }
}

#[test]
fn options_of_kinds_are_composed() {
    let window = schemars::json_schema!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"aggregates": {"type": "array", "items": {"$ref": "#/$defs/Aggregate"}}},
        "required": ["aggregates"],
        "$defs": {"Aggregate": {"type": "object"}}
    });
    let filter = schemars::json_schema!({"type": "object"});
    let schema =
        schema::workflow(&[(Section::Operators, "window", window), (Section::Operators, "filter", filter)]);
    let operator = schema.pointer("/$defs/Operator").expect("operators have a definition");
    assert_eq!(operator.pointer("/properties/kind/enum"), Some(&serde_json::json!(["window", "filter"])));
    assert_eq!(
        operator.pointer("/allOf/0/then/properties/options/properties/aggregates/items/$ref"),
        Some(&serde_json::json!("#/$defs/Operator_window_Aggregate"))
    );
    assert_eq!(operator.pointer("/allOf/0/then/required"), Some(&serde_json::json!(["options"])));
    assert_eq!(operator.pointer("/allOf/1/then/required"), None);
    assert!(schema.pointer("/$defs/Operator_window_Aggregate").is_some());
    assert_eq!(schema.pointer("/$defs/Source/allOf"), None);
}
