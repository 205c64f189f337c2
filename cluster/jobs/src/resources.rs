//! Resources of machines and tasks, and the service that a job gets by holding them.
use crate::Time;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use tidemill_spec::units::Bytes;

/// Resources that a machine has, or that one task needs. A trace uses `slots` alone; a cluster uses the others.
///
/// ```
/// use tidemill_jobs::Resources;
/// let machine = Resources { millicores: 4000, ..Resources::default() };
/// assert_eq!(machine.tasks(&Resources { millicores: 1500, ..Resources::default() }), 2);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    /// Slots of equal size, such as the GPUs of a trace.
    pub slots: u64,
    /// Thousandths of a processor core.
    pub millicores: u64,
    /// Main memory in bytes.
    pub memory: u64,
    /// Number of tasks of a machine at most; 1 of each task of a cluster. A trace has 0: its tasks are not counted.
    pub places: u64,
    /// Number of devices by type.
    pub devices: BTreeMap<String, u64>,
}

impl Resources {
    /// Creates slots alone.
    pub fn of_slots(slots: u64) -> Self {
        Self { slots, ..Self::default() }
    }

    /// Returns the number of tasks of this demand that fit; no limit for an empty demand.
    pub fn tasks(&self, demand: &Self) -> u64 {
        let fit = |has: u64, needs: u64| has.checked_div(needs).unwrap_or(u64::MAX);
        let devices = demand.devices.iter().map(|(kind, needs)| fit(self.device(kind), *needs));
        [
            fit(self.slots, demand.slots),
            fit(self.millicores, demand.millicores),
            fit(self.memory, demand.memory),
            fit(self.places, demand.places),
        ]
        .into_iter()
        .chain(devices)
        .min()
        .unwrap_or(u64::MAX)
    }

    /// Returns the number of devices of a type.
    pub fn device(&self, kind: &str) -> u64 {
        self.devices.get(kind).copied().unwrap_or(0)
    }

    /// Adds the demand of `tasks` tasks.
    pub fn give(&mut self, demand: &Self, tasks: u64) {
        self.change(demand, |has, needs| has.saturating_add(needs.saturating_mul(tasks)));
    }

    /// Subtracts the demand of `tasks` tasks, down to zero.
    pub fn take(&mut self, demand: &Self, tasks: u64) {
        self.change(demand, |has, needs| has.saturating_sub(needs.saturating_mul(tasks)));
    }

    fn change(&mut self, demand: &Self, changed: impl Fn(u64, u64) -> u64) {
        self.slots = changed(self.slots, demand.slots);
        self.millicores = changed(self.millicores, demand.millicores);
        self.memory = changed(self.memory, demand.memory);
        self.places = changed(self.places, demand.places);
        for (kind, needs) in &demand.devices {
            let has = self.devices.entry(kind.clone()).or_default();
            *has = changed(*has, *needs);
        }
    }

    /// Whether each amount is at least that of `other`.
    pub fn covers(&self, other: &Self) -> bool {
        self.slots >= other.slots
            && self.millicores >= other.millicores
            && self.memory >= other.memory
            && self.places >= other.places
            && other.devices.iter().all(|(kind, count)| self.device(kind) >= *count)
    }

    /// Returns the lesser of both for each amount.
    pub(crate) fn least(&self, other: &Self) -> Self {
        let devices =
            self.devices.iter().map(|(kind, count)| (kind.clone(), (*count).min(other.device(kind))));
        Self {
            slots: self.slots.min(other.slots),
            millicores: self.millicores.min(other.millicores),
            memory: self.memory.min(other.memory),
            places: self.places.min(other.places),
            devices: devices.collect(),
        }
    }
}

/// Prints `2 cores, 512MB, 1 gpu`.
impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        let plural = |count: f64| if count == 1.0 { "" } else { "s" };
        if self.slots > 0 {
            parts.push(format!("{} slot{}", self.slots, plural(self.slots as f64)));
        }
        if self.millicores > 0 {
            let cores = self.millicores as f64 / 1e3;
            parts.push(format!("{cores} core{}", plural(cores)));
        }
        if self.memory > 0 {
            parts.push(Bytes(self.memory).to_string());
        }
        parts.extend(self.devices.iter().filter(|(_, n)| **n > 0).map(|(kind, n)| format!("{n} {kind}")));
        f.write_str(&if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") })
    }
}

