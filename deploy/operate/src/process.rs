//! Runs other programs with input and a timeout, until interrupted.
use crate::cause::OperateError;
use crate::clock;
use crate::control::Control;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Interval of checks whether a program has ended.
const LOOK: Duration = Duration::from_millis(10);

/// Output of a program, and its exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProgramOutput {
    /// Its exit code; `None` if a signal or the timeout ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl ProgramOutput {
    pub(crate) fn is_ok(&self) -> bool {
        self.code == Some(0)
    }

    /// Its standard output as trimmed text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim().to_owned()
    }

    /// Its message about a failure: the last lines.
    pub(crate) fn complaint(&self) -> String {
        let own = if self.stderr.trim().is_empty() { self.text() } else { self.stderr.trim().to_owned() };
        let lines: Vec<&str> = own.lines().collect();
        let last = lines[lines.len().saturating_sub(6)..].join("\n");
        match (last.is_empty(), self.code) {
            (false, _) => last,
            (true, Some(code)) => format!("exit code {code} without a message"),
            (true, None) => "it took too long and was killed".to_owned(),
        }
    }
}

/// A child with its own process group, killed when this is dropped.
pub(crate) struct Owned(pub(crate) Child);

impl Drop for Owned {
    fn drop(&mut self) {
        // Once it is reaped its id may belong to another process.
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
            let _ = self.0.wait();
        }
    }
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> io::Result<JoinHandle<Vec<u8>>> {
    thread::Builder::new().name("tm-output".into()).spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // After an error, the data read so far counts.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// Runs a program to its end. It gets its own process group: a Ctrl-C on the terminal reaches this process, which then ends
/// the program itself.
///
/// # Errors
/// The program cannot be started (in the inner result), or an interruption.
pub(crate) fn run(
    mut command: Command,
    input: &[u8],
    patience: Duration,
    control: Control<'_>,
) -> Result<io::Result<ProgramOutput>, OperateError> {
    control.check()?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = match command.spawn() {
        Ok(child) => Owned(child),
        Err(error) => return Ok(Err(error)),
    };
    let outputs = drain(child.0.stdout.take()).and_then(|out| Ok((out, drain(child.0.stderr.take())?)));
    let (out, err) = match outputs {
        Ok(outputs) => outputs,
        Err(error) => return Ok(Err(error)),
    };
    if let Some(mut pipe) = child.0.stdin.take() {
        let input = input.to_vec();
        // A program that ends without reading is judged by its exit code.
        let _ = thread::Builder::new().name("tm-input".into()).spawn(move || pipe.write_all(&input));
    }
    let until = clock::now() + patience;
    let code = loop {
        match child.0.try_wait() {
            Ok(Some(status)) => break status.code(),
            Ok(None) if clock::now() >= until => break None,
            Ok(None) => {}
            Err(error) => return Ok(Err(error)),
        }
        if control.check().is_err() {
            drop(child);
            return Err(OperateError::Interrupted);
        }
        thread::sleep(LOOK);
    };
    drop(child);
    let text = |handle: JoinHandle<Vec<u8>>| handle.join().unwrap_or_default();
    let (stdout, stderr) = (text(out), text(err));
    Ok(Ok(ProgramOutput { code, stdout, stderr: String::from_utf8_lossy(&stderr).into_owned() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    const LONG: Duration = Duration::from_secs(50);

    #[test]
    fn what_a_program_says_and_reads_arrives() {
        let control = Control { tell: &|_| (), is_interrupted: &|| false };
        let told = run(shell("cat; echo no >&2; exit 3"), b"in", LONG, control).unwrap().unwrap();
        assert_eq!(
            (told.code, told.stdout.as_slice(), told.complaint().as_str()),
            (Some(3), &b"in"[..], "no")
        );
        let missing = run(Command::new("no-such-program-at-all"), b"", LONG, control).unwrap();
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_program_that_takes_too_long_and_one_that_nobody_wants_are_ended() {
        let control = Control { tell: &|_| (), is_interrupted: &|| false };
        let told = run(shell("exec sleep 1000"), b"", Duration::from_millis(50), control).unwrap().unwrap();
        assert_eq!(told.code, None);
        let wanted = AtomicBool::new(false);
        let is_interrupted = || wanted.swap(true, Ordering::AcqRel);
        let control = Control { tell: &|_| (), is_interrupted: &is_interrupted };
        assert!(matches!(run(shell("exec sleep 1000"), b"", LONG, control), Err(OperateError::Interrupted)));
    }
}
