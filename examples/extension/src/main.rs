//! `tidemill` with seven further parts.
//!
//! The command starts this program again for worker processes and measurements, so they have the same parts.
use tidemill_extension::{counter, heartbeat, network, pack, tally, turns, weights};

fn main() -> ! {
    tidemill_operators::registry::register_source(counter::Counter);
    tidemill_operators::registry::register_operator(pack::Pack);
    tidemill_operators::registry::register_sink(tally::Tally);
    tidemill_link::transport::register(network::Network);
    tidemill_engine::register_executors(std::sync::Arc::new(turns::Turns::default()));
    tidemill_inference::backend::register(weights::REGISTRATION);
    tidemill_service::register(heartbeat::REGISTRATION);
    tidemill::main()
}
