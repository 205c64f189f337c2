//! What goes wrong between a controller and the server.
use std::path::PathBuf;

/// Why something cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    /// The server is not reached, or says no.
    #[error("{place}: {reason}")]
    Server {
        /// Which server and database.
        place: String,
        /// What it says, or what became of the connection.
        reason: String,
    },
    /// It cannot be used, however often it is asked.
    #[error("{place} cannot be used: {reason}")]
    Unfit {
        /// Which server and database.
        place: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The certificate of the authority that the server's is verified by.
    #[error("{path}: {reason}")]
    RootCertificate {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Another controller leads: nothing was written.
    #[error("another controller leads since (term {found}, and this one had {own}): nothing was written")]
    Deposed {
        /// The term that this one led in.
        own: i64,
        /// The present one.
        found: i64,
    },
    /// The lead was given up because the server was not reached: nothing more is written.
    #[error("the lead of term {own} was given up: {reason}")]
    Lost {
        /// The term that it was.
        own: i64,
        /// Why.
        reason: String,
    },
}

impl PostgresError {
    /// Whether asking again later can help.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Server { .. })
    }

    /// Whether whoever asked leads no more.
    pub fn is_end_of_lead(&self) -> bool {
        matches!(self, Self::Deposed { .. } | Self::Lost { .. })
    }
}

/// An error of the client in words, with what the server says.
pub(crate) fn in_words(error: &postgres::Error) -> String {
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
