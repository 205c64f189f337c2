//! Writes down what was measured.
use crate::harness::{CALLS, CHAIN, CHANNEL, Case, Effort, FILTERS, PAIRED, QOS, Row, Sample};
use crate::load::{Filter, Workload};
use serde_json::{Value, json};
use std::fmt::Write;

/// The median.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

/// A figure of a sample.
pub type Figure = fn(&Sample) -> f64;

/// As its name says; the columns of the tables have the units.
pub const P50: Figure = |sample| sample.outcome.p50;
/// As its name says; the columns of the tables have the units.
pub const P99: Figure = |sample| sample.outcome.p99;
const P999: Figure = |sample| sample.outcome.p999;
/// As its name says; the columns of the tables have the units.
pub const MEAN: Figure = |sample| sample.outcome.mean;
/// Calls a second, with those that were refused: they are work as well.
const RATE: Figure = |sample| (sample.outcome.calls + sample.outcome.refused) as f64 / sample.outcome.seconds;
/// Microseconds of processor time a call.
pub const PROCESSOR: Figure =
    |sample| sample.processor * 1e6 / (sample.outcome.calls + sample.outcome.refused).max(1) as f64;
const GIGABYTES: Figure = |sample| sample.outcome.bytes as f64 / 1e9 / sample.outcome.seconds;
/// Gigabytes a second of processor time.
pub const PER_PROCESSOR: Figure = |sample| sample.outcome.bytes as f64 / 1e9 / sample.processor.max(0.01);
const CORES: Figure = |sample| sample.processor / sample.outcome.seconds;
const BOTH_WAYS: Figure = |sample| more(sample, "both_ways_p50_us");
const BULK: Figure = |sample| more(sample, "bulk_mbit_per_s");
const BULK_P50: Figure = |sample| more(sample, "bulk_p50_us");

/// A further figure.
pub fn more(sample: &Sample, name: &str) -> f64 {
    sample.outcome.more.get(name).copied().unwrap_or(f64::NAN)
}

impl Row {
    fn median(&self, figure: Figure) -> f64 {
        median(self.samples.iter().map(figure))
    }

    fn lowest(&self, figure: Figure) -> f64 {
        self.samples.iter().map(figure).fold(f64::INFINITY, f64::min)
    }

    fn highest(&self, figure: Figure) -> f64 {
        self.samples.iter().map(figure).fold(0.0, f64::max)
    }
}

/// Everything that is in a result.
pub struct Report<'a> {
    /// Rows that were measured.
    pub cases: &'a [Case],
    /// The figures.
    pub rows: &'a [Row],
    /// How much.
    pub effort: &'a Effort,
    /// Facts of the machine and versions.
    pub machine: Value,
    /// Rows that could not be measured, and why.
    pub missing: &'a [(String, String)],
}

