//! Programs of back ends, `tidemill-device-NAME`, which a daemon or an executor starts.
//!
//! ```no_run
//! use tidemill_device::emulated::{Emulated, Profile};
//! use tidemill_device::own::program;
//!
//! fn main() -> std::process::ExitCode {
//!     program("emulated", "/var/cache/tidemill/device".as_ref(), |_starter| Emulated::new(Profile::default()))
//! }
//! ```
use crate::carrier::Carrier;
use crate::child;
use crate::daemon::folders;
use crate::device::Opener;
use crate::proxy::{Everybody, serve};
use crate::store::Store;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

/// Bytes of models that the proxies of a host keep.
const CACHE: u64 = 8 << 30;

/// Verb with which an executor starts a program.
const VERB: &str = "device-proxy";

/// Program that started this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Starter {
    /// `tidemill device serve --proxy-program`, for a client that may be anybody.
    Daemon,
    /// An executor on this host, for a stage of the same user.
    Executor,
}

impl Starter {
    /// Returns who starts a program with this first argument; none: a person by mistake.
    fn of(argument: Option<OsString>) -> Option<Self> {
        match argument {
            None => Some(Self::Daemon),
            Some(verb) => (verb == VERB).then_some(Self::Executor),
        }
    }
}

/// Serves one session by the back end of this name. `opener` learns who started the process. `cache`: folder of the models' files.
pub fn program<O: Opener>(backend: &str, cache: &Path, opener: impl FnOnce(Starter) -> O) -> ExitCode {
    let name = format!("tidemill-device-{backend}");
    let Some(starter) = Starter::of(std::env::args_os().nth(1)) else {
        eprintln!(
            "{name}: write `device: proxy:{backend}` in a plan, or give this program to `tidemill device serve --proxy-program`"
        );
        return ExitCode::from(64);
    };
    let opener = opener(starter);
    let served = match starter {
        Starter::Daemon => child::main(&opener),
        Starter::Executor => serve_standard_input(&opener, cache),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves the one session whose socket is the standard input, until the client ends it or dies. `cache`: see [`program`].
///
/// # Errors
/// If the standard input is no socket, or the connection breaks.
pub fn serve_standard_input(opener: &dyn Opener, cache: &Path) -> io::Result<()> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    // A file or a terminal is no client.
    socket.peer_addr()?;
    // A proxy that is started again finds the files of its models there.
    folders::prepare(cache)?;
    let mut store = Store::open(&folders::of_models(cache), CACHE).map_err(io::Error::other)?;
    let folder = folders::of_session(cache, 0);
    // A process that is killed leaves it to the next one.
    let _locked = folders::locked(&folder)?;
    let served = serve(Carrier::of_socket(socket)?, opener, &mut Everybody::default(), &mut store, &folder);
    let _ = std::fs::remove_dir_all(&folder);
    served
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_starts_no_program() {
        let of = |argument: Option<&str>| Starter::of(argument.map(OsString::from));
        assert_eq!((of(None), of(Some(VERB))), (Some(Starter::Daemon), Some(Starter::Executor)));
        assert_eq!(of(Some("--help")), None);
    }
}
