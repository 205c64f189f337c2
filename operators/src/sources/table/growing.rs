//! A text file that grows, and those that take its place when it is rotated.
use super::{Format, Options, Reader, Table, microseconds, parse_position};
use crate::api::{BoundSource, MakeSource, OperatorError, Source, SourcePosition, SourceRead};
use crate::feeds::{FeedOrder, FeedState, FeedStatus, Feeds};
use crate::kind::EndContext;
use crate::record::{EventTime, payload_schema};
use crate::sources::followed::{Followed, Identity};
use crate::sources::input::Origin;
use arrow_schema::SchemaRef;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::types::StreamType;

/// Interval at which the file is looked at while nothing comes.
const LOOK: Duration = Duration::from_millis(50);
/// Looks without anything after which the source states it.
const LOOKS: u32 = 10;
/// Looks at a renamed file without anything new, a second, after which nobody writes to it any more.
const LAST_LOOKS: u32 = 20;

/// Binds a file that grows. With `idle`, event times follow the clock after so long without a line.
pub(in crate::sources) fn bind<F: Format + 'static>(
    kind: &str,
    context: &EndContext<'_>,
    options: &Options,
    (quotes, idle): (bool, Option<Duration>),
    format: impl Fn() -> F + Send + Sync + 'static,
) -> Result<BoundSource, Diagnostics> {
    let path = context.path(&options.path);
    let table = Table::of(options, quotes, Origin::assumed("", path.clone()))?;
    if context.opens() {
        check(context, options, &path)?;
    }
    let output = StreamType::new(table.columns.clone());
    let (schema, has_event_times) = (payload_schema(&output), table.time.is_some());
    let feed = Arc::new(Feed { name: context.id.value.clone(), shared: Mutex::default() });
    let feeds: Arc<dyn Feeds> = feed.clone();
    let out_of_order = microseconds(options.out_of_order);
    let idle = idle.map(|idle| (idle, out_of_order));
    let (table, format) = (Arc::new(table), Arc::new(format));
    let written: Arc<str> = options.path.value.as_str().into();
    let make: MakeSource = Arc::new(move || {
        Ok(Box::new(Growing {
            table: Arc::clone(&table),
            schema: Arc::clone(&schema),
            format: Arc::clone(&format),
            path: path.clone(),
            written: Arc::clone(&written),
            feed: Arc::clone(&feed),
            idle,
            current: None::<Current<F>>,
            newest: None,
            silent: 0,
        }))
    });
    Ok(BoundSource {
        live: true,
        waits_for_all: true,
        rereads: true,
        has_event_times,
        out_of_order_microseconds: out_of_order,
        feeds: Some(feeds),
        ..context.source(kind, output, make)
    })
}

/// Refuses what is there and is no file.
fn check(context: &EndContext<'_>, options: &Options, path: &std::path::Path) -> Result<(), Diagnostic> {
    let wrong = |text: String, help: &str| {
        Err(Diagnostic::error("E0609", format!("source `{}`: {text}", context.id))
            .at(options.path.span.clone())
            .with_help(help))
    };
    match Followed::open(path).map_err(|error| (error.kind(), error)) {
        Ok(_) | Err((ErrorKind::NotFound, _)) => Ok(()),
        Err((ErrorKind::IsADirectory, _)) => {
            wrong(format!("`{}` is a folder", path.display()), "write the path of a file in it")
        }
        Err((ErrorKind::InvalidInput, error)) => wrong(
            format!("`{}` cannot be followed: {error}", path.display()),
            "read it with the kind `csv` or `jsonl`",
        ),
        Err((_, error)) => {
            wrong(format!("cannot read `{}`: {error}", path.display()), "check the path and its permissions")
        }
    }
}

/// Microseconds since 1970, as the clock of this machine has it.
#[allow(clippy::disallowed_methods, reason = "files that grow follow no simulated time")]
fn now() -> EventTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

#[allow(clippy::disallowed_methods, reason = "files that grow follow no simulated time")]
fn monotonic() -> Instant {
    Instant::now()
}

/// State of the file for users.
struct Feed {
    name: String,
    shared: Mutex<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Option<(FeedState, Instant)>,
    detail: String,
    files: u64,
    records: u64,
}

impl Feed {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether this is news.
    fn tell(&self, state: FeedState, detail: &str) -> bool {
        let mut shared = self.lock();
        let is_new = shared.state.is_none_or(|(known, _)| known != state) || shared.detail != detail;
        if shared.state.is_none_or(|(known, _)| known != state) {
            shared.state = Some((state, monotonic()));
        }
        detail.clone_into(&mut shared.detail);
        is_new
    }
}

