//! Live sources: their epochs are those of the clock, and one that is silent holds up no other.
use crate::hosts::{finished, with_hosts};
use crate::parts::*;
use arrow_array::{Int64Array, RecordBatch, StringArray};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tidemill_engine::clock::ManualClock;
use tidemill_engine::{Program, Run, RunOptions, RunReport};
use tidemill_operators::api::*;
use tidemill_operators::feeds::{FeedOrder, FeedState, FeedStatus, Feeds};
use tidemill_operators::record::payload_schema;
use tidemill_spec::plan::Freshness;

enum Item {
    Rows(Vec<Row>),
    Idle(i64),
}

/// What the test gives to a live source.
#[derive(Default)]
struct Feed {
    items: Mutex<VecDeque<Item>>,
    changed: Condvar,
    /// How often nothing was there.
    silences: AtomicU64,
}

impl Feed {
    fn give(&self, item: Item) {
        self.items.lock().expect("not poisoned").push_back(item);
        self.changed.notify_all();
    }

    fn row(&self, key: &str, value: i64, time: i64) {
        self.give(Item::Rows(vec![Row { key: key.into(), value, time }]));
    }
}

struct Reader(Arc<Feed>);

/// The reader looks again this often, so that its thread ends with the run.
const LOOK: Duration = Duration::from_millis(20);

impl Source for Reader {
    fn read(&mut self, _rows: usize, _bytes: usize) -> Result<SourceRead, OperatorError> {
        let items = self.0.items.lock().expect("not poisoned");
        let (mut items, _) =
            self.0.changed.wait_timeout_while(items, LOOK, |items| items.is_empty()).expect("not poisoned");
        let rows = match items.pop_front() {
            None => {
                self.0.silences.fetch_add(1, Ordering::Release);
                return Ok(SourceRead::Idle { watermark: i64::MIN });
            }
            Some(Item::Idle(watermark)) => return Ok(SourceRead::Idle { watermark }),
            Some(Item::Rows(rows)) => rows,
        };
        let keys: StringArray = rows.iter().map(|row| Some(row.key.as_str())).collect();
        let values: Int64Array = rows.iter().map(|row| row.value).collect();
        let columns = vec![Arc::new(keys) as _, Arc::new(values) as _];
        let payload = RecordBatch::try_new(payload_schema(&stream()), columns).expect("two columns");
        let times = Some(rows.iter().map(|row| row.time).collect());
        Ok(SourceRead::Rows { payload, times, dead_letters: vec![], offsets: None })
    }

    fn position(&self) -> SourcePosition {
        SourcePosition::default()
    }

    fn seek(&mut self, _position: &SourcePosition) -> Result<(), OperatorError> {
        Ok(())
    }

    fn replayable(&self) -> bool {
        false
    }
}

fn live(id: &str) -> (BoundSource, Arc<Feed>) {
    let feed = Arc::new(Feed::default());
    let read = Arc::clone(&feed);
    let make: MakeSource = Arc::new(move || Ok(Box::new(Reader(Arc::clone(&read)))));
    let source = BoundSource { live: true, make, ..rows_source(id, vec![], None, Some(0), 1) };
    (source, feed)
}

fn start(program: Program) -> (Run, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new());
    let options = RunOptions { clock: clock.clone(), ..RunOptions::default() };
    (Run::start(program, options).expect("starts"), clock)
}

fn stopped(run: &Run, clock: &ManualClock) -> RunReport {
    run.stopper().stop();
    drive(run, clock)
}

fn records_out(run: &Run, stage: &str) -> u64 {
    let report = run.report();
    report.stages.iter().filter(|of| of.stage == stage).map(|of| of.records_out).sum()
}

/// Two sources into one operator.
fn two_into(operator: BoundOperator) -> (Program, Arc<Feed>, Arc<Feed>, Collected) {
    let mut b = Builder::new(&[1.0]);
    let ((one, of_one), (other, of_other)) = (live("one"), live("other"));
    let (out, collected) = sink("out");
    let id = operator.id.clone();
    b.source(one, "a").source(other, "b");
    let all = Some(Freshness::Block);
    b.operator(&id, operator, "c", &[]).edge_with("one", &id, 0, all).edge_with("other", &id, 1, all);
    b.sink(out, "c").edge(&id, "out", 0);
    (b.program, of_one, of_other, collected)
}

