//! What bars and lines have in common: colours for light and dark grounds, numbers, ticks.
use crate::plot;
use std::fmt::Write;

/// Style of a drawing: `c0` to `c6` are the planners in the order of the figures, `k` and `n` compute and network.
pub(super) const STYLE: &str = "\
.ground{fill:#f7f8fa}.grid{stroke:#d9dfe7}.axis{stroke:#5c6878;fill:none}\
text{font-family:Inter,'Segoe UI',Roboto,'Helvetica Neue',Arial,'Liberation Sans',sans-serif;fill:#1b2431;font-size:12px}\
.title{font-size:14px;font-weight:650}.panel{font-weight:650}.soft{fill:#5c6878}.small{font-size:11px}\
.whisker{stroke:#1b2431;stroke-width:1.3;fill:none}.k{fill:#4657c9}.n{fill:#e09a3c}\
.curve{fill:none;stroke-linejoin:round}.mark{stroke-width:2;fill:none}.change{fill:#1b2431}\
.c0{stroke:#4657c9}.c1{stroke:#8947b8}.c2{stroke:#2fb3a8}.c3{stroke:#b8860b}.c4{stroke:#c2416b}.c5{stroke:#8b97a8}.c6{stroke:#5f8f1d}\
.f0{fill:#4657c9}.f1{fill:#8947b8}.f2{fill:#2fb3a8}.f3{fill:#b8860b}.f4{fill:#c2416b}.f5{fill:#8b97a8}.f6{fill:#5f8f1d}\
@media screen and (prefers-color-scheme:dark){.ground{fill:#12171e}.grid{stroke:#2c3642}.axis{stroke:#9aa7b7}\
text{fill:#e7ecf2}.soft{fill:#9aa7b7}.whisker{stroke:#e7ecf2}.k{fill:#8c9bff}.n{fill:#f0b35e}.change{fill:#e7ecf2}\
.c0{stroke:#8c9bff}.c1{stroke:#c48cf0}.c2{stroke:#2a9d92}.c3{stroke:#e3b341}.c4{stroke:#f0799d}.c5{stroke:#8b97a8}.c6{stroke:#9ccc4f}\
.f0{fill:#8c9bff}.f1{fill:#c48cf0}.f2{fill:#2a9d92}.f3{fill:#e3b341}.f4{fill:#f0799d}.f5{fill:#8b97a8}.f6{fill:#9ccc4f}}";

/// Begin of a file.
pub(crate) fn begin(title: &str, width: f64, height: f64) -> Result<String, std::fmt::Error> {
    plot::begin(title, (width, height), 16.0, STYLE)
}

/// A cross around a point: there is no plan.
pub(super) fn cross(svg: &mut String, class: &str, x: f64, y: f64) -> std::fmt::Result {
    let (left, right, above, below) = (x - 4.0, x + 4.0, y - 4.0, y + 4.0);
    writeln!(
        svg,
        r#"<path class="mark {class}" d="M{left:.1} {above:.1}L{right:.1} {below:.1}M{left:.1} {below:.1}L{right:.1} {above:.1}"/>"#
    )
}

/// Values at even, round steps within a range, at most `most` and one.
pub(crate) fn ticks(low: f64, high: f64, most: usize) -> Vec<f64> {
    let rough = (high - low).max(f64::MIN_POSITIVE) / most as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power);
    let step = step.into_iter().find(|step| *step >= rough * (1.0 - 1e-9)).unwrap_or(10.0 * power);
    let first = (low / step - 1e-9).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last).map(|count| count as f64 * step).collect()
}

/// A tick in as few digits as it needs.
pub(super) fn short(value: f64) -> String {
    let rounded = (value * 1e6).round() / 1e6;
    if rounded.abs() >= 10_000.0 { format!("{}k", rounded / 1000.0) } else { format!("{rounded}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within_the_range() {
        assert_eq!(ticks(0.0, 10.0, 5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(54.0, 58.4, 5), [54.0, 55.0, 56.0, 57.0, 58.0]);
        assert_eq!(ticks(0.0, 0.7, 4), [0.0, 0.2, 0.4, 0.6000000000000001]);
        assert_eq!(short(0.6000000000000001), "0.6");
        assert_eq!(short(2400.0), "2400");
    }
}
