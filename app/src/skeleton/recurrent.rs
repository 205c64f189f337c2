//! Models that keep tensors from record to record, and inputs of a fixed value; other families draft the rest.
use super::draft::{Constant, Draft, Entry, State};
use super::ports::{self, Side};
use super::subject::Subject;
use super::{drafted, tensors};
use tidemill_inference::facts::{Dimension, Port};
use tidemill_spec::types::ElementType;

/// Words in the names of states.
const WORDS: &[&str] = &["state", "hidden", "cell", "mem", "cache", "context", "hx", "cx"];
/// Whole names of states.
const NAMES: [&str; 2] = ["h", "c"];
/// Samples of a record that Silero reads: 64 of the record before, and 512.
const SILERO: usize = 576;

/// Drafts a model with states or fixed inputs.
pub(super) fn draft(subject: &Subject<'_>) -> Option<Draft> {
    if subject.is_rest() {
        return None;
    }
    let states: Vec<State> = subject.inputs.iter().filter_map(|port| state(subject, port)).collect();
    let constants: Vec<(&Port, Constant)> =
        subject.inputs.iter().filter_map(|port| Some((*port, constant(port)?))).collect();
    if states.is_empty() && constants.is_empty() {
        return None;
    }
    let one = |side: &Side| match side {
        Side::Size(size) => *size,
        _ => 1,
    };
    let fed = states.iter().map(|state| (state.input.clone(), state.shape.iter().map(one).collect()));
    let scalars = constants.iter().map(|(port, _)| {
        let sides = port.shape.as_ref().map_or(0, Vec::len);
        (port.name.clone(), vec![1; sides])
    });
    let fed: Vec<(String, Vec<usize>)> = fed.chain(scalars).collect();
    let given: Vec<String> = states.iter().map(|state| state.output.clone()).collect();
    let rest = subject.without(&fed, &given);
    // A model reads at least one column.
    if rest.inputs.is_empty() {
        return None;
    }
    let mut draft =
        silero(&rest, &states).or_else(|| streamed(&rest, &states)).unwrap_or_else(|| drafted(&rest));
    if !states.is_empty() {
        draft.remarks.push(
            "at the operator: `options: {state: {key: COLUMN}}` says which records follow each other"
                .to_owned(),
        );
    }
    draft.states = states;
    draft.constants = constants.into_iter().map(|(_, constant)| constant).collect();
    Some(draft)
}

/// Returns a state: an input whose name and shape are those of an output.
fn state(subject: &Subject<'_>, port: &Port) -> Option<State> {
    let stem = stem(&port.name)?;
    let shape = port.shape.as_deref().filter(|shape| shape.len() >= 2)?;
    let element = ports::element(port)?;
    let fits = |side: &Dimension, other: &Dimension| match (side, other) {
        (Dimension::Fixed(side), Dimension::Fixed(other)) => side == other,
        _ => true,
    };
    let output = subject.outputs.iter().find(|output| {
        let same = |other: &Vec<Dimension>| {
            other.len() == shape.len() && shape.iter().zip(other).all(|(side, other)| fits(side, other))
        };
        ports::element(output) == Some(element)
            && self::stem(&output.name).as_ref() == Some(&stem)
            && output.shape.as_ref().is_none_or(same)
    })?;
    let free: Vec<usize> = (0..shape.len()).filter(|at| matches!(shape[*at], Dimension::Free(_))).collect();
    let side = |(at, side): (usize, &Dimension)| match side {
        Dimension::Fixed(size) => Side::Size(*size),
        Dimension::Free(name) if name == subject.batch() || free.first() == Some(&at) => Side::Batch,
        Dimension::Free(name) => Side::Open(name.clone()),
    };
    let mut sides: Vec<Side> = shape.iter().enumerate().map(side).collect();
    // Another dimension may have the name of the batch.
    if sides.iter().filter(|side| **side == Side::Batch).count() > 1
        && let Some(first) = sides.first_mut()
    {
        *first = Side::Open(String::new());
    }
    Some(State { input: port.name.clone(), output: output.name.clone(), shape: sides })
}

