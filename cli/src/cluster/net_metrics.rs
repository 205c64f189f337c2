//! Metrics of `tidemill net serve --metrics`: those of the groups of programs on this machine.
//!
//! The service is asked for them when somebody reads them: by then another version of it may run.
use std::path::PathBuf;
use std::time::Duration;
use tidemill_app::metrics::{self, Collector, Labels, MetricsPort, Values, groups as of};
use tidemill_collective::client;
use tidemill_collective::protocol::{Answer, GroupCounts, NO_USER, Question};

/// Time in which the service answers. While it is upgraded, it may not.
const PATIENCE: Duration = Duration::from_secs(2);

/// Serves the metrics of the service with this socket.
///
/// # Errors
/// The system has no thread left.
pub(super) fn serve(port: &MetricsPort, socket: PathBuf) -> std::io::Result<()> {
    let text = move || {
        let mut values = Values::of_process();
        match client::ask(&socket, Question::Counts, PATIENCE) {
            Ok(Answer::Counts(groups)) => groups.iter().for_each(|group| add(&mut values, group)),
            Ok(other) => tracing::warn!("the service answers something else than counters: {other:?}"),
            Err(error) => tracing::warn!("the service does not say what its groups did: {error}"),
        }
        metrics::text([Box::new(values) as Box<dyn Collector>])
    };
    port.serve(text, Vec::new)
}

fn add(values: &mut Values, group: &GroupCounts) {
    let user = if group.user == NO_USER { "service".to_owned() } else { group.user.to_string() };
    let labels = || -> Labels { vec![("group", group.name.clone()), ("user", user.clone())] };
    let seconds = |us: u64| us as f64 / 1e6;
    for (operation, ended) in &group.ended {
        let labels = || [labels(), vec![("operation", operation.clone())]].concat();
        values.add(&of::OPERATIONS, labels(), ended.operations as f64);
        values.add(&of::BYTES, labels(), ended.bytes as f64);
        values.add(&of::BUSY, labels(), seconds(ended.busy_us));
    }
    values.add(&of::CHANGES, labels(), group.changes as f64);
    values.add(&of::STALLED, labels(), seconds(group.stalled_us));
    values.add(&of::HELD, labels(), seconds(group.held_us));
    values.add(&of::LOST, labels(), group.lost_ranks as f64);
}
