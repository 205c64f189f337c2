//! The program that started this one gives the records of sources and takes the rows of sinks. Any source or sink of a workflow can
//! be replaced so: it keeps its columns and opens nothing. For each, this process makes the socket and the files of the protocol,
//! and hands their other ends over through a socket that it inherited.
use crate::launch::{Ends, Launch};
use crate::memory::{Requests, Results};
use crate::process::Process;
use crate::protocol::{Role, StartError};
use crate::reader::{Origin, Reader};
use crate::source::ANSWER;
use crate::times::{TimeUnit, Times};
use crate::writer::{Target, Writer};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::Deserialize;
use std::io::{self, Error, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tidemill_operators::api::{BoundSink, BoundSource, Sink, Source};
use tidemill_operators::kind::{EndContext, InputPort, SinkKind, SourceKind, Step};
use tidemill_operators::record::payload_schema;
use tidemill_operators::registry::Registry;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::kinds::{SinkFacts, SourceFacts};
use tidemill_spec::span::{Located, Span};
use tidemill_spec::types::StreamType;
use tidemill_spec::value::Value;

/// Request of the other program.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attached {
    /// Sources that it feeds.
    #[serde(default)]
    pub inputs: Vec<String>,
    /// Sinks whose rows it takes; `None`: all.
    #[serde(default)]
    pub outputs: Option<Vec<String>>,
    /// A socket of messages (`SOCK_SEQPACKET`), which is closed when the other program ends.
    pub socket: RawFd,
}

struct Callers {
    wants: Attached,
    socket: OwnedFd,
}

static CALLERS: OnceLock<Callers> = OnceLock::new();

/// Attaches to the program that started this one; once, before other files are opened. Returns a copy of the socket.
///
/// # Errors
/// There is no such socket, or a program is attached already.
pub fn attach(wants: &Attached) -> io::Result<OwnedFd> {
    let socket = owned(wants.socket)?;
    let life = socket.try_clone()?;
    let callers = Callers { wants: wants.clone(), socket };
    CALLERS.set(callers).map_err(|_| Error::other("a program is attached already"))?;
    Ok(life)
}

#[expect(unsafe_code, reason = "a descriptor that another program hands over by its number")]
fn owned(number: RawFd) -> io::Result<OwnedFd> {
    let wrong = |error: &dyn std::fmt::Display| {
        Error::other(format!("descriptor {number} is no socket of the program that called: {error}"))
    };
    if number < 3 {
        return Err(wrong(&"it is a standard stream"));
    }
    // SAFETY: the call only looks whether the number is that of an open file.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    fcntl_setfd(borrowed, FdFlags::CLOEXEC).map_err(|error| wrong(&error))?;
    // SAFETY: it is open, and the program that started this one passes it for this alone.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Has the attached sources and sinks of a registry bound to the other program.
pub fn wrap(registry: &mut Registry) {
    if let Some(callers) = CALLERS.get() {
        registry.wrap(|kind| Arc::new(Fed { kind, callers }), |kind| Arc::new(Taken { kind, callers }));
    }
}

impl Callers {
    fn takes(&self, sink: &str) -> bool {
        self.wants.outputs.as_ref().is_none_or(|ids| ids.iter().any(|id| id == sink))
    }

    /// Makes a connection and hands over its other ends.
    fn connect(&self, id: &str) -> io::Result<Ends> {
        let (control, theirs) = UnixStream::pair()?;
        let (requests, results) = (Requests::new()?.file, Results::new()?.file);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        let files = [theirs.as_fd(), requests.as_fd(), results.as_fd()];
        if !beside.push(SendAncillaryMessage::ScmRights(&files)) {
            return Err(Error::other("no room for three descriptors"));
        }
        sendmsg(&self.socket, &[IoSlice::new(id.as_bytes())], &mut beside, SendFlags::NOSIGNAL)?;
        Ok(Ends { control, requests, results })
    }
}

/// Makes the process of a source or sink, once: what was given or taken is gone.
fn open(
    callers: &'static Callers,
    launch: Launch,
) -> impl Fn() -> Result<Process, StartError> + Send + Sync + 'static {
    let is_taken = AtomicBool::new(false);
    move || {
        if is_taken.swap(true, Ordering::AcqRel) {
            return Err(failed("the program that runs the workflow gives its records once".to_owned()));
        }
        let ends = callers.connect(&launch.operator);
        let ends =
            ends.map_err(|error| failed(format!("the program that runs the workflow is gone: {error}")))?;
        Process::attach(ends, &launch)
    }
}

