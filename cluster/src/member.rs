//! Membership of a program that is no agent, such as a device: a certificate of the cluster, renewed while the program runs.
use crate::agent::{AgentError, join, renew, renewal_pause};
use crate::client::Client;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use tidemill_identity::{JoinAddress, Timestamp, WorkerFolder};
use tidemill_link::remote::Credentials;

/// Settings of a member.
#[derive(Debug, Clone)]
pub struct MemberOptions {
    /// Folder of its identity.
    pub folder: PathBuf,
    /// Address of the controller.
    pub controller: JoinAddress,
    /// The token to join with, where it has not joined before.
    pub token: Option<String>,
    /// Its name.
    pub name: String,
}

/// A member of a cluster. Until this is dropped its certificate is renewed in time.
#[derive(Debug)]
pub struct Member {
    credentials: Credentials,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Member {
    /// Joins, unless it has joined this cluster before.
    ///
    /// # Errors
    /// The controller cannot be reached or refuses, or the folder cannot be used.
    pub fn join(options: &MemberOptions) -> Result<Self, AgentError> {
        let mut folder = WorkerFolder::open(&options.folder.join("identity"))?;
        join(
            &options.controller,
            options.token.as_deref(),
            [Some(options.name.as_str()), None, None],
            &mut folder,
        )?;
        let identity = folder.current().ok_or(AgentError::NoToken)?;
        let credentials = Credentials::new(&identity.certificates)?;
        let client = Client::of_worker(&options.controller, &credentials)?;
        let controller = options.controller.clone();
        let (end, ended) = channel();
        let renewed = credentials.clone();
        let keep = move || {
            while let Some(facts) = folder.current().map(|identity| identity.facts.clone()) {
                let now = Timestamp::now();
                if now >= facts.renewal_due() {
                    match renew(&mut folder, &client, &controller, &renewed) {
                        Ok(_) => tracing::info!("renewed the certificate of this member of the cluster"),
                        Err(error) => {
                            tracing::warn!("cannot renew the certificate of this member now: {error}")
                        }
                    }
                }
                let pause = renewal_pause(facts.not_after.since(now));
                if ended.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("tm-member".into()).spawn(keep);
        let thread = thread.map_err(|error| {
            AgentError::System(format!("cannot start the thread that renews the certificate: {error}"))
        })?;
        Ok(Self { credentials, end: Some(end), thread: Some(thread) })
    }

    /// Its certificate and its authority, for connections.
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // It panics nowhere.
            let _ = thread.join();
        }
    }
}