impl Feeds for Feed {
    fn status(&self) -> Vec<FeedStatus> {
        let shared = self.lock();
        let (state, seconds) = match shared.state {
            Some((state, since)) => (state, since.elapsed().as_secs_f64()),
            None => (FeedState::Connecting, 0.0),
        };
        vec![FeedStatus {
            feed: self.name.clone(),
            state,
            seconds,
            detail: shared.detail.clone(),
            connects: shared.files,
            received: shared.records,
            emitted: shared.records,
            drops: BTreeMap::new(),
            waiting: 0,
        }]
    }

    fn order(&self, _: &FeedOrder) -> Result<(), String> {
        Err("a file is followed as long as the run lasts; its path is in the workflow".into())
    }
}

/// A file being read.
struct Current<F> {
    file: Arc<Followed>,
    /// Its first bytes, as known so far.
    head: Vec<u8>,
    /// None until it has a whole line.
    reader: Option<Reader<F>>,
    /// Position to seek to when the reader is there.
    position: SourcePosition,
    /// Whether the reader found no further line in what it has read.
    is_drained: bool,
    /// Looks since another file took its place without anything new in this one.
    last_looks: u32,
}

impl<F: Format> Current<F> {
    fn new(file: Arc<Followed>, position: SourcePosition) -> Self {
        Self { file, head: Vec::new(), reader: None, position, is_drained: false, last_looks: 0 }
    }

    fn position(&self) -> SourcePosition {
        let inner = self.reader.as_ref().map_or_else(|| self.position.clone(), Source::position);
        let offset = parse_position(&inner.0).map_or(0, |(place, _)| place.offset);
        SourcePosition(format!("{}:{}", self.file.identity(&self.head, offset), inner.0))
    }
}

/// Result of a look.
enum Seen {
    Read(SourceRead),
    /// Another file, or the same one from its beginning, is next.
    Turned,
    Nothing,
}

struct Growing<F, M> {
    /// With the path; each file has its own origin.
    table: Arc<Table>,
    schema: SchemaRef,
    format: Arc<M>,
    path: PathBuf,
    written: Arc<str>,
    feed: Arc<Feed>,
    /// Silence after which the watermark follows the clock, and how late records may be, microseconds.
    idle: Option<(Duration, i64)>,
    current: Option<Current<F>>,
    newest: Option<EventTime>,
    /// Looks since the last record.
    silent: u32,
}

impl<F: Format, M: Fn() -> F + Send + Sync> Growing<F, M> {
    fn failed(&self, error: &dyn std::fmt::Display) -> OperatorError {
        OperatorError::new(format!("cannot read `{}`: {error}", self.path.display()))
    }

    fn event(&self, text: &str) {
        tracing::warn!("source `{}`: `{}` {text}", self.feed.name, self.path.display());
    }

