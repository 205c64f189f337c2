//! Figures of the operating system about this process.
use tidemill_machine::Process;

/// Bytes of memory in use.
pub(crate) fn resident() -> u64 {
    Process::this().status().resident().expect("linux tells")
}

/// Open files.
pub(crate) fn descriptors() -> usize {
    Process::this().descriptors()
}