fn failed(message: String) -> StartError {
    StartError { message, traceback: String::new(), file: None, line: None, names: Vec::new() }
}

fn launch(id: &str, role: Role, input: StreamType, output: StreamType) -> Launch {
    Launch {
        operator: id.to_owned(),
        interpreter: PathBuf::new(),
        arguments: None,
        folder: PathBuf::new(),
        module: String::new(),
        name: String::new(),
        is_class: false,
        batch: false,
        role,
        parameters: serde_json::Value::Null,
        input,
        output: Some(output),
        timeout: ANSWER,
    }
}

/// A kind of source; those with an attached id are fed.
struct Fed {
    kind: Arc<dyn SourceKind>,
    callers: &'static Callers,
}

impl SourceKind for Fed {
    fn kind(&self) -> &'static str {
        self.kind.kind()
    }

    fn summary(&self) -> &'static str {
        self.kind.summary()
    }

    fn options_schema(&self) -> schemars::Schema {
        self.kind.options_schema()
    }

    fn facts(&self) -> SourceFacts {
        self.kind.facts()
    }

    fn shown_by_opening(&self) -> &'static str {
        self.kind.shown_by_opening()
    }

    fn bind(&self, context: &EndContext<'_>, options: &Value) -> Result<BoundSource, Diagnostics> {
        if !self.callers.wants.inputs.contains(&context.id.value) {
            return self.kind.bind(context, options);
        }
        let mut bound = self.kind.bind(&EndContext { step: Step::Check, ..*context }, options)?;
        let times = match options.get("event_time").and_then(|value| Some((value.as_str()?, &value.span))) {
            None => None,
            Some((name, span)) => {
                let unit = options.get("time_unit").map(Value::deserialize_into::<TimeUnit>).transpose()?;
                let name = Located::new(name.to_owned(), Span::clone(span));
                Some(Times::of(&name, unit.unwrap_or_default(), &bound.output)?)
            }
        };
        let origin = Arc::new(Origin {
            id: bound.id.clone(),
            output: bound.output.clone(),
            schema: payload_schema(&bound.output),
            times,
            open: Arc::new(open(
                self.callers,
                launch(&bound.id, Role::Source, StreamType::default(), bound.output.clone()),
            )),
            restart: 0,
            timeout: None,
            has_position: false,
        });
        bound.make = Arc::new(move || Ok(Box::new(Reader::new(Arc::clone(&origin))) as Box<dyn Source>));
        bound.stream = Some("what the program gives that runs the workflow".to_owned());
        (bound.input, bound.journalled, bound.feeds) = (None, None, None);
        (bound.has_event_times, bound.at_one_time) = (times.is_some(), 1);
        Ok(bound)
    }
}

/// A kind of sink; the rows of those with an attached id are taken.
struct Taken {
    kind: Arc<dyn SinkKind>,
    callers: &'static Callers,
}

impl SinkKind for Taken {
    fn kind(&self) -> &'static str {
        self.kind.kind()
    }

    fn summary(&self) -> &'static str {
        self.kind.summary()
    }

    fn options_schema(&self) -> schemars::Schema {
        self.kind.options_schema()
    }

    fn accepts_revisions(&self) -> bool {
        self.kind.accepts_revisions()
    }

    fn facts(&self) -> SinkFacts {
        self.kind.facts()
    }

    fn bind(
        &self,
        context: &EndContext<'_>,
        input: &InputPort,
        options: &Value,
    ) -> Result<BoundSink, Diagnostics> {
        if !self.callers.takes(context.id) {
            return self.kind.bind(context, input, options);
        }
        if input.stream.revised {
            let text = format!("`{}` takes rows back, which a program in Python cannot see yet", input.from);
            let help = "read a window with `emit: final`, or let a sink write the corrections to a file";
            return Err(Diagnostic::error("E0620", text).at(input.span.clone()).with_help(help).into());
        }
        let launch = launch(context.id, Role::Sink, input.stream.clone(), StreamType::default());
        let to = Arc::new(Target {
            id: context.id.value.clone(),
            open: Arc::new(open(self.callers, launch)),
            restart: 0,
            is_caller: true,
        });
        let make = Arc::new(move || Ok(Box::new(Writer::new(Arc::clone(&to), None)?) as Box<dyn Sink>));
        Ok(context.sink(self.kind.kind(), input, Vec::new(), make))
    }
}
