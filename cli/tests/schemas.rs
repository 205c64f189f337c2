//! The committed schemas of workflows and models match this program. `UPDATE_SCHEMAS=1` rewrites them.
use crate::command::{root, tidemill};

#[test]
fn the_schemas_that_depend_on_the_program_are_up_to_date() {
    for name in ["workflow", "model"] {
        let path = root().join(format!("spec/schemas/{name}.schema.json"));
        let text = tidemill(&["schema", name]).expect(0).stdout;
        if std::env::var_os("UPDATE_SCHEMAS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == text, "{} is out of date: run the test with UPDATE_SCHEMAS=1", path.display());
    }
}

#[test]
fn all_kinds_of_files_have_a_schema() {
    for kind in ["workflow", "infrastructure", "plan", "model", "profile", "test", "job"] {
        let schema = tidemill(&["schema", kind]).expect(0).json();
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema", "{kind}");
    }
}
