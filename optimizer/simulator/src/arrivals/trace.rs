//! A trace of rates: a table with a time and a rate, or a factor on the rates of the problem, per line.
use tidemill_spec::units::{Rate, TimeSpan};

/// The latest time in a trace, in seconds: a hundred years. Twice that in nanoseconds still fits into 64 bits.
const LATEST: f64 = 36_525.0 * 86_400.0;
/// The largest factor.
const LARGEST_FACTOR: f64 = 1e9;

/// Rates over time as factors on the rates of the problem. Each line holds until the next. The last one holds as long
/// as the one before it; then the trace repeats.
///
/// ```
/// use tidemill_simulator::Trace;
/// let trace = Trace::parse("time,factor\n0s,1\n10s,2.5\n20s,0\n", 40.0)?;
/// assert_eq!((trace.seconds(), trace.factor_at(15.0), trace.factor_at(41.0)), (30.0, 2.5, 2.5));
/// # Ok::<(), tidemill_simulator::TraceError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// Start in seconds and factor of each part; the first starts at 0.
    parts: Vec<(f64, f64)>,
    /// Length until it repeats, in seconds.
    length: f64,
    /// Sum of factor times seconds up to the start of each part, and to the end.
    sums: Vec<f64>,
}

/// An error in a trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// The first line names other columns.
    #[error("line {line} is `{text}`: write `time,factor` or `time,rate`")]
    Header {
        /// Its number, from 1.
        line: usize,
        /// Its text.
        text: String,
    },
    /// A line is not two values.
    #[error("line {line} is `{text}`: write a time and a {column}, such as `{example}`")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// Its text.
        text: String,
        /// Name of the second column.
        column: &'static str,
        /// A valid line.
        example: &'static str,
    },
    /// A time that is not later than the previous one.
    #[error("line {line}: {text} is not after the time before it: times must rise, and the first is 0s")]
    Order {
        /// Its number, from 1.
        line: usize,
        /// The time.
        text: String,
    },
    /// A time out of range.
    #[error("line {line}: {text} is too late: write a time of at most {}d, a hundred years", LATEST / 86_400.0)]
    Late {
        /// Its number, from 1.
        line: usize,
        /// The time and its value.
        text: String,
    },
    /// A factor out of range.
    #[error("line {line}: {text} is too much: write at most {LARGEST_FACTOR} times the rate of the plan")]
    Much {
        /// Its number, from 1.
        line: usize,
        /// The time and its value.
        text: String,
    },
    /// An invalid part that was not read from a file, counted from 0.
    #[error(
        "part {0} of the trace is wrong: times rise from 0 to {LATEST} s at most, factors lie from 0 to {LARGEST_FACTOR}"
    )]
    Part(usize),
    /// No lines, or no record at any time.
    #[error("the trace has no part with records: write at least one line with a value above 0")]
    Empty,
}

impl Trace {
    /// Reads a table of comma-separated values. Its first line is `time,factor` or `time,rate`; a time is a number of
    /// seconds or has a unit (`10s`, `5min`, `2h`), a rate is a number of records per second or has a unit (`40/s`).
    /// Empty lines and lines with a leading `#` are ignored. `nominal` is the rate of factor 1.
    ///
    /// # Errors
    /// See [`TraceError`].
    pub fn parse(text: &str, nominal: f64) -> Result<Self, TraceError> {
        // Spreadsheets put a byte order mark at the start of a file.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
        let mut content = lines.by_ref().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let (header_line, header) = content.next().unwrap_or((1, ""));
        let names: Vec<&str> = header.split(',').map(str::trim).collect();
        let (column, example, divisor) = match names[..] {
            ["time", "factor"] => ("factor", "10s,1.5", 1.0),
            ["time", "rate"] => ("rate", "10s,60/s", nominal),
            _ => return Err(TraceError::Header { line: header_line, text: header.to_owned() }),
        };
        let mut parts: Vec<(f64, f64)> = Vec::new();
        for (line, text) in content {
            let wrong = || TraceError::Line { line, text: text.to_owned(), column, example };
            let (time, value) = text.split_once(',').ok_or_else(wrong)?;
            let time = seconds(time.trim()).ok_or_else(wrong)?;
            let value = match column {
                "rate" => rate(value.trim()),
                _ => number(value.trim()),
            };
            let factor = value.ok_or_else(wrong)? / divisor;
            let rises = parts.last().map_or(time == 0.0, |(before, _)| time > *before);
            if !rises {
                return Err(TraceError::Order { line, text: text.to_owned() });
            }
            if time > LATEST {
                return Err(TraceError::Late { line, text: text.to_owned() });
            }
            if factor > LARGEST_FACTOR {
                return Err(TraceError::Much { line, text: text.to_owned() });
            }
            parts.push((time, factor));
        }
        Self::new(parts)
    }

