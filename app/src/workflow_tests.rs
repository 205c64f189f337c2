//! Tests of workflows: run them in this process with other inputs, and compare the rows that come out with the expected ones.
//!
//! | step | module |
//! |---|---|
//! | the inputs and options of the test take the place of the workflow's | `inputs` |
//! | the sinks only keep their rows, and operators with expected rows get a sink | `collecting` |
//! | the rows are compared | [`comparison`] |
//! | the found rows are written into the file as the expected ones | [`update`] |
//!
//! A test runs as `tidemill run` does without a plan, with a clock that is 10,000 times faster, so that sources with a rate take no
//! time. It writes no results, no dead letters and no state.
mod collecting;
pub mod comparison;
mod inputs;
pub mod update;

use crate::choice::Setting;
use crate::engine_failure::{failed, not_started};
use crate::listener::Silent;
use crate::preparation::{PlanFrom, Prepared, Scope, load, prepare};
use crate::run_options::run_options;
use collecting::Collected;
use comparison::{Row, RowsMismatch, compare};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_engine::clock::DilatedClock;
use tidemill_engine::{Run, RunError, RunReport, Stopper};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics, suggestion};
use tidemill_spec::span::Located;
use tidemill_spec::variables;
use tidemill_spec::workflow_test::{Counts, Named, WorkflowTest, WorkflowTests};

/// Factor of the clock: real seconds per second of the run.
const CLOCK: f64 = 1e-4;

/// A file with tests.
pub struct TestFile {
    /// Its path.
    pub path: PathBuf,
    /// Its tests.
    pub tests: WorkflowTests,
}

impl TestFile {
    /// Reads it.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn load(path: &Path) -> Result<Self, Diagnostics> {
        Ok(Self { path: path.to_owned(), tests: WorkflowTests::load(path)? })
    }

    /// Resolves a path in it.
    fn resolve(&self, path: &str) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }
}

/// Result of a test.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Differences from the expected; empty if the test passes.
    pub failures: Vec<Mismatch>,
    /// Number of rows that were compared.
    pub rows: usize,
    /// The rows of each sink or operator with expected ones, with the compared columns; all columns where none are named.
    #[serde(skip)]
    pub found: BTreeMap<String, Vec<Row>>,
}

/// Something that is not as expected.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Mismatch {
    /// The rows of a sink or operator.
    Rows(RowsMismatch),
    /// The number of dead letters of a source or operator for a reason.
    DeadLetters(CountMismatch),
    /// The number of drops of an operator for a reason.
    Drops(CountMismatch),
    /// The run failed.
    Run {
        /// The error.
        message: String,
    },
}

/// A number of records that is not the expected one.
#[derive(Debug, Serialize)]
pub struct CountMismatch {
    /// Id of the source or operator.
    pub id: String,
    /// The reason.
    pub reason: String,
    /// Expected number.
    pub expected: u64,
    /// Found number.
    pub found: u64,
    /// Details of the first ones.
    pub details: Vec<String>,
}

/// Runs one test. `started` gets a handle to end the run early.
///
/// # Errors
/// The workflow or the test is wrong. A run that fails is a failure of the test.
pub fn run(file: &TestFile, test: &WorkflowTest, started: &dyn Fn(Stopper)) -> anyhow::Result<Outcome> {
    let folder = tempfile::Builder::new().prefix("tidemill-test-").tempdir()?;
    let path = file.resolve(&file.tests.workflow.value);
    let loaded = load(&path, &variables::environment, Scope::Test, &Silent);
    let mut workflow = loaded.map_err(|found| at_workflow(found, &file.tests.workflow))?;
    inputs::replace(&mut workflow, file, test, folder.path())?;
    let models: Vec<Setting> = test
        .models
        .iter()
        .map(|(operator, variant)| Setting {
            operator: operator.value.clone(),
            variant: variant.value.clone(),
        })
        .collect();
    let mut prepared = prepare(workflow, PlanFrom::Settings(&models), Scope::Test, &Silent)?;
    inputs::check_ends(&prepared.program, test)?;
    let collected = Collected::place(&mut prepared.program, test)?;
    let expected = collected.expected(file, test)?;
    check_counts(&prepared, test)?;
    let report = match execute(&prepared, started) {
        Ok(report) => report,
        Err(failure) => {
            let failures = vec![Mismatch::Run { message: failure }];
            return Ok(Outcome { failures, rows: 0, found: BTreeMap::new() });
        }
    };
    let mut outcome = Outcome { failures: Vec::new(), rows: 0, found: BTreeMap::new() };
    for (id, expected) in expected {
        let found = collected.rows(id.as_str())?;
        let settings = test.expect.get(&id.value);
        let tolerance = |column: &str| {
            settings.map_or(file.tests.tolerance, |of| of.tolerance(column, file.tests.tolerance))
        };
        let is_ordered = settings.is_some_and(|of| of.ordered);
        let compared = compare(&id.value, expected, found, is_ordered, &tolerance);
        outcome.rows += compared.found.len();
        outcome.failures.extend(compared.mismatch.map(Mismatch::Rows));
        outcome.found.insert(id.value.clone(), compared.found);
    }
    compare_counts(&report, test, &mut outcome.failures);
    Ok(outcome)
}

