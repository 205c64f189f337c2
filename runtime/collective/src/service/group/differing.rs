//! Ranks that call different operations.
use crate::element::{Element, Reduction};
use crate::operation::{Numbered, Operation};
use crate::protocol::{Failure, FailureKind};

/// Returns the failure of a group where one rank calls something else than another one, which is on this host.
pub(super) fn differs(one: (u32, &Numbered), other: (u32, &Numbered), host: &str) -> Failure {
    let text = format!(
        "operation {} differs: rank {} calls {}, rank {} on host {host} calls {}",
        one.1.number,
        one.0,
        words(one.1),
        other.0,
        words(other.1)
    );
    Failure { kind: FailureKind::Differs, rank: Some(other.0), host: host.to_owned(), text }
}

/// A call, in words: `an all-reduce (sum) of 3 i32`, `an all-gather of 24 bytes of float64`.
fn words(of: &Numbered) -> String {
    let name = |reduction| match reduction {
        Reduction::Sum => "sum",
        Reduction::Min => "min",
        Reduction::Max => "max",
    };
    let operation = match of.operation {
        Operation::Broadcast { root } => format!("a broadcast (from rank {root})"),
        Operation::AllReduce { reduction } => format!("an all-reduce ({})", name(reduction)),
        Operation::ReduceScatter { reduction } => format!("a reduce-scatter ({})", name(reduction)),
        Operation::AllGather => "an all-gather".to_owned(),
        Operation::AllToAll => "an all-to-all".to_owned(),
    };
    let element = match of.element {
        Element::F32 => "f32",
        Element::F16 => "f16",
        Element::Bf16 => "bf16",
        Element::I32 => "i32",
        Element::I64 => "i64",
    };
    if of.type_name.is_empty() {
        return format!("{operation} of {} {element}", of.length);
    }
    // Elements of other types are moved as words, which the program does not know.
    format!(
        "{operation} of {} bytes of {}",
        of.length.saturating_mul(of.element.bytes() as u64),
        of.type_name
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::type_name::TypeName;

    #[test]
    fn what_ranks_call_is_said_in_words() {
        let sum = Operation::AllReduce { reduction: Reduction::Sum };
        let one = Numbered::new(7, sum, Element::I32, 3);
        let root = Operation::Broadcast { root: 2 };
        let other = Numbered::new(7, root, Element::Bf16, 4);
        let failure = differs((0, &one), (1, &other), "a");
        assert_eq!((failure.kind, failure.rank), (FailureKind::Differs, Some(1)));
        assert_eq!(
            failure.text,
            "operation 7 differs: rank 0 calls an all-reduce (sum) of 3 i32, \
             rank 1 on host a calls a broadcast (from rank 2) of 4 bf16"
        );
        let type_name = TypeName::new("float64").unwrap();
        let moved = Numbered { type_name, ..Numbered::new(7, Operation::AllGather, Element::I64, 3) };
        let text = differs((0, &moved), (1, &one), "a").text;
        assert!(text.contains("rank 0 calls an all-gather of 24 bytes of float64, rank 1"), "{text}");
    }
}
