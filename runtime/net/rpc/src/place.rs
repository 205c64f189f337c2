//! Where the service of a host is found.
use std::path::PathBuf;

/// Name of the variable with the socket of the service of a host.
pub const SOCKET_VARIABLE: &str = "TIDEMILL_NET";

/// Returns the socket of the service of this host: the one that the variable [`SOCKET_VARIABLE`] names, or the usual one of this
/// user, or that of root.
pub fn usual_socket() -> PathBuf {
    if let Some(path) = std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty()) {
        return path.into();
    }
    let of_root = PathBuf::from("/run/tidemill/net.sock");
    if rustix::process::geteuid().is_root() {
        return of_root;
    }
    let own = match std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()) {
        Some(folder) => PathBuf::from(folder).join("tidemill/net.sock"),
        None => {
            std::env::temp_dir().join(format!("tidemill-{}/net.sock", rustix::process::geteuid().as_raw()))
        }
    };
    if !own.exists() && of_root.exists() { of_root } else { own }
}
