//! Machines: this one, and others by ssh.
use crate::cause::{Cause, HERE, OperateError};
use crate::control::Control;
use crate::process::{self, ProgramOutput};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tidemill_deploy::shell::quoted;

/// Timeout of ssh's connection, in seconds.
const CONNECT: &str = "ConnectTimeout=15";
/// Makes ssh end when an established connection no longer answers; otherwise waiting for its end takes forever.
pub(crate) const ALIVE: [&str; 4] = ["-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"];
/// Exit code of ssh's own failures.
const SSH_FAILED: i32 = 255;
/// Exit code of shells for a missing program.
const NOT_FOUND: i32 = 127;
/// Exit code of `timeout` when the time is over.
const TIMED_OUT: i32 = 124;
/// Another machine ends a program itself when its time is over, because killing ssh here does not reach it. After this
/// further time it is killed here as well.
const ON_THE_WAY: Duration = Duration::from_secs(5);
/// Runs a program within a time, if there is a program for that.
const WITHIN: &str =
    r#"if command -v timeout >/dev/null 2>&1; then exec timeout "$0" "$@"; else exec "$@"; fi"#;
/// Timeout of queries.
pub(crate) const SHORT: Duration = Duration::from_secs(60);

/// A machine that runs programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Machine {
    /// This machine.
    Here,
    /// Another machine.
    Ssh(Far),
}

/// A machine that is reached by ssh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Far {
    /// `ssh://USER@HOST`; ssh's own configuration applies.
    uri: String,
    /// `ssh`, or its substitute in a test.
    program: PathBuf,
}

/// A program to run.
pub(crate) struct Call<'a> {
    /// Its name and arguments.
    pub(crate) words: &'a [&'a str],
    /// The working directory; `None`: any. On other machines it is relative to the user's own.
    pub(crate) folder: Option<&'a str>,
    /// Its standard input.
    pub(crate) input: &'a [u8],
    /// Timeout.
    pub(crate) patience: Duration,
}

impl<'a> Call<'a> {
    /// Creates a call of a query.
    pub(crate) fn look(words: &'a [&'a str]) -> Self {
        Self { words, folder: None, input: b"", patience: SHORT }
    }
}

impl Machine {
    /// Parses `ssh://USER@HOST[:PORT]`; `None`: this machine.
    ///
    /// # Errors
    /// The problem of the text.
    pub(crate) fn parse(host: Option<&str>) -> Result<Self, String> {
        let Some(text) = host else { return Ok(Self::Here) };
        let rest = text.strip_prefix("ssh://").unwrap_or_default();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.@:[]".contains(c);
        let name = rest.rsplit_once('@').map_or(rest, |(_, name)| name);
        match !name.is_empty()
            && !name.starts_with('-')
            && !rest.starts_with('-')
            && rest.chars().all(is_plain)
        {
            true => Ok(Self::Ssh(Far { uri: text.to_owned(), program: "ssh".into() })),
            false => Err(format!("{text:?} is not a machine: write ssh://USER@HOST or ssh://USER@HOST:PORT")),
        }
    }

    /// Its name in messages.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Here => HERE.to_owned(),
            Self::Ssh(far) => far.uri.trim_start_matches("ssh://").to_owned(),
        }
    }

    pub(crate) fn is_here(&self) -> bool {
        *self == Self::Here
    }

    /// Returns the process that runs a program there, without a timeout.
    pub(crate) fn command(&self, folder: Option<&str>, words: &[&str]) -> Command {
        match self {
            Self::Here => {
                let (program, arguments) =
                    words.split_first().map_or(("true", &[][..]), |(first, rest)| (*first, rest));
                let mut command = Command::new(program);
                command.args(arguments);
                if let Some(folder) = folder {
                    command.current_dir(Path::new(folder));
                }
                command
            }
            Self::Ssh(far) => {
                let mut text = folder.map_or_else(String::new, |folder| format!("cd {} && ", quoted(folder)));
                text.push_str(&words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "));
                let mut command = Command::new(&far.program);
                command.args(["-o", "BatchMode=yes", "-o", CONNECT]).args(ALIVE);
                command.args(["-T", far.uri.as_str(), text.as_str()]);
                command
            }
        }
    }

    /// Runs a program there to its end. A missing one ends with 127, as in a shell.
    ///
    /// # Errors
    /// An interruption; the machine is not reached; the system cannot create a process.
    pub(crate) fn run(&self, call: &Call<'_>, control: Control<'_>) -> Result<ProgramOutput, OperateError> {
        if self.is_here() {
            return match process::run(
                self.command(call.folder, call.words),
                call.input,
                call.patience,
                control,
            )? {
                Ok(told) => Ok(told),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    Ok(ProgramOutput { code: Some(NOT_FOUND), stdout: Vec::new(), stderr: error.to_string() })
                }
                Err(error) => {
                    let what = call.words.join(" ");
                    Err(Cause::Other { machine: self.name(), what, text: error.to_string() }.into())
                }
            };
        }
        let seconds = call.patience.as_millis().div_ceil(1000).to_string();
        let words = [&["sh", "-c", WITHIN, &seconds], call.words].concat();
        let command = self.command(call.folder, &words);
        let unreached = |text: String| Cause::NotReached { machine: self.name(), text };
        let mut told = process::run(command, call.input, call.patience + ON_THE_WAY, control)?
            .map_err(|error| unreached(format!("ssh: {error}")))?;
        match told.code {
            Some(SSH_FAILED) => return Err(unreached(told.complaint()).into()),
            Some(TIMED_OUT) => {
                (told.code, told.stderr) = (None, format!("it took longer than {seconds} s and was killed"));
            }
            None => {
                let text = format!("no answer within {seconds} s; its commands can still continue there");
                return Err(unreached(text).into());
            }
            _ => {}
        }
        Ok(told)
    }
}

