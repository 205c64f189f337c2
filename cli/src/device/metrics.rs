//! Metrics of `tidemill device serve --metrics`.
use std::sync::{Arc, Weak};
use tidemill_app::metrics::{self, Collector, Labels, MetricsPort, Values, device as of};
use tidemill_device::daemon::Daemon;
use tidemill_device::daemon::views::Listing;

/// Serves the metrics of a daemon, as long as it lives.
///
/// # Errors
/// The system has no thread left.
pub(super) fn serve(port: &MetricsPort, daemon: &Arc<Daemon>) -> std::io::Result<()> {
    let daemon: Weak<Daemon> = Arc::downgrade(daemon);
    let text = move || {
        let mut values = Values::of_process();
        if let Some(daemon) = daemon.upgrade() {
            add(&mut values, &daemon.listing());
        }
        metrics::text([Box::new(values) as Box<dyn Collector>])
    };
    port.serve(text, Vec::new)
}

fn add(values: &mut Values, device: &Listing) {
    let labels = || -> Labels { vec![("device", device.device.clone())] };
    values.add(&of::SECONDS, labels(), device.seconds);
    values.add(&of::SLOTS, labels(), device.slots as f64);
    values.add(&of::RUNS, labels(), device.runs as f64);
    values.add(&of::FAILED, labels(), device.failed as f64);
    values.add(&of::COMPUTED, labels(), device.computed_seconds);
    values.add(&of::WAITED, labels(), device.waited_seconds);
    values.add(&of::WAITING, labels(), device.queue as f64);
    for tenant in &device.tenants {
        let labels =
            || -> Labels { vec![("device", device.device.clone()), ("tenant", tenant.tenant.clone())] };
        values.add(&of::SESSIONS, labels(), tenant.sessions as f64);
        values.add(&of::MEMORY, labels(), tenant.memory as f64);
        values.add(&of::SHARE, labels(), tenant.share);
        if let Some(limit) = tenant.memory_limit {
            values.add(&of::MEMORY_LIMIT, labels(), limit as f64);
        }
    }
}
