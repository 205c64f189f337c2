//! `tidemill train`: ranks as processes, killed in the middle, and continued; through the built binary.
use crate::command::{Outcome, Place, command};
use crate::processes::children;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Command;

/// Points on three spiral arms, as a CSV file.
pub(crate) fn arms() -> String {
    let examples = tidemill_training::data::spirals(3, 300, 1);
    let mut text = "x,y,arm\n".to_owned();
    for index in 0..examples.len() {
        let (values, class) = examples.get(index);
        text += &format!("{},{},{}\n", values[0], values[1], ["red", "green", "blue"][class]);
    }
    text
}

/// A job that trains with these points.
pub(crate) fn job(gang: u32, model: &str, more: &str) -> String {
    format!(
        "version: 1\njob:\n  name: arms\n  kind: train\n  gang: {gang}\n  resources: {{cores: 1, memory: 64MB}}\n  train:\n    dataset: arms.csv\n    \
         inputs: [x, y]\n    label: arm\n    model: {model}\n{more}"
    )
}

pub(crate) const PERCEPTRON: &str = "{kind: perceptron, hidden: [16]}";
const MIXTURE: &str = "{kind: mixture, experts: 8, hidden: 8}";

pub(crate) fn place(job: &str) -> Place {
    let place = Place::empty("training");
    place.write("arms.csv", arms());
    place.write("job.yaml", job);
    place
}

/// The training as a command in the folder of its job.
pub(crate) fn train(place: &Place, arguments: &[&str]) -> Command {
    let file = place.argument("job.yaml");
    let mut command = command(&[&["train", &file], arguments].concat());
    for name in ["RANK", "SIZE", "WORLD", "GROUP", "JOB", "CHECKPOINT"] {
        command.env_remove(format!("TIDEMILL_{name}"));
    }
    command.current_dir(place.path(""));
    command
}

fn run(place: &Place, arguments: &[&str]) -> Outcome {
    let output = train(place, arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Outcome { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

pub(crate) fn report(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("report.json")).unwrap()).unwrap()
}

#[test]
fn any_number_of_ranks_trains_the_same_model() {
    let place = place(&job(2, PERCEPTRON, "    steps: 400\n"));
    let one = run(&place, &["--ranks", "1", "--output", "json"]).expect(0).json();
    assert_eq!((one["ok"].clone(), one["report"]["ranks"].clone()), (true.into(), 1.into()));
    let accuracy = one["report"]["held_out_accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.8, "{one}");
    let two = run(&place, &["--out", "two"]).expect(0);
    assert!(
        two.stdout.contains("400 steps with 2 ranks") && two.stdout.contains("held-out"),
        "{}",
        two.stdout
    );
    let two = report(&place.path("two"));
    assert_eq!(two["digest"], one["report"]["digest"]);
    assert_eq!((two["held_out"].clone(), two["examples"].clone()), (60.into(), 240.into()));
    assert_eq!(report(&place.path("arms"))["digest"], two["digest"], "the folder has the name of the job");
    // The same weights are where another training starts from.
    place.write(
        "job.yaml",
        job(1, PERCEPTRON, "    steps: 1\n    rate: 0.000000001\n    from: two/weights.json\n"),
    );
    let tuned = run(&place, &["--out", "tuned"]).expect(0);
    assert_eq!(
        report(&place.path("tuned"))["held_out_accuracy"].as_f64().unwrap(),
        accuracy,
        "{}",
        tuned.stdout
    );
}

/// Reads what a command says until it has said something.
pub(crate) fn read_until(errors: &mut impl BufRead, said: &mut String, words: &str) {
    loop {
        let begin = said.len();
        assert!(errors.read_line(said).unwrap() > 0, "it ended before it said `{words}`: {said}");
        if said[begin..].contains(words) {
            return;
        }
    }
}

/// Kills the process of a rank.
pub(crate) fn kill(parent: u32, rank: u32) {
    signal(parent, rank, "-KILL");
}

/// Sends a signal to the process of a rank.
pub(crate) fn signal(parent: u32, rank: u32, signal: &str) {
    let variable = format!("TIDEMILL_RANK={rank}").into_bytes();
    let is_it = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|of| of == variable)
    };
    let pid = children(parent).into_iter().find(is_it).expect("the rank runs");
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

/// Two of four ranks are killed, one after another: the others continue without a restart, and the model is that of an undisturbed training.
#[test]
fn killed_ranks_change_nothing_in_the_model() {
    for model in [MIXTURE, PERCEPTRON] {
        let place = place(&job(4, model, "    steps: 1000\n    survive: 2\n    rebalance_every: 100\n"));
        let whole = run(&place, &["--ranks", "3", "--out", "whole"]).expect(0);
        let mut child = train(&place, &["--out", "disturbed"]).spawn().unwrap();
        let (mut errors, mut said) = (BufReader::new(child.stderr.take().unwrap()), String::new());
        read_until(&mut errors, &mut said, " begin");
        kill(child.id(), 1);
        read_until(&mut errors, &mut said, "ranks 0, 2, 3 continue");
        kill(child.id(), 2);
        errors.read_to_string(&mut said).unwrap();
        assert!(child.wait().unwrap().success(), "{said}");
        let report_of = report(&place.path("disturbed"));
        assert_eq!(report_of["digest"], report(&place.path("whole"))["digest"], "{said}{}", whole.stderr);
        assert_eq!(report_of["lost_ranks"], 2, "{said}");
        assert!(said.contains("rank 1 is lost (signal: 9 (SIGKILL)): the others continue"), "{said}");
        assert!(said.contains("ranks 0, 3 continue after step"), "{said}");
    }
}

/// A killed rank is started again, and takes part.
#[test]
fn a_killed_rank_comes_back() {
    let place = place(&job(3, MIXTURE, "    steps: 600\n    survive: 1\n    rebalance_every: 10\n"));
    let mut child = train(&place, &["--restart", "--out", "disturbed"]).spawn().unwrap();
    let (mut errors, mut said) = (BufReader::new(child.stderr.take().unwrap()), String::new());
    read_until(&mut errors, &mut said, " begin");
    kill(child.id(), 1);
    read_until(&mut errors, &mut said, "it is started again");
    read_until(&mut errors, &mut said, "ranks 0, 1, 2 continue after step");
    errors.read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
    run(&place, &["--ranks", "2", "--out", "whole"]).expect(0);
    let (disturbed, whole) = (report(&place.path("disturbed")), report(&place.path("whole")));
    assert_eq!(
        (disturbed["digest"].clone(), disturbed["lost_ranks"].clone()),
        (whole["digest"].clone(), 0.into()),
        "{said}"
    );
}

/// Without `survive` the training ends when a rank is killed, says how to continue, and continues with another number of ranks.
#[test]
fn a_training_that_ends_continues_from_its_checkpoint() {
    let place = place(&job(3, MIXTURE, "    steps: 200\n    checkpoint_every: 50\n"));
    let mut child = train(&place, &["--checkpoint", "kept", "--out", "out"]).spawn().unwrap();
    let (mut errors, mut said) = (BufReader::new(child.stderr.take().unwrap()), String::new());
    read_until(&mut errors, &mut said, " begin");
    kill(child.id(), 2);
    errors.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(69), "{said}");
    assert!(
        said.contains("1 of its ranks is lost") && said.contains("the same command continues from kept"),
        "{said}"
    );
    assert!(!place.path("out/report.json").exists());
    let continued = run(&place, &["--checkpoint", "kept", "--out", "out", "--ranks", "2"]).expect(0);
    assert!(continued.stderr.contains("continue from the checkpoint of step"), "{}", continued.stderr);
    run(&place, &["--out", "whole"]).expect(0);
    assert_eq!(report(&place.path("out"))["digest"], report(&place.path("whole"))["digest"]);
}

