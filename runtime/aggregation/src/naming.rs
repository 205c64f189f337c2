//! Names of the services of aggregators: one schema, and a name for each process.
use crate::wire;
use prost::Message as _;
use prost_types::FileDescriptorSet;
use std::collections::BTreeMap;
use std::sync::Mutex;
use tidemill_rpc::{BoxFuture, Channel, Incoming, Net, Service, Status};

const PACKAGE: &str = "aggregation";

/// Returns the full name of the service of an aggregator.
pub(crate) fn service_of(aggregator: &str) -> String {
    format!("{PACKAGE}.{aggregator}")
}

/// A server under another name than that of its schema. The transport service balances calls between servers of one name, and a tensor is on
/// one of them.
pub(crate) struct Named<S> {
    inner: S,
    name: String,
    descriptors: Vec<u8>,
}

impl<S: Service> Named<S> {
    pub(crate) fn new(inner: S, aggregator: &str) -> Result<Self, Status> {
        let descriptors = renamed(inner.descriptors(), inner.name(), aggregator)?;
        Ok(Self { inner, name: service_of(aggregator), descriptors })
    }
}

/// Gives a service of a schema another name.
fn renamed(descriptors: &[u8], service: &str, aggregator: &str) -> Result<Vec<u8>, Status> {
    let wrong = |error: prost::DecodeError| Status::internal(format!("the schema of aggregators: {error}"));
    let mut set = FileDescriptorSet::decode(descriptors).map_err(wrong)?;
    let own = service.rsplit('.').next().unwrap_or_default();
    for service in set.file.iter_mut().flat_map(|file| &mut file.service) {
        if service.name() == own {
            service.name = Some(aggregator.to_owned());
        }
    }
    Ok(set.encode_to_vec())
}

/// Binds to an aggregator: of this machine, or of that with the transport service at an address.
pub(crate) async fn bind(net: &Net, aggregator: &str, at: Option<&str>) -> Result<Channel, Status> {
    let name = service_of(aggregator);
    let Some(at) = at else { return Ok(net.discover(&name).await?.0) };
    net.bind_at(&name, schema_of(aggregator)?, &[at]).await
}

/// The schema of an aggregator. It stays for good: a process meets few aggregators, and each schema has a few kilobytes.
fn schema_of(aggregator: &str) -> Result<&'static [u8], Status> {
    static SCHEMAS: Mutex<BTreeMap<String, &'static [u8]>> = Mutex::new(BTreeMap::new());
    let mut schemas = crate::aggregator::locked(&SCHEMAS);
    if let Some(schema) = schemas.get(aggregator) {
        return Ok(*schema);
    }
    let schema = renamed(wire::DESCRIPTORS, wire::AggregatorClient::SERVICE, aggregator)?;
    let schema: &'static [u8] = Vec::leak(schema);
    schemas.insert(aggregator.to_owned(), schema);
    Ok(schema)
}

impl<S: Service> Service for Named<S> {
    fn name(&self) -> &str {
        &self.name
    }

    fn descriptors(&self) -> &[u8] {
        &self.descriptors
    }

    fn call(&self, method: u32, call: Incoming) -> BoxFuture<'static, ()> {
        self.inner.call(method, call)
    }
}

/// Numbers of the methods of an aggregator, in the order of the schema.
pub(crate) mod method {
    pub(crate) const PUSH: u32 = 0;
    pub(crate) const PULL: u32 = 1;
    pub(crate) const PUT: u32 = 2;
    pub(crate) const EXPECT: u32 = 3;
    pub(crate) const MIGRATE: u32 = 4;
    pub(crate) const FORGET: u32 = 5;
    pub(crate) const LIST: u32 = 6;
}

/// Makes a message of a state, with its checksum.
pub(crate) fn state(
    job: &str,
    token: &str,
    tensor: u32,
    version: u64,
    state: tidemill_rpc::Bytes,
) -> wire::State {
    wire::State {
        job: job.to_owned(),
        token: token.to_owned(),
        tensor,
        version,
        crc32c: crc32c::crc32c(&state),
        state,
        outcome: wire::Outcome::DONE,
        moved_to: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_aggregator_has_a_schema_of_its_own_name() {
        let schema = tidemill_rpc::schema::Schema::from_bytes(schema_of("a7").unwrap()).unwrap();
        let service = schema.service(&service_of("a7")).unwrap();
        assert_eq!(service.methods.len(), method::LIST as usize + 1);
        assert!(schema.service(wire::AggregatorClient::SERVICE).is_none());
        assert_eq!(schema_of("a7").unwrap().as_ptr(), schema_of("a7").unwrap().as_ptr());
    }
}
