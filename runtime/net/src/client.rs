//! The side of programs and people.
use crate::protocol::{Answer, Request};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidemill_link::remote::{Address, Greeting, MessageReader, MessageWriter, Purpose, Security, dial};

/// Timeout of connecting to a service, which is on this host.
const DIALING: Duration = Duration::from_secs(3);

pub use tidemill_rpc::{SOCKET_VARIABLE, usual_socket};

/// A connection to a service.
pub struct Client {
    writer: MessageWriter,
    reader: MessageReader,
}

/// Why a service did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// It cannot be reached.
    #[error("no transport service answers at {}: {reason}", socket.display())]
    Unreachable {
        /// Where it was looked for.
        socket: PathBuf,
        /// Why.
        reason: String,
    },
    /// It refused, and why.
    #[error("{0}")]
    Refused(String),
    /// It went away, or speaks another language.
    #[error("the transport service {0}")]
    Broken(String),
}

impl Client {
    /// Connects to the service at a socket, as a program of this run; people use 0.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`].
    pub fn connect(socket: &Path, run: u128) -> Result<Self, ClientError> {
        let address = Address::new("unix", socket.display().to_string());
        let greeting = Greeting { run, plan_version: 0, purpose: Purpose::Control { host: "client".into() } };
        let unreachable = |reason: String| ClientError::Unreachable { socket: socket.into(), reason };
        let connection = dial(&address, &Security::none(), &greeting, DIALING)
            .map_err(|error| unreachable(error.to_string()))?;
        let (writer, reader) = connection.into_messages().map_err(|error| unreachable(error.to_string()))?;
        Ok(Self { writer, reader })
    }

    /// Sends a request.
    ///
    /// # Errors
    /// [`ClientError::Broken`].
    pub fn send(&self, request: &Request) -> Result<(), ClientError> {
        let bytes = serde_json::to_vec(request).map_err(|error| ClientError::Broken(error.to_string()))?;
        self.writer.send(&bytes).map_err(|_| ClientError::Broken("is gone".into()))
    }

    /// Waits for the next answer.
    ///
    /// # Errors
    /// [`ClientError::Broken`].
    pub fn receive(&mut self) -> Result<Answer, ClientError> {
        let bytes = self.reader.receive().map_err(|_| ClientError::Broken("is gone".into()))?;
        serde_json::from_slice(&bytes)
            .map_err(|error| ClientError::Broken(format!("speaks another language: {error}")))
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the reason; [`ClientError::Broken`].
    pub fn ask(&mut self, request: &Request) -> Result<Answer, ClientError> {
        self.send(request)?;
        match self.receive()? {
            Answer::Refused(reason) => Err(ClientError::Refused(reason)),
            answer => Ok(answer),
        }
    }

    /// Both directions, for two threads.
    pub fn split(self) -> (MessageWriter, MessageReader) {
        (self.writer, self.reader)
    }
}
