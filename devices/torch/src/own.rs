//! The session on the standard input, for an executor on the same host.
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use tidemill_device::carrier::Carrier;
use tidemill_device::device::Opener;
use tidemill_device::proxy::{Everybody, serve};
use tidemill_device::store::Store;
use tidemill_machine::places::cache_folder;

/// Bytes of models that proxies of a host keep.
const CACHE: u64 = 8 << 30;

/// Serves the one session whose socket is the standard input, until the client ends it or dies.
///
/// # Errors
/// If the standard input is no socket, or the connection breaks.
pub fn serve_standard_input(opener: &dyn Opener) -> io::Result<()> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    // A file or a terminal is no client.
    socket.peer_addr()?;
    let cache = cache_folder().unwrap_or_else(std::env::temp_dir).join("device");
    let mut store = Store::open(&cache, CACHE).map_err(io::Error::other)?;
    let folder = tempfile::Builder::new().prefix("session-").tempdir_in(&cache)?;
    serve(Carrier::of_socket(socket)?, opener, &mut Everybody::default(), &mut store, folder.path())
}
