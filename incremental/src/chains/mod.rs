//! Items of several groups, linked one after another by time and likeness: whatever passes one place after another.
//!
//! Two items may be linked if they are of different groups, the later one begins within a span of time after the end of
//! the earlier one, and their vectors are alike. [`Transition`]s say more, where they are known: which groups follow each
//! other, and where an item of the one leaves and of the other enters. Of these pairs those are taken that are most alike,
//! one after another, as long as neither is linked on that side already: each item has at most one before it and one behind
//! it. Items that are linked directly or through others are a chain, named by its first item.
//!
//! The most alike first may leave out the middle of three: where the first looks more like the third than like the second,
//! these two are linked, and the second is alone. Transitions between neighbours only have no such pair.
//!
//! All items of a chain together can be taken out, and the other chains stay as they are: a link is refused because of a
//! better one that is taken and shares an item with it, and both items of that one are of one chain.
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

/// Where something is: across and down, in any unit, the same for all.
pub type Place = (i64, i64);

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
    /// Where in its group it came.
    first: Option<Place>,
    /// Where it was last.
    last: Option<Place>,
}

impl Item {
    /// An item of which nobody knows where in its group it was. Of the vector, which may be empty, the direction counts.
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

    /// The same, with the places where it came and where it was last, as far as they are known.
    #[must_use]
    pub fn with_places(self, first: Option<Place>, last: Option<Place>) -> Self {
        Self { first, last, ..self }
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

/// A part of a group: its left and upper edge belong to it, its right and lower edge do not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Area {
    /// The least place across.
    pub left: i64,
    /// The least place down.
    pub top: i64,
    /// The first place across that is beyond it.
    pub right: i64,
    /// The first place down that is beyond it.
    pub bottom: i64,
}

impl Area {
    fn has(&self, (across, down): Place) -> bool {
        (self.left..self.right).contains(&across) && (self.top..self.bottom).contains(&down)
    }
}

/// How long it may take from one group to another, and from where to where.
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
    /// Where the item before was last. None: anywhere, known or not.
    pub leaves: Option<Area>,
    /// Where the item behind came. None: anywhere, known or not.
    pub enters: Option<Area>,
}

impl Transition {
    fn fits(&self, before: &Item, behind: &Item, gap: i64) -> bool {
        let is_in = |place: Option<Place>, area: &Option<Area>| {
            area.as_ref().is_none_or(|area| place.is_some_and(|place| area.has(place)))
        };
        // Numbers first: most pairs end there.
        (self.shortest_gap..=self.longest_gap).contains(&gap)
            && self.from == before.group
            && self.to == behind.group
            && is_in(before.last, &self.leaves)
            && is_in(behind.first, &self.enters)
    }
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
    /// Where there are any, only what one of them fits may be linked; there may be several of two groups.
    pub transitions: Vec<Transition>,
}

impl Rules {
    /// The shortest and the longest gap that any two groups may have.
    pub fn widest_gaps(&self) -> (i64, i64) {
        let of = |transition: &Transition| (transition.shortest_gap, transition.longest_gap);
        let widest = self.transitions.iter().map(of).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        widest.unwrap_or((self.shortest_gap, self.longest_gap))
    }

    /// Whether there is a way from one to the other that takes as long.
    fn follows(&self, before: &Item, behind: &Item, gap: i64) -> bool {
        if self.transitions.is_empty() {
            return (self.shortest_gap..=self.longest_gap).contains(&gap);
        }
        self.transitions.iter().any(|known| known.fits(before, behind, gap))
    }

    /// The link of two items, if there may be one.
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
