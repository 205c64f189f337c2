//! Definition of the parts of a run in the manifest of its state, from which later changes of a workflow or plan are found,
//! field by field.
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use tidemill_engine::Program;
use tidemill_operators::api::Computation;
use tidemill_spec::plan::Plan;
use tidemill_spec::types::StreamType;
use tidemill_spec::workflow::{Input, Workflow};

/// Role of a workflow's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A source of records.
    Source,
    /// An operator.
    Operator,
    /// A sink of results.
    Sink,
    /// The run as a whole.
    Run,
}

impl Role {
    /// Returns its name.
    pub fn text(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Operator => "operator",
            Self::Sink => "sink",
            Self::Run => "run",
        }
    }
}

/// A source, operator or sink.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) role: Role,
    /// Its text in the workflow.
    pub(crate) written: Value,
    /// Columns with their types: the output of a source, else the inputs, one by one.
    pub(crate) columns: Vec<Vec<String>>,
    /// Of a source: records per second of this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rate: Option<f64>,
    /// Of a source: whether its records have event times of their own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) has_event_times: bool,
    /// Of an operator: whether it keeps state between epochs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) keeps: bool,
}

/// The definition of a run's state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Definition {
    /// By id.
    pub(crate) parts: BTreeMap<String, Part>,
    pub(crate) plan: Plan,
    /// The file for dead letters, as named in the workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) dead_letters: Option<String>,
    /// Sources that are read together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) read_together: Vec<Vec<String>>,
}

fn columns(of: &StreamType) -> Vec<String> {
    of.columns.iter().map(|column| format!("{}: {}", column.name, column.column_type)).collect()
}

fn written(of: &impl Serialize) -> Value {
    serde_json::to_value(of).expect("parts of workflows are JSON")
}

/// Serialises it without the policy for cut inputs, which changes no row.
fn written_with_inputs(of: &impl Serialize) -> Value {
    let mut written = written(of);
    let single = |input: &mut Value| {
        if let Some(map) = input.as_object_mut() {
            map.remove("when_cut");
            if map.len() == 1
                && let Some(from) = map.remove("from")
            {
                *input = from;
            }
        }
    };
    if let Some(inputs) = written.get_mut("inputs").and_then(Value::as_array_mut) {
        inputs.iter_mut().for_each(single);
    }
    written.get_mut("input").into_iter().for_each(single);
    written
}

/// Output type of a source or operator.
fn output<'a>(program: &'a Program, id: &str) -> Option<&'a StreamType> {
    let source = program.sources.get(id).map(|source| &source.output);
    source.or_else(|| program.operators.values().find(|bound| bound.id == id).map(|bound| &bound.output))
}

fn came(program: &Program, inputs: &[&Input]) -> Vec<Vec<String>> {
    let of = |input: &&Input| output(program, &input.from.value).map(columns).unwrap_or_default();
    inputs.iter().map(of).collect()
}

impl Definition {
    /// Returns the definition of a run.
    pub(crate) fn of(workflow: &Workflow, program: &Program) -> Self {
        let mut parts = BTreeMap::new();
        for source in &workflow.sources {
            let bound = program.sources.get(&source.id.value);
            let part = Part {
                role: Role::Source,
                written: written(source),
                columns: bound.iter().map(|bound| columns(&bound.output)).collect(),
                rate: bound.and_then(|bound| bound.rate_per_second),
                has_event_times: bound.is_some_and(|bound| bound.has_event_times),
                keeps: true,
            };
            parts.insert(source.id.value.clone(), part);
        }
        for operator in &workflow.operators {
            let id = &operator.id.value;
            let bound = program.operators.values().find(|bound| bound.id == *id);
            let part = Part {
                role: Role::Operator,
                written: written_with_inputs(operator),
                columns: came(program, &operator.inputs.iter().collect::<Vec<_>>()),
                rate: None,
                has_event_times: false,
                keeps: bound.is_some_and(|bound| bound.computation == Computation::Stateful),
            };
            parts.insert(id.clone(), part);
        }
        for sink in &workflow.sinks {
            let part = Part {
                role: Role::Sink,
                written: written_with_inputs(sink),
                columns: came(program, &[&sink.input]),
                rate: None,
                has_event_times: false,
                keeps: false,
            };
            parts.insert(sink.id.value.clone(), part);
        }
        Self {
            parts,
            // Policies say nothing about the state.
            plan: Plan {
                policies: Vec::new(),
                predicted: None,
                profiles: Vec::new(),
                ..program.plan.clone()
            },
            dead_letters: workflow.run.dead_letters.as_ref().map(|path| path.value.clone()),
            read_together: program.read_together(),
        }
    }

    /// Parses it from a manifest; `None` for one of an older version.
    pub(crate) fn read(value: &Value) -> Option<Self> {
        Self::deserialize(value).ok()
    }

    pub(crate) fn value(&self) -> Value {
        written(self)
    }

    /// Ids of one kind of part.
    pub(crate) fn of_role(&self, role: Role) -> impl Iterator<Item = &str> {
        self.parts.iter().filter(move |(_, part)| part.role == role).map(|(id, _)| id.as_str())
    }
}
