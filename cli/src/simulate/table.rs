//! A simulation for people.
use super::Story;
use crate::plan::dollars;
use crate::table::{Side, Table};
use std::io::{self, Write};
use tidemill_app::figures::{bytes, grouped, milliseconds, seconds, traffic};
use tidemill_optimizer::summary;
use tidemill_simulator::{Latency, Spacing, StageOutcome};
use tidemill_spec::publication::Publication;

/// Text for the rate if no record could arrive before the end.
const TOO_SHORT: &str = "too short: it ended before the first record arrived";
/// Excess of a worker's load over the guaranteed one that is explained.
const BUSIER: f64 = 0.02;
/// Route classes and stages that are listed.
const ROWS_SHOWN: usize = 24;

fn rate(value: f64) -> String {
    format!("{}/s", short(value, 2))
}

fn percent(part: f64) -> String {
    format!("{} %", short(part * 100.0, 1))
}

/// Formats with at most `places` decimals.
fn short(value: f64, places: usize) -> String {
    let text = format!("{value:.places$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn time(seconds: f64) -> String {
    milliseconds(seconds * 1e3)
}

fn percentiles(latency: &Latency) -> [String; 5] {
    [latency.mean, latency.p50, latency.p90, latency.p99, latency.max].map(time)
}

impl Story<'_> {
    /// Writes the whole answer.
    ///
    /// # Errors
    /// Errors of `out`.
    pub(super) fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        let (workflow, infrastructure) = (&self.case.workflow.name, &self.case.infrastructure.name);
        let of = match self.early_end() {
            None => String::new(),
            Some(_) => format!(" of {}", seconds(self.options.seconds)),
        };
        let arrivals = match self.arrivals.spacing {
            Spacing::Constant => "constant arrivals",
            Spacing::Poisson => "Poisson arrivals",
        };
        let trace = match &self.arrivals.trace {
            None => String::new(),
            Some(trace) => format!(" of a trace of {}", seconds(trace.seconds())),
        };
        writeln!(
            out,
            "{workflow} on {infrastructure}: {}{of} simulated at {}, {arrivals}{trace}, seed {}",
            seconds(self.simulation.seconds),
            rate(self.assembly.rate),
            self.options.seed
        )?;
        if let Some(why) = self.early_end() {
            writeln!(out, "{why}: these are the figures up to then")?;
        }
        writeln!(out)?;
        self.sinks(out)?;
        self.classes(out)?;
        self.stages(out)?;
        self.workers(out)?;
        self.links(out)?;
        self.costs(out)?;
        self.levels(out)?;
        for note in &self.notes {
            writeln!(out, "note: {note}")?;
        }
        self.end(out)
    }

    fn sinks(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::new(&[
            ("sink", Side::Left),
            ("records", Side::Right),
            ("rate", Side::Right),
            ("due", Side::Right),
            ("latency mean", Side::Right),
            ("p50", Side::Right),
            ("p90", Side::Right),
            ("p99", Side::Right),
            ("max", Side::Right),
        ]);
        for sink in &self.simulation.sinks {
            let counts = [grouped(sink.records), rate(sink.rate), rate(sink.due_rate)];
            let name = std::iter::once(sink.name.clone());
            let latency = match sink.latency.count {
                0 => std::array::from_fn(|_| "-".to_owned()),
                _ => percentiles(&sink.latency),
            };
            table.row(name.chain(counts).chain(latency));
        }
        table.write(out)?;
        for (sink, of) in self.simulation.sinks.iter().zip(&self.options.sinks) {
            if sink.arrival.count == 0 {
                continue;
            }
            let tick = self.plan.tick;
            let published = match of.publication {
                Publication::OnArrival => "at once".to_owned(),
                Publication::EachEpoch => format!("at the end of its tick of {tick}"),
                Publication::EachCheckpoint => {
                    format!("with the checkpoint, every {} ticks of {tick}", self.plan.checkpoint_every)
                }
                Publication::AtEnd => "when the run ends".to_owned(),
            };
            let [mean, p50, p90, p99, max] = percentiles(&sink.arrival);
            writeln!(
                out,
                "{}: at the sink after mean {mean}, p50 {p50}, p90 {p90}, p99 {p99}, max {max}; readers see it {published}",
                sink.name
            )?;
        }
        writeln!(out)
    }

    fn classes(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::new(&[
            ("sink", Side::Left),
            ("class", Side::Right),
            ("records", Side::Right),
            ("latency mean", Side::Right),
            ("p50", Side::Right),
            ("p90", Side::Right),
            ("p99", Side::Right),
            ("max", Side::Right),
        ]);
        let all = self.simulation.sinks.iter().flat_map(|sink| {
            sink.classes.iter().map(|(class, latency)| (sink.name.clone(), *class, *latency))
        });
        let all: Vec<_> = all.collect();
        if self.solution.classes.len() < 2 {
            return Ok(());
        }
        for (sink, class, latency) in all.iter().take(ROWS_SHOWN) {
            let name = [sink.clone(), class.to_string(), grouped(latency.count)];
            table.row(name.into_iter().chain(percentiles(latency)));
        }
        table.write(out)?;
        more(all.len(), out)?;
        writeln!(out)
    }

    fn stages(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::new(&[
            ("stage", Side::Left),
            ("records", Side::Right),
            ("batch", Side::Right),
            ("waiting", Side::Right),
            ("for epochs", Side::Right),
            ("queue mean", Side::Right),
            ("max", Side::Right),
            ("worker busy", Side::Right),
        ]);
        let stages = &self.simulation.stages;
        for (hosting, stage) in stages.iter().enumerate().take(ROWS_SHOWN) {
            let is_stateful =
                self.assembly.problem.operators[self.solution.hostings[hosting].operator].stateful;
            let StageOutcome { records, queue_mean, queue_max, waiting, held, utilization, .. } = *stage;
            let serves = self.solution.hostings[hosting].worker.is_some();
            let of_server = |text: String| if serves { text } else { String::new() };
            table.row([
                self.stage_name(hosting),
                grouped(records),
                of_server(short(stage.batch(), 2)),
                of_server(time(waiting)),
                if is_stateful { time(held) } else { String::new() },
                of_server(short(queue_mean, 2)),
                of_server(grouped(queue_max)),
                of_server(percent(utilization)),
            ]);
        }
        table.write(out)?;
        more(stages.len(), out)?;
        writeln!(out)
    }

    /// Formats `operator@worker`; without a worker, the location.
    pub(super) fn stage_name(&self, hosting_index: usize) -> String {
        let problem = &self.assembly.problem;
        let hosting = &self.solution.hostings[hosting_index];
        let place = match hosting.worker {
            Some(worker) => &self.workers[worker],
            None => &problem.locations[hosting.location].name,
        };
        // A worker that runs an operator in two forms has two stages of it, which the plan distinguishes.
        match &self.stages[hosting_index] {
            Some(id) if id.contains('@') => id.clone(),
            _ => format!("{}@{place}", problem.operators[hosting.operator].id),
        }
    }

    fn workers(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::new(&[
            ("worker", Side::Left),
            ("type", Side::Left),
            ("busy", Side::Right),
            ("guaranteed", Side::Right),
        ]);
        let problem = &self.assembly.problem;
        let planned = summary::workers(problem, self.solution);
        let all = self.workers.iter().zip(&self.simulation.workers).zip(&planned);
        for ((name, worker), planned) in all.take(ROWS_SHOWN) {
            table.row([
                name.clone(),
                problem.worker_classes[planned.class].worker_type.clone(),
                percent(worker.utilization),
                percent(planned.utilization),
            ]);
        }
        table.write(out)?;
        more(self.workers.len(), out)?;
        let mut busy = self.simulation.workers.iter().zip(&planned);
        if busy.any(|(worker, planned)| worker.utilization > planned.utilization + BUSIER) {
            writeln!(
                out,
                "`guaranteed` assumes full batches; a worker is busier if its calls had fewer records"
            )?;
        }
        writeln!(out)
    }

    fn links(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::new(&[
            ("link", Side::Left),
            ("records", Side::Right),
            ("bytes", Side::Right),
            ("per second", Side::Right),
            ("busy", Side::Right),
            ("longest wait", Side::Right),
        ]);
        let locations = &self.assembly.problem.locations;
        for link in &self.simulation.links {
            table.row([
                format!("{} -> {}", locations[link.from].name, locations[link.to].name),
                grouped(link.records),
                bytes(link.bytes as u64),
                traffic(link.bytes_per_second),
                link.utilization.map(percent).unwrap_or_default(),
                link.utilization.map(|_| time(link.longest_wait)).unwrap_or_default(),
            ]);
        }
        if self.simulation.links.is_empty() {
            return Ok(());
        }
        table.write(out)?;
        writeln!(out)
    }

    fn costs(&self, out: &mut dyn Write) -> io::Result<()> {
        let cost = &self.simulation.cost;
        let mut table = Table::new(&[("cost", Side::Left), ("$/h", Side::Right)]);
        table.row(["compute".to_owned(), format!("{:.4}", cost.compute)]);
        table.row(["network".to_owned(), format!("{:.4}", cost.network)]);
        table.row(["total".to_owned(), format!("{:.4}", cost.total())]);
        table.write(out)?;
        let predicted = self.plan.predicted.as_ref().and_then(|predicted| predicted.cost.as_ref());
        if let Some(predicted) = predicted {
            writeln!(out, "the plan says {}", dollars(predicted.value.0))?;
        }
        writeln!(out)
    }

    fn levels(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut table = Table::new(&[
            ("level", Side::Left),
            ("", Side::Left),
            ("wanted", Side::Left),
            ("simulated", Side::Left),
        ]);
        let verdict = |kept: bool| if kept { "met" } else { "missed" }.to_owned();
        let late = self.simulation.late_seconds;
        let behind = match late > 0.0 {
            true => {
                let part = late / self.simulation.counted_seconds.max(f64::MIN_POSITIVE);
                format!(", behind for {} ({})", seconds(late), percent(part))
            }
            false => String::new(),
        };
        let (rate, of_it) = match self.is_rate_kept() {
            Some(kept) => {
                let achieved = percent(self.simulation.achieved().min(1.0));
                (verdict(kept), format!("{achieved} of it{behind}"))
            }
            None => ("open".to_owned(), TOO_SHORT.to_owned()),
        };
        table.row(["rate".to_owned(), rate, "all due records".to_owned(), of_it]);
        for sink in &self.simulation.sinks {
            for limit in &sink.limits {
                table.row([
                    "latency".to_owned(),
                    verdict(limit.is_kept()),
                    format!("p{} below {}", limit.percentile, time(limit.limit)),
                    match limit.seconds.is_finite() {
                        true => format!(
                            "p{} {} at {}, {} of the records above",
                            limit.percentile,
                            time(limit.seconds),
                            sink.name,
                            percent(limit.over)
                        ),
                        false => format!("readers of {} see records when the run ends", sink.name),
                    },
                ]);
            }
        }
        table.write(out)
    }

    /// Writes the most important notes.
    fn end(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.simulation.unmatched > 0 {
            writeln!(out, "{} records never met a partner in a join", grouped(self.simulation.unmatched))?;
        }
        match self.is_rate_kept() {
            Some(false) => {}
            Some(true) => return Ok(()),
            None => {
                return writeln!(out, "too short to judge the rate: simulate for longer (`--for`)");
            }
        }
        let busiest = self.simulation.workers.iter().enumerate();
        let busiest = busiest.max_by(|a, b| a.1.utilization.total_cmp(&b.1.utilization));
        let full = busiest.filter(|(_, worker)| worker.utilization > 0.99);
        let link = self.simulation.links.iter().find(|link| link.utilization.is_some_and(|part| part > 0.99));
        let missing: u64 = self.simulation.sources.iter().map(|source| source.due - source.records).sum();
        if missing == 0 && self.simulation.late_seconds == 0.0 && full.is_none() && link.is_none() {
            return writeln!(out, "fewer records arrived than were due, but none waited at the sources");
        }
        let waiting = format!("{} records were still waiting at the sources", grouped(missing));
        match (full, link) {
            (Some((worker, _)), _) => {
                writeln!(out, "above its capacity: {} is busy all the time; {waiting}", self.workers[worker])
            }
            (None, Some(link)) => {
                let locations = &self.assembly.problem.locations;
                let (from, to) = (&locations[link.from].name, &locations[link.to].name);
                writeln!(out, "above its capacity: the link {from} -> {to} is busy all the time; {waiting}")
            }
            (None, None) => writeln!(out, "above its capacity for some of the time; {waiting}"),
        }
    }
}

fn more(count: usize, out: &mut dyn Write) -> io::Result<()> {
    match count.saturating_sub(ROWS_SHOWN) {
        0 => Ok(()),
        left => writeln!(out, "and {left} more (`--output json` has all)"),
    }
}
