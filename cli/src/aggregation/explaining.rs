//! `tidemill agg explain`: aggregators or an all-reduce.
use crate::answer;
use crate::arguments::{ExplainAggArguments, OutputForm};
use crate::exit::Exit;
use serde_json::json;
use std::io::Write;
use std::time::Duration;
use tidemill_aggregation::comparison::{Exchange, Means};
use tidemill_app::figures::milliseconds;

/// Bytes per second that one processor adds up, where nothing else is said.
pub(crate) const ADDED: f64 = 2e9;

/// Shows which one is quicker, and why.
pub(super) fn explain(arguments: &ExplainAggArguments) -> anyhow::Result<Exit> {
    let (bytes, workers) = (arguments.bytes as f64, f64::from(arguments.workers));
    let work = arguments.work.unwrap_or_else(|| Duration::from_secs_f64(bytes * workers / ADDED));
    let exchange = Exchange {
        bytes,
        tensors: arguments.tensors,
        workers: arguments.workers,
        worker_rate: arguments.bandwidth,
        aggregators: arguments.aggregators,
        aggregator_rate: arguments.aggregator_bandwidth.unwrap_or(arguments.bandwidth),
        work,
        latency: arguments.latency,
    };
    let aggregation = milliseconds(exchange.aggregation().as_secs_f64() * 1e3);
    let all_reduce = milliseconds(exchange.all_reduce().as_secs_f64() * 1e3);
    let (choice, reason) = (exchange.quicker(), exchange.reason());
    let mut out = answer::out();
    if arguments.output == OutputForm::Json {
        let value = json!({
            "version": 1,
            "quicker": match choice { Means::AllReduce => "all_reduce", Means::Aggregators => "aggregators" },
            "reason": reason,
            "aggregators_ms": exchange.aggregation().as_secs_f64() * 1e3,
            "all_reduce_ms": exchange.all_reduce().as_secs_f64() * 1e3,
            "exchange": exchange,
        });
        serde_json::to_writer_pretty(&mut out, &value)?;
        writeln!(out)?;
        return Ok(Exit::Success);
    }
    writeln!(out, "aggregators  {aggregation} for each iteration")?;
    writeln!(out, "all-reduce   {all_reduce} for each iteration")?;
    let name = match choice {
        Means::AllReduce => "an all-reduce of the workers",
        Means::Aggregators => "aggregators",
    };
    writeln!(out, "choose {name}: {reason}")?;
    Ok(Exit::Success)
}
