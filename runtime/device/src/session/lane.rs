//! Calls of a client, in order.
use super::waiting::{State, Waiting};
use super::{CallError, Pending, Session, Writer, now};
use crate::call::{HEAD, Head, MOST_PAYLOAD, Op};
use crate::carrier::share_more;
use crate::device::{Artifact, ModelId, TensorId};
use crate::memory::{LEAST, Lent};
use crate::value::{Element, write_head};
use std::io::IoSlice;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;
use tidemill_shm::descriptor::BYTES;

/// Calls up to this length wait for the next one, or for the end of their [`Lane`], and go with it.
const SHORT: usize = 4 << 10;

/// Calls that follow each other.
#[derive(Debug)]
pub struct Lane<'a> {
    pub(super) session: &'a Session,
    pub(super) writer: MutexGuard<'a, Writer>,
    pub(super) begun: Instant,
}

impl Lane<'_> {
    fn handle(&mut self) -> u64 {
        self.writer.handle += 1;
        self.writer.handle
    }

    /// Makes a tensor of zeros, such as the first state of a loop.
    ///
    /// # Errors
    /// [`CallError::Lost`]; others surface at the next call that waits. So for all calls that post only.
    pub fn create(&mut self, element: Element, shape: &[usize]) -> Result<TensorId, CallError> {
        let (tensor, mut head) = (self.handle(), Vec::new());
        write_head(element, shape, &mut head);
        self.post(Op::Create, [tensor, 0, 0, 0], &[&head])?;
        Ok(TensorId(tensor))
    }

    /// Makes a tensor of these bytes, see [`Value`]. They are copied before it returns.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn upload(&mut self, element: Element, shape: &[usize], bytes: &[u8]) -> Result<TensorId, CallError> {
        let (tensor, mut head) = (self.handle(), Vec::new());
        write_head(element, shape, &mut head);
        match self.place(bytes)? {
            Some(place) => self.post_beside(Op::Upload, [tensor, 0, 0, 0], &[&place, &head], bytes.len())?,
            None => self.post(Op::Upload, [tensor, 0, 0, 0], &[&head, bytes])?,
        };
        Ok(TensorId(tensor))
    }

    /// Loads a model whose files the host has, see [`Session::load`].
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn load(&mut self, artifact: &Artifact) -> Result<ModelId, CallError> {
        let text = serde_json::to_vec(artifact).map_err(|error| CallError::Value(error.to_string()))?;
        let model = self.handle();
        self.post(Op::Load, [model, 0, 0, 0], &[&text])?;
        Ok(ModelId(model))
    }

    /// Frees a model.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn unload(&mut self, model: ModelId) -> Result<(), CallError> {
        self.post(Op::Unload, [model.0, 0, 0, 0], &[]).map(drop)
    }

    /// Runs a model. `outputs`: positions of the wanted outputs; the result has their tensors.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn run(
        &mut self,
        model: ModelId,
        inputs: &[TensorId],
        outputs: &[u32],
    ) -> Result<Vec<TensorId>, CallError> {
        let results: Vec<TensorId> = outputs.iter().map(|_| TensorId(self.handle())).collect();
        let mut payload = Vec::with_capacity(8 * inputs.len() + 12 * outputs.len());
        inputs.iter().for_each(|tensor| payload.extend_from_slice(&tensor.0.to_le_bytes()));
        for (output, tensor) in outputs.iter().zip(&results) {
            payload.extend_from_slice(&output.to_le_bytes());
            payload.extend_from_slice(&tensor.0.to_le_bytes());
        }
        self.post(Op::Run, [model.0, inputs.len() as u64, outputs.len() as u64, 0], &[&payload])?;
        Ok(results)
    }

    /// Asks for the value of a tensor.
    ///
    /// # Errors
    /// [`CallError::Lost`]; others come with the answer.
    pub fn read(&mut self, tensor: TensorId) -> Result<Pending, CallError> {
        self.sync(Op::Read, [tensor.0, 0, 0, 0], &[])
    }

    /// Asks for the end of all runs.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn flush(&mut self) -> Result<Pending, CallError> {
        self.sync(Op::Flush, [0; 4], &[])
    }

    /// Frees tensors.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn free(&mut self, tensors: &[TensorId]) -> Result<(), CallError> {
        let payload: Vec<u8> = tensors.iter().flat_map(|tensor| tensor.0.to_le_bytes()).collect();
        self.post(Op::Free, [0; 4], &[&payload]).map(drop)
    }

    /// Sends what was posted in this lane. Dropping the lane does it too.
    ///
    /// # Errors
    /// [`CallError::Lost`].
    pub fn send(&mut self) -> Result<(), CallError> {
        let sequence = self.writer.sequence;
        self.write(sequence, &[])
    }

    pub(super) fn sync(&mut self, op: Op, numbers: [u64; 4], parts: &[&[u8]]) -> Result<Pending, CallError> {
        let sequence = self.writer.sequence + 1;
        {
            let mut state = self.session.shared.state();
            if let Some(reason) = state.lost.clone() {
                return Err(CallError::Lost { sequence, may_have_run: false, reason });
            }
            state.waiting.insert(sequence, Waiting::since(self.begun));
        }
        match self.post(op, numbers, parts) {
            Ok(sequence) => Ok(Pending::new(sequence, &self.session.shared)),
            Err(error) => {
                self.session.shared.state().waiting.remove(&sequence);
                Err(error)
            }
        }
    }

    /// Copies long values into memory that the proxy shares, and returns their place. None: they go with their call.
    fn place(&mut self, values: &[u8]) -> Result<Option<[u8; BYTES]>, CallError> {
        if values.len() < LEAST {
            return Ok(None);
        }
        let (shared, Writer { outgoing, lent, .. }) = (&self.session.shared, &mut *self.writer);
        let (has_memory, returned) = {
            let state = shared.state();
            (state.has_memory, state.returned)
        };
        let mut place = None;
        if let (Some(lent), true) = (lent, has_memory && Lent::fits(values.len())) {
            if let Err(reason) = lent.returned(returned) {
                shared.hang_up();
                shared.lose(reason.clone());
                let sequence = self.writer.sequence + 1;
                return Err(CallError::Lost { sequence, may_have_run: false, reason });
            }
            place = lent.place(values);
            if place.is_none() && share_more(lent, &mut **outgoing) {
                place = lent.place(values);
            }
        }
        let traffic = &mut shared.state().traffic;
        match place {
            Some(_) => traffic.sent_in_memory += 1,
            None => traffic.sent_over_connection += 1,
        }
        Ok(place)
    }

    /// Posts a call and returns its sequence number.
    pub(super) fn post(&mut self, op: Op, numbers: [u64; 4], parts: &[&[u8]]) -> Result<u64, CallError> {
        self.post_beside(op, numbers, parts, 0)
    }

    /// Posts a call with this number of bytes in shared memory, where the first part says.
    fn post_beside(
        &mut self,
        op: Op,
        numbers: [u64; 4],
        parts: &[&[u8]],
        placed: usize,
    ) -> Result<u64, CallError> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let payload = u32::try_from(length).ok().filter(|_| length <= MOST_PAYLOAD);
        let payload = payload.ok_or_else(|| {
            CallError::Value(format!(
                "{length} bytes are too many for one call, at most {MOST_PAYLOAD} are allowed"
            ))
        })?;
        let sequence = self.writer.sequence + 1;
        let taken = self.wait_for_credit(sequence, (HEAD + length + placed) as u64)?;
        self.writer.sequence = sequence;
        let [first, second, third, _] = numbers;
        let (numbers, placed) = ([first, second, third, taken], placed > 0);
        let head = Head { kind: op as u8, failed: false, placed, payload, sequence, numbers }.to_bytes();
        if HEAD + length <= SHORT && self.writer.held.len() < SHORT {
            self.writer.held.extend_from_slice(&head);
            parts.iter().for_each(|part| self.writer.held.extend_from_slice(part));
        } else {
            let mut all: Vec<&[u8]> = vec![&head];
            all.extend(parts);
            self.write(sequence, &all)?;
        }
        Ok(sequence)
    }

    /// Waits until the window has room. A call that is larger than the window goes alone. Returns the number of payloads
    /// that were copied out of the memory of the proxy.
    fn wait_for_credit(&mut self, sequence: u64, bytes: u64) -> Result<u64, CallError> {
        let (shared, window) = (Arc::clone(&self.session.shared), self.session.snapshot.window);
        let fits = |state: &State| {
            let under_way = state.posted - state.handled;
            under_way == 0 || under_way + bytes <= window
        };
        let mut state = shared.state();
        if state.lost.is_none() && !fits(&state) {
            // What is held would never be handled, and a receipt of the rest may be far.
            state.posted += HEAD as u64;
            drop(state);
            let report = Head { kind: Op::Report as u8, ..Head::default() };
            self.write(sequence - 1, &[&report.to_bytes()])?;
            state = shared.wait_until(shared.state(), fits);
        }
        if let Some(reason) = state.lost.clone() {
            return Err(CallError::Lost { sequence, may_have_run: false, reason });
        }
        state.posted += bytes;
        Ok(state.taken)
    }

    fn write(&mut self, sequence: u64, parts: &[&[u8]]) -> Result<(), CallError> {
        let Writer { outgoing, held, .. } = &mut *self.writer;
        if held.is_empty() && parts.is_empty() {
            return Ok(());
        }
        let mut slices: Vec<IoSlice<'_>> = vec![IoSlice::new(held)];
        slices.extend(parts.iter().map(|part| IoSlice::new(part)));
        let shared = &self.session.shared;
        shared.state().patience.begin(now);
        let sent = outgoing.send_watched(&mut slices, &mut |written| shared.look_while_writing(written));
        shared.state().patience.end();
        held.clear();
        match sent {
            Ok(()) => {
                shared.state().written = sequence;
                Ok(())
            }
            Err(error) => {
                // Part of a call may have arrived, and nothing can follow it.
                shared.hang_up();
                // The last word of the device says more than the failure.
                drop(shared.wait_until(shared.state(), |_| false));
                shared.lose(error.to_string());
                let reason = shared.state().lost.clone().unwrap_or_default();
                Err(CallError::Lost { sequence, may_have_run: false, reason })
            }
        }
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        // A loss ends the calls that wait.
        let _ = self.send();
    }
}
