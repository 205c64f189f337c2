//! The tables of counters of stages, edges and sinks. A counter is a line here, and the place that counts.
use super::cells::{Cell, Value, merge};
use super::served::{
    ANY, COUNT, IS, MOST_SECONDS, MetricOf, MetricValue, NOW, REASONS, SECONDS, SECONDS_NOW, SIZES, Served,
    TIMES,
};
use super::table::{Counted, counted, label, labels};
use super::{Amount, BatchSizes, ByReason, Latencies, Metric, MetricKind, count};
use crate::clock::Nanoseconds;
use crate::histogram::Histogram;
use crate::processor::ProcessorTime;
use crate::taps::Tapped;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tidemill_operators::api::DeviceTimes;
use tidemill_operators::measures::Measures;
use tidemill_operators::track_truth::TrackMeasures;
use tidemill_spec::publication::Publication;

counted! {
    /// Counters of one stage (all its partitions and incarnations).
    StageMetrics, StageFigures, ["workflow", "run", "operator", "stage", "worker", "cluster_worker", "variant"];
    counters {
        /// Records received (replays included).
        records_in: AtomicU64, sum, COUNT "tidemill_operator_records" ("direction" = "in") All
            "Records in and out of a stage";
        /// Records emitted (replays included).
        records_out: AtomicU64, sum, COUNT "tidemill_operator_records" ("direction" = "out") All
            "Records in and out of a stage";
        /// Batches computed.
        batches: AtomicU64, sum, COUNT "tidemill_operator_batches" () All "Batches that a stage computed";
        /// Restarts of the stage.
        restarts: AtomicU64, sum, COUNT "tidemill_operator_restarts" () All "Restarts of a stage after a panic";
        /// Bytes of state.
        state_bytes: AtomicU64, last, NOW "tidemill_operator_state_bytes" () All "Bytes of state of a stage";
        /// Records that wait in the stage or are being computed; models only.
        waiting: Amount, last, NOW "tidemill_operator_waiting_records" () Models
            "Records that wait in the stage of a model or are being computed";
        /// Waiting in the stage before the computation.
        queue: Latencies, sum, TIMES "tidemill_operator_queue_seconds" () All
            "Time that a record waits in a stage before it is computed";
        /// The computation (of the whole batch, once for each of its records).
        compute: Latencies, sum, TIMES "tidemill_operator_compute_seconds" () All
            "Time that the batch of a record is computed";
        /// Nanoseconds that batches took: each batch once, those of several copies and partitions together.
        computing: AtomicU64, sum, SECONDS "tidemill_operator_computing_seconds" () All
            "Time that a stage computed: each batch once, those of several copies and partitions together";
        /// Processor time of other threads for this stage alone: those of a model, those that read a source.
        processor: Arc<ProcessorTime>, sum, SECONDS "tidemill_operator_processor_seconds" () All
            "Processor time of threads that work for this stage alone: a model's, those that read a source";
        /// Sizes of batches; models only.
        batch_sizes: BatchSizes, sum, SIZES "tidemill_model_batch_size" () Models "Records that a model computed at once";
        /// For open-loop sources: the largest lag of emission against the schedule, nanoseconds.
        schedule_lag: AtomicI64, max, MOST_SECONDS "tidemill_source_schedule_lag_seconds" () Sources
            "Largest lag of a source behind its open-loop schedule";
        /// For open-loop sources: the present lag of emission against the schedule, nanoseconds.
        behind: AtomicI64, last, SECONDS_NOW "tidemill_source_behind_seconds" () Sources
            "Present lag of a source behind its open-loop schedule";
        /// Sources only: it has no more records, or the run was ended.
        ended: AtomicBool, last, IS "tidemill_source_ended" () Sources "1: the source has ended; else 0";
        /// Records lost on purpose.
        drops: ByReason, sum, REASONS "tidemill_records_dropped" ("edge", "reason") All "Records lost on purpose";
        /// Records that continued with a note.
        notes: ByReason, sum, REASONS "tidemill_record_notes" ("reason") All
            "Records that went on, with something to know";
        /// Records that could not be processed.
        dead_letters: ByReason, sum, REASONS "tidemill_dead_letters" ("reason") All
            "Records that could not be processed";
        /// Copies of the model that were added during the run.
        copies_added: AtomicU64, sum;
        /// The device that computes the model, as its executor reports it; models only.
        device: OnceLock<String>, last;
        /// The rest of the computation of a batch on a device: pre-processing, post-processing, copies, batches that had to be
        /// computed again. Of batches that a device computed, as all that follow; each once for each of its records.
        device_client: Latencies, sum, TIMES "tidemill_device_client_seconds" () Devices
            "Time of a batch that a device computed in the process of the stage: preparation, copies, runs that were lost";
        /// On the way to the device and back.
        device_network: Latencies, sum, TIMES "tidemill_device_network_seconds" () Devices
            "Time of a batch on the way to its device and back";
        /// At the device, while it computed other batches or none.
        device_queue: Latencies, sum, TIMES "tidemill_device_queue_seconds" () Devices
            "Time that a batch waits at its device";
        /// The computation of the device.
        device_compute: Latencies, sum, TIMES "tidemill_device_compute_seconds" () Devices
            "Time that a device computes a batch";
        /// Batches that the device computed, not this process in its place.
        device_batches: AtomicU64, sum, COUNT "tidemill_device_batches" () Devices
            "Batches that a device computed; others of the stage were computed by its process, in place of the device";
        /// Waits for the device.
        device_round_trips: AtomicU64, sum, COUNT "tidemill_device_round_trips" () Devices
            "Times that a batch waited for its device";
        /// Bytes to the device.
        device_sent: AtomicU64, sum, COUNT "tidemill_device_bytes" ("direction" = "to") Devices
            "Bytes of tensors to a device and from it";
        /// Bytes from the device.
        device_received: AtomicU64, sum, COUNT "tidemill_device_bytes" ("direction" = "from") Devices
            "Bytes of tensors to a device and from it";
        /// Sessions that were lost; their batches were computed again.
        device_lost: AtomicU64, sum, COUNT "tidemill_device_sessions_lost" () Devices
            "Sessions with a device that were lost, and whose batch was then computed by another one or by the process of the stage";
        /// Of them, those whose device gave no sign of life or computed for too long.
        device_stalled: AtomicU64, sum, COUNT "tidemill_device_sessions_stalled" () Devices
            "Of the sessions that were lost, those whose device gave no sign of life or computed for too long";
        /// Batches that the process of the stage computed instead of the device.
        device_here: AtomicU64, sum, COUNT "tidemill_device_replaced_batches" ("computed_by" = "stage") Devices
            "Batches that the process of a stage or a spare computed instead of the device";
        /// Batches that a spare computed instead of the device.
        device_on_spare: AtomicU64, sum, COUNT "tidemill_device_replaced_batches" ("computed_by" = "spare") Devices
            "Batches that the process of a stage or a spare computed instead of the device";
    }
    here {
        /// Newest event time of a source's records in microseconds, plus 1; 0: none is known in this process.
        newest_time: AtomicI64;
        /// Those who look at the records that leave the stage.
        tapped: Tapped;
    }
    also {}
}

