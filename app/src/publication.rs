//! Delay between the arrival of a record at a sink and its visibility to readers, and the setting that shortens it.
use crate::figures::milliseconds;
use crate::levels::SHORT_TICKS;
use tidemill_engine::{LatencySummary, SinkReport};
use tidemill_spec::plan::Plan;
use tidemill_spec::publication::Publication;
use tidemill_spec::units::TimeSpan;

/// Share of a tick below which a wait is not reported.
const LEAST: f64 = 0.5;
/// Place of the settings.
const WHERE: &str = "under `run:` of the workflow, or in the plan";

/// Reports that readers see the records of a sink later than they came, if the figures differ; `seconds`: of the run. Rows
/// of a short run become visible when it ends, for any settings.
pub fn told(sink: &SinkReport, plan: &Plan, seconds: f64) -> Option<String> {
    let LatencySummary { count, p50_ms, p95_ms, p99_ms, .. } = sink.arrival;
    let least = LEAST * plan.tick.0 as f64 / 1e6;
    let wait = (sink.latency.p50_ms - p50_ms).max(sink.latency.p99_ms - p99_ms);
    let group = sink.publication.longest_wait(plan.tick, plan.checkpoint_every);
    let is_short =
        group.is_some_and(|group| seconds < group.0.max(u64::from(SHORT_TICKS) * plan.tick.0) as f64 / 1e9);
    if count == 0 || is_short || (group.is_some() && sink.latency.count > 0 && wait < least) {
        return None;
    }
    let [p50, p95, p99] = [p50_ms, p95_ms, p99_ms].map(milliseconds);
    let visible = visible(sink, plan, wait);
    Some(format!("{}: at the sink after p50 {p50}, p95 {p95}, p99 {p99}; {visible}", sink.sink))
}

/// Describes when records of the sink become visible, and how to make that earlier. They waited for `wait` milliseconds.
fn visible(sink: &SinkReport, plan: &Plan, wait: f64) -> String {
    let (tick, every) = (plan.tick, plan.checkpoint_every.max(1));
    match sink.publication {
        Publication::AtEnd => "readers see the file when the run ends".to_owned(),
        Publication::OnArrival => "readers see it at once".to_owned(),
        // Sources at full speed have epochs by number of records, which last as long as these take.
        Publication::EachEpoch if wait > 2.0 * tick.0 as f64 / 1e6 => {
            "readers see it at the end of its epoch, which lasts longer than a tick here: without a rate of \
             the sources it is a number of records, else operators are too slow"
                .to_owned()
        }
        Publication::EachEpoch => format!("readers see it at the end of its tick of {tick}"),
        Publication::EachCheckpoint if every == 1 => {
            format!("readers see it with the checkpoint, every tick of {tick}")
        }
        Publication::EachCheckpoint => format!(
            "readers see it with the checkpoint, every {every} ticks of {tick}; `checkpoint_every: 1` would shorten that to {tick}"
        ),
    }
}

