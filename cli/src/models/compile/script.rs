//! The script that compiles, and its messages. It is in the program, so that an installed one needs no clone of the repository.
use super::environment;
use crate::arguments::CompileArguments;
use crate::status_line::StatusLine;
use crate::terminal::Terminal;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Listener;

pub(super) const SCRIPT: &str = include_str!("../../../../scripts/tvm_compile.py");

/// Report of the script on a module.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Compiled {
    /// Records of one run; none if all sizes are fixed.
    pub(super) batch: Option<u64>,
    /// Functions that have a schedule.
    pub(super) functions: u64,
    /// Functions of them whose schedule a search found.
    pub(super) searched: u64,
    /// Candidates that the search measured.
    pub(super) trials: u64,
    /// Time of all of it.
    pub(super) seconds: f64,
    /// Time of a run.
    pub(super) tvm_ms: f64,
    /// Time of a run by ONNX Runtime; none if it cannot compute the model.
    pub(super) ort_ms: Option<f64>,
    /// Largest difference of the outputs, as a part of the largest output.
    pub(super) difference: Option<f64>,
}

/// A line of the script.
#[derive(Debug, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
enum Message {
    Note { text: String },
    Search { trials: u64, left_s: u64 },
    Failed { kind: String, text: String, fix: String },
    Done(Compiled),
}

/// Compiles an ONNX file into a module. `records`: folder for the measurements of a search.
pub(super) fn run(
    python: &Path,
    onnx: &Path,
    arguments: &CompileArguments,
    module: &Path,
    records: &Path,
    terminal: &Terminal,
) -> Result<Compiled, Failure> {
    let start = |error: std::io::Error| {
        Failure::new(Kind::Unavailable, format!("cannot start {}: {error}", python.display()))
            .with_help(environment::again(python))
    };
    // Output of libraries is shown only if they fail.
    let mut printed = tempfile::tempfile().map_err(start)?;
    let mut child = Command::new(python)
        .args(["-I", "-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(printed.try_clone().map_err(start)?)
        .spawn()
        .map_err(start)?;
    // The script ends when its stdin does, so stdin is kept open to the end, and is closed even by `kill -9`.
    let mut life_line = child.stdin.take();
    let sizes: serde_json::Map<_, _> =
        arguments.sizes.iter().map(|(name, size)| (name.clone(), json!(size))).collect();
    let job = json!({
        "onnx": onnx, "file": module, "batch": arguments.batch, "sizes": sizes, "records": records,
        "tune_s": arguments.tune.map_or(0, |time| time.as_secs().max(1)),
    });
    // A script that does not read it has ended, which is reported below.
    let _ = life_line.as_mut().map(|stdin| writeln!(stdin, "{job}"));
    let mut line = StatusLine::new(*terminal);
    let mut result = None;
    for said in child.stdout.take().into_iter().flat_map(|stdout| BufReader::new(stdout).lines()) {
        let said =
            said.map_err(|error| Failure::new(Kind::Defect, format!("cannot read tvm_compile.py: {error}")))?;
        match serde_json::from_str(&said) {
            Ok(Message::Note { text }) => terminal.note(&text),
            Ok(Message::Search { trials, left_s }) => {
                line.show(|_| format!("searching: {trials} trials, {left_s} s left"));
            }
            Ok(Message::Failed { kind, text, fix }) => result = Some(Err(failure(&kind, &text, fix, python))),
            Ok(Message::Done(compiled)) => result = Some(Ok(compiled)),
            Err(error) => {
                return Err(Failure::new(Kind::Defect, format!("tvm_compile.py says {said:?}: {error}")));
            }
        }
    }
    line.finish();
    let status = child.wait().map_err(start)?;
    result.unwrap_or_else(|| {
        let mut text = String::new();
        // A text that cannot be read adds nothing to the error.
        let _ = printed.rewind().and_then(|()| printed.read_to_string(&mut text));
        let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it printed nothing");
        Err(Failure::new(Kind::Unavailable, format!("TVM ended without a module ({status}): {last}"))
            .with_help("compute the model by another back end, such as ort"))
    })
}

fn failure(kind: &str, text: &str, fix: String, python: &Path) -> Failure {
    match kind {
        "environment" => Failure::new(Kind::Unavailable, text).with_help(environment::again(python)),
        "dimension" => Failure::new(Kind::Usage, text).with_help(fix),
        _ => Failure::new(Kind::Configuration, text).with_help(fix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_environment_names_the_command_that_repairs_it() {
        let python = Path::new("/e/bin/python");
        let lacks = failure("environment", "no onnx", String::new(), python);
        assert_eq!(lacks.kind(), Kind::Unavailable);
        assert!(lacks.help().is_some_and(|help| help.starts_with("python3 -m venv '/e' &&")));
        assert_eq!(failure("dimension", "open", "--size n=N".to_owned(), python).kind(), Kind::Usage);
        assert_eq!(failure("operator", "no", "ort".to_owned(), python).kind(), Kind::Configuration);
    }

    #[test]
    fn messages_of_the_script_are_read() {
        let read = |text: &str| serde_json::from_str::<Message>(text);
        assert!(matches!(
            read(r#"{"step": "search", "trials": 3, "left_s": 20}"#),
            Ok(Message::Search { trials: 3, .. })
        ));
        assert!(matches!(
            read(r#"{"step": "failed", "kind": "model", "text": "x", "fix": ""}"#),
            Ok(Message::Failed { .. })
        ));
        let done = r#"{"step": "done", "batch": null, "shapes": {"x": [1]}, "functions": 2, "seconds": 1.5, "trials": 0,
            "searched": 0, "tvm_ms": 0.5}"#;
        let Ok(Message::Done(done)) = read(done) else { panic!("a module") };
        assert_eq!((done.batch, done.ort_ms, done.tvm_ms), (None, None, 0.5));
    }
}