impl StageMetrics {
    /// A batch of `rows` records was computed.
    pub(crate) fn computed(&self, elapsed: Nanoseconds, rows: u64) {
        self.compute.record(elapsed, rows);
        count(&self.batches, 1);
        count(&self.computing, u64::try_from(elapsed).unwrap_or(0));
    }

    /// A batch of `rows` records took `elapsed`, of which its device reports a part, in real time: `dilation` is the clock's. Times
    /// overlap where the device computes several parts of a batch at once; then nothing is left for the client.
    pub(crate) fn computed_on_device(
        &self,
        elapsed: Nanoseconds,
        rows: u64,
        times: &DeviceTimes,
        dilation: f64,
    ) {
        count(&self.device_lost, times.lost);
        count(&self.device_stalled, times.stalled);
        count(&self.device_here, times.here);
        // Without a round trip this process has computed it.
        if times.round_trips == 0 {
            return;
        }
        let nanoseconds = |time: Duration| (time.as_nanos() as f64 / dilation) as Nanoseconds;
        let elsewhere = nanoseconds(times.network + times.queue + times.compute);
        self.device_client.record(elapsed.saturating_sub(elsewhere), rows);
        self.device_network.record(nanoseconds(times.network), rows);
        // Of a server that reports no times of its own, the network has them.
        if times.queue + times.compute > Duration::ZERO {
            self.device_queue.record(nanoseconds(times.queue), rows);
            self.device_compute.record(nanoseconds(times.compute), rows);
        }
        count(&self.device_batches, 1);
        count(&self.device_on_spare, times.on_spare);
        count(&self.device_round_trips, times.round_trips);
        count(&self.device_sent, times.sent);
        count(&self.device_received, times.received);
    }
}

