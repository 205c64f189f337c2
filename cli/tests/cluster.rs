//! A controller and three workers, started as a user does; through the built binary.
use crate::command::{Outcome, Place, command, free_port, root};
pub(crate) use crate::processes::undisturbed;
use crate::processes::{children, gone, kill, place, same};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Processes that end with the test.
pub(crate) struct Cluster {
    pub(crate) place: Place,
    pub(crate) address: String,
    ports: [String; 2],
    /// Limit of the controller's open files; `None`: that of this process.
    files: Option<u32>,
    /// More arguments of the controller.
    pub(crate) options: Vec<String>,
    pub(crate) controller: Option<Child>,
    /// Output of the controller after its address.
    pub(crate) said: Arc<Mutex<String>>,
    pub(crate) workers: Vec<(String, Child)>,
}

/// Returns the command with a limit on open files.
fn limited(command: &Command, files: u32) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("ulimit -n {files}; exec \"$0\" \"$@\"")]).arg(command.get_program());
    limited.args(command.get_args()).current_dir(root());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    limited
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let workers = self.workers.iter_mut().map(|(_, child)| child);
        for child in workers.chain(&mut self.controller) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Cluster {
    /// A controller and workers of these names, all of which have joined.
    pub(crate) fn start(workers: &[&str]) -> Self {
        Self::start_with(workers, &[])
    }

    /// Starts a cluster with more arguments of the controller.
    pub(crate) fn start_with(workers: &[&str], options: &[&str]) -> Self {
        let place = place();
        slow_down(&place);
        Self::start_at(place, workers, options)
    }

    /// Starts a cluster with other files.
    pub(crate) fn start_in(place: Place, workers: &[&str]) -> Self {
        Self::start_at(place, workers, &[])
    }

    pub(crate) fn start_at(place: Place, workers: &[&str], options: &[&str]) -> Self {
        let mut cluster = Self::without_workers(place, options);
        for worker in workers {
            cluster.start_worker(worker);
        }
        cluster.until_joined(workers.len());
        cluster
    }

    /// A controller, in a folder with files.
    pub(crate) fn without_workers(place: Place, options: &[&str]) -> Self {
        Self::without_workers_limited(place, options, None)
    }

    /// Starts a controller with a limit on open files.
    pub(crate) fn start_limited(files: u32) -> Self {
        Self::without_workers_limited(place(), &[], Some(files))
    }

    fn without_workers_limited(place: Place, options: &[&str], files: Option<u32>) -> Self {
        let mut cluster = Self {
            place,
            files,
            address: String::new(),
            ports: ["127.0.0.1:0".to_owned(), format!("127.0.0.1:{}", free_port())],
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            controller: None,
            said: Arc::default(),
            workers: Vec::new(),
        };
        cluster.start_controller();
        let token = cluster.ask(&["token", "--uses", "9"]).expect(0).stdout;
        cluster.place.write("join.token", token);
        cluster
    }

    pub(crate) fn until_joined(&self, count: usize) {
        self.until("all workers are there", |cluster| {
            let found = cluster.ask(&["workers", "--output", "json"]).expect(0).json();
            let alive = found["workers"].as_array().unwrap().iter().filter(|one| one["is_alive"] == true);
            alive.count() == count
        });
    }

    pub(crate) fn start_controller(&mut self) {
        let state = self.place.argument("controller");
        let [listen, hosts] = self.ports.clone();
        let mut controller = command(&[
            "controller",
            "--state",
            &state,
            "--listen",
            &listen,
            "--listen-hosts",
            &hosts,
            "--name",
            "localhost",
        ]);
        controller.args(&self.options);
        let mut child = match self.files {
            Some(files) => limited(&controller, files).spawn().unwrap(),
            None => controller.spawn().unwrap(),
        };
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines.find_map(|line| {
            line.unwrap().split_once("controller at ").map(|(_, address)| address.to_owned())
        });
        self.address = line.expect("it tells its address");
        let port = self.address.rsplit_once(':').unwrap().1.split('/').next().unwrap();
        self.ports[0] = format!("127.0.0.1:{port}");
        let said = Arc::clone(&self.said);
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| said.lock().unwrap().push_str(&(line + "\n")));
        });
        self.controller = Some(child);
    }

    /// Address for the processes of runs.
    pub(crate) fn hosts_address(&self) -> &str {
        &self.ports[1]
    }

    pub(crate) fn start_worker(&mut self, name: &str) {
        self.start_worker_with(name, &["--tier", name]);
    }

    pub(crate) fn start_worker_with(&mut self, name: &str, more: &[&str]) {
        self.start_worker_where(name, more, &[]);
    }

    /// Starts a worker with other variables.
    pub(crate) fn start_worker_where(&mut self, name: &str, more: &[&str], variables: &[(&str, &str)]) {
        let (state, token) = (self.place.argument(&format!("w-{name}")), self.place.argument("join.token"));
        let own = [
            "worker",
            "--join",
            &self.address,
            "--state",
            &state,
            "--token-file",
            &token,
            "--name",
            name,
            "--quiet",
        ];
        let mut command = command(&[&own, more].concat());
        let child = command.envs(variables.iter().copied()).spawn().unwrap();
        self.workers.push((name.to_owned(), child));
    }

    pub(crate) fn ask(&self, arguments: &[&str]) -> Outcome {
        let token = std::fs::read_to_string(self.place.path("controller/admin.token")).unwrap();
        self.ask_as(token.trim(), arguments)
    }

    pub(crate) fn ask_as(&self, token: &str, arguments: &[&str]) -> Outcome {
        let mut command = command(arguments);
        command.env("TIDEMILL_CONTROLLER", &self.address).env("TIDEMILL_TOKEN", token);
        let Output { status, stdout, stderr } = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Outcome { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
    }

    pub(crate) fn run(&self) -> Value {
        self.run_of("spread")
    }

    pub(crate) fn run_of(&self, name: &str) -> Value {
        self.ask(&["status", name, "--output", "json"]).expect(0).json()["run"].clone()
    }

    #[track_caller]
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..600 {
            if is_so(self) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let printed = self.ask(&["events"]).stdout + &self.ask(&["logs", "spread"]).stdout;
        panic!("{what}: not within a minute\n{printed}");
    }

    pub(crate) fn submit(&self) -> Outcome {
        self.submit_with(&[])
    }

    pub(crate) fn submit_with(&self, more: &[&str]) -> Outcome {
        let (workflow, plan) = (self.place.argument("workflow.yaml"), self.place.argument("plan.yaml"));
        self.ask(&[&["submit", &workflow, "--plan", &plan, "--output", "json"], more].concat())
    }

    pub(crate) fn until_arrived(&self, records: u64) {
        self.until(&format!("{records} records"), |cluster| {
            let run = cluster.run();
            run["arrived"].as_u64().unwrap() >= records || run["state"] == "complete"
        });
    }

    pub(crate) fn outputs(&self) -> Vec<(&'static str, Vec<u8>)> {
        let files = [
            ("out/pairs.jsonl", "w-hub/runs/spread/hub"),
            ("out/counted.csv", "w-cloud/runs/spread/cloud"),
            ("out/dead.jsonl", "controller/runs/spread/files"),
        ];
        let read = |folder: &str, file: &str| std::fs::read(self.place.path(folder).join(file)).unwrap();
        files.iter().map(|(file, folder)| (*file, read(folder, file))).collect()
    }
}

