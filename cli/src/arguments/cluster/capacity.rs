//! Facts about a machine, given at the start of a worker.
use super::{processors, size};
use clap::Args;
use tidemill_cluster::agent::GivenCapacity;

/// Resources that a machine gives to runs.
#[derive(Debug, Args)]
pub(crate) struct CapacityArguments {
    /// Processors for runs, such as `1.5`; default: the limit of affinity and control groups.
    #[arg(long, value_name = "N", value_parser = processors)]
    processors: Option<f64>,
    /// Memory for runs, such as `8GiB`; default: the limit of control groups.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    /// Accelerators by type: `h100`, `h100=2,npu`, or `none`; default: those that the drivers of NVIDIA and AMD report.
    #[arg(long, value_name = "TYPE[=COUNT],...", value_delimiter = ',', value_parser = accelerators)]
    accelerators: Vec<GivenAccelerators>,
}

/// Number and type of accelerators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GivenAccelerators {
    name: String,
    count: u32,
}

/// Limit on accelerators in one machine, above which the number is a typing error.
const MOST_ACCELERATORS: u32 = 256;

fn accelerators(text: &str) -> Result<GivenAccelerators, String> {
    let (name, count) = match text.split_once('=') {
        Some((name, count)) => {
            (name, count.parse().ok().filter(|count| (1..=MOST_ACCELERATORS).contains(count)))
        }
        None if text == "none" => (text, Some(0)),
        None => (text, Some(1)),
    };
    let is_name = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c));
    match count.filter(|_| is_name) {
        Some(count) => Ok(GivenAccelerators { name: name.to_owned(), count }),
        None => Err(format!(
            "write a type that starts with a lower-case letter, and a count from 1 to {MOST_ACCELERATORS}, such as `h100=2`"
        )),
    }
}

impl CapacityArguments {
    /// Returns the given facts.
    pub(crate) fn given(&self) -> GivenCapacity {
        let all = self.accelerators.iter();
        let names = all.flat_map(|of| std::iter::repeat_n(of.name.clone(), of.count as usize));
        GivenCapacity {
            processors: self.processors,
            memory_bytes: self.memory,
            accelerators: (!self.accelerators.is_empty()).then(|| names.collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accelerators_are_counted_by_type() {
        let of = |all: &[&str]| {
            let accelerators = all.iter().map(|text| accelerators(text).unwrap()).collect();
            let given = CapacityArguments { processors: None, memory: None, accelerators }.given();
            given.accelerators
        };
        assert_eq!(of(&[]), None, "they are looked up");
        assert_eq!(of(&["none"]), Some(Vec::new()));
        assert_eq!(of(&["h100=2", "npu"]).unwrap(), ["h100", "h100", "npu"]);
        for wrong in ["", "H100", "h100=0", "h100=two", "=2", "h 100"] {
            assert!(accelerators(wrong).is_err(), "{wrong}");
        }
    }
}
