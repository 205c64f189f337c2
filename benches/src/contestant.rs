//! Runs a pinned program and measures its cost from outside.
use anyhow::{Context, ensure};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tidemill_machine::Process;

/// Interval between two looks at the memory.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Resources used by a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    /// User and system time, seconds.
    pub(crate) cpu: f64,
    /// Peak memory, MiB.
    pub(crate) memory: f64,
}

/// Runs `program` on the processors `cores` (a list as `taskset -c` takes it) to its end.
pub(crate) fn run_pinned(
    cores: &str,
    program: &Path,
    arguments: &[String],
    folder: &Path,
) -> anyhow::Result<Cost> {
    let mut child = Command::new("taskset")
        .args(["-c", cores])
        .arg(program)
        .args(arguments)
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .context("cannot start taskset (package util-linux)")?;
    let pid = Pid::from_child(&child);
    let process = Process::of(child.id());
    let mut memory = 0.0;
    loop {
        // Known until the process has released its memory.
        if let Some(peak) = process.status().peak() {
            memory = peak as f64 / (1 << 20) as f64;
        }
        // Leave it unreaped, so that its times can still be read.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if waitid(WaitId::Pid(pid), options)?.is_some() {
            break;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let cpu = process.time().context("the system does not tell the times of a process")?.as_secs_f64();
    let status = child.wait()?;
    ensure!(status.success(), "{} {arguments:?} ended with {status}", program.display());
    Ok(Cost { cpu, memory })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_used_is_seen() {
        let shell = Path::new("/bin/sh");
        let busy = ["-c".to_owned(), "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done".to_owned()];
        let cost = run_pinned("0", shell, &busy, Path::new("/")).expect("sh and taskset are there");
        assert!(cost.cpu > 0.0 && cost.memory > 0.1, "{cost:?}");
        let failing = ["-c".to_owned(), "exit 3".to_owned()];
        assert!(run_pinned("0", shell, &failing, Path::new("/")).is_err());
    }
}