pub(crate) fn slow_down(place: &Place) {
    place.change("workflow.yaml", "4000/s", "1000/s");
    place.change("workflow.yaml", "2000/s", "500/s");
}

/// Processes of runs, the controller and an agent are killed; the outputs must not show it.
#[test]
fn a_run_survives_all_that_it_runs_on() {
    let mut cluster = Cluster::start(&["edge", "hub", "cloud"]);
    let first = cluster.submit().expect(0).json();
    assert_eq!(
        cluster.submit().expect(0).json()["run"]["submitted"],
        first["run"]["submitted"],
        "the same run"
    );
    cluster.until_arrived(300);
    let of_hub = children(cluster.workers[1].1.id());
    assert_eq!(of_hub.len(), 1, "{of_hub:?}");
    assert!(kill(of_hub[0]));
    // The file may exceed that already: a new process must exist.
    cluster.until("the hub has a process again", |cluster| {
        let now = children(cluster.workers[1].1.id());
        !now.is_empty() && now != of_hub
    });
    // It has joined when more arrives: the earlier count may exceed any number.
    let arrived = |cluster: &Cluster| cluster.run()["arrived"].as_u64().unwrap();
    cluster.until_arrived(arrived(&cluster) + 1200);
    let mut controller = cluster.controller.take().unwrap();
    controller.kill().unwrap();
    controller.wait().unwrap();
    let before: Vec<u32> = cluster.workers.iter().flat_map(|(_, agent)| children(agent.id())).collect();
    cluster.start_controller();
    cluster.until_arrived(arrived(&cluster) + 1200);
    let after: Vec<u32> = cluster.workers.iter().flat_map(|(_, agent)| children(agent.id())).collect();
    // Processes may have left near the end of the run; no new one was started.
    assert!(after.iter().all(|pid| before.contains(pid)), "{before:?} were not taken over: {after:?}");
    let (name, mut agent) = cluster.workers.remove(0);
    let of_edge = children(agent.id());
    agent.kill().unwrap();
    agent.wait().unwrap();
    assert!(of_edge.iter().all(|pid| gone(*pid)), "a process outlives its agent");
    cluster.start_worker(&name);
    cluster.until("it is complete", |cluster| cluster.run()["state"] == "complete");
    let outputs = cluster.outputs();
    same(&outputs, &undisturbed());
    // The figures include those of the killed controller.
    let lines = |at: usize| outputs[at].1.iter().filter(|byte| **byte == b'\n').count() as u64;
    let run = cluster.run();
    let header = 1;
    assert_eq!(
        (run["arrived"].as_u64(), run["dead_letters"].as_u64()),
        (Some(lines(0) + lines(1) - header), Some(lines(2))),
        "{run}"
    );
    let printed = cluster.ask(&["events"]).expect(0).stdout;
    assert!(printed.contains("run spread is complete"), "{printed}");
    let hosts: Vec<u32> = cluster.workers.iter().flat_map(|(_, agent)| children(agent.id())).collect();
    assert!(hosts.iter().all(|pid| gone(*pid)), "a process outlives its run");
}

