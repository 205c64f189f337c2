//! Racks and pods: which workers are close to each other.
use crate::facts::WorkerFacts;
use std::collections::BTreeMap;

/// The rack of a worker: its label `rack`, or else its tier and location, as in planning.
pub(super) fn rack_of(labels: &BTreeMap<String, String>, facts: Option<&WorkerFacts>) -> String {
    if let Some(rack) = labels.get("rack") {
        return rack.clone();
    }
    let parts = facts.map(|facts| [facts.tier.as_deref(), facts.location.as_deref()]).unwrap_or_default();
    parts.into_iter().flatten().collect::<Vec<_>>().join("/")
}

/// The pod of a worker: its label `pod`; empty: all racks without one are one pod.
pub(super) fn pod_of(labels: &BTreeMap<String, String>) -> String {
    labels.get("pod").cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rack_is_what_the_label_says_or_else_the_place() {
        let facts = |tier: Option<&str>, location: Option<&str>| WorkerFacts {
            tier: tier.map(str::to_owned),
            location: location.map(str::to_owned),
            ..WorkerFacts::default()
        };
        let none = BTreeMap::new();
        assert_eq!(rack_of(&none, Some(&facts(Some("edge"), Some("hall-2")))), "edge/hall-2");
        assert_eq!(rack_of(&none, Some(&facts(None, Some("hall-2")))), "hall-2");
        assert_eq!(rack_of(&none, None), "");
        let labels = BTreeMap::from([("rack".to_owned(), "r7".to_owned())]);
        assert_eq!(rack_of(&labels, Some(&facts(Some("edge"), Some("hall-2")))), "r7");
        assert_eq!((pod_of(&labels), pod_of(&none)), (String::new(), String::new()));
    }
}
