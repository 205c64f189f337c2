//! Jobs of the queue: gangs, checkpoints, preemption, and the deaths of the controller and of agents; through the built binary.
mod worker;

use crate::cluster::Cluster;
use crate::processes::{children, gone};
use serde_json::Value;
use std::path::PathBuf;

/// Counts in steps, and says each with its start. Goes on from its checkpoint, and ends when `go` lies in the folder of the test.
const COUNT: &str = r#"#!/bin/sh
n=0
if [ -f "$TIDEMILL_CHECKPOINT/n" ]; then n=$(cat "$TIDEMILL_CHECKPOINT/n"); fi
echo "begins at $n as $TIDEMILL_RANK of $TIDEMILL_SIZE, start $TIDEMILL_INCARNATION"
keep() { rm -f "$TIDEMILL_CHECKPOINT/READY"; echo $n > "$TIDEMILL_CHECKPOINT/n"; echo 0.5 > "$TIDEMILL_CHECKPOINT/READY"; }
stop=
trap 'stop=1' TERM
while [ ! -f "$1/go" ]; do
  n=$((n + 1))
  # One line for each step: two tasks at once would write a step twice.
  echo "$TIDEMILL_RANK $n $TIDEMILL_INCARNATION" >> "$1/steps"
  if [ $((n % 5)) = 0 ]; then keep; fi
  sleep 0.1
  if [ $stop ]; then
    sleep "$LINGER"
    if [ -n "$(ls "$1/w-one/runs" 2>/dev/null)" ]; then touch "$1/overlap"; fi
    keep; touch "$TIDEMILL_CHECKPOINT/RESUME"; exit 0
  fi
done
echo "ends at $n"
echo $n > result.txt
"#;

impl Cluster {
    /// A controller with these options, workers of one processor each, and the program that counts.
    pub(crate) fn with_jobs(workers: &[&str], options: &[&str]) -> Self {
        let mut cluster = Self::without_workers(crate::command::Place::empty("jobs"), options);
        cluster.place.write("count.sh", COUNT);
        for worker in workers {
            cluster.start_small(worker);
        }
        cluster.until_joined(workers.len());
        cluster
    }

    pub(crate) fn start_small(&mut self, name: &str) {
        self.start_worker_with(name, &["--processors", "1", "--memory", "1GiB"]);
    }

    /// Queues the program that counts; the name of the job.
    pub(crate) fn submit_count(&self, more: &str) -> String {
        self.submit_lingering("0", more)
    }

    /// As [`Cluster::submit_count`]; the task needs this many seconds to stop.
    fn submit_lingering(&self, linger: &str, more: &str) -> String {
        let folder = self.place.path("");
        let text = format!(
            "version: 1\njob: {{name: count, command: [./count.sh, '{}'], resources: {{cores: 1, memory: 64MB}}, \
             environment: {{LINGER: '{linger}'}}, results: [result.txt]{more}}}\n",
            folder.display()
        );
        self.place.write("job.yaml", text);
        let job = self.ask(&["job", "submit", &self.place.argument("job.yaml")]).expect(0).stdout;
        job.trim().to_owned()
    }

    pub(crate) fn job(&self, job: &str) -> Value {
        self.ask(&["job", "status", job, "--output", "json"]).expect(0).json()["job"].clone()
    }

