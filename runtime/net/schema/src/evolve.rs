//! Conversions between versions of a schema.

use std::collections::HashMap;

use crate::Invalid;
use crate::check::present;
use crate::descriptor::Schema;
use crate::flat::{self, MAX_MESSAGE, align, pair, reserve, unpair, word};
use crate::layout::{Field, Kind, Layout, Presence};
use crate::wire::{slot_to_varint, varint_to_slot};

/// Difference between two schemas that no conversion can bridge.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// A field has types that do not go together.
    #[error(
        "field {number} of message {message}: the sender has `{from}` as {from_type}, the receiver has `{to}` as \
         {to_type}; give the new field a number that was never used, or bring both sides to one version"
    )]
    Field {
        /// Full name of the receiver's message.
        message: String,
        /// Number of the field.
        number: u32,
        /// Name of the sender's field.
        from: String,
        /// Type of the sender's field.
        from_type: String,
        /// Name of the receiver's field.
        to: String,
        /// Type of the receiver's field.
        to_type: String,
    },
    /// A service is not in a schema.
    #[error("the {side} has no service {service}; look whether its package and name are right")]
    NoService {
        /// Side that lacks it: `client` or `server`.
        side: &'static str,
        /// Full name of the service.
        service: String,
    },
    /// A method streams on one side and not on the other.
    #[error(
        "method {method}: the client has it {client}, the server has it {server}; give the changed method another name"
    )]
    Streaming {
        /// Full name of the method.
        method: String,
        /// Streams of the client's method.
        client: &'static str,
        /// Streams of the server's method.
        server: &'static str,
    },
    /// The schemas are so tangled that their conversion would be too large.
    #[error(
        "the conversions between the two schemas have more than {MAX_PARTS} messages and fields; use fewer of them"
    )]
    TooLarge,
    /// An index is not from its schema.
    #[error("message {0} is not in the schema")]
    NoMessage(usize),
}

/// Number of messages and fields that the conversions of a service may have.
const MAX_PARTS: usize = 1 << 22;

/// Change of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Keeps the slot.
    Keep,
    /// Goes through the wire form of numbers, as protobuf would.
    Number(Kind, Kind),
    /// Copies bytes or text.
    Text { check: bool },
    /// Converts a message by the plan with this index.
    Plan(usize),
}

/// Pair of a field of the sender and one of the receiver.
#[derive(Clone, Copy, Debug)]
struct Way {
    from: usize,
    to: usize,
    step: Step,
}

/// Conversion of one message.
#[derive(Clone, Debug)]
struct Plan {
    from: usize,
    to: usize,
    ways: Vec<Way>,
    /// Whether the struct stays as it is, apart from what it points at.
    same: bool,
}

/// Conversion of flat messages from one version of a schema to another, by protobuf's rules.
#[derive(Clone, Debug)]
pub struct Conversion {
    from: Schema,
    to: Schema,
    plans: Vec<Plan>,
    identity: bool,
}

impl Conversion {
    /// Finds the conversion from a message of one schema to a message of another. Fields go together by number.
    ///
    /// Fields may come and go. `int32`, `int64`, `uint32`, `uint64`, `bool` and, but for `bool`, enums go together and
    /// lose high bits; `sint32` goes with `sint64`; `fixed32` with `sfixed32`; `fixed64` with `sfixed64`; `bytes` with
    /// `string`, which must be UTF-8 then. A single field does not go with a repeated one.
    ///
    /// # Errors
    ///
    /// A field that both have with types that do not go together.
    pub fn between(from: (&Schema, usize), to: (&Schema, usize)) -> Result<Self, Mismatch> {
        Self::within(from, to, &mut { MAX_PARTS })
    }

