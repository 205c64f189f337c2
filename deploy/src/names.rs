//! Names valid for engines, clusters and file systems.
use std::collections::BTreeSet;

/// Longest name of a workflow, a worker or a location in the names of containers: engines add to it.
const LONGEST: usize = 40;

/// Converts to small letters, digits and single dashes, as in host names.
pub(crate) fn plain(text: &str) -> String {
    let mut name = String::new();
    for c in text.chars().flat_map(char::to_lowercase) {
        match c {
            'a'..='z' | '0'..='9' => name.push(c),
            _ if name.is_empty() || name.ends_with('-') => {}
            _ => name.push('-'),
        }
    }
    name.truncate(LONGEST);
    let name = name.trim_end_matches('-');
    if name.is_empty() { "x".to_owned() } else { name.to_owned() }
}

/// Returns the name of a worker in a cluster: that of the plan if it is valid.
pub(crate) fn of_worker(text: &str) -> String {
    let follows = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    let starts = text.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let is_one = starts && text.len() <= 63 && text.chars().all(follows);
    if is_one { text.to_owned() } else { plain(text) }
}

/// Assigns unique names.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeSet<String>);

impl Names {
    /// Creates it with reserved names.
    pub(crate) fn without(taken: &[&str]) -> Self {
        Self(taken.iter().map(|&name| name.to_owned()).collect())
    }

    /// Returns the name, with a number appended if it is taken.
    pub(crate) fn take(&mut self, wanted: String) -> String {
        let mut name = wanted.clone();
        for number in 2.. {
            if self.0.insert(name.clone()) {
                break;
            }
            name = format!("{wanted}-{number}");
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_hosts() {
        for (text, name) in [
            ("edge-1", "edge-1"),
            ("edge/1", "edge-1"),
            ("Vqa (Two Tiers)", "vqa-two-tiers"),
            ("_a__b.", "a-b"),
            ("größe", "gr-e"),
            ("日本", "x"),
            ("", "x"),
        ] {
            let found = plain(text);
            assert_eq!(found, name);
        }
        assert_eq!(plain(&"ab-".repeat(40)).len(), LONGEST);
        assert_eq!(of_worker("rack2.hall_3"), "rack2.hall_3");
        assert_eq!(of_worker("edge/1"), "edge-1");
    }

    #[test]
    fn each_name_is_given_once() {
        let mut names = Names::without(&["controller"]);
        let given = ["edge-1", "edge-1", "controller", "edge-1"].map(|name| names.take(name.to_owned()));
        assert_eq!(given, ["edge-1", "edge-1-2", "controller-2", "edge-1-3"]);
    }
}
