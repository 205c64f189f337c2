//! The feeds of a run of a cluster, through its controller.
use super::asking::ask;
use super::connect::client;
use crate::arguments::ControllerChoice;
use tidemill_cluster::api::{FeedRequest, FeedsView};
use tidemill_cluster::client::segment;
use tidemill_engine::FeedTable;
use tidemill_operators::feeds::FeedOrder;

fn path(run: &str) -> String {
    format!("/v1/runs/{}/feeds", segment(run))
}

/// Returns the workflow and the feeds of a run.
pub(crate) fn feeds(of: &ControllerChoice, run: &str) -> anyhow::Result<(String, FeedTable)> {
    let view: FeedsView = ask(client(of)?.get(&path(run)))?;
    Ok((view.workflow, view.sources))
}

/// Changes the feeds of a source; returns the workflow and the feeds afterwards, as far as they are reported.
pub(crate) fn order(
    of: &ControllerChoice,
    run: &str,
    source: &str,
    order: &FeedOrder,
) -> anyhow::Result<(String, FeedTable)> {
    let request = FeedRequest { source: source.to_owned(), order: order.clone() };
    let view: FeedsView = ask(client(of)?.post(&path(run), &request))?;
    Ok((view.workflow, view.sources))
}
