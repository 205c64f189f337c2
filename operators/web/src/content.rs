//! Bodies of requests as rows: a JSON object, or a picture or sound with a key.
use arrow_array::builder::{BinaryBuilder, StringBuilder};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::SchemaRef;
use std::sync::Arc;
use tidemill_http::server::Bytes;
use tidemill_operators::sources::objects::{Objects, Row, RowBuilder};
use tidemill_operators::sources::{image_directory, wav_directory};
use tidemill_spec::types::{Column, ColumnType, StreamType};

/// Form of a body.
pub(crate) enum Form {
    /// A JSON object with these columns.
    Object(Objects),
    /// A picture of so many pixels at most.
    Image(u64),
    /// A sound.
    Audio,
}

/// The values of a record.
pub(crate) enum Content {
    Row(Row),
    /// The key, and the file.
    File(String, Bytes),
}

/// Why a body is refused, as the answer says it.
pub(crate) struct Refusal {
    pub(crate) reason: &'static str,
    pub(crate) detail: String,
    /// Line and column of the finding.
    pub(crate) place: Option<(usize, usize)>,
}

impl Form {
    /// The columns of the records.
    pub(crate) fn output(&self) -> StreamType {
        let file = |name, of| StreamType::new([Column::new("key", ColumnType::Text), Column::new(name, of)]);
        match self {
            Self::Object(objects) => StreamType::new(objects.columns().iter().cloned()),
            Self::Image(_) => file("image", ColumnType::Image),
            Self::Audio => file("audio", ColumnType::Audio),
        }
    }

    /// Reads a body; `key` names a file.
    pub(crate) fn read(&self, body: Bytes, key: impl FnOnce() -> String) -> Result<Content, Refusal> {
        let unreadable = |(reason, detail)| Refusal { reason, detail, place: None };
        match self {
            Self::Object(objects) => objects.read(&body).map(Content::Row).map_err(|mistake| Refusal {
                reason: mistake.reason,
                detail: mistake.detail,
                place: Some((mistake.line, mistake.column)),
            }),
            Self::Image(pixels) => {
                image_directory::check(&body, *pixels).map_err(unreadable)?;
                Ok(Content::File(key(), body))
            }
            Self::Audio => {
                wav_directory::check(&body).map_err(unreadable)?;
                Ok(Content::File(key(), body))
            }
        }
    }

    /// The records as a batch.
    pub(crate) fn batch(&self, schema: &SchemaRef, rows: &[Content]) -> Result<RecordBatch, String> {
        let columns: Vec<ArrayRef> = match self {
            Self::Object(objects) => {
                let mut builder = RowBuilder::new(objects.columns());
                for row in rows {
                    if let Content::Row(row) = row {
                        builder.append(row)?;
                    }
                }
                builder.finish()
            }
            Self::Image(_) | Self::Audio => {
                let (mut keys, mut files) = (StringBuilder::new(), BinaryBuilder::new());
                for row in rows {
                    if let Content::File(key, file) = row {
                        keys.append_value(key);
                        files.append_value(file);
                    }
                }
                vec![Arc::new(keys.finish()), Arc::new(files.finish())]
            }
        };
        RecordBatch::try_new(Arc::clone(schema), columns).map_err(|error| error.to_string())
    }
}

impl Content {
    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Row(row) => row.bytes(),
            Self::File(key, file) => key.len() + file.len(),
        }
    }
}
