//! The description in a file in ONNX Runtime's own format (`.ort`), which is made of an ONNX file for small devices.
//!
//! It is a table of FlatBuffers: positions in the file refer to each other, so each is compared with the file's length, and
//! no list is longer than the file. The numbers of fields are those of `ort.fbs` in ONNX Runtime.
use crate::facts::{Dimension, ModelFacts, Port, computes_with_8_bits, element};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Longest name that is read, bytes.
const LONGEST_NAME: usize = 1024;
/// Most inputs, outputs and entries of the metadata that are read: several may refer to the same bytes of a small file.
const MOST: usize = 4096;
/// Most dimensions of a tensor that are read.
const MOST_DIMENSIONS: usize = 64;

/// Returns whether the bytes are those of a file in this format.
pub(crate) fn is_ort(file: &[u8]) -> bool {
    file.get(4..8) == Some(b"ORTM")
}

/// Returns the facts of a file; `None` if it is damaged. `path` is only stored.
pub(crate) fn facts(path: &Path, file: &[u8]) -> Option<ModelFacts> {
    let root = Table { file, at: word(file, 0)? as usize };
    let model = root.table(1)?;
    let graph = model.table(7)?;
    let named = |field: u32| -> HashMap<&[u8], Table<'_>> {
        graph.tables(field).filter_map(|value| Some((value.name(0)?, value))).collect()
    };
    let (weights, kinds) = (named(0), named(1));
    let ports = |field: u32| -> Option<Vec<Port>> {
        let names = graph.elements_at(field, 4).take(MOST).filter_map(|at| graph.bytes_at(at));
        let names = names.filter(|name| !weights.contains_key(name));
        names.map(|name| Some(port(name, *kinds.get(name)?))).collect()
    };
    let outputs = ports(6)?;
    if outputs.is_empty() {
        return None;
    }
    let mut metadata = BTreeMap::new();
    let mut left = file.len();
    for entry in model.tables(9).take(MOST) {
        let (Some(key), Some(value)) = (entry.name(0), entry.bytes(1)) else { continue };
        // All of them together are no longer than the file.
        left = left.checked_sub(value.len())?;
        metadata.insert(text(key), text(value));
    }
    let operator = |node: Table<'_>| node.name(5).map(text).unwrap_or_default();
    let standard = model.tables(1).find(|set| matches!(set.name(0), None | Some(b"" | b"ai.onnx")));
    Some(ModelFacts {
        inputs: ports(5)?,
        outputs,
        opset: standard.and_then(|set| set.long(1)),
        parameters: weights.values().map(|weight| weight.elements()).fold(0, u64::saturating_add),
        nodes: graph.tables(2).count(),
        is_quantised: graph.tables(2).any(|node| computes_with_8_bits(&operator(node))),
        producer: model.name(2).map(text).filter(|name| !name.is_empty()),
        metadata,
        ..ModelFacts::of_bytes(path, file)
    })
}

/// A declared value: a tensor, or anything else.
fn port(name: &[u8], value: Table<'_>) -> Port {
    const TENSOR: u8 = 1;
    let mut port = Port { name: text(name), ..Port::of_no_tensor() };
    let Some(kind) = value.table(2).filter(|kind| kind.byte(1) == Some(TENSOR)) else { return port };
    let Some(tensor) = kind.table(2) else { return port };
    port.element = element(tensor.integer(0).unwrap_or(0).into());
    port.shape = tensor.table(1).map(|shape| shape.tables(0).take(MOST_DIMENSIONS).map(dimension).collect());
    port
}

