//! Redistribution of an operator's state from some stages to more or fewer: the rows of each of them.
use crate::checkpoint::{self, StagePast, decode};
use crate::graph::Program;
use crate::routing::{class_values, takes};
use crate::store::Call;
use arrow_array::{BooleanArray, UInt32Array};
use tidemill_operators::api::{Instance, MakeInstance, Output, StateKeys, Stateful};
use tidemill_spec::plan::Stage;
use tidemill_spec::routing::ClassTable;

/// The keys of one instance of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Share {
    /// All keys.
    All,
    /// Keys of some route classes, restricted to a partition.
    Classes {
        /// Present if the class of a row is that of its group: the classes of all values.
        groups: Option<ClassTable>,
        /// Whether it has a class, by class.
        own: Vec<bool>,
        /// Index of the partition.
        partition: u32,
        /// Number of partitions.
        partitions: u32,
    },
}

impl Share {
    /// Selects its rows of a state.
    pub fn takes(&self, keys: &StateKeys<'_>) -> BooleanArray {
        let rows = keys.classes.len();
        match self {
            Self::All => std::iter::repeat_n(Some(true), rows).collect(),
            Self::Classes { groups, own, partition, partitions } => {
                let of_groups = groups.as_ref().zip(keys.first);
                let of_groups = of_groups.map(|(table, first)| UInt32Array::from(class_values(table, first)));
                let values = of_groups.as_ref().unwrap_or(keys.classes);
                BooleanArray::from_unary(values, |value| takes(own, (*partition, *partitions), value))
            }
        }
    }
}

impl Program {
    /// Returns the keys of a partition of a stage, equal to those of the rows that it receives.
    pub fn share(&self, stage: &Stage, partition: u32) -> Share {
        let stages = || self.plan.stages.iter().filter(|other| other.operator == stage.operator);
        let partitions = stage.partitions.max(1);
        if stages().map(|other| other.partitions.max(1)).sum::<u32>() == 1 {
            return Share::All;
        }
        let groups = self.group_of(stage).map(|_| self.class_table());
        Share::Classes { groups, own: self.classes_of(stage), partition, partitions }
    }
}

/// Returns the snapshot of an operator after a checkpoint's data of a stage.
///
/// # Errors
/// It cannot be read, or is of another operator; the text has advice.
pub fn state_of(make: &MakeInstance, past: &StagePast) -> Result<Vec<u8>, String> {
    let mut operator: Box<dyn Stateful> = match make().map_err(|error| error.message)? {
        Instance::Stateful(operator) => operator,
        Instance::Stateless(_) | Instance::Inference(_) => return Err("it keeps no state".to_owned()),
    };
    checkpoint::restore(operator.as_mut(), &past.snapshot.1).map_err(|error| error.message)?;
    for calls in &past.calls {
        for (epoch, call) in decode(calls)? {
            // The results left the stage in the run that made the calls.
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
    use arrow_array::{ArrayRef, Int64Array};
    use std::sync::Arc;

    /// Each row of a state has exactly one share, for any division.
    #[test]
    fn shares_are_whole_and_do_not_overlap() {
        let rows = 5_000u32;
        let classes =
            UInt32Array::from_iter_values((0..rows).map(|row| (row % 3) | ((row * 13 % 65_536) << 16)));
        let column: ArrayRef =
            Arc::new(Int64Array::from_iter_values((0..i64::from(rows)).map(|row| row * 7)));
        let keys = StateKeys { classes: &classes, first: Some(&column) };
        let table = ClassTable::new(&[0.2, 0.5, 0.3]);
        let all = |groups: Option<&ClassTable>| -> Vec<Share> {
            let share = |own: &[bool], (partition, partitions)| Share::Classes {
                groups: groups.cloned(),
                own: own.to_vec(),
                partition,
                partitions,
            };
            let first = (0..2).map(|partition| share(&[true, false, true], (partition, 2)));
            first.chain([share(&[false, true, false], (0, 1))]).collect()
        };
        for shares in [vec![Share::All], all(Some(&table)), all(None)] {
            let masks: Vec<BooleanArray> = shares.iter().map(|share| share.takes(&keys)).collect();
            assert!(masks.iter().all(|mask| mask.true_count() > 0), "{shares:?}");
            for row in 0..rows as usize {
                assert_eq!(masks.iter().filter(|mask| mask.value(row)).count(), 1, "row {row} of {shares:?}");
            }
        }
    }
}
