//! Positions through serde: [`Located`] and [`Value`] request themselves by a name that the deserializer knows.
use super::deserialize_recovering;
use crate::diagnostic::Diagnostics;
use crate::span::{Located, Span};
use crate::value::Value;
use serde::de::{self, DeserializeOwned};
use serde::{Deserialize, Deserializer};
use std::cell::RefCell;
use std::fmt;

/// Name by which [`Located`] requests its position.
pub(super) const LOCATED: &str = "__tidemill_located";
/// Name by which [`Value`] requests itself.
pub(super) const VALUE: &str = "__tidemill_value";

thread_local! {
    // Serde's data model has no room for positions, so they are passed here, between two adjacent calls.
    pub(super) static SPAN: RefCell<Option<Span>> = const { RefCell::new(None) };
    pub(super) static TREE: RefCell<Option<Value>> = const { RefCell::new(None) };
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Located<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Visitor<T> {
            type Value = Located<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_newtype_struct<D: Deserializer<'de>>(
                self,
                deserializer: D,
            ) -> Result<Located<T>, D::Error> {
                // The value's own deserializer has stored the position just before this call.
                let span = SPAN.take().unwrap_or_default();
                Ok(Located { value: T::deserialize(deserializer)?, span })
            }
        }
        deserializer.deserialize_newtype_struct(LOCATED, Visitor(std::marker::PhantomData))
    }
}

/// Keeps the places if the data comes from a [`Value`].
impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Value;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }
            fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
                match TREE.take() {
                    Some(value) => {
                        de::IgnoredAny::deserialize(deserializer)?;
                        Ok(value)
                    }
                    None => Ok((&serde_json::Value::deserialize(deserializer)?).into()),
                }
            }
        }
        deserializer.deserialize_newtype_struct(VALUE, Visitor)
    }
}

impl Value {
    /// Converts into a type of the program. Unknown keys (for types with `deny_unknown_fields`), missing keys and wrong
    /// values are errors at their place; as many as possible are found at once.
    pub fn deserialize_into<T: DeserializeOwned>(&self) -> Result<T, Diagnostics> {
        deserialize_recovering(self)
    }
}
