//! Trainings in the queue of a cluster: ranks on workers, one of which is killed; through the built binary.
use crate::cluster::Cluster;
use crate::command::{Place, command};
use crate::training::{PERCEPTRON, arms, job};
use serde_json::Value;

impl Cluster {
    /// A controller, and workers for a rank each.
    fn with_ranks(workers: &[&str], options: &[&str]) -> Self {
        let mut cluster = Self::without_workers(Place::empty("trainings"), options);
        cluster.place.write("arms.csv", arms());
        for worker in workers {
            cluster.start_worker_with(worker, &["--processors", "1", "--memory", "1GiB"]);
        }
        cluster.until_joined(workers.len());
        cluster.until("a service introduces ranks", |cluster| cluster.introducer().is_some());
        cluster
    }

    /// The worker whose service introduces ranks.
    fn introducer(&self) -> Option<String> {
        let events = self.ask(&["events"]).expect(0).stdout;
        let line = events.lines().find(|line| line.contains("introduces the ranks of groups"))?.to_owned();
        Some(line.split("service of worker ").nth(1)?.split(' ').next()?.to_owned())
    }

    fn submitted(&self, text: &str) -> String {
        self.place.write("job.yaml", text);
        let job = self.ask(&["job", "submit", &self.place.argument("job.yaml")]).expect(0).stdout;
        job.trim().to_owned()
    }

    fn status_of(&self, job: &str) -> Value {
        self.ask(&["job", "status", job, "--output", "json"]).expect(0).json()["job"].clone()
    }

    /// Waits for the end of a job; its log.
    #[track_caller]
    fn until_complete(&self, job: &str) -> String {
        let output = self.ask(&["job", "logs", job, "--follow"]);
        let explained = self.ask(&["job", "explain", job]).stdout;
        assert_eq!(self.status_of(job)["state"], "complete", "{}{explained}", output.stdout);
        output.stdout
    }

    /// The report of a job, fetched.
    fn report_of(&self, job: &str) -> Value {
        let out = self.place.argument(&format!("out-{job}"));
        self.ask(&["job", "fetch", job, "--out", &out]).expect(0);
        let report = std::fs::read(self.place.path(&format!("out-{job}/report.json"))).unwrap();
        serde_json::from_slice(&report).unwrap()
    }

    /// The digest of the same training on this machine, by one rank.
    fn digest_of_one(&self) -> Value {
        let file = self.place.argument("job.yaml");
        let out = self.place.argument("alone");
        let mut command = command(&["train", &file, "--ranks", "1", "--out", &out, "--output", "json"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        answer["report"]["digest"].clone()
    }
}

/// A machine dies in the middle: the others continue, and the model is that of a training alone.
#[test]
fn a_training_outlives_a_machine() {
    let mut cluster = Cluster::with_ranks(&["one", "two", "three"], &["--job-lease", "2s"]);
    let more = "    steps: 600\n    survive: 1\n    checkpoint_every: 50\n    rebalance_every: 150\n";
    let mixture = "{kind: mixture, experts: 4, hidden: 8}";
    // One rank alone has no other to lose.
    cluster.place.write("job.yaml", job(3, mixture, &more.replace("survive: 1", "survive: 0")));
    let expected = cluster.digest_of_one();
    let job = cluster.submitted(&job(3, mixture, more));
    cluster.until("it has a checkpoint", |cluster| {
        let tasks = cluster.status_of(&job)["tasks"].clone();
        tasks.as_array().unwrap().iter().any(|task| task["words"].is_string())
    });
    let shown = cluster.ask(&["job", "status", &job]).expect(0).stdout;
    assert!(shown.contains("odds to continue: 100 % after the loss of 1 more rank"), "{shown}");
    let introducer = cluster.introducer().unwrap();
    let at = cluster.workers.iter().position(|(name, _)| *name != introducer).unwrap();
    let (killed, mut agent) = cluster.workers.remove(at);
    agent.kill().unwrap();
    agent.wait().unwrap();
    let log = cluster.until_complete(&job);
    assert!(log.contains("continue after step"), "{log}");
    let status = cluster.status_of(&job);
    let lost: Vec<&Value> =
        status["tasks"].as_array().unwrap().iter().filter(|task| task["is_lost"] == true).collect();
    assert_eq!(lost.len(), 1, "{status:#}");
    assert!(status["tasks"].as_array().unwrap().iter().all(|task| task["incarnation"] == 1), "{status:#}");
    let explained = cluster.ask(&["job", "explain", &job]).expect(0).stdout;
    assert!(explained.contains(&killed) && explained.contains("continue without it"), "{explained}");
    let report = cluster.report_of(&job);
    assert_eq!((report["lost_ranks"].clone(), report["digest"].clone()), (1.into(), expected));
}

/// A drained worker gives its rank away: all ranks write a checkpoint of the same step, and continue together.
#[test]
fn a_preempted_training_continues_from_its_checkpoint() {
    let cluster = Cluster::with_ranks(&["one", "two", "three"], &[]);
    let job = cluster.submitted(&job(2, PERCEPTRON, "    steps: 20000\n    checkpoint_every: 500\n"));
    cluster.until("it has a checkpoint", |cluster| {
        !cluster.status_of(&job)["tasks"][0]["checkpoint_bytes"].is_null()
    });
    let worker = cluster.status_of(&job)["tasks"][0]["worker"].as_str().unwrap().to_owned();
    cluster.ask(&["drain", &worker]).expect(0);
    let log = cluster.until_complete(&job);
    assert!(
        log.contains("ends early after") && log.contains("continue from the checkpoint of step"),
        "{log}"
    );
    assert_eq!(cluster.status_of(&job)["preemptions"], 1);
    assert_eq!(cluster.report_of(&job)["digest"], cluster.digest_of_one());
}