counted! {
    /// Counters of one plan edge. Its sender has them all, but for the times of transfer, which its receiver has.
    EdgeMetrics, EdgeFigures, ["workflow", "run", "edge"];
    counters {
        /// Records sent (replays included).
        records: AtomicU64, sum, COUNT "tidemill_edge_records" () Sent
            "Records sent between slots, those that were sent again with them";
        /// Bytes sent (replays included).
        bytes: AtomicU64, sum, COUNT "tidemill_edge_bytes" () Sent "Bytes sent between slots";
        /// Records that wait at the sender because the receiver has not taken earlier ones.
        waiting: Amount, last, NOW "tidemill_edge_waiting_records" () Sent
            "Records that wait at the sender because the receiver has not taken earlier ones";
        /// From the sending stage's output to the receiving stage's input.
        transfer: Latencies, sum, TIMES "tidemill_edge_transfer_seconds" () All
            "Time from the output of a stage to the input of the next";
        /// Channels that are cut; only for edges with a policy for cuts (`when_cut`), as all that follow.
        cut: Amount, last, ANY "tidemill_edge_cut" () WhenCut
            "1: the edge is cut; else 0; of edges with `when_cut` between two workers";
        /// Channels that deliver the data kept while they were cut.
        delivers: Amount, last;
        /// Engine time of the beginning of the cut, nanoseconds; 0 if it is not cut.
        cut_since: AtomicI64, last;
        /// Number of cuts.
        cuts: AtomicU64, sum, COUNT "tidemill_edge_cuts" () WhenCut "Times that an edge with `when_cut` was cut";
        /// Nanoseconds of all former cuts.
        cut_nanoseconds: AtomicU64, sum;
        /// Bytes kept for a receiver that is cut, or was and has not got all of them.
        buffered: Amount, last, NOW "tidemill_edge_buffered_bytes" () WhenCut
            "Bytes that the sender keeps of an edge that is cut, or was and has not been delivered";
        /// Stand-ins on this side that answer now because it is cut (`when_cut: degrade`), as all that follow.
        degraded: Amount, last, ANY "tidemill_edge_degraded" () StandIns
            "1: another variant answers on this side of an edge with `when_cut: degrade` that is cut; else 0";
        /// Records that they have answered (replays included).
        answered_here: AtomicU64, sum, COUNT "tidemill_edge_answered_here_records" () StandIns
            "Records that another variant was given to answer because an edge with `when_cut: degrade` was cut, repeated ones included";
        /// Answers of the other side that have left (replays included).
        answered_there: AtomicU64, sum, COUNT "tidemill_edge_answered_there_records" () StandIns
            "Answers of the other side of an edge with `when_cut: degrade` that went on, repeated ones included";
        /// Records lost on purpose.
        drops: ByReason, sum, REASONS "tidemill_records_dropped" ("reason") All "Records lost on purpose";
    }
    here {}
    also {
        Counter "tidemill_edge_cut_seconds" () WhenCut
            "Time that an edge with `when_cut` was cut, including the present cut"
            = |edge, now| Some(MetricValue::Sum(edge.cut_seconds(now)));
    }
}

impl EdgeMetrics {
    /// Records that a channel of it is cut since then.
    pub(crate) fn cut_begins(&self, since: Nanoseconds) {
        if self.cut_since.compare_exchange(0, since, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            count(&self.cuts, 1);
        }
    }

    /// Records that a channel of it is back, or that its receiver has ended.
    pub(crate) fn cut_over(&self, now: Nanoseconds) {
        if self.cut.get() > 1 {
            return;
        }
        let since = self.cut_since.swap(0, Ordering::AcqRel);
        if since != 0 {
            count(&self.cut_nanoseconds, u64::try_from(now - since).unwrap_or(0));
        }
    }

    /// Returns the seconds that it was cut until now, with the present cut.
    fn cut_seconds(&self, now: Nanoseconds) -> f64 {
        let present = match self.cut_since.read() {
            0 => 0,
            since => (now - since).max(0),
        };
        (self.cut_nanoseconds.read() as f64 + present as f64) / 1e9
    }
}

