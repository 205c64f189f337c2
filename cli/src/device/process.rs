//! The process of a session of `tidemill device serve`.
use crate::arguments::{AUTO_BACKEND, DeviceProcessArguments, EMULATED_BACKEND};
use crate::exit::Exit;
use std::path::Path;
use tidemill_app::failure::{Failure, Kind};
use tidemill_device::child;
use tidemill_device::device::Opener;
use tidemill_device::emulated::{Emulated, Profile};
use tidemill_remote::backends::Backends;

/// Serves one session.
pub(crate) fn process(arguments: &DeviceProcessArguments) -> anyhow::Result<Exit> {
    child::main(&*opener(arguments)?)?;
    Ok(Exit::Success)
}

/// The device of the arguments.
///
/// # Errors
/// The back end or the profile cannot be used.
fn opener(arguments: &DeviceProcessArguments) -> Result<Box<dyn Opener>, Failure> {
    let libraries = arguments.libraries.as_deref().unwrap_or(Path::new("."));
    let names = match arguments.backend.as_str() {
        EMULATED_BACKEND => {
            return Ok(Box::new(Emulated::new(profile(arguments.profile.as_deref())?)));
        }
        AUTO_BACKEND => vec![],
        name => vec![name.to_owned()],
    };
    let backends = Backends::open(&names, libraries).map_err(|error| {
        Failure::new(Kind::Unavailable, error.to_string()).with_help(
            "`tidemill doctor` shows the back ends of this machine; `--backend emulated` needs none",
        )
    })?;
    Ok(Box::new(backends))
}

/// Reads the profile of an emulated device.
///
/// # Errors
/// The file cannot be read, or is none.
pub(super) fn profile(path: Option<&Path>) -> Result<Profile, Failure> {
    let Some(path) = path else { return Ok(Profile::default()) };
    let failed = |kind: Kind, error: &dyn std::fmt::Display| {
        Failure::new(kind, format!("{}: {error}", path.display()))
            .with_help("write, for example, {\"kind\": \"gpu\", \"models\": {\"detect\": {\"run_ms\": 2}}}")
    };
    let text = std::fs::read_to_string(path).map_err(|error| failed(Kind::Missing, &error))?;
    serde_json::from_str(&text).map_err(|error| failed(Kind::Configuration, &error))
}
