//! Before an emulated run, with the first records of the sources: models are warmed up, because the first calls of a
//! model take longer and workers of a plan run for long; and times on this machine that no profile has are measured, in
//! processor time, so that other programs do not make them longer.
use super::speeds::{StageSpeed, Times};
use super::warm_up::{self, WarmUps};
use crate::failure::{Failure, Kind};
use crate::listener::Listener;
use arrow_array::RecordBatch;
use arrow_select::concat::concat_batches;
use std::collections::BTreeMap;
use std::time::Duration;
use tidemill_engine::Program;
use tidemill_operators::api::{Inference, Instance, OperatorError, Output};
use tidemill_operators::record::{EventTime, record_schema};
use tidemill_profiler::records;

/// Records of each source.
const RECORDS: usize = 16;
/// Calls of one size that count.
const CALLS: usize = 9;

/// Warms up the models of all stages, which the run then takes, and measures those that need it. Where they run in other processes
/// (`elsewhere`), returns the inputs with which those warm theirs up.
///
/// # Errors
/// Of stages that need it: sources without records; errors of operators. A model that only cannot be warmed up is reported, and runs cold.
pub(super) fn complete(
    speeds: &mut [StageSpeed],
    program: &mut Program,
    elsewhere: bool,
    listener: &dyn Listener,
) -> Result<WarmUps, Failure> {
    let unknown = speeds.iter().filter(|speed| speed.here.is_none());
    let names: Vec<&str> = unknown.map(|speed| speed.stage.as_str()).collect();
    if !names.is_empty() {
        let names = names.join(", ");
        listener.note(&format!("measuring {names}, because the profile has no figures for this machine"));
    }
    // Records of a live source cannot be read again.
    let live = program.sources.values().any(|source| source.live);
    let mut warm: Vec<(String, Box<dyn Inference>)> = Vec::new();
    let mut warm_ups = WarmUps::new();
    let mut flow = Flow { program, outputs: BTreeMap::new() };
    for speed in speeds.iter_mut().filter(|speed| !live || speed.here.is_none()) {
        let input = flow.first_input(&speed.stage);
        if elsewhere && speed.here.is_some() {
            match input.and_then(|input| warm_up::as_text(&input)) {
                Ok(text) => drop(warm_ups.insert(speed.stage.clone(), text)),
                Err(error) => listener.note(&format!("{} runs cold: {error}", speed.stage)),
            }
            continue;
        }
        match input.and_then(|input| Ok((prepare(&flow, speed, &input)?, input))) {
            Ok((_, input)) if elsewhere => {
                if let Ok(text) = warm_up::as_text(&input) {
                    warm_ups.insert(speed.stage.clone(), text);
                }
            }
            Ok((model, _)) => warm.push((speed.stage.clone(), model)),
            Err(error) if speed.here.is_some() => {
                listener.note(&format!("{} runs cold: {error}", speed.stage));
            }
            Err(error) => {
                let message = format!("cannot measure `{}` on this machine: {error}", speed.stage);
                return Err(Failure::new(Kind::Unavailable, message).with_help(
                    "give a profile with its times on this machine too (`tidemill profile` creates one)",
                ));
            }
        }
    }
    for (stage, model) in warm {
        if let Some(bound) = program.operators.get_mut(&stage) {
            bound.give_first(model);
        }
    }
    Ok(warm_ups)
}

/// A model that has computed calls of every size, and its times where they are not known.
fn prepare(
    flow: &Flow<'_>,
    speed: &mut StageSpeed,
    input: &RecordBatch,
) -> Result<Box<dyn Inference>, OperatorError> {
    let mut model = flow.model(&speed.stage)?;
    let most = speed.max_batch.max(1);
    warm_up::warm(&mut *model, input, most)?;
    if speed.here.is_none() {
        speed.here = Some(measure(&mut *model, input, most)?);
    }
    Ok(model)
}

