//! Serde and JSON Schema of the units: all of them are strings.
use super::{Bandwidth, Bytes, HourlyPrice, Percent, Percentile, Rate, SoundLength, TimeSpan, TransferPrice};
use crate::deserializer::coded;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

/// Reads a unit from text; rejects a number, with a correction.
struct UnitVisitor<T> {
    what: &'static str,
    unit: PhantomData<T>,
}

impl<T: FromStr<Err = super::UnitError>> UnitVisitor<T> {
    fn parse<E: de::Error>(text: &str) -> Result<T, E> {
        text.parse().map_err(|error: super::UnitError| E::custom(coded("E0106", &error.message, &error.help)))
    }
}

impl<T: FromStr<Err = super::UnitError>> Visitor<'_> for UnitVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        Self::parse(text)
    }
    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        Self::parse(&number.to_string())
    }
    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        Self::parse(&number.to_string())
    }
    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        Self::parse(&number.to_string())
    }
}

macro_rules! text_unit {
    ($($unit:ident, $what:literal, $pattern:literal, $description:literal, $examples:tt;)*) => {$(
        impl Serialize for $unit {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $unit {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(UnitVisitor { what: $what, unit: PhantomData })
            }
        }

        impl JsonSchema for $unit {
            fn schema_name() -> Cow<'static, str> {
                stringify!($unit).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({
                    "type": "string",
                    "description": $description,
                    // A variable is allowed too.
                    "pattern": concat!("^\\s*(", $pattern, ")\\s*$|\\$\\{"),
                    "examples": $examples
                })
            }
        }
    )*};
}

text_unit! {
    Bytes, "a quantity of data such as `64MiB`", "[0-9]+(\\.[0-9]+)?\\s*(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)",
        "A quantity of data: a number and B, kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024).",
        ["64MiB", "1.5GB"];
    TimeSpan, "a length of time such as `250ms`", "[0-9]+(\\.[0-9]+)?\\s*(ns|us|ms|s|min|h|d)",
        "A length of time: a number and ns, us, ms, s, min, h or d (24 h).",
        ["250ms", "10s"];
    SoundLength, "a length of sound such as `80ms` or `1280 samples`",
        "[0-9]+(\\.[0-9]+)?\\s*(ns|us|ms|s|min|h|d)|[0-9]+\\s*samples?",
        "A length of sound: a number and ns, us, ms, s, min, h or d, or a whole number of samples.",
        ["80ms", "1280 samples"];
    Rate, "a rate such as `40/s`", "[0-9]+(\\.[0-9]+)?\\s*(/s|fps|/min|/h)",
        "Events per time: a number and /s, fps, /min or /h.",
        ["40/s", "30fps"];
    Percent, "a percentage such as `56.0%`", "[0-9]+(\\.[0-9]+)?\\s*%",
        "A percentage from 0% to 100%.",
        ["56.0%"];
    HourlyPrice, "a price per hour such as `0.096 $/h`",
        "[0-9]+(\\.[0-9]+)?\\s*\\$/\\s*h|\\$\\s*[0-9]+(\\.[0-9]+)?\\s*/\\s*h",
        "A price in dollars per hour.",
        ["0.096 $/h", "$0.096/h"];
    TransferPrice, "a price of traffic such as `0.1 $/GiB`",
        "[0-9]+(\\.[0-9]+)?\\s*\\$/\\s*[kMGTKi]*B|\\$\\s*[0-9]+(\\.[0-9]+)?\\s*/\\s*[kMGTKi]*B",
        "A price in dollars per quantity of data.",
        ["0.1 $/GiB", "$0.09/GB"];
    Bandwidth, "a bandwidth such as `10Mbps`",
        "[0-9]+(\\.[0-9]+)?\\s*([kMGT]?bps|([kMGT]|[KMGT]i)?B/s)",
        "A bandwidth: a number and bps, kbps, Mbps, Gbps, Tbps (bits) or kB/s, MB/s, MiB/s (bytes).",
        ["10Mbps", "1Gbps"];
    Percentile, "a percentile such as `p99`", "p[0-9]+(\\.[0-9]+)?",
        "A percentile between p0 and p100.",
        ["p99", "p99.9"];
}
