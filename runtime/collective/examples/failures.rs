//! Measures after what time the programs of a group learn who failed: a program, a service, a machine that is silent.
//!
//! ```sh
//! cargo run --release -p tidemill-collective --example failures -- target/release/tidemill 50
//! ```
//!
//! Three services of `tidemill net serve` are three hosts, with two programs each; all are processes. In each trial all of them sum
//! buffers, and then a program is killed, or a service, or all processes of a host are stopped without a word (`SIGSTOP`). The time
//! is that until the last of the programs that are left has its error.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a measurement fails by panicking, in real time"
)]
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidemill_collective::client::{Error, Group, JoinOptions, ask};
use tidemill_collective::element::{Element, Reduction};
use tidemill_collective::protocol::{Answer, FailureKind, Listing, Question};

const HOSTS: [&str; 3] = ["a", "b", "c"];
/// Two on each host.
const RANKS: u32 = 6;
const PATIENCE: Duration = Duration::from_secs(60);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["rank", socket, rank] => compute(socket.into(), rank.parse().unwrap()),
        [program, trials] => measure(Path::new(program), trials.parse().unwrap()),
        _ => eprintln!("usage: failures PROGRAM TRIALS, as in `failures target/release/tidemill 50`"),
    }
}

fn microseconds() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()
}

/// A program: reports that it computes, and when and how it failed.
fn compute(socket: PathBuf, rank: u32) {
    let options =
        JoinOptions { service: socket, deadline: PATIENCE, ..JoinOptions::new("trial", rank, RANKS) };
    let group = Group::join(&options).unwrap();
    let buffer = group.buffer(Element::F32, 25_000).unwrap();
    let say = |words: String| {
        let mut out = std::io::stdout();
        writeln!(out, "{words}").and_then(|()| out.flush()).unwrap();
    };
    for round in 0.. {
        let result =
            group.all_reduce(&buffer, Reduction::Sum).and_then(tidemill_collective::client::Pending::wait);
        match result {
            Ok(()) if round == 10 => say("computes".to_owned()),
            Ok(()) => {}
            Err(Error::Failed(failure)) => {
                assert_eq!(failure.kind, FailureKind::Lost, "{failure}");
                return say(format!("{} {} {failure}", microseconds(), failure.host));
            }
            Err(error) => return say(format!("{} - {error}", microseconds())),
        }
    }
}

/// A process that ends with this.
struct Process(Child);

impl Process {
    fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.0), signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.0.wait();
    }
}

struct Host {
    folder: tempfile::TempDir,
    supervisor: Process,
    ranks: Vec<(Process, BufReader<std::process::ChildStdout>)>,
}

impl Host {
    fn start(program: &Path, name: &str, conductor: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(program);
        command.args(["net", "serve", "--listen", "127.0.0.1:0", "--host", name, "--socket"]);
        command.arg(folder.path().join("net.sock")).stderr(Stdio::null());
        command.args(conductor.into_iter().flat_map(|at| ["--groups-at", at]));
        Self { supervisor: Process(command.spawn().unwrap()), folder, ranks: Vec::new() }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("net.sock")
    }

    fn listing(&self) -> Option<Listing> {
        match ask(&self.socket(), Question::List, PATIENCE).ok()? {
            Answer::Listing(listing) => Some(listing),
            _ => None,
        }
    }

    fn join(&mut self, rank: u32) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("rank").arg(self.socket()).arg(rank.to_string());
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(process.stdout.take().unwrap());
        self.ranks.push((Process(process), out));
    }

    /// The process that serves: the child of the supervisor.
    fn service(&self) -> Pid {
        let supervisor = self.supervisor.0.id();
        let children = std::fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children"));
        let children = children.into_iter().chain(tasks(supervisor));
        let first =
            children.flat_map(|text| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).next();
        Pid::from_raw(first.unwrap().parse().unwrap()).unwrap()
    }
}

/// Children that other threads of a process have started.
fn tasks(process: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok()).collect()
}

fn until<T>(mut found: impl FnMut() -> Option<T>) -> T {
    for _ in 0..6000 {
        if let Some(found) = found() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("nothing came of it within 60 s");
}

fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Program,
    Service,
    Silence,
}

/// One trial. Returns the milliseconds until the last one knew.
fn trial(program: &Path, fault: Fault) -> f64 {
    let first = Host::start(program, HOSTS[0], None);
    let address = until(|| first.listing()?.hosts.first()?.address.clone());
    let address = address.strip_prefix("tcp://").unwrap();
    let others = HOSTS[1..].iter().map(|name| Host::start(program, name, Some(address)));
    let mut hosts: Vec<Host> = std::iter::once(first).chain(others).collect();
    until(|| (hosts[0].listing()?.hosts.len() == HOSTS.len()).then_some(()));
    for rank in 0..RANKS {
        hosts[rank as usize % HOSTS.len()].join(rank);
    }
    for (_, out) in hosts.iter_mut().flat_map(|host| &mut host.ranks) {
        assert_eq!(line(out), "computes");
    }
    let mut failed = hosts.pop().unwrap();
    let service = failed.service();
    let begun = microseconds();
    match fault {
        Fault::Program => drop(failed.ranks.remove(0)),
        Fault::Service => kill_process(service, Signal::KILL).unwrap(),
        Fault::Silence => {
            kill_process(service, Signal::STOP).unwrap();
            failed.supervisor.signal(Signal::STOP);
            failed.ranks.iter().for_each(|(rank, _)| rank.signal(Signal::STOP));
        }
    }
    let mut last = 0;
    let mut told = |out: &mut BufReader<std::process::ChildStdout>, names: bool| {
        let line = line(out);
        let mut words = line.splitn(3, ' ');
        let at: u128 = words.next().unwrap().parse().unwrap();
        assert!(!names || words.next() == Some("c"), "{line}");
        last = last.max(at - begun);
    };
    for (_, out) in hosts.iter_mut().flat_map(|host| &mut host.ranks) {
        told(out, true);
    }
    if fault != Fault::Silence {
        failed.ranks.iter_mut().for_each(|(_, out)| told(out, fault == Fault::Program));
    }
    // Before the processes that its end would start again.
    failed.supervisor.signal(Signal::KILL);
    let _ = kill_process(service, Signal::KILL);
    last as f64 / 1e3
}

fn measure(program: &Path, trials: usize) {
    println!("| fault | trials | p50, ms | p99, ms | most, ms |\n|---|--:|--:|--:|--:|");
    for (fault, name) in [
        (Fault::Program, "a program is killed"),
        (Fault::Service, "a service is killed"),
        (Fault::Silence, "a machine is silent"),
    ] {
        let mut times: Vec<f64> = (0..trials).map(|_| trial(program, fault)).collect();
        times.sort_by(f64::total_cmp);
        let at = |part: f64| times[((times.len() as f64 * part).ceil() as usize).clamp(1, times.len()) - 1];
        println!("| {name} | {trials} | {:.1} | {:.1} | {:.1} |", at(0.5), at(0.99), at(1.0));
    }
}
