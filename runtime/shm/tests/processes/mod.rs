//! Two processes that share memory: the test, and itself started again, with a socket as standard input.
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use tidemill_shm::descriptor::Descriptor;
use tidemill_shm::heap::{Heap, HeapLimits};
use tidemill_shm::lease::{Holder, Holdings, Lease, Leases};
use tidemill_shm::region::{GRANULE, ReadRegion, Region, SharedRegion, Window};
use tidemill_shm::ring::{Consumer, Producer, words};
use tidemill_shm::wake::{Bell, Receiver, Sender, Spin, Woken};

/// Set where the test runs as the other process.
const STARTED: &str = "TIDEMILL_SHM_STARTED";
const PLACES: u32 = 16;
const FRAME: u8 = 0;
const LONGEST: u32 = 1 << 20;
const HOLDER: Holder = Holder(1);
/// Descriptors that an owner passes: a region, the rings, and a bell.
const PASSED: usize = 3;

/// Starts an ignored test of this program as a process and returns it with a socket to it.
pub(crate) fn start(test: &str) -> (Child, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--ignored", "--nocapture"])
        .env(STARTED, "1")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    (child, ours)
}

/// The socket to the test that started this process; none: a person did.
pub(crate) fn socket() -> Option<UnixStream> {
    std::env::var_os(STARTED)?;
    Some(std::io::stdin().as_fd().try_clone_to_owned().unwrap().into())
}

fn pass(socket: &UnixStream, descriptors: [OwnedFd; PASSED]) {
    let descriptors = descriptors.each_ref().map(|descriptor| descriptor.as_fd());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let sent = sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL).unwrap();
    assert_eq!(sent, 1);
}

fn receive(socket: &UnixStream) -> [OwnedFd; PASSED] {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    descriptors.try_into().expect("all of them came")
}

fn window(region: &Arc<SharedRegion>, number: usize) -> Window {
    region.window(number * words(PLACES), words(PLACES)).unwrap()
}

/// The byte that all of a payload is.
fn byte_of(sequence: u64) -> u8 {
    (sequence % 251) as u8
}

/// The process that owns payloads.
pub(crate) struct Owner {
    heap: Heap<Region>,
    leases: Leases,
    frames: Sender,
    returned: Receiver,
    next: u64,
}

impl Owner {
    /// Makes the region, the rings and the bell, and passes them to the holder at the other end.
    pub(crate) fn new(socket: &UnixStream) -> Self {
        let mut heap: Heap<Region> =
            Heap::new(HeapLimits { largest: LONGEST, region: 4 << 20, regions: 1 }).unwrap();
        heap.grow().unwrap();
        let rings = Arc::new(SharedRegion::create(4 * GRANULE).unwrap());
        let (bell, bell_of_holder) = Bell::pair().unwrap();
        let sealed = heap.region(0).unwrap().seal().unwrap();
        pass(socket, [sealed, rings.as_fd().try_clone_to_owned().unwrap(), bell_of_holder]);
        let bell = Arc::new(bell);
        let frames = Sender::new(Producer::new(window(&rings, 0), PLACES).unwrap(), bell.clone());
        let returned = Consumer::new(window(&rings, 1), PLACES).unwrap();
        let returned = Receiver::new(returned, bell, Spin::default());
        Self { heap, leases: Leases::new(PLACES as usize), frames, returned, next: 0 }
    }

    /// Sends payloads of this length until the holder has all that it may have or no memory is left.
    pub(crate) fn fill(&mut self, length: usize) {
        while let Some(mut block) = self.heap.alloc(length) {
            self.heap.bytes_mut(&mut block).unwrap().fill(byte_of(self.next));
            let message = block.describe(FRAME);
            match self.leases.lend(block, HOLDER) {
                Ok(lease) => {
                    let sent =
                        self.frames.send(&Descriptor { lease, sequence: self.next, ..message }).unwrap();
                    assert!(sent, "the ring has a place for each lease");
                    self.next += 1;
                }
                Err((block, _)) => {
                    self.heap.free(block).unwrap();
                    return;
                }
            }
        }
    }

    /// Takes returned leases, waiting for the first; the number of leases, or none when the holder is gone.
    pub(crate) fn take_returned(&mut self) -> Option<usize> {
        let woken = self.returned.wait(None).unwrap();
        let mut taken = 0;
        while let Some(message) = self.returned.receive().unwrap() {
            if let Some(block) = self.leases.returned(HOLDER, &message).unwrap() {
                self.heap.free(block).unwrap();
            }
            taken += 1;
        }
        (woken != Woken::Gone).then_some(taken)
    }

    /// Number of leases of the holder.
    pub(crate) fn lent(&self) -> usize {
        self.leases.count()
    }

    /// Number of payloads sent.
    pub(crate) fn sent(&self) -> u64 {
        self.next
    }

    /// Frees the blocks of the holder.
    pub(crate) fn forget(&mut self) -> usize {
        let blocks = self.leases.forget(HOLDER);
        let count = blocks.len();
        blocks.into_iter().for_each(|block| self.heap.free(block).unwrap());
        count
    }

    /// Bytes that are in use.
    pub(crate) fn used(&self) -> u64 {
        self.heap.used()
    }
}

/// The process that reads payloads.
pub(crate) struct Reader {
    frames: Receiver,
    holdings: Holdings,
}

impl Reader {
    /// Maps the memory that the owner at the other end passes.
    pub(crate) fn new(socket: &UnixStream) -> Self {
        let [sealed, rings, bell] = receive(socket);
        let rings = Arc::new(SharedRegion::adopt(rings, 1 << 20).unwrap());
        let bell = Arc::new(Bell::adopt(bell).unwrap());
        let frames = Consumer::new(window(&rings, 0), PLACES).unwrap();
        let frames = Receiver::new(frames, bell.clone(), Spin::default());
        let returns = Sender::new(Producer::new(window(&rings, 1), PLACES).unwrap(), bell);
        let mut holdings = Holdings::new(FRAME + 1, LONGEST, returns);
        holdings.add(ReadRegion::adopt(sealed, 64 << 20).unwrap());
        Self { frames, holdings }
    }

    /// Waits for the next payload; none when the owner is gone and nothing is left.
    pub(crate) fn next(&mut self) -> Option<Lease> {
        loop {
            if let Some(message) = self.frames.receive().unwrap() {
                return Some(self.holdings.take(&message).unwrap());
            }
            if self.frames.wait(None).unwrap() == Woken::Gone {
                return None;
            }
        }
    }
}

/// Checks the bytes of a payload.
pub(crate) fn check(lease: &Lease) {
    let expected = byte_of(lease.descriptor().sequence);
    assert!(lease.iter().all(|byte| *byte == expected), "payload {}", lease.descriptor().sequence);
}
