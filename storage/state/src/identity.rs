//! Identity of a state, and its differences from a run that continues it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// Most differences of plans to show.
const SHOWN: usize = 6;

/// Identity of the creator of a state. Two identities are compared operator by operator ([`compare`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The workflow's name.
    pub workflow_name: String,
    /// Every operator by its id, with the digest of everything that defines its state and computation.
    pub operators: BTreeMap<String, Digest>,
    /// The digest of the plan: variants, copies and routes.
    pub plan: Digest,
}

/// Differences between a run and the state that it continues; lists are sorted by id.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Difference {
    /// The names of the workflow, in the state and in the run, where they differ.
    pub workflow_name: Option<(String, String)>,
    /// Operators of both with equal definitions: their state fits.
    pub kept: Vec<String>,
    /// Operators of both with different definitions.
    pub changed: Vec<String>,
    /// Operators of the run only.
    pub new: Vec<String>,
    /// Operators of the state only.
    pub gone: Vec<String>,
    /// Whether the plan differs; without an explicit plan, the one that follows from the workflow and the options.
    pub plan_changed: bool,
    /// Differences of the plan in words, where the caller knows them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub plan: Vec<String>,
}

impl Difference {
    /// Whether the state belongs to exactly this workflow and plan.
    pub fn is_none(&self) -> bool {
        self.same_operators() && !self.plan_changed && self.workflow_name.is_none()
    }

    /// Whether both have all operators with equal definitions, regardless of the plan and the name.
    pub fn same_operators(&self) -> bool {
        self.changed.is_empty() && self.new.is_empty() && self.gone.is_empty()
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some((before, now)) = &self.workflow_name {
            parts.push(format!("the workflow was `{before}` and is `{now}`"));
        }
        for (what, ids) in [("changed", &self.changed), ("new", &self.new), ("gone", &self.gone)] {
            if !ids.is_empty() {
                parts.push(format!("{what}: {}", ids.join(", ")));
            }
        }
        match (self.plan_changed, self.plan.as_slice()) {
            (false, _) => {}
            (true, []) => parts.push("another plan".to_owned()),
            (true, plan) => {
                let more = match plan.len().saturating_sub(SHOWN) {
                    0 => String::new(),
                    more => format!(", and {more} more"),
                };
                let shown = &plan[..plan.len().min(SHOWN)];
                parts.push(format!("other figures of the plan: {}{more}", shown.join(", ")));
            }
        }
        if parts.is_empty() {
            parts.push("no difference".to_owned());
        }
        f.write_str(&parts.join("; "))
    }
}

/// Compares the identity of a state with that of a run.
pub fn compare(state: &Identity, run: &Identity) -> Difference {
    let names = (state.workflow_name.clone(), run.workflow_name.clone());
    let mut difference = Difference {
        workflow_name: (names.0 != names.1).then_some(names),
        plan_changed: state.plan != run.plan,
        ..Difference::default()
    };
    for (id, digest) in &run.operators {
        let list = match state.operators.get(id) {
            Some(before) if before == digest => &mut difference.kept,
            Some(_) => &mut difference.changed,
            None => &mut difference.new,
        };
        list.push(id.clone());
    }
    let gone = state.operators.keys().filter(|id| !run.operators.contains_key(*id));
    difference.gone = gone.cloned().collect();
    difference
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(operators: &[(&str, u128)], plan: u128) -> Identity {
        let operators = operators.iter().map(|(id, digest)| ((*id).to_owned(), Digest(*digest)));
        Identity { workflow_name: "w".to_owned(), operators: operators.collect(), plan: Digest(plan) }
    }

    #[test]
    fn operators_are_kept_changed_new_or_gone() {
        let state = identity(&[("a", 1), ("b", 2), ("c", 3)], 7);
        let run = identity(&[("a", 1), ("b", 9), ("d", 3)], 8);
        let difference = compare(&state, &run);
        assert_eq!(difference.kept, ["a"]);
        assert_eq!(difference.changed, ["b"]);
        assert_eq!(difference.new, ["d"]);
        assert_eq!(difference.gone, ["c"]);
        assert!(difference.plan_changed && !difference.is_none() && !difference.same_operators());
        assert_eq!(difference.to_string(), "changed: b; new: d; gone: c; another plan");
    }

    #[test]
    fn another_plan_keeps_the_operators() {
        let difference = compare(&identity(&[("a", 1)], 7), &identity(&[("a", 1)], 8));
        assert!(difference.same_operators() && !difference.is_none());
        let state = identity(&[("a", 1)], 7);
        assert!(compare(&state, &state).is_none());
        let tick = Difference {
            plan: vec!["tick: 50ms -> 10ms".to_owned()],
            ..compare(&identity(&[], 7), &identity(&[], 8))
        };
        assert_eq!(tick.to_string(), "other figures of the plan: tick: 50ms -> 10ms");
        let all = Difference { plan: vec!["a".to_owned(); 8], ..tick };
        assert!(all.to_string().ends_with("a, a, a, and 2 more"), "{all}");
        let renamed = Identity { workflow_name: "v".to_owned(), ..state.clone() };
        assert_eq!(compare(&state, &renamed).to_string(), "the workflow was `w` and is `v`");
    }
}
