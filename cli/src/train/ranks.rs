//! The ranks of a training on this machine: each is a process, and this one serves their group.
use super::aggregation;
use super::event::Event;
use super::preparation::Prepared;
use super::report::Report;
use crate::answer;
use crate::arguments::{OutputForm, TrainArguments};
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use crate::status_line::StatusLine;
use crate::terminal::Terminal;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::{grouped, seconds};
use tidemill_app::listener::Listener;
use tidemill_collective::service::{Collectives, Options as ServiceOptions};
use tidemill_collective::topology::Host;

/// Longest wait without a look at signals.
const LOOK: Duration = Duration::from_millis(100);
/// Most ranks on one machine: each is a process that has all examples.
const MOST_RANKS: u32 = 64;
/// Times that a rank is started again.
const MOST_RESTARTS: usize = 3;
/// Bytes of the last words of a rank that are kept.
const WORDS: u64 = 8 << 10;

/// Something that a rank said, or its end.
enum Heard {
    Event(Event),
    /// Its standard error, once it has ended.
    Words(u32, String),
    /// It has closed its output.
    Closed(u32),
}

/// The processes; those that still run end with this.
struct Children(Vec<Option<Child>>);

impl Children {
    /// Asks all for an end.
    fn ask(&self) {
        for child in self.0.iter().flatten() {
            let _ = kill_process(Pid::from_child(child), Signal::TERM); // it may have ended
        }
    }

    /// Ends all at once.
    fn stop(&mut self) {
        for child in self.0.iter_mut().flatten() {
            let _ = child.kill(); // it may have ended by itself
        }
    }

    /// Ends all but these.
    fn keep(&mut self, members: &[u32]) {
        for (rank, child) in self.0.iter_mut().enumerate() {
            if !members.iter().any(|member| *member as usize == rank)
                && let Some(child) = child
            {
                let _ = child.kill(); // it may have ended by itself
            }
        }
    }

    fn end(&mut self, rank: u32) -> Option<ExitStatus> {
        self.0.get_mut(rank as usize)?.take()?.wait().ok()
    }

    fn count(&self) -> usize {
        self.0.iter().flatten().count()
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.stop();
        for child in self.0.iter_mut().flatten() {
            let _ = child.wait();
        }
    }
}

/// Ends of the ranks.
#[derive(Default)]
struct Ended {
    report: Option<Report>,
    /// The training ended early, in words.
    early: Option<String>,
    /// Ranks that failed, with their last words.
    failed: Vec<(u32, String)>,
    is_asked: bool,
    /// Ranks that have agreed last; none: they have not found each other yet.
    members: Vec<u32>,
    /// Ranks that are lost, and not back.
    lost: BTreeSet<u32>,
    /// The job at the aggregators; none: the ranks add up the gradients.
    shared: Option<String>,
}

/// Starts the ranks, shows what they say, and waits for their end.
pub(super) fn start(
    arguments: &TrainArguments,
    prepared: &Prepared,
    terminal: &Terminal,
) -> anyhow::Result<Exit> {
    if prepared.ranks > MOST_RANKS {
        let text = format!("{} ranks on one machine: {MOST_RANKS} are the most", prepared.ranks);
        let help =
            format!("write `--ranks N` with a number up to {MOST_RANKS}, or queue it: `tidemill job submit`");
        return Err(Failure::new(Kind::Usage, text).with_help(help).into());
    }
    // Mistakes are said once, and not by each rank.
    prepared.member(&super::preparation::folder_of(&arguments.file))?;
    aggregation::check(prepared)?;
    let out = arguments.out.clone().unwrap_or_else(|| PathBuf::from(&prepared.name));
    let failed = |path: &Path, error: std::io::Error| {
        Failure::new(Kind::Unavailable, format!("{}: {error}", path.display()))
    };
    fs::create_dir_all(&out).map_err(|error| failed(&out, error))?;
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("net.sock");
    let host = Host { name: "here".to_owned(), ..Host::default() };
    let service = Collectives::start(ServiceOptions::new(socket.clone(), host))
        .map_err(|error| Failure::new(Kind::Unavailable, error.to_string()))?;
    let interrupt = Interrupt::listen()?;
    let (sender, heard) = channel();
    let start = |rank: u32, is_again: bool| {
        child(arguments, prepared, (rank, is_again), &socket, &out, &sender).map_err(|error| {
            Failure::new(Kind::Unavailable, format!("rank {rank} cannot be started: {error}"))
        })
    };
    let mut children = Children(Vec::new());
    for rank in 0..prepared.ranks {
        children.0.push(Some(start(rank, false)?));
    }
    interrupt.is_watched();
    let again = |rank, is_shared| arguments.restart.then(|| start(rank, is_shared).ok()).flatten();
    let ended = listen(&heard, &mut children, prepared, &interrupt, terminal, &again);
    drop(children);
    drop(service);
    finish(arguments, prepared, ended, &out, terminal)
}

