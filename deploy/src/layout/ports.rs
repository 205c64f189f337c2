//! Ports of a deployment.
use super::Site;
use super::served::DEVICE_PORT;
use crate::error::DeployError;
use crate::request::NetworkMode;
use crate::{CONTROLLER_METRICS_PORT, HOSTS_PORT, PORT, WORKER_METRICS_PORT};

/// Ports of the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ports {
    /// For people and workers.
    pub(crate) people: u16,
    /// For the processes of runs.
    pub(crate) processes: u16,
    /// For metrics, on its own machine only.
    pub(crate) metrics: u16,
    /// The machine's port that leads to the one for people, if the network is a bridge.
    pub(crate) published: u16,
}

impl Ports {
    /// Assigns a port to each worker, and two to each device, too. Ports on the machines' own networks are unique even if locations share a
    /// machine, and differ from those of a deployment with a sufficiently distant first port.
    pub(super) fn number(
        first: Option<u16>,
        network: NetworkMode,
        sites: &mut [Site],
    ) -> Result<Self, DeployError> {
        let units = || sites.iter().map(|site| site.workers.len() + 2 * site.served.len()).sum::<usize>();
        let ports = match (network, first) {
            (NetworkMode::Bridge, first) => Self { published: first.unwrap_or(PORT), ..Self::usual() },
            (NetworkMode::Host, None) => Self::usual(),
            (NetworkMode::Host, Some(first)) => {
                let wanted = 3 + units();
                if usize::from(first) + wanted - 1 > usize::from(u16::MAX) {
                    return Err(DeployError::TooFewPorts { first, wanted });
                }
                Self { people: first, processes: first + 1, metrics: first + 2, published: first }
            }
        };
        let mut next = ports.metrics;
        for unit in sites.iter_mut().flat_map(|site| &mut site.workers) {
            next = next.saturating_add(1);
            unit.metrics_port = if network == NetworkMode::Host { next } else { WORKER_METRICS_PORT };
        }
        // Ports of devices follow; without a first port they listen where `tidemill device serve` usually does.
        let mut usual = DEVICE_PORT;
        for served in sites.iter_mut().flat_map(|site| &mut site.served) {
            if network == NetworkMode::Bridge {
                (served.metrics_port, served.port) = (WORKER_METRICS_PORT, DEVICE_PORT);
                continue;
            }
            next = next.saturating_add(1);
            served.metrics_port = next;
            served.port = match first {
                Some(_) => {
                    next = next.saturating_add(1);
                    next
                }
                None => usual,
            };
            usual = usual.saturating_add(1);
        }
        Ok(ports)
    }

    fn usual() -> Self {
        Self { people: PORT, processes: HOSTS_PORT, metrics: CONTROLLER_METRICS_PORT, published: PORT }
    }
}