fn number(value: f64) -> String {
    match value {
        value if value.is_nan() => "-".into(),
        value if value < 0.0 => format!("-{}", number(-value)),
        value if value >= 1e5 => format!("{:.0}k", value / 1e3),
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 0.1 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}

impl Report<'_> {
    /// The result file: the head is that of the other results, then a row for each contender in each case.
    pub fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            let case = &self.cases[row.case];
            json!({
                "table": case.table,
                "case": case.what,
                "contender": row.contender,
                "workload": case.scenario.workload,
                "filter": case.scenario.filter,
                "services": case.scenario.services,
                "clients": case.clients,
                "median": {
                    "p50_us": row.median(P50), "p99_us": row.median(P99), "p999_us": row.median(P999),
                    "mean_us": row.median(MEAN), "calls_per_s": row.median(RATE),
                    "gb_per_s": row.median(GIGABYTES), "gb_per_processor_s": row.median(PER_PROCESSOR),
                    "processor_us_per_call": row.median(PROCESSOR), "cores": row.median(CORES),
                },
                "best": { "p50_us": row.lowest(P50), "calls_per_s": row.highest(RATE) },
                "rounds": row.samples,
                "failure": row.failure,
            })
        });
        let missing =
            self.missing.iter().map(|(contender, why)| json!({ "contender": contender, "why": why }));
        json!({
            "schema": 1,
            "name": "transport",
            "question": "What does a call through the transport service cost, beside sockets, gRPC, proxies and iceoryx2?",
            "machine": self.machine,
            "rounds": self.effort.rounds,
            "seconds": self.effort.seconds,
            "missing": missing.collect::<Vec<_>>(),
            "rows": rows.collect::<Vec<_>>(),
        })
    }

    /// The tables for readers, as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        for table in [CALLS, FILTERS, PAIRED, CHAIN, CHANNEL, QOS] {
            if self.cases.iter().any(|case| case.table == table) {
                self.table(table, &mut text);
            }
        }
        for (contender, why) in self.missing {
            let _ = writeln!(text, "- {contender}: {why}");
        }
        self.filters(&mut text);
        self.who_wins(&mut text);
        crate::goals::write(self.cases, self.rows, &mut text);
        text
    }

    fn table(&self, table: &str, text: &mut String) {
        let columns: &[(&str, Figure)] = match table {
            CHANNEL => &[
                ("p50 us", P50),
                ("p99 us", P99),
                ("p99.9 us", P999),
                ("there and back us", BOTH_WAYS),
                ("processor us/message", PROCESSOR),
            ],
            PAIRED => &[
                ("without: p50 us", P50),
                ("processor us/call", |sample| more(sample, "without_processor_us")),
                ("pairs", |sample| more(sample, "pairs")),
                ("more: p50 us", |sample| more(sample, "p50_us")),
                ("from", |sample| more(sample, "p50_us_low")),
                ("to", |sample| more(sample, "p50_us_high")),
                ("time a call %", |sample| more(sample, "calls_percent")),
                ("from", |sample| more(sample, "calls_percent_low")),
                ("to", |sample| more(sample, "calls_percent_high")),
                ("processor time %", |sample| more(sample, "processor_percent")),
                ("from", |sample| more(sample, "processor_percent_low")),
                ("to", |sample| more(sample, "processor_percent_high")),
            ],
            QOS => &[
                ("p50 us", P50),
                ("p99 us", P99),
                ("p99.9 us", P999),
                ("bulk Mbit/s", BULK),
                ("bulk p50 us", BULK_P50),
            ],
            _ => &[
                ("p50 us", P50),
                ("p99 us", P99),
                ("p99.9 us", P999),
                ("mean us", MEAN),
                ("calls/s", RATE),
                ("GB/s", GIGABYTES),
                ("processor us/call", PROCESSOR),
                ("GB/processor s", PER_PROCESSOR),
            ],
        };
        let _ = write!(text, "\n### {table}\n\n| | |");
        columns.iter().for_each(|(name, _)| {
            let _ = write!(text, " {name} |");
        });
        let _ =
            writeln!(text, " best p50 us | best calls/s |\n|---|---|{}", "--:|".repeat(columns.len() + 2));
        let mut last = usize::MAX;
        for row in self.rows.iter().filter(|row| self.cases[row.case].table == table) {
            let what = if row.case == last { "" } else { &self.cases[row.case].what };
            last = row.case;
            if row.samples.is_empty() {
                let why = row.failure.as_deref().unwrap_or("no sample");
                let _ = writeln!(text, "| {what} | {} | failed: {why} |", row.contender);
                continue;
            }
            let _ = write!(text, "| {what} | {} |", row.contender);
            let only_bulk =
                matches!(self.cases[row.case].scenario.workload, Workload::Qos(rate, _) if rate == 0.0);
            for (name, figure) in columns {
                let value = row.median(*figure);
                // Streams have no latencies, bulk has its own columns.
                let unknown = name.ends_with("us") && value == 0.0 || only_bulk && !name.starts_with("bulk");
                let _ = write!(text, " {} |", if unknown { "-".into() } else { number(value) });
            }
            let (p50, rate) = (row.lowest(P50), row.highest(RATE));
            let p50 = if p50 > 0.0 { number(p50) } else { "-".into() };
            let _ = writeln!(text, " {p50} | {} |", number(rate));
            let errors: u64 = row.samples.iter().map(|sample| sample.outcome.errors).sum();
            if errors > 0 {
                let _ = writeln!(text, "| | {}: {errors} calls failed |", row.contender);
            }
        }
    }

    /// Costs of filters, each beside the same contender without one in the same round.
    fn filters(&self, text: &mut String) {
        let of = |workload, filter| {
            let matches = move |case: &Case| {
                case.table == FILTERS && case.scenario.workload == workload && case.scenario.filter == filter
            };
            self.rows.iter().filter(move |row| matches(&self.cases[row.case]))
        };
        let mut lines = String::new();
        for (workload, figure, name, sign) in [
            (Workload::Rate, RATE, "calls/s with 128 in flight", -1.0),
            (Workload::Rate, PROCESSOR, "processor time a call with 128 in flight", 1.0),
            (Workload::Latency, P50, "p50 with 1 in flight", 1.0),
        ] {
            for filter in [Filter::Limiter, Filter::Acl] {
                for row in of(workload, filter) {
                    let Some(without) =
                        of(workload, Filter::None).find(|other| other.contender == row.contender)
                    else {
                        continue;
                    };
                    let pairs = row.samples.iter().zip(&without.samples);
                    let shares: Vec<f64> =
                        pairs.map(|(with, without)| figure(with) / figure(without)).collect();
                    let costs = sign * (median(shares.iter().copied()) - 1.0) * 100.0;
                    let spread = shares.iter().fold(0.0, |most: f64, share| most.max(*share))
                        - shares.iter().fold(f64::INFINITY, |least: f64, share| least.min(*share));
                    let _ = writeln!(
                        lines,
                        "| {filter:?} | {} | {name} | {costs:+.1} % | {:.1} % |",
                        row.contender,
                        spread * 100.0
                    );
                }
            }
        }
        if !lines.is_empty() {
            let _ = write!(
                text,
                "\n### What filters cost\n\n| | | | worse by | spread of rounds |\n|---|---|---|--:|--:|\n{lines}"
            );
        }
    }

    /// Who is the best in each case, and where the product is.
    fn who_wins(&self, text: &mut String) {
        text.push_str("\n### Who wins\n\n");
        for (number_of_case, case) in self.cases.iter().enumerate() {
            if case.table == FILTERS || case.table == PAIRED {
                continue;
            }
            let figures: &[(&str, Figure, bool)] = match case.scenario.workload {
                Workload::Latency | Workload::Open(_) => {
                    &[("p50", P50, false), ("processor time a call", PROCESSOR, false)]
                }
                Workload::Channel(_) => &[("p50", P50, false)],
                Workload::Qos(0.0, _) => &[("bulk", BULK, true)],
                Workload::Qos(..) => &[("p99 of small calls", P99, false), ("bulk", BULK, true)],
                _ => &[("calls/s", RATE, true), ("bytes a second of processor time", PER_PROCESSOR, true)],
            };
            for (name, figure, more_is_better) in figures {
                let rows =
                    self.rows.iter().filter(|row| row.case == number_of_case && !row.samples.is_empty());
                let mut order: Vec<(f64, &str)> = rows
                    .map(|row| (row.median(*figure), row.contender.as_str()))
                    .filter(|(value, _)| *value > 0.0)
                    .collect();
                order.sort_by(|one, other| one.0.total_cmp(&other.0));
                if *more_is_better {
                    order.reverse();
                }
                let Some((best, winner)) = order.first() else { continue };
                let of = |value: f64| if *more_is_better { best / value } else { value / best };
                let others: Vec<String> =
                    order[1..].iter().map(|(value, name)| format!("{name} {:.2}x", of(*value))).collect();
                let _ = write!(text, "- {}, {name}: **{winner}** ({})", case.what, number(*best));
                if !others.is_empty() {
                    let _ = write!(text, "; worse: {}", others.join(", "));
                }
                text.push('\n');
            }
        }
        if !self
            .rows
            .iter()
            .any(|row| row.contender.starts_with("tidemill") && self.cases[row.case].table != CHANNEL)
        {
            text.push_str(
                "- Tidemill's own calls: not measured, they are no contender yet (src/product.rs).\n",
            );
        }
    }
}
