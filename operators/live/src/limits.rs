//! Checks of options that all live sources have.
use std::time::Duration;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::span::Located;
use tidemill_spec::units::{Rate, TimeSpan};

/// Longest time that an option takes, milliseconds.
pub(crate) const HOUR: u64 = 3_600_000;

/// A finding about an option, with what to write instead.
pub(crate) fn wrong(text: impl Into<String>, help: &str) -> Diagnostic {
    Diagnostic::error("E0606", text).with_help(help)
}

/// Returns the time that an option gives, or its default. `limits`: the least and the most, milliseconds.
pub(crate) fn time(
    name: &str,
    given: Option<&Located<TimeSpan>>,
    default: Duration,
    (least, most): (u64, u64),
    errors: &mut Diagnostics,
) -> Duration {
    let Some(given) = given else { return default };
    if !(least..=most).contains(&(given.value.0 / 1_000_000)) {
        let text = format!("`{name}: {}` is not possible", given.value);
        let (least, most) = (TimeSpan(least * 1_000_000), TimeSpan(most * 1_000_000));
        errors.push(wrong(text, &format!("write a time from {least} to {most}")).at(given.span.clone()));
    }
    Duration::from_nanos(given.value.0)
}

/// Checks a rate of frames.
pub(crate) fn check_rate(name: &str, given: Option<&Located<Rate>>, errors: &mut Diagnostics) {
    if let Some(given) = given.filter(|rate| !(rate.value.0.is_finite() && rate.value.0 > 0.0)) {
        let text = format!("`{name}` is no rate of frames");
        errors.push(wrong(text, "write a rate, such as `10/s`").at(given.span.clone()));
    }
}

/// Reads the size of a picture.
pub(crate) fn size(given: Option<&Located<String>>, errors: &mut Diagnostics) -> Option<(u32, u32)> {
    let given = given?;
    let size = tidemill_operators::sources::video::parse_size(given);
    if size.is_none() {
        let text = format!("`{given}` is not the size of a picture");
        let help = "write width and height, such as `640x360`";
        errors.push(wrong(text, help).at(given.span.clone()));
    }
    size
}
