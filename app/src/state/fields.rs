//! Finds the fields in which two parts of workflows differ, with their values.
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use tidemill_spec::plan::Plan;

/// A changed field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FieldChange {
    /// Its path, such as `options.size`.
    pub field: String,
    /// Its old value; `None`: it did not exist.
    pub old: Option<String>,
    /// Its new value; `None`: it was removed.
    pub new: Option<String>,
}

impl FieldChange {
    /// Creates a change of an existing field.
    pub(crate) fn new(field: &str, old: impl fmt::Display, new: impl fmt::Display) -> Self {
        Self { field: field.to_owned(), old: Some(old.to_string()), new: Some(new.to_string()) }
    }

    /// Whether the field is this one or below it.
    pub(crate) fn is_in(&self, field: &str) -> bool {
        self.field.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    }
}

impl fmt::Display for FieldChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |value: &Option<String>| value.clone().unwrap_or_else(|| "(nothing)".to_owned());
        write!(f, "{}: {} -> {}", self.field, side(&self.old), side(&self.new))
    }
}

/// Most characters of a printed value.
const SHOWN: usize = 80;

/// Formats the value on one line.
fn shown(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// Collects every value that is no map, by its path. Lists are taken as a whole unless they contain maps.
fn leaves(way: &str, value: &Value, all: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let way = if way.is_empty() { key.clone() } else { format!("{way}.{key}") };
                leaves(&way, value, all);
            }
        }
        Value::Array(list) if list.iter().any(Value::is_object) => {
            for (at, value) in list.iter().enumerate() {
                leaves(&format!("{way}[{at}]"), value, all);
            }
        }
        other => drop(all.insert(way.to_owned(), other.clone())),
    }
}

/// The fields that differ, by name.
pub(crate) fn differences(old: &Value, new: &Value) -> Vec<FieldChange> {
    let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
    leaves("", old, &mut before);
    leaves("", new, &mut after);
    let fields: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let changed = fields.into_iter().filter(|field| before.get(*field) != after.get(*field));
    changed
        .map(|field| FieldChange {
            field: field.clone(),
            old: before.get(field).map(shown),
            new: after.get(field).map(shown),
        })
        .collect()
}

/// The part of a plan that determines its state, by names. The placement of its stages does not: they continue elsewhere.
fn of_state(plan: &Plan) -> Value {
    let stages = plan.stages.iter().map(|stage| {
        let of = json!({
            "operator": stage.operator, "model": stage.variant, "backend": stage.backend, "max_batch": stage.max_batch,
            "partitions": stage.partitions, "share": stage.share,
        });
        (stage.id.clone(), of)
    });
    let edges = plan.edges.iter().map(|edge| {
        let name = format!("{} -> {} ({})", edge.from, edge.to, edge.input);
        (name, json!({"freshness": edge.freshness}))
    });
    json!({
        "tick": plan.tick, "checkpoint_every": plan.checkpoint_every, "classes": plan.classes,
        "stages": stages.collect::<serde_json::Map<_, _>>(), "edges": edges.collect::<serde_json::Map<_, _>>(),
    })
}

/// Returns the reasons why the state of one plan does not fit the other, field by field.
pub(crate) fn of_plans(old: &Plan, new: &Plan) -> Vec<FieldChange> {
    differences(&of_state(old), &of_state(new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named_with_both_values() {
        let old = json!({"kind": "window", "options": {"size": "5s", "group_by": ["a"], "aggregates": [{"as": "n"}]}});
        let new = json!({"kind": "window", "options": {"size": "4s", "group_by": ["a", "b"],
            "aggregates": [{"as": "n"}, {"as": "m"}]}, "on_panic": "restart"});
        let told: Vec<String> = differences(&old, &new).iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "on_panic: (nothing) -> restart",
                "options.aggregates[1].as: (nothing) -> m",
                "options.group_by: [\"a\"] -> [\"a\",\"b\"]",
                "options.size: 5s -> 4s",
            ]
        );
        assert!(differences(&new, &new).is_empty());
        let change = FieldChange::new("options.size", 1, 2);
        assert!(change.is_in("options") && change.is_in("options.size") && !change.is_in("options.si"));
    }

    #[test]
    fn long_values_are_cut() {
        let told = differences(&json!({"a": "x"}), &json!({"a": "y".repeat(500)}));
        assert_eq!(told[0].new.as_ref().map(String::len), Some(SHOWN + 3));
    }
}
