//! Whose state it is: the parts of a workflow and its plan, each with a digest of what defines it.
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use xxhash_rust::xxh3::xxh3_128;

/// What a state belongs to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Name of the workflow.
    pub workflow: String,
    /// Digests of what defines each source, operator and sink, by id.
    pub parts: BTreeMap<String, String>,
    /// Digest of what the plan says of stages, routes and epochs.
    pub plan: String,
}

impl Identity {
    /// The digest of a definition.
    pub fn digest(definition: &[u8]) -> String {
        format!("{:032x}", xxh3_128(definition))
    }
}

/// How a run differs from the one whose state it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Another workflow: its name in the state, and in the run.
    Workflow(String, String),
    /// A source, operator or sink is defined in another way.
    Changed(String),
    /// It is not in the state.
    New(String),
    /// It is not in the workflow any more.
    Gone(String),
    /// The plan is another one.
    Plan,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Workflow(old, new) => write!(f, "the state is of workflow `{old}`, this one is `{new}`"),
            Change::Changed(id) => write!(f, "`{id}` has changed"),
            Change::New(id) => write!(f, "`{id}` is new"),
            Change::Gone(id) => write!(f, "`{id}` is gone"),
            Change::Plan => write!(f, "the plan has changed"),
        }
    }
}

/// All differences; none: the run continues the state as it is.
pub fn compare(state: &Identity, run: &Identity) -> Vec<Change> {
    let mut changes = Vec::new();
    if state.workflow != run.workflow {
        changes.push(Change::Workflow(state.workflow.clone(), run.workflow.clone()));
    }
    for (id, digest) in &run.parts {
        match state.parts.get(id) {
            None => changes.push(Change::New(id.clone())),
            Some(old) if old != digest => changes.push(Change::Changed(id.clone())),
            Some(_) => {}
        }
    }
    let gone = state.parts.keys().filter(|id| !run.parts.contains_key(*id));
    changes.extend(gone.map(|id| Change::Gone(id.clone())));
    if changes.is_empty() && state.plan != run.plan {
        changes.push(Change::Plan);
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_is_told() {
        let identity = |parts: &[(&str, &str)], plan: &str| Identity {
            workflow: "w".into(),
            parts: parts.iter().map(|(id, of)| ((*id).to_owned(), Identity::digest(of.as_bytes()))).collect(),
            plan: plan.into(),
        };
        let old = identity(&[("a", "1"), ("b", "2"), ("c", "3")], "p");
        assert_eq!(compare(&old, &old), []);
        assert_eq!(compare(&old, &identity(&[("a", "1"), ("b", "2"), ("c", "3")], "q")), [Change::Plan]);
        let new = identity(&[("a", "1"), ("b", "3"), ("d", "3")], "q");
        let told: Vec<String> = compare(&old, &new).iter().map(ToString::to_string).collect();
        assert_eq!(told, ["`b` has changed", "`d` is new", "`c` is gone"]);
    }
}
