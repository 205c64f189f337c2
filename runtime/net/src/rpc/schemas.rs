//! Schemas that programs showed, and how those of two sides fit.
use arrow_array::{
    ArrayRef, BooleanArray, FixedSizeBinaryArray, Float64Array, Int8Array, Int64Array, RecordBatch,
    StringArray, UInt32Array, UInt64Array,
};
use arrow_schema::SchemaRef;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use tidemill_operators::record::{METADATA_COLUMNS, record_schema};
use tidemill_schema::{Kind, MethodFit, Presence, Schema, Value, service_fits};
use tidemill_spec::types::{Column, ColumnType, StreamType};

/// Schemas that are kept.
const MOST: usize = 256;
/// Schemas in use that programs of one user showed.
const MOST_OF_USER: usize = 64;
/// Bytes of a schema.
const MOST_BYTES: usize = 1 << 20;
/// Pairs of schemas whose fit is kept.
const MOST_FITS: usize = 1024;

/// A schema, by the digest of its bytes.
pub(crate) struct Known {
    pub(crate) digest: String,
    pub(crate) schema: Schema,
    /// The user whose program showed it first.
    user: u32,
    number: u64,
}

/// How the methods of a client's schema are served by another one's.
pub(crate) type Fits = Result<Vec<MethodFit>, String>;

/// How the services of two schemas fit.
type FitsOfPair = Vec<(String, Rc<Fits>)>;

#[derive(Default)]
pub(crate) struct Schemas {
    known: HashMap<String, Rc<Known>>,
    /// By the numbers of both schemas, for each service.
    fits: HashMap<(u64, u64), FitsOfPair>,
    next: u64,
}

impl Schemas {
    pub(crate) fn get(&self, digest: &str) -> Option<Rc<Known>> {
        self.known.get(digest).map(Rc::clone)
    }

    /// Takes a schema that a program showed. It is compiled here, once.
    pub(crate) fn add(&mut self, bytes: &[u8], user: u32) -> Result<Rc<Known>, String> {
        if bytes.len() > MOST_BYTES {
            return Err(format!("a schema of {} bytes, {MOST_BYTES} are the most", bytes.len()));
        }
        let digest = tidemill_schema::Hash::of(bytes).to_string();
        if let Some(known) = self.get(&digest) {
            return Ok(known);
        }
        let in_use = |known: &&Rc<Known>| known.user == user && Rc::strong_count(known) > 1;
        if self.known.values().filter(in_use).count() >= MOST_OF_USER {
            return Err(format!("programs of user {user} have {MOST_OF_USER} schemas in use already"));
        }
        if self.known.len() >= MOST {
            self.known.retain(|_, known| Rc::strong_count(known) > 1);
            self.fits.clear();
            if self.known.len() >= MOST {
                return Err(format!("this host has {MOST} schemas in use already"));
            }
        }
        let schema = Schema::from_bytes(bytes).map_err(|error| error.to_string())?;
        let known = Rc::new(Known { digest: digest.clone(), schema, user, number: self.next });
        self.next += 1;
        self.known.insert(digest, Rc::clone(&known));
        Ok(known)
    }

    /// Returns how the methods of a service fit.
    pub(crate) fn fits(&mut self, client: &Known, server: &Known, service: &str) -> Rc<Fits> {
        if self.fits.len() >= MOST_FITS {
            self.fits.clear();
        }
        let of_pair = self.fits.entry((client.number, server.number)).or_default();
        if let Some((_, fits)) = of_pair.iter().find(|(name, _)| name == service) {
            return Rc::clone(fits);
        }
        let fits = service_fits((&client.schema, service), (&server.schema, service));
        let fits = Rc::new(fits.map_err(|error| error.to_string()));
        of_pair.push((service.to_owned(), Rc::clone(&fits)));
        fits
    }
}

