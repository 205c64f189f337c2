//! Trainings whose gradients aggregators add up: moves, killed ranks and early ends, through the built binary.
use crate::aggregation::{Served, machines, until};
use crate::command::{Outcome, Place, tidemill};
use crate::training::{PERCEPTRON, job, kill, place, read_until, report, signal, train};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command};
use tidemill_aggregation_service::master::Question;

/// A training by a number of ranks, with more lines in its section.
fn job_of(ranks: u32, steps: u64, more: &str) -> String {
    job(ranks, PERCEPTRON, &format!("    steps: {steps}\n{more}"))
}

/// The training, whose aggregators are reached through this socket.
fn through(socket: &Path, place: &Place, arguments: &[&str]) -> Command {
    let mut command = train(place, arguments);
    command.env("TIDEMILL_NET", socket);
    command
}

fn outcome(mut command: Command) -> Outcome {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Outcome { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn digest(place: &Place, folder: &str) -> Value {
    report(&place.path(folder))["digest"].clone()
}

/// The digest of the same training by one rank alone.
fn digest_of_one(place: &Place) -> Value {
    let shared = std::fs::read_to_string(place.path("job.yaml")).unwrap();
    place.write("job.yaml", shared.replace("aggregation: shared", "aggregation: ranks"));
    outcome(train(place, &["--ranks", "1", "--out", "one"])).expect(0);
    place.write("job.yaml", shared);
    digest(place, "one")
}

/// Starts a training, waits for steps at the aggregators, and stops rank 1: no step ends until it is continued or starts again. Returns the job's
/// name at the aggregators, too.
fn started(
    served: &Served,
    place: &Place,
    arguments: &[&str],
) -> (Child, BufReader<ChildStderr>, String, String) {
    let mut child = through(&served.socket(), place, arguments).spawn().unwrap();
    let (mut errors, mut said) = (BufReader::new(child.stderr.take().unwrap()), String::new());
    read_until(&mut errors, &mut said, " begin");
    until("a step", || served.report().jobs.iter().any(|job| job.steps > 2));
    signal(child.id(), 1, "-STOP");
    let name = served.report().jobs[0].name.clone();
    (child, errors, said, name)
}

fn rest(errors: &mut impl BufRead, said: &mut String) {
    errors.read_to_string(said).unwrap();
}

#[test]
fn any_number_of_ranks_and_either_sum_trains_the_same_model() {
    let served = Served::start(&["--aggregators", "2"], None);
    let place = place(&job_of(2, 150, "    aggregation: shared\n"));
    let expected = digest_of_one(&place);
    for ranks in ["1", "2", "3"] {
        let found = outcome(through(&served.socket(), &place, &["--ranks", ranks, "--out", ranks])).expect(0);
        assert_eq!(digest(&place, ranks), expected, "{}", found.stderr);
        let chosen = report(&place.path(ranks))["aggregation"].clone();
        assert!(chosen["job"].as_str().unwrap().starts_with("arms-"), "{chosen}");
        assert!(found.stderr.contains("aggregators add up the gradients"), "{}", found.stderr);
        assert!(served.report().jobs.is_empty(), "the job has ended");
    }
    // Two ranks need two messages, and four need six in a ring.
    place.write("job.yaml", job_of(2, 150, "    aggregation: {by: auto, token: secret}\n"));
    for (ranks, is_shared) in [("2", false), ("4", true)] {
        let found =
            outcome(through(&served.socket(), &place, &["--ranks", ranks, "--out", "auto"])).expect(0);
        assert_eq!(digest(&place, "auto"), expected);
        let chosen = report(&place.path("auto"))["aggregation"].clone();
        assert_eq!(chosen["job"].is_string(), is_shared, "{chosen}");
        let who = if is_shared { "aggregators add up" } else { "the ranks add up" };
        assert!(found.stderr.contains(who) && found.stderr.contains("0.30 ms by an all-reduce") == is_shared);
        assert!(!found.stderr.contains("secret") && !chosen.to_string().contains("secret"));
    }
}

/// A tensor moves while a rank is killed: the other one waits, and the model is that of an undisturbed training.
#[test]
fn moves_and_a_killed_rank_change_nothing_in_the_model() {
    let served = Served::start(&["--aggregators", "2"], None);
    let place = place(&job_of(2, 2000, "    aggregation: shared\n"));
    let (mut child, mut errors, mut said, name) = started(&served, &place, &["--restart", "--out", "out"]);
    let before = served.report().jobs[0].tensors.clone();
    let to = if before[0].aggregator == "a0" { "a1" } else { "a0" };
    served.ask(Question::Move { job: name, tensor: Some(0), to: to.to_owned() }).unwrap();
    let moved = served.report().jobs[0].tensors[0].clone();
    assert!(moved.aggregator == to || moved.moves_to.as_deref() == Some(to), "{moved:?}");
    kill(child.id(), 1);
    read_until(&mut errors, &mut said, "the others wait, and it is started again");
    rest(&mut errors, &mut said);
    assert!(child.wait().unwrap().success(), "{said}");
    assert!(said.contains("rank 1 is lost (signal: 9 (SIGKILL))"), "{said}");
    assert_eq!(digest(&place, "out"), digest_of_one(&place), "{said}");
    assert_eq!(report(&place.path("out"))["lost_ranks"], 0);
}

/// The first rank, which reports and writes the result.
#[test]
fn the_first_rank_comes_back_too() {
    let served = Served::start(&["--aggregators", "2"], None);
    let place = place(&job_of(2, 2000, "    aggregation: shared\n"));
    let (mut child, mut errors, mut said, _) = started(&served, &place, &["--restart", "--out", "out"]);
    kill(child.id(), 0);
    signal(child.id(), 1, "-CONT");
    read_until(&mut errors, &mut said, "the others wait, and it is started again");
    read_until(&mut errors, &mut said, "ranks 0, 1 continue after step");
    rest(&mut errors, &mut said);
    assert!(child.wait().unwrap().success(), "{said}");
    assert_eq!(digest(&place, "out"), digest_of_one(&place), "{said}");
}

#[test]
fn a_training_that_lost_a_rank_continues_where_the_aggregators_are() {
    let served = Served::start(&["--aggregators", "2"], None);
    let place = place(&job_of(2, 2000, "    aggregation: shared\n"));
    let (mut child, mut errors, mut said, name) = started(&served, &place, &["--out", "out"]);
    kill(child.id(), 0);
    rest(&mut errors, &mut said);
    assert_eq!(child.wait().unwrap().code(), Some(69), "{said}");
    assert!(said.contains("rank 0 is lost (signal: 9 (SIGKILL)): the training ends"), "{said}");
    assert!(said.contains("the same command continues where the aggregators are"), "{said}");
    assert!(said.contains(&format!("tidemill agg remove {name}")), "{said}");
    assert!(!place.path("out/report.json").exists());
    let left = served.report().jobs[0].clone();
    assert!(left.name == name && left.steps > 2, "{left:?}");
    let found = outcome(through(&served.socket(), &place, &["--out", "out"])).expect(0);
    assert!(found.stderr.contains("ranks 0, 1 continue after step"), "{}", found.stderr);
    assert_eq!(digest(&place, "out"), digest_of_one(&place));
    assert!(served.report().jobs.is_empty(), "the job has ended");
}

#[test]
fn ctrl_c_ends_all_ranks_with_a_checkpoint() {
    let served = Served::start(&["--aggregators", "2"], None);
    let place = place(&job_of(2, 2000, "    checkpoint_every: 300\n    aggregation: shared\n"));
    let arguments = ["--checkpoint", "kept", "--out", "out"];
    let (mut child, mut errors, mut said, _) = started(&served, &place, &arguments);
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    signal(child.id(), 1, "-CONT");
    rest(&mut errors, &mut said);
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said}");
    assert!(said.contains("a checkpoint has them; the same command continues from kept"), "{said}");
    assert_eq!(
        std::fs::read(place.path("kept/0/training")).unwrap(),
        std::fs::read(place.path("kept/1/training")).unwrap(),
        "all ranks end after the same step"
    );
    assert!(served.report().jobs.is_empty(), "the job has ended");
    // A third rank gets the state from another one, and the velocities are there.
    let found =
        outcome(through(&served.socket(), &place, &[&arguments[..], &["--ranks", "3"]].concat())).expect(0);
    assert!(found.stderr.contains("continue from the checkpoint of step"), "{}", found.stderr);
    assert_eq!(digest(&place, "out"), digest_of_one(&place));
}

/// The token is in a file beside the job. Programs without it cannot take part.
#[test]
fn ranks_use_the_aggregators_of_another_machine() {
    let machines = machines();
    let shared =
        |at: &str| format!("    aggregation: {{by: shared, at: '{at}', token: {{secret_file: token}}}}\n");
    let place = place(&job_of(2, 1000, &shared(&machines.at)));
    place.write("token", "ours\n");
    let socket = machines.elsewhere.path().join("net.sock");
    let mut child = through(&socket, &place, &["--out", "out"]).spawn().unwrap();
    let (mut errors, mut said) = (BufReader::new(child.stderr.take().unwrap()), String::new());
    read_until(&mut errors, &mut said, " begin");
    until("a step", || machines.served.report().jobs.iter().any(|job| job.steps > 2));
    kill(child.id(), 1);
    rest(&mut errors, &mut said);
    assert_eq!(child.wait().unwrap().code(), Some(69), "{said}");
    place.write("token", "theirs");
    let found = outcome(through(&socket, &place, &["--out", "out"])).expect(69).stderr;
    assert!(found.contains("another job has the name arms-") && !found.contains("theirs"), "{found}");
    place.write("token", "ours");
    outcome(through(&socket, &place, &["--out", "out"])).expect(0);
    place.write("job.yaml", job_of(2, 1000, ""));
    assert_eq!(digest(&place, "out"), digest_of_one(&place));
}

#[test]
fn aggregators_that_are_not_there_are_reported() {
    let place = place(&job_of(2, 10, "    aggregation: shared\n"));
    let nowhere = place.path("net.sock");
    let found = outcome(through(&nowhere, &place, &[])).expect(69).stderr;
    assert!(found.contains("no aggregators are reached") && found.contains("tidemill agg serve"), "{found}");
    assert!(found.contains("job.yaml:13") && found.contains("`aggregation: auto`"), "{found}");
    place.write("job.yaml", job_of(2, 10, "    aggregation: auto\n"));
    let found = outcome(through(&nowhere, &place, &["--out", "auto"])).expect(0).stderr;
    assert!(found.contains("the ranks add up the gradients: no aggregators are reached"), "{found}");
    // The ranks of a queued job are on other machines.
    let found = tidemill(&["job", "submit", &place.argument("job.yaml")]).expect(78).stderr;
    assert!(found.contains("at: tcp://HOST:7500") && found.contains("job.yaml:13"), "{found}");
    place.write("job.yaml", job_of(2, 10, "    survive: 1\n    aggregation: shared\n"));
    let found = outcome(through(&nowhere, &place, &[])).expect(78).stderr;
    assert!(found.contains("leave `survive` out") && found.contains("job.yaml:13"), "{found}");
}
