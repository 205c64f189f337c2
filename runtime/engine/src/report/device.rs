//! What a report says of a model on a device: where the time of its batches went, and what they took there.
use crate::metrics::{LatencySummary, StageMetrics};
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

/// The batches of a stage that a device computed. The four times of a batch add up to its computation; each counts once for
/// each record of the batch.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceReport {
    /// In the process of the stage: pre-processing, post-processing, copies, runs that were lost.
    pub client: LatencySummary,
    /// On the way to the device and back; of a server that reports no times of its own, all of its time.
    pub network: LatencySummary,
    /// Waiting at the device; without records if the server reports none.
    pub queue: LatencySummary,
    /// The computation of the device; without records if the server reports none.
    pub compute: LatencySummary,
    /// Batches; others of the stage were computed by its process, in place of the device.
    pub batches: u64,
    /// Waits for the device.
    pub round_trips: u64,
    /// Waits for the device in a batch.
    pub round_trips_per_batch: f64,
    /// Bytes of tensors to the device.
    pub sent_bytes: u64,
    /// Bytes of tensors to the device for a record.
    pub sent_bytes_per_record: f64,
    /// Bytes of tensors from the device.
    pub received_bytes: u64,
    /// Bytes of tensors from the device for a record.
    pub received_bytes_per_record: f64,
    /// Sessions that were lost; their batches were computed again.
    pub sessions_lost: u64,
    /// Of them, those whose device gave no sign of life or computed for too long.
    pub sessions_stalled: u64,
    /// Batches that the process of the stage computed instead of the device; [`Self::batches`] is without them.
    pub batches_here: u64,
    /// Of [`Self::batches`], those that a spare computed.
    pub batches_on_spares: u64,
}

