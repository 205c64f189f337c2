//! Arguments of the commands whose runs can be traced.
use clap::Args;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::otlp::{Exporter, OtlpOptions};
use tidemill_spec::units::Percent;

/// Options for traces of records.
#[derive(Debug, Clone, Args)]
pub(crate) struct TraceArguments {
    /// Send traces of some records to this OpenTelemetry collector (OTLP over HTTP, JSON), such as
    /// `http://127.0.0.1:4318`. Reads headers from OTEL_EXPORTER_OTLP_HEADERS (`name=value,...`).
    #[arg(long, value_name = "URL", help_heading = "Traces")]
    pub(crate) otlp: Option<String>,
    /// Share of the records of each source to trace.
    #[arg(long, value_name = "P%", value_parser = parse_share, default_value = "1%", requires = "otlp", help_heading = "Traces")]
    pub(crate) trace_share: f64,
}

impl TraceArguments {
    /// Starts to send traces; `None` if they are not requested.
    ///
    /// # Errors
    /// Invalid settings of the collector.
    pub(crate) fn exporter(&self) -> Result<Option<Exporter>, Failure> {
        let Some(endpoint) = &self.otlp else { return Ok(None) };
        let headers = match std::env::var("OTEL_EXPORTER_OTLP_HEADERS") {
            Ok(headers) => Some(headers),
            Err(std::env::VarError::NotPresent) => None,
            Err(error) => {
                let text = format!("OTEL_EXPORTER_OTLP_HEADERS: {error}");
                return Err(Failure::new(Kind::Configuration, text));
            }
        };
        Exporter::start(&OtlpOptions::new(endpoint, headers.as_deref())?).map(Some)
    }
}

fn parse_share(text: &str) -> Result<f64, String> {
    super::is_value(text)?;
    let share: Percent =
        text.parse().map_err(|error: tidemill_spec::units::UnitError| super::explained(&error))?;
    match share.0 {
        share if share > 0.0 && share <= 100.0 => Ok(share / 100.0),
        _ => Err("write a share above 0% and at most 100%, such as `1%`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_parts_of_all_records() {
        assert_eq!(parse_share("1%"), Ok(0.01));
        assert_eq!(parse_share("100%"), Ok(1.0));
        for wrong in ["0%", "101%", "-1%", "x"] {
            assert!(parse_share(wrong).is_err(), "{wrong}");
        }
    }
}
