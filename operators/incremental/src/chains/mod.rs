//! Items of several groups, linked one after another by time and similarity: objects that pass one place after another.
//!
//! Two items may be linked if they are of different groups, the later one starts within a span of time after the end of
//! the earlier one, and their vectors are similar. [`Transition`]s are more specific, where they are known: they state
//! which groups follow each other, and where an item leaves the one and enters the other. Of these pairs the most
//! similar ones are taken first, one after another, while neither is linked on that side: each item has at most one
//! predecessor and one successor. Items linked directly or through others are a chain, named by its first item.
//!
//! This order may skip the middle of three: where the first is more similar to the third than to the second, these two
//! are linked, and the second is alone. With transitions between neighbours only, there is no such pair.
//!
//! Removing all items of a chain together leaves the other chains as they are: a link is rejected because of a better
//! one that is taken and shares an item with it, and both items of that one are of one chain.
//!
//! This is greedy matching, the stable matching where both sides prefer the more similar partner. It follows from the
//! items alone, and a change of one item changes few links, so it can be maintained by [changes](crate::view).
//!
//! | file | contents |
//! |---|---|
//! | `candidates.rs` | pairs that may be linked |
//! | `matching.rs` | the selected pairs |
//! | `labels.rs` | chains and their names |
//! | [`batch`] | the chains of all items at once, for comparison with the view |
pub mod batch;
mod candidates;
mod labels;
mod matching;

use crate::view::{View, ViewError};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A place: across and down, in any common unit.
pub type Place = (i64, i64);

/// An object that was at a place for a time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Item {
    /// Its unique name.
    pub key: Arc<str>,
    /// Its place; items of one group are never linked directly.
    pub group: Arc<str>,
    /// Its arrival, in any common unit.
    pub start: i64,
    /// The last time it was there.
    pub end: i64,
    /// Its appearance.
    vector: Vector,
    /// Its place in the group on arrival.
    first: Option<Place>,
    /// Its last place.
    last: Option<Place>,
}

impl Item {
    /// Creates an item without places in its group. Only the direction of the vector counts, which may be empty.
    pub fn new(
        key: impl Into<Arc<str>>,
        group: impl Into<Arc<str>>,
        start: i64,
        end: i64,
        vector: &[f32],
    ) -> Self {
        let vector = Vector::new(vector);
        Self { key: key.into(), group: group.into(), start, end, vector, first: None, last: None }
    }

    /// Sets the first and the last place, as far as they are known.
    #[must_use]
    pub fn with_places(self, first: Option<Place>, last: Option<Place>) -> Self {
        Self { first, last, ..self }
    }
}

/// The bits of numbers, so that vectors are ordered and comparable.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
struct Vector(Arc<[u32]>);

impl Vector {
    fn new(values: &[f32]) -> Self {
        Self(values.iter().map(|value| value.to_bits()).collect())
    }

    /// Cosine of the angle between both, in billionths; none where one has no direction or their lengths differ.
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

/// A part of a group: includes its left and upper edge, excludes its right and lower edge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Area {
    /// The least place across.
    pub left: i64,
    /// The least place down.
    pub top: i64,
    /// The first place across beyond it.
    pub right: i64,
    /// The first place down beyond it.
    pub bottom: i64,
}

impl Area {
    fn has(&self, (across, down): Place) -> bool {
        (self.left..self.right).contains(&across) && (self.top..self.bottom).contains(&down)
    }
}

/// The possible duration and places of a transition between groups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// The earlier group.
    pub from: Arc<str>,
    /// The later group.
    pub to: Arc<str>,
    /// Least time from the end of the one to the start of the other; negative: they may be in both for a while.
    pub shortest_gap: i64,
    /// Largest time.
    pub longest_gap: i64,
    /// Last place of the earlier item. None: anywhere, known or not.
    pub leaves: Option<Area>,
    /// First place of the later item. None: anywhere, known or not.
    pub enters: Option<Area>,
}

impl Transition {
    fn fits(&self, before: &Item, behind: &Item, gap: i64) -> bool {
        let is_in = |place: Option<Place>, area: &Option<Area>| {
            area.as_ref().is_none_or(|area| place.is_some_and(|place| area.has(place)))
        };
        // Numbers first: they exclude most pairs.
        (self.shortest_gap..=self.longest_gap).contains(&gap)
            && self.from == before.group
            && self.to == behind.group
            && is_in(before.last, &self.leaves)
            && is_in(behind.first, &self.enters)
    }
}

/// Rules for links.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Least cosine of the angle between their vectors, -1 to 1.
    pub least_likeness: f64,
    /// As in [`Transition`], without transitions.
    pub shortest_gap: i64,
    /// As in [`Transition`].
    pub longest_gap: i64,
    /// If there are any, a link must fit one of them; there may be several for two groups.
    pub transitions: Vec<Transition>,
}

impl Rules {
    /// Returns the shortest and the longest gap of any two groups.
    pub fn widest_gaps(&self) -> (i64, i64) {
        let of = |transition: &Transition| (transition.shortest_gap, transition.longest_gap);
        let widest = self.transitions.iter().map(of).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        widest.unwrap_or((self.shortest_gap, self.longest_gap))
    }

    /// Whether some transition allows this gap between the two.
    fn follows(&self, before: &Item, behind: &Item, gap: i64) -> bool {
        if self.transitions.is_empty() {
            return (self.shortest_gap..=self.longest_gap).contains(&gap);
        }
        self.transitions.iter().any(|known| known.fits(before, behind, gap))
    }

    /// The link of two items, if they may be linked.
    fn link(&self, before: &Item, behind: &Item) -> Option<Link> {
        if before.group == behind.group || (before.start, &before.key) >= (behind.start, &behind.key) {
            return None;
        }
        let gap = behind.start.saturating_sub(before.end);
        if !self.follows(before, behind, gap) {
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
    /// Key of the item.
    pub key: Arc<str>,
    /// Key of the first item of its chain.
    pub chain: Arc<str>,
}

/// Creates a view of the chain of each item, by changes of the items. A correction removes an item and adds another.
///
/// # Errors
/// The thread cannot be started.
pub fn view(rules: Rules) -> Result<View<Item, Membership>, ViewError> {
    View::new("chains", move |items| {
        let candidates = candidates::candidates(items.clone(), rules);
        let links = matching::matching(candidates);
        labels::labels(items.map(|item| item.key), links.map(|link| (link.before, link.behind)))
            .map(|(key, chain)| Membership { key, chain })
    })
}
