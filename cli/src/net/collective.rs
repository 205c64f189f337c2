//! `tidemill net collective` and `net bench`: groups of programs that compute together.
use crate::answer;
use crate::arguments::{
    BenchGroupArguments, CollectiveVerb, GroupServiceChoice, GroupStrategyArguments, NetBenchVerb, OutputForm,
};
use crate::exit::Exit;
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use serde::Serialize;
use std::io::Write;
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::{bytes, duration, grouped, speed};
use tidemill_app::listener::Listener;
use tidemill_collective::client::{self, Error};
use tidemill_collective::protocol::{
    Answer, Bench, Figures, GroupState, GroupView, Listing, Measured, Minute, NO_USER, Question, socket_of,
};
use tidemill_net::usual_socket;

/// Time in which the service answers, beside what it was asked to take.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Time in which ranks of a benchmark find each other.
const JOINING: Duration = Duration::from_secs(60);

/// The user of a group, in a table.
fn user(number: u32) -> String {
    if number == NO_USER { "service".to_owned() } else { number.to_string() }
}

/// The same in a sentence.
fn owner(number: u32) -> String {
    if number == NO_USER { "the service".to_owned() } else { format!("user {number}") }
}

pub(super) fn ask(
    choice: &GroupServiceChoice,
    question: Question,
    patience: Duration,
) -> Result<Answer, Failure> {
    let socket = choice.socket.clone().unwrap_or_else(usual_socket);
    let answer = client::ask(&socket, question, patience).map_err(|error| match error {
        Error::Unreachable { service, reason, .. } => Failure::new(
            Kind::Unavailable,
            format!("no service for groups answers at {}: {reason}", socket_of(&service).display()),
        )
        .with_help(
            "start a service with `tidemill net serve`, or name its socket with `--socket` or TIDEMILL_NET",
        ),
        other => Failure::new(Kind::Unavailable, other.to_string()),
    })?;
    match answer {
        Answer::Refused(reason) => Err(Failure::new(Kind::Configuration, reason)),
        answer => Ok(answer),
    }
}

pub(super) fn unexpected() -> Failure {
    Failure::new(Kind::Unavailable, "the transport service answers something else".to_owned())
        .with_help("`tidemill net upgrade` replaces it by this version")
}

fn listing(choice: &GroupServiceChoice) -> Result<Listing, Failure> {
    match ask(choice, Question::List, PATIENCE)? {
        Answer::Listing(listing) => Ok(listing),
        _ => Err(unexpected()),
    }
}

pub(super) fn json(key: &str, value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = answer::out();
    serde_json::to_writer_pretty(&mut out, &serde_json::json!({"version": 1, "ok": true, key: value}))?;
    Ok(writeln!(out)?)
}

/// Runs a verb of `tidemill net collective`.
pub(crate) fn collective(verb: &CollectiveVerb, terminal: &Terminal) -> anyhow::Result<Exit> {
    match verb {
        CollectiveVerb::Ls(arguments) => list(&arguments.service, terminal),
        CollectiveVerb::Show(arguments) => show(&arguments.group, &arguments.service),
        CollectiveVerb::Strategy(arguments) => strategy(arguments, terminal),
    }
}

fn state(state: GroupState) -> &'static str {
    match state {
        GroupState::Joining => "joining",
        GroupState::Running => "running",
        GroupState::Switching => "switching",
        GroupState::Broken => "broken",
    }
}

fn list(choice: &GroupServiceChoice, terminal: &Terminal) -> anyhow::Result<Exit> {
    let listing = listing(choice)?;
    if choice.output == OutputForm::Json {
        json("listing", &listing)?;
        return Ok(Exit::Success);
    }
    if listing.groups.is_empty() {
        terminal.note("no group is there now; programs make one by joining it");
    } else {
        let mut table = Table::new(&[
            ("group", Side::Left),
            ("user", Side::Right),
            ("state", Side::Left),
            ("ranks", Side::Right),
            ("operations", Side::Right),
            ("bytes", Side::Right),
            ("strategy", Side::Left),
            ("epoch", Side::Right),
            ("why", Side::Left),
        ]);
        for group in &listing.groups {
            table.row([
                group.name.clone(),
                user(group.user),
                state(group.state).to_owned(),
                format!("{} of {}", group.ranks.len(), group.size),
                grouped(group.figures.operations),
                bytes(group.figures.bytes),
                group.policy.clone(),
                group.strategy.as_ref().map_or_else(String::new, |strategy| strategy.epoch.to_string()),
                group.why.clone(),
            ]);
        }
        table.write(&mut answer::out())?;
    }
    if listing.hosts.len() > 1 {
        let mut table = Table::new(&[
            ("host", Side::Left),
            ("rack", Side::Left),
            ("pod", Side::Left),
            ("address", Side::Left),
            ("paths", Side::Left),
        ]);
        for view in &listing.hosts {
            let paths: Vec<&str> = view.host.paths.iter().map(|path| path.name.as_str()).collect();
            table.row([
                view.host.name.clone(),
                view.host.rack.clone(),
                view.host.pod.clone(),
                view.address.clone().unwrap_or_else(|| "none".to_owned()),
                paths.join(", "),
            ]);
        }
        let mut out = answer::out();
        if !listing.groups.is_empty() {
            writeln!(out)?;
        }
        table.write(&mut out)?;
    }
    Ok(Exit::Success)
}