/// An unreadable workflow is reported where the test names it.
fn at_workflow(found: Diagnostics, named: &Located<String>) -> Diagnostics {
    let place = |finding: Diagnostic| match finding.span.source() {
        Some(_) => finding,
        None => finding.at(named.span.clone()),
    };
    found.into_iter().map(place).collect()
}

/// Runs the workflow to its end; an error is a text.
fn execute(prepared: &Prepared, started: &dyn Fn(Stopper)) -> Result<RunReport, String> {
    let mut options = run_options(prepared, None, None).map_err(|error| error.to_string())?;
    options.clock = Arc::new(DilatedClock::new(CLOCK));
    options.model_copies = 1;
    let run = Run::start(prepared.program.clone(), options)
        .map_err(|error| not_started(&error, &prepared.workflow).to_string())?;
    started(run.stopper());
    let text = |error: RunError| failed(&error, &prepared.workflow).to_string();
    let report = run.wait().map_err(text)?;
    if report.complete { Ok(report) } else { Err("the run was interrupted".to_owned()) }
}

/// Checks that the operators of expected counts exist.
fn check_counts(prepared: &Prepared, test: &WorkflowTest) -> Result<(), Diagnostics> {
    let names: Vec<&str> = prepared.program.plan.stages.iter().map(|stage| stage.operator.as_str()).collect();
    let mut errors = Diagnostics::new();
    for (id, _) in test.dead_letters.iter().chain(test.drops.iter()) {
        if !names.contains(&id.as_str()) {
            errors.push(unknown(id, names.iter().copied(), "sources, operators and sinks"));
        }
    }
    errors.into_result(())
}

/// The finding for an id that the workflow does not have.
fn unknown<'a>(id: &Located<String>, names: impl Iterator<Item = &'a str>, what: &str) -> Diagnostic {
    let names: Vec<&str> = names.filter(|name| !name.ends_with(collecting::END)).collect();
    Diagnostic::error("E0752", format!("the workflow has no `{id}`"))
        .at(id.span.clone())
        .with_help(suggestion(id, names, what))
}

/// Numbers of records by operator and reason.
type ByReason<'a> = BTreeMap<(&'a str, &'a str), u64>;

fn expected_counts(counts: &Named<Counts>) -> ByReason<'_> {
    let each = counts.iter().flat_map(|(id, reasons)| {
        reasons.iter().map(move |(reason, count)| ((id.as_str(), reason.as_str()), *count))
    });
    each.collect()
}

/// Compares dead letters and drops.
fn compare_counts(report: &RunReport, test: &WorkflowTest, failures: &mut Vec<Mismatch>) {
    let (mut letters, mut drops) = (ByReason::new(), ByReason::new());
    for stage in &report.stages {
        for (reason, count) in &stage.dead_letters {
            *letters.entry((&stage.operator, reason)).or_default() += count;
        }
        for (reason, count) in &stage.drops {
            *drops.entry((&stage.operator, reason)).or_default() += count;
        }
    }
    let details = |id: &str, reason: &str| {
        let of_it = report.dead_letter_samples.iter();
        let of_it = of_it.filter(|letter| letter.operator == id && letter.reason == reason);
        of_it.take(3).map(|letter| letter.detail.clone()).collect::<Vec<_>>()
    };
    for ((id, reason), expected, found) in differences(expected_counts(&test.dead_letters), letters) {
        let details = details(&id, &reason);
        let mismatch = CountMismatch { id, reason, expected, found, details };
        failures.push(Mismatch::DeadLetters(mismatch));
    }
    drops.retain(|(id, _), _| test.drops.get(id).is_some());
    for ((id, reason), expected, found) in differences(expected_counts(&test.drops), drops) {
        failures.push(Mismatch::Drops(CountMismatch { id, reason, expected, found, details: Vec::new() }));
    }
}

/// The counts that are not equal.
fn differences(expected: ByReason<'_>, found: ByReason<'_>) -> Vec<((String, String), u64, u64)> {
    let keys: BTreeSet<_> = expected.keys().chain(found.keys()).collect();
    let count = |of: &ByReason<'_>, key: &(&str, &str)| of.get(key).copied().unwrap_or(0);
    let differing = keys.into_iter().filter(|key| count(&expected, key) != count(&found, key));
    let owned = differing
        .map(|key| ((key.0.to_owned(), key.1.to_owned()), count(&expected, key), count(&found, key)));
    owned.collect()
}
