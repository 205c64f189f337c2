//! Limits on a run's processes per worker of a cluster.
use super::Workflow;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::span::{Located, Span};
use crate::units::{Bytes, TimeSpan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Limits on all processes of a run together, for each worker of a cluster; enforced by agents that can create control groups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// Whether the limits of the processes stay as they are. Default: static.
    #[serde(default)]
    pub mode: Located<ResourceMode>,
    /// Processors, parts of one included; needed for `elastic`. None: not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processors: Option<Located<f64>>,
    /// Memory, at least 64MiB; needed for `elastic`. None: not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Located<Bytes>>,
    /// Time between two moves of limits in mode `elastic`, 10ms to 1s. Default: 100ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<Located<TimeSpan>>,
}

/// Whether limits stay as they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResourceMode {
    /// All processes of the run on a worker share the limit.
    #[default]
    Static,
    /// Each process has its own limit just above its use, which follows its load; the sum of these limits is constant.
    Elastic,
}

impl Resources {
    /// The least `memory`: about the size of a process before it has read a model.
    pub const LEAST_MEMORY: Bytes = Bytes(64 << 20);

    /// Returns the period of moving limits.
    pub fn period(&self) -> TimeSpan {
        self.period.as_ref().map_or(TimeSpan(100_000_000), |period| period.value)
    }
}

impl Workflow {
    pub(super) fn check_resources(&self, found: &mut Diagnostics) {
        let Some(resources) = &self.resources else { return };
        let mut refuse = |span: &Span, message: String, help: &str| {
            found.push(Diagnostic::error("E0216", message).at(span.clone()).with_help(help));
        };
        let of_elastic =
            |what: &str| format!("`mode: elastic` moves limits within a total, but {what} has none");
        let is_elastic = resources.mode.value == ResourceMode::Elastic;
        match &resources.processors {
            Some(count) if !(count.value.is_finite() && count.value >= 0.01) => {
                refuse(
                    &count.span,
                    format!("{} processors", count.value),
                    "write 0.01 or more, such as `1.5`",
                );
            }
            None if is_elastic => {
                refuse(
                    &resources.mode.span,
                    of_elastic("processors"),
                    "add `processors: 1.5` to `resources`",
                );
            }
            _ => {}
        }
        match &resources.memory {
            Some(memory) if memory.value < Resources::LEAST_MEMORY => {
                let least = Resources::LEAST_MEMORY;
                refuse(
                    &memory.span,
                    format!("no run works with only {}", memory.value),
                    &format!("write {least} or more"),
                );
            }
            None if is_elastic => {
                refuse(&resources.mode.span, of_elastic("memory"), "add `memory: 1GiB` to `resources`");
            }
            _ => {}
        }
        let period = resources.period.as_ref();
        if let Some(period) = period.filter(|period| !(10_000_000..=1_000_000_000).contains(&period.0)) {
            refuse(&period.span, format!("limits cannot move every {}", period.value), "write 10ms to 1s");
        }
    }
}
