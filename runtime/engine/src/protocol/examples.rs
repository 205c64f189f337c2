//! One non-empty example of each kind of notice and order, for tests that mutate them.
use super::{Beginning, End, Hello, LostNotices, Notice, Order, Part, PartRequest, Standing, StandingSlot};
use crate::checkpoint::{JournalOrder, Past, StageChange, StagePast};
use crate::failure::RunError;
use crate::store::{Cut, EpochEntry, EpochLog};
use crate::traces::{Happening, Span, TraceOptions};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidemill_operators::api::SourcePosition;
use tidemill_operators::feeds::FeedOrder;

fn cut() -> Cut {
    let position = SourcePosition("{\"row\": 3}".into());
    Cut { position, skip: 1, sequence: u64::MAX, newest: -5, watermark: i64::MIN }
}

fn span() -> Span {
    Span {
        trace: [7; 16],
        id: 1,
        parent: Some(2),
        what: Happening::Transfer,
        operator: "join".into(),
        from: Some("filter".into()),
        stage: "join".into(),
        worker: "edge".into(),
        begin: 1,
        end: 2,
        batch: 3,
        sequence: u64::MAX,
    }
}

/// Notices of a host.
pub(crate) fn notices() -> Vec<Notice> {
    let mut part = Part::default();
    let change =
        StageChange { snapshot: Some((3, Arc::new(vec![0, 255]))), calls: vec![1; 300], from: 3, upto: 5 };
    part.stages.insert("join".into(), change);
    part.sources
        .insert("s".into(), EpochLog { cuts: [(3, cut())].into(), emitted: 8, ..EpochLog::default() });
    let slot = StandingSlot { incarnation: 1, durable: vec![3, u64::MAX], end: Some(End::Killed) };
    let standing = Standing {
        started: 5,
        elapsed_before: 7,
        now: 9,
        slots: [(0, slot)].into(),
        met: [(3, 1)].into(),
        closed: Some(Err(RunError::Plan("no".into()))),
    };
    let address = "tcp://127.0.0.1:4100".parse().ok();
    let end = End::Panicked { operator: "a".into(), text: "b".into(), restarts: true, found_cause: false };
    vec![
        Notice::Hello(Hello { graph: 7, address, standing: Some(Box::new(standing)) }),
        Notice::Ping(3),
        Notice::Durable { slot: 1, incarnation: 2, epochs: vec![3, 4] },
        Notice::Ended { slot: 1, incarnation: 2, durable: vec![3], end, heard: [(0, 2)].into() },
        Notice::Epoch { source: "s".into(), entry: EpochEntry::Cut { epoch: 3, cut: cut() } },
        Notice::Part { number: 1, part: Ok(Some(part)) },
        Notice::Figures(Box::default()),
        Notice::FeedAnswered { number: 3, answer: Err("no feed".into()) },
        Notice::Spans(vec![span()]),
        Notice::Closed(Ok(())),
        Notice::LostNotices(LostNotices { letters: 3, spans: 4 }),
    ]
}

/// Orders to a host.
pub(crate) fn orders() -> Vec<Order> {
    let mut past = Past { epoch: 3, ..Past::default() };
    past.stages.insert("join".into(), StagePast { snapshot: (2, vec![9; 70]), calls: vec![vec![1], vec![]] });
    let beginning = Beginning {
        started: 1,
        elapsed_before: 2,
        past: Some(past),
        records: Some(4),
        duration: None,
        model_copies: 1,
        replay: None,
        recoverable: true,
        keeps_for_checkpoints: true,
        is_durable: true,
        rows_before: [("out".to_owned(), 5)].into(),
        dilation: 1.0,
        peers: BTreeMap::new(),
        identities: [("edge".to_owned(), "tidemill:worker/edge-1".to_owned())].into(),
        emulation: None,
        samples: None,
        traces: Some(TraceOptions::new(0.5, 7)),
    };
    let request =
        PartRequest { number: 1, epoch: 2, from: 1, snapshots: BTreeMap::new(), is_complete: false };
    vec![
        Order::Begin(Box::new(beginning)),
        Order::Start { slot: 0, incarnation: 1, resume_at: vec![1, 2], new_executor: Some("m".into()) },
        Order::Part(request),
        Order::Identity { host: "edge".into(), identity: "tidemill:worker/edge-1".into() },
        Order::FindSources { number: 1, sink: "out".into(), record: vec![1, 2, 3] },
        Order::Feed { number: 3, source: "cameras".into(), order: FeedOrder::Pause { feed: "gate".into() } },
        Order::Pong { number: 1, now: 5 },
        Order::Journals(BTreeMap::from([("events".to_owned(), JournalOrder::Release(7))])),
        Order::Close { complete: true, will_continue: false, cut_short: true },
    ]
}
