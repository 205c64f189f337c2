//! `tidemill source`: the feeds of live sources of running workflows.
use crate::answer;
use crate::arguments::{FeedArguments, FeedsOf, OutputForm, SourceVerb};
use crate::exit::Exit;
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use std::io::{BufRead, Write};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::grouped;
use tidemill_app::listener::Listener;
use tidemill_app::run_control::{self, LocalRun};
use tidemill_engine::FeedTable;
use tidemill_operators::feeds::{FeedOrder, FeedStatus};

/// Longest address that is read from standard input.
const MOST: u64 = 64 << 10;

/// The feeds of a run.
struct Shown {
    /// The name of a run of a cluster, or the process of one on this machine.
    run: String,
    workflow: String,
    feeds: FeedTable,
}

impl From<LocalRun> for Shown {
    fn from(run: LocalRun) -> Self {
        Self { run: run.process.to_string(), workflow: run.workflow, feeds: run.feeds }
    }
}

/// Runs a verb of `tidemill source`.
pub(crate) fn source(verb: &SourceVerb, terminal: &Terminal) -> anyhow::Result<Exit> {
    match verb {
        SourceVerb::Ls(arguments) => list(&arguments.choice, arguments.output, terminal),
        SourceVerb::Add(arguments) => {
            let address = match arguments.address.as_str() {
                "-" => first_line()?,
                address => address.to_owned(),
            };
            let order = FeedOrder::Add { feed: arguments.feed.clone(), address };
            change(&arguments.choice, &arguments.source, &order, arguments.output, terminal)
        }
        SourceVerb::Remove(arguments) => one(arguments, |feed| FeedOrder::Remove { feed }, terminal),
        SourceVerb::Pause(arguments) => one(arguments, |feed| FeedOrder::Pause { feed }, terminal),
        SourceVerb::Resume(arguments) => one(arguments, |feed| FeedOrder::Resume { feed }, terminal),
    }
}

fn one(
    arguments: &FeedArguments,
    order: impl FnOnce(String) -> FeedOrder,
    terminal: &Terminal,
) -> anyhow::Result<Exit> {
    let order = order(arguments.feed.clone());
    change(&arguments.choice, &arguments.source, &order, arguments.output, terminal)
}

fn first_line() -> anyhow::Result<String> {
    use std::io::Read;
    let mut line = String::new();
    std::io::stdin().lock().take(MOST).read_line(&mut line)?;
    match line.trim() {
        "" => Err(Failure::new(Kind::Usage, "no address on standard input")
            .with_help("write it there in one line: `tidemill source add SOURCE FEED - < FILE`")
            .into()),
        line => Ok(line.to_owned()),
    }
}

fn unavailable(process: u32, error: &std::io::Error) -> Failure {
    Failure::new(Kind::Missing, format!("no run in process {process} answers: {error}"))
        .with_help("`tidemill source ls` lists the runs of this machine")
}

/// Returns the runs of this machine, or the one that was named.
pub(crate) fn here(process: Option<u32>) -> anyhow::Result<Vec<LocalRun>> {
    let runs = run_control::runs().map_err(|error| {
        Failure::new(Kind::Unavailable, format!("cannot list the runs of this machine: {error}"))
    })?;
    let Some(process) = process else { return Ok(runs) };
    let run = runs.into_iter().find(|run| run.process == process);
    Ok(vec![run.ok_or_else(|| unavailable(process, &std::io::ErrorKind::NotFound.into()))?])
}

fn list(choice: &FeedsOf, output: OutputForm, terminal: &Terminal) -> anyhow::Result<Exit> {
    #[cfg(feature = "cluster")]
    if let Some(run) = &choice.run {
        let (workflow, feeds) = crate::cluster::feeds::feeds(&choice.of, run)?;
        return show(vec![Shown { run: run.clone(), workflow, feeds }], output, terminal);
    }
    show(here(choice.process)?.into_iter().map(Shown::from).collect(), output, terminal)
}