/// Windows of one camera close although the other was never reached: it states its watermark.
#[test]
fn a_source_that_is_cut_holds_up_nobody() {
    let (program, one, cut, collected) = two_into(window("w", 10_000));
    let (run, clock) = start(program);
    for second in 0..5 {
        one.row("k", second, second * 10_000 + 1);
        cut.give(Item::Idle(second * 10_000));
        until(&clock, || records_out(&run, "one") == second as u64 + 1);
        clock.advance(20 * MILLISECOND);
    }
    // The last window is open: a record of its time may still come.
    passes(&clock, MILLISECOND, || collected.lock().expect("not poisoned").len() == 4);
    assert_eq!(records_out(&run, "other"), 0, "it was cut all the time");
    let report = stopped(&run, &clock);
    assert_eq!(lines(&collected).len(), 5);
    assert!(report.stages.iter().all(|stage| stage.drops.is_empty()), "{report:?}");
}

/// Stands for the end among the records.
const ENDED: u64 = u64::MAX;

/// The records before each epoch, as a source of requests learns them.
#[derive(Default)]
struct Begun(Mutex<Vec<u64>>);

impl Requests for Begun {
    fn begin_reading(&self, _source: u32, sequence: u64) {
        self.begin_epoch(0, sequence);
    }

    fn begin_epoch(&self, _epoch: u64, sequence: u64) {
        self.0.lock().expect("not poisoned").push(sequence);
    }

    fn bury(&self, _letter: &DeadLetter) {}

    fn expect_answers(&self) {}

    fn end_reading(&self) {
        self.begin_epoch(1 << 40, ENDED);
    }
}

/// A source of requests counts those, so silence between them must not count as a record.
#[test]
fn silence_that_states_nothing_is_no_record_of_a_stream() {
    let (source, feed) = live("requests");
    let begun = Arc::new(Begun::default());
    let requests = Some(Arc::clone(&begun) as Arc<dyn Requests>);
    let source = BoundSource { live: false, stream: Some("requests".into()), requests, ..source };
    let (out, collected) = sink("out");
    let mut b = Builder::new(&[1.0]);
    b.source(source, "a").sink(out, "a").edge("requests", "out", 0);
    let (run, clock) = start(b.program);
    for record in 0..3u64 {
        let before = feed.silences.load(Ordering::Acquire);
        until(&clock, || feed.silences.load(Ordering::Acquire) > before + 1);
        feed.row("k", record as i64, record as i64 + 1);
        until(&clock, || records_out(&run, "requests") == record + 1);
        clock.advance(100 * MILLISECOND);
    }
    stopped(&run, &clock);
    assert_eq!(lines(&collected), ["k=0", "k=1", "k=2"]);
    let begun = begun.0.lock().expect("not poisoned");
    let (ended, begun) = begun.split_last().expect("the end");
    assert!(*ended == ENDED && begun.contains(&2) && begun.iter().all(|records| *records <= 3), "{begun:?}");
}

/// Without a statement of the source nothing is known about what it will send.
#[test]
fn a_source_that_states_nothing_is_waited_for() {
    let (program, one, _silent, collected) = two_into(window("w", 10_000));
    let (run, clock) = start(program);
    for second in 0..5 {
        one.row("k", second, second * 10_000 + 1);
        until(&clock, || records_out(&run, "one") == second as u64 + 1);
        clock.advance(20 * MILLISECOND);
    }
    clock.advance(1000 * MILLISECOND);
    assert!(lines(&collected).is_empty());
    stopped(&run, &clock);
    assert_eq!(lines(&collected).len(), 5);
}

/// A record that waits in front of the run is older than what the source states after it.
#[test]
fn a_statement_does_not_overtake_records() {
    let mut b = Builder::new(&[1.0]);
    let (source, feed) = live("src");
    let (out, collected) = sink("out");
    b.source(source, "a");
    b.operator("w", window("w", 10_000), "b", &[]).edge_with("src", "w", 0, Some(Freshness::Block));
    b.sink(out, "b").edge("w", "out", 0);
    let (run, clock) = start(b.program);
    for round in 0..200 {
        let time = round * 10_000;
        feed.row("k", 1, time + 1);
        feed.give(Item::Idle(time + 5_000));
        clock.advance(MILLISECOND * (round % 7));
    }
    passes(&clock, MILLISECOND, || records_out(&run, "src") == 200);
    let report = stopped(&run, &clock);
    assert!(report.stages.iter().all(|stage| stage.drops.is_empty()), "{report:?}");
    assert_eq!(lines(&collected).len(), 200);
}

/// With epochs that end by the number or the time of records, the faster source would be ahead by more and more of them.
#[test]
fn sources_of_different_rates_stay_together() {
    let (program, fast, slow, collected) = two_into(join("j", 1_000_000));
    let (run, clock) = start(program);
    let (mut given, mut pairs) = (0, 0);
    for round in 0..400i64 {
        let time = round * 10_000;
        fast.row(&format!("k{round:06}"), round, time);
        given += 1;
        if round % 7 == 0 {
            slow.row(&format!("k{round:06}"), round, time);
            given += 1;
            pairs += 1;
        }
        until(&clock, || records_out(&run, "one") + records_out(&run, "other") == given);
        clock.advance(10 * MILLISECOND);
        if round % 50 == 49 {
            // Two checkpoints later all of it is there, and time stands still until it is.
            clock.advance(110 * MILLISECOND);
            until(&clock, || collected.lock().expect("not poisoned").len() == pairs);
        }
    }
    stopped(&run, &clock);
}

