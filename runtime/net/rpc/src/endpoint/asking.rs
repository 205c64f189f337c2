//! Questions to the service: bindings and schemas.
use super::{Endpoint, PATIENCE, lost};
use crate::protocol::{ToProgram, ToService, kind};
use crate::server::Service;
use crate::{Code, Status, packets};
use bytes::Bytes;
use std::sync::Arc;
use tidemill_shm::descriptor::Descriptor;
use tokio::sync::oneshot;

impl Endpoint {
    async fn question(&self, make: impl Fn(u64) -> ToService) -> Result<ToProgram, Status> {
        let (send, answer) = oneshot::channel();
        let id = {
            let mut state = self.lock();
            state.next += 1;
            let id = state.next;
            state.asked.insert(id, send);
            id
        };
        packets::send(&self.setup, &make(id), &[])
            .map_err(|error| Status::unavailable(format!("the transport service: {error}")))?;
        let answer = tokio::time::timeout(PATIENCE, answer).await.map_err(|_| {
            Status::unavailable("the transport service does not answer whether the service is there")
        })?;
        answer.map_err(|_| lost())
    }

    /// Returns the schema of a service that is served on this host.
    pub(crate) async fn describe(&self, service: &str) -> Result<Bytes, Status> {
        let answer = self.question(|id| ToService::Describe { id, service: service.to_owned() }).await?;
        match answer {
            ToProgram::Described { region, offset, length, lease, .. } => {
                let descriptor =
                    Descriptor { kind: kind::PART, region, offset, length, lease, ..Descriptor::default() };
                let lease = self.payload(&mut self.lock(), &descriptor);
                let lease = lease.map_err(|error| Status::internal(error.to_string()))?;
                Ok(Bytes::copy_from_slice(&lease))
            }
            ToProgram::Refused { code, reason, .. } => Err(Status::new(Code::from_number(code), reason)),
            _ => Err(Status::unavailable("the transport service answers something else")),
        }
    }

    /// Asks for a binding; shows the schema where the service does not know it.
    pub(crate) async fn ask(
        &self,
        make: impl Fn(u64) -> ToService,
        schema: &Bytes,
        serve: Option<Arc<dyn Service>>,
    ) -> Result<u32, Status> {
        let mut shown = Bytes::new();
        for attempt in 0..2 {
            match self.question(&make).await? {
                ToProgram::Bound { lane, .. } => {
                    if let Some(service) = serve {
                        self.lock().served.insert(lane, service);
                    }
                    return Ok(lane);
                }
                ToProgram::Unknown { .. } if attempt == 0 => {
                    // Packets are read in their order: the next answer says that it was read.
                    shown = self.place(schema.clone()).await?;
                    let at = self.lock().heap.describe(&shown, kind::PART).unwrap_or_default();
                    let packet =
                        ToService::Schema { region: at.region, offset: at.offset, length: at.length };
                    packets::send(&self.setup, &packet, &[])
                        .map_err(|error| Status::unavailable(format!("the transport service: {error}")))?;
                }
                ToProgram::Refused { code, reason, .. } => {
                    return Err(Status::new(Code::from_number(code), reason));
                }
                _ => break,
            }
        }
        drop(shown);
        Err(Status::unavailable("the transport service does not take the schema"))
    }

    /// Calls a binding no more.
    pub(crate) fn unbind(&self, lane: u32) {
        let service = self.lock().served.remove(&lane);
        drop(service);
        // One that does not read is gone soon.
        let _ = packets::send(&self.setup, &ToService::Leave { lane }, &[]);
    }
}
