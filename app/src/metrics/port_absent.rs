//! Stands in for the port in a build without the feature `metrics`: it cannot be opened.
use crate::failure::{Failure, Kind};
use crate::run_figures::RunFigures;
use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;

/// A port for metrics, which this build lacks.
#[derive(Debug)]
pub struct MetricsPort(Infallible);

impl MetricsPort {
    /// Refuses the port.
    ///
    /// # Errors
    /// Always.
    pub fn open(address: &str) -> Result<Self, Failure> {
        let text = format!("cannot serve metrics at {address}: this build has no port for them");
        let help = "build the command with `cargo build -p tidemill --features metrics`";
        Err(Failure::new(Kind::Unavailable, text).with_help(help))
    }

    /// Returns its address.
    pub fn address(&self) -> Option<SocketAddr> {
        match self.0 {}
    }

    /// Serves the metrics.
    ///
    /// # Errors
    /// None: there is no such port.
    pub fn serve(
        &self,
        _: impl Fn() -> Result<String, fmt::Error> + Send + 'static,
        _: impl Fn() -> Vec<RunFigures> + Send + 'static,
    ) -> std::io::Result<()> {
        match self.0 {}
    }
}
