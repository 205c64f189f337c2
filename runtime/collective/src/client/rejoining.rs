//! All ranks continue after some were lost, or their service was.
use super::connection::Connection;
use super::{Error, Group, JoinOptions, PAUSE, milliseconds};
use crate::protocol::{ToProgram, ToService};
use std::io::{self, ErrorKind};
use std::time::Duration;

impl Connection {
    /// Returns why nothing can be sent. The last words of the service say it better than the system does.
    pub(super) fn lost(&self, error: io::Error) -> Error {
        let is_gone = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset, ErrorKind::NotConnected];
        match is_gone.contains(&error.kind()) {
            true => self.wait(|_| None::<()>).err().unwrap_or_else(|| error.into()),
            false => error.into(),
        }
    }
}

impl Group {
    /// Continues with all ranks, after some were lost: waits until each of them calls this, or joins. Joins the service again
    /// where it was upgraded or has crashed; buffers of before are of no use then, and [`Group::call`] refuses them.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use tidemill_collective::{client::{Buffer, Error, Group}, element::{Element, Reduction}};
    /// # fn step(mut group: Group, mut buffer: Buffer) -> Result<(), Error> {
    /// while group.all_reduce(&buffer, Reduction::Sum).and_then(|pending| pending.wait()).is_err() {
    ///     group = group.rejoin(Duration::from_secs(60))?;
    ///     buffer = group.buffer(Element::F32, 1024)?;
    ///     // All ranks go back to what they have in common, such as the last checkpoint.
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Group::join`], of the last attempt in this time.
    pub fn rejoin(&self, deadline: Duration) -> Result<Self, Error> {
        let begun = crate::service::now();
        let left = || deadline.saturating_sub(crate::service::now().saturating_duration_since(begun));
        loop {
            let again = match self.continues(left(), true) {
                Ok(()) => return Ok(self.clone()),
                Err(Error::Broken(_)) => {
                    Self::join(&JoinOptions { deadline: left(), ..(*self.options).clone() })
                }
                // Another host may be gone meanwhile.
                Err(error) => Err(error),
            };
            match again {
                Err(_) if left() > PAUSE => std::thread::sleep(PAUSE),
                result => return result,
            }
        }
    }

    /// Continues with the ranks that are left, or with all of them.
    pub(super) fn continues(&self, deadline: Duration, whole: bool) -> Result<(), Error> {
        // An answer that came after the program had given up waiting is not that to this call.
        self.connection
            .locked()
            .answers
            .retain(|(answer, _)| !matches!(answer, ToProgram::Joined { .. } | ToProgram::Refused { .. }));
        self.connection.send(&ToService::Shrink { deadline_ms: milliseconds(deadline), whole }, &[])?;
        self.connection.joined()
    }
}
