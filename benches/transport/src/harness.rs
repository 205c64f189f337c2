//! Measures all contenders in rounds: within a round, one after the other, because the load of the machine drifts.
use crate::contender::Contender;
use crate::load::{Filter, Link, Load, Outcome, Scenario, Workload};
use crate::process::{PATIENCE, Room, processor_time, with_descendants};
use anyhow::{Context, ensure};
use serde::Serialize;

/// Something that is measured of each contender.
#[derive(Debug, Clone)]
pub struct Case {
    /// The table that it is in.
    pub table: &'static str,
    /// Its name, in a few words.
    pub what: String,
    /// Set-up that contenders start.
    pub scenario: Scenario,
    /// Client processes.
    pub clients: usize,
    /// Whether calls say who calls.
    pub roles: bool,
    /// Its seconds, in those of the others.
    pub longer: f64,
}

/// One contender in one round.
#[derive(Debug, Clone, Serialize)]
pub struct Sample {
    /// All clients together: sums, the mean of means and medians, and the worst of the high percentiles.
    pub outcome: Outcome,
    /// Processor time of all its processes, in seconds.
    pub processor: f64,
    /// Processes.
    pub processes: usize,
    /// Load average of the last minute, before.
    pub load: f64,
}

/// All rounds of a contender in a case.
#[derive(Debug)]
pub struct Row {
    /// The case, by its place.
    pub case: usize,
    /// The contender's name.
    pub contender: String,
    /// A sample a round, or why there is none.
    pub samples: Vec<Sample>,
    /// The last failure.
    pub failure: Option<String>,
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Rounds.
    pub rounds: usize,
    /// Seconds of a measurement.
    pub seconds: f64,
    /// Fewer cases.
    pub quick: bool,
    /// Calls in a second of open loops.
    pub rate: f64,
}

/// Rate of small calls beside bulk.
const BESIDE_BULK: f64 = 200.0;

/// All cases.
pub fn cases(effort: &Effort, link: Option<&Link>) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |table, what: String, workload, filter, services, clients: usize, link: Option<&Link>| {
        let scenario = Scenario { filter, services, link: link.cloned(), workload };
        let roles = table == FILTERS || table == PAIRED;
        let longer = if table == PAIRED {
            8.0
        } else if link.is_some() || (roles && !effort.quick) {
            2.0
        } else {
            1.0
        };
        cases.push(Case { table, what, scenario, clients, roles, longer });
    };
    let none = Filter::None;
    let open = format!("64 B, open loop, {} calls/s", effort.rate);
    for (what, workload) in [
        ("64 B, 1 in flight", Workload::Latency),
        (&open, Workload::Open(effort.rate)),
        ("64 B, 128 in flight", Workload::Rate),
        ("8 KiB, 128 in flight", Workload::Good8k),
        ("1 MiB, 8 in flight", Workload::Good1m),
        ("stream of 8 KiB", Workload::Stream),
    ] {
        add(CALLS, what.to_owned(), workload, none, 1, 1, None);
    }
    let counts: &[usize] = if effort.quick { &[4] } else { &[2, 3, 4] };
    for clients in counts {
        let what = format!("8 KiB, 128 in flight, {clients} clients");
        add(CALLS, what, Workload::Good8k, none, 1, *clients, None);
    }
    // What is compared is measured one after the other.
    let small = [(Workload::Rate, "128 in flight"), (Workload::Latency, "1 in flight")];
    for (workload, how) in &small[..if effort.quick { 1 } else { 2 }] {
        for (filter, name) in
            [(none, "none"), (Filter::Limiter, "limiter at infinity"), (Filter::Acl, "ACL, 99 % valid")]
        {
            add(FILTERS, format!("64 B, {how}; {name}"), *workload, filter, 1, 1, None);
        }
    }
    for (in_flight, how) in [(1, "1 in flight"), (128, "128 in flight")] {
        for (filter, name) in [
            (none, "nothing, twice"),
            (Filter::Null, "null policy"),
            (Filter::Limiter, "limiter at infinity"),
            (Filter::Acl, "ACL, 99 % valid"),
        ] {
            add(PAIRED, format!("64 B, {how}; {name}"), Workload::Paired(in_flight), filter, 1, 1, None);
        }
    }
    add(CHAIN, "64 B, 1 in flight, 5 services".into(), Workload::Latency, none, 5, 1, None);
    let sizes: &[usize] =
        if effort.quick { &[64, 1 << 20] } else { &[64, 4 << 10, 64 << 10, 1 << 20, 4 << 20] };
    for bytes in sizes {
        add(CHANNEL, size(*bytes), Workload::Channel(*bytes), none, 1, 1, None);
    }
    if let Some(link) = link {
        for (what, small, bulk) in [
            ("small calls alone", BESIDE_BULK, false),
            ("32 KiB x 64 alone", 0.0, true),
            ("small calls beside 32 KiB x 64", BESIDE_BULK, true),
        ] {
            add(QOS, what.to_owned(), Workload::Qos(small, bulk), none, 1, 1, Some(link));
        }
    }
    cases
}