    /// Creates a trace of parts (start in seconds, factor) that ascend from 0.
    ///
    /// # Errors
    /// [`TraceError::Part`] for an invalid one, [`TraceError::Empty`] where no factor is above 0.
    pub fn new(parts: Vec<(f64, f64)>) -> Result<Self, TraceError> {
        let mut before = None;
        for (index, (time, factor)) in parts.iter().enumerate() {
            let rises = before.map_or(*time == 0.0, |before| *time > before);
            if !(rises && *time <= LATEST && (0.0..=LARGEST_FACTOR).contains(factor)) {
                return Err(TraceError::Part(index));
            }
            before = Some(*time);
        }
        if !parts.iter().any(|(_, factor)| *factor > 0.0) {
            return Err(TraceError::Empty);
        }
        let last = match parts[..] {
            [.., (before, _), (last, _)] => 2.0 * last - before,
            _ => 1.0,
        };
        let mut sums = vec![0.0];
        let mut sum = 0.0;
        for (index, (begin, factor)) in parts.iter().enumerate() {
            let end = parts.get(index + 1).map_or(last, |(end, _)| *end);
            sum += (end - begin) * factor;
            sums.push(sum);
        }
        Ok(Self { parts, length: last, sums })
    }

    /// Returns its length in seconds, after which it repeats.
    pub fn seconds(&self) -> f64 {
        self.length
    }

    /// Returns its parts: start and end in seconds, and the factor between them.
    pub fn parts(&self) -> impl Iterator<Item = (f64, f64, f64)> + '_ {
        self.parts.iter().enumerate().map(|(index, (begin, factor))| {
            let end = self.parts.get(index + 1).map_or(self.length, |(end, _)| *end);
            (*begin, end, *factor)
        })
    }

    /// Returns the largest factor.
    pub fn largest_factor(&self) -> f64 {
        self.parts.iter().map(|(_, factor)| *factor).fold(0.0, f64::max)
    }

    /// Returns the factor at a time in seconds.
    pub fn factor_at(&self, time: f64) -> f64 {
        let within = time.rem_euclid(self.length);
        let after = self.parts.partition_point(|(begin, _)| *begin <= within);
        self.parts[after.saturating_sub(1)].1
    }

    /// Returns the mean factor.
    pub fn mean_factor(&self) -> f64 {
        self.sums[self.parts.len()] / self.length
    }

    /// Seconds at factor 1 with the load up to a time in seconds.
    pub(crate) fn nominal_at(&self, time: f64) -> f64 {
        let rounds = (time / self.length).floor();
        let within = (time - rounds * self.length).max(0.0);
        let part = self.parts.partition_point(|(begin, _)| *begin <= within).saturating_sub(1);
        let (begin, factor) = self.parts[part];
        rounds * self.sums[self.parts.len()] + self.sums[part] + (within - begin) * factor
    }

    /// Time in seconds by which the load of `nominal` seconds at factor 1 has arrived; infinite where factors are too
    /// small for it.
    pub(crate) fn time_of(&self, nominal: f64) -> f64 {
        let whole = self.sums[self.parts.len()];
        let rounds = (nominal / whole).floor();
        if !(rounds * self.length).is_finite() {
            return f64::INFINITY;
        }
        let rest = (nominal - rounds * whole).clamp(0.0, whole);
        // The last part that starts at or below the rest: skips parts without records.
        let after = self.sums[..self.parts.len()].partition_point(|sum| *sum <= rest);
        let part = after.saturating_sub(1);
        let (begin, factor) = self.parts[part];
        let into = if factor > 0.0 { (rest - self.sums[part]) / factor } else { 0.0 };
        rounds * self.length + begin + into
    }
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0)
}

