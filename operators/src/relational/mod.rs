//! Operators on columns: `filter`, `map`, `join`, `lookup`, `window`, `late`, `distinct`, `stack`.
mod aggregate;
mod columnar;
mod common_mistakes;
pub mod distinct;
mod distinct_state;
pub mod exact_sum;
pub mod expression;
pub mod filter;
mod float_order;
pub mod join;
mod join_side;
mod join_state;
mod keys;
pub mod late;
pub mod lookup;
mod lookup_state;
mod lookup_table;
mod lookup_watch;
pub mod map;
mod panes;
mod session_state;
pub(crate) mod snapshot;
pub mod stack;
mod stack_state;
mod tensors;
mod text_length;
mod typing;
mod widening;
pub mod window;
mod window_pane;
mod window_rows;
mod window_state;

use crate::api::DeadLetter;
use crate::kind::InputPort;
use arrow_array::RecordBatch;
use expression::{ExpressionError, Mistake};
use tidemill_spec::diagnostic::Diagnostic;
use tidemill_spec::span::Span;

/// The dead letter of one row.
fn dead_row(batch: &RecordBatch, row: usize, reason: &'static str, detail: String) -> DeadLetter {
    DeadLetter::of_row(batch, row, reason, detail)
}

/// An expression's error at its place in the workflow.
fn expression_diagnostic(
    error: ExpressionError,
    operator: &str,
    port: &InputPort,
    span: &Span,
) -> Diagnostic {
    let code = match error.mistake {
        Mistake::UnknownColumn => "E0605",
        Mistake::Malformed => "E0607",
    };
    let diagnostic = Diagnostic::error(code, format!("`{operator}`: {}", error.message))
        .at(span.clone())
        .with_label(format!("`{}` sends {}", port.from, port.stream));
    match error.help {
        Some(help) => diagnostic.with_help(help),
        None => diagnostic,
    }
}

#[cfg(test)]
pub(crate) mod test {
    use crate::api::{BoundOperator, Instance, Output, StateKeys, Stateful, WriteSnapshot};
    use crate::kind::{InputPort, OperatorContext, OperatorKind};
    use crate::testing::{Record, id, options, records};
    use arrow_array::{BooleanArray, RecordBatch};
    use std::path::Path;
    use tidemill_random::Random;
    use tidemill_spec::diagnostic::Diagnostics;
    use tidemill_spec::span::Span;
    use tidemill_spec::types::StreamType;

    /// Binds an operator `op` whose inputs come from `input0`, `input1`.
    pub(crate) fn bind(
        kind: &dyn OperatorKind,
        inputs: &[StreamType],
        yaml: &str,
    ) -> Result<BoundOperator, Diagnostics> {
        let ports: Vec<InputPort> = inputs
            .iter()
            .enumerate()
            .map(|(i, stream)| InputPort {
                from: format!("input{i}"),
                stream: stream.clone(),
                span: Span::nowhere(),
            })
            .collect();
        let id = id("op");
        let context = OperatorContext::new(&id, Path::new("."));
        kind.bind(&context, &ports, &options(yaml))
    }

    /// Records cut into epochs, each with a watermark that no later record precedes.
    pub(crate) struct Feed {
        pub(crate) epochs: Vec<(Vec<(usize, Record)>, i64)>,
    }

    /// Shuffles records within an out-of-order bound (microseconds) and cuts them into random epochs.
    pub(crate) fn feed(rows: &[(usize, Record)], bound: i64, random: u64) -> Feed {
        let mut random = Random::of_seed(random);
        let mut arrival: Vec<(i64, usize, (usize, Record))> = rows
            .iter()
            .map(|row| {
                let delay = random.below(bound as usize + 1) as i64;
                (row.1.time + delay, random.below(1 << 30), row.clone())
            })
            .collect();
        arrival.sort_by_key(|(due, tie, _)| (*due, *tie));
        let mut rest: Vec<(usize, Record)> = arrival.into_iter().map(|(.., row)| row).collect();
        let mut epochs = Vec::new();
        while !rest.is_empty() {
            let count = random.below(9).min(rest.len());
            let epoch: Vec<_> = rest.drain(..count).collect();
            let highest = rest.iter().map(|(_, row)| row.time).min().unwrap_or(i64::MAX);
            // Legal watermarks are at most the earliest time still to come; often lower in practice.
            let watermark =
                if random.below(3) == 0 { highest.saturating_sub(random.below(50) as i64) } else { highest };
            epochs.push((epoch, watermark));
        }
        epochs.push((Vec::new(), i64::MAX));
        Feed { epochs }
    }

