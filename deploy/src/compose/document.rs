//! Structure of a Compose file, as far as it is used here.
use serde::Serialize;
use std::collections::BTreeMap;

/// A Compose file.
#[derive(Debug, Default, Serialize)]
pub(super) struct ComposeFile {
    pub(super) services: BTreeMap<String, Service>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) networks: BTreeMap<String, ExternalNetwork>,
    pub(super) volumes: BTreeMap<String, Volume>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) secrets: BTreeMap<String, FileSecret>,
}

/// A container.
#[derive(Debug, Serialize)]
pub(super) struct Service {
    pub(super) image: String,
    pub(super) entrypoint: Vec<String>,
    pub(super) command: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hostname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) platform: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) network_mode: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pid: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) networks: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) ports: Vec<String>,
    pub(super) volumes: Vec<Mount>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) devices: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) secrets: Vec<ServiceSecret>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpus: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mem_limit: Option<String>,
    pub(super) pids_limit: u32,
    pub(super) user: String,
    pub(super) read_only: bool,
    pub(super) tmpfs: Vec<String>,
    pub(super) cap_drop: Vec<String>,
    pub(super) security_opt: Vec<String>,
    pub(super) init: bool,
    pub(super) restart: &'static str,
    pub(super) stop_grace_period: String,
    pub(super) healthcheck: HealthCheck,
    pub(super) logging: Logging,
    pub(super) labels: BTreeMap<String, String>,
}

/// A mount.
#[derive(Debug, Serialize)]
pub(super) struct Mount {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) source: String,
    pub(super) target: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) read_only: bool,
}

/// A secret in a container.
#[derive(Debug, Serialize)]
pub(super) struct ServiceSecret {
    pub(super) source: String,
    pub(super) target: String,
}

/// The health check of a container.
#[derive(Debug, Serialize)]
pub(super) struct HealthCheck {
    pub(super) test: Vec<String>,
    pub(super) interval: &'static str,
    pub(super) timeout: &'static str,
    pub(super) retries: u32,
    pub(super) start_period: &'static str,
}

/// The log driver of a container.
#[derive(Debug, Serialize)]
pub(super) struct Logging {
    pub(super) driver: &'static str,
    pub(super) options: BTreeMap<&'static str, &'static str>,
}

/// A network shared by the files of all locations, and created by none of them.
#[derive(Debug, Serialize)]
pub(super) struct ExternalNetwork {
    pub(super) name: String,
    pub(super) external: bool,
}

/// A named volume with the defaults of the engine.
#[derive(Debug, Default, Serialize)]
pub(super) struct Volume {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) labels: BTreeMap<&'static str, String>,
}

/// A secret that is a file.
#[derive(Debug, Serialize)]
pub(super) struct FileSecret {
    pub(super) file: String,
}

/// The file that reserves accelerators.
#[derive(Debug, Serialize)]
pub(super) struct GpuFile {
    pub(super) services: BTreeMap<String, GpuService>,
}

/// The accelerators of a container.
#[derive(Debug, Serialize)]
pub(super) struct GpuService {
    pub(super) deploy: Deploy,
}

/// Its reservations.
#[derive(Debug, Serialize)]
pub(super) struct Deploy {
    pub(super) resources: Resources,
}

/// Its reservations.
#[derive(Debug, Serialize)]
pub(super) struct Resources {
    pub(super) reservations: Reservations,
}

/// Its reservations.
#[derive(Debug, Serialize)]
pub(super) struct Reservations {
    pub(super) devices: Vec<Device>,
}

/// Devices of a driver.
#[derive(Debug, Serialize)]
pub(super) struct Device {
    pub(super) driver: &'static str,
    /// Device ids, so that containers of one machine do not all get its first devices.
    pub(super) device_ids: Vec<String>,
    pub(super) capabilities: Vec<&'static str>,
}
