//! Key values of rows, for joins and for the groups of windows.
use crate::columns::ScalarBuilder;
use crate::record::METADATA_COLUMNS;
use crate::relational::expression::Cell;
use crate::values::shortened_text;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray};
use serde_json::Value;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::OnceLock;
use tidemill_spec::types::ColumnType;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// One column of a key. The variants are in the order of emission: empty, false, true, numbers, texts by bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum KeyPart {
    Null,
    Bool(bool),
    Int(i64),
    Text(Box<str>),
}

/// A whole key.
pub(crate) type Key = Arc<[KeyPart]>;

/// Whether a column of this type can be part of a key.
pub(crate) fn is_key_type(column_type: &ColumnType) -> bool {
    matches!(column_type, ColumnType::Text | ColumnType::Int64 | ColumnType::Bool)
}

impl KeyPart {
    /// Appends the part to a column of its type.
    pub(crate) fn append_to(&self, builder: &mut ScalarBuilder) {
        let cell = match self {
            KeyPart::Null => Cell::Null,
            KeyPart::Bool(b) => Cell::Bool(*b),
            KeyPart::Int(i) => Cell::Int(*i),
            KeyPart::Text(text) => Cell::Text(text),
        };
        builder.append_cell(cell).expect("key parts keep the type of their column");
    }

    /// Returns the part as a printable value.
    pub(crate) fn shown(&self) -> Value {
        match self {
            KeyPart::Null => Value::Null,
            KeyPart::Bool(b) => (*b).into(),
            KeyPart::Int(i) => (*i).into(),
            KeyPart::Text(text) => shortened_text(text).into(),
        }
    }

    /// Appends an encoding that no other sequence of parts has.
    pub(crate) fn encode(&self, bytes: &mut Vec<u8>) {
        match self {
            KeyPart::Null => bytes.push(0),
            KeyPart::Bool(b) => bytes.extend([1, u8::from(*b)]),
            KeyPart::Int(i) => {
                bytes.push(2);
                bytes.extend(i.to_le_bytes());
            }
            KeyPart::Text(text) => {
                bytes.push(3);
                bytes.extend((text.len() as u64).to_le_bytes());
                bytes.extend(text.as_bytes());
            }
        }
    }

    /// Bytes of memory beside the part itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            KeyPart::Text(text) => text.len(),
            _ => 0,
        }
    }
}

enum KeyColumn<'a> {
    Text(&'a StringArray),
    Int(&'a Int64Array),
    Bool(&'a BooleanArray),
}

/// The key columns of one batch.
pub(crate) struct Keys<'a>(Vec<KeyColumn<'a>>);

/// Seed of the key hashes of this process, unknown to producers of records.
fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| RandomState::new().hash_one(0))
}

impl<'a> Keys<'a> {
    /// Reads the payload columns `indices` of a batch with metadata.
    pub(crate) fn of(batch: &'a RecordBatch, indices: &[usize]) -> Self {
        Self::from_arrays(indices.iter().map(|index| batch.column(METADATA_COLUMNS + index)))
    }

    /// Reads these arrays.
    pub(crate) fn from_arrays(arrays: impl Iterator<Item = &'a ArrayRef>) -> Self {
        Self(
            arrays
                .map(|array| {
                    let column = array
                        .as_string_opt::<i32>()
                        .map(KeyColumn::Text)
                        .or_else(|| array.as_primitive_opt::<Int64Type>().map(KeyColumn::Int))
                        .or_else(|| array.as_boolean_opt().map(KeyColumn::Bool));
                    column.expect("key columns are checked when the operator is bound")
                })
                .collect(),
        )
    }

    /// The key of a row.
    pub(crate) fn get(&self, row: usize) -> Key {
        self.0
            .iter()
            .map(|column| match column {
                KeyColumn::Text(array) if array.is_valid(row) => KeyPart::Text(array.value(row).into()),
                KeyColumn::Int(array) if array.is_valid(row) => KeyPart::Int(array.value(row)),
                KeyColumn::Bool(array) if array.is_valid(row) => KeyPart::Bool(array.value(row)),
                _ => KeyPart::Null,
            })
            .collect()
    }

    /// A hash of the key of a row: equal for equal keys, in one process.
    pub(crate) fn hash(&self, row: usize) -> u64 {
        let seed = seed();
        self.0.iter().fold(seed, |hash: u64, column| {
            let part = match column {
                KeyColumn::Text(array) if array.is_valid(row) => {
                    xxh3_64_with_seed(array.value(row).as_bytes(), seed)
                }
                KeyColumn::Int(array) if array.is_valid(row) => {
                    xxh3_64_with_seed(&array.value(row).to_le_bytes(), seed)
                }
                KeyColumn::Bool(array) if array.is_valid(row) => 1 + u64::from(array.value(row)),
                _ => 0,
            };
            (hash.rotate_left(29) ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        })
    }

    /// Whether a row has this key.
    pub(crate) fn is_at(&self, row: usize, key: &Key) -> bool {
        self.0.iter().zip(key.iter()).all(|(column, part)| match (column, part) {
            (KeyColumn::Text(array), KeyPart::Text(text)) => {
                array.is_valid(row) && array.value(row) == &**text
            }
            (KeyColumn::Int(array), KeyPart::Int(value)) => array.is_valid(row) && array.value(row) == *value,
            (KeyColumn::Bool(array), KeyPart::Bool(value)) => {
                array.is_valid(row) && array.value(row) == *value
            }
            (KeyColumn::Text(array), KeyPart::Null) => array.is_null(row),
            (KeyColumn::Int(array), KeyPart::Null) => array.is_null(row),
            (KeyColumn::Bool(array), KeyPart::Null) => array.is_null(row),
            _ => false,
        })
    }

    /// Appends an encoding of the key of a row that no other key of these columns has; `false` if a part of it is
    /// empty.
    pub(crate) fn encode(&self, row: usize, bytes: &mut Vec<u8>) -> bool {
        self.0.iter().all(|column| match column {
            KeyColumn::Text(array) if array.is_valid(row) => {
                let text = array.value(row);
                bytes.extend((text.len() as u64).to_le_bytes());
                bytes.extend(text.as_bytes());
                true
            }
            KeyColumn::Int(array) if array.is_valid(row) => {
                bytes.extend(array.value(row).to_le_bytes());
                true
            }
            KeyColumn::Bool(array) if array.is_valid(row) => {
                bytes.push(u8::from(array.value(row)));
                true
            }
            _ => false,
        })
    }
}
