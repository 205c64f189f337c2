//! Programs with one end of a channel each, which send numbered records and compare what comes.
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray, cast::AsArray, types::Int64Type};
use arrow_schema::SchemaRef;
use crossbeam_channel::{Receiver, unbounded};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tidemill_link::frame::{Content, Control, Frame, Header};
use tidemill_link::link::{InProcess, Link, LinkError, LinkReceiver, LinkSender};
use tidemill_link::remote::{
    Address, Connection, Greeting, Purpose, RemoteError, Role, Security, dial, schema_hash,
};
use tidemill_net::edge_name::{EdgeName, EdgePattern};
use tidemill_net::program::{Callbacks, Registration, register};
use tidemill_net::protocol::{Answer, PolicySpec, Program, ProgramChannel, Request, Routes, Side, VERSION};
use tidemill_net::{Client, ClientError, Options, Service};
use tidemill_operators::record::{METADATA_COLUMNS, record_schema};
use tidemill_spec::types::{Column, ColumnType, StreamType};

pub(crate) const RUN: u128 = 77;
/// Time after which a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A service in a folder of its own.
pub(crate) struct Place {
    folder: tempfile::TempDir,
    service: Option<Service>,
    public: Option<Address>,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::at(None)
    }

    /// As [`Place::new`], for other hosts, too.
    pub(crate) fn public() -> Self {
        Self::at(Some(Address::new("tcp", "127.0.0.1:0")))
    }

    fn at(public: Option<Address>) -> Self {
        let mut place = Self { folder: tempfile::tempdir().expect("a folder"), service: None, public };
        place.start();
        place
    }

    /// Where other hosts reach it.
    pub(crate) fn address(&self) -> String {
        let public = self.service.as_ref().and_then(Service::public);
        public.expect("it is public").to_string()
    }

    pub(crate) fn start(&mut self) {
        let options = Options {
            socket: self.socket(),
            folder: self.folder.path().into(),
            public: self.public.clone(),
            security: Security::none(),
            on_upgrade: None,
            on_panic: None,
        };
        self.service = Some(Service::start(options).expect("it serves"));
    }

    pub(crate) fn stop(&mut self) {
        self.service = None;
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("net.sock")
    }

    pub(crate) fn ask(&self, request: Request) -> Result<Answer, ClientError> {
        Client::connect(&self.socket(), 0)?.ask(&request)
    }

    pub(crate) fn attach(
        &self,
        id: &str,
        kind: &str,
        options: serde_json::Value,
    ) -> Result<Answer, ClientError> {
        self.ask(Request::Attach(Box::new(policy(id, kind, options))))
    }

    pub(crate) fn attach_to(
        &self,
        edges: &str,
        id: &str,
        kind: &str,
        options: &str,
    ) -> Result<Answer, ClientError> {
        let edges = EdgePattern::parse(edges).expect("a pattern");
        let options = serde_json::from_str(options).expect("JSON");
        self.ask(Request::Attach(Box::new(PolicySpec { edges, ..policy(id, kind, options) })))
    }

    pub(crate) fn detach(&self, id: &str) {
        self.ask(Request::Detach { id: id.into() }).expect("it is there");
    }

    pub(crate) fn listing(&self) -> tidemill_net::protocol::Listing {
        match self.ask(Request::List).expect("it answers") {
            Answer::Listing(listing) => *listing,
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn policy(id: &str, kind: &str, options: serde_json::Value) -> PolicySpec {
    let edges = EdgePattern::parse("cameras -> detect").expect("a pattern");
    PolicySpec { id: id.into(), edges, side: Side::Sender, kind: kind.into(), options }
}

pub(crate) fn columns() -> StreamType {
    StreamType::new([Column::new("camera", ColumnType::Text), Column::new("number", ColumnType::Int64)])
}

pub(crate) fn schema() -> SchemaRef {
    record_schema(&columns())
}

/// Records with these numbers, of cameras 0 to 9 by their last digit; `pad` makes them larger.
pub(crate) fn records(numbers: std::ops::Range<i64>, pad: usize) -> RecordBatch {
    let rows = (numbers.end - numbers.start) as usize;
    let schema = schema();
    let mut arrays: Vec<ArrayRef> = Vec::new();
    for field in schema.fields().iter().take(METADATA_COLUMNS) {
        arrays.push(zeros(field.data_type(), rows));
    }
    let cameras = numbers.clone().map(|number| format!("cam{}{}", number % 10, "x".repeat(pad)));
    arrays.push(Arc::new(StringArray::from_iter_values(cameras)));
    arrays.push(Arc::new(Int64Array::from_iter_values(numbers)));
    RecordBatch::try_new(schema, arrays).expect("columns of the schema")
}

fn zeros(data_type: &arrow_schema::DataType, rows: usize) -> ArrayRef {
    use arrow_array::*;
    use arrow_schema::DataType;
    match data_type {
        DataType::FixedSizeBinary(width) => {
            let bytes = arrow_buffer::Buffer::from_vec(vec![0u8; rows * *width as usize]);
            Arc::new(FixedSizeBinaryArray::new(*width, bytes, None))
        }
        DataType::UInt32 => Arc::new(UInt32Array::from(vec![0; rows])),
        DataType::UInt64 => Arc::new(UInt64Array::from(vec![0; rows])),
        DataType::Int64 => Arc::new(Int64Array::from(vec![0; rows])),
        DataType::Int8 => Arc::new(Int8Array::from(vec![1; rows])),
        other => panic!("{other}"),
    }
}

/// The numbers of records.
pub(crate) fn numbers(batch: &RecordBatch) -> Vec<i64> {
    batch.column(METADATA_COLUMNS + 1).as_primitive::<Int64Type>().values().to_vec()
}

/// A program with one end of channel 5.
pub(crate) struct End {
    socket: PathBuf,
    role: Role,
    registration: Registration,
    routes: Receiver<Routes>,
    pub(crate) through: bool,
}

impl End {
    pub(crate) fn register(
        socket: &Path,
        role: Role,
        policies: Vec<PolicySpec>,
    ) -> Result<Self, ClientError> {
        let edge = EdgeName { workflow: "city".into(), from: "cameras".into(), to: "detect".into() };
        let program = Program {
            version: VERSION,
            worker: format!("{role:?}").to_lowercase(),
            workflow: "city".into(),
            process: std::process::id(),
            channels: vec![ProgramChannel {
                channel: 5,
                edge,
                name: "cameras->detect".into(),
                roles: vec![role],
                columns: columns(),
            }],
            inner: Vec::new(),
            policies,
        };
        let (news, routes) = unbounded();
        let on_routes = Box::new(move |routes| drop(news.send(routes)));
        let callbacks =
            Callbacks { routes: on_routes, counts: Box::new(Vec::new), rejected: Box::new(|_, _| {}) };
        let (registration, first) = register(socket, RUN, program, callbacks)?;
        Ok(Self { socket: socket.into(), role, registration, routes, through: first.through.contains(&5) })
    }

    /// Waits until the channel goes through the service, or no more.
    pub(crate) fn wait_until(&mut self, through: bool) {
        while self.through != through {
            let routes = self.routes.recv_timeout(PATIENCE).expect("new routes");
            self.through = routes.through.contains(&5);
        }
    }

    fn greeting(&self) -> Greeting {
        let purpose =
            Purpose::Channel { channel: 5, role: self.role, incarnation: 1, schema: schema_hash(&schema()) };
        Greeting { run: RUN, plan_version: 0, purpose }
    }

    /// Returns whether the channel goes through the service, as far as this end has heard.
    pub(crate) fn look(&mut self) -> bool {
        while let Ok(routes) = self.routes.try_recv() {
            self.through = routes.through.contains(&5);
        }
        self.through
    }

    /// Dials the service; none: the channel does not go through it any more, or the other end has given up.
    fn dial(&self, given_up: &AtomicBool) -> Option<Connection> {
        let until = Instant::now() + PATIENCE;
        while !given_up.load(Ordering::Acquire) {
            let address = Address::new("unix", self.socket.display().to_string());
            assert_eq!(self.registration.address(), &address);
            match dial(&address, &Security::none(), &self.greeting(), Duration::from_secs(5)) {
                Ok(connection) => return Some(connection),
                Err(RemoteError::Refused(reason)) if reason.contains("does not go through") => break,
                Err(error) if Instant::now() > until => panic!("{error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
        given_up.store(true, Ordering::Release);
        None
    }
}

type Links = (Box<dyn LinkSender>, Box<dyn LinkReceiver>);

/// Both ends, connected through the service at the same time; none: one of them is not served any more.
pub(crate) fn connected(sender: &End, receiver: &End) -> Option<Links> {
    let given_up = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| receiver.dial(&given_up));
        let sending = sender.dial(&given_up);
        let receiving = receiving.join().expect("it connects");
        let sending = sending?.into_sender(schema()).expect("a sender");
        Some((sending, receiving?.into_receiver(schema()).expect("a receiver")))
    })
}

/// As [`connected`], when both are served.
pub(crate) fn until_connected(sender: &mut End, receiver: &mut End) -> Links {
    loop {
        sender.wait_until(true);
        receiver.wait_until(true);
        if let Some(links) = connected(sender, receiver) {
            return links;
        }
        sender.look();
        receiver.look();
    }
}

/// Both ends, connected with each other.
pub(crate) fn directly() -> Links {
    InProcess.connect(schema()).expect("a link")
}

/// Sends frames as an egress does: numbered, each with a cost.
pub(crate) struct Sending {
    pub(crate) link: Box<dyn LinkSender>,
    sequence: u64,
    rows: u64,
    pub(crate) credit: u64,
}

impl Sending {
    pub(crate) fn new(link: Box<dyn LinkSender>) -> Self {
        Self { link, sequence: 0, rows: 0, credit: 0 }
    }

    fn frame(&mut self, content: Content, cost: u64) -> Result<u64, LinkError> {
        let header = Header { incarnation: 1, sequence: self.sequence, sent_at: 0, cost };
        self.sequence += 1;
        self.link.send(Frame { header, content })
    }

    pub(crate) fn send(&mut self, epoch: u64, batch: RecordBatch) -> Result<u64, LinkError> {
        self.rows += batch.num_rows() as u64;
        self.frame(Content::Data { epoch, batch }, 100)
    }

    pub(crate) fn frontier(&mut self, epoch: u64) -> Result<u64, LinkError> {
        let rows = std::mem::take(&mut self.rows);
        self.frame(Content::Frontier { epoch, rows, steps: Vec::new() }, 0)
    }

    /// Takes the credit that has come.
    pub(crate) fn control(&mut self) -> Result<(), LinkError> {
        self.link.clear();
        while let Some(control) = self.link.receive_control()? {
            if let Control::Credit(bytes) = control {
                self.credit += bytes;
            }
        }
        Ok(())
    }
}

/// Receives frames as an ingress does: it compares their numbers, and the rows that frontiers count.
pub(crate) struct Receiving {
    pub(crate) link: Box<dyn LinkReceiver>,
    expected: u64,
    came: u64,
    pub(crate) numbers: Vec<i64>,
    pub(crate) frontier: u64,
}

impl Receiving {
    pub(crate) fn new(link: Box<dyn LinkReceiver>) -> Self {
        Self { link, expected: 0, came: 0, numbers: Vec::new(), frontier: 0 }
    }

    /// Takes what has come. Whether there was anything.
    pub(crate) fn take(&mut self) -> Result<bool, LinkError> {
        self.link.clear();
        let mut any = false;
        while let Some(frame) = self.link.receive()? {
            any = true;
            assert_eq!(frame.header.sequence, self.expected, "frames have no gaps");
            self.expected += 1;
            match frame.content {
                Content::Data { batch, .. } => {
                    self.came += batch.num_rows() as u64;
                    self.numbers.extend(numbers(&batch));
                    self.link.send_control(Control::Credit(frame.header.cost))?;
                }
                Content::Frontier { epoch, rows, .. } => {
                    assert_eq!(
                        rows,
                        std::mem::take(&mut self.came),
                        "the frontier of {epoch} counts what came"
                    );
                    self.frontier = epoch;
                }
                Content::Elsewhere { .. } => {}
            }
        }
        Ok(any)
    }

    /// Takes until the frontier is there.
    pub(crate) fn until(&mut self, frontier: u64) {
        let until = Instant::now() + PATIENCE;
        while self.frontier < frontier {
            assert!(Instant::now() < until, "frontier {} of {frontier}", self.frontier);
            if !self.take().expect("the sender is there") {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }
}
