//! Event times of rows, from a column with a number since 1970 or a text with date and time.
//!
//! Texts follow RFC 3339 or its usual variants (ISO 8601): `2026-03-29T01:59:59.25+01:00`, with a blank in place of `T`,
//! without seconds, with a comma before their fraction, with `+0100` or `+01`. A text without a zone is refused unless the
//! workflow gives the zone: assuming one would silently shift all windows by hours. Digits below a microsecond are cut off.
use super::cells::{Refusal, shorten};
use super::table::Options;
use crate::record::EventTime;
use crate::relational::expression::Cell;
use schemars::JsonSchema;
use serde::Deserialize;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics, suggestion};
use tidemill_spec::types::{Column, ColumnType};

const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;
/// Years that cause no warning.
const USUAL: std::ops::RangeInclusive<i64> = 1971..=2200;
/// Years that make another unit plausible.
const LIKELY: std::ops::RangeInclusive<i64> = 1990..=2100;

/// Unit of event times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TimeUnit {
    /// Seconds.
    S,
    /// Milliseconds.
    #[default]
    Ms,
    /// Microseconds.
    Us,
    /// Nanoseconds, rounded down to microseconds.
    Ns,
}

impl TimeUnit {
    const ALL: [Self; 4] = [Self::S, Self::Ms, Self::Us, Self::Ns];

