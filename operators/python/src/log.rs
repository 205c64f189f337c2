//! Output of a step: each line becomes a line of the log, and the last ones are kept for the report of its end.
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Lines that are kept.
const LINES: usize = 24;
/// Longest line, in bytes; a longer one is split.
const LONGEST: u64 = 8 << 10;

/// The last lines of a step's standard error.
#[derive(Default)]
pub(crate) struct Tail {
    lines: Mutex<(VecDeque<String>, bool)>,
    changed: Condvar,
}

impl Tail {
    /// The tail of a program whose output is not followed.
    pub(crate) fn closed() -> Self {
        let tail = Self::default();
        tail.close();
        tail
    }

    fn push(&self, line: &str) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.0.len() == LINES {
            lines.0.pop_front();
        }
        lines.0.push_back(line.to_owned());
    }

    fn close(&self) {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.changed.notify_all();
    }

    /// Returns the last lines once the output has ended, or after this time.
    pub(crate) fn last(&self, most: Duration) -> String {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = self.changed.wait_timeout_while(lines, most, |(_, is_closed)| !*is_closed);
        let (lines, _) = ended.unwrap_or_else(PoisonError::into_inner);
        lines.0.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

/// Logs the lines of a pipe with the id of the operator until it is closed; those of `tail` are kept.
pub(crate) fn follow(
    pipe: impl Read + Send + 'static,
    operator: &str,
    tail: Option<Arc<Tail>>,
) -> std::io::Result<()> {
    let operator = operator.to_owned();
    let follow = move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        while pipe.by_ref().take(LONGEST).read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end();
            match &tail {
                Some(tail) => {
                    tail.push(text);
                    tracing::warn!(operator, "{text}");
                }
                None => tracing::info!(operator, "{text}"),
            }
            line.clear();
        }
        if let Some(tail) = &tail {
            tail.close();
        }
    };
    std::thread::Builder::new().name("tm-python-log".to_owned()).spawn(follow).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_there_once_the_pipe_is_closed() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let tail = Arc::new(Tail::default());
        follow(reader, "step", Some(Arc::clone(&tail))).unwrap();
        for line in 0..40 {
            std::io::Write::write_all(&mut writer, format!("line {line}\n").as_bytes()).unwrap();
        }
        drop(writer);
        let last = tail.last(Duration::from_secs(30));
        assert!(last.starts_with("line 16\n") && last.ends_with("line 39"), "{last}");
    }
}
