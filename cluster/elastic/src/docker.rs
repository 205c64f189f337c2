//! Containers of a Docker engine, queried over its socket with one short request each.
use serde::Deserialize;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidemill_http::{Answer, Call, CallError, Caller, Place, Repeat};

/// Timeout of the engine.
const PATIENCE: Duration = Duration::from_secs(10);

/// Error of querying the engine.
#[derive(Debug, thiserror::Error)]
pub enum DockerError {
    /// The engine is on another machine.
    #[error(
        "DOCKER_HOST is `{0}`: limits are written on this machine, so the engine must be here; write `unix:///var/run/docker.sock`"
    )]
    Elsewhere(String),
    /// It does not answer.
    #[error("no Docker engine answers at {}: {source}; is it running, and may you use it (group `docker`, or root)?", socket.display())]
    Silent {
        /// Its socket.
        socket: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// It refuses the request.
    #[error("the Docker engine at {} says: {answer}", socket.display())]
    Refused {
        /// Its socket.
        socket: PathBuf,
        /// Its answer.
        answer: String,
    },
}

/// A running container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Id of its first process on this machine.
    pub process: u32,
}

/// The engine of this machine.
#[derive(Debug, Clone)]
pub struct Engine {
    socket: PathBuf,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    id: String,
    #[serde(default)]
    names: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Inspected {
    state: State,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct State {
    pid: u32,
}

impl Engine {
    /// Finds the engine by `DOCKER_HOST`, or at its usual location.
    ///
    /// # Errors
    /// `DOCKER_HOST` names one on another machine.
    pub fn find() -> Result<Self, DockerError> {
        match std::env::var("DOCKER_HOST") {
            Ok(host) if !host.is_empty() => match host.strip_prefix("unix://") {
                Some(path) => Ok(Self::at(Path::new(path))),
                None => Err(DockerError::Elsewhere(host)),
            },
            _ => Ok(Self::at(Path::new("/var/run/docker.sock"))),
        }
    }

    /// Uses the engine with this socket.
    pub fn at(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    /// Returns ids and names of the running containers with a label: `NAME`, or `NAME=VALUE`.
    ///
    /// # Errors
    /// The engine does not answer, or refuses.
    pub fn labelled(&self, label: &str) -> Result<Vec<(String, String)>, DockerError> {
        let filters = serde_json::json!({"label": [label], "status": ["running"]}).to_string();
        let found: Vec<Listed> = self.get(&format!("/containers/json?filters={}", escaped(&filters)))?;
        let named = found.into_iter().map(|one| {
            let name = one.names.first().map(|name| name.trim_start_matches('/').to_owned());
            let short = one.id.chars().take(12).collect();
            (one.id, name.unwrap_or(short))
        });
        Ok(named.collect())
    }

    /// Returns a container; `None` if it has ended.
    ///
    /// # Errors
    /// The engine does not answer, or refuses.
    pub fn container(&self, id: &str, name: &str) -> Result<Option<Container>, DockerError> {
        let found: Inspected = match self.get(&format!("/containers/{}/json", escaped(id))) {
            Err(DockerError::Refused { answer, .. }) if answer.starts_with("404") => return Ok(None),
            found => found?,
        };
        let container = Container { id: id.to_owned(), name: name.to_owned(), process: found.state.pid };
        Ok((container.process > 0).then_some(container))
    }

    fn get<T: for<'a> Deserialize<'a>>(&self, path: &str) -> Result<T, DockerError> {
        let caller = Arc::new(Caller::new(Place::Unix(self.socket.clone())));
        let answer = caller.send(&Call::get(path), PATIENCE, Repeat::Refused);
        let Answer { status, body } = answer.map_err(|error| {
            let source = match error {
                CallError::Unreachable { source, .. } | CallError::Broken { source, .. } => source,
                other => io::Error::other(other),
            };
            DockerError::Silent { socket: self.socket.clone(), source }
        })?;
        let refused = |answer: String| DockerError::Refused { socket: self.socket.clone(), answer };
        if status != 200 {
            return Err(refused(format!("{status}: {}", String::from_utf8_lossy(&body).trim())));
        }
        serde_json::from_slice(&body).map_err(|error| refused(format!("an unexpected answer: {error}")))
    }
}

/// Escapes a part of an address.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                escaped.push(char::from(byte))
            }
            other => escaped.push_str(&format!("%{other:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    /// An engine that gives one answer; the handle returns the request.
    fn answering(answer: &'static str) -> (tempfile::TempDir, Engine, std::thread::JoinHandle<String>) {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("docker.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let asked = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = String::new();
            while !asked.ends_with("\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                asked.push(char::from(byte[0]));
            }
            stream.write_all(answer.as_bytes()).unwrap();
            asked
        });
        (folder, Engine::at(&socket), asked)
    }

    #[test]
    fn containers_are_found_by_label() {
        let (_folder, engine, asked) = answering(
            "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n[{\"Id\":\"0123456789abcdef\",\"Names\":[\"/shop-1\"],\"State\":\"running\"},\
             {\"Id\":\"fedcba9876543210\"}]",
        );
        let found = engine.labelled("app=shop").unwrap();
        assert_eq!(found[0], ("0123456789abcdef".to_owned(), "shop-1".to_owned()));
        assert_eq!(found[1].1, "fedcba987654");
        let asked = asked.join().unwrap();
        assert!(
            asked.starts_with("GET /containers/json?filters=%7B%22label%22%3A%5B%22app%3Dshop%22%5D"),
            "{asked}"
        );
    }

    #[test]
    fn a_container_that_has_ended_is_none() {
        let (_folder, engine, _asked) =
            answering("HTTP/1.0 404 Not Found\r\n\r\n{\"message\":\"No such container\"}");
        assert_eq!(engine.container("x", "y").unwrap(), None);
        let (_folder, engine, _asked) = answering("HTTP/1.0 200 OK\r\n\r\n{\"State\":{\"Pid\":4711}}");
        assert_eq!(engine.container("x", "y").unwrap().map(|one| one.process), Some(4711));
    }

    #[test]
    fn an_engine_that_is_not_there_is_told() {
        let engine = Engine::at(Path::new("/nowhere/docker.sock"));
        let message = engine.labelled("a").unwrap_err().to_string();
        assert!(message.contains("no Docker engine answers at /nowhere/docker.sock"), "{message}");
        let (_folder, engine, _asked) =
            answering("HTTP/1.0 400 Bad Request\r\n\r\n{\"message\":\"too old\"}");
        let message = engine.labelled("a").unwrap_err().to_string();
        assert!(message.contains("400: ") && message.contains("too old"), "{message}");
    }
}