/// Operations, their bytes and mean time, and for how long bytes waited for others.
fn worked(operations: u64, size: u64, busy_us: u64, held_us: u64) -> String {
    let mean = busy_us.checked_div(operations).unwrap_or_default();
    let (count, size) = (grouped(operations), bytes(size));
    let text = format!("{count} operations, {size}, {} each", duration(1e3 * mean as f64));
    match held_us {
        0 => text,
        _ => format!("{text}; yielded to others for {}", duration(1e3 * held_us as f64)),
    }
}

fn show(name: &str, choice: &GroupServiceChoice) -> anyhow::Result<Exit> {
    let groups = listing(choice)?.groups;
    let is_meant =
        |group: &&GroupView| group.name == name || format!("{}/{}", group.user, group.name) == name;
    let meant: Vec<&GroupView> = groups.iter().filter(is_meant).collect();
    let [group] = meant[..] else {
        let (text, help) = match meant.first() {
            None => {
                (format!("there is no group {name}"), "`tidemill net collective ls` lists them".to_owned())
            }
            Some(first) => (
                format!("several users have a group {name}"),
                format!("write its user, as in `tidemill net collective show {}/{name}`", first.user),
            ),
        };
        return Err(Failure::new(Kind::Missing, text).with_help(help).into());
    };
    if choice.output == OutputForm::Json {
        json("group", group)?;
        return Ok(Exit::Success);
    }
    let mut out = answer::out();
    writeln!(out, "{} of {}: {}", group.name, owner(group.user), state(group.state))?;
    if !group.why.is_empty() {
        writeln!(out, "  {}", group.why)?;
    }
    let Figures { operations, bytes: size, busy_us, held_us, .. } = group.figures;
    writeln!(out, "  {}", worked(operations, size, busy_us, held_us))?;
    let Minute { over_us, operations, bytes: size, busy_us, held_us } = group.minute;
    if over_us > 0 {
        let over = duration(1e3 * over_us as f64);
        writeln!(out, "    in the last {over}: {}", worked(operations, size, busy_us, held_us))?;
    }
    let mut hosts: std::collections::BTreeMap<&str, Vec<String>> = std::collections::BTreeMap::new();
    for (rank, host) in &group.ranks {
        hosts.entry(host).or_default().push(rank.to_string());
    }
    for (host, ranks) in hosts {
        writeln!(out, "  host {host}: ranks {}", ranks.join(", "))?;
    }
    if let Some(strategy) = &group.strategy {
        writeln!(out, "  strategy {} (epoch {})", group.policy, strategy.epoch)?;
        for reason in &group.reasons {
            writeln!(out, "    {reason}")?;
        }
        for channel in &strategy.channels {
            let ring: Vec<String> = channel.ring.iter().map(ToString::to_string).collect();
            writeln!(out, "  ring {}", ring.join(" → "))?;
            for (position, path) in channel.paths.iter().enumerate() {
                let Some(path) = path else { continue };
                let next = channel.ring[(position + 1) % channel.ring.len()];
                writeln!(out, "    {} → {next} by {path}", channel.ring[position])?;
            }
        }
        for (what, trees) in [("all-reduces", &strategy.all_reduce), ("broadcasts", &strategy.broadcast)] {
            let Some(trees) = trees else { continue };
            let most = trees.most.map_or_else(String::new, |most| format!(" of at most {}", bytes(most)));
            writeln!(out, "  {what}{most} by trees")?;
            let all: f64 = trees.trees.iter().map(|tree| f64::from(tree.weight)).sum();
            for tree in &trees.trees {
                let edges: Vec<String> =
                    tree.edges.iter().map(|(one, other)| format!("{one}-{other}")).collect();
                writeln!(out, "    {:.0} % {}", 100.0 * f64::from(tree.weight) / all, edges.join(" "))?;
            }
        }
        for predicted in &group.predicted {
            let (size, expected) = (bytes(predicted.bytes), duration(1e3 * predicted.us));
            writeln!(out, "  {} of {size}: about {expected} expected", predicted.operation)?;
        }
        writeln!(
            out,
            "  pieces of {}; up to {} by the shortest way",
            bytes(strategy.piece.into()),
            bytes(strategy.small)
        )?;
    }
    Ok(Exit::Success)
}

