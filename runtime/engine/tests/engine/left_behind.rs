//! A plan that ends without a lost host, and the next one that continues on the others from the last checkpoint.
use crate::changes::{Job, pipeline, tagged};
use crate::parts::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidemill_engine::{Program, Run, Standby};

/// The plan without a stage: its classes go to another stage of the same operator.
fn without(program: &Program, lost: &str, other: &str) -> Program {
    let mut next = program.clone();
    next.plan.stages.retain(|stage| stage.id != lost);
    next.plan.edges.retain(|edge| edge.from != lost && edge.to != lost);
    for class in &mut next.plan.classes {
        class.route.values_mut().filter(|stage| *stage == lost).for_each(|stage| other.clone_into(stage));
    }
    next.operators.remove(lost);
    next
}

/// Loses host `b` of the first plan, and continues under the next one.
fn continued(job: &Job, run: Run, next: &Program) -> Run {
    let mut standby = Standby::start(next, job.hosts(next, 2)).expect("starts");
    assert!(standby.wait_for(Duration::from_secs(40)).expect("loads"), "{:?}", standby.missing());
    run.stopper().stop_without(&["b".to_owned()]);
    let report = ended(&run, 40);
    assert!(!report.complete, "it came to its end before a host was lost: the test needs more rows");
    assert_eq!(report.restarts, 0, "nothing waits for the lost host, or starts it again");
    drop(run);
    job.start(next, standby.into_hosts().expect("they stand ready"))
}

/// The lost host was not asked to leave; all others were.
fn only_b_was_lost(job: &Job) {
    let ends = job.ends.lock().expect("not poisoned").clone();
    for (version, worker, end) in &ends {
        let is_lost = (*version, worker.as_str()) == (1, "b");
        assert_eq!(end.is_err(), is_lost, "{worker} of plan {version}: {end:?}");
    }
    assert!(ends.iter().any(|(_, worker, _)| worker == "b"), "{ends:?}");
    assert!(ends.iter().all(|(version, worker, _)| *version == 1 || worker != "b"), "{ends:?}");
}

/// Joins, windows and dead letters are as in an undisturbed run.
#[test]
fn classes_of_a_lost_host_go_to_a_stage_that_remains() {
    const ROWS: usize = 3000;
    let placed = |program: &Program| {
        let mut program = program.clone();
        for stage in &mut program.plan.stages {
            let worker = match stage.id.as_str() {
                "f1" => "b",
                "f2" => "c",
                "j" | "w" => "d",
                _ => "a",
            };
            worker.clone_into(&mut stage.worker);
        }
        program
    };
    let undisturbed = {
        let (program, collected) = pipeline(ROWS);
        let job = Job::new(program, collected);
        let program = placed(&job.program);
        assert!(ended(&job.start(&program, job.hosts(&program, 1)), 55).complete);
        (lines(&job.collected), job.letters.lock().expect("not poisoned").len())
    };
    let (program, collected) = pipeline(ROWS);
    let job = Job::new(program, collected);
    let first = placed(&job.program);
    let run = job.start(&first, job.hosts(&first, 1));
    assert!(job.checkpoints(&run, 3), "it is over before a host is lost");
    let run = continued(&job, run, &without(&first, "f1", "f2"));
    assert!(ended(&run, 55).complete);
    drop(run);
    assert_eq!(lines(&job.collected), undisturbed.0);
    assert_eq!(job.letters.lock().expect("not poisoned").len(), undisturbed.1, "dead letters");
    only_b_was_lost(&job);
}

/// Every record passes a model once, also those that were on their way to the lost one.
#[test]
fn records_on_their_way_to_a_lost_model_are_computed_by_another() {
    const ROWS: usize = 4000;
    let loads: [Arc<AtomicU64>; 2] = Default::default();
    let mut b = Builder::new(&[0.5, 0.5]);
    let (out, collected) = sink("out");
    b.source(rows_source("rows", numbered(ROWS), Some(2000.0), Some(0), 40), "rows");
    b.operator("m1", tagged(1, &loads[0]), "m1", &[0]).operator("m2", tagged(2, &loads[1]), "m2", &[1]);
    b.edge("rows", "m1", 0).edge("rows", "m2", 0);
    b.sink(out, "out").edge("m1", "out", 0).edge("m2", "out", 0);
    for stage in &mut b.program.plan.stages {
        let worker = match stage.id.as_str() {
            "m1" => "b",
            "m2" => "c",
            _ => "a",
        };
        worker.clone_into(&mut stage.worker);
    }
    let job = Job::new(b.program, collected);
    let run = job.start(&job.program, job.hosts(&job.program, 1));
    assert!(job.checkpoints(&run, 3), "it is over before a host is lost");
    let run = continued(&job, run, &without(&job.program, "m1", "m2"));
    assert!(ended(&run, 55).complete);
    drop(run);
    let parsed = lines(&job.collected).into_iter().map(|line| {
        let value: i64 = line.split_once('=').expect("a value").1.parse().expect("a number");
        (value / 10, value % 10)
    });
    let parsed: Vec<(i64, i64)> = parsed.collect();
    let records: BTreeSet<i64> = parsed.iter().map(|(record, _)| *record).collect();
    assert_eq!((records.len(), parsed.len()), (ROWS, ROWS), "each once");
    let last_of_lost = parsed.iter().rposition(|(_, model)| *model == 1).expect("it had computed some");
    assert!(last_of_lost < ROWS - ROWS / 10, "the lost model computes nothing afterwards");
    assert_eq!(loads[0].load(Ordering::Relaxed), 1, "the lost model is not loaded again");
    only_b_was_lost(&job);
}
