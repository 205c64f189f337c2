//! The newest records of the sinks of an active run, from the reports of its processes to its coordinator.
use super::answering::{Answer, Who, asked, none};
use super::server::Behind;
use super::{Shared, locked};
use crate::api::{SampleMedium, SampleValue, SampleView, SamplesView, SinkSamples};
use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::HeaderMap;
use std::sync::Arc;
use tidemill_app::samples::{MOST, show};
use tidemill_engine::Sample;
use tidemill_http::server::Peer;
use tidemill_identity::Action;

fn view(sample: &Sample) -> SampleView {
    let shown = show(sample);
    let values = shown.values.into_iter().map(|(source, name, value)| SampleValue { source, name, value });
    let media = shown.media.into_iter().map(|one| SampleMedium {
        source: one.source,
        name: one.name,
        media_type: one.media_type.map(str::to_owned),
        bytes: one.bytes,
        base64: one.base64,
    });
    SampleView {
        number: sample.number,
        latency_ms: sample.latency as f64 / 1e6,
        is_right: sample.right,
        values: values.collect(),
        media: media.collect(),
    }
}

impl Shared {
    /// Returns the newest records after a number; none: there is no such run.
    fn samples(&self, name: &str, after: u64) -> Option<SamplesView> {
        self.facts.look(|document| document.runs.contains_key(name)).then_some(())?;
        let observer = {
            let runs = locked(&self.runs);
            runs.get(name).and_then(|live| Some((live.observer.clone()?, live.is_sampled)))
        };
        let Some((observer, is_sampled)) = observer else { return Some(SamplesView::default()) };
        let sinks = observer.program().sinks.keys().map(|sink| {
            let mut samples = observer.samples(sink);
            samples.sort_by_key(|sample| std::cmp::Reverse(sample.number));
            samples.truncate(MOST);
            let news = samples.iter().filter(|sample| sample.number > after);
            SinkSamples { sink: sink.clone(), samples: news.map(view).collect() }
        });
        Some(SamplesView { is_off: !is_sampled, sinks: sinks.collect() })
    }
}

/// `GET /v1/runs/NAME/samples`.
pub(super) async fn samples(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    Query(behind): Query<Behind>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<SamplesView> {
    let who: Who = (who, headers);
    asked(shared, who, Action::View, move |shared, _| {
        shared.samples(&name, behind.after).ok_or_else(|| none("run", &name))
    })
    .await
}
