//! `tidemill-device-torch`: a proxy program, see `tidemill_device::own`.
use std::process::ExitCode;
use tidemill_device::own::{Starter, program};
use tidemill_device::processor::Library;
use tidemill_device_torch::torch::Torch;
use tidemill_machine::places::cache_folder;

fn main() -> ExitCode {
    let cache = cache_folder().unwrap_or_else(std::env::temp_dir).join("device");
    program(Torch::NAME, &cache, |starter| Torch { loads_packages: starter == Starter::Executor })
}
