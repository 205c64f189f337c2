//! Models on devices: a batch leaves its stage over the link, waits for the device, is computed there and returns.
use super::World;
use super::service::Call;
use crate::calendar::Event;
use crate::network::{LocationLink, Nanoseconds};

impl World<'_> {
    /// Sends a batch that its stage has prepared to the device.
    pub(super) fn send_to_device(&mut self, call: Call) {
        let Some(remote) = &self.network.stages[call.stage].remote else { return };
        let arrival = self.carry(remote.there, remote.sent, &call);
        let place = self.keep(call);
        self.calendar.enter(arrival, Event::Reaches(place));
    }

    /// A batch has reached its device.
    pub(super) fn reaches(&mut self, place: u32) {
        let Some(mut call) = self.away[place as usize].take() else { return };
        let Some(remote) = &self.network.stages[call.stage].remote else { return };
        call.is_on_device = true;
        self.workers[remote.device].queue.push_back(call);
        self.begin_calls(remote.device);
    }

    /// Sends the results of a batch back to its stage.
    pub(super) fn send_back(&mut self, call: Call) {
        let Some(remote) = &self.network.stages[call.stage].remote else { return };
        let arrival = self.carry(remote.back, remote.received, &call);
        let place = self.keep(call);
        self.calendar.enter(arrival, Event::Returns(place));
    }

    /// The results of a batch have come back.
    pub(super) fn returns(&mut self, place: u32) {
        if let Some(call) = self.away[place as usize].take() {
            self.leave_all(call);
        }
    }

    /// Returns when the tensors of a batch, of `of_one` bytes for a record, arrive if they leave now.
    fn carry(&mut self, way: LocationLink, of_one: f64, call: &Call) -> Nanoseconds {
        let LocationLink::Link(index) = way else { return self.now };
        let bytes = of_one * call.records.len() as f64;
        let (arrival, waited) = self.occupy(index, bytes);
        if self.counts() {
            let link = &mut self.links[index];
            link.bytes += bytes;
            link.records += call.records.len() as u64;
            link.longest_wait = link.longest_wait.max(waited);
        }
        arrival
    }

    fn keep(&mut self, call: Call) -> u32 {
        let free = self.away.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            self.away.push(None);
            self.away.len() - 1
        });
        self.away[place] = Some(call);
        place as u32
    }
}