/// A slow model gets the newest frame of each camera, not that of the camera which happened to be last.
#[test]
fn latest_keeps_a_record_of_each_key() {
    for separate in [false, true] {
        let mut b = Builder::new(&[1.0]);
        let (source, feed) = live("src");
        let (out, collected) = sink("out");
        let gate = Gate::closed();
        let held = Arc::clone(&gate);
        let slow = model("m", move |_: &RecordBatch| held.pass());
        b.source(source, "a");
        // The default of edges from a live source is `latest`.
        b.operator("m", slow, if separate { "b" } else { "a" }, &[]).edge_with(
            "src",
            "m",
            0,
            None::<Freshness>,
        );
        b.program.plan.stages.last_mut().expect("just added").max_batch = 1;
        b.sink(out, "a").edge("m", "out", 0);
        let (run, clock) = start(b.program);
        for round in 0..30 {
            for camera in ["gate", "dock", "yard"] {
                feed.row(camera, round, round * 1000);
            }
        }
        // Time stands still: a source pauses when the records that the model holds are some epochs old.
        until(&clock, || records_out(&run, "src") == 90);
        gate.open();
        let report = stopped(&run, &clock);
        let rows = lines(&collected);
        for camera in ["gate", "dock", "yard"] {
            let newest = rows.iter().any(|row| row.contains(camera) && row.contains("29"));
            assert!(newest, "the newest of {camera} is missing: {rows:?}");
        }
        let edges = report.edges.iter().flat_map(|edge| edge.drops.values());
        let drops: u64 = edges.chain(report.stages.iter().flat_map(|stage| stage.drops.values())).sum();
        assert!(drops > 0, "the model was slow");
        assert_eq!(rows.len() as u64 + drops, 90, "{report:#?}");
    }
}

/// Feeds that follow all orders but those about `nobody`.
#[derive(Default)]
struct Obedient(Mutex<Vec<FeedOrder>>);

impl Feeds for Obedient {
    fn status(&self) -> Vec<FeedStatus> {
        let orders = self.0.lock().expect("not poisoned");
        let added = orders.iter().filter_map(|order| match order {
            FeedOrder::Add { feed, .. } => Some(feed.clone()),
            _ => None,
        });
        let status = |feed| FeedStatus {
            feed,
            state: FeedState::Live,
            seconds: 1.0,
            detail: String::new(),
            connects: 1,
            received: 3,
            emitted: 1,
            drops: [("superseded".to_owned(), 2)].into(),
            waiting: 0,
        };
        added.map(status).collect()
    }

    fn order(&self, order: &FeedOrder) -> Result<(), String> {
        if matches!(order, FeedOrder::Remove { feed } if feed == "nobody") {
            return Err("there is no feed `nobody`".into());
        }
        self.0.lock().expect("not poisoned").push(order.clone());
        Ok(())
    }
}

#[test]
fn orders_reach_the_process_that_reads_the_source_and_its_feeds_are_shown() {
    for away in [false, true] {
        let mut b = Builder::new(&[1.0]);
        b.is_apart = true;
        let ((source, _feed), feeds) = (live("src"), Arc::new(Obedient::default()));
        b.source(BoundSource { feeds: Some(feeds.clone()), ..source }, "a");
        b.sink(nowhere("out"), "b").edge("src", "out", 0);
        let (options, ended) = match away {
            true => with_hosts(&b.program, |_| true),
            false => Default::default(),
        };
        let run = Run::start(b.program, options).expect("starts");
        let observer = run.observer();
        let add = FeedOrder::Add { feed: "gate".into(), address: "somewhere".into() };
        let clock = ManualClock::new();
        // A host that has not joined yet cannot answer.
        until(&clock, || observer.order_feeds("src", &add).is_ok());
        until(&clock, || observer.feeds().get("src").is_some_and(|feeds| feeds.len() == 1));
        assert_eq!(observer.feeds()["src"], feeds.status());
        assert_eq!(run.report().feeds, observer.feeds());
        let nobody = FeedOrder::Remove { feed: "nobody".into() };
        assert_eq!(observer.order_feeds("src", &nobody), Err("there is no feed `nobody`".into()));
        let error = observer.order_feeds("out", &add).expect_err("a sink has no feeds");
        assert!(error.contains("`out`"), "{error}");
        assert_eq!(*feeds.0.lock().expect("not poisoned"), [add], "each order once");
        run.stopper().stop();
        wait(&run);
        if away {
            finished(&ended);
        }
    }
}
