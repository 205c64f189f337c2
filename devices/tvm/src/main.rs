//! `tidemill-device-tvm`: a proxy program, see `tidemill_device::own`.
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use tidemill_device::own::{Starter, program};
use tidemill_device::processor::Library;
use tidemill_device_tvm::tvm::Tvm;
use tidemill_machine::places::cache_folder;

/// Tells TVM's runtime how many threads a run uses. It reads the variable once, before the first run.
const THREADS: &str = "TVM_NUM_THREADS";
/// Set to 1 where all clients of a daemon are trusted.
const TRUST: &str = "TIDEMILL_TVM_TRUST_CLIENTS";

fn main() -> ExitCode {
    if std::env::var_os(THREADS).is_none() {
        // One thread for each session, as with the other back ends: the engine runs many operators.
        let failed = again_with_one_thread();
        eprintln!("tidemill-device-tvm: cannot start again with {THREADS}=1: {failed}");
        return ExitCode::FAILURE;
    }
    let cache = cache_folder().unwrap_or_else(std::env::temp_dir).join("device");
    let trusted = std::env::var_os(TRUST).is_some_and(|value| value == "1");
    program(Tvm::NAME, &cache, |starter| Tvm { trusts_client: trusted || starter == Starter::Executor })
}

/// Replaces this process. Returns only if that fails.
fn again_with_one_thread() -> io::Error {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    Command::new(program).args(std::env::args_os().skip(1)).env(THREADS, "1").exec()
}
