//! Standard output of the command: all of it passes through here.
//!
//! A reader that has gone (`| head`) is no failure: the rest is dropped, and the exit code stays as it would have been. Any
//! other error of stdout (a full disk) is reported at the end, once, for any verb; meanwhile the verb does the rest of its
//! work.
use crate::exit::Exit;
use crate::terminal::Terminal;
use crate::visible::Pieces;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, ErrorKind, IsTerminal, StdoutLock, Write};
use std::os::fd::AsFd;
use std::sync::OnceLock;

/// First error of stdout.
static FAILURE: OnceLock<io::Error> = OnceLock::new();

/// Writer of answers, with [control characters made visible](crate::visible). Writing never fails: see the module.
pub(crate) struct Answer {
    out: StdoutLock<'static>,
    pieces: Pieces,
}

/// Stdout, until this is dropped.
pub(crate) fn out() -> Answer {
    Answer { out: io::stdout().lock(), pieces: Pieces::default() }
}

/// Whether the output still has a reader: a long-running verb ends without one, also while it has nothing to write.
pub(crate) fn is_read() -> bool {
    FAILURE.get().is_none() && !has_no_reader(&io::stdout())
}

/// Whether the other end of a pipe, a connection or a terminal is closed.
fn has_no_reader(to: &impl AsFd) -> bool {
    let mut asked = [PollFd::new(to, PollFlags::empty())];
    let told = poll(&mut asked, Some(&Timespec::default()));
    told.is_ok() && asked[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

impl Answer {
    fn keep(&mut self, act: impl FnOnce(&mut StdoutLock<'static>) -> io::Result<()>) {
        if FAILURE.get().is_none()
            && let Err(error) = act(&mut self.out)
        {
            let _ = FAILURE.set(error);
        }
    }
}

impl Answer {
    /// Writes a control sequence for a terminal.
    pub(crate) fn control(&mut self, sequence: &str) {
        self.keep(|out| out.write_all(sequence.as_bytes()));
    }

    /// Returns a writer for bytes of a file: unchanged, unless a terminal shows them.
    pub(crate) fn bytes(&mut self) -> Bytes<'_> {
        let is_shown = self.out.is_terminal();
        Bytes { answer: self, is_shown }
    }
}

/// Writer of bytes of files.
pub(crate) struct Bytes<'a> {
    answer: &'a mut Answer,
    /// Whether a terminal shows them.
    is_shown: bool,
}

impl Write for Bytes<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_shown {
            return self.answer.write(bytes);
        }
        self.answer.keep(|out| out.write_all(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.answer.flush()
    }
}

impl Write for Answer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = self.pieces.visible(bytes);
        self.keep(|out| out.write_all(text.as_bytes()));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.keep(Write::flush);
        Ok(())
    }
}

/// Writes the rest and returns the exit code of a command that would end with `exit`.
pub(crate) fn end(exit: Exit, terminal: &Terminal) -> Exit {
    out().keep(Write::flush);
    verdict(exit, FAILURE.get(), terminal)
}

fn verdict(exit: Exit, failure: Option<&io::Error>, terminal: &Terminal) -> Exit {
    let Some(error) = failure.filter(|error| error.kind() != ErrorKind::BrokenPipe) else { return exit };
    let help = (error.kind() == ErrorKind::StorageFull).then_some("free some space or write to another disk");
    terminal.error(&format!("cannot write to standard output: {error}"), help);
    match exit {
        Exit::Success | Exit::No => Exit::Unavailable,
        worse => worse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::ColorChoice;

    #[test]
    fn a_reader_is_missed_before_anything_is_written() {
        let (reader, writer) = io::pipe().unwrap();
        assert!(!has_no_reader(&writer));
        drop(reader);
        assert!(has_no_reader(&writer));
        assert!(!has_no_reader(&tempfile::tempfile().unwrap()));
    }

    #[test]
    fn only_a_reader_that_went_away_changes_nothing() {
        let terminal = Terminal::new(ColorChoice::Never, false);
        let code = |exit, kind: ErrorKind| verdict(exit, Some(&kind.into()), &terminal);
        assert_eq!(verdict(Exit::No, None, &terminal), Exit::No);
        assert_eq!(code(Exit::No, ErrorKind::BrokenPipe), Exit::No);
        assert_eq!(code(Exit::No, ErrorKind::StorageFull), Exit::Unavailable);
        assert_eq!(code(Exit::Success, ErrorKind::StorageFull), Exit::Unavailable);
        assert_eq!(code(Exit::Configuration, ErrorKind::StorageFull), Exit::Configuration);
    }
}