fn dimension(dimension: Table<'_>) -> Dimension {
    const FIXED: u8 = 1;
    let value = dimension.table(0);
    let size = value.filter(|value| value.byte(0) == Some(FIXED)).and_then(|value| value.long(1));
    match size.and_then(|size| usize::try_from(size).ok()).filter(|size| *size > 0) {
        Some(size) => Dimension::Fixed(size),
        None => Dimension::Free(value.and_then(|value| value.name(2)).map(text).unwrap_or_default()),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn word(file: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(file.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// A table: its position, from which its fields are found.
#[derive(Clone, Copy)]
struct Table<'a> {
    file: &'a [u8],
    at: usize,
}

impl<'a> Table<'a> {
    /// Position of a field; `None` if it has its default value.
    fn field(&self, number: u32) -> Option<usize> {
        let fields = i64::try_from(self.at).ok()? - i64::from(word(self.file, self.at)? as i32);
        let fields = usize::try_from(fields).ok()?;
        let short = |at: usize| {
            Some(usize::from(u16::from_le_bytes(self.file.get(at..at.checked_add(2)?)?.try_into().ok()?)))
        };
        let place = 4 + 2 * number as usize;
        if place + 2 > short(fields)? {
            return None;
        }
        Some(short(fields + place)?).filter(|offset| *offset > 0).map(|offset| self.at + offset)
    }

    /// Position to which the value at a position refers.
    fn referred(&self, at: usize) -> Option<usize> {
        at.checked_add(word(self.file, at)? as usize)
    }

    fn table(&self, number: u32) -> Option<Self> {
        Some(Self { at: self.referred(self.field(number)?)?, ..*self })
    }

    fn byte(&self, number: u32) -> Option<u8> {
        self.file.get(self.field(number)?).copied()
    }

    fn integer(&self, number: u32) -> Option<i32> {
        word(self.file, self.field(number)?).map(|value| value as i32)
    }

    fn long(&self, number: u32) -> Option<i64> {
        long(self.file, self.field(number)?)
    }

    /// The bytes of the text to which the value at a position refers.
    fn bytes_at(&self, at: usize) -> Option<&'a [u8]> {
        let at = self.referred(at)?;
        let start = at.checked_add(4)?;
        self.file.get(start..start.checked_add(word(self.file, at)? as usize)?)
    }

    fn bytes(&self, number: u32) -> Option<&'a [u8]> {
        self.bytes_at(self.field(number)?)
    }

    /// A text that is short enough to be a name.
    fn name(&self, number: u32) -> Option<&'a [u8]> {
        self.bytes(number).filter(|name| name.len() <= LONGEST_NAME)
    }

    /// Positions of the elements of a list, of this size each.
    fn elements_at(&self, number: u32, size: usize) -> impl Iterator<Item = usize> + use<'a> {
        let start = self.field(number).and_then(|field| self.referred(field));
        let count = start.and_then(|start| word(self.file, start)).unwrap_or(0) as usize;
        let (start, end) = (start.unwrap_or(0), self.file.len());
        (0..count).map(move |at| start + 4 + at * size).take_while(move |at| at + size <= end)
    }

    fn tables(&self, number: u32) -> impl Iterator<Item = Self> + use<'a> {
        let table = *self;
        self.elements_at(number, 4).filter_map(move |at| Some(Self { at: table.referred(at)?, ..table }))
    }

    /// Number of elements of the tensor that this table is.
    fn elements(&self) -> u64 {
        let sizes = self.elements_at(2, 8).take(MOST_DIMENSIONS).filter_map(|at| long(self.file, at));
        sizes.fold(1, |all, size| all.saturating_mul(u64::try_from(size).unwrap_or(0)))
    }
}

fn long(file: &[u8], at: usize) -> Option<i64> {
    Some(i64::from_le_bytes(file.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{inspect, inspect_bytes};
    use std::path::PathBuf;

    fn testdata(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
    }

    #[test]
    fn the_facts_are_those_of_the_onnx_file() {
        let (ort, onnx) = (inspect(&testdata("line_reader.ort")), inspect(&testdata("line_reader.onnx")));
        let (ort, onnx) = (ort.unwrap(), onnx.unwrap());
        assert_eq!((&ort.inputs, &ort.outputs), (&onnx.inputs, &onnx.outputs));
        assert_eq!((&ort.metadata, &ort.producer), (&onnx.metadata, &onnx.producer));
        assert_eq!((ort.opset, ort.parameters), (onnx.opset, onnx.parameters));
        assert!(ort.nodes > 0 && !ort.is_quantised);
    }

    #[test]
    fn a_short_file_is_damaged() {
        let whole = std::fs::read(testdata("line_reader.ort")).unwrap();
        assert!(is_ort(&whole));
        for length in 8..64 {
            let error = inspect_bytes(Path::new("x.ort"), &whole[..length]).unwrap_err();
            assert!(error.to_string().contains("but damaged"), "{error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_damaged_file_never_panics(changes: Vec<(u16, u8)>, length: u16) {
            let mut bytes = std::fs::read(testdata("line_reader.ort")).unwrap();
            for (at, value) in changes {
                let length = bytes.len();
                bytes[usize::from(at) % length] = value;
            }
            bytes.truncate(usize::from(length).max(8));
            let _ = facts(Path::new("x"), &bytes);
        }
    }
}
