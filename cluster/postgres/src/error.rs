//! Errors between a controller and the server.
use std::path::PathBuf;

/// Why reading or writing failed.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    /// The server cannot be reached, or rejects the request.
    #[error("{place}: {reason}")]
    Server {
        /// The server and database.
        place: String,
        /// The server's message, or the state of the connection.
        reason: String,
    },
    /// It is unusable, and retrying does not help.
    #[error("cannot use {place}: {reason}")]
    Unfit {
        /// The server and database.
        place: String,
        /// The problem and its solution.
        reason: String,
    },
    /// The certificate of the authority that verifies the server's.
    #[error("{path}: {reason}")]
    RootCertificate {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// Another controller leads: nothing was written.
    #[error(
        "another controller has become the leader (term {found}, this one had {own}): nothing was written"
    )]
    Deposed {
        /// The term in which this one led.
        own: i64,
        /// The present one.
        found: i64,
    },
    /// The lead was given up because the server could not be reached: nothing more is written.
    #[error("this controller gave up the lead of term {own}: {reason}")]
    Lost {
        /// Its term.
        own: i64,
        /// The reason.
        reason: String,
    },
}

impl PostgresError {
    /// Whether a later retry can help.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Server { .. })
    }

    /// Whether the caller has lost the lead.
    pub fn is_end_of_lead(&self) -> bool {
        matches!(self, Self::Deposed { .. } | Self::Lost { .. })
    }
}

/// Returns the text of a client's error, with the server's message.
pub fn in_words(error: &postgres::Error) -> String {
    match error.as_db_error() {
        Some(error) => {
            let more = error.detail().or(error.hint()).map(|more| format!(" ({more})")).unwrap_or_default();
            format!("{}{more}", error.message())
        }
        None => {
            let cause =
                std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
            format!(
                "{error}{}",
                if error.to_string().contains(cause.trim_start_matches(": ")) { "" } else { &cause }
            )
        }
    }
}
