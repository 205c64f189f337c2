//! Options of `tidemill net serve` for hints, and `tidemill net hints`.
use super::super::{explained, is_value, parse_time};
use super::collective::GroupServiceChoice;
use clap::{Args, ValueEnum};
use std::time::Duration;
use tidemill_collective::hints::{Export, LEAST, PERIOD, Prefix, Settings};
use tidemill_spec::units::{Bandwidth, UnitError};

/// How the service counts the traffic of its machine, and who gets hints.
#[derive(Debug, Args)]
pub(crate) struct HintArguments {
    /// The rates of this machine's link. Default: that of the interface of `--listen`, else learned from what it carries.
    #[arg(long, value_name = "up=RATE,down=RATE", value_parser = rates, help_heading = "Hints")]
    pub(crate) rate: Option<[f64; 2]>,
    /// The rates between its rack and others. Default: learned from what passes.
    #[arg(long, value_name = "up=RATE,down=RATE", value_parser = rates, help_heading = "Hints")]
    pub(crate) rack_rate: Option<[f64; 2]>,
    /// Addresses within the rack, such as those of cameras: traffic with them does not leave it. May be given several times. Services of
    /// the rack are known.
    #[arg(long, value_name = "ADDRESSES/BITS", help_heading = "Hints")]
    pub(crate) rack_addresses: Vec<Prefix>,
    /// Time between two reports of this machine, at least 50ms.
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = period, help_heading = "Hints")]
    pub(crate) hint_period: Duration,
    /// Who gets hints, where this service introduces ranks.
    #[arg(long, value_name = "WHO", default_value = "operator", help_heading = "Hints")]
    pub(crate) export_hints: ExportChoice,
}

/// Who gets hints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportChoice {
    /// Only `tidemill net hints` and strategies.
    Operator,
    /// Also programs, about the links between the machines of their own group, without names.
    Tenant,
}

impl HintArguments {
    /// The settings of the service.
    pub(crate) fn settings(&self) -> Settings {
        let export = match self.export_hints {
            ExportChoice::Operator => Export::Operator,
            ExportChoice::Tenant => Export::Tenant,
        };
        Settings {
            period: self.hint_period,
            rate: self.rate,
            rack_rate: self.rack_rate,
            rack_addresses: self.rack_addresses.clone(),
            export,
        }
    }
}

/// Rates up and down, in bytes per second: `up=20Mbps,down=100Mbps`, or one for both.
fn rates(text: &str) -> Result<[f64; 2], String> {
    is_value(text)?;
    let rate = |text: &str| -> Result<f64, String> {
        let rate: Bandwidth = text.parse().map_err(|error: UnitError| explained(&error))?;
        if rate.0 == 0 { Err(format!("{text} is no rate of a link")) } else { Ok(rate.0 as f64 / 8.0) }
    };
    let form = || format!("`{text}` are no rates: write up=20Mbps,down=100Mbps, or 1Gbps for both");
    if !text.contains('=') {
        return Ok([rate(text)?; 2]);
    }
    let mut found = [None; 2];
    for part in text.split(',') {
        let (way, value) = part.split_once('=').ok_or_else(form)?;
        let side = ["up", "down"].iter().position(|name| *name == way.trim()).ok_or_else(form)?;
        if found[side].replace(rate(value.trim())?).is_some() {
            return Err(form());
        }
    }
    match found {
        [Some(up), Some(down)] => Ok([up, down]),
        _ => Err(form()),
    }
}

fn period(text: &str) -> Result<Duration, String> {
    let period = parse_time(text)?;
    if period < LEAST {
        return Err(format!(
            "{text} is less than {LEAST:?}, in which links hardly change; write one such as {PERIOD:?}"
        ));
    }
    Ok(period)
}

/// `tidemill net hints`.
#[derive(Debug, Args)]
#[command(
    after_help = "Each service counts the traffic of its machine and reports it to the leader of its rack; the service that
introduces ranks has the table of all links. Rates of links come from `net serve --rate` and `--rack-rate`, from the
interface, or are learned: then a link has at least the rate that it has carried for a second.

Examples:
  tidemill net hints
  tidemill net hints training            links of the machines of a group, and what it is planned from
  tidemill net hints --flows 4           what four more flows would get together
  tidemill net hints --watch
  tidemill net hints --output json"
)]
pub(crate) struct HintsArguments {
    /// Only the links of the machines of this group.
    #[arg(value_name = "GROUP")]
    pub(crate) group: Option<String>,
    /// Further flows for which rates are estimated.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) flows: u32,
    /// Show them each second until Ctrl-C; with `--output json`, one object per line.
    #[arg(long)]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(crate) service: GroupServiceChoice,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_two_directions() {
        assert_eq!(rates("up=20Mbps,down=100Mbps"), Ok([2.5e6, 12.5e6]));
        assert_eq!(rates("down=8kbps, up=1Gbps"), Ok([125e6, 1e3]));
        assert_eq!(rates("1Gbps"), Ok([125e6; 2]));
        for wrong in
            ["up=1Gbps", "up=1Gbps,up=1Gbps", "out=1Gbps,down=1Gbps", "up=fast,down=1Gbps", "0bps", ""]
        {
            assert!(rates(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn periods_are_not_too_short() {
        assert_eq!(period("50ms"), Ok(LEAST));
        let reason = period("49ms").unwrap_err();
        assert!(reason.contains("less than 50ms"), "{reason}");
    }
}
