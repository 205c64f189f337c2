//! The queue of jobs as its users see it: silent workers, jobs that cannot fit, limits, removal, policies; through the built binary.
use crate::cluster::Cluster;
use crate::command::tidemill;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

impl Cluster {
    fn signal_agent(&self, name: &str, signal: Signal) {
        let (_, child) = self.workers.iter().find(|(known, _)| known == name).unwrap();
        kill_process(Pid::from_raw(child.id().cast_signed()).unwrap(), signal).unwrap();
    }

    fn job_explained(&self, job: &str) -> String {
        self.ask(&["job", "explain", job]).expect(0).stdout
    }

    fn queued(&self, more: &[&str]) -> Vec<String> {
        let of = [&["job", "queue", "--output", "json"][..], more].concat();
        let found = self.ask(&of).expect(0).json();
        let name = |job: &Value| job["job"].as_str().unwrap().to_owned();
        found["jobs"].as_array().unwrap().iter().map(name).collect()
    }
}

/// A worker that is silent for some seconds keeps its jobs until its lease ends, and gets no others.
#[test]
fn a_silent_worker_keeps_its_jobs() {
    let mut cluster = Cluster::with_jobs(&[], &["--job-lease", "60s"]);
    cluster.start_worker_with("one", &["--processors", "2", "--memory", "1GiB"]);
    cluster.until_joined(1);
    let job = cluster.submit_count("");
    cluster.until_steps(3);
    cluster.signal_agent("one", Signal::STOP);
    cluster.until("it is lost", |cluster| {
        cluster.ask(&["events"]).expect(0).stdout.contains("sent no heartbeat for 2 s and is lost")
    });
    let other = cluster.ask(&["job", "submit", "--memory", "16MB", "--", "true"]).expect(0);
    assert!(other.stderr.contains("no worker can take it now"), "{}", other.stderr);
    let other = other.stdout.trim().to_owned();
    let before = cluster.steps().len();
    cluster.until_steps(before + 10);
    let explained = cluster.job_explained(&job);
    assert!(explained.contains("running") && explained.contains("worker one, for"), "{explained}");
    let waiting = cluster.job(&other);
    assert_eq!(waiting["state"], "waiting", "{waiting}");
    assert!(waiting["because"].as_str().unwrap().contains("no machine is there for jobs"), "{waiting}");
    cluster.signal_agent("one", Signal::CONT);
    cluster.until_job(&other, "complete");
    let found = cluster.job(&job);
    assert_eq!((&found["state"], &found["preemptions"]), (&"running".into(), &0.into()), "{found}");
    cluster.let_go();
    cluster.until_job(&job, "complete");
    let steps = cluster.steps();
    assert!(steps.iter().all(|step| step.2 == 1), "it was started again: {steps:?}");
}

/// The reason of a preemption is the true one.
#[test]
fn a_job_that_leaves_a_drained_worker_says_so() {
    let cluster = Cluster::with_jobs(&["one", "two"], &[]);
    let job = cluster.submit_count("");
    cluster.until_steps(3);
    let worker = cluster.job(&job)["tasks"][0]["worker"].as_str().unwrap().to_owned();
    cluster.ask(&["drain", &worker]).expect(0);
    cluster.until("it is preempted", |cluster| cluster.job(&job)["preemptions"] == 1);
    let explained = cluster.job_explained(&job);
    assert!(
        explained.contains(&format!("{worker} is drained")) && !explained.contains("streams"),
        "{explained}"
    );
}

/// A job that no worker can take is reported at once, and by each command that shows it.
#[test]
fn a_job_that_cannot_fit_says_which_resource_is_scarce() {
    let cluster = Cluster::with_jobs(&["one"], &[]);
    for (arguments, words) in [
        (&["--cores", "16"][..], "asks for 16 cores in each task; no machine has more than 1 core for jobs"),
        (&["--memory", "40GB"], "asks for 40GB in each task; no machine has more than 1073MB for jobs"),
        (&["--device", "h100"], "asks for 1 h100 in each task; no machine has any for jobs"),
        (
            &["--gang", "1000", "--cores", "0.001", "--memory", "16MB"],
            "needs 1000 tasks at once; without other jobs 8 would fit: too few places for tasks",
        ),
    ] {
        let submitted =
            cluster.ask(&[&["job", "submit"], arguments, &["--", "sleep", "60"]].concat()).expect(0);
        assert!(submitted.stderr.contains(words), "{words}: {}", submitted.stderr);
        let job = submitted.stdout.trim();
        assert!(cluster.job_explained(job).contains(words), "{}", cluster.job_explained(job));
        let queued = cluster.ask(&["job", "queue"]).expect(0).stdout;
        assert!(queued.contains(words), "{queued}");
    }
    let fits = cluster.ask(&["job", "submit", "--memory", "16MB", "--", "true"]).expect(0);
    assert_eq!(fits.stderr, "");
    cluster.until_job(fits.stdout.trim(), "complete");
}