fn show(runs: Vec<Shown>, output: OutputForm, terminal: &Terminal) -> anyhow::Result<Exit> {
    let mut out = answer::out();
    if output == OutputForm::Json {
        let of_run =
            |run: &Shown| serde_json::json!({"run": run.run, "workflow": run.workflow, "sources": run.feeds});
        let runs: Vec<_> = runs.iter().map(of_run).collect();
        serde_json::to_writer_pretty(&mut out, &serde_json::json!({"version": 1, "ok": true, "runs": runs}))?;
        writeln!(out)?;
        return Ok(Exit::Success);
    }
    if runs.iter().all(|run| run.feeds.values().all(Vec::is_empty)) {
        terminal.note(match runs.is_empty() {
            true => "no workflow runs on this machine; `--run RUN` shows a run of a cluster",
            false => "no running workflow has a live source",
        });
        return Ok(Exit::Success);
    }
    let mut table = Table::new(&[
        ("run", Side::Left),
        ("source", Side::Left),
        ("feed", Side::Left),
        ("state", Side::Left),
        ("for", Side::Right),
        ("received", Side::Right),
        ("emitted", Side::Right),
        ("dropped", Side::Left),
        ("connects", Side::Right),
        ("", Side::Left),
    ]);
    for run in &runs {
        for (source, feeds) in &run.feeds {
            for feed in feeds {
                table.row(row(run, source, feed));
            }
        }
    }
    table.write(&mut out)?;
    Ok(Exit::Success)
}

fn row(run: &Shown, source: &str, feed: &FeedStatus) -> [String; 10] {
    let drops: Vec<String> =
        feed.drops.iter().map(|(reason, count)| format!("{} {reason}", grouped(*count))).collect();
    [
        format!("{} ({})", run.run, run.workflow),
        source.to_owned(),
        feed.feed.clone(),
        feed.state.name().to_owned(),
        format!("{:.0} s", feed.seconds),
        grouped(feed.received),
        grouped(feed.emitted),
        drops.join(", "),
        grouped(feed.connects),
        feed.detail.clone(),
    ]
}

/// Finds the one run of this machine that has the source.
fn with_source(choice: &FeedsOf, source: &str) -> anyhow::Result<u32> {
    let runs = here(choice.process)?;
    let mut with: Vec<&LocalRun> = runs.iter().filter(|run| run.feeds.contains_key(source)).collect();
    match (with.pop(), with.is_empty()) {
        (Some(run), true) => Ok(run.process),
        (Some(last), false) => {
            let processes: Vec<String> =
                with.iter().chain([&last]).map(|run| format!("{} ({})", run.process, run.workflow)).collect();
            Err(Failure::new(
                Kind::Usage,
                format!("several runs have a live source `{source}`: {}", processes.join(", ")),
            )
            .with_help("name one: `--process PID`")
            .into())
        }
        (None, _) => {
            let known: Vec<&str> = runs.iter().flat_map(|run| run.feeds.keys().map(String::as_str)).collect();
            let help = match known.is_empty() {
                true => {
                    "no run of this machine has a live source; a run of a cluster is named by `--run RUN`"
                        .to_owned()
                }
                false => format!("live sources of this machine: {}", known.join(", ")),
            };
            Err(Failure::new(Kind::Missing, format!("no run of this machine has a live source `{source}`"))
                .with_help(help)
                .into())
        }
    }
}

fn change(
    choice: &FeedsOf,
    source: &str,
    order: &FeedOrder,
    output: OutputForm,
    terminal: &Terminal,
) -> anyhow::Result<Exit> {
    #[cfg(feature = "cluster")]
    if let Some(run) = &choice.run {
        let (workflow, feeds) = crate::cluster::feeds::order(&choice.of, run, source, order)?;
        return show_one(Shown { run: run.clone(), workflow, feeds }, source, output, terminal);
    }
    let process = with_source(choice, source)?;
    let answer = run_control::order(process, source, order).map_err(|error| unavailable(process, &error))?;
    let run = answer.map_err(|why| Failure::new(Kind::No, why))?;
    show_one(run.into(), source, output, terminal)
}

/// Shows the source that was changed.
fn show_one(mut run: Shown, source: &str, output: OutputForm, terminal: &Terminal) -> anyhow::Result<Exit> {
    run.feeds.retain(|name, _| name == source);
    show(vec![run], output, terminal)
}
