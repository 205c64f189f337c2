//! A device of a plan as a queue with an enforced speed: one call at a time, in the order in which they reach the device, whichever
//! stage they are of.
use super::free_at::FreeAt;
use super::times::SharedTimes;
use super::{DeviceStageReport, EmulatedDeviceReport};
use crate::clock::Nanoseconds;
use crate::executor::Span;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// See the module.
pub(super) struct Device {
    id: String,
    free_at: FreeAt,
    stages: Mutex<BTreeMap<String, DeviceStageReport>>,
}

impl Device {
    /// An idle device of this process.
    pub(super) fn new(id: &str) -> Self {
        Self::with(id, FreeAt::own())
    }

    /// The device of this number among the shared times.
    pub(super) fn shared(id: &str, times: &Arc<SharedTimes>, number: usize) -> Self {
        Self::with(id, FreeAt::shared(times, number))
    }

    fn with(id: &str, free_at: FreeAt) -> Self {
        Self { id: id.to_owned(), free_at, stages: Mutex::default() }
    }

    /// Computes a call of so many records of a stage that reaches it at this time, which is hardly past. `lasts` is told whether the
    /// call follows another one at once.
    ///
    /// # Errors
    /// The shared times cannot be read or written.
    pub(super) fn take(
        &self,
        (stage, records): (&str, usize),
        reached: Nanoseconds,
        lasts: impl FnOnce(bool) -> Nanoseconds,
    ) -> io::Result<Span> {
        let mut started = reached;
        let finished = self.free_at.change(|free_at| {
            started = reached.max(free_at);
            started.saturating_add(lasts(free_at >= reached))
        })?;
        let mut stages = self.stages.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = stages.entry(stage.to_owned()).or_default();
        counts.calls += 1;
        counts.records += records as u64;
        counts.busy_seconds += (finished - started) as f64 / 1e9;
        counts.waited_seconds += (started - reached) as f64 / 1e9;
        Ok(Span { started, finished })
    }

    /// Reports its work in this process.
    pub(super) fn report(&self) -> EmulatedDeviceReport {
        let stages = self.stages.lock().unwrap_or_else(PoisonError::into_inner);
        let named = |(stage, counts): (&String, &DeviceStageReport)| DeviceStageReport {
            stage: stage.clone(),
            ..counts.clone()
        };
        let stages: Vec<DeviceStageReport> = stages.iter().map(named).collect();
        let busy_seconds = stages.iter().map(|stage| stage.busy_seconds).sum();
        EmulatedDeviceReport { device: self.id.clone(), busy_seconds, stages }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanoseconds = 1_000_000;

    #[test]
    fn calls_of_all_stages_wait_for_each_other() {
        let device = Device::new("hub/gpu");
        let take = |stage, reached, follows: Option<bool>| {
            let lasts = |known| {
                assert!(follows.is_none_or(|follows| follows == known));
                10 * MS
            };
            device.take((stage, 2), reached, lasts).expect("its own time")
        };
        let span = |started, finished| Span { started: started * MS, finished: finished * MS };
        assert_eq!(take("a", 3 * MS, Some(false)), span(3, 13));
        assert_eq!(take("b", 5 * MS, Some(true)), span(13, 23), "it waits for the other stage");
        assert_eq!(take("a", 30 * MS, Some(false)), span(30, 40), "it was idle");
        let report = device.report();
        assert_eq!((report.device.as_str(), report.busy_seconds), ("hub/gpu", 0.03));
        let of = |stage: &DeviceStageReport| {
            (stage.stage.clone(), stage.calls, stage.records, stage.waited_seconds)
        };
        let stages: Vec<_> = report.stages.iter().map(of).collect();
        assert_eq!(stages, [("a".to_owned(), 2, 4, 0.0), ("b".to_owned(), 1, 2, 0.008)]);
    }

    #[test]
    fn stages_of_several_processes_share_it() {
        let times = Arc::new(SharedTimes::create(2).expect("memory"));
        let opened = Arc::new(SharedTimes::open(&times.path()).expect("this process lives"));
        let [one, other] = [&times, &opened].map(|times| Device::shared("gpu", times, 1));
        let take = |device: &Device| device.take(("a", 1), 0, |_| MS).expect("the times are there");
        assert_eq!(take(&one), Span { started: 0, finished: MS });
        assert_eq!(take(&other), Span { started: MS, finished: 2 * MS });
    }
}
