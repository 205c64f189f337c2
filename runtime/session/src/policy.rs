//! Chooses the path of a lane.
use std::str::FromStr;
use tidemill_link::transport::Health;

/// Rule by which the paths of a session are used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// The first one of the list that works.
    #[default]
    Prefer,
    /// All that work; each lane has one of them.
    Spread,
    /// The one with the lowest price that works; of equal prices the first.
    Cheapest,
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "prefer" => Ok(Self::Prefer),
            "spread" => Ok(Self::Spread),
            "cheapest" => Ok(Self::Cheapest),
            other => Err(format!("'{other}' is no rule for paths: prefer, spread or cheapest")),
        }
    }
}

/// What a policy sees of a path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) health: Health,
    /// It has been up for long enough.
    pub(crate) is_steady: bool,
    pub(crate) is_drained: bool,
    pub(crate) price: f64,
}

impl Seen {
    fn rank(self) -> u8 {
        match (self.is_drained, self.health) {
            (false, Health::Up) if self.is_steady => 0,
            (false, Health::Up) => 1,
            (false, Health::Unknown) => 2,
            // One that works is better than none, whatever a person said.
            (true, Health::Up) => 3,
            (true, Health::Unknown) => 4,
            (_, Health::Silent) => 5,
        }
    }
}

/// Returns the paths in the order in which a lane should try them.
pub(crate) fn order(policy: Policy, paths: &[Seen], lane: u32) -> Vec<usize> {
    let mut all: Vec<usize> = (0..paths.len()).collect();
    let best = paths.iter().filter(|path| path.rank() == 0).count().max(1);
    let turn = lane as usize % best;
    let mut place = 0;
    let by_turn: Vec<usize> = paths
        .iter()
        .map(|path| {
            let own = if path.rank() == 0 { (place + best - turn) % best } else { 0 };
            place += usize::from(path.rank() == 0);
            own
        })
        .collect();
    all.sort_by(|a, b| {
        let (one, other) = (paths[*a], paths[*b]);
        let by_policy = match policy {
            Policy::Prefer => std::cmp::Ordering::Equal,
            Policy::Spread => by_turn[*a].cmp(&by_turn[*b]),
            Policy::Cheapest => one.price.total_cmp(&other.price),
        };
        one.rank().cmp(&other.rank()).then(by_policy).then(a.cmp(b))
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up(price: f64) -> Seen {
        Seen { health: Health::Up, is_steady: true, is_drained: false, price }
    }

    #[test]
    fn each_policy_has_its_order() {
        let paths = [up(2.0), up(1.0), Seen { health: Health::Silent, ..up(0.0) }];
        assert_eq!(order(Policy::Prefer, &paths, 0), [0, 1, 2]);
        assert_eq!(order(Policy::Cheapest, &paths, 0), [1, 0, 2]);
        assert_eq!(order(Policy::Spread, &paths, 0), [0, 1, 2]);
        assert_eq!(order(Policy::Spread, &paths, 1), [1, 0, 2]);
        assert_eq!(order(Policy::Spread, &paths, 2), [0, 1, 2]);
    }

    #[test]
    fn what_works_comes_before_what_is_preferred() {
        let paths = [Seen { is_steady: false, ..up(0.0) }, up(4.0), Seen { is_drained: true, ..up(0.0) }];
        for policy in [Policy::Prefer, Policy::Spread, Policy::Cheapest] {
            assert_eq!(order(policy, &paths, 7), [1, 0, 2], "{policy:?}");
        }
        let silent = Seen { health: Health::Silent, ..up(0.0) };
        let drained = Seen { is_drained: true, ..up(0.0) };
        assert_eq!(order(Policy::Prefer, &[silent, drained], 0), [1, 0]);
    }

    #[test]
    fn spread_uses_each_path_that_works_as_often() {
        let paths = [up(0.0), Seen { health: Health::Silent, ..up(0.0) }, up(0.0), up(0.0)];
        let mut uses = [0; 4];
        (0..300).for_each(|lane| uses[order(Policy::Spread, &paths, lane)[0]] += 1);
        assert_eq!(uses, [100, 0, 100, 100]);
    }
}
