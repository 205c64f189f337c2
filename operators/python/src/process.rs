//! One process of a step, source or sink: started, greeted, called, ended. The program that started this one can be the other
//! side too: see [`Process::attach`].
use crate::columns;
use crate::launch::{Ends, Greeting, Launch};
use crate::log::{Tail, follow};
use crate::memory::{Requests, Results};
use crate::package::{FILES, START};
use crate::protocol::{
    self, Answer, Failed, HEAD, Head, Hello, Place, Ready, Rejected, StartError, VERSION, kind, message,
};
use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, BinaryArray, RecordBatch};
use arrow_buffer::Buffer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};
use std::io::{ErrorKind, Read as _, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tidemill_operators::record::{ID, METADATA_COLUMNS, TIME};
use tidemill_spec::types::{ColumnType, StreamType};

/// How often the life of a process is checked while it computes.
const LOOK: Duration = Duration::from_millis(500);
/// Time in which a process ends by itself, or the last words of one that was ended arrive.
const PATIENCE: Duration = Duration::from_secs(2);
/// Least time for the start: modules for machine learning take long to import.
const LEAST_START: Duration = Duration::from_secs(120);

/// Why a call gave no rows.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The function failed; the process serves on.
    Failed { reason: String, detail: String },
    /// The process ended, at this row if that is known.
    Ended { detail: String, row: Option<usize> },
    /// It took too long and was ended.
    TimedOut { detail: String, row: Option<usize> },
}

/// What a call gave.
pub(crate) struct Given {
    /// The row of the input of each row; `None`: one for one.
    pub(crate) origins: Option<Vec<u32>>,
    pub(crate) columns: Vec<ArrayRef>,
    pub(crate) rejected: Vec<Rejected>,
}

/// Records that a source gave.
pub(crate) struct Read {
    pub(crate) given: Given,
    /// Whether more records would have required waiting.
    pub(crate) has_caught_up: bool,
    /// The position of the next record, in JSON; empty if the source states none.
    pub(crate) position: String,
}

/// A process that this one started.
struct Started {
    child: Child,
    /// Becomes readable when the process has ended.
    life: OwnedFd,
    /// Whether it was waited for: its number may belong to another process.
    is_over: bool,
}

/// A running process of a step.
pub(crate) struct Process {
    /// `None`: the program that started this one.
    started: Option<Started>,
    control: UnixStream,
    requests: Requests,
    results: Results,
    tail: Arc<Tail>,
    operator: String,
    timeout: Duration,
    number: u64,
    input: Vec<ColumnType>,
    output: Vec<ColumnType>,
    processor_time: Duration,
    pub(crate) greeting: Greeting,
}

