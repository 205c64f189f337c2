//! The process between an agent and a task; through the built binary.
use crate::command::{Place, command};
use crate::full_disk::in_own_mounts;
use serde_json::{Value, json};
use std::io::Write;

fn order(folder: &str, end: &str, program: &[&str]) -> String {
    let order = json!({
        "command": program, "environment": {}, "folder": folder, "signal": "TERM",
        "checkpoint_within_milliseconds": 1000, "lock": format!("{folder}/lock"), "end": end, "lease_until": u64::MAX,
    });
    format!("{order}\n")
}

fn carry_out(order: &str) -> std::process::Output {
    let mut child = command(&["task-process"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
    // The task has ended when there is nothing more to read.
    let mut input = child.stdin.take().unwrap();
    input.write_all(order.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    drop(input);
    output
}

#[test]
fn a_command_that_is_no_program_has_failed_for_good() {
    let place = Place::empty("task");
    place.write("plain.txt", "text");
    for program in ["no-such-program", "./none", "./plain.txt"] {
        let output = carry_out(&order(&place.argument(""), &place.argument("end.json"), &[program]));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let end: Value = serde_json::from_str(&place.read("end.json")).unwrap();
        std::fs::remove_file(place.path("end.json")).unwrap();
        assert_eq!((&end["is_not_started"], &end["code"]), (&json!(false), &Value::Null), "{end}");
        let why = end["why"].as_str().unwrap();
        assert!(why.contains(&format!("cannot start `{program}`")), "{why}");
        assert!(why.contains("list it under `files`"), "{why}");
    }
}

#[test]
fn a_disk_that_refuses_the_end_is_named() {
    let place = Place::empty("task");
    let output = carry_out(&order(&place.argument(""), "/dev/full", &["true"]));
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(69), "{text}");
    assert!(text.contains("/dev/full") && text.contains("No space left"), "{text}");
}

/// Its room was taken before the task began.
#[test]
fn the_end_of_a_task_that_fills_its_disk_is_known() {
    let place = Place::empty("task");
    place.write("order", order(".", "disk/end.json", &["sh", "-c", "cat /dev/zero > disk/zeros; exit 3"]));
    let script = "mkdir -p disk && mount -t tmpfs -o size=64k small disk || exit 250
         printf '%4096s' ' ' > disk/end.json; mkfifo orders
         \"$TIDEMILL\" task-process < orders & child=$!
         exec 3> orders; cat order >&3; wait $child
         code=$?; exec 3>&-; cp disk/end.json end.json; df disk | tail -n 1; exit $code";
    let Some(outcome) = in_own_mounts(&place, script) else { return };
    assert!(outcome.stdout.contains("100%"), "the disk is not full: {}", outcome.stdout);
    let end: Value = serde_json::from_str(&place.read("end.json")).unwrap();
    assert_eq!((&end["code"], &end["why"]), (&json!(3), &json!("its exit code is 3")), "{end}");
    assert!(outcome.stderr.contains("No space left"), "{}", outcome.stderr);
}