    #[track_caller]
    pub(crate) fn until_job(&self, job: &str, state: &str) {
        for _ in 0..900 {
            let found = self.job(job);
            if found["state"] == state {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let text = self.ask(&["job", "explain", job]).stdout + &self.ask(&["job", "logs", job]).stdout;
        panic!("{job} is not {state}\n{text}");
    }

    pub(crate) fn job_log(&self, job: &str) -> String {
        self.ask(&["job", "logs", job]).expect(0).stdout
    }

    /// Rank, step and start of each step so far.
    pub(crate) fn steps(&self) -> Vec<(u32, u64, u64)> {
        let text = std::fs::read_to_string(self.place.path("steps")).unwrap_or_default();
        let whole = text.lines().filter(|line| line.split(' ').count() == 3);
        let parsed = whole.map(|line| {
            let mut parts = line.split(' ').map(|part| part.parse::<u64>().unwrap());
            let rank = u32::try_from(parts.next().unwrap()).unwrap();
            (rank, parts.next().unwrap(), parts.next().unwrap())
        });
        parsed.collect()
    }

    #[track_caller]
    pub(crate) fn until_steps(&self, count: usize) {
        self.until(&format!("{count} steps"), |cluster| cluster.steps().len() >= count);
    }

    pub(crate) fn let_go(&self) {
        self.place.write("go", "");
    }

    fn worker_of(&self, job: &str) -> String {
        self.job(job)["tasks"][0]["worker"].as_str().unwrap_or_default().to_owned()
    }

    /// The agent of a worker, which is taken out of the cluster's list.
    fn take_agent(&mut self, name: &str) -> std::process::Child {
        let at = self.workers.iter().position(|(other, _)| other == name).unwrap();
        self.workers.remove(at).1
    }
}

/// Starts of a job never overlap: the steps of one come before those of the next.
fn in_order(steps: &[(u32, u64, u64)]) {
    let mut last = std::collections::BTreeMap::new();
    for (rank, step, start) in steps {
        let (before, known) = last.insert(*rank, (*step, *start)).unwrap_or((0, *start));
        assert!(*start >= known, "start {known} of task {rank} went on beside {start}: {steps:?}");
        assert!(*start > known || *step == before + 1 || before == 0, "{steps:?}");
    }
}

#[test]
fn a_job_runs_and_its_result_is_fetched() {
    let cluster = Cluster::with_jobs(&["one"], &[]);
    let job = cluster.submit_count("");
    cluster.until_steps(3);
    let listed = cluster.ask(&["job", "queue"]).expect(0).stdout;
    for words in ["count-1", "admin", "command", "running", "one"] {
        assert!(listed.contains(words), "`{words}` is not in\n{listed}");
    }
    let refused = cluster.ask(&["job", "fetch", &job]).expect(66).stderr;
    assert!(refused.contains("left no files") && refused.contains("wait for its end"), "{refused}");
    let lonely = children(cluster.workers[0].1.id());
    assert_eq!(lonely.len(), 1, "{lonely:?}");
    cluster.let_go();
    cluster.until_job(&job, "complete");
    assert!(lonely.iter().all(|pid| gone(*pid)), "a process outlives its job");
    let log = cluster.job_log(&job);
    assert!(log.contains("task 0 on one begins at 0 as 0 of 1, start 1") && log.contains("ends at"), "{log}");
    let out = cluster.place.argument("out");
    cluster.ask(&["job", "fetch", &job, "result.txt", "--out", &out]).expect(0);
    let last = cluster.steps().last().unwrap().1;
    assert_eq!(
        std::fs::read_to_string(cluster.place.path("out/result.txt")).unwrap().trim(),
        last.to_string()
    );
    cluster.until("its folder is removed", |cluster| {
        std::fs::read_dir(cluster.place.path("w-one/jobs")).is_ok_and(|mut left| left.next().is_none())
    });
    cluster.ask(&["job", "status", "none-7"]).expect(66);
}

#[test]
fn a_gang_starts_whole_and_waits_until_it_can() {
    let mut cluster = Cluster::with_jobs(&["one"], &[]);
    let job = cluster.submit_count(", gang: 2");
    cluster.until("it says why it waits", |cluster| {
        cluster.job(&job)["because"].as_str().is_some_and(|text| text.contains("needs 2 tasks at once"))
    });
    assert!(cluster.steps().is_empty());
    cluster.start_small("two");
    cluster.until_job(&job, "running");
    cluster.until("both run", |cluster| {
        let ranks: std::collections::BTreeSet<u32> = cluster.steps().iter().map(|step| step.0).collect();
        ranks.len() == 2
    });
    let explained = cluster.ask(&["job", "explain", &job]).expect(0).stdout;
    assert!(explained.contains("all tasks fit") && explained.contains("submits job count-1"), "{explained}");
    cluster.ask(&["job", "cancel", &job]).expect(0);
    cluster.until_job(&job, "cancelled");
    // A command that does not exist starts nowhere, and says so.
    let token = std::fs::read_to_string(cluster.place.path("controller/admin.token")).unwrap();
    let failed =
        cluster.ask_as(token.trim(), &["job", "submit", "--follow", "--", "no-such-program"]).expect(1);
    assert_eq!(failed.stdout.matches("cannot start `no-such-program`").count(), 1, "{}", failed.stdout);
    assert!(failed.stdout.contains("list it under `files`"), "{}", failed.stdout);
}

/// A drained worker gives its job away, with the checkpoint.
#[test]
fn a_preempted_job_continues_elsewhere_from_its_checkpoint() {
    let cluster = Cluster::with_jobs(&["one", "two"], &[]);
    let job = cluster.submit_count("");
    cluster.until_steps(7);
    let first = cluster.worker_of(&job);
    cluster.ask(&["drain", &first]).expect(0);
    cluster.until("it runs elsewhere", |cluster| {
        let worker = cluster.worker_of(&job);
        cluster.job(&job)["state"] == "running" && !worker.is_empty() && worker != first
    });
    let before = cluster.steps().len();
    cluster.until_steps(before + 3);
    cluster.let_go();
    cluster.until_job(&job, "complete");
    let steps = cluster.steps();
    in_order(&steps);
    assert_eq!(steps.last().unwrap().2, 2, "it did not start again: {steps:?}");
    // It wrote its checkpoint when it was asked to: no step is lost or repeated.
    let numbers: Vec<u64> = steps.iter().map(|step| step.1).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    assert_eq!(cluster.job(&job)["preemptions"], 1);
    let explained = cluster.ask(&["job", "explain", &job]).expect(0).stdout;
    assert!(explained.contains("is preempted") && explained.contains(&first), "{explained}");
}

/// Killed without warning; its agents keep the tasks and report them to the next one.
#[test]
fn a_controller_that_dies_loses_no_job_and_runs_none_twice() {
    let mut cluster = Cluster::with_jobs(&["one"], &[]);
    let job = cluster.submit_count("");
    let waiting = cluster.submit_count("");
    cluster.until_steps(3);
    let process = children(cluster.workers[0].1.id());
    let mut controller = cluster.controller.take().unwrap();
    controller.kill().unwrap();
    controller.wait().unwrap();
    let before = cluster.steps().len();
    cluster.until_steps_alone(before + 5);
    cluster.start_controller();
    cluster
        .until("the worker is back", |cluster| cluster.ask(&["workers"]).expect(0).stdout.contains("alive"));
    assert_eq!(
        (cluster.job(&job)["state"].clone(), cluster.job(&waiting)["state"].clone()),
        ("running".into(), "waiting".into())
    );
    assert_eq!(children(cluster.workers[0].1.id()), process, "the task was not taken over");
    cluster.let_go();
    cluster.until_job(&job, "complete");
    cluster.until_job(&waiting, "complete");
    let steps = cluster.steps();
    assert!(steps.iter().all(|step| step.2 == 1), "{steps:?}");
    let log = cluster.job_log(&job);
    assert_eq!(log.matches("begins at").count(), 1, "{log}");
}

/// Its task starts again elsewhere from its last checkpoint, once its lease has ended.
#[test]
fn a_task_of_a_killed_agent_starts_elsewhere_from_its_checkpoint() {
    let mut cluster = Cluster::with_jobs(&["one", "two"], &["--job-lease", "2s"]);
    let job = cluster.submit_count(", checkpoint_within: 1s");
    cluster
        .until("it has a checkpoint", |cluster| !cluster.job(&job)["tasks"][0]["checkpoint_bytes"].is_null());
    let first = cluster.worker_of(&job);
    let mut agent = cluster.take_agent(&first);
    let process = children(agent.id());
    agent.kill().unwrap();
    agent.wait().unwrap();
    cluster.until("nothing of the task is left", |_| process.iter().all(|pid| gone(*pid)));
    let at_death = cluster.steps();
    assert!(at_death.iter().all(|step| step.2 == 1));
    cluster.until("it starts elsewhere", |cluster| cluster.steps().last().is_some_and(|step| step.2 == 2));
    let steps = cluster.steps();
    in_order(&steps);
    let resumed = steps.iter().find(|step| step.2 == 2).unwrap();
    assert!(resumed.1 > 1 && resumed.1 <= at_death.last().unwrap().1 + 1, "not from a checkpoint: {steps:?}");
    assert_eq!((resumed.1 - 1) % 5, 0, "it goes on from a checkpoint of five steps: {steps:?}");
    assert_eq!(cluster.job(&job)["tasks"][0]["progress"], 0.5);
    cluster.let_go();
    cluster.until_job(&job, "complete");
    let explained = cluster.ask(&["job", "explain", &job]).expect(0).stdout;
    assert!(explained.contains("was silent until its lease ended"), "{explained}");
}

/// A worker that cannot reach the controller ends its tasks by itself.
#[test]
fn a_worker_without_a_controller_ends_its_tasks_with_its_lease() {
    let mut cluster = Cluster::with_jobs(&["one"], &["--job-lease", "2s"]);
    let job = cluster.submit_count(", checkpoint_within: 2s");
    cluster.until_steps(3);
    let mut controller = cluster.controller.take().unwrap();
    controller.kill().unwrap();
    controller.wait().unwrap();
    let agent = cluster.workers[0].1.id();
    let mut ended = false;
    for _ in 0..600 {
        ended = children(agent).is_empty();
        if ended {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(ended, "its task goes on without a controller");
    let last = cluster.steps().last().unwrap().1;
    cluster.start_controller();
    cluster.until("it runs again", |cluster| cluster.steps().last().is_some_and(|step| step.2 == 2));
    let steps = cluster.steps();
    in_order(&steps);
    assert_eq!(
        steps.iter().find(|step| step.2 == 2).unwrap().1,
        last + 1,
        "it wrote a checkpoint: {steps:?}"
    );
    cluster.let_go();
    cluster.until_job(&job, "complete");
}

#[test]
fn who_may_only_look_submits_and_cancels_nothing() {
    let cluster = Cluster::with_jobs(&["one"], &[]);
    let job = cluster.submit_count("");
    let viewer = cluster.ask(&["people", "add", "Vera", "--role", "viewer"]).expect(0).stdout;
    let viewer = viewer.lines().last().unwrap().trim().to_owned();
    cluster.ask_as(&viewer, &["job", "queue"]).expect(0);
    cluster.ask_as(&viewer, &["job", "explain", &job]).expect(0);
    for refused in [&["job", "cancel", job.as_str()][..], &["job", "submit", "--", "true"]] {
        let told = cluster.ask_as(&viewer, refused).expect(78).stderr;
        assert!(told.contains("needs the role operator"), "{told}");
    }
    let folder = cluster.place.argument("wrong.yaml");
    cluster.place.write("wrong.yaml", "version: 1\njob: {name: a, comand: [b]}\n");
    let told = cluster.ask(&["job", "submit", &folder]).expect(78).stderr;
    assert!(told.contains("did you mean `command`?") && told.contains("wrong.yaml:2"), "{told}");
    cluster.ask(&["job", "cancel", &job]).expect(0);
    cluster.until_job(&job, "cancelled");
}

impl Cluster {
    /// As [`Cluster::until_steps`], without a controller.
    #[track_caller]
    fn until_steps_alone(&self, count: usize) {
        for _ in 0..600 {
            if self.steps().len() >= count {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let place: PathBuf = self.place.path("steps");
        panic!("{} does not grow: {:?}", place.display(), self.steps());
    }
}

const STREAM: &str = "version: 1
name: stream
sources:
  - {id: rows, kind: csv, rate: 20/s, options: {path: rows.csv, columns: {n: int64}}}
sinks:
  - {id: out, kind: jsonl, input: rows, options: {path: out.jsonl}}
";

/// The plan says that the workflow uses half of its worker, so a job of a whole processor does not fit beside it.
const STREAM_PLAN: &str = "version: 1
workflow: {name: stream}
workers:
  - {id: one, tier: edge, worker_type: small}
stages:
  - {id: rows, operator: rows, worker: one}
  - {id: out, operator: out, worker: one}
classes:
  - {id: 0, share: 1, route: {rows: rows, out: out}}
edges:
  - {from: rows, to: out}
predicted:
  utilization: {one: 50%}
";

/// Its process starts after the job has left, and the job comes back when it is over.
#[test]
fn a_workflow_takes_back_what_its_plan_uses() {
    let cluster = Cluster::with_jobs(&["one"], &["--job-give-back", "20s"]);
    // Its process would start within a second.
    let job = cluster.submit_lingering("3", ", preemptible: false");
    cluster.until_steps(4);
    let rows: String = (0..40).map(|n| format!("{n}\n")).collect();
    cluster.place.write("rows.csv", format!("n\n{rows}"));
    cluster.place.write("stream.yaml", STREAM);
    cluster.place.write("plan.yaml", STREAM_PLAN);
    let (workflow, plan) = (cluster.place.argument("stream.yaml"), cluster.place.argument("plan.yaml"));
    cluster.ask(&["submit", &workflow, "--plan", &plan]).expect(0);
    cluster.until("the workflow is complete", |cluster| cluster.run_of("stream")["state"] == "complete");
    cluster.until("the job is back", |cluster| cluster.steps().last().is_some_and(|step| step.2 == 2));
    in_order(&cluster.steps());
    let events = cluster.ask(&["events", "--output", "json"]).expect(0).stdout;
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let at = |kind: &str| {
        events
            .iter()
            .position(|event| event["kind"] == kind)
            .unwrap_or_else(|| panic!("no {kind}: {events:?}"))
    };
    assert!(at("job_preempted") < at("run_running"), "{events:?}");
    assert!(!cluster.place.path("overlap").exists(), "the workflow started beside the job");
    assert!(cluster.place.path("w-one/runs/stream/one/out.jsonl").exists());
    let text = events[at("job_preempted")]["text"].as_str().unwrap();
    assert!(text.contains("one has less for jobs now") && text.contains("and has 20s"), "{text}");
    cluster.let_go();
    cluster.until_job(&job, "complete");
}

/// A workflow over a file as a job: each row is written once, though its worker is drained in the middle.
#[test]
fn a_backfill_continues_elsewhere_and_its_rows_are_fetched() {
    let cluster = Cluster::with_jobs(&["one", "two"], &[]);
    let rows: String = (0..100).map(|n| format!("{n}\n")).collect();
    cluster.place.write("rows.csv", format!("n\n{rows}"));
    cluster.place.write("stream.yaml", STREAM);
    cluster
        .place
        .write("job.yaml", "version: 1\njob: {name: old-rows, kind: backfill, workflow: stream.yaml}\n");
    let job = cluster.ask(&["job", "submit", &cluster.place.argument("job.yaml")]).expect(0).stdout;
    let job = job.trim();
    let written = |worker: &str| {
        let file = cluster.place.path(&format!("w-{worker}/jobs/{job}-0-1/checkpoint/out.jsonl"));
        std::fs::read_to_string(file).map_or(0, |text| text.lines().count())
    };
    cluster.until("some rows are written", |_| written("one") + written("two") > 10);
    let first = cluster.worker_of(job);
    cluster.ask(&["drain", &first]).expect(0);
    cluster.until_job(job, "complete");
    let found = cluster.job(job);
    assert_eq!((&found["preemptions"], &found["tasks"][0]["incarnation"]), (&1.into(), &2.into()), "{found}");
    let out = cluster.place.argument("fetched");
    cluster.ask(&["job", "fetch", job, "--out", &out]).expect(0);
    let found: Vec<u64> =
        cluster.place.rows("fetched/out.jsonl").iter().map(|row| row["n"].as_u64().unwrap()).collect();
    assert_eq!(found, (0..100).collect::<Vec<u64>>());
}

/// The measurements of a worker come back as a file.
#[test]
fn a_profile_of_a_worker_is_fetched() {
    let cluster = Cluster::with_jobs(&["one"], &[]);
    cluster.place.write("rows.csv", "n\n1\n2\n3\n");
    cluster.place.write("stream.yaml", STREAM);
    let infrastructure =
        "version: 1\nname: here\ntiers:\n  - {id: edge, workers: [{type: small, price: 1 $/h, vcpu: 1}]}\n";
    cluster.place.write("infrastructure.yaml", infrastructure);
    cluster.place.write(
        "job.yaml",
        "version: 1\njob: {name: profile-stream, kind: profile, workflow: stream.yaml, files: [infrastructure.yaml], \
         arguments: [--infra, infrastructure.yaml, --budget, 1s]}\n",
    );
    let printed = cluster.ask(&["job", "submit", "--follow", &cluster.place.argument("job.yaml")]);
    assert_eq!(printed.code, Some(0), "{}{}", printed.stdout, printed.stderr);
    let out = cluster.place.argument("fetched");
    cluster.ask(&["job", "fetch", "profile-stream-1", "profile.yaml", "--out", &out]).expect(0);
    cluster.ask(&["validate", &cluster.place.argument("fetched/profile.yaml")]).expect(0);
}
