//! Limits that end a run before its sources do.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Limits of a run, over all processes that continue it. They belong to the request, not to the run's identity: a
/// larger limit continues where a smaller one ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Records of each source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records: Option<u64>,
    /// Engine time since the start, nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nanoseconds: Option<u64>,
}

impl Limits {
    /// Creates limits from a record count and a duration.
    pub fn new(records: Option<u64>, duration: Option<Duration>) -> Self {
        let nanoseconds = duration.map(|duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
        Self { records, nanoseconds }
    }

    /// Whether a run that ended at `former` has more to do with these.
    pub fn go_beyond(&self, former: &Self) -> bool {
        let is_more = |now: Option<u64>, before: Option<u64>| {
            before.is_some_and(|before| now.is_none_or(|now| now > before))
        };
        is_more(self.records, former.records) || is_more(self.nanoseconds, former.nanoseconds)
    }
}

/// Displays the command's options that set them.
impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let records = self.records.map(|records| format!("--records {records}"));
        let time = self.nanoseconds.map(|time| format!("--for {}s", time as f64 / 1e9));
        let told: Vec<String> = records.into_iter().chain(time).collect();
        f.write_str(&told.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(records: Option<u64>, seconds: Option<u64>) -> Limits {
        Limits::new(records, seconds.map(Duration::from_secs))
    }

    #[test]
    fn larger_and_absent_limits_go_on() {
        let of_records = limits(Some(1000), None);
        for (now, is_more) in [
            (limits(None, None), true),
            (limits(Some(1001), None), true),
            (limits(Some(1000), None), false),
            (limits(Some(999), None), false),
            (limits(Some(1000), Some(1)), false),
            (limits(None, Some(1)), true),
        ] {
            assert_eq!(now.go_beyond(&of_records), is_more, "{now}");
        }
        let both = limits(Some(10), Some(2));
        assert!(limits(Some(10), Some(3)).go_beyond(&both) && !both.go_beyond(&both));
        assert!(!limits(None, None).go_beyond(&limits(None, None)), "nothing had ended it");
    }

    #[test]
    fn limits_are_told_as_options() {
        assert_eq!(limits(Some(1000), None).to_string(), "--records 1000");
        let time = Limits::new(Some(5), Some(Duration::from_millis(1500)));
        assert_eq!(time.to_string(), "--records 5 --for 1.5s");
    }
}
