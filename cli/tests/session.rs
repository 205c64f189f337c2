//! Shell sessions as text, `$ command` and its output: run, compare and rewrite them.
//!
//! A session is one shell, so `cd` and `export` affect later commands. Standard error is interleaved with standard output,
//! as on a terminal.
use crate::command::root;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// One command and its actual or expected output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) command: String,
    pub(crate) output: String,
    pub(crate) code: i32,
}

/// Marks the end of a command's output; no text has it.
const END: char = '\u{1}';

/// Parses a session: a command starts with `$ `, continues in lines that start with `> `, and ends before its output.
/// `[exit code N]` is the last line of a command that does not end with 0.
pub(crate) fn parse(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { command: command.to_owned(), output: String::new(), code: 0 });
            continue;
        }
        let step = steps.last_mut().unwrap_or_else(|| panic!("`{line}` comes before any `$ command`"));
        let code = line.strip_prefix("[exit code ").and_then(|rest| rest.strip_suffix(']'));
        match (code, line.strip_prefix("> ").filter(|_| step.output.is_empty())) {
            (Some(code), _) => step.code = code.parse().unwrap(),
            (None, Some(more)) => step.command = format!("{}\n{more}", step.command),
            (None, None) => step.output = format!("{}{line}\n", step.output),
        }
    }
    for step in &mut steps {
        step.output = step.output.trim_end().to_owned();
    }
    steps
}

/// Formats a session as text.
pub(crate) fn print(steps: &[Step]) -> String {
    let text = |step: &Step| {
        let mut text = format!("$ {}\n", step.command.replace('\n', "\n> "));
        if !step.output.is_empty() {
            text.push_str(&format!("{}\n", step.output));
        }
        if step.code != 0 {
            text.push_str(&format!("[exit code {}]\n", step.code));
        }
        text
    };
    steps.iter().map(text).collect()
}

/// A folder that resembles the repository for a user: examples, models, nothing built or run.
pub(crate) struct Checkout {
    folder: TempDir,
}

impl Checkout {
    /// Data and models are links; folders for output are real.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for example in std::fs::read_dir(root().join("examples")).unwrap().flatten() {
            if !example.path().is_dir() {
                continue;
            }
            let target = folder.path().join("examples").join(example.file_name());
            std::fs::create_dir_all(&target).unwrap();
            for entry in std::fs::read_dir(example.path()).unwrap().flatten() {
                let name = entry.file_name();
                match entry.path().is_dir() {
                    false => drop(std::fs::copy(entry.path(), target.join(name)).unwrap()),
                    true if name == "out" => {}
                    true => std::os::unix::fs::symlink(entry.path(), target.join(name)).unwrap(),
                }
            }
        }
        for linked in ["models", "operators"] {
            std::os::unix::fs::symlink(root().join(linked), folder.path().join(linked)).unwrap();
        }
        Self { folder }
    }

    /// A path in it.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }
}

/// Runs commands one after the other in one shell with these variables; returns the output and exit code of each. Folders
/// of this machine are replaced by `<folder>` and `<repository>`.
pub(crate) fn run(folder: &Path, commands: &[&str], variables: &[(&str, &str)]) -> Vec<(String, i32)> {
    let script: String = commands
        .iter()
        .map(|command| format!("{{ {command}\n}} 2>&1; printf '\\n\\001%d\\n' \"$?\"\n"))
        .collect();
    let binary = Path::new(env!("CARGO_BIN_EXE_tidemill")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = shell();
    shell
        .arg("-c")
        .arg(&script)
        .current_dir(folder)
        .env("PATH", path)
        .env("XDG_CACHE_HOME", Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"))
        .env_remove("TIDEMILL_LOG_LEVEL")
        .env_remove("TIDEMILL_LOG_FORMAT")
        .env_remove("COLUMNS")
        .stdin(Stdio::null());
    shell.envs(variables.iter().copied());
    let output = shell.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut results = Vec::new();
    let mut rest = text.as_str();
    while let Some((printed, after)) = rest.split_once(&format!("\n{END}")) {
        let (code, after) = after.split_once('\n').unwrap();
        results.push((without_places(printed.trim_end(), folder), code.parse().unwrap()));
        rest = after;
    }
    let left = String::from_utf8_lossy(&output.stderr);
    assert_eq!(results.len(), commands.len(), "the shell ended early:\n{text}\n{left}");
    results
}

/// A shell with the rights of an ordinary user: root may open every file, and then nothing is ever refused.
fn shell() -> Command {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        return Command::new("sh");
    }
    let rights = "-dac_override,-dac_read_search";
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", rights, "--inh-caps", rights, "sh"]);
    command
}

fn without_places(text: &str, folder: &Path) -> String {
    let real = std::fs::canonicalize(folder).unwrap();
    text.replace(real.to_str().unwrap(), "<folder>")
        .replace(folder.to_str().unwrap(), "<folder>")
        .replace(root().to_str().unwrap(), "<repository>")
}

#[test]
fn sessions_are_read_and_written() {
    let text = "$ cat <<END\n> a\n> END\na\n$ false\n[exit code 1]\n";
    let steps = parse(text);
    assert_eq!(steps[0].command, "cat <<END\na\nEND");
    assert_eq!((steps[0].output.as_str(), steps[1].code), ("a", 1));
    assert_eq!(print(&steps), text);
    let folder = tempfile::tempdir().unwrap();
    let commands: Vec<&str> = steps.iter().map(|step| step.command.as_str()).collect();
    assert_eq!(run(folder.path(), &commands, &[]), [("a".to_owned(), 0), (String::new(), 1)]);
}
