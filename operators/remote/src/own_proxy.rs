//! The program of a proxy that an executor starts on its own host.
use crate::backends::Backends;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use tidemill_device::carrier::Carrier;
use tidemill_device::device::{Device, DeviceError, Limits, Opener, Snapshot};
use tidemill_device::proxy::{Everybody, serve};
use tidemill_device::store::Store;
use tidemill_inference::backend::library;

/// Bytes of models that proxies of a host keep.
const CACHE: u64 = 8 << 30;

/// Serves the one session whose socket is the standard input, until the client ends it or dies. `backend`: see [`Backends::open`].
///
/// # Errors
/// If the standard input is no socket, or the connection breaks. A back end that is missing is what the client is told.
pub fn serve_standard_input(backend: Option<&str>, libraries: &Path) -> io::Result<()> {
    let names: Vec<String> = backend.filter(|name| *name != "auto").map(str::to_owned).into_iter().collect();
    match Backends::open(&names, libraries) {
        Ok(backends) => serve_standard_input_by(&backends),
        // The client reports the reason: once is enough.
        Err(error) => match serve_standard_input_by(&Unusable(error.to_string())) {
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

/// Serves the session on the standard input by any device.
///
/// # Errors
/// As [`serve_standard_input`].
pub fn serve_standard_input_by(opener: &dyn Opener) -> io::Result<()> {
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    let socket = UnixStream::from(input);
    // A file or a terminal is no client.
    socket.peer_addr()?;
    // Beside the models that are fetched: a proxy that is started again finds its files there.
    let cache = library::cache_folder().unwrap_or_else(std::env::temp_dir).join("device");
    let mut store = Store::open(&cache, CACHE).map_err(io::Error::other)?;
    let folder = tempfile::Builder::new().prefix("session-").tempdir_in(&cache)?;
    let carrier = Carrier::of_socket(socket)?;
    serve(carrier, opener, &mut Everybody::default(), &mut store, folder.path())
}
