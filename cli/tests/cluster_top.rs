//! `tidemill top` on a pseudo terminal of `script`, as a user sees it.
use crate::command::tidemill;
use crate::live::{endless, serving, until, until_committed};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

/// A shell on a pseudo terminal of 80 columns, and its output so far.
struct Session {
    child: Child,
    shown: Arc<Mutex<String>>,
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Session {
    fn start(folder: &Path, command: &str) -> Self {
        let shell =
            format!("stty rows 24 cols 80; stty -a > before; {command}; echo ended with $?; stty -a > after");
        let binary = Path::new(env!("CARGO_BIN_EXE_tidemill")).parent().unwrap();
        let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap_or_default());
        let mut child = Command::new("script")
            .args(["--quiet", "--flush", "--return", "--command", &shell, "/dev/null"])
            .current_dir(folder)
            .env("PATH", path)
            .env("TERM", "xterm")
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("`script` makes a pseudo terminal: apt-get install bsdutils");
        let mut out = child.stdout.take().unwrap();
        let shown = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&shown);
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(read @ 1..) = out.read(&mut part) {
                kept.lock().unwrap().push_str(&String::from_utf8_lossy(&part[..read]));
            }
        });
        Self { child, shown }
    }

    fn shown(&self) -> String {
        self.shown.lock().unwrap().clone()
    }

    /// The output since the last redraw.
    fn screen(&self) -> String {
        let shown = self.shown();
        shown.rsplit("\u{1b}[H").nth(1).unwrap_or_default().to_owned()
    }

    fn until_shows(&self, text: &str) {
        until(|| self.screen().contains(text) || self.shown().contains("ended with"));
        assert!(self.screen().contains(text), "{text} is not in\n{}", self.shown());
    }

    fn press(&mut self, keys: &str) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(keys.as_bytes()).unwrap();
        input.flush().unwrap();
    }

    /// Waits for its end, and checks that the terminal is restored.
    fn end(mut self, folder: &Path) -> String {
        until(|| self.shown().contains("ended with"));
        until(|| folder.join("after").exists());
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
        let settings = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!(settings("before"), settings("after"), "the terminal is not as it was");
        let shown = self.shown();
        let (_, after) = shown.split_once("\u{1b}[?1049h").expect("it has another page");
        assert!(after.contains("\u{1b}[?25h\u{1b}[?1049l"), "the page of the shell is not back: {shown:?}");
        shown
    }
}

#[test]
fn a_run_is_watched_on_a_terminal() {
    let place = endless();
    let (mut child, address) = serving(&place);
    until_committed(&place);
    let folder = tempfile::tempdir().unwrap();
    let mut session = Session::start(folder.path(), &format!("tidemill top --metrics http://{address}"));
    session.until_shows("live (live) is running");
    session.until_shows("s S sort (plan)");
    session.press("s");
    session.until_shows("s S sort (stage)");
    session.press("r");
    session.until_shows("sort (stage, turned)");
    session.press("p");
    session.until_shows("p median");
    session.press("q");
    let shown = session.end(folder.path());
    assert!(shown.contains("ended with 0"), "{shown}");

    let mut session =
        Session::start(folder.path(), &format!("rm -f after; tidemill top --metrics {address}"));
    session.until_shows("is running");
    session.press("\u{3}");
    let shown = session.end(folder.path());
    assert!(shown.contains("ended with 130"), "{shown}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_run_of_this_machine_is_told_once() {
    let place = endless();
    let (mut child, address) = serving(&place);
    until_committed(&place);
    let output = tidemill(&["top", "--metrics", &address, "--once"]).expect(0).stdout;
    assert!(output.contains("live (live) is running") && output.contains("numbers"), "{output}");
    assert!(output.lines().all(|line| line.chars().count() <= 80), "{output}");
    let look = || tidemill(&["top", "--metrics", &address, "--output", "json"]).expect(0).json();
    until(|| look()["figures"]["window_seconds"].as_f64() > Some(0.0));
    let document = look();
    let source = &document["figures"]["sources"][0];
    assert_eq!(source["wanted_per_second"], 200.0, "{document}");
    let measured = source["per_second"].as_f64().unwrap();
    assert!((20.0..2000.0).contains(&measured), "{document}");
    child.kill().unwrap();
    child.wait().unwrap();
    let output = tidemill(&["top", "--metrics", &address, "--once"]).expect(69).stderr;
    assert!(output.contains("cannot read"), "{output}");
    tidemill(&["top", "--metrics", "nowhere", "--once"]).expect(2);
    // Without a terminal it cannot draw.
    let output = tidemill(&["top", "--metrics", "127.0.0.1:1"]).expect(2).stderr;
    assert!(output.contains("--once"), "{output}");
}
