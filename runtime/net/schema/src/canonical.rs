//! Hashes of schemas.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::descriptor::Enums;
use crate::layout::{Kind, Layout, Presence, Service};

/// Hash of a schema: two schemas with the same hash have the same services with the same messages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// Hashes bytes as they are, without reading them: a name for a set of descriptors.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hash({self})")
    }
}

/// Writer of the canonical form: every text has its length before it, so that no two forms run into each other.
struct Form(Sha256);

impl Form {
    fn number(&mut self, number: u64) {
        self.0.update(number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.update(text.as_bytes());
    }
}

/// Computes the hash over the services and what they reach; without services, over all messages.
pub(crate) fn hash(services: &[Service], messages: &[Layout], enums: &Enums) -> Hash {
    let mut reached = vec![services.is_empty(); messages.len()];
    let mut open: Vec<usize> = services
        .iter()
        .flat_map(|service| &service.methods)
        .flat_map(|method| [method.input, method.output])
        .collect();
    while let Some(index) = open.pop() {
        if std::mem::replace(&mut reached[index], true) {
            continue;
        }
        for field in &messages[index].fields {
            if let Kind::Message(next) = field.kind {
                open.push(next);
            }
        }
    }
    let mut form = Form(Sha256::new());
    form.text("tidemill schema 1");
    form.number(services.len() as u64);
    for service in services {
        form.text(&service.name);
        form.number(service.methods.len() as u64);
        for method in &service.methods {
            form.text(&method.name);
            form.text(&messages[method.input].name);
            form.text(&messages[method.output].name);
            let flags = [method.client_streaming, method.server_streaming, method.is_idempotent];
            form.number(flags.iter().fold(0, |bits, flag| bits << 1 | u64::from(*flag)));
        }
    }
    let mut layouts: Vec<&Layout> =
        messages.iter().zip(&reached).filter(|(_, reached)| **reached).map(|(layout, _)| layout).collect();
    layouts.sort_by(|a, b| a.name.cmp(&b.name));
    let mut named: Vec<&str> = Vec::new();
    form.number(layouts.len() as u64);
    for layout in layouts {
        form.text(&layout.name);
        form.number(u64::from(layout.map_entry));
        form.number(layout.fields.len() as u64);
        for field in &layout.fields {
            form.number(u64::from(field.number));
            form.text(&field.name);
            form.text(&field.json_name);
            form.text(field.kind.name());
            form.text(&field.type_name);
            form.number(match field.presence {
                Presence::Implicit => 0,
                Presence::Explicit => 1,
                Presence::Repeated => 2,
            });
            form.number(u64::from(field.packed));
            form.number(field.oneof.map_or(0, |oneof| oneof as u64 + 1));
            if field.kind == Kind::Enum {
                named.push(&field.type_name);
            }
        }
    }
    named.sort_unstable();
    named.dedup();
    for name in named {
        form.text(name);
        let values = enums.get(name).map(Vec::as_slice).unwrap_or_default();
        form.number(values.len() as u64);
        for (value, number) in values {
            form.text(value);
            form.number(i64::from(*number) as u64);
        }
    }
    Hash(form.0.finalize().into())
}