    /// Opens the file if it is there.
    fn find(&mut self) -> bool {
        let error = match Followed::open(&self.path) {
            Ok(file) => {
                self.begin(Current::new(file, SourcePosition("0:1".into())));
                return true;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => "the file does not exist yet".to_owned(),
            Err(error) => format!("the file cannot be read: {error}"),
        };
        if self.feed.tell(FeedState::Connecting, &error) {
            self.event(&format!("is waited for: {error}"));
        }
        false
    }

    /// Leaves the present file.
    fn leave(&mut self) {
        let left = self.current.take().and_then(|current| current.reader);
        self.newest = left.map_or(self.newest, |reader| reader.newest);
    }

    fn begin(&mut self, current: Current<F>) {
        self.current = Some(current);
        self.feed.tell(FeedState::Live, "");
        self.feed.lock().files += 1;
    }

    /// Reads what is there.
    fn look(&mut self, rows: usize, bytes: usize) -> Result<Seen, OperatorError> {
        let Some(current) = &mut self.current else {
            return Ok(if self.find() { Seen::Turned } else { Seen::Nothing });
        };
        let checked = current.file.length().and_then(|length| Ok((length, current.file.head()?)));
        let (length, head) = checked.map_err(|error| self.failed(&error))?;
        let Some(current) = &mut self.current else { return Ok(Seen::Nothing) };
        let read = current.file.read();
        if length < read || !head.starts_with(&current.head) {
            self.event("was truncated or written anew: reading it from its beginning");
            self.leave();
            return Ok(Seen::Turned);
        }
        current.head = head;
        let has_more = length > read || current.file.is_finished();
        if current.is_drained && !has_more {
            return Ok(self.look_for_another());
        }
        current.last_looks = 0;
        if current.reader.is_none() {
            match (current.file.is_finished(), self.start()?) {
                (_, true) => {}
                (false, false) => return Ok(self.look_for_another()),
                (true, false) => {
                    self.leave();
                    return Ok(Seen::Turned);
                }
            }
        }
        let Some(Current { reader: Some(reader), is_drained, .. }) = &mut self.current else {
            return Ok(Seen::Nothing);
        };
        let seen = reader.read(rows, bytes)?;
        *is_drained = matches!(seen, SourceRead::Idle { .. });
        match seen {
            SourceRead::Idle { .. } => Ok(self.look_for_another()),
            SourceRead::End => {
                self.leave();
                Ok(Seen::Turned)
            }
            SourceRead::Rows { payload, times, dead_letters, offsets } => {
                self.feed.lock().records += (payload.num_rows() + dead_letters.len()) as u64;
                Ok(Seen::Read(SourceRead::Rows { payload, times, dead_letters, offsets }))
            }
        }
    }

    /// Starts to read lines; `false`: there is nothing to read yet.
    fn start(&mut self) -> Result<bool, OperatorError> {
        let Some(current) = &mut self.current else { return Ok(false) };
        let file = &current.file;
        let has_line = file.has_line().map_err(|error| OperatorError::new(error.to_string()))?;
        // A whole line, or the last one of a file without a line with the names of its columns.
        if !has_line && (self.table.quotes || !file.is_finished()) {
            return Ok(false);
        }
        let origin = Origin::followed(self.path.clone(), Arc::clone(file));
        let table = Arc::new(Table { origin, ..(*self.table).clone() });
        let opened = Reader::open(&table, &self.schema, &self.written, (self.format)());
        let mut reader = opened.map_err(|(text, help)| OperatorError::new(format!("{text}: {help}")))?;
        reader.newest = self.newest;
        if current.position.0 != "0:1" {
            reader.seek(&current.position)?;
        }
        current.reader = Some(reader);
        Ok(true)
    }

    /// Looks whether another file has taken the place of the present one, of which everything was read.
    fn look_for_another(&mut self) -> Seen {
        let Some(current) = &mut self.current else { return Seen::Nothing };
        // While the next one is empty, somebody may still write to the one that was renamed.
        if current.file.other_at(&self.path).is_none_or(|length| length == 0) {
            current.last_looks = 0;
            return Seen::Nothing;
        }
        current.last_looks += 1;
        if current.last_looks < LAST_LOOKS || current.file.is_finished() {
            return Seen::Nothing;
        }
        current.file.finish();
        self.event("was rotated: the file of before was read to its end, the new one is next");
        Seen::Nothing
    }

    fn watermark(&self) -> EventTime {
        match self.idle {
            Some((idle, out_of_order)) if LOOK * self.silent >= idle => {
                let idle = i64::try_from(idle.as_micros()).unwrap_or(i64::MAX);
                now().saturating_sub(idle).saturating_sub(out_of_order)
            }
            _ => EventTime::MIN,
        }
    }
}

impl<F: Format, M: Fn() -> F + Send + Sync> Source for Growing<F, M> {
    fn read(&mut self, rows: usize, bytes: usize) -> Result<SourceRead, OperatorError> {
        for _ in 0..LOOKS {
            match self.look(rows, bytes)? {
                Seen::Read(read) => {
                    self.silent = 0;
                    return Ok(read);
                }
                // The run learns the new position before anything is read there.
                Seen::Turned => break,
                Seen::Nothing => std::thread::sleep(LOOK),
            }
            self.silent = self.silent.saturating_add(1);
        }
        Ok(SourceRead::Idle { watermark: self.watermark() })
    }

    fn position(&self) -> SourcePosition {
        self.current.as_ref().map(Current::position).unwrap_or_default()
    }

    fn seek(&mut self, position: &SourcePosition) -> Result<(), OperatorError> {
        self.current = None;
        if position.0.is_empty() {
            return Ok(());
        }
        let wrong = || OperatorError::new(format!("`{}` is no position in a file that grows", position.0));
        let (identity, inner) = position.0.split_once(':').ok_or_else(wrong)?;
        let identity: Identity = identity.parse().map_err(|()| wrong())?;
        let (place, newest) = parse_position(inner).ok_or_else(wrong)?;
        self.newest = newest;
        match Followed::find(&self.path, &identity, place.offset) {
            None => self.event(
                "is no longer the file that was read before, which was deleted or changed: reading it from its beginning",
            ),
            Some(file) => {
                let head = file.head().map_err(|error| self.failed(&error))?;
                if file.other_at(&self.path).is_some() {
                    self.event(
                        "was rotated while the run was away: the file of before is read to its end, then the present one; \
                         files between them are not read",
                    );
                }
                let head = head[..identity.known().min(head.len())].to_vec();
                self.begin(Current { head, ..Current::new(file, SourcePosition(inner.to_owned())) });
            }
        }
        Ok(())
    }

    fn sizes(&self) -> Option<&[u32]> {
        self.current.as_ref()?.reader.as_ref()?.sizes()
    }
}
