//! Options for the traffic that a worker counts on its machine.
use clap::{Args, ValueEnum};
use std::time::Duration;
use tidemill_cluster::agent::{LEAST_PERIOD, PERIOD, Prefix, TrafficOptions};

/// Whether rates of links follow from the traffic of machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HintsChoice {
    /// The worker counts the traffic of its machine, and the controller plans with what that leaves of links.
    Auto,
    /// The worker counts nothing: links are probed.
    Never,
}

/// Options that decide what is counted.
#[derive(Debug, Args)]
pub(crate) struct TrafficArguments {
    /// Whether to count the traffic of the machine besides that of runs, so that links with a nominal rate need no probes.
    #[arg(long, value_enum, default_value_t = HintsChoice::Auto)]
    hints: HintsChoice,
    /// Time between two looks at its counters, at least 50ms; default: 100ms.
    #[arg(long, value_name = "TIME", value_parser = period)]
    hint_period: Option<Duration>,
    /// Addresses at the site of the worker, such as `10.1.0.0/16`: traffic with them does not leave the site. Repeat for several.
    /// Machines that are reached without a router are at the site in any case.
    #[arg(long = "site-addresses", value_name = "PREFIX", value_parser = prefix)]
    site: Vec<Prefix>,
}

fn period(text: &str) -> Result<Duration, String> {
    let time = super::parse_time(text)?;
    if time >= LEAST_PERIOD {
        Ok(time)
    } else {
        Err("counters change too little: write 50ms or more".to_owned())
    }
}

fn prefix(text: &str) -> Result<Prefix, String> {
    text.parse::<Prefix>().map_err(|error| error.to_string())
}

impl TrafficArguments {
    /// Returns the settings.
    pub(crate) fn options(&self) -> TrafficOptions {
        let period = self.hint_period.unwrap_or(PERIOD);
        let period = (self.hints == HintsChoice::Auto).then_some(period);
        TrafficOptions { period, site: self.site.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_long_enough_and_sites_are_prefixes() {
        assert_eq!(period("50ms"), Ok(Duration::from_millis(50)));
        assert_eq!(period("49ms").unwrap_err(), "counters change too little: write 50ms or more");
        assert!(prefix("10.1.0.0/16").is_ok());
        assert!(prefix("hall-2").unwrap_err().contains("such as 10.1.2.0/24"));
        let of = |hints| TrafficArguments { hints, hint_period: None, site: Vec::new() }.options().period;
        assert_eq!((of(HintsChoice::Auto), of(HintsChoice::Never)), (Some(PERIOD), None));
    }
}
