//! A device that has the certificate of a cluster.
use std::path::Path;
use tidemill_app::failure::{Failure, Kind};
use tidemill_cluster::agent::AgentError;
use tidemill_cluster::member::{Member, MemberOptions};
use tidemill_engine::remote::Security;

/// Joins the cluster of the file under this name, unless it has joined before, and keeps the certificate valid.
///
/// # Errors
/// The file is none, or the controller refuses.
pub(super) fn join(join_file: &Path, state: &Path, name: &str) -> Result<(Security, Member), Failure> {
    let (controller, token) = crate::cluster::join_file::read(join_file)?;
    let options = MemberOptions { folder: state.to_owned(), controller, token, name: name.to_owned() };
    let member = Member::join(&options).map_err(refused)?;
    let security = Security::with(member.credentials())
        .map_err(|error| Failure::new(Kind::Configuration, error.to_string()))?;
    Ok((security, member))
}

fn refused(error: AgentError) -> Failure {
    let failure = Failure::new(Kind::Unavailable, format!("the device cannot join the cluster: {error}"));
    match error {
        AgentError::NoToken => {
            failure.with_help("`tidemill token --name DEVICE --for-join-file` writes a join file")
        }
        _ => failure,
    }
}
