//! The program of a proxy that an executor starts on its own host.
use crate::backends::Backends;
use std::io;
use std::path::Path;
use tidemill_device::device::{Device, DeviceError, Limits, Opener, Snapshot};
use tidemill_device::own;
use tidemill_inference::backend::library;

/// Serves the one session whose socket is the standard input, until the client ends it or dies. `backend`: see [`Backends::open`].
///
/// # Errors
/// If the standard input is no socket, or the connection breaks. A back end that is missing is what the client is told.
pub fn serve_standard_input(backend: Option<&str>, libraries: &Path) -> io::Result<()> {
    let names: Vec<String> = backend.filter(|name| *name != "auto").map(str::to_owned).into_iter().collect();
    match Backends::open(&names, libraries) {
        Ok(backends) => serve_by(&backends),
        // The client reports the reason: once is enough.
        Err(error) => match serve_by(&Unusable(error.to_string())) {
            Err(refused) if refused.kind() == io::ErrorKind::InvalidData => Ok(()),
            other => other,
        },
    }
}

/// A device that refuses its client.
struct Unusable(String);

impl Opener for Unusable {
    fn snapshot(&self, _: &Limits) -> Snapshot {
        Snapshot::default()
    }

    fn open(&self, _: &Limits) -> Result<Box<dyn Device>, DeviceError> {
        Err(DeviceError::Device(self.0.clone()))
    }
}

fn serve_by(opener: &dyn Opener) -> io::Result<()> {
    // Beside the models that are fetched.
    let cache = library::cache_folder().unwrap_or_else(std::env::temp_dir).join("device");
    own::serve_standard_input(opener, &cache)
}
