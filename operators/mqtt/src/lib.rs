//! Messages of MQTT brokers: the source [`mqtt`](source) subscribes, the sink [`mqtt`](sink) publishes.
mod broker;
mod line;
pub mod sink;
pub mod source;
mod subscription;
mod topic;

use tidemill_operators::registry::Registry;

/// Adds the kinds of this crate.
pub fn register(registry: &mut Registry) {
    registry.register_source(source::Mqtt);
    registry.register_sink(sink::Mqtt);
}
