//! A service level on the command line, which replaces the workflow's: `rate=40/s`, `accuracy=56.0`, `latency=p99:800ms`,
//! `survive=1`; `=none` drops it.
use std::fmt;
use std::str::FromStr;
use tidemill_optimizer::assemble::{Level, Options};
use tidemill_spec::units::{Percent, Percentile, Rate, TimeSpan, UnitError};
use tidemill_spec::workflow::{LatencySlo, Slo};

/// A service level that replaces the workflow's; `None`: it does not count.
#[derive(Debug, Clone, PartialEq)]
pub enum LevelSetting {
    /// Records per second of the slowest source.
    Rate(Option<Rate>),
    /// Least accuracy.
    Accuracy(Option<Percent>),
    /// Largest latency.
    Latency(Option<LatencySlo>),
    /// Workers that may be lost at a time.
    Survive(Option<u32>),
}

/// Error of parsing a service level, with advice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LevelError(String);

impl fmt::Display for LevelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LevelError {}

impl From<UnitError> for LevelError {
    fn from(error: UnitError) -> Self {
        Self(format!("{error}; {}", error.help))
    }
}

impl FromStr for LevelSetting {
    type Err = LevelError;

    fn from_str(text: &str) -> Result<Self, LevelError> {
        let forms = "write `rate=40/s`, `accuracy=56.0`, `latency=p99:800ms` or `survive=1`";
        let (level, value) = text.split_once('=').ok_or_else(|| LevelError(forms.to_owned()))?;
        let dropped = value == "none";
        match level {
            "rate" if dropped => Ok(Self::Rate(None)),
            "rate" => {
                let rate: Rate = value.parse()?;
                if rate.0 > 0.0 {
                    Ok(Self::Rate(Some(rate)))
                } else {
                    Err(LevelError("a rate must be above 0".to_owned()))
                }
            }
            "accuracy" if dropped => Ok(Self::Accuracy(None)),
            "accuracy" => {
                let number = value.trim_end_matches('%').trim();
                let percent: Percent = format!("{number}%").parse()?;
                if number.len() == value.trim().len() && percent.0 > 0.0 && percent.0 <= 1.0 {
                    return Err(LevelError(format!(
                        "{number} % is {}; accuracy is in percent: did you mean {}? (`{number}%` if it is meant)",
                        if percent.0 < 1.0 { "less than 1 %" } else { "hardly meant" },
                        (percent.0 * 1e11).round() / 1e9
                    )));
                }
                Ok(Self::Accuracy(Some(percent)))
            }
            "latency" if dropped => Ok(Self::Latency(None)),
            "latency" => {
                let (percentile, below) = value
                    .split_once(':')
                    .ok_or_else(|| LevelError("write `latency=p99:800ms`".to_owned()))?;
                let percentile: Percentile = percentile.parse()?;
                let below: TimeSpan = below.parse()?;
                Ok(Self::Latency(Some(LatencySlo { percentile: percentile.into(), below: below.into() })))
            }
            "survive" if dropped => Ok(Self::Survive(None)),
            "survive" => match value.parse::<u32>() {
                Ok(losses) if losses <= Slo::MOST_LOSSES => Ok(Self::Survive(Some(losses))),
                _ => Err(LevelError(format!(
                    "`{value}` lost workers; write `survive=1`, at most {}: a plan has a fallback for every set of workers",
                    Slo::MOST_LOSSES
                ))),
            },
            _ => Err(LevelError(format!("`{level}` is not a service level; {forms}"))),
        }
    }
}

impl LevelSetting {
    /// Sets it for planning.
    pub fn set(&self, options: &mut Options) {
        let (level, dropped) = match self {
            Self::Rate(rate) => {
                options.rate = *rate;
                (Level::Rate, rate.is_none())
            }
            Self::Accuracy(accuracy) => {
                options.accuracy = *accuracy;
                (Level::Accuracy, accuracy.is_none())
            }
            Self::Latency(latency) => {
                options.latency.clone_from(latency);
                (Level::Latency, latency.is_none())
            }
            Self::Survive(losses) => {
                options.survive = *losses;
                (Level::Survive, losses.is_none())
            }
        };
        match dropped {
            true => drop(options.without.insert(level)),
            false => drop(options.without.remove(&level)),
        }
    }

    /// Sets it for judging.
    pub fn apply(&self, slo: &mut Slo) {
        match self {
            Self::Rate(rate) => slo.rate = rate.map(Into::into),
            Self::Accuracy(accuracy) => slo.accuracy = accuracy.map(Into::into),
            Self::Latency(latency) => slo.latency.clone_from(latency),
            Self::Survive(losses) => slo.survive = losses.map(Into::into),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<LevelSetting, String> {
        text.parse().map_err(|error: LevelError| error.to_string())
    }

    #[test]
    fn levels_are_read() {
        assert_eq!(parsed("rate=40/s"), Ok(LevelSetting::Rate(Some(Rate(40.0)))));
        assert_eq!(parsed("accuracy=56.0"), Ok(LevelSetting::Accuracy(Some(Percent(56.0)))));
        assert_eq!(parsed("accuracy=56%"), Ok(LevelSetting::Accuracy(Some(Percent(56.0)))));
        assert_eq!(parsed("accuracy=0.85%"), Ok(LevelSetting::Accuracy(Some(Percent(0.85)))));
        assert_eq!(parsed("accuracy=0"), Ok(LevelSetting::Accuracy(Some(Percent(0.0)))));
        assert_eq!(
            parsed("accuracy=0.85").unwrap_err(),
            "0.85 % is less than 1 %; accuracy is in percent: did you mean 85? (`0.85%` if it is meant)"
        );
        assert!(
            parsed("accuracy=1")
                .unwrap_err()
                .contains("1 % is hardly meant; accuracy is in percent: did you mean 100?")
        );
        assert_eq!(parsed("rate=40/min"), Ok(LevelSetting::Rate(Some(Rate(40.0 / 60.0)))));
        assert!(parsed("rate=40/m").unwrap_err().contains("did you mean `40/min`?"));
        assert_eq!(parsed("survive=2"), Ok(LevelSetting::Survive(Some(2))));
        assert_eq!(parsed("survive=none"), Ok(LevelSetting::Survive(None)));
        assert!(parsed("survive=4").unwrap_err().contains("at most 3"));
        assert_eq!(parsed("latency=none"), Ok(LevelSetting::Latency(None)));
        let latency = parsed("latency=p99:800ms").unwrap();
        let LevelSetting::Latency(Some(slo)) = latency else { panic!("{latency:?}") };
        assert_eq!((slo.percentile.0, slo.below.0), (99.0, 800_000_000));
        for wrong in ["rate", "rate=40", "accuracy=much", "latency=800ms", "colour=red", "accuracy=101"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
