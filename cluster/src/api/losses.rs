//! Workers that are lost to a run, and stages that replace theirs.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A worker that was lost to a run whose plan covers losses (`survive`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LossView {
    /// The worker of the plan.
    pub role: String,
    /// The worker of the cluster.
    pub worker: Option<String>,
    /// When the loss was noticed.
    pub time: String,
    /// Workers of the cluster whose stages took its route classes.
    pub moved_to: Vec<String>,
    /// Seconds from then until the first record reached a sink under the plan without the worker; none: not yet.
    #[serde(default)]
    pub seconds: Option<f64>,
}

impl LossView {
    /// In words: `worker box-2 lost 2026-11-30 12:00:03 UTC; its classes moved to box-1, box-3 after 0.9 s`.
    pub fn in_words(&self) -> String {
        let worker = self.worker.as_deref().unwrap_or(&self.role);
        let after = self.seconds.map_or_else(
            || ", no record has reached a sink yet".to_owned(),
            |seconds| format!(" after {seconds:.1} s"),
        );
        let to = match self.moved_to.is_empty() {
            true => "no class moved".to_owned(),
            false => format!("its classes moved to {}", self.moved_to.join(", ")),
        };
        format!("worker {worker} lost {}; {to}{after}", self.time)
    }
}

/// Says in words how many more losses a plan covers after these: `one more loss is covered`, `another loss is not covered until worker box-2
/// is back or another one takes its place`. `None` if nothing is lost.
pub fn covered_in_words(losses: &[LossView], covered: u32) -> Option<String> {
    let last = losses.last()?;
    let worker = last.worker.as_deref().unwrap_or(&last.role);
    Some(match covered {
        0 => format!(
            "another loss is not covered until worker {worker} is back or another one takes its place"
        ),
        1 => "one more loss is covered".to_owned(),
        more => format!("{more} more losses are covered"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_told_in_words() {
        let loss = LossView {
            role: "b".into(),
            worker: Some("box-2".into()),
            time: "12:00:03".into(),
            moved_to: vec!["box-1".into(), "box-3".into()],
            seconds: Some(0.94),
        };
        assert_eq!(
            loss.in_words(),
            "worker box-2 lost 12:00:03; its classes moved to box-1, box-3 after 0.9 s"
        );
        let open = LossView { seconds: None, worker: None, ..loss.clone() };
        assert_eq!(
            open.in_words(),
            "worker b lost 12:00:03; its classes moved to box-1, box-3, no record has reached a sink yet"
        );
        assert_eq!(covered_in_words(&[], 1), None);
        assert_eq!(
            covered_in_words(std::slice::from_ref(&loss), 1).as_deref(),
            Some("one more loss is covered")
        );
        let words = covered_in_words(&[loss], 0).unwrap_or_default();
        assert_eq!(
            words,
            "another loss is not covered until worker box-2 is back or another one takes its place"
        );
    }
}
