//! Settings of the detection of lost workers by their silence.
use clap::{Args, ValueEnum};
use std::time::Duration;
use tidemill_cluster::api::HEARTBEAT_MILLISECONDS;
use tidemill_cluster::controller::Detection;

/// How silence is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DetectorChoice {
    /// After the time of `--detection`.
    Fixed,
    /// By how unlikely it is, as heartbeats of that worker came until now (phi accrual): for links whose delays vary.
    Phi,
}

/// When a worker that says nothing is lost.
#[derive(Debug, Args)]
pub(crate) struct DetectionArguments {
    /// A worker that was not heard for so long is lost, and its stages go elsewhere; at least 1s. By phi: until ten heartbeats of it are
    /// known, and ten times as long at most.
    #[arg(long = "detection", value_name = "TIME", default_value = "2s", value_parser = detection)]
    time: Duration,
    /// How silence is judged.
    #[arg(long, value_enum, default_value_t = DetectorChoice::Fixed)]
    detector: DetectorChoice,
    /// By phi: a worker is lost when a heartbeat would come so late once in 10^N times.
    #[arg(long, value_name = "N", default_value = "8", value_parser = phi)]
    phi: f64,
}

/// Shorter than two heartbeats would only give false alarms.
fn detection(text: &str) -> Result<Duration, String> {
    let least = Duration::from_millis(2 * HEARTBEAT_MILLISECONDS);
    let time = super::parse_time(text)?;
    match time >= least {
        true => Ok(time),
        false => Err(format!("workers are heard twice a second: write {} s or more", least.as_secs_f64())),
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
