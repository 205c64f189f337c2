//! Messages of a proxy to its client.
use super::{Payload, Proxy, now};
use crate::call::{GOODBYE, Head, MOST_PAYLOAD, REPLY};
use crate::carrier::{Outgoing, share_more};
use crate::memory::Lent;
use std::io::{self, IoSlice};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidemill_shm::descriptor::BYTES;

impl Proxy<'_> {
    /// Tells the client why the session ends.
    pub(super) fn say_goodbye(&mut self) -> io::Result<()> {
        let farewell = self.ending.farewell();
        let is_drained = farewell.as_ref().is_some_and(|farewell| farewell.is_drained);
        let reason =
            farewell.map_or_else(|| "the device ends the session".to_owned(), |farewell| farewell.reason);
        let head = Head { kind: GOODBYE, numbers: [0, u64::from(is_drained), 0, 0], ..Head::default() };
        self.write(head, &[reason.as_bytes()])
    }

    pub(super) fn reply_value(&mut self, sequence: u64, began: Instant, value: Payload) -> io::Result<()> {
        match value {
            Payload::Nothing | Payload::Goodbye => self.reply(sequence, false, began, &[]),
            Payload::Text(text) => self.reply(sequence, false, began, &[&text]),
            Payload::Value(value) => {
                let mut head = Vec::new();
                value.write_head(&mut head);
                let place = self.place(value.bytes());
                let parts = match &place {
                    Some(place) => [&place[..], &head],
                    None => [&head[..], value.bytes()],
                };
                self.reply_with(sequence, false, began, &parts, place.is_some())
            }
        }
    }

    /// Copies long values into memory that the client shares, and returns their place. None: they go with the reply.
    fn place(&mut self, values: &[u8]) -> Option<[u8; BYTES]> {
        let lent = self.lent.as_mut().filter(|_| Lent::fits(values.len()))?;
        let place = lent.place(values);
        if place.is_none() && share_more(lent, &mut **lock(self.outgoing)) {
            return lent.place(values);
        }
        place
    }

    pub(super) fn reply(
        &mut self,
        sequence: u64,
        failed: bool,
        began: Instant,
        parts: &[&[u8]],
    ) -> io::Result<()> {
        self.reply_with(sequence, failed, began, parts, false)
    }

    fn reply_with(
        &mut self,
        sequence: u64,
        failed: bool,
        began: Instant,
        parts: &[&[u8]],
        placed: bool,
    ) -> io::Result<()> {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let computed = std::mem::take(&mut self.computed);
        let at_device = now().saturating_duration_since(began);
        self.first_arrival = None;
        let numbers = [0, nanoseconds(at_device), nanoseconds(computed), 0];
        self.write(Head { kind: REPLY, failed, placed, sequence, numbers, ..Head::default() }, parts)
    }

    /// Writes a message, with what the client must know of its calls.
    pub(super) fn write(&mut self, head: Head, parts: &[&[u8]]) -> io::Result<()> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let payload = u32::try_from(length).ok().filter(|_| length <= MOST_PAYLOAD);
        let payload =
            payload.ok_or_else(|| io::Error::other(format!("a tensor of {length} bytes cannot be sent")))?;
        let [_, second, third, _] = head.numbers;
        let numbers = [self.handled, second, third, self.taken];
        let head = Head { payload, numbers, ..head }.to_bytes();
        let mut slices = vec![IoSlice::new(&head)];
        slices.extend(parts.iter().map(|part| IoSlice::new(part)));
        self.reported = self.handled;
        lock(self.outgoing).send(&mut slices)
    }
}

fn lock(outgoing: &Mutex<Box<dyn Outgoing>>) -> MutexGuard<'_, Box<dyn Outgoing>> {
    outgoing.lock().unwrap_or_else(PoisonError::into_inner)
}