/// Amounts that count as one slot, by which the service of unlike demands is compared.
///
/// The weight of a task is that of its dominant resource: the largest of slots, `cores / 1`, `memory / memory_of_slot` and
/// `devices x slots_of_device`. The idea of a dominant resource is that of DRF (Ghodsi et al., NSDI 2011, section 4); these rates are
/// fixed instead of shares of the cluster, so that the service of a job does not change when a machine leaves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    /// Bytes of memory that count as one slot. Default: 4GiB, which clouds sell with one core.
    pub memory_of_slot: u64,
    /// Slots that one device counts as. Default: 8, the cores that clouds sell with one device.
    pub slots_of_device: u64,
}

impl Default for Rates {
    fn default() -> Self {
        Self { memory_of_slot: 4 << 30, slots_of_device: 8 }
    }
}

impl Rates {
    /// Returns the weight of `tasks` tasks in thousandths of a slot, at least 1.
    ///
    /// ```
    /// use tidemill_jobs::{Rates, Resources};
    /// let task = Resources { millicores: 500, memory: 8 << 30, ..Resources::default() };
    /// assert_eq!(Rates::default().weight(&task, 3), 6000); // memory dominates: 2 slots each
    /// ```
    pub fn weight(&self, task: &Resources, tasks: u32) -> u64 {
        let memory = u128::from(task.memory) * 1000 / u128::from(self.memory_of_slot.max(1));
        let devices = task.devices.values().map(|count| count.saturating_mul(1000 * self.slots_of_device));
        let all =
            [task.slots.saturating_mul(1000), task.millicores, u64::try_from(memory).unwrap_or(u64::MAX)];
        let most = all.into_iter().chain(devices).max().unwrap_or(0);
        most.saturating_mul(u64::from(tasks)).max(1)
    }
}

/// Attained service: slots times time. Stored in thousandths of a slot times milliseconds, so that sums are exact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Service(pub u64);

impl Service {
    /// No service.
    pub const ZERO: Self = Self(0);

    /// Returns the service of a weight (thousandths of a slot) for a time: `W x t` of Tiresias (Gu, 2021, section 3.3.2.2).
    pub fn of(weight: u64, time: Time) -> Self {
        Self(weight.saturating_mul(time.0))
    }

    /// Converts slot-seconds.
    pub fn of_slot_seconds(amount: f64) -> Self {
        Self((amount * 1e6).round() as u64)
    }

    /// Returns the slot-seconds.
    pub fn slot_seconds(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Returns the time after which a weight has got this much, rounded up.
    pub(crate) fn time_at(self, weight: u64) -> Time {
        Time(self.0.div_ceil(weight.max(1)))
    }
}

impl Add for Service {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Service {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Service {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// Prints `3200 slot-seconds`.
impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} slot-seconds", (self.slot_seconds() * 10.0).round() / 10.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demands_are_taken_and_given_back() {
        let gpu = |count| BTreeMap::from([("gpu".to_owned(), count)]);
        let mut machine =
            Resources { millicores: 8000, memory: 1 << 34, devices: gpu(2), ..Resources::default() };
        let whole = machine.clone();
        let task = Resources { millicores: 1000, memory: 1 << 30, devices: gpu(1), ..Resources::default() };
        assert_eq!(machine.tasks(&task), 2);
        machine.take(&task, 2);
        assert_eq!((machine.tasks(&task), machine.device("gpu")), (0, 0));
        assert!(whole.covers(&machine) && !machine.covers(&whole));
        machine.give(&task, 2);
        assert_eq!(machine, whole);
        assert_eq!(task.to_string(), "1 core, 1GiB, 1 gpu");
    }

    #[test]
    fn a_machine_has_places_for_a_number_of_tasks() {
        let mut machine = Resources { millicores: 2000, places: 12, ..Resources::default() };
        let tiny = Resources { millicores: 1, places: 1, ..Resources::default() };
        assert_eq!(machine.tasks(&tiny), 12);
        machine.take(&tiny, 12);
        assert_eq!((machine.tasks(&tiny), machine.millicores), (0, 1988));
        assert_eq!(Rates::default().weight(&tiny, 1), 1, "a place is no service");
    }

    #[test]
    fn the_dominant_resource_is_the_weight() {
        let rates = Rates::default();
        assert_eq!(rates.weight(&Resources::of_slots(4), 2), 8000);
        let task = Resources {
            millicores: 2000,
            devices: BTreeMap::from([("gpu".into(), 1)]),
            ..Resources::default()
        };
        assert_eq!(rates.weight(&task, 1), 8000);
        assert_eq!(rates.weight(&Resources::default(), 1), 1, "service grows for any job");
    }

    #[test]
    fn service_is_exact() {
        let service = Service::of(4000, Time::of_seconds(800));
        assert_eq!(service, Service::of_slot_seconds(3200.0));
        assert_eq!(service.time_at(32_000), Time::of_seconds(100));
        assert_eq!(service.to_string(), "3200 slot-seconds");
    }
}
