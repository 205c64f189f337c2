//! The services of past jobs, as a distribution.
use crate::Service;
use crate::table::{Column, Table, column, read};
use serde::{Deserialize, Serialize};
use std::path::Path;
use tidemill_spec::diagnostic::Diagnostics;

/// Columns of a file; the second is that of the samples published with Tiresias.
const COLUMNS: &[Column] = &[column("service", "service"), column("duration", "service")];

/// The services of past jobs.
///
/// ```
/// use tidemill_jobs::{History, Service};
/// let history = History::of([4.0, 8.0, 12.0].map(Service::of_slot_seconds));
/// let index = history.rate_within(Service::ZERO, Service::of_slot_seconds(4.0));
/// assert!((index - 1.0 / 3.0 / 4.0).abs() < 1e-12); // one of three completes within 4 slot-seconds
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<Service>", into = "Vec<Service>")]
pub struct History {
    /// The oldest job first.
    arrived: Vec<Service>,
    /// Ascending.
    services: Vec<Service>,
    /// Sums of the first services, in slot-seconds; one more than there are services.
    sums: Vec<f64>,
}

impl Default for History {
    fn default() -> Self {
        Self::of([])
    }
}

impl From<Vec<Service>> for History {
    fn from(services: Vec<Service>) -> Self {
        Self::of(services)
    }
}

impl From<History> for Vec<Service> {
    fn from(history: History) -> Self {
        history.arrived
    }
}

impl History {
    /// Creates the distribution of these services.
    pub fn of(services: impl IntoIterator<Item = Service>) -> Self {
        let arrived: Vec<Service> = services.into_iter().collect();
        let mut services = arrived.clone();
        services.sort_unstable();
        let mut sums = vec![0.0];
        let mut sum = 0.0;
        sums.extend(services.iter().map(|service| {
            sum += service.slot_seconds();
            sum
        }));
        Self { arrived, services, sums }
    }

    /// Adds the service of a job that has just ended, and forgets the oldest beyond `most`.
    ///
    /// ```
    /// use tidemill_jobs::{History, Service};
    /// let mut history = History::of([4.0, 8.0].map(Service::of_slot_seconds));
    /// history.add(Service::of_slot_seconds(1.0), 2);
    /// assert_eq!(history, History::of([8.0, 1.0].map(Service::of_slot_seconds)));
    /// ```
    pub fn add(&mut self, service: Service, most: usize) {
        let mut arrived = std::mem::take(&mut self.arrived);
        arrived.push(service);
        let surplus = arrived.len().saturating_sub(most);
        *self = Self::of(arrived.into_iter().skip(surplus));
    }

    /// Reads a table with a column `service`: slot-seconds of past jobs, a line each. The published samples of GPU times, with a column
    /// `duration`, are read as well.
    ///
    /// ```
    /// use tidemill_jobs::History;
    /// assert_eq!(History::parse("service\n121\n3600.5\n", "history.csv")?.len(), 2);
    /// assert!(History::parse("service\nlong\n", "h.csv").unwrap_err().to_string().contains("h.csv:2:1"));
    /// # Ok::<(), tidemill_spec::diagnostic::Diagnostics>(())
    /// ```
    ///
    /// # Errors
    /// All findings, with line and column.
    pub fn parse(text: &str, name: &str) -> Result<Self, Diagnostics> {
        let mut table = Table::parse(text, name, COLUMNS)?;
        table.require("service", "add a column `service`");
        let services =
            table.rows(|row| Ok(Service::of_slot_seconds(row.needed("service")?.number(1e12)?)))?;
        Ok(Self::of(services))
    }

    /// Reads the history of a file, as [`History::parse`].
    ///
    /// # Errors
    /// As [`History::parse`], or the file cannot be read.
    pub fn load(path: &Path) -> Result<Self, Diagnostics> {
        Self::parse(&read(path)?, &path.display().to_string())
    }

    /// Returns the number of services.
    pub fn len(&self) -> usize {
        self.services.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    /// Returns the chance that a job with this attained service completes within a quantum of more, divided by the mean service that
    /// it gets meanwhile, per slot-second: the ratio of the Gittins index (Gu, 2021, pseudocode 1). 0: no past job got further.
    pub fn rate_within(&self, attained: Service, quantum: Service) -> f64 {
        let above = self.services.partition_point(|service| *service <= attained);
        let until = self.services.partition_point(|service| *service <= attained + quantum);
        self.ratio(above, until, attained, quantum)
    }

    /// Returns the Gittins index of an attained service: the largest [`History::rate_within`] of all quanta.
    pub fn gittins_index(&self, attained: Service) -> f64 {
        let above = self.services.partition_point(|service| *service <= attained);
        let mut best = 0.0f64;
        // The ratio falls between two services, so that only quanta which end at one count.
        for (index, service) in self.services.iter().enumerate().skip(above) {
            best = best.max(self.ratio(above, index + 1, attained, *service - attained));
        }
        best
    }

    /// `above..until` are the services that complete within the quantum.
    fn ratio(&self, above: usize, until: usize, attained: Service, quantum: Service) -> f64 {
        let count = (until - above) as f64;
        if count == 0.0 {
            return 0.0;
        }
        let completed = self.sums[until] - self.sums[above] - count * attained.slot_seconds();
        let others = (self.services.len() - until) as f64 * quantum.slot_seconds();
        count / (completed + others).max(f64::MIN_POSITIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot_seconds(amount: f64) -> Service {
        Service::of_slot_seconds(amount)
    }

    #[test]
    fn the_index_of_the_published_example() {
        let history = History::of([12.0, 4.0, 8.0].map(slot_seconds));
        let index = |attained| history.gittins_index(slot_seconds(attained));
        // P / E with the quanta 4, 8, 12 from nothing: 1/12, 1/10, 1/8.
        assert!((index(0.0) - 1.0 / 8.0).abs() < 1e-12);
        assert!((index(2.0) - 1.0 / 6.0).abs() < 1e-12);
        assert!((index(4.0) - 1.0 / 6.0).abs() < 1e-12);
        assert!((index(8.0) - 1.0 / 4.0).abs() < 1e-12);
        assert_eq!(index(12.0), 0.0);
    }

    #[test]
    fn the_continuous_index_is_that_of_the_best_quantum() {
        let history = History::of([3.0, 3.0, 50.0, 400.0, 401.0].map(slot_seconds));
        for attained in [0.0, 1.0, 3.0, 49.0, 400.5] {
            let attained = slot_seconds(attained);
            let quanta = (1..=8000)
                .map(|tenths| history.rate_within(attained, slot_seconds(f64::from(tenths) / 10.0)));
            let best = quanta.fold(0.0, f64::max);
            let index = history.gittins_index(attained);
            assert!((index - best).abs() < 1e-9, "{index} {best}");
        }
    }

    #[test]
    fn an_empty_history_says_nothing() {
        assert_eq!(History::default().rate_within(Service::ZERO, Service(1)), 0.0);
        assert_eq!(History::default().gittins_index(Service::ZERO), 0.0);
        let one = History::of([Service(5)]);
        let text = serde_json::to_string(&one).unwrap();
        assert_eq!((text.as_str(), serde_json::from_str::<History>(&text).unwrap()), ("[5]", one));
    }
}
