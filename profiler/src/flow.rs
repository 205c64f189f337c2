//! Computes a workflow operator by operator on all records at once, with any choice of models. A result for one choice
//! serves all others that agree in the models it depends on.
use crate::cache::OutputCache;
use crate::error::ProfileError;
use crate::records;
use crate::subject::{Choice, Subject};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use arrow_select::concat::concat_batches;
use std::collections::{BTreeMap, HashMap};
use tidemill_operators::api::{Inference, Instance, OperatorError, Output};
use tidemill_operators::bind::{self, BoundWorkflow, bind_workflow};
use tidemill_operators::kind::Step;
use tidemill_operators::record::{EventTime, record_schema};

/// Rows per call of a model; also the granularity of the cache.
const CHUNK: usize = 16;

/// Computes and memoises outputs.
pub struct Flow<'a> {
    subject: &'a Subject,
    bound: BoundWorkflow,
    cache: OutputCache,
    sources: BTreeMap<String, RecordBatch>,
    streams: HashMap<(String, Choice), RecordBatch>,
    models: HashMap<(String, String), Box<dyn Inference>>,
    should_end: &'a dyn Fn() -> bool,
}

impl<'a> Flow<'a> {
    /// Binds the workflow and reads up to `samples` records of each source.
    ///
    /// # Errors
    /// Errors of the workflow, its models or its sources.
    pub fn new(
        subject: &'a Subject,
        samples: usize,
        cache: OutputCache,
        should_end: &'a dyn Fn() -> bool,
    ) -> Result<Self, ProfileError> {
        let reference = subject.reference();
        let choose = |id: &str| bind::Choice { variant: reference.get(id).cloned(), backend: None };
        let bound = bind_workflow(&subject.usable(), &subject.registry, choose)?;
        let mut sources = BTreeMap::new();
        for (number, source) in (0u32..).zip(&subject.workflow.sources) {
            let records = records::read(&bound.sources[&source.id.value], number, samples)?;
            sources.insert(source.id.value.clone(), records);
        }
        Ok(Self {
            subject,
            bound,
            cache,
            sources,
            streams: HashMap::new(),
            models: HashMap::new(),
            should_end,
        })
    }

    /// The bound workflow.
    pub fn bound(&self) -> &BoundWorkflow {
        &self.bound
    }

    /// Returns the inputs of an operator or sink under a choice of models, one batch per input.
    ///
    /// # Errors
    /// An operator before it fails; [`ProfileError::Interrupted`].
    pub fn inputs(&mut self, id: &str, choice: &Choice) -> Result<Vec<RecordBatch>, ProfileError> {
        let subject = self.subject;
        subject.inputs_of(id).into_iter().map(|from| self.output(from, choice)).collect()
    }

    /// Returns the output of a source or operator under a choice of models.
    ///
    /// # Errors
    /// The operator or one before it fails; [`ProfileError::Interrupted`].
    pub fn output(&mut self, id: &str, choice: &Choice) -> Result<RecordBatch, ProfileError> {
        if let Some(records) = self.sources.get(id) {
            return Ok(records.clone());
        }
        let key = (id.to_owned(), self.subject.relevant(id, choice));
        if let Some(known) = self.streams.get(&key) {
            return Ok(known.clone());
        }
        let inputs = self.inputs(id, choice)?;
        let output = match (key.1.get(id), inputs.first()) {
            (Some(variant), Some(input)) => self.infer(id, variant, input)?,
            _ => self.compute(id, &inputs)?,
        };
        self.streams.insert(key, output.clone());
        Ok(output)
    }

    fn schema(&self, id: &str) -> SchemaRef {
        record_schema(&self.bound.operators[id].output)
    }

    fn infer(&mut self, id: &str, variant: &str, input: &RecordBatch) -> Result<RecordBatch, ProfileError> {
        let digest = self.subject.model(id, variant).map(|model| model.digest()).unwrap_or_default();
        let schema = self.schema(id);
        let mut parts = Vec::new();
        let mut first = 0;
        while first < input.num_rows() {
            if (self.should_end)() {
                return Err(ProfileError::Interrupted);
            }
            let chunk = input.slice(first, CHUNK.min(input.num_rows() - first));
            first += chunk.num_rows();
            let key = OutputCache::key(&digest, id, &chunk)?;
            if let Some(known) = self.cache.get(&key).filter(|known| known.schema() == schema) {
                parts.push(known);
                continue;
            }
            let mut output = Output::default();
            let model = self.loaded(id, variant)?;
            model.infer(&chunk, &mut output).map_err(ProfileError::operator(id))?;
            let output = joined(&schema, &output.batches).map_err(ProfileError::operator(id))?;
            self.cache.put(&key, &output)?;
            parts.push(output);
        }
        joined(&schema, &parts).map_err(ProfileError::operator(id))
    }

