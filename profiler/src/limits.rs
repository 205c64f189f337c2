//! Restrains a process to the speed of a machine with fewer processors.
//!
//! If the system permits, a process is put into a control group with a quota of processor time per 10 ms
//! ([`cgroup::Group`]). The periods are short, so that a model that runs for a few milliseconds is stopped as often as on a
//! slow machine. Otherwise it is pinned to some processors (by the program `taskset`, if it exists), and a share of one
//! processor becomes a factor, which the profile states.
pub mod cgroup;

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// Restraint of a process.
#[derive(Debug)]
pub enum Restraint {
    /// No restraint.
    None,
    /// A control group.
    Group(cgroup::Group),
    /// Pinned to processors; times are multiplied by the factor.
    Pinned {
        /// Numbers of the processors; `None` if they cannot be chosen.
        processors: Option<String>,
        /// 1 unless the type has less than one processor.
        factor: f64,
    },
}

impl Restraint {
    /// Restrains to `cpus` processors, possibly a fraction; `None`: no limit.
    pub fn of(cpus: Option<f64>) -> Self {
        let Some(cpus) = cpus else { return Self::None };
        match cgroup::Group::new(cpus) {
            Ok(group) => Self::Group(group),
            Err(error) => {
                tracing::debug!(%error, "no control group");
                Self::pinned(cpus)
            }
        }
    }

    fn pinned(cpus: f64) -> Self {
        let status = tidemill_machine::Process::this().status();
        let allowed = status.processors().map(processors);
        let wanted = cpus.ceil().max(1.0) as usize;
        let chosen = allowed.filter(|_| taskset().is_some()).map(|allowed| {
            allowed.iter().take(wanted).map(ToString::to_string).collect::<Vec<_>>().join(",")
        });
        Self::Pinned { processors: chosen.filter(|list| !list.is_empty()), factor: (1.0 / cpus).max(1.0) }
    }

    /// Returns a command for this program, restrained if that happens at its start.
    pub fn command(&self, program: &Path) -> Command {
        match (self, taskset()) {
            (Self::Pinned { processors: Some(list), .. }, Some(taskset)) => {
                let mut command = Command::new(taskset);
                command.args(["-c", list.as_str()]).arg(program);
                command
            }
            _ => Command::new(program),
        }
    }

    /// Describes the restraint for the profile.
    pub fn words(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Group(_) => Some("by a control group with periods of 10 ms".to_owned()),
            Self::Pinned { factor, .. } if *factor > 1.0 => Some("by the factor".to_owned()),
            Self::Pinned { processors: Some(list), .. } => Some(format!("by pinning it to processor {list}")),
            Self::Pinned { .. } => {
                Some("not at all: there are no control groups and no `taskset`".to_owned())
            }
        }
    }

    /// Factor by which times must be multiplied.
    pub fn factor(&self) -> f64 {
        match self {
            Self::Pinned { factor, .. } => *factor,
            _ => 1.0,
        }
    }
}

/// The program that pins processes to processors.
fn taskset() -> Option<OsString> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths)
        .map(|folder| folder.join("taskset"))
        .find(|file| file.is_file())
        .map(Into::into)
}

/// Parses a list such as `0-3,8`.
fn processors(list: &str) -> Vec<usize> {
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<usize>().ok()?, last.trim().parse::<usize>().ok()?);
        Some(first..=last.min(first + 4096))
    };
    list.split(',').filter_map(part).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(processors("\t0-2,8"), [0, 1, 2, 8]);
        assert_eq!(processors("5"), [5]);
        assert!(processors("").is_empty() && processors("x-").is_empty());
    }

    #[test]
    fn fractions_are_made_up_by_a_factor() {
        let half = Restraint::pinned(0.5);
        assert_eq!((half.factor(), half.words().as_deref()), (2.0, Some("by the factor")));
        assert_eq!(Restraint::pinned(1.0).factor(), 1.0);
        assert_eq!((Restraint::None.factor(), Restraint::None.words()), (1.0, None));
        assert!(matches!(Restraint::of(None), Restraint::None));
    }

    #[test]
    fn a_pinned_process_runs() {
        let output = Restraint::pinned(1.0).command(Path::new("/bin/echo")).arg("here").output().unwrap();
        assert_eq!(output.stdout, b"here\n");
    }
}
