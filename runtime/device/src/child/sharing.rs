//! A process that serves several sessions of one tenant.
use super::admission::{ByDaemon, OfMember};
use super::turn_flag::Shared;
use super::{FromChild, Lines, Session, ToChild, send};
use crate::batching::{Batching, Sharing, Together};
use crate::device::Opener;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::Builder;

/// Serves sessions until the daemon ends the process.
pub(super) fn serve(
    opener: &dyn Opener,
    control: UnixStream,
    mut lines: Lines,
    batching: Batching,
) -> io::Result<()> {
    let process = Arc::new(Shared::of_process(control));
    let (together, loads, computes) = Together::new(batching);
    let sharing = Sharing { opener, together };
    let by_daemon = || ByDaemon::new(Arc::clone(&process));
    std::thread::scope(|scope| {
        let loads = Builder::new().name("tm-device-loads".into()).spawn_scoped(scope, || {
            let _ends = EndsProcess(&process);
            loads.work(opener, &mut by_daemon());
        });
        let computes = Builder::new().name("tm-device-runs".into()).spawn_scoped(scope, || {
            let _ends = EndsProcess(&process);
            computes.work(&mut by_daemon());
        });
        if let Err(error) = loads.and(computes) {
            tracing::error!("a process of several sessions cannot start: {error}");
            process.leave();
        }
        // The daemon is gone, or the last session is, if there is no further message.
        while let Ok(Some(next)) = next(&mut lines) {
            let socket = match next {
                Next::Session(socket) => socket,
                Next::Message(message) => {
                    process.hear(message);
                    continue;
                }
            };
            let (sharing, process) = (&sharing, &process);
            let began = Builder::new().name("tm-device-session".into()).spawn_scoped(scope, move || {
                let _ends = EndsProcess(process);
                // The daemon hears why it ended, or sees the end of the socket.
                let _ = session(socket, sharing);
            });
            if let Err(error) = began {
                tracing::error!("a session cannot begin: {error}");
            }
        }
        process.closed(None);
        process.leave();
    });
    Ok(())
}

/// Messages of the daemon to the process.
#[derive(Debug)]
enum Next {
    /// A session begins, by this control socket.
    Session(OwnedFd),
    Message(ToChild),
}

fn next(lines: &mut Lines) -> io::Result<Option<Next>> {
    Ok(match lines.receive()? {
        // A socket may be there before the line that it belongs to, with the lines before it.
        Some(ToChild::Join) => {
            let socket = lines.descriptor().ok_or_else(|| io::Error::other("the daemon passed no socket"))?;
            Some(Next::Session(socket))
        }
        message => message.map(Next::Message),
    })
}

fn session(socket: OwnedFd, sharing: &Sharing<'_, dyn Opener + '_>) -> io::Result<()> {
    let control = UnixStream::from(socket);
    let mut lines = Lines::new(control.try_clone()?);
    // The client comes after this: a process that dies meanwhile has lost none.
    send(&control, &FromChild::Ready)?;
    let Some(ToChild::Begin(begin)) = lines.receive()? else { return Ok(()) };
    let session = Session::begin(begin, control, lines, false)?;
    let mut admission = OfMember::new(Arc::clone(&session.shared));
    session.serve(sharing, &mut admission)
}

/// Ends the process where a thread panics: the others would wait for it.
struct EndsProcess<'a>(&'a Shared);

impl Drop for EndsProcess<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::send_with;
    use std::io::Read;
    use std::os::fd::AsFd;

    #[test]
    fn a_session_begins_with_its_own_socket_also_behind_other_messages() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let pairs = [UnixStream::pair().unwrap(), UnixStream::pair().unwrap()];
        for (_, passed) in &pairs {
            send(&ours, &ToChild::Standing).unwrap();
            send_with(&ours, &ToChild::Join, passed.as_fd()).unwrap();
        }
        drop(ours);
        let mut lines = Lines::new(theirs);
        for (kept, passed) in pairs {
            drop(passed);
            assert!(matches!(next(&mut lines).unwrap(), Some(Next::Message(ToChild::Standing))));
            let Some(Next::Session(socket)) = next(&mut lines).unwrap() else { panic!("no session") };
            send(&UnixStream::from(socket), &1).unwrap();
            let mut read = String::new();
            (&kept).read_to_string(&mut read).unwrap();
            assert_eq!(read, "1\n");
        }
        assert!(next(&mut lines).unwrap().is_none());
    }
}
