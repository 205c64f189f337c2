//! Selects links from the possible pairs: in the order of the pairs, each whose two sides are still free.
//!
//! A pair is taken if no better pair at one of its sides is. The computation applies this rule to its previous result,
//! starting with all pairs, until nothing changes. Whether a pair is taken depends on better ones only, so it ends
//! after as many rounds as the longest sequence of pairs, each better than the next and sharing a side with it; usually
//! a handful.
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
                // They are sorted.
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
