//! Limits of what a service may say: it may be of somebody else, and nothing that it says may harm more than its own groups.
use crate::peers::{Key, Running};
use crate::policies::ts::Span;
use crate::protocol::{MOST_RANKS, is_name};
use crate::topology::Host;

/// Groups of all users that services may say they have.
pub(super) const MOST_GROUPS: usize = 16_384;
/// Benchmarks at a time.
pub(super) const MOST_BENCHES: usize = 16;
/// Ranks of one service.
pub(super) const MOST_RANKS_OF_HOST: usize = 2048;
/// Operations in a trace.
const MOST_SPANS: usize = 512;
/// Characters of the name of a host, a rack, a pod or a path.
const MOST_NAME: usize = 256;
/// Paths of a host.
const MOST_PATHS: usize = 64;
/// Times that are later are none, microseconds since the epoch of Unix.
const LATEST_US: u64 = 1 << 60;

/// Returns why a host cannot register, if so.
pub(super) fn of_host(host: &Host) -> Option<String> {
    let is_long = |text: &str| text.len() > MOST_NAME;
    if host.name.is_empty() || [&host.name, &host.rack, &host.pod].into_iter().any(|text| is_long(text)) {
        return Some(format!("the names of a host, its rack and its pod have 1 to {MOST_NAME} characters"));
    }
    if host.paths.len() > MOST_PATHS {
        return Some(format!("a host has {MOST_PATHS} paths at most"));
    }
    let wrong = host.paths.iter().find(|path| is_long(&path.name) || path.rate.is_nan() || path.rate < 0.0);
    wrong.map(|path| {
        format!("path {:.40} has no rate, or a name of more than {MOST_NAME} characters", path.name)
    })
}

/// Returns why there is no such rank, if so.
pub(super) fn of_rank(key: &Key, rank: u32, size: u32) -> Option<String> {
    if !is_name(&key.name) {
        return Some("the name of the group is none".to_owned());
    }
    let is_rank = (1..=MOST_RANKS).contains(&size) && rank < size;
    (!is_rank).then(|| format!("rank {rank} of {size}: a group has 1 to {MOST_RANKS} ranks, the first is 0"))
}

/// Returns whether a group can run on a host as its service says.
pub(super) fn is_possible(running: &Running, host: &str) -> bool {
    let Some(formed) = &running.formed else { return false };
    let are_ranks =
        |ranks: &[u32]| ranks.iter().all(|rank| of_rank(&running.key, *rank, running.size).is_none());
    let own = formed.hosts.iter().find(|place| place.host.name == host);
    formed.key == running.key
        && formed.strategy.check().is_ok()
        && are_ranks(&formed.strategy.members)
        && own.is_some_and(|own| running.ranks.iter().all(|rank| own.ranks.contains(rank)))
        && are_ranks(&running.ranks)
}

/// Returns the spans that can be.
pub(super) fn spans(mut trace: Vec<Span>) -> Vec<Span> {
    trace.retain(|span| span.start_us <= span.end_us && span.end_us < LATEST_US);
    trace.drain(..trace.len().saturating_sub(MOST_SPANS));
    trace
}
