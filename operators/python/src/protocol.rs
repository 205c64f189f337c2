//! Messages between engine and step, as `docs/python-protocol.md` describes them: little-endian numbers of fixed places.
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidemill_spec::types::{ColumnType, ElementType};

/// Version of the protocol; both sides name theirs.
pub(crate) const VERSION: u32 = 1;
/// Bytes of the head of a message: bytes of its body (u32), kind (u32), number of the call (u64).
pub(crate) const HEAD: usize = 16;
/// Bytes of the description of a column.
pub(crate) const COLUMN: usize = 72;
/// Where results begin in their file; the number of the row at work is at 0.
pub(crate) const FIRST: u64 = 4096;
/// Multiples at which buffers begin.
pub(crate) const ALIGNMENT: u64 = 64;
/// Longest body of a message.
const LONGEST: u32 = 64 << 20;

/// Kinds of messages: below 16 from the engine, the others from the step.
pub(crate) mod kind {
    pub(crate) const HELLO: u32 = 1;
    pub(crate) const BATCH: u32 = 2;
    pub(crate) const ADVANCE: u32 = 3;
    pub(crate) const SNAPSHOT: u32 = 4;
    pub(crate) const RESTORE: u32 = 5;
    pub(crate) const END: u32 = 6;
    pub(crate) const READ: u32 = 7;
    pub(crate) const SEEK: u32 = 8;
    pub(crate) const COMMIT: u32 = 9;
    pub(crate) const CLOSE: u32 = 10;
    pub(crate) const READY: u32 = 16;
    pub(crate) const RESULT: u32 = 17;
    pub(crate) const FAILED: u32 = 18;
    pub(crate) const STATE: u32 = 19;
    pub(crate) const DONE: u32 = 20;
    pub(crate) const OVER: u32 = 21;
}

/// What the other side is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    Step,
    Source,
    Sink,
}

/// The greeting of the engine, in JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Hello<'a> {
    pub(crate) version: u32,
    pub(crate) operator: &'a str,
    /// A file relative to the folder, or the name of a module.
    pub(crate) module: &'a str,
    pub(crate) folder: &'a str,
    /// Name of the function or class.
    pub(crate) name: &'a str,
    pub(crate) is_class: bool,
    pub(crate) batch: bool,
    pub(crate) role: Role,
    /// Keyword arguments of the function or class.
    pub(crate) arguments: &'a serde_json::Value,
    /// Names and types.
    pub(crate) input: Vec<(String, String)>,
    /// Names and types, if the workflow declares them.
    pub(crate) output: Option<Vec<(String, String)>>,
    /// Files of the package by path.
    pub(crate) package: BTreeMap<&'a str, &'a str>,
}

/// Form in which a function gets its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CallForm {
    /// One by one.
    Record,
    /// A batch of the package.
    Batch,
    /// A record batch of pyarrow.
    Arrow,
    /// A table of pyarrow.
    Table,
    /// NumPy arrays by column.
    Arrays,
}

/// The answer to the greeting.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Ready {
    pub(crate) version: u32,
    #[serde(default)]
    pub(crate) error: Option<StartError>,
    #[serde(default)]
    pub(crate) language: String,
    #[serde(default)]
    pub(crate) form: Option<CallForm>,
    #[serde(default)]
    pub(crate) output: Option<Vec<(String, String)>>,
    #[serde(default)]
    pub(crate) has_state: bool,
    #[serde(default)]
    pub(crate) has_advance: bool,
    #[serde(default)]
    pub(crate) has_position: bool,
    #[serde(default)]
    pub(crate) has_commit: bool,
    #[serde(default)]
    pub(crate) committed: Option<u64>,
}

/// Why a step cannot start.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct StartError {
    pub(crate) message: String,
    #[serde(default)]
    pub(crate) traceback: String,
    #[serde(default)]
    pub(crate) file: Option<String>,
    #[serde(default)]
    pub(crate) line: Option<u64>,
    /// Names of the module, if it lacks the wanted one.
    #[serde(default)]
    pub(crate) names: Vec<String>,
}

/// A record that a step rejected.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Rejected {
    pub(crate) row: u32,
    pub(crate) reason: String,
    pub(crate) detail: String,
}

/// The failure of a call as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Failed {
    pub(crate) reason: String,
    pub(crate) detail: String,
    /// Earlier calls whose memory nothing shows any more.
    #[serde(default)]
    pub(crate) freed: Vec<u64>,
}

/// The head of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) length: u32,
    pub(crate) kind: u32,
    pub(crate) number: u64,
}

impl Head {
    /// Reads a head; `None` for a body that no step sends.
    pub(crate) fn read(bytes: &[u8; HEAD]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let head = Self { length: fields.u32()?, kind: fields.u32()?, number: fields.u64()? };
        (head.length <= LONGEST).then_some(head)
    }
}

/// Creates a message.
pub(crate) fn message(kind: u32, number: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD + body.len());
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(kind.to_le_bytes());
    bytes.extend(number.to_le_bytes());
    bytes.extend(body);
    bytes
}

/// Place of a buffer in its file, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// A column in shared memory: validity, values or offsets, and the data of texts, pictures and sounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ColumnPlace {
    pub(crate) code: u32,
    pub(crate) element: u32,
    pub(crate) rows: u64,
    pub(crate) nulls: u64,
    pub(crate) buffers: [Place; 3],
}

