//! Pairs that may be linked: items are put into spans of time as long as gaps differ, so that only items of two spans
//! are compared.
use super::{Item, Link, Rules};
use differential_dataflow::VecCollection;
use std::sync::Arc;

/// The span of a start time.
fn span(time: i64, width: i64) -> i64 {
    time.div_euclid(width)
}

/// The width of the spans.
pub(super) fn width(rules: &Rules) -> i64 {
    let (shortest, longest) = rules.widest_gaps();
    longest.saturating_sub(shortest).max(1)
}

/// Spans of the items that may start after this one.
pub(super) fn spans_behind(item: &Item, rules: &Rules) -> std::ops::RangeInclusive<i64> {
    let (shortest, longest) = rules.widest_gaps();
    let width = width(rules);
    span(item.end.saturating_add(shortest), width)
        ..=span(item.end.saturating_add(longest.max(shortest)), width)
}

/// The span of an item's start.
pub(super) fn span_of(item: &Item, rules: &Rules) -> i64 {
    span(item.start, width(rules))
}

/// All pairs that may be linked.
pub(super) fn candidates<'scope>(
    items: VecCollection<'scope, u64, Item, isize>,
    rules: Rules,
) -> VecCollection<'scope, u64, Link, isize> {
    let rules = Arc::new(rules);
    let (of_before, of_behind) = (Arc::clone(&rules), Arc::clone(&rules));
    let before = items.clone().flat_map(move |item| {
        let item = Arc::new(item);
        spans_behind(&item, &of_before).map(move |span| (span, Arc::clone(&item)))
    });
    let behind = items.map(move |item| (span_of(&item, &of_behind), Arc::new(item)));
    before
        .arrange_by_key_named("before")
        .join_core(behind.arrange_by_key_named("behind"), move |_, before, behind| rules.link(before, behind))
}
