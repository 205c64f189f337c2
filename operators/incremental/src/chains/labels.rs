//! Chains and their names: the first item of a chain names it, and passes the name on to its successors.
use differential_dataflow::VecCollection;
use differential_dataflow::operators::Iterate;
use std::sync::Arc;

/// Each key with the first key of its chain. `links`: a key and its successor, each key at most once on either side,
/// never in a circle.
pub(super) fn labels<'scope>(
    keys: VecCollection<'scope, u64, Arc<str>, isize>,
    links: VecCollection<'scope, u64, (Arc<str>, Arc<str>), isize>,
) -> VecCollection<'scope, u64, (Arc<str>, Arc<str>), isize> {
    let behind = links.clone().map(|(_, behind)| behind);
    let first = keys.concat(behind.negate()).map(|key| (key.clone(), key)).consolidate();
    let links = links.arrange_by_key();
    first.clone().iterate(|scope, known| {
        known
            .arrange_by_key()
            .join_core(links.enter(scope), |_, chain, behind| Some((behind.clone(), chain.clone())))
            .concat(first.enter(scope))
            .consolidate()
    })
}
