//! Bindings of a state besides the parts of its workflow: the file of its dead letters, and processes of an earlier run
//! that may still write.
use crate::command::tidemill;
use crate::states::{checkpoint, outputs, place, same, start, undisturbed, waits};
use rustix::fs::{FlockOperation, flock};
use std::time::Duration;

#[test]
fn dead_letters_stay_in_the_file_that_the_state_knows() {
    let place = place();
    let mut child = start(&place);
    assert!(waits(&place, &mut child, 5));
    child.kill().unwrap();
    child.wait().unwrap();
    let (workflow, state) = (place.argument("workflow.yaml"), place.argument("state"));
    let before = place.read("out/dead.jsonl");
    // Longer than the committed part: it would be cut.
    let mine = "mine\n".repeat(100_000);
    place.write("out/mine.jsonl", &mine);
    let kept = ", dead_letters: out/dead.jsonl";
    for (now, told) in [(", dead_letters: out/mine.jsonl", "names `out/mine.jsonl`"), (" ", "names none")] {
        place.change(
            "workflow.yaml",
            &format!("checkpoint_every: 5{kept}"),
            &format!("checkpoint_every: 5{now}"),
        );
        let refused = tidemill(&["run", &workflow, "--state", &state]).expect(78).stderr;
        for part in ["are in `out/dead.jsonl`", told, "write `dead_letters: out/dead.jsonl`", "state reset"] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
        place.change(
            "workflow.yaml",
            &format!("checkpoint_every: 5{now}"),
            &format!("checkpoint_every: 5{kept}"),
        );
    }
    assert_eq!(place.read("out/mine.jsonl"), mine);
    assert_eq!(place.read("out/dead.jsonl"), before);
    tidemill(&["run", &workflow, "--state", &state, "--quiet"]).expect(0);
    same(&outputs(&place), &undisturbed());
}

/// A run of one process waits for the workers' processes of the previous run, which may still write the outputs.
#[test]
#[ignore = "long: make test-long"]
fn a_run_waits_for_the_workers_of_the_run_before() {
    let place = place();
    let mut child = start(&place);
    assert!(waits(&place, &mut child, 5));
    child.kill().unwrap();
    child.wait().unwrap();
    let lock = std::fs::File::create(place.path("state/workers.lock")).unwrap();
    flock(&lock, FlockOperation::LockShared).unwrap();
    let before = checkpoint(&place);
    let mut child = start(&place);
    for _ in 0..50 {
        assert!(child.try_wait().unwrap().is_none(), "it did not wait");
        assert_eq!(checkpoint(&place), before, "it did not wait");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(lock);
    assert!(child.wait().unwrap().success());
    same(&outputs(&place), &undisturbed());
}
