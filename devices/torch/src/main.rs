//! `tidemill-device-torch`: a proxy program, see `tidemill_device::child`.
//!
//! Without arguments it serves a session of `tidemill device serve --proxy-program`. With `device-proxy` first, as an executor
//! starts it for `device: proxy:torch`, it serves the session on its standard input.
use std::process::ExitCode;
use tidemill_device_torch::own::serve_standard_input;
use tidemill_device_torch::torch::Torch;

fn main() -> ExitCode {
    let opener = Torch;
    let served = match std::env::args_os().nth(1) {
        None => tidemill_device::child::main(&opener),
        Some(verb) if verb == "device-proxy" => serve_standard_input(&opener),
        Some(_) => {
            eprintln!(
                "tidemill-device-torch: write `device: proxy:torch` in a plan, or give this program to `tidemill device serve --proxy-program`"
            );
            return ExitCode::from(64);
        }
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidemill-device-torch: {error}");
            ExitCode::FAILURE
        }
    }
}