fn seconds(text: &str) -> Option<f64> {
    number(text).or_else(|| text.parse::<TimeSpan>().ok().map(|span| span.0 as f64 / 1e9))
}

fn rate(text: &str) -> Option<f64> {
    number(text).or_else(|| text.parse::<Rate>().ok().map(|rate| rate.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_when_the_factors_say() {
        let trace = Trace::parse("# a day\ntime,factor\n0,1\n10s,0\n20s,2\n", 40.0).unwrap();
        assert_eq!(trace.seconds(), 30.0);
        let times: Vec<f64> = [0.0, 5.0, 10.0, 12.0, 29.0, 30.0, 35.0].map(|n| trace.time_of(n)).to_vec();
        // Nothing arrives from 10 s to 20 s; after 30 s it repeats.
        assert_eq!(times, [0.0, 5.0, 20.0, 21.0, 29.5, 30.0, 35.0]);
        assert_eq!(trace.mean_factor(), 1.0);
        let nominal: Vec<f64> =
            [0.0, 5.0, 10.0, 15.0, 21.0, 30.0, 35.0].map(|time| trace.nominal_at(time)).to_vec();
        assert_eq!(nominal, [0.0, 5.0, 10.0, 10.0, 12.0, 30.0, 35.0]);
    }

    /// With tiny factors a record is infinitely late, not due at once.
    #[test]
    fn what_never_comes_is_not_due_at_once() {
        let trace = Trace::parse("time,factor\n0,1e-310\n", 40.0).unwrap();
        assert_eq!((trace.time_of(0.0), trace.time_of(10.0)), (0.0, f64::INFINITY));
    }

    #[test]
    fn rates_are_factors_on_the_nominal_one() {
        let trace = Trace::parse("time, rate\n0s, 20/s\n1min, 60\n", 40.0).unwrap();
        assert_eq!((trace.factor_at(30.0), trace.factor_at(90.0), trace.seconds()), (0.5, 1.5, 120.0));
    }

    #[test]
    fn mistakes_are_named_by_line() {
        let error = |text: &str| Trace::parse(text, 40.0).unwrap_err().to_string();
        assert!(error("t,f\n0,1").contains("line 1 is `t,f`"));
        assert!(error("# a day\n\n t,f\n0,1").contains("line 3 is `t,f`"));
        assert!(error("").contains("time,factor"));
        assert!(error("time,factor\n0,1\nten,1").contains("line 3 is `ten,1`"));
        assert!(error("time,factor\n0,-1").contains("line 2"));
        assert!(error("time,rate\n0,1/fortnight").contains("10s,60/s"));
        assert!(error("time,factor\n0,1\n0,2").contains("line 3"));
        assert!(error("time,factor\n5,1").contains("the first is 0s"));
        assert!(error("time,factor\n0,0").contains("above 0"));
        let late = error("time,factor\n0,1\n1e308,1");
        assert!(late.contains("line 3: 1e308,1 is too late") && late.contains("at most 36525d"), "{late}");
        let much = error("time,rate\n0,1\n5s,1e200");
        assert!(much.contains("line 3: 5s,1e200") && much.contains("at most 1000000000 times"), "{much}");
        let part = |parts: &[(f64, f64)]| Trace::new(parts.to_vec()).unwrap_err();
        assert_eq!(part(&[(0.0, 1.0), (f64::INFINITY, 1.0)]), TraceError::Part(1));
        assert_eq!(part(&[(0.0, f64::NAN)]), TraceError::Part(0));
    }

    #[test]
    fn a_byte_order_mark_does_not_count() {
        let text = "time,factor\n0,1\n10,2\n";
        assert_eq!(Trace::parse(&format!("\u{feff}{text}"), 40.0), Trace::parse(text, 40.0));
    }
}