impl ColumnPlace {
    pub(crate) fn write(&self, body: &mut Vec<u8>) {
        body.extend(self.code.to_le_bytes());
        body.extend(self.element.to_le_bytes());
        body.extend(self.rows.to_le_bytes());
        body.extend(self.nulls.to_le_bytes());
        for place in &self.buffers {
            body.extend(place.offset.to_le_bytes());
            body.extend(place.length.to_le_bytes());
        }
    }

    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let (code, element) = (fields.u32()?, fields.u32()?);
        let (rows, nulls) = (fields.u64()?, fields.u64()?);
        Some(Self {
            code,
            element,
            rows,
            nulls,
            buffers: [fields.place()?, fields.place()?, fields.place()?],
        })
    }
}

/// Numbers of a type and of its elements.
pub(crate) fn codes(column_type: &ColumnType) -> (u32, u32) {
    match column_type {
        ColumnType::Text => (1, 0),
        ColumnType::Int64 => (2, 0),
        ColumnType::Float64 => (3, 0),
        ColumnType::Bool => (4, 0),
        ColumnType::Image => (5, 0),
        ColumnType::Audio => (6, 0),
        ColumnType::Bytes => (8, 0),
        ColumnType::Tensor { element, .. } => (
            7,
            match element {
                ElementType::Float32 => 1,
                ElementType::Float16 => 2,
                ElementType::Int64 => 3,
                ElementType::Uint8 => 4,
                ElementType::Float64 => 5,
                ElementType::Int32 => 6,
                ElementType::Int8 => 7,
                ElementType::Bool => 8,
                ElementType::Text => 9,
            },
        ),
    }
}

/// The columns of an answer, before their buffers are read.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) rows: u64,
    /// Processor time of the process so far, nanoseconds.
    pub(crate) processor_time: u64,
    pub(crate) is_one_for_one: bool,
    /// Whether arrays of the user still show the memory of this call.
    pub(crate) keeps_memory: bool,
    /// Where the row of the input of each row is; empty if the rows are one for one.
    pub(crate) origins: Place,
    pub(crate) columns: Vec<ColumnPlace>,
    /// Earlier calls whose memory no array shows any more.
    pub(crate) freed: Vec<u64>,
    pub(crate) rejected: Vec<Rejected>,
    /// Of a source: whether more records would have required waiting.
    pub(crate) has_caught_up: bool,
    /// Of a source: the position of the next record, in JSON.
    pub(crate) position: String,
}

impl Answer {
    /// Reads the body of an answer; `None` if it is none.
    pub(crate) fn read(body: &[u8]) -> Option<Self> {
        let mut fields = Fields(body);
        let (rows, processor_time) = (fields.u64()?, fields.u64()?);
        let (columns, flags) = (fields.u32()?, fields.u32()?);
        let (freed, rejected) = (fields.u32()?, fields.u32()?);
        let origins = fields.place()?;
        let columns = (0..columns).map(|_| ColumnPlace::read(&mut fields)).collect::<Option<Vec<_>>>()?;
        let freed = (0..freed).map(|_| fields.u64()).collect::<Option<Vec<_>>>()?;
        let text = fields.bytes(rejected as usize)?;
        let rejected = match text {
            [] => Vec::new(),
            text => serde_json::from_slice(text).ok()?,
        };
        let position = String::from_utf8(fields.0.to_vec()).ok()?;
        let is_one_for_one = flags & 1 != 0;
        Some(Self {
            rows,
            processor_time,
            is_one_for_one,
            keeps_memory: flags & 2 != 0,
            origins,
            columns,
            freed,
            rejected,
            has_caught_up: flags & 4 != 0,
            position,
        })
    }
}

/// Reads the place of a state.
pub(crate) fn place(body: &[u8]) -> Option<Place> {
    Fields(body).place()
}

/// Numbers one after the other.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(first)
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    fn place(&mut self) -> Option<Place> {
        Some(Place { offset: self.u64()?, length: self.u64()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_as_it_is_written_and_never_beyond_its_end() {
        let column = ColumnPlace {
            code: 2,
            element: 0,
            rows: 3,
            nulls: 1,
            buffers: [
                Place { offset: 4096, length: 1 },
                Place { offset: 4160, length: 24 },
                Place::default(),
            ],
        };
        let mut body = Vec::new();
        body.extend(3u64.to_le_bytes());
        body.extend(7u64.to_le_bytes());
        let rejected = br#"[{"row": 1, "reason": "python_error", "detail": "no"}]"#;
        for number in [1u32, 3, 1, rejected.len() as u32] {
            body.extend(number.to_le_bytes());
        }
        body.extend([0; 16]);
        column.write(&mut body);
        body.extend(5u64.to_le_bytes());
        body.extend(rejected);
        let answer = Answer::read(&body).unwrap();
        assert_eq!((answer.rows, answer.processor_time, answer.freed.as_slice()), (3, 7, &[5][..]));
        assert_eq!(answer.columns, [column]);
        assert!(answer.is_one_for_one && answer.keeps_memory);
        assert_eq!(answer.rejected[0].row, 1);
        for length in 0..body.len() {
            assert!(Answer::read(&body[..length]).is_none(), "{length}");
        }
    }

    #[test]
    fn a_head_names_no_giant_body() {
        let bytes: [u8; HEAD] = message(kind::RESULT, 9, b"").try_into().unwrap();
        assert_eq!(Head::read(&bytes), Some(Head { length: 0, kind: kind::RESULT, number: 9 }));
        let mut huge = bytes;
        huge[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Head::read(&huge), None);
    }
}