/// Returns advice if a level is missed at a sink although the records came to it in time: `arrival` and `below` in
/// milliseconds, at the percentile of the level.
pub fn remedy(sink: &SinkReport, arrival: f64, below: f64, plan: &Plan) -> Option<String> {
    if below - arrival < 1.0 {
        return None;
    }
    let came = format!("records came to {} in {}, but readers see them", sink.sink, milliseconds(arrival));
    let tick = plan.tick.0 as f64 / 1e6;
    let ticks = ((below - arrival) / tick) as u64;
    // A group of epochs becomes visible at its end: no record waits longer than that.
    let shorter = TimeSpan((below - arrival) as u64 * 1_000_000);
    let (is_shorter, every) = (shorter < plan.tick, plan.checkpoint_every.max(1));
    let helps = match sink.publication {
        Publication::AtEnd => true,
        Publication::OnArrival => false,
        Publication::EachEpoch => is_shorter,
        Publication::EachCheckpoint => every > 1 || is_shorter,
    };
    if !helps {
        return None;
    }
    Some(match sink.publication {
        Publication::AtEnd => format!(
            "{came} when the run ends: a sink of kind `jsonl` or `csv` is visible at the end of each tick"
        ),
        Publication::OnArrival => return None,
        Publication::EachEpoch => {
            format!("{came} at the end of a tick of {}: write `tick: {}` {WHERE}", plan.tick, shorter)
        }
        Publication::EachCheckpoint => {
            let setting = match ticks.min(every.saturating_sub(1)) {
                0 => format!("`checkpoint_every: 1` and `tick: {shorter}`"),
                fewer => format!("`checkpoint_every: {fewer}`"),
            };
            format!(
                "{came} with the checkpoint, every {every} ticks of {}: write {setting} {WHERE}",
                plan.tick
            )
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_engine::{Guarantee, Promise, Scope};
    use tidemill_spec::units::Percentile;

    fn plan(checkpoint_every: u64) -> Plan {
        Plan {
            version: 1,
            workflow: tidemill_spec::plan::PlanWorkflow { name: "w".into(), digest: None },
            plan_version: 1,
            tick: TimeSpan(50_000_000),
            checkpoint_every,
            percentile: Percentile(75.0),
            workers: vec![],
            devices: vec![],
            stages: vec![],
            classes: vec![],
            edges: vec![],
            policies: vec![],
            survive: 0,
            fallbacks: vec![],
            predicted: None,
            profiles: vec![],
        }
    }

    fn sink(publication: Publication, arrival: f64, latency: f64) -> SinkReport {
        let of = |value| LatencySummary {
            count: 100,
            mean_ms: value,
            p50_ms: value,
            p90_ms: value,
            p95_ms: value,
            p99_ms: value,
            max_ms: value,
        };
        SinkReport {
            sink: "out".into(),
            records: 100,
            reader_gone: false,
            rate_per_second: 10.0,
            promise: Promise { guarantee: Guarantee::ExactlyOnce, scope: Scope::Process, because: vec![] },
            publication,
            latency: of(latency),
            arrival: of(arrival),
            latency_plus_minus_ms: None,
            accuracy_percent: None,
            correct: 0,
            scored: 0,
            independent: 0,
            tracks: None,
            measures: None,
            without_truth: 0,
        }
    }

    #[test]
    fn a_wait_is_told_where_there_is_one() {
        let waits = told(&sink(Publication::EachCheckpoint, 1.2, 500.0), &plan(20), 9.0).unwrap();
        assert!(waits.contains("after p50 1.20 ms") && waits.contains("`checkpoint_every: 1`"), "{waits}");
        assert_eq!(told(&sink(Publication::EachCheckpoint, 0.5, 8.0), &plan(20), 9.0), None);
        assert_eq!(told(&sink(Publication::EachCheckpoint, 1.2, 500.0), &plan(20), 0.9), None);
        let end = SinkReport { latency: LatencySummary::default(), ..sink(Publication::AtEnd, 1.0, 1.0) };
        assert!(told(&end, &plan(20), 0.1).unwrap().contains("when the run ends"));
    }

    /// The advice suffices: the records' own time and the longest wait are within the level.
    #[test]
    fn the_setting_that_is_proposed_keeps_the_level() {
        let of = |publication, every| remedy(&sink(publication, 46.8, 979.0), 46.8, 800.0, &plan(every));
        let text = of(Publication::EachCheckpoint, 20).unwrap();
        assert!(text.contains("write `checkpoint_every: 15` under"), "{text}");
        let text = remedy(&sink(Publication::EachCheckpoint, 10.0, 60.0), 10.0, 45.0, &plan(1)).unwrap();
        assert!(text.contains("`checkpoint_every: 1` and `tick: 35ms`"), "{text}");
        let text = remedy(&sink(Publication::EachEpoch, 10.0, 60.0), 10.0, 45.5, &plan(1)).unwrap();
        assert!(text.contains("`tick: 35ms`"), "{text}");
        assert!(of(Publication::AtEnd, 20).unwrap().contains("kind `jsonl`"));
        assert_eq!(remedy(&sink(Publication::EachCheckpoint, 900.0, 979.0), 900.0, 800.0, &plan(20)), None);
    }
}
