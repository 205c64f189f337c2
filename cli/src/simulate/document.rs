//! A simulation for programs.
use super::Story;
use serde_json::{Value, json};
use tidemill_simulator::{Ended, Latency, Spacing};

fn latency(of: &Latency) -> Value {
    json!({
        "records": of.count,
        "mean_ms": of.mean * 1e3,
        "p50_ms": of.p50 * 1e3,
        "p90_ms": of.p90 * 1e3,
        "p99_ms": of.p99 * 1e3,
        "max_ms": of.max * 1e3,
    })
}

impl Story<'_> {
    /// Returns the whole answer. Times are those of the plan.
    pub(super) fn document(&self) -> Value {
        let simulation = self.simulation;
        let problem = &self.assembly.problem;
        let location = |index: usize| problem.locations[index].name.as_str();
        let sources = problem.sources.iter().zip(&simulation.sources).map(|(source, outcome)| {
            json!({
                "source": source.id,
                "records": outcome.records,
                "due": outcome.due,
            })
        });
        let sinks = simulation.sinks.iter().map(|sink| {
            let classes = sink.classes.iter().map(|(class, of)| {
                json!({"class": class, "share": self.solution.classes[*class].share, "latency": latency(of)})
            });
            let limits = sink.limits.iter().map(|limit| {
                json!({
                    "percentile": limit.percentile,
                    "below_ms": limit.limit * 1e3,
                    "simulated_ms": limit.seconds.is_finite().then_some(limit.seconds * 1e3),
                    "share_above": limit.over,
                    "met": limit.is_kept(),
                })
            });
            json!({
                "sink": sink.name,
                "records": sink.records,
                "rate_per_second": sink.rate,
                "due_per_second": sink.due_rate,
                "sampling": sink.sampling,
                "latency": latency(&sink.latency),
                "arrival": latency(&sink.arrival),
                "classes": classes.collect::<Vec<_>>(),
                "limits": limits.collect::<Vec<_>>(),
            })
        });
        let stages = simulation.stages.iter().enumerate().map(|(hosting, stage)| {
            json!({
                "stage": self.stage_name(hosting),
                "records": stage.records,
                "calls": stage.calls,
                "mean_batch": stage.batch(),
                "mean_waiting_ms": stage.waiting * 1e3,
                "mean_waiting_for_epochs_ms": stage.held * 1e3,
                "mean_queue": stage.queue_mean,
                "max_queue": stage.queue_max,
                "utilization": stage.utilization,
            })
        });
        let workers = self.workers.iter().zip(&simulation.workers);
        let workers =
            workers.map(|(name, worker)| json!({"worker": name, "utilization": worker.utilization}));
        let links = simulation.links.iter().map(|link| {
            json!({
                "from": location(link.from),
                "to": location(link.to),
                "records": link.records,
                "bytes": link.bytes,
                "bytes_per_second": link.bytes_per_second,
                "utilization": link.utilization,
                "longest_wait_ms": link.longest_wait * 1e3,
            })
        });
        let cost = &simulation.cost;
        json!({
            "version": 1,
            "workflow": self.case.workflow.name.value,
            "infrastructure": self.case.infrastructure.name.value,
            "ended": match simulation.ended {
                Ended::Complete => "complete",
                Ended::Events => "events",
                Ended::Records => "records",
                Ended::Interrupted => "interrupted",
            },
            "seconds": simulation.seconds,
            "seconds_wanted": self.options.seconds,
            "events": simulation.events,
            "seed": self.options.seed,
            "arrivals": match self.arrivals.spacing {
                Spacing::Constant => "constant",
                Spacing::Poisson => "poisson",
            },
            "trace_seconds": self.arrivals.trace.as_ref().map(tidemill_simulator::Trace::seconds),
            "rate_per_second": self.assembly.rate,
            "rate": {
                "met": self.is_rate_kept(),
                "achieved_share": self.is_rate_kept().map(|_| simulation.achieved()),
                "seconds_behind": simulation.late_seconds,
            },
            "sources": sources.collect::<Vec<_>>(),
            "sinks": sinks.collect::<Vec<_>>(),
            "stages": stages.collect::<Vec<_>>(),
            "workers": workers.collect::<Vec<_>>(),
            "links": links.collect::<Vec<_>>(),
            "cost": {"total": cost.total(), "compute": cost.compute, "network": cost.network, "unit": "$/h"},
            "unmatched": simulation.unmatched,
            "on_the_way": simulation.on_the_way,
            "notes": self.notes,
        })
    }
}
