//! A kind that a program adds with one call is known wherever workflows are judged, and planned by the facts that it states.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use tidemill_app::listener::Silent;
use tidemill_app::planned::Planned;
use tidemill_app::planning::{Case, PlanningOptions, SolverName};
use tidemill_app::preparation::{PlanFrom, kinds, prepare_here, registry};
use tidemill_engine::{Run, RunOptions};
use tidemill_operators::api::{Instance, MakeInstance, OperatorError, Output, Spread, Stateless};
use tidemill_operators::kind::{InputPort, OperatorContext, TypedOperatorKind};
use tidemill_operators::record::{METADATA_COLUMNS, derive_metadata, operator_number};
use tidemill_operators::registry::register_operator;
use tidemill_optimizer::assemble::Options as Wishes;
use tidemill_optimizer::planner::Planner;
use tidemill_optimizer::planners::exact::Exact;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::span::Located;
use tidemill_spec::types::StreamType;
use tidemill_spec::units::TimeSpan;

/// A kind that wants to see all records in one place, and gives them as they are.
struct Meet;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Options {}

impl TypedOperatorKind for Meet {
    type Options = Options;
    const KIND: &'static str = "meet";
    const SUMMARY: &'static str = "Sees all records in one place.";

    fn spread(_: &Options) -> Spread {
        Spread::One
    }

    fn bind_typed(
        &self,
        context: &OperatorContext<'_>,
        inputs: &[InputPort],
        _: Located<Options>,
    ) -> Result<(StreamType, MakeInstance), Diagnostics> {
        let operator = operator_number(context.id);
        let output = inputs[0].stream.clone();
        Ok((output, Arc::new(move || Ok(Instance::Stateless(Box::new(Same(operator)))))))
    }
}

struct Same(u64);

impl Stateless for Same {
    fn process(
        &mut self,
        batch: &arrow_array::RecordBatch,
        output: &mut Output,
    ) -> Result<(), OperatorError> {
        let mut columns = derive_metadata(batch, self.0);
        columns.extend(batch.columns()[METADATA_COLUMNS..].iter().cloned());
        let same = arrow_array::RecordBatch::try_new(batch.schema(), columns);
        output.push(same.map_err(|error| OperatorError::new(error.to_string()))?);
        Ok(())
    }
}

const WORKFLOW: &str = "
version: 1
name: added
sources: [{id: a, kind: csv, key: n, options: {path: a.csv, columns: {n: int64}}}]
operators: [{id: all, kind: meet, input: a}]
sinks: [{id: out, kind: jsonl, input: all, options: {path: out.jsonl}}]
slo: {rate: 100/s}
run: {tick: 10ms}
";

/// Two little machines together would be the cheapest.
const MACHINES: &str = "
version: 1
name: hall
tiers:
  - id: hall
    workers: [{type: little, count: 3, price: 0.02 $/h}, {type: big, count: 1, price: 0.5 $/h}]
";

const FIGURES: &str = "
version: 1
workflow: {name: added}
machines: [{worker_type: little, how: measured}, {worker_type: big, how: measured}]
services:
  - {operator: all, worker_type: little, how: measured, batches: [{batch: 1, p75: 12ms}]}
  - {operator: all, worker_type: big, how: measured, batches: [{batch: 1, p75: 2ms}]}
messages: [{from: a, to: all, bytes_per_record: 20B}]
";

#[test]
fn a_kind_that_is_added_is_planned_by_its_facts() {
    register_operator(Meet);
    assert!(registry().kinds().iter().any(|kind| kind.kind == Meet::KIND), "lists of kinds have it");
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let workflow = write("workflow.yaml", WORKFLOW);
    let options = PlanningOptions {
        infrastructure: Some(write("infrastructure.yaml", MACHINES)),
        profiles: vec![write("profile.yaml", FIGURES)],
        problem: Wishes::default(),
        gap: 1e-3,
        time_limit: TimeSpan(10_000_000_000),
        keep_idle: false,
        solver: SolverName::Microlp,
    };
    write("a.csv", "n\n1\n2\n3\n");
    let case = Case::load(&workflow, &options, &Silent).unwrap();
    assert_eq!(kinds().spread(&case.workflow.operators[0]), Spread::One);
    let assembly = case.assemble().unwrap();
    let solution = Exact.plan(&assembly.problem, &case.limits).unwrap().solution.expect("there is a plan");
    let plan = Planned::new(&case, &assembly, &solution).unwrap().plan;
    let stages: Vec<&str> = plan
        .stages
        .iter()
        .filter(|stage| stage.operator == "all")
        .map(|stage| stage.worker.as_str())
        .collect();
    assert!(stages.len() == 1 && stages[0].contains("big"), "one machine has to do all of it: {stages:?}");
    let plan = write("plan.yaml", &plan.to_yaml().unwrap());
    let plan = PlanFrom::file_or(Some(&plan), PlanFrom::Settings(&[]));
    let prepared = prepare_here(&workflow, plan, &Silent).unwrap();
    let run = Run::start(prepared.program, RunOptions::default()).unwrap();
    run.wait().unwrap();
    assert_eq!(std::fs::read_to_string(folder.path().join("out.jsonl")).unwrap().lines().count(), 3);
}
