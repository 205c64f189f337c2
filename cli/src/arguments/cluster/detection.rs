//! Options for the detection of lost workers.
use clap::{Args, ValueEnum};
use std::time::Duration;
use tidemill_cluster::api::HEARTBEAT_MILLISECONDS;
use tidemill_cluster::controller::Detection;

/// Rule that decides when a silent worker is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DetectorChoice {
    /// After the time of `--detection` without a heartbeat.
    Fixed,
    /// When the silence is unlikely, given the past heartbeats of the worker (phi accrual): for links whose delays vary.
    Phi,
}

/// Options that decide when a silent worker is lost.
#[derive(Debug, Args)]
pub(crate) struct DetectionArguments {
    /// Time without a heartbeat after which a worker is lost and its stages move to others; at least 1s. With
    /// `--detector phi` it applies to the first ten heartbeats, and ten times this time is the limit.
    #[arg(long = "detection", value_name = "TIME", default_value = "2s", value_parser = detection)]
    time: Duration,
    /// Rule that decides when a silent worker is lost.
    #[arg(long, value_enum, default_value_t = DetectorChoice::Fixed)]
    detector: DetectorChoice,
    /// With `--detector phi`: a worker is lost when only one in 10^N heartbeats is as late.
    #[arg(long, value_name = "N", default_value = "8", value_parser = phi)]
    phi: f64,
}

/// Parses the time; less than two heartbeats would only cause false alarms.
fn detection(text: &str) -> Result<Duration, String> {
    let least = Duration::from_millis(2 * HEARTBEAT_MILLISECONDS);
    let time = super::parse_time(text)?;
    match time >= least {
        true => Ok(time),
        false => {
            Err(format!("workers send two heartbeats per second: write {} s or more", least.as_secs_f64()))
        }
    }
}

fn phi(text: &str) -> Result<f64, String> {
    let found = text.parse::<f64>().ok().filter(|phi| (0.5..=300.0).contains(phi));
    found.ok_or_else(|| "write a number from 0.5 to 300, such as 8".to_owned())
}

impl DetectionArguments {
    /// Returns the settings.
    pub(crate) fn given(&self) -> Detection {
        let phi = (self.detector == DetectorChoice::Phi).then_some(self.phi);
        Detection { time: self.time, phi }
    }
}
