//! Finds the HiGHS library.
use crate::failure::{Failure, Kind};
use crate::listener::Listener;
use std::path::Path;
use tidemill_inference::backend::library::{self, Found, HIGHS};
use tidemill_optimizer::planner::{Highs, Solver};

/// Loads the first usable library, searched from `directory` on; see [`library::find`].
///
/// # Errors
/// If none is found or none can be loaded: the attempts, and advice.
pub fn open(directory: &Path) -> Result<Highs, Failure> {
    find(directory).map_err(|reason| {
        Failure::new(Kind::Unavailable, format!("cannot use HiGHS: {reason}")).with_help(
            "run `tidemill doctor --fix` (needs network and python3), set TIDEMILL_HIGHS to the library \
             file, or use `--solver microlp`",
        )
    })
}

/// Returns HiGHS if it is found, otherwise the built-in solver. An unusable named library gives a message.
pub fn unless_missing(directory: &Path, listener: &dyn Listener) -> Solver {
    match find(directory) {
        Ok(highs) => Solver::Highs(highs),
        Err(reason) => {
            if matches!(library::find(&HIGHS, directory), Found::Named { .. }) {
                listener.warning(&format!("not using HiGHS: {reason}"));
            }
            Solver::Microlp
        }
    }
}

/// Loads the library as [`open`], with the reason alone as error.
pub fn find(directory: &Path) -> Result<Highs, String> {
    match library::find(&HIGHS, directory) {
        Found::Named { variable, path } => {
            Highs::open(&path).map_err(|error| format!("{variable} names an unsuitable file: {error}"))
        }
        Found::Searched { candidates, folders } => {
            let mut refused = Vec::new();
            for path in candidates {
                match Highs::open(&path) {
                    Ok(highs) => return Ok(highs),
                    Err(error) => refused.push(error.to_string()),
                }
            }
            Err(match refused.as_slice() {
                [] => {
                    let first = folders.first().map(|folder| folder.display().to_string());
                    format!(
                        "no libhighs.so in {} and {} other folders",
                        first.unwrap_or_default(),
                        folders.len().saturating_sub(1)
                    )
                }
                refused => refused.join("; "),
            })
        }
    }
}
