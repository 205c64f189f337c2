//! Items of several groups, linked one after another by time and likeness: whatever passes one place after another.
//!
//! Two items may be linked if they are of different groups, the later one begins within a span of time after the end of
//! the earlier one, and their vectors are alike. Of these pairs those are taken that are most alike, one after another,
//! as long as neither is linked on that side already: each item has at most one before it and one behind it. Items that
//! are linked directly or through others are a chain, named by its first item.
//!
//! That is greedy matching, the stable matching where both sides prefer whoever is more alike. It follows from the items
//! alone, and a change of one item changes few links, so it can be kept by [changes](crate::view).
//!
//! | file | what it has |
//! |---|---|
//! | `candidates.rs` | pairs that may be linked |
//! | `matching.rs` | those of them that are |
//! | `labels.rs` | chains and their names |
//! | [`batch`] | the same from all items at once: what the view is compared with |
pub mod batch;
mod candidates;
mod labels;
mod matching;

use crate::view::{View, ViewError};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Something that was at a place for a time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Item {
    /// Its name, which no other item has.
    pub key: Arc<str>,
    /// Where it was; items of one group are never linked directly.
    pub group: Arc<str>,
    /// When it came; in any unit, the same for all.
    pub start: i64,
    /// When it was there last.
    pub end: i64,
    /// What it looks like.
    vector: Vector,
}

impl Item {
    /// An item. Of the vector, which may be empty, the direction counts.
    pub fn new(
        key: impl Into<Arc<str>>,
        group: impl Into<Arc<str>>,
        start: i64,
        end: i64,
        vector: &[f32],
    ) -> Self {
        Self { key: key.into(), group: group.into(), start, end, vector: Vector::new(vector) }
    }
}

/// The bits of numbers, so that vectors have an order and equal ones are equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
struct Vector(Arc<[u32]>);

impl Vector {
    fn new(values: &[f32]) -> Self {
        Self(values.iter().map(|value| value.to_bits()).collect())
    }

    /// Cosine of the angle between both, in parts of a thousand million; none where one has no direction or they have
    /// different lengths.
    fn likeness(&self, other: &Self) -> Option<i64> {
        if self.0.len() != other.0.len() {
            return None;
        }
        let (mut product, mut own, mut its) = (0.0, 0.0, 0.0);
        for (a, b) in self.0.iter().zip(other.0.iter()) {
            let (a, b) = (f64::from(f32::from_bits(*a)), f64::from(f32::from_bits(*b)));
            product += a * b;
            own += a * a;
            its += b * b;
        }
        let whole = (own * its).sqrt();
        (whole > 0.0 && whole.is_finite()).then(|| (product / whole * 1e9).round() as i64)
    }
}

/// How long it may take from one group to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// The group before.
    pub from: Arc<str>,
    /// The group behind.
    pub to: Arc<str>,
    /// From the end of the one to the start of the other, at least; negative: they may be in both for a while.
    pub shortest_gap: i64,
    /// At most.
    pub longest_gap: i64,
}

/// Which items may be linked.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Cosine of the angle between their vectors, at least, -1 to 1.
    pub least_likeness: f64,
    /// As in [`Transition`], for groups of which `transitions` says nothing.
    pub shortest_gap: i64,
    /// As in [`Transition`].
    pub longest_gap: i64,
    /// Where there are any, only these groups follow each other.
    pub transitions: Vec<Transition>,
}

impl Rules {
    /// The shortest and the longest gap that any two groups may have.
    pub fn widest_gaps(&self) -> (i64, i64) {
        let of = |transition: &Transition| (transition.shortest_gap, transition.longest_gap);
        let widest = self.transitions.iter().map(of).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        widest.unwrap_or((self.shortest_gap, self.longest_gap))
    }

    /// The gap between two groups; none: they do not follow each other.
    fn gap(&self, from: &str, to: &str) -> Option<(i64, i64)> {
        if self.transitions.is_empty() {
            return Some((self.shortest_gap, self.longest_gap));
        }
        let mut fitting = self.transitions.iter().filter(|known| *known.from == *from && *known.to == *to);
        fitting.next().map(|known| (known.shortest_gap, known.longest_gap))
    }

    /// The link of two items, if there may be one.
    fn link(&self, before: &Item, behind: &Item) -> Option<Link> {
        if before.group == behind.group || (before.start, &before.key) >= (behind.start, &behind.key) {
            return None;
        }
        let (shortest, longest) = self.gap(&before.group, &behind.group)?;
        let gap = behind.start.saturating_sub(before.end);
        if gap < shortest || gap > longest {
            return None;
        }
        let likeness = before.vector.likeness(&behind.vector)?;
        if (likeness as f64) < self.least_likeness * 1e9 {
            return None;
        }
        Some(Link { unlikeness: -likeness, gap, before: before.key.clone(), behind: behind.key.clone() })
    }
}

/// A pair that may be linked. The least comes first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
struct Link {
    unlikeness: i64,
    gap: i64,
    before: Arc<str>,
    behind: Arc<str>,
}

/// An item and its chain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Membership {
    /// Of the item.
    pub key: Arc<str>,
    /// Key of the first item of its chain.
    pub chain: Arc<str>,
}

/// The chain of each item, by changes of the items. A corrected item is one that goes and another that comes.
///
/// # Errors
/// There is no thread for it.
pub fn view(rules: Rules) -> Result<View<Item, Membership>, ViewError> {
    View::new("chains", move |items| {
        let candidates = candidates::candidates(items.clone(), rules);
        let links = matching::matching(candidates);
        labels::labels(items.map(|item| item.key), links.map(|link| (link.before, link.behind)))
            .map(|(key, chain)| Membership { key, chain })
    })
}