#[test]
fn ctrl_c_keeps_what_is_done() {
    let place = place(&job(2, MIXTURE, "    steps: 100000\n"));
    let mut child = train(&place, &["--checkpoint", "kept"]).spawn().unwrap();
    let (mut errors, mut said) = (BufReader::new(child.stderr.take().unwrap()), String::new());
    read_until(&mut errors, &mut said, " begin");
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    errors.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said}");
    assert!(said.contains("a checkpoint has them; the same command continues from kept"), "{said}");
    assert!(place.path("kept/0/training").is_file() && place.path("kept/1/RESUME").is_file());
}

#[test]
fn mistakes_are_said_once_with_their_place() {
    let place = place(&job(2, PERCEPTRON, "    steps: 10\n"));
    place.write("arms.csv", "x,y,leg\n1,2,a\n");
    let found = run(&place, &[]).expect(78).stderr;
    assert!(found.contains("job.yaml:10") && found.contains("no column `arm`"), "{found}");
    assert_eq!(found.matches("no column").count(), 1, "{found}");
    place.write("job.yaml", "version: 1\njob: {name: a, command: [b]}\n");
    let found = run(&place, &[]).expect(78).stderr;
    assert!(found.contains("trains nothing") && found.contains("kind: train"), "{found}");
    place.write("job.yaml", job(2, "{kind: mixture, experts: 4, slots: 1}", "    steps: 10\n"));
    assert!(run(&place, &[]).expect(78).stderr.contains("write `slots: 2`"));
    place.write("job.yaml", job(2, PERCEPTRON, "    steps: 50\n    rate: 1e12\n"));
    place.write("arms.csv", arms());
    let found = run(&place, &[]).expect(69).stderr;
    assert!(found.contains("use a lower rate"), "{found}");
    // A checkpoint that is damaged is named.
    place.write("job.yaml", job(2, PERCEPTRON, "    steps: 10\n    checkpoint_every: 5\n"));
    run(&place, &["--checkpoint", "kept"]).expect(0);
    place.write("kept/0/training", "nothing\n");
    let found = run(&place, &["--checkpoint", "kept"]).expect(69).stderr;
    assert!(found.contains("kept/0/training") && !found.contains("is lost"), "{found}");
    let found = run(&place, &["--ranks", "65"]).expect(2).stderr;
    assert!(found.contains("64 are the most") && found.contains("tidemill job submit"), "{found}");
}