    /// Finds a conversion of no more than some messages and fields, which it takes off.
    fn within(from: (&Schema, usize), to: (&Schema, usize), parts: &mut usize) -> Result<Self, Mismatch> {
        let mut plans = Vec::new();
        let mut known = HashMap::from([((from.1, to.1), 0)]);
        let mut open = vec![(from.1, to.1)];
        while let Some(pair) = open.get(plans.len()).copied() {
            let source = from.0.layout(pair.0).ok_or(Mismatch::NoMessage(pair.0))?;
            let target = to.0.layout(pair.1).ok_or(Mismatch::NoMessage(pair.1))?;
            *parts = parts.checked_sub(1 + target.fields.len()).ok_or(Mismatch::TooLarge)?;
            let mut ways = Vec::new();
            for (index, field) in target.fields.iter().enumerate() {
                let Some(other) = source.field_numbered(field.number) else { continue };
                let step = step(&source.fields[other], field, |pair| {
                    *known.entry(pair).or_insert_with(|| {
                        open.push(pair);
                        open.len() - 1
                    })
                });
                let step = step.ok_or_else(|| mismatch(target, &source.fields[other], field))?;
                ways.push(Way { from: other, to: index, step });
            }
            let same = same(source, target, &ways);
            plans.push(Plan { from: pair.0, to: pair.1, ways, same });
        }
        let identity = plans.iter().all(|plan| plan.same);
        Ok(Self { from: from.0.clone(), to: to.0.clone(), plans, identity })
    }

    /// Says whether messages stay as they are.
    pub fn is_identity(&self) -> bool {
        self.identity
    }

    /// Converts a flat message in one address space to another. It checks the message first, so bytes from a stranger
    /// need no other check.
    ///
    /// # Errors
    ///
    /// Bytes that are no message of the sender, bytes that the receiver takes for text and that are not UTF-8, and
    /// messages that become too large.
    pub fn convert(&self, flat: &[u8]) -> Result<Vec<u8>, Invalid> {
        let (Some(root), Some(plan)) =
            (self.plans.first().and_then(|plan| self.from.layout(plan.from)), self.plans.first())
        else {
            return Err(Invalid::Size);
        };
        root.check(&self.from, flat)?;
        if self.identity {
            return Ok(flat.to_vec());
        }
        let mut copy = Copy { conversion: self, source: flat, target: Vec::with_capacity(flat.len()) };
        let at = copy.reserve(self.to.layout(plan.to).ok_or(Invalid::Size)?.size)?;
        copy.message(plan, 0, at)?;
        Ok(copy.target)
    }
}

/// Finds the step between two fields of one number.
fn step(from: &Field, to: &Field, plan: impl FnOnce((usize, usize)) -> usize) -> Option<Step> {
    use Kind::{
        Bool, Bytes, Enum, Fixed32, Fixed64, Int32, Int64, Sfixed32, Sfixed64, Sint32, Sint64, String,
        Uint32, Uint64,
    };
    if from.repeated != to.repeated {
        return None;
    }
    Some(match (from.kind, to.kind) {
        (Kind::Message(a), Kind::Message(b)) => Step::Plan(plan((a, b))),
        (String, String | Bytes) | (Bytes, Bytes) => Step::Text { check: false },
        (Bytes, String) => Step::Text { check: true },
        (a, b) if a == b => Step::Keep,
        (Bool, Enum) | (Enum, Bool) => return None,
        (
            a @ (Int32 | Int64 | Uint32 | Uint64 | Bool | Enum),
            b @ (Int32 | Int64 | Uint32 | Uint64 | Bool | Enum),
        )
        | (a @ (Sint32 | Sint64), b @ (Sint32 | Sint64))
        | (a @ (Fixed32 | Sfixed32), b @ (Fixed32 | Sfixed32))
        | (a @ (Fixed64 | Sfixed64), b @ (Fixed64 | Sfixed64)) => Step::Number(a, b),
        _ => return None,
    })
}