impl DeviceReport {
    /// Returns the figures of a stage; none: it has no device, or no batch yet.
    pub(super) fn of(metrics: &StageMetrics) -> Option<Self> {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (batches, sessions_lost) = (get(&metrics.device_batches), get(&metrics.device_lost));
        let batches_here = get(&metrics.device_here);
        if batches == 0 && sessions_lost == 0 && batches_here == 0 {
            return None;
        }
        let network = metrics.device_network.summary();
        let (sent_bytes, received_bytes) = (get(&metrics.device_sent), get(&metrics.device_received));
        let round_trips = get(&metrics.device_round_trips);
        let per = |all: u64, of: u64| all as f64 / of.max(1) as f64;
        Some(Self {
            client: metrics.device_client.summary(),
            network,
            queue: metrics.device_queue.summary(),
            compute: metrics.device_compute.summary(),
            batches,
            round_trips,
            round_trips_per_batch: per(round_trips, batches),
            sent_bytes,
            sent_bytes_per_record: per(sent_bytes, network.count),
            received_bytes,
            received_bytes_per_record: per(received_bytes, network.count),
            sessions_lost,
            sessions_stalled: get(&metrics.device_stalled),
            batches_here,
            batches_on_spares: get(&metrics.device_on_spare),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::time::Duration;
    use tidemill_operators::api::DeviceTimes;

    const MS: i64 = 1_000_000;

    fn times(network: u64, queue: u64, compute: u64) -> DeviceTimes {
        let [network, queue, compute] = [network, queue, compute].map(Duration::from_millis);
        DeviceTimes {
            network,
            queue,
            compute,
            round_trips: 1,
            sent: 400,
            received: 40,
            ..DeviceTimes::default()
        }
    }

    #[test]
    fn the_four_times_of_a_batch_add_up_to_its_computation() {
        let metrics = StageMetrics::default();
        assert_eq!(DeviceReport::of(&metrics), None);
        for (elapsed, rows, times) in [(20, 4, times(3, 2, 10)), (12, 2, times(4, 0, 7))] {
            metrics.computed(elapsed * MS, rows);
            metrics.computed_on_device(elapsed * MS, rows, &times, 1.0);
        }
        let report = DeviceReport::of(&metrics).unwrap();
        let parts = [&report.client, &report.network, &report.queue, &report.compute];
        assert!(parts.iter().all(|part| part.count == 6), "once for each record");
        let mean: f64 = parts.iter().map(|part| part.mean_ms).sum();
        assert!((mean - metrics.compute.summary().mean_ms).abs() < 0.01, "{report:?}");
        assert_eq!(parts.map(|part| part.max_ms), [5.0, 4.0, 2.0, 10.0]);
        assert_eq!((report.batches, report.round_trips, report.round_trips_per_batch), (2, 2, 1.0));
        assert_eq!((report.sent_bytes, report.received_bytes), (800, 80));
        assert!((report.sent_bytes_per_record - 800.0 / 6.0).abs() < 1e-9);
    }

    #[test]
    fn a_batch_that_this_process_computed_instead_is_no_batch_of_the_device() {
        let metrics = StageMetrics::default();
        metrics.computed_on_device(
            9 * MS,
            4,
            &DeviceTimes { lost: 1, stalled: 1, ..DeviceTimes::default() },
            1.0,
        );
        let report = DeviceReport::of(&metrics).unwrap();
        assert_eq!((report.batches, report.compute.count), (0, 0));
        assert_eq!((report.sessions_lost, report.sessions_stalled), (1, 1));
        assert_eq!((report.round_trips_per_batch, report.sent_bytes_per_record), (0.0, 0.0));
    }

    #[test]
    fn batches_that_the_device_did_not_compute_are_counted_beside_its_figures() {
        let metrics = StageMetrics::default();
        // No session was lost: the device had no memory left.
        let here = DeviceTimes { here: 1, ..DeviceTimes::default() };
        metrics.computed_on_device(90 * MS, 4, &here, 1.0);
        let report = DeviceReport::of(&metrics).unwrap();
        assert_eq!((report.batches, report.batches_here, report.batches_on_spares), (0, 1, 0));
        assert_eq!((report.sessions_lost, report.client.count, report.network.count), (0, 0, 0));
        metrics.computed_on_device(20 * MS, 4, &DeviceTimes { on_spare: 1, ..times(3, 2, 10) }, 1.0);
        metrics.computed_on_device(20 * MS, 4, &times(3, 2, 10), 1.0);
        let report = DeviceReport::of(&metrics).unwrap();
        assert_eq!((report.batches, report.batches_here, report.batches_on_spares), (2, 1, 1));
        assert_eq!((report.round_trips_per_batch, report.sent_bytes_per_record), (1.0, 100.0));
        assert_eq!((report.client.count, report.client.max_ms), (8, 5.0), "without the one of this process");
    }

    /// Parts of one batch that run side by side take longer together than the batch.
    #[test]
    fn nothing_is_left_for_the_client_where_the_parts_overlap() {
        let metrics = StageMetrics::default();
        metrics.computed_on_device(9 * MS, 1, &times(4, 4, 4), 1.0);
        assert_eq!(DeviceReport::of(&metrics).unwrap().client.max_ms, 0.001);
    }

    #[test]
    fn a_run_with_a_slower_clock_has_the_times_of_its_clock() {
        let metrics = StageMetrics::default();
        metrics.computed_on_device(10 * MS, 1, &times(4, 2, 10), 2.0);
        let report = DeviceReport::of(&metrics).unwrap();
        let parts = [&report.client, &report.network, &report.queue, &report.compute];
        assert_eq!(parts.map(|part| part.max_ms), [2.0, 2.0, 1.0, 5.0]);
    }

    #[test]
    fn a_server_without_times_of_its_own_has_no_queue_and_no_computation() {
        let metrics = StageMetrics::default();
        metrics.computed_on_device(10 * MS, 2, &times(8, 0, 0), 1.0);
        let report = DeviceReport::of(&metrics).unwrap();
        assert_eq!((report.network.count, report.queue.count, report.compute.count), (2, 0, 0));
        assert_eq!((report.client.max_ms, report.sent_bytes_per_record), (2.0, 200.0));
    }
}