#[test]
fn texts_and_times_that_cannot_be_are_refused() {
    let cluster = Cluster::with_jobs(&[], &[]);
    for (arguments, words) in [
        (&["--", ""][..], "the program is empty"),
        (&["--memory", "1B", "--", "true"], "write at least `16MB`"),
        (&["--checkpoint-within", "2h", "--", "true"], "write at most `1h`"),
    ] {
        let refused = cluster.ask(&[&["job", "submit"], arguments].concat()).expect(78).stderr;
        assert!(refused.contains(words), "{words}: {refused}");
    }
    cluster.place.write("profile.yaml", "version: 1\njob: {name: a, kind: profile, workflow: w.yaml}\n");
    let refused = cluster.ask(&["job", "submit", &cluster.place.argument("profile.yaml")]).expect(78).stderr;
    assert!(
        refused.contains("profile.yaml:2") && refused.contains("--infra, infrastructure.yaml"),
        "{refused}"
    );
    cluster.ask(&["job", "submit", "--checkpoint-within", "0s", "--", "true"]).expect(0);
    assert_eq!(cluster.queued(&[]), ["true-1"]);
}

/// Ended jobs leave the list after the newest ten, and the controller when they are removed.
#[test]
fn ended_jobs_are_listed_and_removed() {
    let cluster = Cluster::with_jobs(&["one"], &[]);
    let running = cluster.submit_count("");
    cluster.until_steps(1);
    let many: Vec<String> = (0..12)
        .map(|_| {
            let job = cluster.ask(&["job", "submit", "--", "python3", "train.py"]).expect(0).stdout;
            let job = job.trim().to_owned();
            cluster.ask(&["job", "cancel", &job]).expect(0);
            job
        })
        .collect();
    assert_eq!(many[0], "train-2", "a script gives its name");
    assert_eq!(cluster.queued(&[]).len(), 11);
    assert_eq!(cluster.queued(&["--all"]).len(), 13);
    assert_eq!(cluster.queued(&["--open"]), [running.as_str()]);
    let table = cluster.ask(&["job", "queue"]).expect(0).stdout;
    assert!(table.contains("2 more have ended: `tidemill job queue --all` lists them"), "{table}");
    let refused = cluster.ask(&["job", "remove", &many[0], &running]).expect(78).stderr;
    assert!(refused.contains(&format!("tidemill job cancel {running}")), "{refused}");
    assert_eq!(cluster.queued(&["--all"]).len(), 13, "none was removed");
    cluster.ask(&["job", "remove", &many[0]]).expect(0);
    cluster.ask(&["job", "status", &many[0]]).expect(66);
    cluster.ask(&["job", "logs", &many[0]]).expect(66);
    let told = cluster.ask(&["job", "remove", "--ended"]).expect(0).stderr;
    assert!(told.contains("11 jobs are removed"), "{told}");
    assert_eq!(cluster.queued(&["--all"]), [running.as_str()]);
    assert!(!cluster.place.path("controller/runs/job:train-3").exists(), "its log stays");
    let shown = cluster.ask(&["job", "status", &running]).expect(0).stdout;
    assert!(shown.contains("\n1 task, "), "{shown}");
}

/// The services of jobs that have ended rank those that wait, also after the controller was started again.
#[test]
fn the_history_of_ended_jobs_is_kept() {
    let options = [
        "--job-policy",
        "2d-gittins",
        "--job-thresholds",
        "60,600",
        "--job-promote-knob",
        "4",
        "--job-least-run",
        "5s",
    ];
    let mut cluster = Cluster::with_jobs(&["one"], &options);
    let first = cluster.ask(&["job", "submit", "--memory", "16MB", "--", "true"]).expect(0).stdout;
    cluster.until_job(first.trim(), "complete");
    let job = cluster.submit_count("");
    cluster.until_steps(2);
    let words = "2d-gittins, with the services of 1 ended job\n";
    assert!(cluster.job_explained(&job).contains(words), "{}", cluster.job_explained(&job));
    cluster.ask(&["job", "remove", first.trim()]).expect(0);
    let mut controller = cluster.controller.take().unwrap();
    controller.kill().unwrap();
    controller.wait().unwrap();
    cluster.start_controller();
    cluster
        .until("the worker is back", |cluster| cluster.ask(&["workers"]).expect(0).stdout.contains("alive"));
    assert!(cluster.job_explained(&job).contains(words), "{}", cluster.job_explained(&job));
    cluster.let_go();
    cluster.until_job(&job, "complete");
    let refused =
        tidemill(&["controller", "--state", &cluster.place.argument("other"), "--job-policy", "srtf"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("does not know: write `2d-las`"), "{}", refused.stderr);
    assert!(!cluster.place.path("other").exists());
}

/// A task that needs more memory than it asked for says so, where agents may make control groups.
#[test]
fn a_task_without_enough_memory_says_so() {
    let cluster = Cluster::with_jobs(&["one"], &[]);
    // It ends by itself where nothing limits it.
    let grow = "x=x; while [ ${#x} -lt 120000000 ]; do x=$x$x; done; exit 3";
    let job = cluster.ask(&["job", "submit", "--memory", "64MB", "--", "sh", "-c", grow]).expect(0).stdout;
    let job = job.trim();
    cluster.until_job(job, "failed");
    let log = cluster.job_log(job);
    if log.contains("does not enforce the limits of this task") {
        return; // no control groups here
    }
    let because = cluster.job(job)["because"].as_str().unwrap().to_owned();
    assert!(
        because.contains("more memory than its limit") && because.contains("--memory SIZE"),
        "{because}\n{log}"
    );
}
