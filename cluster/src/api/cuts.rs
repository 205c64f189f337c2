//! Cut edges of a run.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// State of a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CutStage {
    /// The link between its two workers is cut, and the controller receives heartbeats of the sender.
    Cut,
    /// The controller receives no heartbeats of the sender, whose state is unknown until it returns.
    Silent,
    /// The link is back, and the sender delivers the kept records.
    Delivers,
}

/// An edge between two workers of a plan with `when_cut` in the workflow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CutView {
    /// The sending stage.
    pub from: String,
    /// The receiving stage.
    pub to: String,
    /// The sending worker of the cluster.
    pub worker: Option<String>,
    /// State of the cut.
    pub stage: CutStage,
    /// Seconds since the edge was cut, or since the last heartbeat of its worker.
    pub seconds: f64,
    /// Bytes that are kept for the receiver, if known.
    pub kept_bytes: Option<u64>,
    /// Limit on the bytes that the worker keeps for the edge; none: the run ends instead (`when_cut: stop`).
    pub size_bytes: Option<u64>,
    /// Seconds for which the worker continues, or until the run ends.
    pub most_seconds: f64,
}

/// A stage that stands in for one on the other side of a cut edge (`when_cut: degrade`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StandInView {
    /// The replaced stage.
    pub of: String,
    /// The variant of the replaced stage.
    pub of_variant: Option<String>,
    /// The variant that answers instead.
    pub variant: String,
    /// The worker of the cluster that has it.
    pub worker: Option<String>,
    /// Whether it answers now.
    pub answers: bool,
    /// Records that it has answered; records answered again after a restart count again.
    pub answered_here: u64,
    /// Records that the replaced stage has answered; records answered again after a restart count again.
    pub answered_there: u64,
    /// The run has a service level on accuracy, which the stand-in may miss.
    pub risks_accuracy: bool,
}

impl StandInView {
    /// In words: ``see: `tiny` answers on edge-1 in place of `large`, which is not reached; 312 of 1 200 records``.
    pub fn in_words(&self) -> String {
        let Self { of, variant, answered_here, .. } = self;
        let all = answered_here + self.answered_there;
        let other =
            self.of_variant.as_ref().map_or_else(String::new, |other| format!(" in place of `{other}`"));
        let worker = self.worker.as_deref().unwrap_or("its worker");
        if !self.answers {
            return format!(
                "{of}: `{variant}` has answered {answered_here} of {all} records on {worker}{other}"
            );
        }
        let level = if self.risks_accuracy {
            "; meanwhile the accuracy is that of the smaller model, which may miss its level"
        } else {
            ""
        };
        format!(
            "{of}: `{variant}` answers on {worker}{other}, which is unreachable; {answered_here} of {all} records{level}"
        )
    }
}

impl CutView {
    /// In words: `edge detect -> answers cut since 14 s, 3.2 MiB kept of 512 MiB`.
    pub fn in_words(&self) -> String {
        let mebibytes = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        let Self { from, to, seconds, most_seconds, .. } = self;
        let kept = match (self.kept_bytes, self.size_bytes) {
            (Some(kept), Some(size)) => format!(", {} kept of {}", mebibytes(kept), mebibytes(size)),
            _ => String::new(),
        };
        let worker = self.worker.as_deref().unwrap_or("its worker");
        let what = match self.size_bytes {
            Some(_) => "sources wait",
            None => "the run ends",
        };
        match self.stage {
            CutStage::Cut => format!(
                "edge {from} -> {to} cut since {seconds:.0} s{kept}; after {most_seconds:.0} s {what}"
            ),
            CutStage::Silent if self.size_bytes.is_some() => format!(
                "edge {from} -> {to} cut since {seconds:.0} s with worker {worker}, which continues by itself for {most_seconds:.0} s"
            ),
            CutStage::Silent => format!(
                "edge {from} -> {to} cut since {seconds:.0} s with worker {worker}; after {most_seconds:.0} s the run ends"
            ),
            CutStage::Delivers => format!("edge {from} -> {to} is back and delivers the kept records{kept}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stand_in_is_told_in_words() {
        let mut stand_in = StandInView {
            of: "see".into(),
            of_variant: Some("large".into()),
            variant: "tiny".into(),
            worker: Some("edge-1".into()),
            answers: true,
            answered_here: 12,
            answered_there: 88,
            risks_accuracy: true,
        };
        assert_eq!(
            stand_in.in_words(),
            "see: `tiny` answers on edge-1 in place of `large`, which is unreachable; 12 of 100 records; meanwhile the \
             accuracy is that of the smaller model, which may miss its level"
        );
        stand_in.answers = false;
        assert_eq!(
            stand_in.in_words(),
            "see: `tiny` has answered 12 of 100 records on edge-1 in place of `large`"
        );
    }

    #[test]
    fn a_cut_is_told_in_words() {
        let cut = CutView {
            from: "detect".into(),
            to: "answers".into(),
            worker: Some("edge-1".into()),
            stage: CutStage::Cut,
            seconds: 14.2,
            kept_bytes: Some(3_355_443),
            size_bytes: Some(512 << 20),
            most_seconds: 600.0,
        };
        assert_eq!(
            cut.in_words(),
            "edge detect -> answers cut since 14 s, 3.2 MiB kept of 512.0 MiB; after 600 s sources wait"
        );
        let silent = CutView { stage: CutStage::Silent, kept_bytes: None, ..cut.clone() };
        assert!(silent.in_words().ends_with("with worker edge-1, which continues by itself for 600 s"));
        let stops = CutView { size_bytes: None, ..silent };
        assert!(stops.in_words().ends_with("after 600 s the run ends"));
        let delivers = CutView { stage: CutStage::Delivers, ..cut };
        assert!(delivers.in_words().contains("delivers the kept records, 3.2 MiB"));
    }
}
