//! The chains of all items computed at once, for comparison with the [view](super::view) in result and cost.
use super::candidates::{span_of, spans_behind};
use super::{Item, Link, Membership, Rules};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Returns the chain of each item, in the order of their keys.
pub fn chains(items: &[Item], rules: &Rules) -> Vec<Membership> {
    let mut spans: HashMap<i64, Vec<&Item>> = HashMap::new();
    for item in items {
        spans.entry(span_of(item, rules)).or_default().push(item);
    }
    let mut links: Vec<Link> = Vec::new();
    for before in items {
        let behind = spans_behind(before, rules).filter_map(|span| spans.get(&span)).flatten();
        links.extend(behind.filter_map(|behind| rules.link(before, behind)));
    }
    links.sort_unstable();
    let (mut before, mut behind): (HashSet<&str>, HashMap<&str, &str>) = Default::default();
    for link in &links {
        if !before.contains(&*link.before) && !behind.contains_key(&*link.behind) {
            before.insert(&link.before);
            behind.insert(&link.behind, &link.before);
        }
    }
    let keys: BTreeSet<&Arc<str>> = items.iter().map(|item| &item.key).collect();
    let chain = |key: &Arc<str>| {
        let mut first: &str = key;
        while let Some(earlier) = behind.get(first) {
            first = earlier;
        }
        Membership { key: Arc::clone(key), chain: first.into() }
    };
    keys.into_iter().map(chain).collect()
}