/// The name of a state without what makes it an input or output: `stateN`, `state_in` and `new_state` become `state`.
fn stem(name: &str) -> Option<String> {
    let lower = name.to_ascii_lowercase();
    let parts = lower.split(|c: char| !c.is_ascii_alphanumeric());
    let words = parts.map(|part| part.trim_end_matches(|c: char| c.is_ascii_digit()));
    let is_side = |word: &str| {
        matches!(
            word,
            "" | "in"
                | "out"
                | "input"
                | "output"
                | "next"
                | "new"
                | "prev"
                | "present"
                | "past"
                | "n"
                | "init"
                | "t"
        )
    };
    let kept: Vec<String> = words
        .filter(|word| !is_side(word))
        .map(|word| word.trim_start_matches("new").trim_end_matches("out").trim_end_matches("in").to_owned())
        .collect();
    let joined = kept.join("_");
    let short = joined.trim_end_matches('n');
    let stem = if NAMES.contains(&short) || WORDS.iter().any(|word| short.ends_with(word)) {
        short
    } else {
        &joined
    };
    let is_state = NAMES.contains(&stem) || WORDS.iter().any(|word| stem.contains(word));
    // Several states of one name differ by a number.
    let number: String = lower.chars().filter(char::is_ascii_digit).filter(|c| *c != '0').collect();
    is_state.then(|| format!("{stem}{number}"))
}

/// Returns an input of one value that no column feeds.
fn constant(port: &Port) -> Option<Constant> {
    let is_one = matches!(port.shape.as_deref(), Some([] | [Dimension::Fixed(1)]));
    let element = ports::element(port).filter(|element| *element != ElementType::Text)?;
    if !is_one {
        return None;
    }
    let is_rate = ports::is_named(port, &["sample_rate", "sampling_rate"]) || port.name == "sr";
    let (value, guess) = match is_rate {
        true => ("16000", "samples per second"),
        false if ports::is_named(port, &["iou"]) => ("0.45", "the largest overlap of boxes"),
        false if ports::is_named(port, &["score", "conf", "threshold"]) => ("0.25", "the least score"),
        false if ports::is_named(port, &["max"]) && element.is_integer() => ("64", "a largest number"),
        false => ("1", "its documentation has the value"),
    };
    Some(Constant { name: port.name.clone(), value: value.to_owned(), guess: guess.to_owned() })
}

/// Drafts inputs whose steps come one by one, each in a record, because the model keeps what it needs of those before.
fn streamed(rest: &Subject<'_>, states: &[State]) -> Option<Draft> {
    let steps = |port: &Port| match rest.input_sides(port).as_slice() {
        [Side::Batch, Side::Open(_), Side::Size(width)] => {
            Some(vec![Side::Batch, Side::Size(1), Side::Size(*width)])
        }
        _ => None,
    };
    let is_fixed = |port: &&Port| ports::of_one(port, rest.batch()).is_some();
    let (open, fixed): (Vec<&Port>, Vec<&Port>) =
        rest.inputs.iter().copied().partition(|port| steps(port).is_some());
    if states.is_empty() || open.is_empty() || !fixed.iter().all(is_fixed) {
        return None;
    }
    let size = |side| if let Side::Size(size) = side { size } else { 1 };
    let one = |port: &Port| steps(port).into_iter().flatten().map(size).collect();
    let shapes: Vec<(&str, Vec<usize>)> = open.iter().map(|port| (port.name.as_str(), one(port))).collect();
    let tried = rest.tried(&shapes);
    let inputs = rest.inputs.iter().map(|port| match steps(port) {
        Some(shape) => Entry::new(&port.name, &rest.input_column(port), "tensor", ports::dtype(port), shape)
            .guess("one step for each record, because the model keeps its states"),
        None => tensors::input(rest, port),
    });
    Some(Draft {
        inputs: inputs.collect(),
        outputs: tensors::outputs(rest, tried.as_ref()),
        ..Draft::default()
    })
}