impl Process {
    /// Starts a process and has it import its module.
    ///
    /// # Errors
    /// The interpreter or the step cannot start.
    pub(crate) fn start(launch: &Launch) -> Result<Self, StartError> {
        let system = |what: &str| {
            let what = format!("{what} of `{}`", launch.operator);
            move |error: std::io::Error| plain(format!("{what}: {error}"))
        };
        let (control, theirs) = UnixStream::pair().map_err(system("no socket for the process"))?;
        let memory = |error: rustix::io::Errno| plain(format!("no shared memory for a step: {error}"));
        let (requests, results) = (Requests::new().map_err(memory)?, Results::new().map_err(memory)?);
        let inherited = vec![theirs.into(), duplicate(&requests.file)?, duplicate(&results.file)?];
        let mut command = Command::new(&launch.interpreter);
        match &launch.arguments {
            Some(arguments) => command.args(arguments),
            None => command.args(["-B", "-c", START]),
        };
        for file in &inherited {
            command.arg(file.as_raw_fd().to_string());
        }
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = tidemill_machine::children::start(command, inherited)
            .map_err(|error| plain(format!("cannot start `{}`: {error}", launch.interpreter.display())))?;
        let life = match pid(&child).map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
            Some(Ok(life)) => life,
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(plain("the system cannot watch the life of a process".to_owned()));
            }
        };
        let tail = Arc::new(Tail::default());
        let logs =
            child.stdout.take().map_or(Ok(()), |pipe| follow(pipe, &launch.operator, None)).and_then(|()| {
                match child.stderr.take() {
                    Some(pipe) => follow(pipe, &launch.operator, Some(Arc::clone(&tail))),
                    None => Ok(()),
                }
            });
        let started = Started { child, life, is_over: false };
        let mut process = Self::over(Some(started), control, (requests, results), launch, tail);
        logs.map_err(system("no thread for the output"))?;
        process.greet(launch)?;
        process.timeout = launch.timeout;
        Ok(process)
    }

    /// Greets the program that started this one, over descriptors that it inherited: it gives the records of a source or takes
    /// those of a sink, and may take any time.
    ///
    /// # Errors
    /// It is gone, or does not speak the protocol.
    pub(crate) fn attach(ends: Ends, launch: &Launch) -> Result<Self, StartError> {
        let memory = |error: rustix::io::Errno| plain(format!("no shared memory: {error}"));
        let requests = Requests::of(ends.requests).map_err(memory)?;
        let tail = Arc::new(Tail::closed());
        let files = (requests, Results { file: ends.results });
        let mut process = Self::over(None, ends.control, files, launch, tail);
        process.timeout = Duration::MAX;
        process.greet(launch)?;
        Ok(process)
    }

    fn over(
        started: Option<Started>,
        control: UnixStream,
        (requests, results): (Requests, Results),
        launch: &Launch,
        tail: Arc<Tail>,
    ) -> Self {
        Self {
            started,
            control,
            requests,
            results,
            tail,
            operator: launch.operator.clone(),
            timeout: launch.timeout.max(LEAST_START),
            number: 0,
            input: launch.input.columns.iter().map(|column| column.column_type.clone()).collect(),
            output: Vec::new(),
            processor_time: Duration::ZERO,
            greeting: Greeting::default(),
        }
    }

    fn greet(&mut self, launch: &Launch) -> Result<(), StartError> {
        let folder = launch.folder.to_string_lossy();
        let hello = Hello {
            version: VERSION,
            operator: &launch.operator,
            module: &launch.module,
            folder: &folder,
            name: &launch.name,
            is_class: launch.is_class,
            batch: launch.batch,
            role: launch.role,
            arguments: &launch.parameters,
            input: names(&launch.input),
            output: launch.output.as_ref().map(names),
            package: FILES.iter().copied().collect(),
        };
        let hello = serde_json::to_vec(&hello).map_err(|error| plain(error.to_string()))?;
        let body = self.exchange(kind::HELLO, &hello, &[kind::READY]).map_err(|fault| match fault {
            Fault::Ended { detail, .. } => plain(format!("it did not start: {detail}")),
            Fault::TimedOut { detail, .. } => plain(format!("it did not start: {detail}")),
            Fault::Failed { detail, .. } => plain(detail),
        })?;
        let ready: Ready = serde_json::from_slice(&body.1)
            .map_err(|error| plain(format!("it answered the greeting with something else: {error}")))?;
        if let Some(error) = ready.error {
            return Err(error);
        }
        if ready.version != VERSION {
            let text = format!("it speaks version {} of the protocol, the engine {VERSION}", ready.version);
            return Err(plain(text));
        }
        tracing::debug!(operator = launch.operator, language = ready.language, form = ?ready.form, "a step has started");
        self.greeting = Greeting {
            language: ready.language,
            output: ready.output,
            has_state: ready.has_state,
            has_advance: ready.has_advance,
            has_position: ready.has_position,
            has_commit: ready.has_commit,
            committed: ready.committed,
        };
        Ok(())
    }

    /// Sets the types of the output: those that the workflow or the step declares.
    pub(crate) fn expect(&mut self, output: &StreamType) {
        self.output = output.columns.iter().map(|column| column.column_type.clone()).collect();
    }

    /// Processor time of the process so far.
    pub(crate) fn processor_time(&self) -> Duration {
        self.processor_time
    }

    /// Has the step compute the payload of a batch.
    pub(crate) fn batch(&mut self, batch: &RecordBatch) -> Result<Given, Fault> {
        self.call_with(batch, None)
    }

    /// Has the sink take the payload of a batch, with the identities of its records.
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<(), Fault> {
        let ids = batch.column(ID).as_fixed_size_binary();
        let ids: ArrayRef = Arc::new(BinaryArray::from_iter_values(ids.iter().flatten()));
        self.call_with(batch, Some(&ids)).map(drop)
    }

    fn call_with(&mut self, batch: &RecordBatch, ids: Option<&ArrayRef>) -> Result<Given, Fault> {
        let number = self.number + 1;
        let time = (batch.column(TIME), &ColumnType::Int64);
        let payload = batch.columns()[METADATA_COLUMNS..].iter().zip(&self.input);
        let ids = ids.map(|ids| (ids, &ColumnType::Audio));
        let sent: Option<Vec<_>> = payload
            .chain([time])
            .chain(ids)
            .map(|(array, column_type)| columns::sent(array, column_type))
            .collect();
        let Some(mut sent) = sent else {
            let detail = "the column types of a batch differ from the bound ones".to_owned();
            return Err(Fault::Failed { reason: "python_output".to_owned(), detail });
        };
        let buffers: Vec<Buffer> = sent.iter().flat_map(|column| column.buffers.iter().cloned()).collect();
        let (part, places) = match self.requests.write(number, &buffers) {
            Ok(written) => written,
            Err(error) => return Err(self.broken(&format!("no shared memory is left: {error}"))),
        };
        let mut body = Vec::with_capacity(32 + sent.len() * protocol::COLUMN);
        for field in [batch.num_rows() as u64, part.offset, part.length] {
            body.extend(field.to_le_bytes());
        }
        body.extend((sent.len() as u32).to_le_bytes());
        body.extend(0u32.to_le_bytes());
        for (column, places) in sent.iter_mut().zip(places.chunks_exact(3)) {
            column.place.buffers = [places[0], places[1], places[2]];
            column.place.write(&mut body);
        }
        drop((sent, buffers));
        let (found, body) = self.exchange(kind::BATCH, &body, &[kind::RESULT, kind::FAILED])?;
        self.given(found, &body, Some(batch.num_rows()))
    }

    /// Tells the step the watermark.
    pub(crate) fn advance(&mut self, watermark: i64) -> Result<Given, Fault> {
        let body = watermark.to_le_bytes();
        let (found, body) = self.exchange(kind::ADVANCE, &body, &[kind::RESULT, kind::FAILED])?;
        self.given(found, &body, None)
    }

    /// Asks a source for records: `Some` with none of them if none came in this time, `None` at its end.
    pub(crate) fn read(&mut self, rows: u64, bytes: u64, wait: Duration) -> Result<Option<Read>, Fault> {
        let mut body = Vec::with_capacity(24);
        for field in [rows, bytes, wait.as_millis() as u64] {
            body.extend(field.to_le_bytes());
        }
        let answers = [kind::RESULT, kind::FAILED, kind::OVER];
        let (found, body) = self.exchange(kind::READ, &body, &answers)?;
        match found {
            kind::OVER => Ok(None),
            kind::FAILED => Err(self.failed(&body)),
            _ => {
                let Some(answer) = Answer::read(&body) else {
                    return Err(self.broken("its answer is cut off"));
                };
                self.processor_time = Duration::from_nanos(answer.processor_time);
                let (has_caught_up, position) = (answer.has_caught_up, answer.position.clone());
                let records = answer.rows.saturating_add(answer.rejected.len() as u64);
                let given = usize::try_from(records)
                    .map_err(|error| error.to_string())
                    .and_then(|records| self.checked(answer, Some(records)))
                    .map_err(|finding| self.broken(&finding))?;
                Ok(Some(Read { given, has_caught_up, position }))
            }
        }
    }

    /// Has a source continue at a position, before its first record.
    pub(crate) fn seek(&mut self, position: &str) -> Result<(), Fault> {
        self.order(kind::SEEK, position.as_bytes())
    }

    /// Tells a sink that all rows so far are complete.
    pub(crate) fn commit(&mut self, epoch: u64) -> Result<(), Fault> {
        self.order(kind::COMMIT, &epoch.to_le_bytes())
    }

    /// Has a sink close what it opened.
    pub(crate) fn close(&mut self) -> Result<(), Fault> {
        self.order(kind::CLOSE, &[])
    }

    fn order(&mut self, kind: u32, body: &[u8]) -> Result<(), Fault> {
        let (found, body) = self.exchange(kind, body, &[kind::DONE, kind::FAILED])?;
        if found == kind::FAILED { Err(self.failed(&body)) } else { Ok(()) }
    }

    /// Returns the socket, for a thread that ends a call that waits.
    pub(crate) fn control(&self) -> std::io::Result<UnixStream> {
        self.control.try_clone()
    }

    /// Has Python write where it is, then ends the process.
    pub(crate) fn hangs(&mut self) -> Fault {
        self.timed_out()
    }

    /// Has the step write its state.
    pub(crate) fn snapshot(&mut self) -> Result<Vec<u8>, Fault> {
        let (found, body) = self.exchange(kind::SNAPSHOT, &[], &[kind::STATE, kind::FAILED])?;
        if found == kind::FAILED {
            return Err(self.failed(&body));
        }
        let place = protocol::place(&body);
        match place.and_then(|place| self.results.read(place)) {
            Some(state) => Ok(state.as_slice().to_vec()),
            None => Err(self.broken("its state lies outside of the results")),
        }
    }

    /// Has the step read a state.
    pub(crate) fn restore(&mut self, state: &[u8]) -> Result<(), Fault> {
        let number = self.number + 1;
        let place: Place = match self.requests.write(number, &[Buffer::from(state)]) {
            Ok((_, places)) => places.first().copied().unwrap_or_default(),
            Err(error) => return Err(self.broken(&format!("no shared memory is left: {error}"))),
        };
        let mut body = Vec::with_capacity(16);
        for field in [place.offset, place.length] {
            body.extend(field.to_le_bytes());
        }
        let (found, body) = self.exchange(kind::RESTORE, &body, &[kind::DONE, kind::FAILED])?;
        self.requests.release(number);
        if found == kind::FAILED { Err(self.failed(&body)) } else { Ok(()) }
    }

    /// Reads an answer; `rows`: those of the input.
    fn given(&mut self, found: u32, body: &[u8], rows: Option<usize>) -> Result<Given, Fault> {
        if found == kind::FAILED {
            return Err(self.failed(body));
        }
        let Some(answer) = Answer::read(body) else {
            return Err(self.broken("its answer is cut off"));
        };
        self.processor_time = Duration::from_nanos(answer.processor_time);
        if !answer.keeps_memory {
            self.requests.release(self.number);
        }
        answer.freed.iter().for_each(|call| self.requests.release(*call));
        self.checked(answer, rows).map_err(|finding| self.broken(&finding))
    }

    fn checked(&self, answer: Answer, rows: Option<usize>) -> Result<Given, String> {
        if answer.columns.len() != self.output.len() {
            return Err(format!("it gave {} columns instead of {}", answer.columns.len(), self.output.len()));
        }
        if let Some(column) = answer.columns.iter().find(|column| column.rows != answer.rows) {
            return Err(format!("a column has {} rows, the answer {}", column.rows, answer.rows));
        }
        let count = usize::try_from(answer.rows).map_err(|error| error.to_string())?;
        let origins = match (answer.is_one_for_one, rows) {
            (true, Some(rows)) if rows == count => None,
            (true, Some(rows)) => return Err(format!("it gave {count} rows for {rows}, one for one")),
            (_, None) => None,
            (false, Some(rows)) => {
                let origins = columns::origins(&self.results, answer.origins, count)?;
                match origins.iter().find(|row| **row as usize >= rows) {
                    Some(row) => return Err(format!("it gave a row of row {row} of {rows}")),
                    None => Some(origins),
                }
            }
        };
        if let Some(rejected) = answer.rejected.iter().find(|of| of.row as usize >= rows.unwrap_or(0)) {
            return Err(format!("it rejected row {} of {}", rejected.row, rows.unwrap_or(0)));
        }
        let columns = answer
            .columns
            .iter()
            .zip(&self.output)
            .map(|(column, column_type)| columns::received(&self.results, column, column_type));
        Ok(Given { origins, columns: columns.collect::<Result<_, _>>()?, rejected: answer.rejected })
    }

    fn failed(&mut self, body: &[u8]) -> Fault {
        match serde_json::from_slice::<Failed>(body) {
            Ok(Failed { reason, detail, freed }) if reason.starts_with("python_") => {
                freed.iter().for_each(|call| self.requests.release(*call));
                Fault::Failed { reason, detail }
            }
            _ => self.broken("it reported a failure without a reason"),
        }
    }

    /// Sends a message and waits for its answer.
    fn exchange(&mut self, kind: u32, body: &[u8], expected: &[u32]) -> Result<(u32, Vec<u8>), Fault> {
        if kind != kind::HELLO {
            self.number += 1;
        }
        let number = self.number;
        if self.control.write_all(&message(kind, number, body)).is_err() {
            return Err(self.ended());
        }
        let mut head = [0; HEAD];
        self.receive(&mut head)?;
        let Some(head) = Head::read(&head) else { return Err(self.broken("its answer is too long")) };
        let mut body = vec![0; head.length as usize];
        self.receive(&mut body)?;
        if head.number != number || !expected.contains(&head.kind) {
            let text = format!("it answered call {number} with message {} of {}", head.kind, head.number);
            return Err(self.broken(&text));
        }
        Ok((head.kind, body))
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<(), Fault> {
        let (mut read, mut waited, mut row) = (0, Duration::ZERO, self.results.row());
        while read < bytes.len() {
            let look = LOOK.min(self.timeout.saturating_sub(waited)).max(Duration::from_millis(1));
            if self.control.set_read_timeout(Some(look)).is_err() {
                return Err(self.ended());
            }
            match self.control.read(&mut bytes[read..]) {
                Ok(0) => return Err(self.ended()),
                Ok(more) => read += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    waited += look;
                    let now = self.results.row();
                    if now != row {
                        (row, waited) = (now, Duration::ZERO);
                    }
                    if self.ends_within(Duration::ZERO) {
                        return Err(self.ended());
                    }
                    if waited >= self.timeout {
                        return Err(self.timed_out());
                    }
                }
                Err(_) => return Err(self.ended()),
            }
        }
        Ok(())
    }

    fn row(&self) -> Option<usize> {
        self.results.row().and_then(|row| usize::try_from(row).ok())
    }

    /// The process has ended, or closed its socket.
    fn ended(&mut self) -> Fault {
        let row = self.row();
        self.ends_within(PATIENCE);
        let how = self.end();
        Fault::Ended { detail: self.with_last_words(format!("the process ended with {how}")), row }
    }

    fn timed_out(&mut self) -> Fault {
        let row = self.row();
        // Has the interpreter write where it is, if it is Python.
        if let Some(pid) = self.pid().filter(|_| !self.greeting.language.is_empty()) {
            let _ = kill_process(pid, Signal::USR2);
            self.tail.last(LOOK);
        }
        self.end();
        let place =
            place_in(&self.tail.last(PATIENCE)).map(|place| format!(" in {place}")).unwrap_or_default();
        let detail = format!("it took longer than {} s{place} and was ended", self.timeout.as_secs_f64());
        Fault::TimedOut { detail: self.with_last_words(detail), row }
    }

    /// The process does not keep to the protocol.
    fn broken(&mut self, finding: &str) -> Fault {
        self.end();
        let detail = self.with_last_words(format!("the process broke the protocol: {finding}"));
        Fault::Ended { detail, row: None }
    }

    fn with_last_words(&self, text: String) -> String {
        match self.tail.last(PATIENCE) {
            last if last.is_empty() => text,
            last => format!("{text}; it wrote last:\n{last}"),
        }
    }

    /// Its number, until it was waited for.
    fn pid(&self) -> Option<Pid> {
        self.started.as_ref().filter(|started| !started.is_over).and_then(|started| pid(&started.child))
    }

    /// Kills the process and those that it started; says how it ended.
    fn end(&mut self) -> String {
        // Only a child that was not waited for still has its number.
        if let Some(pid) = self.pid() {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        match &mut self.started {
            None => {
                let _ = self.control.shutdown(Shutdown::Both);
                "a closed connection".to_owned()
            }
            Some(started) => {
                started.is_over = true;
                started.child.wait().map_or_else(|error| error.to_string(), |status| described(&status))
            }
        }
    }

    fn ends_within(&self, time: Duration) -> bool {
        let Some(started) = &self.started else { return false };
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        poll(&mut [PollFd::new(&started.life, PollFlags::IN)], Some(&time)).is_ok_and(|ready| ready > 0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.started.as_ref().is_some_and(|started| started.is_over) {
            return;
        }
        let goodbye = self.control.write_all(&message(kind::END, self.number, &[]));
        if self.started.is_none() {
            return;
        }
        if goodbye.is_err() || !self.ends_within(PATIENCE) {
            tracing::debug!(operator = self.operator, "a step does not end by itself, and is killed");
        }
        self.end();
    }
}

fn pid(child: &Child) -> Option<Pid> {
    Pid::from_raw(i32::try_from(child.id()).ok()?)
}

fn plain(message: String) -> StartError {
    StartError { message, traceback: String::new(), file: None, line: None, names: Vec::new() }
}

fn duplicate(file: &OwnedFd) -> Result<OwnedFd, StartError> {
    file.try_clone().map_err(|error| plain(format!("no shared memory for a step: {error}")))
}

fn names(stream: &StreamType) -> Vec<(String, String)> {
    stream.columns.iter().map(|column| (column.name.clone(), column.column_type.to_string())).collect()
}

fn described(status: &ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (_, Some(signal)) => match Signal::from_named_raw(signal) {
            Some(named) => {
                let name = format!("{named:?}");
                format!("signal {signal} ({})", name.trim_start_matches("Signal::").trim_matches('"'))
            }
            None => format!("signal {signal}"),
        },
        _ => status.to_string(),
    }
}

/// Returns the newest call of the thread that runs the step, in what Python writes of its threads.
fn place_in(words: &str) -> Option<&str> {
    let (_, current) = words.rsplit_once("Current thread")?;
    current.lines().map(str::trim).find(|line| line.starts_with("File "))
}

#[cfg(test)]
#[path = "process_tests.rs"]
mod tests;
