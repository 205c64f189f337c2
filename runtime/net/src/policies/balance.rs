//! `balance`: which of several servers a call goes to.
//!
//! Without it, a call goes to the server with the fewest calls that wait, and round robin where that are several. It has no
//! effect on edges of workflows, whose records have one way.
use crate::passage::Passage;
use crate::policy::{Kind, Policy, Site, Verdict, options};
use serde::Deserialize;
use serde_json::Value;

/// See the module.
pub const KIND: Kind = Kind {
    name: "balance",
    help: "which of several servers a call goes to",
    example: r#"{"by": "round_robin"}"#,
    make,
};

/// How a server is chosen.
#[derive(Debug, Deserialize, Default, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum By {
    /// The one with the fewest calls that wait.
    #[default]
    Least,
    /// One after the other.
    RoundRobin,
    /// The first one that is there: the others are spare.
    First,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    #[serde(default)]
    by: By,
}

struct Balance(By);

fn make(value: &Value, _: &Site) -> Result<Box<dyn Policy>, String> {
    options::<Options>(value).map(|Options { by }| Box::new(Balance(by)) as Box<dyn Policy>)
}

impl Policy for Balance {
    fn look(&mut self, frame: &mut Passage<'_>) -> Result<Verdict, String> {
        frame.effects.balance = Some(self.0);
        Ok(Verdict::Pass)
    }
}
