//! A terminal as a screen: the alternate screen, keys without Enter, and everything restored at the end.
use crate::visible::visible;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcsetattr};
use std::io::{self, Write};
use std::time::Duration;

/// Time after which an Esc is a key by itself and not the start of another one.
const REST: Duration = Duration::from_millis(30);

/// A key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    Letter(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Enter,
    Escape,
    /// Ctrl-C.
    Interrupt,
}

/// Style of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Style {
    #[default]
    Plain,
    Strong,
    Weak,
    /// Inverse.
    Turned,
    /// An alarm.
    Alarm,
}

/// A line of the screen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Line {
    pub(crate) text: String,
    pub(crate) style: Style,
}

impl Line {
    pub(crate) fn new(text: impl Into<String>, style: Style) -> Self {
        Self { text: text.into(), style }
    }
}

/// A terminal, until this is dropped.
pub(crate) struct Screen {
    before: Termios,
    has_colour: bool,
}

impl Screen {
    /// Takes over the terminal; `None` if there is none.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn open(has_colour: bool) -> io::Result<Option<Self>> {
        if !isatty(io::stdin()) || !isatty(io::stdout()) {
            return Ok(None);
        }
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Flush, &raw)?;
        let screen = Self { before, has_colour };
        // Alternate screen, no cursor.
        write("\u{1b}[?1049h\u{1b}[?25l")?;
        Ok(Some(screen))
    }

    /// Characters of a line, and lines.
    pub(crate) fn size(&self) -> (usize, usize) {
        let size = terminal_size::terminal_size_of(io::stdout());
        size.map_or((80, 24), |(width, height)| (usize::from(width.0), usize::from(height.0)))
    }

    /// Shows exactly these lines.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(crate) fn show(&mut self, lines: &[Line]) -> io::Result<()> {
        let (width, height) = self.size();
        let mut text = String::from("\u{1b}[H");
        for (at, line) in lines.iter().take(height).enumerate() {
            if at > 0 {
                text.push_str("\r\n");
            }
            let style = match line.style {
                Style::Plain => "",
                Style::Strong => "\u{1b}[1m",
                Style::Weak => "\u{1b}[2m",
                Style::Turned => "\u{1b}[7m",
                Style::Alarm if self.has_colour => "\u{1b}[1;31m",
                Style::Alarm => "\u{1b}[1m",
            };
            let shown: String = visible(&line.text).chars().take(width).collect();
            text.push_str(style);
            text.push_str(&shown);
            if line.style == Style::Turned {
                text.push_str(&" ".repeat(width.saturating_sub(shown.chars().count())));
            }
            text.push_str("\u{1b}[0m\u{1b}[K");
        }
        text.push_str("\u{1b}[J");
        write(&text)
    }

    /// Waits for a key.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(crate) fn key(&mut self, most: Duration) -> io::Result<Option<Key>> {
        let Some(first) = byte(most)? else { return Ok(None) };
        Ok(match first {
            3 => Some(Key::Interrupt),
            b'\r' | b'\n' => Some(Key::Enter),
            0x1b => match byte(REST)? {
                None => Some(Key::Escape),
                Some(b'[' | b'O') => sequence()?,
                Some(_) => None,
            },
            b' '..=b'~' => Some(Key::Letter(first.into())),
            _ => None,
        })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // An error has no receiver if the terminal is gone.
        let _ = write("\u{1b}[0m\u{1b}[?25h\u{1b}[?1049l");
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.before);
    }
}

/// Reads the rest of a key that is several bytes.
fn sequence() -> io::Result<Option<Key>> {
    let mut digits = Vec::new();
    loop {
        let Some(next) = byte(REST)? else { return Ok(None) };
        match (next, digits.as_slice()) {
            (b'A', _) => return Ok(Some(Key::Up)),
            (b'B', _) => return Ok(Some(Key::Down)),
            (b'~', [b'5']) => return Ok(Some(Key::PageUp)),
            (b'~', [b'6']) => return Ok(Some(Key::PageDown)),
            (b'0'..=b'9' | b';', _) => digits.push(next),
            _ => return Ok(None),
        }
    }
}

fn byte(most: Duration) -> io::Result<Option<u8>> {
    let stdin = io::stdin();
    let mut waited = [PollFd::new(&stdin, PollFlags::IN)];
    let most = Timespec {
        tv_sec: i64::try_from(most.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: most.subsec_nanos().into(),
    };
    match poll(&mut waited, Some(&most)) {
        Ok(0) => return Ok(None),
        Ok(_) => {}
        Err(rustix::io::Errno::INTR) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let mut one = [0];
    // Bypasses the buffer of the standard library, which `poll` does not see.
    match rustix::io::read(&stdin, &mut one) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) => Ok(Some(one[0])),
        Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
