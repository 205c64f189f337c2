//! Devices to measure: found by the command, used by its measuring processes.
use crate::terminal::Terminal;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Listener;
use tidemill_operators::api::OperatorError;
use tidemill_operators::model::ModelSpec;
use tidemill_profiler::device::{Device, OnDevice};
use tidemill_remote::executor::direct::{Direct, bytes_of_files, look};
use tidemill_remote::open_inference::OpenInference;
use tidemill_spec::diagnostic::suggestion;
use tidemill_spec::infrastructure::Infrastructure;

/// Kinds of the devices of an infrastructure.
pub(super) fn kinds(infrastructure: &Infrastructure) -> Vec<&str> {
    all(infrastructure).map(|device| device.kind.value.as_str()).collect()
}

fn all(
    infrastructure: &Infrastructure,
) -> impl Iterator<Item = &tidemill_spec::infrastructure::Device> + Clone {
    let workers = infrastructure.tiers.iter().flat_map(|tier| tier.workers.iter());
    workers.flat_map(|worker| worker.devices.iter())
}

/// The devices that are asked for, each with those of its back ends that are wanted (none: all).
///
/// # Errors
/// The infrastructure has no such kind, no address is known, or the device cannot be reached.
pub(super) fn chosen(
    asked: &[(String, Option<String>)],
    wanted: &[String],
    infrastructure: &Infrastructure,
    terminal: &Terminal,
) -> Result<Vec<Device>, Failure> {
    let mut devices = Vec::new();
    for (number, (kind, address)) in asked.iter().enumerate() {
        if asked[..number].iter().any(|(other, _)| other == kind) {
            return Err(Failure::new(Kind::Usage, format!("--device names `{kind}` twice"))
                .with_help("one device shows the times of its kind"));
        }
        let mut of_kind = all(infrastructure).filter(|device| device.kind.value == *kind).peekable();
        if of_kind.peek().is_none() {
            let message = format!("--device names `{kind}`, which is not a kind of devices");
            let help = match kinds(infrastructure) {
                none if none.is_empty() => {
                    "add it to a worker type of the infrastructure: `devices: [{kind: ...}]`".to_owned()
                }
                known => suggestion(kind, known, "kinds of devices"),
            };
            return Err(Failure::new(Kind::Usage, message).with_help(help));
        }
        let known = of_kind.find_map(|device| device.address.as_ref()).map(|address| address.value.clone());
        let Some(address) = address.clone().or(known) else {
            let message = format!("the infrastructure has no address of the device `{kind}`");
            let help =
                format!("write where `tidemill device serve` listens: `--device {kind}=tcp://HOST:PORT`");
            return Err(Failure::new(Kind::Usage, message).with_help(help));
        };
        if OpenInference::serves(&address) {
            let message =
                format!("`{kind}` is a server of models at {address}: it reports no times of its models");
            let help = "write its figures into a profile and merge it: see docs/profiling.md";
            return Err(Failure::new(Kind::Usage, message).with_help(help));
        }
        let facts = look(&address).map_err(|error| {
            Failure::new(Kind::Unavailable, format!("the device `{kind}` cannot be measured: {error}"))
                .with_help("start it with `tidemill device serve --listen ADDRESS`")
        })?;
        if facts.kind != *kind {
            terminal.warning(&format!(
                "the device at {address} is of the kind `{}`: its times are those of `{kind}` now",
                facts.kind
            ));
        }
        let mut backends: Vec<String> = facts.backends.into_iter().map(|(name, _)| name).collect();
        backends.retain(|name| wanted.is_empty() || wanted.contains(name));
        if backends.is_empty() {
            let message = format!("the device at {address} has no backend {}", wanted.join(" or "));
            return Err(Failure::new(Kind::Usage, message).with_help("leave `--backend` out"));
        }
        devices.push(Device { kind: kind.clone(), address, backends });
    }
    Ok(devices)
}

/// Loads a model on a device as plans name it, in a measuring process.
pub(super) fn open(spec: &ModelSpec, device: &str) -> Result<OnDevice, OperatorError> {
    let bytes = bytes_of_files(spec)?;
    let model = Direct::open(spec, device)?;
    let process = model.process();
    Ok(OnDevice { model: Box::new(model), bytes, process })
}