    /// Splits a state between two stages.
    fn divided(snapshot: &[u8], make: impl Fn() -> Box<dyn Stateful>) -> [Vec<u8>; 2] {
        [0, 1].map(|half| {
            let mut part = make();
            let rows = |keys: &StateKeys<'_>| {
                (0..keys.classes.len()).map(|row| Some(row % 2 == half)).collect::<BooleanArray>()
            };
            part.take_in(snapshot, &rows).unwrap();
            part.snapshot().unwrap()
        })
    }

    /// Runs a stateful operator as the engine does, with occasional restarts from snapshots.
    pub(crate) fn run_epochs(
        bound: &BoundOperator,
        inputs: &[StreamType],
        epochs: &[(Vec<(usize, Record)>, i64)],
        random: u64,
    ) -> Output {
        let mut random = Random::of_seed(random ^ 7);
        let make = || match (bound.make)() {
            Ok(Instance::Stateful(instance)) => instance,
            _ => panic!("a stateful operator"),
        };
        let mut instance = make();
        let mut output = Output::default();
        let mut captured: Option<(WriteSnapshot, Vec<u8>)> = None;
        for (rows, watermark) in epochs {
            for (port, stream) in inputs.iter().enumerate() {
                let mut rows: Vec<Record> =
                    rows.iter().filter(|(p, _)| *p == port).map(|(_, row)| row.clone()).collect();
                rows.sort_by_key(|row| (row.time, crate::record::source_id(row.source, row.sequence)));
                let split = random.below(rows.len() + 1);
                for part in [&rows[..split], &rows[split..]] {
                    if !part.is_empty() {
                        instance.apply(port, &records(stream, part), &mut output).unwrap();
                    }
                }
            }
            instance.advance(*watermark, &mut output).unwrap();
            // A captured state is written while the operator continues.
            match captured.take() {
                None => captured = Some((instance.capture().unwrap(), instance.snapshot().unwrap())),
                Some((write, expected)) if random.below(2) == 0 => assert_eq!(write().unwrap(), expected),
                kept => captured = kept,
            }
            if random.below(3) == 0 {
                let snapshot = instance.snapshot().unwrap();
                instance = make();
                instance.restore(&snapshot).unwrap();
                assert_eq!(instance.snapshot().unwrap(), snapshot);
                if instance.is_divisible() && random.below(2) == 0 {
                    instance = make();
                    for half in divided(&snapshot, make) {
                        let all = |keys: &StateKeys<'_>| {
                            keys.classes.iter().map(|_| Some(true)).collect::<BooleanArray>()
                        };
                        instance.take_in(&half, &all).unwrap();
                    }
                }
            }
        }
        while instance.has_more() {
            instance.advance(i64::MAX, &mut output).unwrap();
        }
        for batch in &output.batches {
            assert_eq!(batch.schema(), crate::record::record_schema(&bound.output));
        }
        assert_eq!(instance.state_bytes(), 0, "nothing is left when all streams have ended");
        output
    }

    /// Runs a stateless operator on one batch.
    pub(crate) fn run_stateless(bound: &BoundOperator, batch: &RecordBatch) -> Output {
        let Ok(Instance::Stateless(mut instance)) = (bound.make)() else { panic!("a stateless operator") };
        let mut output = Output::default();
        instance.process(batch, &mut output).unwrap();
        for batch in &output.batches {
            assert_eq!(batch.schema(), crate::record::record_schema(&bound.output));
        }
        output
    }
}
