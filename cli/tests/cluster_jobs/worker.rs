//! The side of the worker: groups of tasks, processes that nothing ends but the agent, variables, results, and ends without progress.
use crate::cluster::Cluster;
use crate::command::root;
use crate::processes::{children, ended, gone, kill};
use crate::python::interpreter;
use std::path::{Path, PathBuf};

/// Sums over all tasks, leaves a checkpoint after its first start, and ends after the second one.
const SUM: &str = r#"
import array, os, pathlib
import tidemill.collective

start = os.environ["TIDEMILL_INCARNATION"]
with tidemill.collective.init() as group:
    values = array.array("f", [group.rank + 1.0] * 3)
    group.all_reduce(values)
    print("sums", list(values), "of", group.size, "in", os.environ["TIDEMILL_GROUP"], flush=True)
    group.barrier()
if start == "1":
    kept = pathlib.Path(os.environ["TIDEMILL_CHECKPOINT"])
    for name in ["step", "READY", "RESUME"]:
        (kept / name).write_text("1" if name == "step" else "")
"#;

/// Starts a process that leaves the group of its parent, and notes its number and start. A later start looks whether one of before is there.
const HOLD: &str = r#"#!/bin/sh
for old in $(cat "$1"/held 2>/dev/null); do
  if [ -n "$(tr -d '\0' < /proc/$old/cmdline 2>/dev/null)" ]; then echo "$old" >> "$1/overlap"; fi
done
setsid sh -c 'while :; do echo "$TIDEMILL_INCARNATION" >> "$0/beats"; sleep 0.05; done' "$1" < /dev/null &
echo $! >> "$1/held"
while :; do sleep 1000 & wait $!; done
"#;

impl Cluster {
    /// Queues a job of a file with these keys beside its name.
    fn submit_job(&self, name: &str, keys: &str) -> String {
        self.place.write("job.yaml", format!("version: 1\njob: {{name: {name}, {keys}}}\n"));
        self.ask(&["job", "submit", &self.place.argument("job.yaml")]).expect(0).stdout.trim().to_owned()
    }

    /// Queues the program that leaves a process.
    fn submit_hold(&self) -> String {
        self.place.write("hold.sh", HOLD);
        let folder = self.place.path("").display().to_string();
        // Tests of several copies may run on one machine: their control groups have different names.
        let name = format!("hold-{}", std::process::id());
        self.submit_job(&name, &format!("command: [./hold.sh, '{folder}'], resources: {{memory: 64MB}}"))
    }