    fn name(self) -> &'static str {
        match self {
            Self::S => "s",
            Self::Ms => "ms",
            Self::Us => "us",
            Self::Ns => "ns",
        }
    }

    fn of_int(self, value: i64) -> Option<EventTime> {
        let time = match self {
            Self::S => value.checked_mul(SECOND),
            Self::Ms => value.checked_mul(1000),
            Self::Us => Some(value),
            Self::Ns => Some(value.div_euclid(1000)),
        };
        time.filter(|time| *time < EventTime::MAX)
    }

    fn of_float(self, value: f64) -> Option<EventTime> {
        let time = match self {
            Self::S => value * SECOND as f64,
            Self::Ms => value * 1000.0,
            Self::Us => value,
            Self::Ns => value / 1000.0,
        };
        (time.abs() < 9e18).then(|| time.round() as i64)
    }

    /// Returns the event time of a value; `None` if it is empty or out of range.
    fn of(self, cell: Cell<'_>) -> Option<EventTime> {
        match cell {
            Cell::Int(value) => self.of_int(value),
            Cell::Float(value) => self.of_float(value),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Form {
    Number(TimeUnit),
    /// The offset of times without a zone, in microseconds.
    Text(Option<i64>),
}

/// Column and format of a source's event times.
#[derive(Debug, Clone, Copy)]
pub(super) struct EventTimes {
    /// Index among the declared columns.
    pub(super) column: usize,
    form: Form,
}

impl EventTimes {
    /// Reads the settings from the options, if there are any.
    pub(super) fn of_options(options: &Options, columns: &[Column]) -> Result<Option<Self>, Diagnostics> {
        let Some(name) = &options.event_time else { return Ok(None) };
        let names = columns.iter().map(|c| c.name.as_str());
        let Some(column) = columns.iter().position(|c| c.name == name.value) else {
            let message = format!("`event_time` names no declared column: `{name}`");
            return Err(Diagnostic::error("E0605", message)
                .at(name.span.clone())
                .with_help(suggestion(name, names, "declared columns"))
                .into());
        };
        let useless = |option: &str, span, help: &str| {
            let kind = &columns[column].column_type;
            let message = format!("`{option}` has no effect on an event time that is {kind}");
            Diagnostics::from(Diagnostic::error("E0606", message).at(span).with_help(help))
        };
        let form = match &columns[column].column_type {
            ColumnType::Int64 | ColumnType::Float64 => {
                if let Some(zone) = &options.time_zone {
                    let help = "leave it out: numbers count from 1970 in UTC";
                    return Err(useless("time_zone", zone.span.clone(), help));
                }
                Form::Number(options.time_unit.as_ref().map(|unit| unit.value).unwrap_or_default())
            }
            ColumnType::Text => {
                if let Some(unit) = &options.time_unit {
                    let help = format!("leave it out, or declare `{name}: int64` if the times are numbers");
                    return Err(useless("time_unit", unit.span.clone(), &help));
                }
                let mut zone = None;
                if let Some(written) = &options.time_zone {
                    zone = zone_of(written);
                    if zone.is_none() {
                        let message = format!("`{written}` is not a zone");
                        return Err(Diagnostic::error("E0606", message)
                            .at(written.span.clone())
                            .with_help("write the offset from UTC, such as `\"+01:00\"`, or `Z` for UTC")
                            .into());
                    }
                }
                Form::Text(zone)
            }
            other => {
                let message = format!("event time `{name}` is {other}, expected int64, float64 or text");
                let help = format!(
                    "declare it `{name}: int64` and set its unit with `time_unit`, or `{name}: text` for times such as \
                     `2026-03-29T01:59:59Z`"
                );
                return Err(Diagnostic::error("E0606", message).at(name.span.clone()).with_help(help).into());
            }
        };
        Ok(Some(Self { column, form }))
    }

    /// Returns the event time of a row; `name` is the name of the column.
    pub(super) fn of(&self, name: &str, cell: Cell<'_>) -> Result<EventTime, Refusal> {
        let wrong = |what: String| Err(("bad_value", format!("event time `{name}`{what}")));
        match (self.form, cell) {
            (Form::Text(_), Cell::Text(text)) if text.trim().is_empty() => wrong(" is empty".into()),
            (Form::Text(zone), Cell::Text(text)) => {
                parse(text.trim(), zone).or_else(|why| wrong(format!(": `{}` {why}", shorten(text))))
            }
            (Form::Number(unit), Cell::Int(_) | Cell::Float(_)) => match unit.of(cell) {
                Some(time) => Ok(time),
                None => {
                    let value = number(cell);
                    let hint = likely(unit, cell).map(|other| format!("; {other}")).unwrap_or_default();
                    wrong(format!(" = {value} is out of range{hint}"))
                }
            },
            _ => wrong(" is empty".into()),
        }
    }

    /// Returns a warning if the year is implausible and another unit would make it a usual one.
    pub(super) fn doubt(&self, name: &str, cell: Cell<'_>) -> Option<String> {
        let Form::Number(unit) = self.form else { return None };
        let year = year(unit.of(cell)?);
        if USUAL.contains(&year) {
            return None;
        }
        let other = likely(unit, cell);
        // Times that start at 0 belong to no calendar, and fit any unit.
        if year < *USUAL.start() && other.is_none() {
            return None;
        }
        let other = other.unwrap_or_else(|| "no other unit makes it plausible".to_owned());
        Some(format!(
            "event time `{name}` = {} is in the year {year} with `time_unit: {}`; {other}",
            number(cell),
            unit.name()
        ))
    }
}

fn number(cell: Cell<'_>) -> String {
    match cell {
        Cell::Int(value) => value.to_string(),
        Cell::Float(value) => value.to_string(),
        _ => String::new(),
    }
}

/// Returns the unit that would make a number a time of these decades.
fn likely(than: TimeUnit, cell: Cell<'_>) -> Option<String> {
    let others = TimeUnit::ALL.into_iter().filter(|unit| *unit != than);
    let mut likely = others
        .filter_map(|unit| Some((unit, year(unit.of(cell)?))))
        .filter(|(_, year)| LIKELY.contains(year));
    let (unit, year) = likely.next()?;
    Some(format!("`time_unit: {}` would put it in {year}", unit.name()))
}

/// Returns the microseconds since 1970 of a date and time, or an error message. `zone`: that of times without one.
fn parse(text: &str, zone: Option<i64>) -> Result<EventTime, &'static str> {
    let (local, rest) =
        date_and_time(text.as_bytes()).ok_or("is not a time such as `2026-03-29T01:59:59.25Z`")?;
    let offset = match rest.strip_prefix(b" ").unwrap_or(rest) {
        [] => zone.ok_or(
            "has no zone: end times with `Z` or an offset such as `+01:00`, or set one zone for all beside \
             `event_time`, such as `time_zone: Z`",
        )?,
        written => offset(written).ok_or("ends with no zone such as `Z` or `+01:00`")?,
    };
    Ok(local - offset)
}

/// Parses date and time as UTC; returns the rest of the text.
fn date_and_time(text: &[u8]) -> Option<(i64, &[u8])> {
    let (year, rest) = digits(text, 4)?;
    let (month, rest) = digits(rest.strip_prefix(b"-")?, 2)?;
    let (day, rest) = digits(rest.strip_prefix(b"-")?, 2)?;
    let [b'T' | b't' | b' ', rest @ ..] = rest else { return None };
    let (hour, rest) = digits(rest, 2)?;
    let (minute, mut rest) = digits(rest.strip_prefix(b":")?, 2)?;
    let (mut second, mut fraction) = (0, 0);
    if let Some(seconds) = rest.strip_prefix(b":") {
        (second, rest) = digits(seconds, 2)?;
        if let [b'.' | b',', decimals @ ..] = rest {
            let count = decimals.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let (digits, after) = decimals.split_at(count);
            let micros = digits.iter().chain(std::iter::repeat(&b'0')).take(6);
            fraction = micros.fold(0, |sum, digit| 10 * sum + i64::from(digit - b'0'));
            rest = (count > 0).then_some(after)?;
        }
    }
    // A leap second counts as the first one of the next minute.
    let is_time = hour <= 23 && minute <= 59 && second <= 60;
    let is_date = (1..=12).contains(&month) && (1..=days_of(year, month)).contains(&day);
    let seconds = (hour * 60 + minute) * 60 + second;
    (is_time && is_date).then(|| (days_before(year, month, day) * DAY + seconds * SECOND + fraction, rest))
}

/// Parses the offset of a zone in a workflow.
fn zone_of(text: &str) -> Option<i64> {
    offset(text.trim().as_bytes())
}

/// Parses `Z`, `+01:00`, `+0100` or `+01` into microseconds.
fn offset(text: &[u8]) -> Option<i64> {
    let (sign, rest) = match text {
        [b'Z' | b'z'] | b"UTC" => return Some(0),
        [b'+', rest @ ..] => (1, rest),
        [b'-', rest @ ..] => (-1, rest),
        _ => return None,
    };
    let (hours, rest) = digits(rest, 2)?;
    let (minutes, rest) = match rest {
        [] => (0, rest),
        rest => digits(rest.strip_prefix(b":").unwrap_or(rest), 2)?,
    };
    (hours <= 23 && minutes <= 59 && rest.is_empty()).then_some(sign * (hours * 60 + minutes) * 60 * SECOND)
}

/// Parses a number of `count` digits; returns the rest of the text.
fn digits(text: &[u8], count: usize) -> Option<(i64, &[u8])> {
    let (number, rest) = text.split_at_checked(count)?;
    let value = number
        .iter()
        .try_fold(0, |sum, byte| byte.is_ascii_digit().then(|| 10 * sum + i64::from(byte - b'0')));
    Some((value?, rest))
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_of(year: i64, month: i64) -> i64 {
    match month {
        2 => 28 + i64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970 to a date of the Gregorian calendar. Years start in March here, so that a leap day is the last one.
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    365 * year + leap_days + day_of_year - 719_468
}

/// The year of a time.
fn year(time: EventTime) -> i64 {
    let days = time.div_euclid(DAY);
    // At most one off: 400 years have 146 097 days.
    let guess = 1970 + (days as f64 / 365.2425).floor() as i64;
    (guess - 1..=guess + 1).rev().find(|year| days_before(*year, 1, 1) <= days).unwrap_or(guess)
}

#[cfg(test)]
mod tests;