/// Says whether the struct of one is also a struct of the other.
fn same(source: &Layout, target: &Layout, ways: &[Way]) -> bool {
    source.fields.len() == target.fields.len()
        && ways.len() == target.fields.len()
        && ways.iter().all(|way| {
            let (from, to) = (&source.fields[way.from], &target.fields[way.to]);
            let kind = match way.step {
                Step::Keep | Step::Plan(_) => true,
                Step::Text { check } => !check,
                // Wider numbers, and enums as numbers, have the same slots.
                Step::Number(a, b) => matches!(
                    (a, b),
                    (Kind::Enum, Kind::Int32 | Kind::Int64)
                        | (Kind::Int32, Kind::Enum | Kind::Int64)
                        | (Kind::Uint32 | Kind::Bool, Kind::Uint64 | Kind::Int64)
                        | (Kind::Bool, Kind::Int32 | Kind::Uint32)
                        | (Kind::Int64, Kind::Uint64)
                        | (Kind::Uint64, Kind::Int64)
                        | (Kind::Int32 | Kind::Enum, Kind::Uint64)
                        | (Kind::Sint32, Kind::Sint64)
                        | (Kind::Fixed64, Kind::Sfixed64)
                        | (Kind::Sfixed64, Kind::Fixed64)
                ),
            };
            let presence = from.presence == to.presence || to.presence == Presence::Explicit;
            kind && presence && (to.oneof.is_none() || from.oneof == to.oneof)
        })
}

fn mismatch(message: &Layout, from: &Field, to: &Field) -> Mismatch {
    let type_of = |field: &Field| {
        let repeated = if field.repeated { "repeated " } else { "" };
        let name = if field.type_name.is_empty() { field.kind.name() } else { field.type_name.as_str() };
        format!("{repeated}{name}")
    };
    Mismatch::Field {
        message: message.name.clone(),
        number: to.number,
        from: from.name.clone(),
        from_type: type_of(from),
        to: to.name.clone(),
        to_type: type_of(to),
    }
}

struct Copy<'a> {
    conversion: &'a Conversion,
    source: &'a [u8],
    target: Vec<u8>,
}

impl Copy<'_> {
    fn reserve(&mut self, length: usize) -> Result<usize, Invalid> {
        if align(self.target.len()) + length > MAX_MESSAGE {
            return Err(Invalid::TooLarge);
        }
        Ok(reserve(&mut self.target, length))
    }

    /// Converts a checked struct into the struct at a place.
    fn message(&mut self, plan: &Plan, from_at: usize, to_at: usize) -> Result<(), Invalid> {
        let conversion = self.conversion;
        let source = conversion.from.layout(plan.from).ok_or(Invalid::Size)?;
        let target = conversion.to.layout(plan.to).ok_or(Invalid::Size)?;
        let mut last = vec![None; target.oneofs.len()];
        for way in &plan.ways {
            let Some(slot) = present(self.source, from_at, source.words, way.from) else { continue };
            let Some(field) = target.fields.get(way.to) else { continue };
            let slot = if field.repeated {
                let (array, count) = unpair(slot);
                let copy = self.reserve(count * 8)?;
                for element in 0..count {
                    let slot = word(self.source, array + element * 8).ok_or(Invalid::Outside)?;
                    let slot = self.value(way.step, slot)?;
                    flat::put(&mut self.target, copy + element * 8, slot);
                }
                pair(copy, count)
            } else {
                self.value(way.step, slot)?
            };
            let is_default = if field.kind.is_pointer() { unpair(slot).1 == 0 } else { slot == 0 };
            // The last one of a oneof wins, as on the wire: fields that became its members may both be there.
            if let Some(last) = field.oneof.and_then(|oneof| last.get_mut(oneof))
                && let Some(member) = last.replace(way.to)
            {
                flat::clear(&mut self.target, to_at, target.words, member);
            }
            if !(is_default && field.presence == Presence::Implicit) {
                flat::set(&mut self.target, to_at, target.words, way.to, slot);
            }
        }
        Ok(())
    }

    fn value(&mut self, step: Step, slot: u64) -> Result<u64, Invalid> {
        match step {
            Step::Keep => Ok(slot),
            Step::Number(from, to) => Ok(match to {
                Kind::Sfixed32 => i64::from(slot as i32) as u64,
                Kind::Fixed32 => u64::from(slot as u32),
                _ => varint_to_slot(to, slot_to_varint(from, slot)),
            }),
            Step::Text { check } => {
                let (offset, length) = unpair(slot);
                let bytes = self.source.get(offset..offset + length).ok_or(Invalid::Outside)?;
                if check {
                    std::str::from_utf8(bytes).map_err(|_| Invalid::Text)?;
                }
                if align(self.target.len()) + length > MAX_MESSAGE {
                    return Err(Invalid::TooLarge);
                }
                Ok(flat::append(&mut self.target, bytes))
            }
            Step::Plan(index) => {
                let conversion = self.conversion;
                let plan = conversion.plans.get(index).ok_or(Invalid::Size)?;
                let size = conversion.to.layout(plan.to).ok_or(Invalid::Size)?.size;
                let at = if size == 0 { 0 } else { self.reserve(size)? };
                self.message(plan, unpair(slot).0, at)?;
                Ok(pair(at, size))
            }
        }
    }
}

