//! Sinks of a test: they keep their rows, and operators with expected rows get one.
use super::comparison::Row;
use super::inputs::json;
use super::{TestFile, unknown};
use arrow_array::RecordBatch;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tidemill_engine::Program;
use tidemill_operators::api::{BoundSink, MakeSink, OperatorError, Sink};
use tidemill_operators::sinks::json_rows;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics, suggestion};
use tidemill_spec::plan::{PlanEdge, Stage};
use tidemill_spec::span::{Located, Span};
use tidemill_spec::types::StreamType;
use tidemill_spec::value::Node;
use tidemill_spec::workflow_test::{ExpectedFrom, WorkflowTest};

/// End of the ids of sinks of operators; no id of a workflow has a colon.
pub(super) const END: &str = ":tested";
/// Most rows that a sink keeps.
const MOST_ROWS: usize = 200_000;

/// Committed rows.
#[derive(Default)]
struct Kept {
    batches: Vec<RecordBatch>,
    rows: usize,
}

/// Keeps rows in memory.
struct Keeper {
    id: String,
    kept: Arc<Mutex<Kept>>,
    written: Vec<RecordBatch>,
}

impl Sink for Keeper {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        self.written.push(batch.clone());
        Ok(())
    }

    fn commit(&mut self, _: u64) -> Result<(), OperatorError> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.rows += self.written.iter().map(RecordBatch::num_rows).sum::<usize>();
        if kept.rows > MOST_ROWS {
            return Err(OperatorError::new(format!(
                "a test keeps at most {MOST_ROWS} rows of `{}`: give its sources fewer",
                self.id
            )));
        }
        kept.batches.append(&mut self.written);
        Ok(())
    }

    fn rollback(&mut self) -> Result<(), OperatorError> {
        self.written.clear();
        Ok(())
    }

    fn close(&mut self) -> Result<(), OperatorError> {
        self.rollback()
    }

    fn exactly_once(&self) -> bool {
        true
    }
}

/// The rows of a run.
pub(super) struct Collected(BTreeMap<String, (StreamType, Arc<Mutex<Kept>>)>);

impl Collected {
    /// Replaces the sinks of a program, and adds those of operators with expected rows.
    ///
    /// # Errors
    /// Expected rows of something that the workflow does not have.
    pub(super) fn place(program: &mut Program, test: &WorkflowTest) -> Result<Self, Diagnostics> {
        let mut all = BTreeMap::new();
        for sink in program.sinks.values_mut() {
            *sink = keeping(&sink.id, &sink.id, sink.input.clone(), &mut all);
        }
        let mut errors = Diagnostics::new();
        for (id, _) in test.expect.iter() {
            if program.sinks.contains_key(&id.value) {
                continue;
            }
            let stages: Vec<Stage> =
                program.plan.stages.iter().filter(|stage| stage.operator == id.value).cloned().collect();
            let of_operator = stages.first().and_then(|stage| program.operators.get(&stage.id));
            let stream = of_operator.map(|operator| &operator.output);
            let stream = stream.or_else(|| program.sources.get(&id.value).map(|source| &source.output));
            let Some(stream) = stream.cloned() else {
                let names = program.plan.stages.iter().map(|stage| stage.operator.as_str());
                errors.push(unknown(id, names, "sources, operators and sinks"));
                continue;
            };
            let name = format!("{id}{END}");
            program.sinks.insert(name.clone(), keeping(&name, &id.value, stream, &mut all));
            let plan = &mut program.plan;
            plan.edges.extend(stages.iter().map(|stage| PlanEdge::new(&stage.id, &name, 0)));
            plan.classes.iter_mut().for_each(|class| drop(class.route.insert(name.clone(), name.clone())));
            plan.stages.extend(stages.first().map(|first| Stage::new(&name, &name, &first.worker)));
        }
        errors.into_result(Self(all))
    }

