//! `none`: lets everything pass. Its cost is that of the service itself.
use crate::passage::Passage;
use crate::policy::{Kind, Policy, Site, Verdict, options};
use serde::Deserialize;
use serde_json::Value;

/// See the module.
pub const KIND: Kind =
    Kind { name: "none", help: "lets everything pass, through the service", example: "{}", make };

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {}

struct Null;

fn make(value: &Value, _: &Site) -> Result<Box<dyn Policy>, String> {
    options::<Options>(value).map(|Options {}| Box::new(Null) as Box<dyn Policy>)
}

impl Policy for Null {
    fn look(&mut self, _: &mut Passage<'_>) -> Result<Verdict, String> {
        Ok(Verdict::Pass)
    }
}
