//! Emulated workers and wires with one host per worker: wires are shared, speeds are per host, and the account equals that
//! of a run in one process.
use crate::emulation::spin;
use crate::hosts::{finished, on_workers, with_hosts};
use crate::parts::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidemill_engine::clock::DilatedClock;
use tidemill_engine::{Emulation, Program, Run, RunOptions, RunReport, WireReport, WireSpec, WorkerSpeed};

/// A source on one worker whose records go to two others over one wire, and from there to a sink over another one.
fn spread(records: usize) -> (Program, Collected) {
    let mut b = Builder::new(&[0.5, 0.5]);
    let (out, collected) = sink("out");
    b.source(rows_source("src", numbered(records), None, Some(0), 64), "s");
    b.operator("f1", pass("f", |_| {}), "a", &[0]).operator("f2", pass("f", |_| {}), "b", &[1]);
    b.sink(out, "c");
    for stage in ["f1", "f2"] {
        b.edge("src", stage, 0).edge(stage, "out", 0);
    }
    (on_workers(b.program), collected)
}

/// `bytes` per second to the two workers, unlimited after them.
fn wires(bytes: u64) -> Emulation {
    let wire = |from: &str, to: &str, bandwidth| WireSpec {
        from: from.to_owned(),
        to: to.to_owned(),
        bandwidth,
        delay: 20_000_000,
    };
    let edge = |from: &str, to: &str, wire| ((from.to_owned(), to.to_owned(), 0), wire);
    Emulation {
        wires: vec![wire("edge", "hub", Some(bytes * 8)), wire("hub", "cloud", None)],
        edges: BTreeMap::from([
            edge("src", "f1", 0),
            edge("src", "f2", 0),
            edge("f1", "out", 1),
            edge("f2", "out", 1),
        ]),
        ..Emulation::default()
    }
}

fn options(options: RunOptions, emulation: Emulation, dilation: f64) -> RunOptions {
    RunOptions { clock: Arc::new(DilatedClock::new(dilation)), emulation: Some(emulation), ..options }
}

fn of_wires(report: &RunReport) -> &[WireReport] {
    &report.emulation.as_ref().expect("it was emulated").wires
}

fn a_wire_takes_its_time(hosts: bool, dilation: f64) -> RunReport {
    const ROWS: usize = 20_000;
    const BYTES: u64 = 2_000_000;
    let (program, collected) = spread(ROWS);
    let (plain, ended_hosts) = match hosts {
        true => with_hosts(&program, |_| true),
        false => Default::default(),
    };
    let run = Run::start(program, options(plain, wires(BYTES), dilation)).expect("starts");
    let report = ended(&run, 60);
    finished(&ended_hosts);
    let expected: Vec<String> = (0..ROWS).map(|i| format!("k{i:06}={i}")).collect();
    assert_eq!(sorted(&collected), expected);
    let wire = &of_wires(&report)[0];
    assert_eq!(wire.edges.iter().map(|edge| edge.records).sum::<u64>(), ROWS as u64);
    assert!(wire.edges.iter().all(|edge| edge.records > 9000), "both edges: {wire:?}");
    for edge in report.edges.iter() {
        let all = of_wires(&report).iter().flat_map(|wire| &wire.edges);
        let metered = all.clone().find(|metered| metered.from == edge.from && metered.to == edge.to);
        let metered = metered.expect("all edges are on wires");
        assert_eq!((metered.records, metered.record_bytes), (edge.records, edge.bytes), "{edge:?}");
        assert!(metered.data_bytes > edge.bytes, "frames have headers: {metered:?}");
    }
    // Both edges together, not each of them.
    let allowed = (wire.data_bytes + wire.progress_bytes) as f64 / BYTES as f64;
    assert!(allowed > 0.5, "{wire:?}");
    assert!((wire.busy_seconds - allowed).abs() < 1e-3, "{wire:?}");
    assert!(report.seconds >= wire.busy_seconds + 0.04, "{} s, {wire:?}", report.seconds);
    assert_eq!(of_wires(&report)[1].busy_seconds, 0.0);
    report
}

#[test]
fn a_wire_takes_its_time_for_all_edges_over_it() {
    let [here, by_hosts] = [false, true].map(|hosts| a_wire_takes_its_time(hosts, 1.0));
    let names = |report: &RunReport| -> Vec<_> {
        let edges = of_wires(report).iter().flat_map(|wire| &wire.edges);
        edges.map(|edge| (edge.from.clone(), edge.to.clone(), edge.records, edge.record_bytes)).collect()
    };
    assert_eq!(names(&here), names(&by_hosts));
}

#[test]
fn a_wire_between_hosts_takes_its_time_in_stretched_runs() {
    a_wire_takes_its_time(true, 2.5);
}

/// A record passes both wires, one after the other.
#[test]
fn delays_count_between_hosts() {
    let (mut program, collected) = spread(200);
    program.sources.get_mut("src").expect("is there").rate_per_second = Some(400.0);
    let (plain, ended_hosts) = with_hosts(&program, |worker| worker != "a");
    let run = Run::start(program, options(plain, wires(100_000_000), 1.0)).expect("starts");
    let report = ended(&run, 60);
    finished(&ended_hosts);
    assert_eq!(sorted(&collected).len(), 200);
    // The clocks of two hosts on one machine differ by less than a millisecond.
    assert!(report.sinks[0].latency.p50_ms >= 39.0, "{:?}", report.sinks[0].latency);
}

/// Each host has the server of its worker: 3 ms per record, so at most 333 per second.
#[test]
fn workers_are_emulated_where_they_run() {
    let mut b = Builder::new(&[1.0]);
    let (out, collected) = sink("out");
    b.source(rows_source("src", numbered(200), Some(2000.0), Some(0), 40), "s");
    let compute = |batch: &arrow_array::RecordBatch| spin(Duration::from_millis(batch.num_rows() as u64));
    b.operator("m", model("m", compute), "w", &[]).edge("src", "m", 0);
    b.operator("n", model("n", |_| {}), "v", &[]).edge("m", "n", 0);
    b.sink(out, "c").edge("n", "out", 0);
    let program = on_workers(b.program);
    let emulation = Emulation {
        workers: BTreeMap::from(["v", "w"].map(|worker| (worker.to_owned(), WorkerSpeed::Ratio))),
        ratios: BTreeMap::from([("m".to_owned(), vec![3.0])]),
        ..Emulation::default()
    };
    let (plain, ended_hosts) = with_hosts(&program, |_| true);
    let run = Run::start(program, options(plain, emulation, 1.0)).expect("starts");
    let report = ended(&run, 60);
    finished(&ended_hosts);
    assert_eq!(sorted(&collected).len(), 200);
    assert!(report.seconds >= 0.6, "{} s", report.seconds);
    let workers = &report.emulation.as_ref().expect("it was emulated").workers;
    let names: Vec<_> = workers.iter().map(|worker| worker.worker.as_str()).collect();
    assert_eq!(names, ["v", "w"]);
    let stage = &workers[1].stages[0];
    assert_eq!((stage.stage.as_str(), stage.records), ("m", 200));
    assert!((stage.busy_seconds - 3.0 * stage.processor_seconds).abs() < 1e-3, "{stage:?}");
    assert!(workers[1].busy_seconds <= report.seconds + 1e-3, "one call at a time");
    assert_eq!(workers[0].stages[0].records, 200);
}
