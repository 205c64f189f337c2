//! Tidemill's own rows. To add one: implement [`Contender`] here (or in a file beside it) and add it to [`rows`].
//!
//! - Calls: implement [`crate::drive::Caller`] over `channel.unary(..)` and, in [`Contender::client`], return
//!   `crate::drive::run(load, gate, || async { connect })`. In [`Contender::start`], start `tidemill net serve` with
//!   `room.spawn(program, arguments, namespace)` (once for one host, twice for two services over loopback TCP; for
//!   `scenario.services` of 5 a chain; for `scenario.link` in the namespaces that it names) and the server with
//!   `room.server(..)`. What is started there counts as processor time and ends with the row.
//! - `scenario.filter` says which policies the calls go through, `load.filter` and the `Role` of a call whether it is one
//!   of the refused: then return `Failure::Refused`.
//! - Names begin with `tidemill`: by that the report knows whom to compare.
use crate::channel::{LARGEST, Sending, is_channel, look_again, stamp, stay_on_core, touch};
use crate::contender::{Contender, Gate, Running, Serve, listening};
use crate::load::{Load, Outcome, Scenario};
use crate::process::Room;
use anyhow::{Context, ensure};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use tidemill_shm::descriptor::Descriptor;
use tidemill_shm::heap::{Heap, HeapLimits};
use tidemill_shm::lease::{Holder, Holdings, Leases};
use tidemill_shm::region::{GRANULE, ReadRegion, Region, SharedRegion, Window};
use tidemill_shm::ring::{Consumer, Producer, words};
use tidemill_shm::wake::{Bell, Receiver, Sender, Spin, Woken};

/// All rows of the product.
pub fn rows() -> Vec<Box<dyn Contender>> {
    vec![Box::new(Shm { polls: false }), Box::new(Shm { polls: true })]
}

/// The shared memory of `tidemill-shm` between two processes, without a service.
struct Shm {
    polls: bool,
}

const PLACES: u32 = 16;
const FRAME: u8 = 0;
const HOLDER: Holder = Holder(1);
/// Descriptors that the sender passes: the region of payloads, the rings, and two bells.
const PASSED: usize = 4;
const REGION: u64 = 16 << 20;

fn window(region: &Arc<SharedRegion>, number: usize) -> anyhow::Result<Window> {
    region.window(number * words(PLACES), words(PLACES)).context("the region is too small")
}

/// The number in the text of the ring: payloads there, leases back, answers back.
const THERE: usize = 0;
const LEASES: usize = 1;
const ANSWERS: usize = 2;

/// Waits for a descriptor.
fn next(receiver: &mut Receiver, polls: bool) -> anyhow::Result<Option<Descriptor>> {
    let mut looks = 0;
    loop {
        if let Some(descriptor) = receiver.receive()? {
            return Ok(Some(descriptor));
        }
        if polls {
            look_again(&mut looks);
        } else if receiver.wait(None)? == Woken::Gone {
            return Ok(None);
        }
    }
}

struct ShmSender {
    heap: Heap<Region>,
    leases: Leases,
    there: Sender,
    returned: Receiver,
    answers: Receiver,
    polls: bool,
    took: u64,
}

impl ShmSender {
    fn new(socket: &UnixStream, polls: bool) -> anyhow::Result<Self> {
        let limits = HeapLimits { largest: LARGEST as u32, region: REGION, regions: 1 };
        let mut heap: Heap<Region> = Heap::new(limits)?;
        heap.grow()?;
        let rings = Arc::new(SharedRegion::create(4 * GRANULE)?);
        let ((bell, other), (answer_bell, other_answer)) = (Bell::pair()?, Bell::pair()?);
        let sealed = heap.region(0).context("no region")?.seal()?;
        pass(socket, [sealed, rings.as_fd().try_clone_to_owned()?, other, other_answer])?;
        let bell = Arc::new(bell);
        let receiver = |number, bell| -> anyhow::Result<_> {
            Ok(Receiver::new(Consumer::new(window(&rings, number)?, PLACES)?, bell, Spin::default()))
        };
        Ok(Self {
            heap,
            leases: Leases::new(PLACES as usize),
            there: Sender::new(Producer::new(window(&rings, THERE)?, PLACES)?, bell.clone()),
            returned: receiver(LEASES, bell)?,
            answers: receiver(ANSWERS, Arc::new(answer_bell))?,
            polls,
            took: 0,
        })
    }
}