    /// Starts of the processes that wrote so far.
    fn beats(&self) -> Vec<u32> {
        let text = std::fs::read_to_string(self.place.path("beats")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    fn until_beats_of(&self, start: u32) {
        let what = format!("start {start} runs");
        self.until(&what, |cluster| cluster.beats().iter().filter(|of| **of == start).count() >= 3);
    }

    /// Numbers of the processes that were left, in the order of the starts.
    fn held(&self) -> Vec<u32> {
        let text = std::fs::read_to_string(self.place.path("held")).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }
}

/// Control groups of a job, of all controllers of the kernel.
fn groups_of(job: &str) -> Vec<PathBuf> {
    fn look(folder: &Path, name: &str, depth: u32, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if entry.file_name() == name {
                found.push(entry.path());
            } else if depth > 0 {
                look(&entry.path(), name, depth - 1, found);
            }
        }
    }
    let mut found = Vec::new();
    look(Path::new("/sys/fs/cgroup"), &format!("job-{job}"), 5, &mut found);
    if found.is_empty() {
        println!("the job has no control group now");
    }
    found
}

#[test]
fn tasks_of_a_gang_are_a_group_over_their_workers_and_another_one_after_each_start() {
    let Some(python) = interpreter() else { return };
    let cluster = Cluster::with_jobs(&["one", "two"], &[]);
    cluster.place.write("sum.py", SUM);
    cluster.place.write("sum.sh", format!("#!/bin/sh\nexec '{python}' sum.py\n"));
    let path = root().join("operators/python/python").display().to_string();
    let keys = format!(
        "command: [./sum.sh], files: [sum.py], gang: 2, resources: {{cores: 1, memory: 256MB}}, \
         environment: {{PYTHONPATH: '{path}', PYTHONDONTWRITEBYTECODE: '1'}}"
    );
    let job = cluster.submit_job("sum", &keys);
    cluster.until_job(&job, "complete");
    let log = cluster.job_log(&job);
    let lines = |words: &str| log.lines().filter(|line| line.contains(words)).count();
    for start in [1, 2] {
        assert_eq!(lines(&format!("sums [3.0, 3.0, 3.0] of 2 in {job}-{start}")), 2, "{log}");
    }
    for worker in ["one", "two"] {
        assert!(log.contains(&format!("on {worker}")), "one worker has all tasks: {log}");
    }
}

/// Killed at once, the agent and the process between it and the task end nothing.
#[test]
fn a_task_whose_agent_and_supervisor_are_killed_together_ends_before_it_starts_again() {
    let mut cluster = Cluster::with_jobs(&["one"], &[]);
    let job = cluster.submit_hold();
    cluster.until_beats_of(1);
    let old = cluster.held()[0];
    let mut agent = cluster.take_agent("one");
    let supervisors = children(agent.id());
    assert_eq!(supervisors.len(), 1, "{supervisors:?}");
    agent.kill().unwrap();
    assert!(kill(supervisors[0]));
    agent.wait().unwrap();
    assert!(gone(supervisors[0]));
    let before = cluster.beats().len();
    cluster.until("the task outlives both", |cluster| cluster.beats().len() > before + 3);
    assert!(!ended(old), "there is nothing to end");
    cluster.start_small("one");
    cluster.until_beats_of(2);
    assert!(ended(old), "two starts of the task run");
    assert!(!cluster.place.path("overlap").exists(), "{}", cluster.place.read("overlap"));
    let beats = cluster.beats();
    assert!(beats.is_sorted(), "the first start went on beside the second one: {beats:?}");
    cluster.ask(&["job", "cancel", &job]).expect(0);
    cluster.until_job(&job, "cancelled");
    assert!(cluster.held().into_iter().all(gone), "a process outlives its job");
    cluster.until("its control groups are removed", |_| groups_of(&job).is_empty());
}

#[test]
fn what_a_killed_supervisor_leaves_is_ended_and_its_control_group_goes() {
    let cluster = Cluster::with_jobs(&["one"], &[]);
    let job = cluster.submit_hold();
    cluster.until_beats_of(1);
    let (old, has_groups) = (cluster.held()[0], !groups_of(&job).is_empty());
    println!("with control groups: {has_groups}");
    assert!(!ended(old));
    assert!(children(cluster.workers[0].1.id()).into_iter().all(kill));
    cluster.until_job(&job, "failed");
    assert!(ended(old), "the job has failed, and a process of it runs");
    let why = cluster.job(&job)["because"].to_string();
    assert!(why.contains("signal 9 ended the process that runs it"), "{why}");
    cluster.until("its control groups are removed", |_| groups_of(&job).is_empty());
}

#[test]
fn a_task_has_few_variables_of_the_agent_and_those_of_the_job() {
    let mut cluster = Cluster::with_jobs(&[], &[]);
    let variables = [("SECRET_OF_THE_MACHINE", "s3cret"), ("CUDA_VISIBLE_DEVICES", "3"), ("LC_TIME", "C")];
    cluster.start_worker_where("one", &["--processors", "1", "--memory", "1GiB"], &variables);
    cluster.until_joined(1);
    let job = cluster.submit_job("variables", "command: [env], environment: {EPOCHS: '20'}");
    cluster.until_job(&job, "complete");
    let log = cluster.job_log(&job);
    for line in [
        "CUDA_VISIBLE_DEVICES=3",
        "LC_TIME=C",
        "EPOCHS=20",
        "TIDEMILL_SIZE=1",
        "WORLD_SIZE=1",
        "TIDEMILL_NET=",
        "TIDEMILL_GROUP=variables-1-1",
        "PATH=",
    ] {
        assert!(log.contains(line), "{line}: {log}");
    }
    assert!(!log.contains("SECRET_OF_THE_MACHINE") && !log.contains("TIDEMILL_WORLD"), "{log}");
}

#[test]
fn links_among_results_are_followed_and_those_to_other_places_are_named() {
    let cluster = Cluster::with_jobs(&["one"], &[]);
    let make = "mkdir step-2 && echo two > step-2/model && ln -s step-2 latest && ln -s latest/model best && \
                ln -s /etc/hosts step-2/hosts";
    let keys = |results: &str| format!("command: [sh, -c, '{make}'], results: [{results}]");
    let job = cluster.submit_job("links", &keys("best, latest"));
    cluster.until_job(&job, "complete");
    let out = cluster.place.argument("out");
    cluster.ask(&["job", "fetch", &job, "--out", &out]).expect(0);
    for file in ["out/best", "out/latest/model"] {
        assert_eq!(cluster.place.read(file), "two\n");
    }
    let log = cluster.job_log(&job);
    assert!(
        log.contains("a result is left out: `latest/hosts` is a link to /etc/hosts, which is outside"),
        "{log}"
    );
    let job = cluster.submit_job("links", &keys("step-2/hosts"));
    cluster.until_job(&job, "failed");
    let why = cluster.job(&job)["because"].to_string();
    assert!(why.contains("its result `step-2/hosts` is a link to /etc/hosts"), "{why}");
}

#[test]
fn a_job_that_wants_to_continue_without_progress_fails_with_the_reason() {
    let cluster = Cluster::with_jobs(&["one"], &[]);
    let idle = "echo 1 > \"$TIDEMILL_CHECKPOINT/n\"; touch \"$TIDEMILL_CHECKPOINT/RESUME\"";
    cluster.place.write("idle.sh", format!("#!/bin/sh\n{idle}\n"));
    let job = cluster.submit_job("idle", "command: [./idle.sh]");
    cluster.until_job(&job, "failed");
    let found = cluster.job(&job);
    assert!(found["because"].to_string().contains("left RESUME three times"), "{found}");
    assert_eq!(found["tasks"][0]["incarnation"], 4, "the first one had a new checkpoint: {found}");
}