fn child(
    arguments: &TrainArguments,
    prepared: &Prepared,
    (rank, is_again): (u32, bool),
    socket: &Path,
    out: &Path,
    sender: &Sender<Heard>,
) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("train").arg(&arguments.file).arg("--out").arg(out).args(["--output", "json"]);
    command.env("TIDEMILL_NET", socket).env("TIDEMILL_GROUP", "training");
    command.env("TIDEMILL_RANK", rank.to_string()).env("TIDEMILL_SIZE", prepared.ranks.to_string());
    command.env(aggregation::SOCKET, std::path::absolute(aggregation::socket())?);
    match is_again {
        true => command.env(aggregation::AGAIN, "1"),
        false => command.env_remove(aggregation::AGAIN),
    };
    match arguments.checkpoint.as_ref().map(|folder| folder.join(rank.to_string())) {
        Some(folder) => {
            fs::create_dir_all(&folder)?;
            drop(fs::remove_file(folder.join("RESUME"))); // of the last start
            command.env("TIDEMILL_CHECKPOINT", folder);
        }
        None => {
            command.env_remove("TIDEMILL_CHECKPOINT");
        }
    }
    // Ctrl-C of a terminal reaches this process alone, which asks the ranks once.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = tidemill_machine::children::start(command, Vec::new())?;
    if let Some(output) = child.stdout.take() {
        let sender = sender.clone();
        std::thread::Builder::new().name("tm-rank-out".into()).spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // Other lines are the answer of a rank that fails, whose words come on standard error, too.
                if let Ok(event) = serde_json::from_str(&line) {
                    let _ = sender.send(Heard::Event(event)); // the other end lives longer
                }
            }
            let _ = sender.send(Heard::Closed(rank));
        })?;
    }
    if let Some(errors) = child.stderr.take() {
        let sender = sender.clone();
        std::thread::Builder::new().name("tm-rank-err".into()).spawn(move || {
            let mut words = String::new();
            let mut errors = BufReader::new(errors);
            let _ = (&mut errors).take(WORDS).read_to_string(&mut words); // words that are no text are left out
            let _ = std::io::copy(&mut errors, &mut std::io::sink());
            let _ = sender.send(Heard::Words(rank, words));
        })?;
    }
    Ok(child)
}

/// Listens until all ranks have ended; `again` starts a lost one again.
fn listen(
    heard: &Receiver<Heard>,
    children: &mut Children,
    prepared: &Prepared,
    interrupt: &Interrupt,
    terminal: &Terminal,
    again: &dyn Fn(u32, bool) -> Option<Child>,
) -> Ended {
    let mut ended = Ended::default();
    let mut line = StatusLine::new(*terminal);
    let mut words: Vec<(u32, String)> = Vec::new();
    // Each process closes two outputs.
    let mut open = 2 * children.count();
    while open > 0 {
        if interrupt.is_wanted() && !ended.is_asked {
            ended.is_asked = true;
            children.ask();
        }
        match heard.recv_timeout(LOOK) {
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
            Ok(Heard::Words(rank, text)) => {
                open -= 1;
                words.push((rank, text));
            }
            Ok(Heard::Closed(rank)) => {
                open -= 1;
                let status = children.end(rank);
                if ended.is_asked && ended.shared.is_some() && status.is_none_or(|of| of.code().is_none()) {
                    children.stop(); // they would wait for it
                }
                if !status.is_some_and(|status| status.success()) && !ended.is_asked && ended.report.is_none()
                {
                    let how = status.map_or_else(|| "it ended".to_owned(), |status| status.to_string());
                    let restarted = ended.lose(rank, how, children, prepared, terminal, again);
                    open += if restarted { 2 } else { 0 };
                }
            }
            Ok(Heard::Event(event)) => match event {
                Event::Step { step, steps, loss, examples_per_second } => line.show(|elapsed| {
                    let examples = (steps - step) as f64 * prepared.options.batch as f64;
                    format!(
                        "step {} of {}, loss {loss:.4}, {} examples/s, {}, about {} left",
                        grouped(step),
                        grouped(steps),
                        grouped(examples_per_second.round() as u64),
                        seconds(elapsed),
                        seconds(examples / examples_per_second.max(1e-9))
                    )
                }),
                Event::Done(report) => {
                    ended.report = Some(*report);
                    // Ranks that wait to take part come too late.
                    let members = std::mem::take(&mut ended.members);
                    children.keep(&members);
                }
                Event::Asked { .. } | Event::TooFew { .. } | Event::Apart { .. } => {
                    ended.early = event.words()
                }
                Event::Chosen(ref choice) => {
                    ended.shared.clone_from(&choice.job);
                    event.words().iter().for_each(|words| terminal.note(words));
                }
                Event::Regrouped(ref agreement) => {
                    ended.members.clone_from(&agreement.ranks);
                    ended.lost.retain(|rank| !agreement.ranks.contains(rank));
                    event.words().iter().for_each(|words| terminal.note(words));
                }
                Event::Saved { .. } | Event::Lost { .. } => {}
            },
        }
    }
    line.finish();
    for (rank, how) in &mut ended.failed {
        if let Some((_, text)) = words.iter().find(|(of, text)| of == rank && !text.trim().is_empty()) {
            text.trim().clone_into(how);
        }
    }
    ended
}