    /// The expected rows.
    ///
    /// # Errors
    /// A file that cannot be read, or a column that does not exist.
    #[expect(clippy::type_complexity, reason = "names and rows")]
    pub(super) fn expected<'a>(
        &self,
        file: &TestFile,
        test: &'a WorkflowTest,
    ) -> Result<Vec<(&'a Located<String>, Vec<Row>)>, Diagnostics> {
        let mut errors = Diagnostics::new();
        let mut all = Vec::new();
        for (id, expected) in test.expect.iter() {
            let Some((stream, _)) = self.0.get(&id.value) else { continue };
            let rows = match &expected.from {
                ExpectedFrom::Rows(rows) => {
                    let nodes = rows.iter().filter_map(|row| match &row.node {
                        Node::Map(entries) => Some(entries),
                        _ => None,
                    });
                    nodes
                        .map(|entries| {
                            let cells = entries.iter().map(|entry| {
                                check_column(id, &entry.key.value, &entry.key.span, stream, &mut errors);
                                (entry.key.value.clone(), json(&entry.value))
                            });
                            cells.collect()
                        })
                        .collect()
                }
                ExpectedFrom::File(named) => match rows_of(file, named) {
                    Ok(rows) => {
                        let mut names: Vec<&String> = rows.iter().flat_map(Row::keys).collect();
                        names.sort_unstable();
                        names.dedup();
                        names
                            .iter()
                            .for_each(|name| check_column(id, name, &named.span, stream, &mut errors));
                        rows
                    }
                    Err(error) => {
                        errors.push(*error);
                        Vec::new()
                    }
                },
                ExpectedFrom::Unclear => Vec::new(),
            };
            for (column, _) in expected.columns.iter() {
                check_column(id, &column.value, &column.span, stream, &mut errors);
            }
            all.push((id, rows));
        }
        errors.into_result(all)
    }

    /// The rows of a sink or operator after the run; retracted ones are left out.
    ///
    /// # Errors
    /// A value that is no JSON.
    pub(super) fn rows(&self, id: &str) -> Result<Vec<Row>, OperatorError> {
        let Some((stream, kept)) = self.0.get(id) else { return Ok(Vec::new()) };
        let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rows: Vec<Row> = Vec::new();
        for batch in &kept.batches {
            rows.extend(json_rows(stream, batch)?);
        }
        if stream.revised {
            return Ok(settled(rows));
        }
        Ok(rows)
    }
}

/// Leaves out retracted rows and their retractions.
fn settled(rows: Vec<Row>) -> Vec<Row> {
    let mut taken_back: BTreeMap<String, u64> = BTreeMap::new();
    let content = |row: &Row| {
        let cells = row.iter().filter(|(name, _)| !name.starts_with('_'));
        let cells: Row = cells.map(|(name, value)| (name.clone(), value.clone())).collect();
        Json::Object(cells).to_string()
    };
    let mut settled = Vec::new();
    // From the end, so that a row is taken back by a later retraction.
    for mut row in rows.into_iter().rev() {
        let left = taken_back.entry(content(&row)).or_default();
        match row.remove("_change") {
            Some(change) if change == -1 => *left += 1,
            _ if *left > 0 => *left -= 1,
            _ => settled.push(row),
        }
    }
    settled.reverse();
    settled
}

fn keeping(
    id: &str,
    of: &str,
    stream: StreamType,
    all: &mut BTreeMap<String, (StreamType, Arc<Mutex<Kept>>)>,
) -> BoundSink {
    let kept = Arc::new(Mutex::new(Kept::default()));
    all.insert(of.to_owned(), (stream.clone(), Arc::clone(&kept)));
    let name = of.to_owned();
    let make: MakeSink = Arc::new(move || {
        let (id, kept) = (name.clone(), Arc::clone(&kept));
        Ok(Box::new(Keeper { id, kept, written: Vec::new() }) as Box<dyn Sink>)
    });
    BoundSink {
        id: id.to_owned(),
        kind: "test".to_owned(),
        input: stream,
        ground_truth: None,
        files: Vec::new(),
        is_standard_output: false,
        answers: None,
        repeats: false,
        make,
        durable: None,
    }
}

fn check_column(
    id: &Located<String>,
    name: &str,
    place: &Span,
    stream: &StreamType,
    errors: &mut Diagnostics,
) {
    if name == "_time" || stream.column(name).is_some() {
        return;
    }
    let names = stream.columns.iter().map(|column| column.name.as_str());
    errors.push(
        Diagnostic::error("E0752", format!("rows of `{id}` have no column `{name}`"))
            .at(place.clone())
            .with_label(format!("it sends {stream}"))
            .with_help(suggestion(name, names, &format!("columns of `{id}`"))),
    );
}

/// Reads the expected rows of a file.
fn rows_of(file: &TestFile, named: &Located<String>) -> Result<Vec<Row>, Box<Diagnostic>> {
    let path = file.resolve(&named.value);
    let wrong = |text: String, help: &str| {
        Box::new(Diagnostic::error("E0752", text).at(named.span.clone()).with_help(help))
    };
    let text = std::fs::read_to_string(&path).map_err(|error| {
        wrong(
            format!("cannot read `{}`: {error}", path.display()),
            "check the path; `tidemill test --update` fills an existing file",
        )
    })?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let rows = lines.map(|(number, line)| {
        serde_json::from_str(line).map_err(|error| {
            wrong(
                format!("`{}`, line {}: not a JSON object: {error}", path.display(), number + 1),
                "write one object per line, as sink `jsonl` does",
            )
        })
    });
    rows.collect()
}