fn strategy(arguments: &GroupStrategyArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let (group, strategy) = (arguments.group.clone(), arguments.strategy.clone());
    let Answer::Done(view) = ask(&arguments.service, Question::Strategy { group, strategy }, PATIENCE)?
    else {
        return Err(unexpected().into());
    };
    if arguments.service.output == OutputForm::Json {
        json("group", &view)?;
        return Ok(Exit::Success);
    }
    let epoch = view.strategy.map(|strategy| strategy.epoch).unwrap_or_default();
    terminal.note(&format!(
        "group {} changes to {} (epoch {epoch}) after the operations that have begun",
        view.name, arguments.strategy
    ));
    Ok(Exit::Success)
}

/// A measured size, with what follows from it.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    measured: Measured,
    /// Bytes of the buffer divided by the median time, bytes per second.
    algorithm_bandwidth: f64,
    /// The rate of a link of a ring in that time, bytes per second.
    bus_bandwidth: f64,
    /// A plain copy, bytes per second.
    copy_bandwidth: f64,
}

impl Row {
    fn of(measured: Measured) -> Self {
        let per_second = |us: f64| if us > 0.0 { measured.bytes as f64 / us * 1e6 } else { 0.0 };
        let algorithm_bandwidth = per_second(measured.p50_us);
        let ranks = f64::from(measured.ranks);
        Self {
            algorithm_bandwidth,
            bus_bandwidth: algorithm_bandwidth * 2.0 * (ranks - 1.0) / ranks,
            copy_bandwidth: per_second(measured.copy_us),
            measured,
        }
    }
}

/// Runs a verb of `tidemill net bench`.
pub(crate) fn bench(verb: &NetBenchVerb, terminal: &Terminal) -> anyhow::Result<Exit> {
    let NetBenchVerb::Allreduce(arguments) = verb;
    let BenchGroupArguments { ranks, bytes: sizes, seconds, strategy, service } = arguments;
    let mut rows = Vec::new();
    for size in sizes {
        terminal.note(&format!("{ranks} ranks, {} each, for {:.0} s", bytes(*size), seconds.as_secs_f64()));
        let time_ms = u64::try_from(seconds.as_millis()).unwrap_or(u64::MAX);
        let bench = Bench { ranks: *ranks, bytes: *size, time_ms, strategy: strategy.clone() };
        match ask(service, Question::Bench(bench), *seconds + JOINING)? {
            Answer::Measured(measured) => rows.push(Row::of(measured)),
            _ => return Err(unexpected().into()),
        }
    }
    if service.output == OutputForm::Json {
        json("sizes", &rows)?;
        return Ok(Exit::Success);
    }
    let mut table = Table::new(&[
        ("bytes", Side::Right),
        ("hosts", Side::Right),
        ("operations", Side::Right),
        ("p50", Side::Right),
        ("p99", Side::Right),
        ("algorithm at p50", Side::Right),
        ("bus at p50", Side::Right),
        ("plain copy", Side::Right),
    ]);
    for row in &rows {
        table.row([
            bytes(row.measured.bytes),
            row.measured.hosts.to_string(),
            grouped(row.measured.operations),
            duration(1e3 * row.measured.p50_us),
            duration(1e3 * row.measured.p99_us),
            speed(row.algorithm_bandwidth),
            speed(row.bus_bandwidth),
            speed(row.copy_bandwidth),
        ]);
    }
    table.write(&mut answer::out())?;
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_are_those_of_the_median_time() {
        let (p50_us, p99_us, copy_us) = (1e6, 9e6, 1e3);
        let row =
            Row::of(Measured { ranks: 4, hosts: 4, bytes: 1000, operations: 3, p50_us, p99_us, copy_us });
        assert_eq!(
            [row.algorithm_bandwidth, row.bus_bandwidth, row.copy_bandwidth].map(speed),
            ["1.00 kB/s", "1.50 kB/s", "1.00 MB/s"]
        );
    }
}