    fn loaded(&mut self, id: &str, variant: &str) -> Result<&mut Box<dyn Inference>, ProfileError> {
        let key = (id.to_owned(), variant.to_owned());
        if !self.models.contains_key(&key) {
            let choice = bind::Choice { variant: Some(variant.to_owned()), backend: None };
            let operator = self.bound.bind_operator(id, &choice, Step::Open)?;
            let Instance::Inference(model) = (operator.make)().map_err(ProfileError::operator(id))? else {
                return Err(ProfileError::operator(id)(OperatorError::new("it runs no model")));
            };
            self.models.insert(key.clone(), model);
        }
        Ok(self.models.get_mut(&key).expect("was put in just now"))
    }

    /// Runs an operator without models on all of its input, as one epoch at the end of the stream.
    fn compute(&mut self, id: &str, inputs: &[RecordBatch]) -> Result<RecordBatch, ProfileError> {
        let operator = &self.bound.operators[id];
        let mut of_workflow = self.subject.workflow.operators.iter();
        let has_variants = of_workflow.any(|one| one.id.value == id && !one.variants.is_empty());
        let mut output = Output::default();
        let result = match (operator.make)() {
            Ok(Instance::Stateless(mut instance)) => {
                inputs.iter().try_for_each(|input| instance.process(input, &mut output))
            }
            Ok(Instance::Stateful(mut instance)) => inputs
                .iter()
                .enumerate()
                .try_for_each(|(port, input)| instance.apply(port, &records::by_time(input), &mut output))
                .and_then(|()| instance.advance(EventTime::MAX, &mut output)),
            Ok(Instance::Inference(_)) if has_variants => {
                Err(OperatorError::new("it runs a model, none can be used here"))
            }
            // It needs batches, and no model: a step that the user wrote.
            Ok(Instance::Inference(mut instance)) => inputs.iter().try_for_each(|input| {
                let mut starts = (0..input.num_rows()).step_by(CHUNK);
                starts.try_for_each(|start| {
                    let rows = CHUNK.min(input.num_rows() - start);
                    instance.infer(&input.slice(start, rows), &mut output)
                })
            }),
            Err(error) => Err(error),
        };
        let schema = self.schema(id);
        result.and_then(|()| joined(&schema, &output.batches)).map_err(ProfileError::operator(id))
    }
}

fn joined(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<RecordBatch, OperatorError> {
    concat_batches(schema, batches).map_err(|error| OperatorError::new(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_operators::registry::Registry;
    use tidemill_spec::workflow::Workflow;

    /// A workflow of relational operators over two small files.
    fn subject(folder: &std::path::Path) -> Subject {
        std::fs::write(folder.join("a.csv"), "k,x\na,1\nb,2\nc,3\n").unwrap();
        std::fs::write(folder.join("b.csv"), "k,y\nb,5\nc,6\nd,7\n").unwrap();
        let text = "
version: 1
name: w
sources:
  - {id: left, kind: csv, options: {path: a.csv, columns: {k: text, x: int64}}}
  - {id: right, kind: csv, options: {path: b.csv, columns: {k: text, y: int64}}}
operators:
  - {id: large, kind: filter, input: left, options: {where: x > 1}}
  - {id: pair, kind: join, inputs: [large, right], options: {key: k, within: 10s}}
sinks: [{id: out, kind: jsonl, input: pair, options: {path: out.jsonl}}]
";
        let file = folder.join("workflow.yaml");
        std::fs::write(&file, text).unwrap();
        let workflow = Workflow::load(&file).unwrap_or_else(|errors| panic!("{errors}"));
        Subject { file, workflow, registry: Registry::builtin(), models: BTreeMap::new() }
    }

    #[test]
    fn operators_compute_what_the_engine_would() {
        let folder = tempfile::tempdir().unwrap();
        let subject = subject(folder.path());
        let cache = OutputCache::new(folder.path().join("cache"));
        let mut flow = Flow::new(&subject, 100, cache, &|| false).unwrap();
        let none = Choice::new();
        assert_eq!(flow.output("left", &none).unwrap().num_rows(), 3);
        assert_eq!(flow.output("large", &none).unwrap().num_rows(), 2);
        let pairs = flow.output("pair", &none).unwrap();
        assert_eq!(pairs.num_rows(), 2);
        assert_eq!(flow.inputs("out", &none).unwrap(), [pairs]);
        assert!(!folder.path().join("out.jsonl").exists());
    }

    #[test]
    fn samples_are_limited() {
        let folder = tempfile::tempdir().unwrap();
        let subject = subject(folder.path());
        let cache = OutputCache::new(folder.path().join("cache"));
        let mut flow = Flow::new(&subject, 2, cache, &|| false).unwrap();
        assert_eq!(flow.output("left", &Choice::new()).unwrap().num_rows(), 2);
    }
}
