//! Tests with real control groups and processes. If this user may create none, each test prints `skipped:` and ends.
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tidemill_elastic::agent::{Agent, Options};
use tidemill_elastic::cgroup::{Hierarchy, Version};
use tidemill_elastic::confinement::{Confinement, RunLimits};
use tidemill_elastic::rules::MemoryRules;

const MEBIBYTE: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(40);

/// Groups of one test, removed with it.
struct Place(Confinement);

impl Drop for Place {
    fn drop(&mut self) {
        let until = now() + Duration::from_secs(5);
        while !self.0.remove() && now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Python that waits for a line before it starts.
    fn start(program: &str) -> Self {
        let text = format!("import sys, time\nsys.stdin.readline()\n{program}");
        let child = Command::new("python3")
            .args(["-c", &text])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn begin(&mut self) {
        use std::io::Write;
        self.0.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }

    fn time(&self) -> Duration {
        tidemill_machine::Process::of(self.0.id()).time().unwrap_or_default()
    }
}

#[expect(clippy::disallowed_methods, reason = "processes of the system run in real time")]
fn now() -> Instant {
    Instant::now()
}

/// `None`, with a message, if this machine allows no groups.
fn place(name: &str) -> Option<Place> {
    match Confinement::open(
        Path::new(Hierarchy::ROOT),
        &format!("tidemill-test-{name}-{}", std::process::id()),
    ) {
        Ok(confinement) => Some(Place(confinement)),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

fn agent(place: &Place, processes: &[(&str, &Process)], options: Options) -> Agent {
    let groups = processes.iter().map(|(name, process)| {
        let group = place.0.admit("run", name, process.0.id(), Default::default()).unwrap();
        ((*name).to_owned(), group)
    });
    let groups = groups.collect();
    let mut agent = Agent::new(options);
    agent.attach(groups, &mut |_| {}).unwrap();
    agent
}

fn run_until(agent: &mut Agent, what: &str, mut is_so: impl FnMut(&mut Agent) -> bool) {
    let until = now() + PATIENCE;
    let mut reached = false;
    let seen = std::cell::Cell::new(false);
    agent.run(
        || seen.get() || now() > until,
        |agent| {
            reached = is_so(agent);
            seen.set(reached);
        },
    );
    assert!(reached, "{what}: {:#?}", agent.snapshot());
}

const BUSY: &str = "while True: pass";
const IDLE: &str = "time.sleep(1000)";

#[test]
fn processor_time_goes_to_the_one_that_works_and_all_is_put_back() {
    let Some(place) = place("cpu") else { return };
    let (mut busy, mut idle) = (Process::start(BUSY), Process::start(IDLE));
    let mut agent = agent(&place, &[("busy", &busy), ("idle", &idle)], Options::new(0.8, 400 * MEBIBYTE));
    busy.begin();
    idle.begin();
    run_until(&mut agent, "the busy one has what the idle one leaves", |agent| {
        let members = agent.snapshot().members;
        members[0].processors >= 0.65 && members[1].processors <= 0.15
    });
    let found: Vec<_> = agent.found().into_values().collect();
    agent.restore();
    for (path, text) in found.iter().flat_map(|found| &found.files) {
        let now = std::fs::read_to_string(path).unwrap();
        let now = now.lines().next().unwrap_or_default().trim_start_matches("oom_kill_disable ");
        assert_eq!(now.trim(), text, "{}", path.display());
    }
}

#[test]
fn a_process_that_needs_more_memory_than_its_limit_gets_it_and_is_not_ended() {
    let Some(place) = place("memory") else { return };
    let program = "
blocks = []
for _ in range(40):
    blocks.append(b'x' * (5 << 20))
print('done', flush=True)
time.sleep(1000)";
    let (mut grows, mut idle) = (Process::start(program), Process::start(IDLE));
    // Without grants ahead, so that it does run out.
    let memory_rules = MemoryRules { margin: 10 * MEBIBYTE, ahead: 0, grant: 20 * MEBIBYTE, handed_out: 70 };
    let options = Options { memory_rules, ..Options::new(4.0, 400 * MEBIBYTE) };
    let mut agent = agent(&place, &[("grows", &grows), ("idle", &idle)], options);
    grows.begin();
    idle.begin();
    run_until(&mut agent, "it has 200 MiB", |agent| {
        let of = agent.snapshot().members[0].clone();
        assert_eq!(of.killed, 0, "{of:?}");
        of.grants >= 3 && of.used_memory_bytes > 195 * MEBIBYTE
    });
    assert!(grows.0.try_wait().unwrap().is_none(), "it lives");
}

#[test]
#[ignore = "long: make test-long"]
fn when_nothing_is_left_under_the_cap_exactly_one_process_is_ended() {
    let Some(place) = place("kill") else { return };
    if place.0.version() == Version::Two {
        return eprintln!("skipped: with version 2, when the kernel ends a process is its own affair");
    }
    let program = "
blocks = []
for _ in range(80):
    blocks.append(b'x' * (5 << 20))
time.sleep(1000)";
    let (mut grows, mut idle) = (Process::start(program), Process::start(IDLE));
    let mut agent = agent(&place, &[("grows", &grows), ("idle", &idle)], Options::new(4.0, 150 * MEBIBYTE));
    grows.begin();
    idle.begin();
    run_until(&mut agent, "it is ended", |_| grows.0.try_wait().unwrap().is_some());
    agent.look();
    let members = agent.snapshot().members;
    assert_eq!((members[0].killed, members[1].killed), (1, 0), "{members:?}");
    assert!(members[0].grants > 0 && idle.0.try_wait().unwrap().is_none());
}

#[test]
#[ignore = "long: make test-long"]
fn a_greedy_run_takes_no_time_from_another_one() {
    let Some(place) = place("greedy") else { return };
    let admit = |run: &str, name: &str, process: &Process, limits| {
        place.0.admit(run, name, process.0.id(), (limits, RunLimits::default())).unwrap();
    };
    // Eight processes against one. Both runs get equal shares of contended processors; without groups the one would get a
    // ninth.
    let mut greedy: Vec<Process> = (0..8).map(|_| Process::start(BUSY)).collect();
    let mut modest = Process::start(BUSY);
    for (index, process) in greedy.iter().enumerate() {
        admit("greedy", &format!("p{index}"), process, RunLimits::default());
    }
    let half = RunLimits { processors: Some(0.5), memory: Some(200 * MEBIBYTE) };
    admit("modest", "p", &modest, RunLimits::default());
    let pin = |process: &Process| {
        let number = process.0.id().to_string();
        let done = Command::new("taskset").args(["-pc", "0", &number]).stdout(Stdio::null()).status();
        done.is_ok_and(|status| status.success())
    };
    if !greedy.iter().chain([&modest]).all(pin) {
        return eprintln!("skipped: there is no `taskset`: apt-get install util-linux");
    }
    greedy.iter_mut().for_each(Process::begin);
    modest.begin();
    let times = |greedy: &[Process], modest: &Process| {
        (greedy.iter().map(Process::time).sum::<Duration>(), modest.time())
    };
    let measure = |greedy: &[Process]| {
        let before = times(greedy, &modest);
        let until = now() + PATIENCE;
        loop {
            std::thread::sleep(Duration::from_millis(100));
            let after = times(greedy, &modest);
            let (all, one) = (after.0 - before.0, after.1 - before.1);
            if all + one >= Duration::from_millis(1500) || now() > until {
                return one.as_secs_f64() / (all + one).as_secs_f64();
            }
        }
    };
    let part = measure(&greedy);
    assert!((0.35..=0.65).contains(&part), "equal weights: {part}");
    // And with a limit, at most that.
    admit("greedy", "p0", &greedy[0], half);
    let before = (now(), times(&greedy, &modest).0);
    while times(&greedy, &modest).0 - before.1 < Duration::from_millis(600) && now() - before.0 < PATIENCE {
        std::thread::sleep(Duration::from_millis(50));
    }
    let processors = (times(&greedy, &modest).0 - before.1).as_secs_f64() / (now() - before.0).as_secs_f64();
    assert!(processors < 0.6, "at most half a processor: {processors}");
}
