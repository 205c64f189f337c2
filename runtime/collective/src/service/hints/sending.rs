//! The connection of a service with the leader of its rack.
use crossbeam_channel::{Receiver, Sender, bounded};
use std::io;
use std::thread::Builder;
use std::time::Duration;
use tidemill_link::remote::{Address, Greeting, GroupLane, Incoming, MessageWriter, Purpose, Security};

/// Pause before the leader is dialled again.
const PAUSE: Duration = Duration::from_millis(200);
/// Reports that wait. Older ones are worth nothing.
const MOST: usize = 2;
/// Bytes of a report.
const MOST_BYTES: usize = 4096;

fn greeting(host: &str) -> Greeting {
    // A connection for messages of no group.
    let lane = GroupLane::Control;
    let purpose = Purpose::Group { host: host.to_owned(), group: String::new(), lane };
    Greeting { run: 0, plan_version: 0, purpose }
}

/// Returns the channel to a leader. No caller waits for it; its thread ends when this is dropped.
///
/// # Errors
/// The system has no thread left.
pub(super) fn to(leader: Address, host: String, security: Security) -> io::Result<Sender<Vec<u8>>> {
    let (reports, received) = bounded(MOST);
    Builder::new().name("tm-hints-send".into()).spawn(move || send(&leader, &host, &security, &received))?;
    Ok(reports)
}

fn send(leader: &Address, host: &str, security: &Security, reports: &Receiver<Vec<u8>>) {
    let mut connected: Option<MessageWriter> = None;
    let mut was_reached = true;
    for report in reports {
        if connected.is_none() {
            let dialled = super::super::dialing::dial(leader, security, &greeting(host), None);
            match dialled
                .map_err(|error| error.to_string())
                .and_then(|connection| connection.into_messages().map_err(|error| error.to_string()))
            {
                Ok((writer, _)) => {
                    was_reached = true;
                    connected = Some(writer);
                }
                Err(error) => {
                    if std::mem::replace(&mut was_reached, false) {
                        tracing::warn!(
                            "the leader of the rack at {leader} is not reached, it gets no hints: {error}"
                        );
                    }
                    std::thread::sleep(PAUSE);
                    continue;
                }
            }
        }
        if connected.as_ref().is_some_and(|writer| writer.send(&report).is_err()) {
            connected = None;
        }
    }
    connected.iter().for_each(MessageWriter::close);
}

/// Takes the connection of a host; `heard` gets each report, on a thread of its own.
///
/// # Errors
/// The host is gone again, or the system has no thread left.
pub(super) fn from(
    incoming: Incoming,
    heard: impl Fn(Vec<u8>) -> bool + Send + 'static,
) -> Result<MessageWriter, String> {
    let connection = incoming.accept(&greeting("")).map_err(|error| error.to_string())?;
    let (writer, mut reader) = connection.into_messages().map_err(|error| error.to_string())?;
    let to_close = writer.clone();
    let read = move || {
        while let Ok(report) = reader.receive() {
            if report.len() > MOST_BYTES || !heard(report) {
                break;
            }
        }
        to_close.close();
    };
    Builder::new().name("tm-hints-read".into()).spawn(read).map_err(|error| error.to_string())?;
    Ok(writer)
}
