//! Of the pairs that may be linked, those that are: in the order of the pairs, each whose two sides are still free.
//!
//! A pair is taken if no better pair at one of its sides is. That sentence is the computation: it is applied to what it
//! gave before, beginning with all pairs, until nothing changes. Whether a pair is taken depends on better ones only, so
//! after as many rounds as there are pairs in a row, each better than the next and sharing a side with it, all is
//! decided; mostly that is a handful.
use super::Link;
use differential_dataflow::VecCollection;
use differential_dataflow::operators::Iterate;
use std::sync::Arc;

/// One side of a link.
type Side = fn(Link) -> (Arc<str>, Link);

/// The links that are taken.
pub(super) fn matching<'scope>(
    candidates: VecCollection<'scope, u64, Link, isize>,
) -> VecCollection<'scope, u64, Link, isize> {
    let sides: [Side; 2] = [|link| (link.before.clone(), link), |link| (link.behind.clone(), link)];
    let at_sides = sides.map(|side| candidates.clone().map(side).arrange_by_key());
    candidates.clone().iterate(move |scope, taken| {
        let refused = sides.into_iter().zip(at_sides).map(|(side, links)| {
            let best = taken.clone().map(side).reduce(|_, links, best| {
                // They are in order.
                best.push((links[0].0.clone(), 1));
            });
            links
                .enter(scope)
                .join_core(best.arrange_by_key(), |_, link, best| (link > best).then(|| link.clone()))
        });
        let refused = refused.reduce(VecCollection::concat);
        match refused {
            Some(refused) => candidates.enter(scope).concat(refused.distinct().negate()).consolidate(),
            None => candidates.enter(scope),
        }
    })
}
