//! The Compose program of a machine: the plugin of `docker`, or a separate one. Both read the files that `tidemill deploy`
//! writes.
use crate::cause::{Cause, OperateError};
use crate::control::Control;
use crate::diagnosis::diagnose;
use crate::machine::{Call, Machine};
use crate::process::ProgramOutput;
use std::time::Duration;

/// Timeout of starting or stopping a location.
const WORK: Duration = Duration::from_secs(300);

/// A Compose program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Compose {
    words: Vec<String>,
    /// Its version.
    pub(crate) version: String,
}

/// Parses a version: `2.26.1`, `v2.26.1`, `1.29.2`.
fn version(told: &ProgramOutput) -> Option<String> {
    let text = told.text();
    let text = text.strip_prefix('v').unwrap_or(&text);
    let is_version =
        text.starts_with(|c: char| c.is_ascii_digit()) && text.contains('.') && !text.contains('\n');
    (told.is_ok() && is_version).then(|| text.to_owned())
}

impl Compose {
    /// Finds the program of a machine; prefers the plugin of `docker`, because the other one is no longer developed.
    pub(crate) fn find(machine: &Machine, control: Control<'_>) -> Result<Self, OperateError> {
        for words in [&["docker", "compose"][..], &["docker-compose"]] {
            let asked: Vec<&str> = [words, &["version", "--short"]].concat();
            let told = machine.run(&Call::look(&asked), control)?;
            if let Some(version) = version(&told) {
                return Ok(Self { words: words.iter().map(|word| (*word).to_owned()).collect(), version });
            }
        }
        Err(Cause::NoCompose { machine: machine.name() }.into())
    }

    /// Its name for people.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.words.join(" "), self.version)
    }

    /// Returns the command line for a project.
    pub(crate) fn words<'w>(&'w self, project: &'w str, files: &[&'w str], more: &[&'w str]) -> Vec<&'w str> {
        let mut words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        words.extend(["--project-name", project]);
        words.extend(files.iter().flat_map(|file| ["--file", *file]));
        words.extend(more);
        words
    }

    /// Runs it in the folder of a location.
    pub(crate) fn run(
        &self,
        machine: &Machine,
        folder: &str,
        words: &[&str],
        control: Control<'_>,
    ) -> Result<(), OperateError> {
        let call = Call { words, folder: Some(folder), input: b"", patience: WORK };
        let told = machine.run(&call, control)?;
        if told.is_ok() {
            return Ok(());
        }
        Err(diagnose(&machine.name(), "Compose", &told.complaint()).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(code: i32, stdout: &str) -> ProgramOutput {
        ProgramOutput { code: Some(code), stdout: stdout.as_bytes().to_vec(), stderr: String::new() }
    }

    #[test]
    fn versions_are_read_and_help_texts_are_none() {
        assert_eq!(version(&told(0, "2.26.1\n")).as_deref(), Some("2.26.1"));
        assert_eq!(version(&told(0, "v2.40.3\n")).as_deref(), Some("2.40.3"));
        assert_eq!(version(&told(0, "1.29.2")).as_deref(), Some("1.29.2"));
        assert_eq!(
            version(&told(0, "\nUsage:  docker [OPTIONS] COMMAND\n\nA runtime. for containers")),
            None
        );
        assert_eq!(version(&told(125, "2.26.1")), None);
    }

    #[test]
    fn words_name_the_project_and_all_files() {
        let compose = Compose { words: vec!["docker".into(), "compose".into()], version: "2.26.1".into() };
        let words = compose.words("p-edge", &["compose.yaml", "compose.gpu.yaml"], &["up", "--detach"]);
        let expected =
            "docker compose --project-name p-edge --file compose.yaml --file compose.gpu.yaml up --detach";
        assert_eq!(words.join(" "), expected);
    }
}
