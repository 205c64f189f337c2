//! `tidemill doctor`: checks this machine, or a cluster, and gives advice about missing parts.
//!
//! Only parts that every run of this version needs are problems. A part that affects speed, or serves one purpose only, is
//! a note that says which.
#[cfg(feature = "cluster")]
mod cluster;
#[cfg(not(feature = "cluster"))]
#[path = "doctor/cluster_absent.rs"]
mod cluster;
mod folding;
mod limits;
mod machine;
mod programs;
mod storage;

use crate::arguments::{DoctorArguments, OutputForm};
use crate::exit::{Exit, explain};
use crate::features;
use crate::table::hanging;
use crate::terminal::Terminal;
use serde::Serialize;
use serde_json::json;
use std::borrow::Cow;
use std::io::{self, Write};
use std::process::{Command, Stdio};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Listener;
use tidemill_inference::backend::library::cache_folder;

/// State of a checked part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// Correct.
    Ok,
    /// A restriction, or a missing part for one purpose.
    Note,
    /// Runs fail or are wrong.
    Problem,
}

/// Result of one check.
#[derive(Debug, Clone, Serialize)]
struct Finding {
    state: State,
    name: Cow<'static, str>,
    detail: String,
    /// A command, or advice in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Finding {
    fn ok(name: impl Into<Cow<'static, str>>, detail: impl Into<String>) -> Self {
        Self { state: State::Ok, name: name.into(), detail: detail.into(), fix: None }
    }

    fn note(name: impl Into<Cow<'static, str>>, detail: impl Into<String>) -> Self {
        Self { state: State::Note, ..Self::ok(name, detail) }
    }

    fn problem(name: impl Into<Cow<'static, str>>, detail: impl Into<String>) -> Self {
        Self { state: State::Problem, ..Self::ok(name, detail) }
    }

    fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

/// Checks everything and reports.
pub(crate) fn doctor(arguments: &DoctorArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let mut failed = None;
    if arguments.fix {
        let libraries = [
            ("onnxruntime", "without it, models run on the built-in backend `rten`"),
            ("highs", "without it, planners use the built-in solver `microlp`"),
            ("ffmpeg", "without it, workflows with videos are rejected"),
            ("avcodec", "without it, videos with `decoder: library` are rejected"),
        ];
        for (library, without) in libraries {
            if let Err(failure) = install(library, without, terminal) {
                failed = Some(explain(&failure.into(), terminal));
            }
        }
    }
    let findings = match arguments.cluster {
        true => cluster::look(arguments)?,
        false => {
            let mut findings = machine::look();
            findings.extend(missing_features());
            findings.extend(programs::look());
            findings.extend(storage::look());
            findings.extend(limits::look());
            findings
        }
    };
    let problems = findings.iter().filter(|finding| finding.state == State::Problem).count();
    let mut out = crate::answer::out();
    match arguments.output {
        OutputForm::Table => {
            match arguments.cluster {
                true => write_findings(&mut out, &folding::folded(&findings))?,
                false => write_findings(&mut out, &findings)?,
            }
            let notes = findings.iter().filter(|finding| finding.state == State::Note).count();
            writeln!(out, "\n{problems} problem{}, {notes} note{}", plural(problems), plural(notes))?;
        }
        OutputForm::Json => {
            let document = json!({"version": 2, "problems": problems, "findings": findings});
            serde_json::to_writer_pretty(&mut out, &document)?;
            writeln!(out)?;
        }
    }
    out.flush()?;
    let looked = if problems == 0 { Exit::Success } else { Exit::No };
    Ok(failed.unwrap_or(looked))
}

/// The features that this build lacks; none: it has all.
fn missing_features() -> Option<Finding> {
    let missing = features::missing();
    (!missing.is_empty()).then(|| {
        let contents: Vec<String> =
            missing.iter().map(|feature| format!("{} ({})", feature.name, feature.content)).collect();
        Finding::note("features", format!("this build lacks {}", contents.join(", ")))
            .fix(features::BUILD_ALL)
    })
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn write_findings(out: &mut dyn Write, findings: &[Finding]) -> io::Result<()> {
    let width = findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
    for finding in findings {
        let state = match finding.state {
            State::Ok => "ok",
            State::Note => "note",
            State::Problem => "PROBLEM",
        };
        hanging(out, &format!("{state:<8} {:<width$}  ", finding.name), &finding.detail)?;
        if let Some(fix) = &finding.fix {
            hanging(out, &format!("{:8} {:<width$}  ", "", ""), &format!("fix: {fix}"))?;
        }
    }
    Ok(())
}

/// The script that also `make setup` runs; it checks the digest and changes nothing if the library exists.
const FETCH: &str = include_str!("../../scripts/fetch-library.sh");

/// Installs a library into the user's cache, where every project finds it; `without` describes the loss if that fails.
fn install(library: &str, without: &str, terminal: &Terminal) -> Result<(), Failure> {
    let failed = |text: String| {
        Failure::new(Kind::Unavailable, format!("cannot install {library}: {text}")).with_help(without)
    };
    let folder = cache_folder().ok_or_else(|| failed("neither HOME nor XDG_CACHE_HOME is set".to_owned()))?;
    let mut child = Command::new("bash")
        .args(["-s", "--", library])
        .arg(folder.join("lib"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(format!("cannot start bash: {error}")))?;
    if let Some(mut script) = child.stdin.take() {
        // A script that ends early closes the pipe; its output has the reason.
        let _ = script.write_all(FETCH.as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if !output.status.success() {
        return Err(failed(words));
    }
    terminal.note(&words);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_finding_and_its_mend_below() {
        let findings =
            [Finding::ok("cores", "2"), Finding::problem("open files", "only 16").fix("ulimit -n 1024")];
        let mut text = Vec::new();
        write_findings(&mut text, &findings).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "ok       cores       2\nPROBLEM  open files  only 16\n                     fix: ulimit -n 1024\n"
        );
    }
}