/// Fit of one method of the client.
#[derive(Clone, Debug)]
pub struct MethodFit {
    /// Index of the server's method; none if the server lacks it, and calls end as not implemented.
    pub server_method: Option<u32>,
    /// Conversion of the request from the client's message to the server's.
    pub request: Conversion,
    /// Conversion of the reply from the server's message to the client's.
    pub reply: Conversion,
}

/// Fits a client's version of a service to a server's; gives one fit for each of the client's methods, in their order.
/// Methods go together by name.
///
/// # Errors
///
/// A service that is not there, a method that streams on one side only, and messages that do not go together.
pub fn service_fits(client: (&Schema, &str), server: (&Schema, &str)) -> Result<Vec<MethodFit>, Mismatch> {
    let find = |side, (schema, service): (&Schema, &str)| {
        schema
            .service(service)
            .cloned()
            .ok_or_else(|| Mismatch::NoService { side, service: service.to_owned() })
    };
    let ours = find("client", client)?;
    let theirs = find("server", server)?;
    let (client, server) = (client.0, server.0);
    let by_name: HashMap<&str, usize> =
        theirs.methods.iter().enumerate().map(|(index, method)| (method.name.as_str(), index)).collect();
    let mut parts = MAX_PARTS;
    let mut fits = Vec::with_capacity(ours.methods.len());
    for method in &ours.methods {
        let found =
            by_name.get(method.name.as_str()).and_then(|index| Some((*index, theirs.methods.get(*index)?)));
        let Some((index, other)) = found else {
            let request = Conversion::within((client, method.input), (client, method.input), &mut parts)?;
            let reply = Conversion::within((client, method.output), (client, method.output), &mut parts)?;
            fits.push(MethodFit { server_method: None, request, reply });
            continue;
        };
        let streams = |client, server| match (client, server) {
            (false, false) => "without streams",
            (true, false) => "with a stream of requests",
            (false, true) => "with a stream of replies",
            (true, true) => "with streams both ways",
        };
        let client_has = streams(method.client_streaming, method.server_streaming);
        let server_has = streams(other.client_streaming, other.server_streaming);
        if client_has != server_has {
            let method = format!("{}.{}", ours.name, method.name);
            return Err(Mismatch::Streaming { method, client: client_has, server: server_has });
        }
        fits.push(MethodFit {
            server_method: u32::try_from(index).ok(),
            request: Conversion::within((client, method.input), (server, other.input), &mut parts)?,
            reply: Conversion::within((server, other.output), (client, method.output), &mut parts)?,
        });
    }
    Ok(fits)
}
