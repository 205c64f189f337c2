//! Settings of a queue.
use crate::policy;
use crate::{PackLimit, Rates, Service, Time};
use serde::{Deserialize, Serialize};
use tidemill_spec::diagnostic::nearest;

/// Settings of a queue.
///
/// ```
/// use tidemill_jobs::{Settings, SettingsError};
/// let settings = Settings { policy: "2d-las".into(), ..Settings::default() };
/// assert!(settings.check().is_ok());
/// let wrong = Settings { policy: "2d-lsa".into(), ..Settings::default() };
/// assert_eq!(wrong.check().unwrap_err().to_string(), "unknown policy `2d-lsa`; did you mean `2d-las`?");
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Name of the policy, see [`policy::ALL`]. Default: `2d-las`.
    pub policy: String,
    /// Service at which a job leaves each queue but the last, ascending. One threshold makes two queues. None: the rank of `2d-las` and
    /// `2d-gittins` is continuous, computed each [`Settings::interval`]. Default: 3200 slot-seconds, as in Tiresias' testbed (Gu, 2021,
    /// section 3.5.2).
    pub thresholds: Vec<Service>,
    /// Time between two looks at ranks that change continuously. Default: 1min.
    pub interval: Time,
    /// A job is promoted when it has waited this many times as long as it ran (Tiresias, section 3.3.2.3). None: never. Default: none.
    pub promote_knob: Option<f64>,
    /// Time for which a started job is not preempted for another. Default: 1min, about the cost of a preemption.
    pub least_run: Time,
    /// Number of jobs that have ended whose services the queue remembers, as its history. 0: the history stays as it is given. Default: 0.
    pub remembered: usize,
    /// Skew above which a gang is packed onto the fewest machines.
    pub pack_limit: PackLimit,
    /// Amounts that count as one slot.
    pub rates: Rates,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            policy: policy::DEFAULT.to_owned(),
            thresholds: vec![Service::of_slot_seconds(3200.0)],
            interval: Time::of_seconds(60),
            promote_knob: None,
            least_run: Time::of_seconds(60),
            remembered: 0,
            pack_limit: PackLimit::default(),
            rates: Rates::default(),
        }
    }
}

/// A setting that cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SettingsError {
    /// No such policy.
    #[error("unknown policy `{name}`; {help}")]
    Policy {
        /// The name.
        name: String,
        /// A correction.
        help: String,
    },
    /// Thresholds that are zero or do not ascend.
    #[error("thresholds must be above 0 and ascend, such as `3200` or `3600,7200`")]
    Thresholds,
    /// An interval of zero.
    #[error("the interval must be above 0, such as `1min`")]
    Interval,
    /// A knob that is not a positive number.
    #[error("the promote knob is {0}; write a number above 0, or `inf`")]
    Knob(f64),
    /// A limit outside of 0 to 1.
    #[error("the pack limit is {0}; write a number from 0 to 1, or `auto`")]
    PackLimit(f64),
    /// A policy that needs the services of past jobs, without them.
    #[error("the policy {0} needs a history: the services of past jobs")]
    History(&'static str),
}

impl Settings {
    /// Checks all values.
    ///
    /// # Errors
    /// The first wrong setting.
    pub fn check(&self) -> Result<(), SettingsError> {
        if policy::find(&self.policy).is_none() {
            let names = || policy::ALL.iter().map(|policy| policy.name());
            let help = nearest(&self.policy, names()).map_or_else(
                || format!("the policies are {}", names().collect::<Vec<_>>().join(", ")),
                |near| format!("did you mean `{near}`?"),
            );
            return Err(SettingsError::Policy { name: self.policy.clone(), help });
        }
        let ascend = self.thresholds.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascend || self.thresholds.first() == Some(&Service::ZERO) {
            return Err(SettingsError::Thresholds);
        }
        if self.interval == Time::ZERO {
            return Err(SettingsError::Interval);
        }
        if let Some(knob) = self.promote_knob.filter(|knob| !(knob.is_finite() && *knob > 0.0)) {
            return Err(SettingsError::Knob(knob));
        }
        match self.pack_limit {
            PackLimit::Fixed(limit) if !(0.0..=1.0).contains(&limit) => Err(SettingsError::PackLimit(limit)),
            _ => Ok(()),
        }
    }

    /// Returns the queue of an attained service, counted from 0: queue `i` holds `[threshold i-1, threshold i)`.
    pub(crate) fn queue_of(&self, service: Service) -> u32 {
        self.thresholds.partition_point(|threshold| *threshold <= service) as u32
    }

    /// Whether ranks by service are continuous.
    pub(crate) fn is_continuous(&self) -> bool {
        self.thresholds.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_hold_their_lower_bound() {
        let thresholds = [3600.0, 7200.0].map(Service::of_slot_seconds).to_vec();
        let settings = Settings { thresholds, ..Settings::default() };
        let queue = |service| settings.queue_of(Service::of_slot_seconds(service));
        assert_eq!([queue(0.0), queue(3599.9), queue(3600.0), queue(7200.0)], [0, 0, 1, 2]);
    }

    #[test]
    fn wrong_settings_say_what_to_write() {
        let check = |settings: Settings| settings.check().unwrap_err().to_string();
        let all = Settings::default;
        assert!(
            check(Settings { policy: "x".into(), ..all() }).contains("the policies are 2d-las, 2d-gittins")
        );
        let thresholds = vec![Service(2), Service(2)];
        assert!(check(Settings { thresholds, ..all() }).contains("ascend"));
        assert!(check(Settings { promote_knob: Some(0.0), ..all() }).contains("knob is 0"));
        assert!(check(Settings { pack_limit: PackLimit::Fixed(2.0), ..all() }).contains("limit is 2"));
        assert!(check(Settings { interval: Time::ZERO, ..all() }).contains("interval"));
    }
}
