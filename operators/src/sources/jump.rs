//! Event times far ahead of all before them: one such time would make every later record late.
use crate::record::EventTime;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::Error;
use tidemill_spec::units::TimeSpan;
use tidemill_spec::value::Value;

/// Records inspected to find a good one after a time that is far ahead.
pub(super) const LOOK_AHEAD: usize = 64;
/// The default of `max_jump`: 365 days.
const DEFAULT: TimeSpan = TimeSpan(365 * 24 * 3_600 * 1_000_000_000);

/// The option `max_jump`: a length of time, or `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxJump(pub(super) Option<TimeSpan>);

impl Default for MaxJump {
    fn default() -> Self {
        Self(Some(DEFAULT))
    }
}

impl<'de> Deserialize<'de> for MaxJump {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        match value.as_str() {
            Some("none") => Ok(Self(None)),
            Some(text) => text.parse().map(|span| Self(Some(span))).map_err(D::Error::custom),
            None => Err(D::Error::custom(format!(
                "found {}, expected a length of time such as `1d`, or `none`",
                value.kind()
            ))),
        }
    }
}

impl JsonSchema for MaxJump {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "MaxJump".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let span = generator.subschema_for::<TimeSpan>();
        schemars::json_schema!({"anyOf": [span, {"const": "none"}]})
    }
}

/// Whether `time` is more than `most` ahead of `newest`. All in microseconds.
pub(super) fn is_jump(newest: EventTime, time: EventTime, most: i64) -> bool {
    time > newest.saturating_add(most)
}

/// Whether the time of the next good record confirms a jump to `time`: it is ahead as well, and close enough to `time` not
/// to be late. All in microseconds.
pub(super) fn confirms(newest: EventTime, time: EventTime, next: EventTime, most: i64) -> bool {
    is_jump(newest, next, most) && next >= time.saturating_sub(most)
}

/// The detail of a dead letter: how far it is ahead of `than`, the newest time before it, or for the first record the next
/// time.
pub(super) fn explain(column: &str, than: EventTime, time: EventTime, most: i64, is_first: bool) -> String {
    let span = |microseconds: i128| match microseconds / 1000 {
        days if days >= 86_400_000 => format!("{} d", days / 86_400_000),
        seconds if seconds >= 1000 => format!("{} s", seconds / 1000),
        milliseconds => format!("{milliseconds} ms"),
    };
    let ahead = span(i128::from(time) - i128::from(than));
    let most = span(i128::from(most));
    match is_first {
        true => format!(
            "event time `{column}` is {ahead} ahead of the next record, more than `max_jump` ({most})"
        ),
        false => format!(
            "event time `{column}` is {ahead} ahead of the newest before it, more than `max_jump` ({most}), and the next \
             record is not"
        ),
    }
}

#[cfg(test)]
mod tests;