/// The simple fields of a message as columns, for policies.
pub(crate) struct Columns {
    pub(crate) stream: StreamType,
    schema: SchemaRef,
    /// Columns that conditions do not read, though records have them.
    metadata: [ArrayRef; METADATA_COLUMNS],
    /// Their indexes among the fields.
    fields: Vec<usize>,
    known: Rc<Known>,
    message: usize,
}

fn column_type(kind: &Kind) -> Option<ColumnType> {
    Some(match kind {
        Kind::Double | Kind::Float => ColumnType::Float64,
        Kind::Bool => ColumnType::Bool,
        Kind::String => ColumnType::Text,
        Kind::Bytes | Kind::Message(_) => return None,
        _ => ColumnType::Int64,
    })
}

impl Columns {
    pub(crate) fn new(known: Rc<Known>, message: usize) -> Self {
        let layout = known.schema.message(message);
        let simple = layout.fields().iter().enumerate().filter(|(_, field)| !field.repeated);
        let (fields, columns): (Vec<usize>, Vec<Column>) = simple
            .filter_map(|(at, field)| Some((at, Column::new(&field.name, column_type(&field.kind)?))))
            .unzip();
        let stream = StreamType::new(columns);
        let id = FixedSizeBinaryArray::new(16, arrow_buffer::Buffer::from_vec(vec![0u8; 16]), None);
        let metadata: [ArrayRef; METADATA_COLUMNS] = [
            Arc::new(id),
            Arc::new(UInt32Array::from(vec![0])),
            Arc::new(UInt64Array::from(vec![0])),
            Arc::new(Int64Array::from(vec![0])),
            Arc::new(Int64Array::from(vec![0])),
            Arc::new(UInt32Array::from(vec![0])),
            Arc::new(Int8Array::from(vec![1])),
        ];
        Self { schema: record_schema(&stream), metadata, stream, fields, known, message }
    }

    /// Reads one record.
    pub(crate) fn read(&self, flat: &[u8]) -> Result<RecordBatch, String> {
        let layout = self.known.schema.message(self.message);
        if flat.len() < layout.size() {
            return Err("the first part of the message is not whole".to_owned());
        }
        let is_present = |at: usize| flat.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1);
        for at in &self.fields {
            // What lies elsewhere could be changed after it was judged.
            if is_present(*at) && layout.get(&self.known.schema, flat, *at).is_none() {
                let name = &layout.fields()[*at].name;
                return Err(format!("field {name} does not lie in the first part of the message"));
            }
        }
        let column = |(at, column): (&usize, &Column)| -> ArrayRef {
            let value = layout.get(&self.known.schema, flat, *at);
            // A field without presence that is not there has its default.
            let is_default = value.is_none() && layout.fields()[*at].presence == Presence::Implicit;
            match column.column_type {
                ColumnType::Float64 => Arc::new(Float64Array::from(vec![match value {
                    Some(Value::F64(value)) => Some(value),
                    Some(Value::F32(value)) => Some(f64::from(value)),
                    _ => is_default.then_some(0.0),
                }])),
                ColumnType::Bool => Arc::new(BooleanArray::from(vec![match value {
                    Some(Value::Bool(value)) => Some(value),
                    _ => is_default.then_some(false),
                }])),
                ColumnType::Text => Arc::new(StringArray::from(vec![match value {
                    Some(Value::Str(value)) => Some(value),
                    _ => is_default.then_some(""),
                }])),
                _ => Arc::new(Int64Array::from(vec![match value {
                    Some(Value::I64(value)) => Some(value),
                    // A number that no record has is none.
                    Some(Value::U64(value)) => i64::try_from(value).ok(),
                    _ => is_default.then_some(0),
                }])),
            }
        };
        let columns = self.fields.iter().zip(&self.stream.columns).map(column);
        let columns = self.metadata.iter().cloned().chain(columns).collect();
        RecordBatch::try_new(SchemaRef::clone(&self.schema), columns).map_err(|error| error.to_string())
    }
}
