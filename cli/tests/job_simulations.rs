//! `tidemill job simulate` through the binary.
use crate::command::{Place, tidemill};
use serde_json::Value;

const SIXTY: &str = "cluster/jobs/tests/data/60-jobs.csv";

fn mean(answer: &Value, policy: &str) -> f64 {
    let all = answer["policies"].as_array().unwrap();
    let one = all.iter().find(|one| one["policy"] == policy).unwrap_or_else(|| panic!("{policy}: {answer}"));
    one["completion"]["mean"].as_f64().unwrap()
}

#[test]
fn policies_stand_beside_each_other() {
    let table = tidemill(&["job", "simulate", "--jobs", "60"]).expect(0);
    for word in ["60 jobs (seed 1)", "15 machines with 60 slots", "fifo", "2d-gittins", "PREEMPTED", "FACTOR"]
    {
        assert!(table.stdout.contains(word), "{word}: {}", table.stdout);
    }
    assert!(table.stdout.contains("note: srtf and srsf know how long each job takes"), "{}", table.stdout);
    assert_eq!(table.stdout, tidemill(&["job", "simulate", "--jobs", "60"]).expect(0).stdout);
    let other = tidemill(&["job", "simulate", "--jobs", "60", "--seed", "2"]).expect(0);
    assert_ne!(table.stdout, other.stdout);
}

#[test]
fn a_trace_is_simulated_as_it_was_published() {
    let free = ["--checkpoint", "0s", "--resume", "0s", "--least-run", "0s", "--output", "json"];
    let of = ["job", "simulate", "--trace", SIXTY, "--cluster", "1x8", "--policy", "fifo,srtf"];
    let answer = tidemill(&[&of[..], &free].concat()).expect(0).json();
    assert!((mean(&answer, "fifo") - 1556.45).abs() < 0.1, "{answer}");
    assert!((mean(&answer, "srtf") - 519.85).abs() < 0.1, "{answer}");
    assert_eq!((answer["jobs"].as_u64(), answer.get("seed")), (Some(60), None));
    // Preemptions cost something.
    let costly = tidemill(&[&of[..], &["--output", "json"]].concat()).expect(0).json();
    assert!(costly["policies"][1]["preemptions"].as_u64().is_some_and(|count| count > 0), "{costly}");
    assert!(costly["policies"][1]["overhead"].as_f64().is_some_and(|seconds| seconds >= 60.0), "{costly}");
}

#[test]
fn written_jobs_are_simulated_again() {
    let place = Place::empty("job-simulations");
    let file = place.argument("trace.csv");
    let json = ["--policy", "2d-las", "--output", "json"];
    let first = tidemill(&[&["job", "simulate", "--jobs", "40", "--write-trace", &file][..], &json].concat())
        .expect(0);
    let again = tidemill(&[&["job", "simulate", "--trace", &file][..], &json].concat()).expect(0);
    assert_eq!(first.json()["policies"], again.json()["policies"]);
}

#[test]
fn mistakes_say_what_to_write() {
    let place = Place::empty("job-mistakes");
    place.write("trace.csv", "job,task,submitted,duration\na,1,0s,1s\n");
    place.write("wide.csv", "job,tasks,submitted,duration\na,64,0s,1s\n");
    let (trace, wide) = (place.argument("trace.csv"), place.argument("wide.csv"));
    let wrong = |arguments: &[&str], code: i32, words: &[&str]| {
        let outcome = tidemill(&[&["job", "simulate"][..], arguments].concat()).expect(code);
        for word in words {
            assert!(outcome.stderr.contains(word), "{word}: {}", outcome.stderr);
        }
    };
    wrong(&["--trace", &trace], 78, &["unknown column `task`", "trace.csv:1:5", "did you mean `tasks`?"]);
    wrong(&["--trace", &wide], 78, &["the job `a` needs 64 tasks of 1 slot at once; the machines hold 60"]);
    wrong(&["--policy", "lifo"], 2, &["unknown policy `lifo`", "fifo"]);
    wrong(&["--cluster", "many"], 2, &["neither machines such as `15x4` nor a file"]);
    wrong(&["--thresholds", "soon"], 2, &["`soon` is no service"]);
    wrong(&["--promote-knob", "0"], 2, &["write `1`, `4` or `inf`"]);
}
