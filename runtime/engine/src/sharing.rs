//! A state that was kept by some stages of an operator, and is to be kept by more or fewer: which rows of it each of them has.
use crate::checkpoint::{self, StagePast, decode};
use crate::graph::Program;
use crate::routing::{column_positions, partition_of, takes_class};
use crate::store::Call;
use arrow_array::BooleanArray;
use tidemill_operators::api::{Instance, MakeInstance, Output, Spread, StateKeys, Stateful};
use tidemill_spec::plan::Stage;
use tidemill_spec::routing::ClassTable;

/// The keys of one instance of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Share {
    /// All.
    All,
    /// Those whose position in the hash space of a column is from here to there; the last one has the last position too.
    Part {
        /// The first one.
        from: u64,
        /// The first one behind it.
        to: u64,
    },
    /// Those of some route classes, and of these a partition.
    Classes {
        /// By class, whether it has it.
        own: Vec<bool>,
        /// Which one.
        partition: u32,
        /// Of so many.
        partitions: u32,
    },
}

impl Share {
    /// Which rows of a state are its.
    pub fn takes(&self, keys: &StateKeys<'_>) -> BooleanArray {
        let rows = keys.classes.len();
        match self {
            Self::All => std::iter::repeat_n(Some(true), rows).collect(),
            Self::Part { from, to } => {
                let positions = keys.first.map_or_else(|| vec![0; rows], column_positions);
                let is_own = |position: u64| *from <= position && (position < *to || *to == u64::MAX);
                positions.into_iter().map(|position| Some(is_own(position))).collect()
            }
            Self::Classes { own, partition, partitions } => BooleanArray::from_unary(keys.classes, |value| {
                takes_class(own, (value & 0xffff) as usize) && partition_of(value, *partitions) == *partition
            }),
        }
    }
}

impl Program {
    /// The keys of a partition of a stage; the same rows as come to it.
    pub fn share(&self, stage: &Stage, partition: u32) -> Share {
        let stages = || self.plan.stages.iter().filter(|other| other.operator == stage.operator);
        let partitions = stage.partitions.max(1);
        if stages().map(|other| other.partitions.max(1)).sum::<u32>() == 1 {
            return Share::All;
        }
        let bound = self.operators.get(&stage.id);
        if !bound.is_some_and(|bound| matches!(bound.spread, Spread::Column(_))) {
            return Share::Classes { own: self.classes_of(stage), partition, partitions };
        }
        let mut shares = Vec::new();
        let mut place = 0;
        for other in stages() {
            if other.id == stage.id {
                place = shares.len() + partition as usize;
            }
            let each = other.share / f64::from(other.partitions.max(1));
            shares.extend((0..other.partitions.max(1)).map(|_| each));
        }
        let (from, to) = ClassTable::new(&shares).part(place);
        Share::Part { from, to }
    }
}

/// The snapshot that an operator would give after what a checkpoint has of a stage.
///
/// # Errors
/// It cannot be read, or is of another operator; the text says what to do.
pub fn state_of(make: &MakeInstance, past: &StagePast) -> Result<Vec<u8>, String> {
    let mut operator: Box<dyn Stateful> = match make().map_err(|error| error.message)? {
        Instance::Stateful(operator) => operator,
        Instance::Stateless(_) | Instance::Inference(_) => return Err("it keeps no state".to_owned()),
    };
    checkpoint::restore(operator.as_mut(), &past.snapshot.1).map_err(|error| error.message)?;
    for calls in &past.calls {
        for (epoch, call) in decode(calls)? {
            // Results have left the stage in the run that made the calls.
            let mut output = Output::default();
            let done = match call {
                _ if epoch < past.snapshot.0 => Ok(()),
                Call::Apply(port, batch) => operator.apply(port, &batch, &mut output),
                Call::Advance(watermark) => operator.advance(watermark, &mut output),
            };
            done.map_err(|error| error.message)?;
        }
    }
    operator.snapshot().map_err(|error| error.message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{ArrayRef, Int64Array, UInt32Array};
    use std::sync::Arc;

    /// Each row of a state goes one way, however it is divided.
    #[test]
    fn shares_are_whole_and_do_not_overlap() {
        let rows = 5_000u32;
        let classes =
            UInt32Array::from_iter_values((0..rows).map(|row| (row % 3) | ((row * 13 % 65_536) << 16)));
        let column: ArrayRef =
            Arc::new(Int64Array::from_iter_values((0..i64::from(rows)).map(|row| row * 7)));
        let keys = StateKeys { classes: &classes, first: Some(&column) };
        let table = ClassTable::new(&[0.2, 0.5, 0.3]);
        let parts = (0..3).map(|part| {
            let (from, to) = table.part(part);
            Share::Part { from, to }
        });
        let first =
            (0..2).map(|partition| Share::Classes { own: vec![true, false, true], partition, partitions: 2 });
        let second = [Share::Classes { own: vec![false, true, false], partition: 0, partitions: 1 }];
        for shares in [vec![Share::All], parts.collect(), first.chain(second).collect()] {
            let masks: Vec<BooleanArray> = shares.iter().map(|share| share.takes(&keys)).collect();
            assert!(masks.iter().all(|mask| mask.true_count() > 0), "{shares:?}");
            for row in 0..rows as usize {
                assert_eq!(masks.iter().filter(|mask| mask.value(row)).count(), 1, "row {row} of {shares:?}");
            }
        }
    }
}