/// All counting processes are gone: a complete run still has all its records.
#[test]
#[ignore = "long: make test-long"]
fn a_run_that_lost_controller_and_workers_is_counted_whole() {
    let mut cluster = Cluster::start(&["edge", "hub", "cloud"]);
    cluster.submit().expect(0);
    cluster.until_arrived(600);
    let mut controller = cluster.controller.take().unwrap();
    controller.kill().unwrap();
    controller.wait().unwrap();
    let workers = std::mem::take(&mut cluster.workers);
    let names: Vec<String> = workers
        .into_iter()
        .map(|(name, mut agent)| {
            let hosts = children(agent.id());
            agent.kill().unwrap();
            agent.wait().unwrap();
            assert!(hosts.iter().all(|pid| gone(*pid)), "a process outlives its agent");
            name
        })
        .collect();
    cluster.start_controller();
    names.iter().for_each(|name| cluster.start_worker(name));
    cluster.until("it is complete", |cluster| cluster.run()["state"] == "complete");
    let outputs = cluster.outputs();
    same(&outputs, &undisturbed());
    let lines = |at: usize| outputs[at].1.iter().filter(|byte| **byte == b'\n').count() as u64;
    let (run, header) = (cluster.run(), 1);
    assert_eq!(run["arrived"].as_u64(), Some(lines(0) + lines(1) - header), "{run}");
}

/// The work of a permanently lost worker continues elsewhere.
#[test]
#[ignore = "long: make test-long"]
fn what_a_lost_worker_had_goes_elsewhere() {
    let mut cluster = Cluster::start(&["edge", "hub", "cloud", "spare"]);
    cluster.submit().expect(0);
    cluster.until_arrived(300);
    let (_, mut edge) = cluster.workers.remove(0);
    edge.kill().unwrap();
    edge.wait().unwrap();
    cluster.until("it is complete", |cluster| cluster.run()["state"] == "complete");
    same(&cluster.outputs(), &undisturbed());
    assert_eq!(cluster.run()["placement"]["edge"], "spare");
    let printed = cluster.ask(&["events"]).expect(0).stdout;
    assert!(
        printed.contains("'edge' of run spread moves from worker edge to spare: it is lost"),
        "{printed}"
    );
}

#[test]
fn who_is_not_known_gets_nothing() {
    let cluster = Cluster::start(&["edge"]);
    let refused = |token: &str, text: &str| {
        let printed = cluster.ask_as(token, &["list"]).expect(78);
        assert!(printed.stderr.contains(text), "{}", printed.stderr);
    };
    refused("", "access token");
    let join = cluster.ask(&["token"]).expect(0).stdout;
    refused(join.trim(), "access token");
    let other = Cluster::start(&[]);
    let token = std::fs::read_to_string(other.place.path("controller/admin.token")).unwrap();
    refused(token.trim(), "not known in this cluster");
    // The address has the authority's fingerprint: another controller at that address is rejected.
    let (place, _) = cluster.address.rsplit_once('/').unwrap();
    let (_, fingerprint) = other.address.rsplit_once('/').unwrap();
    let mut command = command(&["list", "--controller", &format!("{place}/{fingerprint}")]);
    let output = command.env("TIDEMILL_TOKEN", token.trim()).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(69) && printed.contains("fingerprint"), "{printed}");
}

#[test]
fn a_run_is_cancelled_and_its_processes_are_gone() {
    let cluster = Cluster::start(&["edge", "hub", "cloud"]);
    // It lasts until it is cancelled, on a busy machine too.
    cluster.slow_down(4);
    cluster.submit().expect(0);
    cluster.until_arrived(100);
    let hosts =
        || -> Vec<u32> { cluster.workers.iter().flat_map(|(_, agent)| children(agent.id())).collect() };
    // A worker that counts as lost on a busy machine starts its process again.
    cluster.until("each role has a process", |_| hosts().len() == 3);
    let hosts = hosts();
    cluster.until("its processes have reported their stages", |cluster| {
        cluster.ask(&["logs", "spread"]).expect(0).stdout.contains("starts with the stages")
    });
    cluster.ask(&["cancel", "spread"]).expect(0);
    cluster.until("it is cancelled", |cluster| cluster.run()["state"] == "cancelled");
    assert!(hosts.iter().all(|pid| gone(*pid)), "a process outlives its run");
}
