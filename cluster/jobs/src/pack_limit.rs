//! The skew above which gangs are packed.
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Limit for models that were never measured: the middle between the largest skew that spreading did not slow down (14.6 %) and the least
/// that it did (61.0 %), of the ten models of Tiresias (Gu, 2021, table 3.3 and figure 3.3).
const PUBLISHED: f64 = 0.378;

/// Skew above which a gang is packed: the size of the largest tensor as a part of the model's size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PackLimit {
    /// 0.378, which separates the published models that spreading slows down from the others.
    #[default]
    Auto,
    /// A limit, such as one that was [learnt](learnt_limit).
    Fixed(f64),
}

impl PackLimit {
    /// Returns the limit.
    pub fn value(self) -> f64 {
        match self {
            Self::Auto => PUBLISHED,
            Self::Fixed(limit) => limit,
        }
    }
}

impl FromStr for PackLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        match text.parse::<f64>() {
            Ok(limit) if (0.0..=1.0).contains(&limit) => Ok(Self::Fixed(limit)),
            _ => Err(format!("`{text}` is no limit; write a number from 0 to 1, or `auto`")),
        }
    }
}

/// A gang that ran packed and spread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compared {
    /// Size of the largest tensor as a part of the model's size, 0 to 1.
    pub skew: f64,
    /// Time of an iteration when spread, divided by that when packed.
    pub slowdown: f64,
}

/// Slow-down above which spreading harms.
const HARM: f64 = 1.05;

/// Learns the limit from measured gangs: the skew that classifies the fewest of them wrongly by whether spreading slows them down by more
/// than 5 %; the middle of the gap, of the widest one among equals. None: all or none were slowed down, so nothing separates them.
///
/// ```
/// use tidemill_jobs::{Compared, learnt_limit};
/// let measured = [(0.04, 1.0), (0.15, 1.01), (0.61, 1.3), (0.77, 1.6)];
/// let measured = measured.map(|(skew, slowdown)| Compared { skew, slowdown });
/// assert!((learnt_limit(&measured).ok_or("separates")? - 0.38).abs() < 1e-9);
/// # Ok::<(), &str>(())
/// ```
pub fn learnt_limit(measured: &[Compared]) -> Option<f64> {
    let is_harmed = |one: &Compared| one.slowdown > HARM;
    let harmed = measured.iter().filter(|one| is_harmed(one)).count();
    if harmed == 0 || harmed == measured.len() {
        return None;
    }
    let mut ordered = measured.to_vec();
    ordered.sort_by(|one, other| one.skew.total_cmp(&other.skew));
    let mut best: Option<(usize, f64, f64)> = None;
    for (index, pair) in ordered.windows(2).enumerate() {
        let (below, above) = ordered.split_at(index + 1);
        let wrong = below.iter().filter(|one| is_harmed(one)).count()
            + above.iter().filter(|one| !is_harmed(one)).count();
        let gap = pair[1].skew - pair[0].skew;
        let is_better =
            best.is_none_or(|(fewest, widest, _)| wrong < fewest || wrong == fewest && gap > widest);
        if gap > 0.0 && is_better {
            best = Some((wrong, gap, (pair[0].skew + pair[1].skew) / 2.0));
        }
    }
    best.map(|(_, _, limit)| limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::SKEWS;

    #[test]
    fn the_published_models_give_the_published_gap() {
        // Figure 3.3: placement matters mainly to the VGG models and AlexNet.
        let slowed = |name: &str| name.starts_with("vgg") || name == "alexnet";
        let measured: Vec<Compared> = SKEWS
            .iter()
            .map(|(name, skew)| Compared { skew: *skew, slowdown: if slowed(name) { 1.3 } else { 1.0 } })
            .collect();
        let limit = learnt_limit(&measured).unwrap();
        assert!((limit - PUBLISHED).abs() < 1e-9, "{limit}");
    }

    #[test]
    fn one_outlier_does_not_move_it_far() {
        let mut measured: Vec<Compared> = (1..10)
            .map(|tenth| Compared {
                skew: f64::from(tenth) / 10.0,
                slowdown: if tenth > 5 { 1.5 } else { 1.0 },
            })
            .collect();
        measured.push(Compared { skew: 0.15, slowdown: 2.0 });
        assert!((learnt_limit(&measured).unwrap() - 0.55).abs() < 1e-9);
        assert_eq!(learnt_limit(&measured[..3]), None);
    }

    #[test]
    fn it_is_read_from_text() {
        assert_eq!("auto".parse(), Ok(PackLimit::Auto));
        assert_eq!("0.3".parse(), Ok(PackLimit::Fixed(0.3)));
        assert!("30".parse::<PackLimit>().unwrap_err().contains("from 0 to 1"));
    }
}