counted! {
    /// Counters of one sink.
    SinkMetrics, SinkFigures, ["workflow", "run", "sink"];
    counters {
        /// Records that arrived.
        records: AtomicU64, sum;
        /// Records committed (each once), without those that had no taker.
        committed: AtomicU64, last, COUNT "tidemill_sink_records" () All "Records that a sink has committed, each once";
        /// From the intended emission at the source until readers of the sink can see the record: the commit that publishes it
        /// has returned. Each record once, however often it was replayed.
        latency: Latencies, sum, TIMES "tidemill_end_to_end_latency_seconds" () All
            "Time from the intended emission at the source until readers of a sink can see the record";
        /// From the intended emission to the arrival in the sink's memory (replays included).
        arrival: Latencies, sum, TIMES "tidemill_sink_arrival_seconds" () All
            "Time from the intended emission at the source to the arrival at a sink, before it is published";
        /// When readers can see records that arrived; known once the sink is open.
        publication: OnceLock<Publication>, known;
        /// Engine time of the first arrival, nanoseconds; 0 before.
        first_arrival: AtomicI64, first;
        /// Engine time of the last arrival, nanoseconds.
        last_arrival: AtomicI64, max;
        /// Committed records with ground truth. While the sink is open: of texts the characters of those that have come, of tracks 0.
        scored: AtomicU64, last;
        /// Number of right ones among them.
        correct: AtomicU64, last;
        /// Number of independent samples with the same uncertainty as the share of right ones.
        independent: AtomicU64, last;
        /// Of tracks: measures beside IDF1, once the sink is closed.
        tracks: OnceLock<TrackMeasures>, last;
        /// Measures beside the share of right answers, once the sink is closed.
        measures: OnceLock<Measures>, last;
        /// Its rows are judged together: the results of two processes are not added.
        judged_whole: AtomicBool, any;
        /// Committed records whose key has no ground truth.
        without_truth: AtomicU64, sum;
        /// Readers of its output have gone away.
        closed: AtomicBool, last;
    }
    here {}
    also {
        Counter "tidemill_sink_scored_records" ("is_right" = "yes") All
            "Committed records with ground truth, by whether they are right"
            = |sink, _| sink.judged().map(|(right, _)| MetricValue::Count(right));
        Counter "tidemill_sink_scored_records" ("is_right" = "no") All
            "Committed records with ground truth, by whether they are right"
            = |sink, _| sink.judged().map(|(_, wrong)| MetricValue::Count(wrong));
    }
}

impl SinkMetrics {
    /// Returns the numbers of right and wrong records, if any were judged.
    fn judged(&self) -> Option<(u64, u64)> {
        let (scored, correct) = (self.scored.read(), self.correct.read());
        (scored > 0).then(|| (correct, scored.saturating_sub(correct)))
    }
}

impl SinkFigures {
    /// Adds the counts of a former process. The process that continues counts the committed rows that still hold: it
    /// alone knows whether it can judge them where all are judged together.
    pub(crate) fn add_former(&mut self, before: &Self) {
        self.add(before);
        if !self.judged_whole {
            merge::sum(&mut self.scored, &before.scored);
            merge::sum(&mut self.correct, &before.correct);
            merge::sum(&mut self.independent, &before.independent);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// Large batches take longer: weighted by their records, a stage would seem to compute more of its time than it does.
    #[test]
    fn a_batch_takes_its_time_once_however_large_it_is() {
        let stage = StageMetrics::default();
        stage.computed(2_000_000, 1);
        stage.computed(10_000_000, 9);
        assert_eq!((stage.batches.read(), stage.computing.read()), (2, 12_000_000));
        assert_eq!(stage.compute.summary().count, 10);
    }

    #[test]
    fn what_is_judged_as_a_whole_is_not_added() {
        let one = SinkFigures { scored: 10, judged_whole: true, ..SinkFigures::default() };
        let (mut lost, mut now) = (SinkFigures::default(), one.clone());
        lost.add_former(&one);
        now.add_former(&lost);
        assert_eq!((lost.scored, now.scored), (0, 10));
    }

    #[test]
    fn a_line_of_a_table_makes_a_metric() {
        let edge = EdgeMetrics::default();
        edge.answered_here.show(3);
        edge.cut_since.show(1_000_000_000);
        edge.cut_nanoseconds.show(500_000_000);
        let of = |name: &str| {
            let served = EdgeMetrics::SERVED.iter().find(|served| served.metric.name == name).unwrap();
            (served.metric, served.of, (served.value)(&edge, 3_000_000_000))
        };
        let (metric, stages, shown) = of("tidemill_edge_answered_here_records");
        assert_eq!((metric.kind, metric.labels), (MetricKind::Counter, &["workflow", "run", "edge"][..]));
        assert_eq!(stages, MetricOf::StandIns);
        assert!(matches!(shown, Some(MetricValue::Count(3))), "{shown:?}");
        let (.., shown) = of("tidemill_edge_cut_seconds");
        assert!(matches!(shown, Some(MetricValue::Sum(seconds)) if seconds == 2.5), "{shown:?}");
        let records = StageMetrics::SERVED.iter().filter(|served| served.metric.name.ends_with("r_records"));
        let labels: Vec<_> =
            records.map(|served| (served.label, served.metric.labels.last().copied())).collect();
        assert_eq!(labels[1], (Some(("direction", "out")), Some("direction")));
    }
}
