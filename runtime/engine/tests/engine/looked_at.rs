//! Sampled records leave their hosts only during an inspection.
use crate::hosts::{on_workers, with_hosts};
use crate::parts::*;
use std::collections::BTreeMap;
use std::time::Duration;
use tidemill_engine::{Newest, Run, SampleOptions, SourceLink};

#[test]
fn nothing_is_told_before_somebody_looks() {
    let mut b = Builder::new(&[1.0]);
    let (out, _) = sink("out");
    b.source(rows_source("rows", numbered(100_000), Some(500.0), Some(0), 64), "s").sink(out, "b");
    b.edge("rows", "out", 0);
    let program = on_workers(b.program);
    let (mut options, _) = with_hosts(&program, |_| true);
    options.samples = Some(SampleOptions {
        most: 10,
        most_wrong: 0,
        recent_bytes: 1 << 20,
        links: BTreeMap::from([("out".into(), vec![SourceLink { source: "rows".into(), columns: None }])]),
        newest: Some(Newest { every: 10_000_000, most_bytes: 10_000 }),
    });
    let run = Run::start(program, options).expect("starts");
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        for _ in 0..6000 {
            if is_so() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{what} does not come");
    };
    // Figures come with samples, if there are any: they were reported ten times.
    until("a second of records", &|| run.progress().arrived > 500);
    assert_eq!(run.observer().samples("out").len(), 0, "this is the first look");
    until("a record", &|| !run.observer().samples("out").is_empty());
    until("more than one", &|| run.observer().samples("out").len() > 5);
    run.stopper().abort();
    let _ = run.wait();
}
