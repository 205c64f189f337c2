//! Rules for all scripts.
use crate::repository::root;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// A second Ctrl-C leaves nothing half removed: a cleanup continues, and so do the commands that it runs.
#[test]
fn what_is_sheltered_ends_by_itself() {
    let script = "cd \"$0\"; . scripts/environment.sh; trap 'echo again' INT
        sheltered sh -c 'echo begins; while [ ! -e \"$0\" ]; do sleep 0.05; done; echo ends; exit 3' \"$1\" || echo \"code $?\"";
    let go_on = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("go-on-{}", std::process::id()));
    let mut child = Command::new("bash")
        .args(["-euc", script])
        .arg(root())
        .arg(&go_on)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0) // as a shell on a terminal does
        .spawn()
        .expect("bash runs");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = || {
        let mut text = String::new();
        out.read_line(&mut text).expect("text");
        text
    };
    assert_eq!(line(), "begins\n");
    // A Ctrl-C goes to the whole group.
    let sent = Command::new("bash").args(["-c", "kill -INT -- \"-$0\"", &child.id().to_string()]).status();
    assert!(sent.expect("kill runs").success());
    assert_eq!(line(), "again\n");
    std::fs::write(&go_on, "").expect("a file");
    let mut rest = String::new();
    out.read_to_string(&mut rest).expect("text");
    std::fs::remove_file(&go_on).expect("it is there");
    assert_eq!(rest, "ends\ncode 3\n");
    assert!(child.wait().expect("an end").success());
}