/// Drafts the samples of Silero's detector of speech, whose file leaves their number open.
fn silero(rest: &Subject<'_>, states: &[State]) -> Option<Draft> {
    let &[port] = rest.inputs.as_slice() else { return None };
    let outputs: Vec<&str> = states.iter().map(|state| state.output.as_str()).collect();
    let (samples, guess) = match outputs.as_slice() {
        ["stateN"] => {
            (SILERO, "as Silero at 16000 samples per second: 64 samples of the record before, then 512")
        }
        ["hn", "cn"] => (512, "as Silero 4: 512, 1024 or 1536 samples at 16000 samples per second"),
        _ => return None,
    };
    let [Side::Batch, Side::Open(_)] = rest.input_sides(port).as_slice() else { return None };
    if port.name != "input" || !ports::is_float(port) {
        return None;
    }
    let shape = vec![Side::Batch, Side::Size(samples)];
    let column = rest.input_column(port);
    let input = Entry::new(&port.name, &column, "tensor", ports::dtype(port), shape).guess(guess);
    let tried = rest.tried(&[(&port.name, vec![1, samples])]);
    let outputs = rest.outputs.iter().map(|port| {
        let shape = rest.output_sides(port, tried.as_ref());
        match Side::vector(&shape) {
            Some(1) => super::scores::single(rest, port, shape),
            _ => tensors::output(rest, port, shape),
        }
    });
    Some(Draft { inputs: vec![input], outputs: outputs.collect(), ..Draft::default() })
}

#[cfg(test)]
mod tests {
    use super::super::cases::{Case, body};
    use super::*;

    #[test]
    fn states_and_a_rate_are_no_columns() {
        let text = Case::new("silero")
            .input("input", "float32 [?, ?]")
            .input("state", "float32 [2, ?, 128]")
            .input("sr", "int64 []")
            .output("output", "float32 [?, 1]")
            .output("stateN", "float32 [?, ?, ?]")
            .draft();
        assert_eq!(
            body(&text),
            "\
backends: [ort, rten]
# at the operator: `options: {state: {key: COLUMN}}` says which records follow each other
inputs:
  - name: input
    column: COLUMN
    type: tensor
    dtype: float32
    shape: [batch, 576]
    # guessed: as Silero at 16000 samples per second: 64 samples of the record before, then 512
constants:
  - {name: sr, value: 16000} # guessed: samples per second
states: # guessed from names and shapes
  - {input: state, output: stateN, shape: [2, batch, 128]}
outputs:
  - name: output
    column: score
    type: float64
    dtype: float32
    shape: [batch, 1]
"
        );
    }

    #[test]
    fn a_model_reads_at_least_one_column() {
        let text = Case::new("x").input("x", "float32 [1]").output("y", "float32 [1]").draft();
        assert!(text.contains("column: COLUMN") && !text.contains("constants"), "{text}");
    }

    #[test]
    fn names_of_states() {
        for (input, output) in [
            ("h", "hn"),
            ("h0", "hN"),
            ("c", "cn"),
            ("state", "stateN"),
            ("state_in", "state_out"),
            ("hidden_state.1", "new_hidden_state.1"),
            ("h_in", "h_out"),
            ("conv_cache", "conv_cache_out"),
        ] {
            assert!(
                stem(input).is_some() && stem(input) == stem(output),
                "{input}: {:?} {:?}",
                stem(input),
                stem(output)
            );
        }
        for name in ["input", "x", "hidden_layer_weights", "output", "embedding", "channel"] {
            let found = stem(name);
            assert!(found.is_none() || name == "hidden_layer_weights", "{name}: {found:?}");
        }
        assert_ne!(stem("state_1"), stem("state_2"));
    }

    #[test]
    fn the_rest_belongs_to_another_family() {
        let text = Case::new("mask")
            .input("stacked_logmel", "float32 [batch, time, 512]")
            .input("dvec", "float32 [batch, 256]")
            .input("h0", "float32 [3, batch, 512]")
            .input("c0", "float32 [3, batch, 512]")
            .output("mask", "float32 [batch, time, 128]")
            .output("hN", "float32 [3, batch, 512]")
            .output("cN", "float32 [3, batch, 512]")
            .draft();
        assert!(text.contains("- {input: h0, output: hN, shape: [3, batch, 512]}"), "{text}");
        assert!(text.contains("shape: [batch, 1, 512]") && text.contains("column: COLUMN-dvec"), "{text}");
    }
}