impl Sending for ShmSender {
    fn send(&mut self, bytes: &[u8]) -> anyhow::Result<u64> {
        while let Some(message) = self.returned.receive()? {
            if let Some(block) = self.leases.returned(HOLDER, &message)? {
                self.heap.free(block).map_err(|_| anyhow::anyhow!("a block of another heap"))?;
            }
        }
        let mut block = self.heap.alloc(bytes.len()).context("no memory left")?;
        let payload = self.heap.bytes_mut(&mut block).context("a block of another heap")?;
        payload.copy_from_slice(bytes);
        let sent = stamp(payload);
        let message = block.describe(FRAME);
        let lease = self.leases.lend(block, HOLDER).map_err(|(_, error)| error)?;
        ensure!(self.there.send(&Descriptor { lease, ..message })?, "the ring is full");
        Ok(sent)
    }

    fn answer(&mut self) -> anyhow::Result<u64> {
        self.took = next(&mut self.answers, self.polls)?.context("the receiver is gone")?.sequence;
        Ok(self.took)
    }
}

fn pass(socket: &UnixStream, descriptors: [OwnedFd; PASSED]) -> anyhow::Result<()> {
    let descriptors = descriptors.each_ref().map(|descriptor| descriptor.as_fd());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    ensure!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "too many descriptors");
    sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn take(socket: &UnixStream) -> anyhow::Result<[OwnedFd; PASSED]> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut [0])], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    descriptors.try_into().map_err(|_| anyhow::anyhow!("not as many descriptors as were passed"))
}

impl Contender for Shm {
    fn name(&self) -> String {
        if self.polls { "tidemill-shm, polling" } else { "tidemill-shm, waiting" }.into()
    }

    fn ready(&self) -> Result<String, String> {
        Ok("of this repository".into())
    }

    fn covers(&self, scenario: &Scenario) -> bool {
        is_channel(scenario)
    }

    fn start(&self, _: &Scenario, room: &Room) -> anyhow::Result<Running> {
        let listen = room.path("socket").display().to_string();
        let (child, target) = room.server(&self.name(), &Serve { listen, ..Serve::default() }, None)?;
        Ok(Running { target, processes: vec![child] })
    }

    fn serve(&self, order: &Serve) -> anyhow::Result<()> {
        if self.polls {
            stay_on_core(1);
        }
        let listener = UnixListener::bind(&order.listen)?;
        listening(&order.listen);
        let (socket, _) = listener.accept()?;
        let [sealed, rings, bell, answer_bell] = take(&socket)?;
        let rings = Arc::new(SharedRegion::adopt(rings, 1 << 20)?);
        let (bell, answer_bell) = (Arc::new(Bell::adopt(bell)?), Arc::new(Bell::adopt(answer_bell)?));
        let incoming = Consumer::new(window(&rings, THERE)?, PLACES)?;
        let mut incoming = Receiver::new(incoming, bell.clone(), Spin::default());
        let returns = Sender::new(Producer::new(window(&rings, LEASES)?, PLACES)?, bell);
        let mut answers = Sender::new(Producer::new(window(&rings, ANSWERS)?, PLACES)?, answer_bell);
        let mut holdings = Holdings::new(FRAME + 1, LARGEST as u32, returns);
        holdings.add(ReadRegion::adopt(sealed, REGION)?);
        while let Some(message) = next(&mut incoming, self.polls)? {
            let payload = holdings.take(&message)?;
            let sequence = touch(&payload);
            // The lease goes back before the answer, as the sample of iceoryx2 does.
            drop(payload);
            ensure!(answers.send(&Descriptor { sequence, ..Descriptor::default() })?, "the ring is full");
        }
        Ok(())
    }

    fn client(&self, load: &Load, target: &str, gate: &mut Gate) -> anyhow::Result<Outcome> {
        if self.polls {
            stay_on_core(0);
        }
        let socket = UnixStream::connect(target)?;
        crate::channel::send(&mut ShmSender::new(&socket, self.polls)?, load, gate)
    }
}
