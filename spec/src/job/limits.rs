//! Texts and numbers of a job that a system cannot use.
use super::{JobKind, JobSpec};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::span::Span;
use crate::units::{Bytes, TimeSpan};
use std::path::{Component, Path, PathBuf};

/// Longest [`JobSpec::checkpoint_within`]: a machine that streams need, or whose agent is lost, waits for it.
pub const LONGEST_CHECKPOINT: TimeSpan = TimeSpan(3_600_000_000_000);
/// Least memory of a task: what the process that supervises it needs.
pub const LEAST_MEMORY: Bytes = Bytes(16_000_000);

impl JobSpec {
    /// Checks texts for the system, and the bounds of times and memory.
    pub(super) fn check_limits(&self) -> Diagnostics {
        let mut found = Diagnostics::new();
        let mut wrong = |text: String, span: &Span, help: String| {
            found.push(Diagnostic::error("E0761", text).at(span.clone()).with_help(help));
        };
        if let Some(program) = self.command.first().filter(|program| program.value.trim().is_empty()) {
            wrong(
                "the program is empty".to_owned(),
                &program.span,
                "write `command: [PROGRAM, ARGUMENT]`".into(),
            );
        }
        for text in self.command.iter().chain(&self.arguments).filter(|text| text.value.contains('\0')) {
            let text = (format!("`{}` has a NUL character", shown(&text.value)), &text.span);
            wrong(text.0, text.1, "leave it out: no argument of a program can have one".to_owned());
        }
        for (name, value) in &self.environment {
            if let Some(help) = refusal(name) {
                wrong(format!("`{}` is not a name for a variable", shown(name)), &value.span, help);
            }
            if value.value.contains('\0') {
                let text = format!("the variable `{}` has a NUL character", shown(name));
                wrong(text, &value.span, "leave it out: no variable can have one".to_owned());
            }
        }
        if self.kind == JobKind::Profile {
            self.check_infrastructure(&mut wrong);
        }
        let within = &self.checkpoint_within;
        if within.value > LONGEST_CHECKPOINT {
            let help = format!(
                "write at most `{LONGEST_CHECKPOINT}`, and have the task write `READY` from time to time: it continues from there"
            );
            wrong(format!("{within} for a checkpoint is too long"), &within.span, help);
        }
        let memory = &self.resources.memory;
        if memory.value < LEAST_MEMORY {
            let help = format!("write at least `{LEAST_MEMORY}`");
            wrong(format!("{memory} of memory is too little for a task"), &memory.span, help);
        }
        found
    }

    /// Checks that the worker will find the infrastructure that `tidemill profile` needs.
    fn check_infrastructure(&self, wrong: &mut impl FnMut(String, &Span, String)) {
        let mut arguments = self.arguments.iter();
        let named = loop {
            match arguments.next() {
                Some(one) if one.value == "--infra" => {
                    break arguments.next().map(|one| (one.value.as_str(), one));
                }
                Some(one) => {
                    if let Some(file) = one.value.strip_prefix("--infra=") {
                        break Some((file, one));
                    }
                }
                None => break None,
            }
        };
        let Some((file, of)) = named else {
            let help = "write `arguments: [--infra, infrastructure.yaml]` and `files: [infrastructure.yaml]`";
            let at = self.workflow.as_ref().map_or(&self.name.span, |workflow| &workflow.span);
            return wrong("a profile needs an infrastructure".to_owned(), at, help.to_owned());
        };
        let plain = |path: &str| -> PathBuf {
            Path::new(path).components().filter(|part| !matches!(part, Component::CurDir)).collect()
        };
        let travels = self.files.iter().any(|known| plain(file).starts_with(plain(&known.value)));
        if Path::new(file).is_relative() && !travels {
            let text = format!("the infrastructure `{}` does not travel with the job", shown(file));
            wrong(text, &of.span, format!("add `files: [{}]`", shown(file)));
        }
    }
}

/// Returns what to write instead of a name of a variable; none: it is one.
pub fn refusal(name: &str) -> Option<String> {
    let names = "write letters, digits and `_`, as in `LEARNING_RATE`";
    match name.split_once('=') {
        _ if name.contains('\0') => Some(names.to_owned()),
        Some((first, rest)) if !first.is_empty() => Some(format!(
            "write `{}: {}`: the value is on the other side of the colon",
            first,
            if rest.is_empty() { "VALUE" } else { rest }
        )),
        Some(_) => Some(names.to_owned()),
        None if name.is_empty() || name.chars().any(char::is_whitespace) => Some(names.to_owned()),
        None => None,
    }
}

fn shown(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::super::JobFile;

    fn errors(job: &str) -> String {
        JobFile::parse(&format!("version: 1\njob: {job}\n"), "job.yaml").unwrap_err().to_string()
    }

    #[test]
    fn each_limit_has_its_place_and_its_fix() {
        for (job, place, words) in [
            ("{name: a, command: ['']}", "job.yaml:2:26", "the program is empty"),
            ("{name: a, command: [a, \"b\\0c\"]}", "job.yaml:2:29", "has a NUL character"),
            ("{name: a, command: [a], environment: {'A=B': 'c'}}", "job.yaml:2:", "write `A: B`"),
            ("{name: a, command: [a], environment: {'': 'c'}}", "job.yaml:2:", "letters, digits and `_`"),
            (
                "{name: a, command: [a], environment: {A: \"b\\0\"}}",
                "job.yaml:2:",
                "the variable `A` has a NUL",
            ),
            ("{name: a, command: [a], checkpoint_within: 2h}", "job.yaml:2:49", "write at most `1h`"),
            ("{name: a, command: [a], resources: {memory: 1B}}", "job.yaml:2:50", "write at least `16MB`"),
            (
                "{name: a, kind: profile, workflow: w.yaml}",
                "job.yaml:2:41",
                "`arguments: [--infra, infrastructure.yaml]`",
            ),
            (
                "{name: a, kind: profile, workflow: w.yaml, arguments: [--infra=i.yaml]}",
                "job.yaml:2:61",
                "`files: [i.yaml]`",
            ),
        ] {
            let found = errors(job);
            assert!(
                found.contains(words) && found.contains(place),
                "`{words}` or `{place}` is not in\n{found}"
            );
        }
    }

    #[test]
    fn a_task_may_be_ended_at_once() {
        let text =
            "version: 1\njob: {name: a, command: [a, ''], checkpoint_within: 0s, environment: {A: ''}}\n";
        assert_eq!(JobFile::parse(text, "job.yaml").unwrap().job.checkpoint_within.value.0, 0);
    }
}
