//! Common parts of the tests.
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidemill_link::frame::{Content, Control, Frame, Header};
use tidemill_link::link::{LinkEnds, LinkError, LinkReceiver, LinkSender};
use tidemill_link::remote::*;

/// Long enough that only what hangs for ever takes it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn schema() -> SchemaRef {
    let fields = [Field::new("number", DataType::Int64, false), Field::new("text", DataType::Utf8, true)];
    Arc::new(Schema::new(fields.to_vec()))
}

pub(crate) fn batch(rows: usize, width: usize) -> RecordBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from((0..rows as i64).collect::<Vec<_>>())),
        Arc::new(StringArray::from(vec!["x".repeat(width); rows])),
    ];
    RecordBatch::try_new(schema(), columns).expect("the schema above")
}

pub(crate) fn frame(sequence: u64, content: Content) -> Frame {
    Frame { header: Header { incarnation: 3, sequence, sent_at: 11, cost: 5 }, content }
}

pub(crate) fn greeting(role: Role) -> Greeting {
    let purpose = Purpose::Channel { channel: 7, role, incarnation: 0, schema: schema_hash(&schema()) };
    Greeting { run: u128::MAX - 5, plan_version: 1, purpose }
}

pub(crate) fn control(host: &str) -> Greeting {
    Greeting { run: 9, plan_version: 1, purpose: Purpose::Control { host: host.into() } }
}

/// A greeting as bytes, for a side that speaks as it likes.
pub(crate) fn hello(greeting: &Greeting) -> Vec<u8> {
    let body = serde_json::to_vec(greeting).expect("JSON");
    said(PROTOCOL_VERSION, 1, &body)
}

/// Returns a handshake message of this version, with its checksum.
pub(crate) fn said(version: u32, kind: u8, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32 + 4).to_le_bytes();
    let mut bytes =
        [b"TIDEMILL".as_slice(), &version.to_le_bytes(), &[kind, 0, 0, 0], &length, body].concat();
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

/// A kind of connection.
#[derive(Debug, Clone)]
pub(crate) struct Kind {
    pub(crate) address: Address,
    pub(crate) security: Security,
}

pub(crate) fn tcp() -> Kind {
    Kind { address: Address::tcp("127.0.0.1:0"), security: Security::none() }
}

pub(crate) fn unix() -> Kind {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("tidemill-{}-{}.sock", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    Kind { address: Address::unix(std::env::temp_dir().join(name)), security: Security::none() }
}

/// Without a file.
pub(crate) fn named() -> Kind {
    Kind { address: Address::unix("@"), security: Security::none() }
}

/// In the memory of this process.
pub(crate) fn memory() -> Kind {
    Kind { address: Address::new("memory", ""), security: Security::none() }
}

/// Returns the kind with TLS.
pub(crate) fn secured(kind: Kind) -> Kind {
    let certificates = crate::authority::Authority::new().host();
    Kind { security: Security::mutual(&certificates).expect("they belong together"), ..kind }
}

pub(crate) fn kinds() -> Vec<Kind> {
    vec![tcp(), secured(tcp()), unix(), secured(unix()), named(), memory(), secured(memory())]
}

/// Listens, and puts the peers that greet into a queue.
pub(crate) fn serve(kind: &Kind) -> (Serving, Receiver<Incoming>) {
    let (sender, receiver) = channel();
    let sender = Mutex::new(sender);
    let listener = Listener::bind(&kind.address, &kind.security).expect("binds");
    let give = move |incoming| {
        let sender = sender.lock().expect("nobody panics");
        // A test that is over takes no peer any more.
        let _ = sender.send(incoming);
    };
    (listener.serve(give).expect("serves"), receiver)
}

/// The next peer that fits. Others may come: from another test on this host, whose port this one got.
pub(crate) fn accept(incoming: &Receiver<Incoming>, own: &Greeting) -> Connection {
    loop {
        if let Ok(connection) = incoming.recv_timeout(PATIENCE).expect("somebody dials").accept(own) {
            return connection;
        }
    }
}

/// The side that dials, and the side that listens.
pub(crate) fn pair(kind: &Kind, dials: &Greeting, listens: &Greeting) -> (Connection, Connection) {
    let (serving, incoming) = serve(kind);
    let own = listens.clone();
    let accept = std::thread::spawn(move || accept(&incoming, &own));
    let dialed = dial(serving.address(), &kind.security, dials, PATIENCE).expect("is accepted");
    (dialed, accept.join().expect("does not panic"))
}

/// Connects a channel; `sender_dials`: which side dials.
pub(crate) fn connect(kind: &Kind, sender_dials: bool) -> LinkEnds {
    let (sender, receiver) = (greeting(Role::Sender), greeting(Role::Receiver));
    let (sender, receiver) = if sender_dials {
        pair(kind, &sender, &receiver)
    } else {
        let (receiver, sender) = pair(kind, &receiver, &sender);
        (sender, receiver)
    };
    (sender.into_sender(schema()).expect("a link"), receiver.into_receiver(schema()).expect("a link"))
}

/// Every kind, dialed from either side.
pub(crate) fn links() -> impl Iterator<Item = LinkEnds> {
    kinds().into_iter().flat_map(|kind| [true, false].map(|dials| connect(&kind, dials)))
}

/// Sleeps until there is something to read.
pub(crate) fn sleep(descriptor: BorrowedFd<'_>) {
    let mut descriptors = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    let timeout = PATIENCE.try_into().expect("a minute");
    let ready = poll(&mut descriptors, Some(&timeout)).expect("an open descriptor");
    assert!(ready > 0, "nothing came");
}

/// Returns the next frame; waits for it while the sender sends its queue.
pub(crate) fn receive(
    sender: Option<&mut dyn LinkSender>,
    receiver: &mut dyn LinkReceiver,
) -> Result<Frame, LinkError> {
    let mut sender = sender;
    loop {
        if let Some(frame) = receiver.receive()? {
            return Ok(frame);
        }
        if let Some(sender) = &mut sender {
            sender.clear();
        }
        sleep(receiver.descriptor());
        receiver.clear();
    }
}

/// The next control word, waited for.
pub(crate) fn hear(sender: &mut dyn LinkSender) -> Result<Control, LinkError> {
    loop {
        if let Some(control) = sender.receive_control()? {
            return Ok(control);
        }
        sleep(sender.descriptor());
        sender.clear();
    }
}

pub(crate) fn data(sequence: u64, rows: usize, width: usize) -> Frame {
    frame(sequence, Content::Data { epoch: sequence, batch: batch(rows, width) })
}
