//! `acl`: takes out records that may not pass.
//!
//! The condition is computed over a copy of the records that the sender cannot change any more, and that copy is sent on. A
//! record for which it cannot be computed, such as one with an empty column, does not pass.
use crate::matching::Condition;
use crate::passage::Passage;
use crate::policy::{Kind, Policy, Site, Verdict, options};
use arrow_array::BooleanArray;
use serde::Deserialize;
use serde_json::Value;
use tidemill_spec::types::StreamType;

/// See the module.
pub const KIND: Kind = Kind {
    name: "acl",
    help: "takes out records that may not pass",
    example: r#"{"deny_if": "camera in ['cam3', 'cam7']"}"#,
    make,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    /// The records that the rule is for. Default: all.
    #[serde(rename = "match")]
    matches: Option<String>,
    /// The records that do not pass.
    deny_if: String,
}

struct Acl {
    matches: Option<Condition>,
    deny_if: Condition,
}

fn make(value: &Value, _: &Site) -> Result<Box<dyn Policy>, String> {
    let Options { matches, deny_if } = options(value)?;
    Ok(Box::new(Acl { matches: matches.map(Condition::new), deny_if: Condition::new(deny_if) }))
}

/// Rows that cannot be judged count as found.
fn found(condition: &mut Condition, frame: &mut Passage<'_>) -> Result<BooleanArray, String> {
    let found = condition.find(frame.records()?)?;
    if found.failed.is_empty() {
        return Ok(found.holds);
    }
    let mut holds: Vec<bool> = found.holds.values().iter().collect();
    found.failed.iter().for_each(|(row, _)| holds[*row] = true);
    Ok(BooleanArray::from(holds))
}

impl Policy for Acl {
    fn look(&mut self, frame: &mut Passage<'_>) -> Result<Verdict, String> {
        let denied = found(&mut self.deny_if, frame)?;
        if denied.true_count() == 0 {
            return Ok(Verdict::Pass);
        }
        let denied = match &mut self.matches {
            Some(matches) => &(denied.values() & found(matches, frame)?.values()),
            None => denied.values(),
        };
        frame.keep(&BooleanArray::new(!denied, None))?;
        Ok(Verdict::Pass)
    }

    fn fits(&mut self, columns: &StreamType) -> Result<(), String> {
        self.matches.iter().chain([&self.deny_if]).try_for_each(|condition| condition.fits(columns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Bench, cameras, columns};
    use serde_json::json;

    #[test]
    fn denied_records_are_taken_out_and_the_others_stay_in_order() {
        let mut bench = Bench::new("acl", &json!({"deny_if": "camera == 'b' || camera == 'c'"}));
        let (verdict, left) = bench.look(&cameras(&["a", "b", "d", "c", "a"]));
        assert_eq!((verdict, left), (Verdict::Pass, cameras(&["a", "d", "a"])));
        let (_, left) = bench.look(&cameras(&["b", "b"]));
        assert_eq!((left.num_rows(), bench.rejected()), (0, 4));
        assert_eq!(bench.look(&cameras(&["a"])).1, cameras(&["a"]));
    }

    #[test]
    fn a_record_that_cannot_be_judged_does_not_pass() {
        let mut bench = Bench::new("acl", &json!({"deny_if": "camera.size() > 3"}));
        let (_, left) = bench.look(&crate::bench::some_cameras(&[Some("a"), None, Some("long name")]));
        assert_eq!(left, cameras(&["a"]));
    }

    #[test]
    fn a_rule_may_be_for_some_records_only() {
        let mut bench = Bench::new("acl", &json!({"match": "camera != 'a'", "deny_if": "true"}));
        assert_eq!(bench.look(&cameras(&["a", "b"])).1, cameras(&["a"]));
    }

    #[test]
    fn a_condition_over_other_columns_does_not_fit() {
        let mut acl = make(&json!({"deny_if": "cam == 'b'"}), &Site::default()).expect("its form is right");
        let error = acl.fits(&columns()).expect_err("no such column");
        assert!(error.contains("cam") && error.contains("camera"), "{error}");
    }
}