impl Ended {
    /// Notes that a rank is lost. Returns whether it was started again.
    fn lose(
        &mut self,
        rank: u32,
        how: String,
        children: &mut Children,
        prepared: &Prepared,
        terminal: &Terminal,
        again: &dyn Fn(u32, bool) -> Option<Child>,
    ) -> bool {
        let starts = self.failed.iter().filter(|(of, _)| *of == rank).count();
        self.failed.push((rank, how.clone()));
        if self.members.is_empty() {
            // The others wait for it.
            children.stop();
            return false;
        }
        // The others wait for it, and do not continue without it.
        let is_shared = self.shared.is_some();
        if !is_shared {
            self.lost.insert(rank);
        }
        let is_end = !is_shared && (self.lost.len() > prepared.replicas.survive || children.count() == 0);
        let child = (!is_end && starts < MOST_RESTARTS).then(|| again(rank, is_shared)).flatten();
        if is_end || is_shared && child.is_none() {
            if is_shared {
                children.stop();
            }
            terminal.warning(&format!("rank {rank} is lost ({how}): the training ends"));
            return false;
        }
        let what = match (&child, is_shared) {
            (Some(_), true) => "the others wait, and it is started again",
            (Some(_), false) => "the others continue, and it is started again",
            (None, _) => "the others continue",
        };
        terminal.warning(&format!("rank {rank} is lost ({how}): {what}"));
        let is_restarted = child.is_some();
        if let Some(place) = children.0.get_mut(rank as usize) {
            *place = child;
        }
        is_restarted
    }
}

fn finish(
    arguments: &TrainArguments,
    prepared: &Prepared,
    ended: Ended,
    out: &Path,
    terminal: &Terminal,
) -> anyhow::Result<Exit> {
    if let Some(report) = ended.report {
        let mut stdout = answer::out();
        match arguments.output {
            OutputForm::Json => {
                let document = serde_json::json!({"version": 1, "ok": true, "report": report});
                serde_json::to_writer_pretty(&mut stdout, &document)?;
                writeln!(stdout)?;
            }
            OutputForm::Table => writeln!(stdout, "{}", report.words())?,
        }
        terminal.note(&format!("wrote {}", out.join(super::report::REPORT).display()));
        return Ok(Exit::Success);
    }
    let again = match &arguments.checkpoint {
        Some(folder) => format!("the same command continues from {}", folder.display()),
        None => "write `--checkpoint DIR` to be able to continue".to_owned(),
    };
    if ended.is_asked {
        let text = ended.early.unwrap_or_else(|| "ends early".to_owned());
        terminal.note(&format!("{text}; {again}"));
        return Ok(Exit::Interrupted);
    }
    let help = match ended.shared.filter(|_| !ended.members.is_empty()) {
        Some(job) => format!(
            "the same command continues where the aggregators are, while `tidemill agg jobs` lists {job}; `tidemill agg remove {job}` ends it"
        ),
        None => format!("{again}; it survives {} lost ranks", prepared.replicas.survive),
    };
    // A rank that failed before they had agreed is the reason why the others end.
    let early = ended.early.filter(|_| !ended.members.is_empty() || ended.failed.is_empty());
    let text = match (early, ended.failed.first()) {
        (Some(text), _) => text,
        (None, Some((rank, how))) if ended.failed.len() > 1 => {
            let count = ended.failed.len();
            format!("{count} of {} ranks failed; rank {rank}: {how}", prepared.ranks)
        }
        (None, Some((rank, how))) => format!("rank {rank} failed: {how}"),
        (None, None) => "all ranks ended without a result".to_owned(),
    };
    Err(Failure::new(Kind::Unavailable, text).with_help(help).into())
}