/// Whether a program was missing.
pub(crate) fn is_missing(told: &ProgramOutput) -> bool {
    told.code == Some(NOT_FOUND)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// Another machine, whose programs are scripts by name.
    pub(crate) fn scripted(folder: &Path, programs: &[(&str, &str)]) -> Machine {
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        fs::create_dir_all(folder.join("bin")).unwrap();
        for (name, script) in programs {
            write(&format!("bin/{name}"), &format!("#!/bin/sh\n{script}\n"));
        }
        let place = quoted(folder.to_str().unwrap());
        let ssh = format!(
            "#!/bin/sh\nfor word in \"$@\"; do last=$word; done\ncd {place} || exit 255\n\
             [ ! -e unreached ] || {{ echo 'No route to host' >&2; exit 255; }}\n\
             PATH={place}/bin:$PATH exec sh -c \"$last\"\n"
        );
        Machine::Ssh(Far { uri: "ssh://ada@gate".into(), program: write("ssh", &ssh) })
    }

    pub(crate) const NOBODY: Control<'_> = Control { tell: &|_| (), is_interrupted: &|| false };

    #[test]
    fn machines_are_read_and_options_are_none() {
        assert_eq!(Machine::parse(None).unwrap(), Machine::Here);
        assert_eq!(Machine::parse(Some("ssh://ada@box:2222")).unwrap().name(), "ada@box:2222");
        for wrong in ["box", "ssh://", "ssh://-oProxyCommand=x", "ssh://ada@-x", "ssh://a b", "ssh://x;id"] {
            assert!(Machine::parse(Some(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn words_stay_words_in_the_shell_of_another_machine() {
        let machine = Machine::parse(Some("ssh://ada@box")).unwrap();
        let command = machine.command(Some("a folder"), &["echo", "it's", "$HOME;id", ""]);
        let last = command.get_args().last().unwrap().to_str().unwrap();
        assert_eq!(last, r"cd 'a folder' && echo 'it'\''s' '$HOME;id' ''");
        let has = |option: &str| command.get_args().any(|word| word == option);
        assert!(
            has("ServerAliveInterval=15") && has("ServerAliveCountMax=3") && has("BatchMode=yes"),
            "{command:?}"
        );
        let folder = tempfile::tempdir().unwrap();
        let machine = scripted(folder.path(), &[]);
        let told = machine.run(&Call::look(&["printf", "%s.", "it's", "$HOME;id", ""]), NOBODY).unwrap();
        assert_eq!((told.code, told.text().as_str()), (Some(0), "it's.$HOME;id.."));
        let missing = machine.run(&Call::look(&["no-such-program-at-all"]), NOBODY).unwrap();
        assert!(is_missing(&missing), "{missing:?}");
    }

    /// Killing ssh does not kill the program that it started.
    #[test]
    fn a_program_there_that_takes_too_long_is_ended_there() {
        let folder = tempfile::tempdir().unwrap();
        let machine = scripted(folder.path(), &[("slow", "echo $$ >began; sleep 1000; touch ended")]);
        let call = Call { patience: Duration::from_secs(1), ..Call::look(&["slow"]) };
        let told = machine.run(&call, NOBODY).unwrap();
        assert_eq!(told.code, None);
        assert!(told.complaint().contains("longer than 1 s"), "{told:?}");
        let process = fs::read_to_string(folder.path().join("began")).unwrap();
        let is_there = || Path::new("/proc").join(process.trim()).join("cwd").read_link().is_ok();
        // It ends shortly after.
        assert!((0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            !is_there()
        }));
        assert!(!folder.path().join("ended").exists());
    }
}