/// Calls of one client to one server.
pub const CALLS: &str = "Calls";
/// Costs of filters.
pub const FILTERS: &str = "Filters";
/// The same, with and without in turns in the same processes.
pub const PAIRED: &str = "Policies in pairs";
/// Services in a row.
pub const CHAIN: &str = "Chain";
/// Payloads on one host.
pub const CHANNEL: &str = "Channel on one host";
/// Small calls beside large ones.
pub const QOS: &str = "Small calls beside bulk, link of 200 Mbit/s";

fn size(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// Measures everything.
pub fn measure(
    cases: &[Case],
    contenders: &[&dyn Contender],
    effort: &Effort,
    room: &Room,
    mut tell: impl FnMut(&str),
) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        // A case without a filter is only there to compare with.
        let filtered = Scenario { filter: Filter::Acl, ..case.scenario.clone() };
        let covers = |contender: &dyn Contender| {
            contender.covers(&case.scenario) && (case.table != FILTERS || contender.covers(&filtered))
        };
        for contender in contenders.iter().filter(|contender| covers(**contender)) {
            let (contender, samples) = (contender.name(), Vec::new());
            rows.push(Row { case: number, contender, samples, failure: None });
        }
    }
    for round in 0..effort.rounds {
        for (number, case) in cases.iter().enumerate() {
            tell(&format!("round {} of {}: {}, {}", round + 1, effort.rounds, case.table, case.what));
            let mut of_case: Vec<&mut Row> = rows.iter_mut().filter(|row| row.case == number).collect();
            let count = of_case.len().max(1);
            // Another contender begins in each round.
            of_case.rotate_left(round % count);
            for row in of_case {
                let Some(contender) = contenders.iter().find(|contender| contender.name() == row.contender)
                else {
                    continue;
                };
                match sample(*contender, case, effort, room) {
                    Ok(sample) => {
                        if sample.outcome.errors > 0 {
                            let why = room.last_words();
                            tell(&format!(
                                "{}: {} calls failed: {why}",
                                row.contender, sample.outcome.errors
                            ));
                            row.failure = Some(why);
                        }
                        row.samples.push(sample);
                    }
                    Err(error) => {
                        tell(&format!("{}: {error:#}", row.contender));
                        row.failure = Some(format!("{error:#}"));
                    }
                }
            }
        }
    }
    rows
}

fn sample(contender: &dyn Contender, case: &Case, effort: &Effort, room: &Room) -> anyhow::Result<Sample> {
    let load = tidemill_machine::load_average().map_or(0.0, |averages| averages[0]);
    let running = contender.start(&case.scenario, room)?;
    let seconds = effort.seconds * case.longer;
    let patience = PATIENCE + std::time::Duration::from_secs_f64(seconds * 2.0);
    let order = Load {
        workload: case.scenario.workload,
        filter: case.scenario.filter,
        roles: case.roles,
        warmup: (seconds * 0.3).max(0.1),
        seconds,
    };
    let order = serde_json::to_string(&order)?;
    let namespace = case.scenario.link.as_ref().map(|link| link.client.as_str());
    let client = |_| room.own(&["client", &contender.name(), &running.target, &order], namespace);
    let mut clients = (0..case.clients).map(client).collect::<Result<Vec<_>, _>>()?;
    for client in &mut clients {
        let line = client.line(patience).with_context(|| room.last_words())?;
        ensure!(line == "ready", "a client said {line:?}");
    }
    let all: Vec<u32> = running.processes.iter().chain(&clients).map(|child| child.number()).collect();
    let all = with_descendants(&all);
    let before = processor_time(&all);
    for client in &mut clients {
        client.tell("go")?;
    }
    let mut outcomes = Vec::new();
    for client in &mut clients {
        let line = client.line(patience).with_context(|| room.last_words())?;
        outcomes.push(serde_json::from_str::<Outcome>(&line).with_context(|| line.clone())?);
    }
    let processor = processor_time(&all) - before;
    let outcome = together(outcomes);
    let did = outcome.calls > 0 || outcome.more.values().any(|figure| *figure > 0.0);
    ensure!(did, "no call succeeded; {}", room.last_words());
    Ok(Sample { outcome, processor, processes: all.len(), load })
}

fn together(outcomes: Vec<Outcome>) -> Outcome {
    let count = outcomes.len().max(1) as f64;
    let mut sum = Outcome::default();
    for outcome in outcomes {
        sum.calls += outcome.calls;
        sum.bytes += outcome.bytes;
        sum.refused += outcome.refused;
        sum.errors += outcome.errors;
        sum.seconds = sum.seconds.max(outcome.seconds);
        sum.mean += outcome.mean / count;
        sum.p50 += outcome.p50 / count;
        sum.p99 = sum.p99.max(outcome.p99);
        sum.p999 = sum.p999.max(outcome.p999);
        sum.more.extend(outcome.more);
    }
    sum
}