/// Medians of calls of one record and of full ones.
fn measure(model: &mut dyn Inference, input: &RecordBatch, most: u32) -> Result<Times, OperatorError> {
    let mut sizes = vec![1, most];
    sizes.dedup();
    let mut times = Vec::new();
    for records in sizes {
        let size = records as usize;
        let calls = (0..CALLS).map(|call| once(model, &records::window(input, call * size, size)));
        let mut calls = calls.collect::<Result<Vec<_>, _>>()?;
        calls.sort_unstable();
        times.push((records, calls[CALLS / 2].as_secs_f64()));
    }
    Times::new(times).ok_or_else(|| OperatorError::new("its calls take no time"))
}

/// Processor time of a call.
fn once(model: &mut dyn Inference, batch: &RecordBatch) -> Result<Duration, OperatorError> {
    let (before, elsewhere) = (tidemill_machine::thread_time(), model.processor_time_elsewhere());
    model.infer(batch, &mut Output::default())?;
    Ok(tidemill_machine::thread_time().saturating_sub(before)
        + model.processor_time_elsewhere().saturating_sub(elsewhere))
}

/// A plan computed stage by stage on the first records.
struct Flow<'a> {
    program: &'a Program,
    /// By operator: what one of its stages gives for all records.
    outputs: BTreeMap<String, RecordBatch>,
}

impl Flow<'_> {
    /// Returns the input of a stage's model.
    fn first_input(&mut self, stage: &str) -> Result<RecordBatch, OperatorError> {
        let input = self.inputs(stage)?.into_iter().next();
        let input = input.filter(|input| input.num_rows() > 0);
        input.ok_or_else(|| OperatorError::new("no records reach it"))
    }

    /// Returns the input of a stage's operator, one batch an input.
    fn inputs(&mut self, stage: &str) -> Result<Vec<RecordBatch>, OperatorError> {
        let program = self.program;
        let mut inputs: BTreeMap<u32, &str> = BTreeMap::new();
        for edge in program.plan.edges.iter().filter(|edge| edge.to == stage) {
            inputs.entry(edge.input).or_insert(&edge.from);
        }
        inputs.values().map(|from| self.output(from)).collect()
    }

    fn output(&mut self, stage: &str) -> Result<RecordBatch, OperatorError> {
        let program = self.program;
        let operator = program.plan.stages.iter().find(|known| known.id == stage);
        let operator = operator.map(|known| known.operator.clone()).unwrap_or_default();
        if let Some(known) = self.outputs.get(&operator) {
            return Ok(known.clone());
        }
        let output = match program.sources.get(&operator) {
            Some(source) => {
                let number = program.sources.keys().position(|id| *id == operator).unwrap_or(0) as u32;
                records::read(source, number, RECORDS)
                    .map_err(|error| OperatorError::new(error.to_string()))?
            }
            None => self.compute(stage)?,
        };
        self.outputs.insert(operator, output.clone());
        Ok(output)
    }

    fn compute(&mut self, stage: &str) -> Result<RecordBatch, OperatorError> {
        let inputs = self.inputs(stage)?;
        let bound = &self.program.operators[stage];
        let mut output = Output::default();
        match (bound.make)()? {
            Instance::Stateless(mut operator) => {
                inputs.iter().try_for_each(|input| operator.process(input, &mut output))?;
            }
            Instance::Inference(mut model) => {
                inputs.iter().try_for_each(|input| model.infer(input, &mut output))?;
            }
            Instance::Stateful(mut operator) => {
                for (port, input) in inputs.iter().enumerate() {
                    operator.apply(port, &records::by_time(input), &mut output)?;
                }
                operator.advance(EventTime::MAX, &mut output)?;
            }
        }
        concat_batches(&record_schema(&bound.output), &output.batches)
            .map_err(|error| OperatorError::new(error.to_string()))
    }

    fn model(&self, stage: &str) -> Result<Box<dyn Inference>, OperatorError> {
        match (self.program.operators[stage].make)()? {
            Instance::Inference(model) => Ok(model),
            _ => Err(OperatorError::new("it runs no model")),
        }
    }
}
