//! Placement of containers, common to all targets.
mod controller;
mod devices;
mod document;
mod elastic;
mod fitting;
mod ports;
mod printable;
mod served;
mod streams;

use crate::WORKER_METRICS_PORT;
use crate::deployment::all_addresses;
use crate::error::DeployError;
use crate::names::{Names, of_worker, plain};
use crate::request::{NetworkMode, Request, Target};
pub(crate) use devices::{devices, has_a_plain_name};
pub(crate) use elastic::{Elastic, wanted as elastic_wanted};
pub(crate) use ports::Ports;
pub(crate) use served::Served;
use std::collections::{BTreeMap, BTreeSet};
pub(crate) use streams::{Streams, unheard};
use tidemill_spec::infrastructure::{Architecture, Infrastructure, NetworkPath, PathRule};
use tidemill_spec::kinds::KindTable;
use tidemill_spec::plan::{PlanWorker, SOURCE_DEVICE};
use tidemill_spec::units::{Bytes, HourlyPrice};
use tidemill_spec::workflow::Workflow;

/// Folders beside those of locations.
const RESERVED: &[&str] = &["monitoring", "kubernetes", "secrets"];

/// Most accelerators of a worker that are listed one by one, above that of any machine.
const MOST_ACCELERATORS: u32 = 1024;

/// Name of the container that moves limits between workers.
pub(crate) const ELASTIC: &str = "elastic";

/// Name of the controller's container, and its address in networks of engines and clusters.
pub(crate) const SERVICE: &str = "controller";

/// All of a deployment.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Original name of the workflow.
    pub(crate) workflow: String,
    /// Distinguishes it from other deployments, if it has names of its own in an engine.
    pub(crate) id: Option<String>,
    /// Name prefix of everything that belongs to it.
    pub(crate) project: String,
    pub(crate) image: String,
    pub(crate) network: NetworkMode,
    pub(crate) ports: Ports,
    /// In the order of the tiers.
    pub(crate) sites: Vec<Site>,
    /// Index of the controller's site.
    pub(crate) controller: usize,
    /// Name or address by which workers dial the controller.
    pub(crate) address: String,
}

/// A location.
#[derive(Debug)]
pub(crate) struct Site {
    /// Its name and that of its folder, unique.
    pub(crate) name: String,
    pub(crate) tier: String,
    /// As in the infrastructure.
    pub(crate) location: Option<String>,
    /// `ssh://USER@HOST`.
    pub(crate) host: Option<String>,
    /// Name or address by which the others reach it.
    pub(crate) reached_at: Option<String>,
    pub(crate) only_dials: bool,
    pub(crate) paths: Vec<NetworkPath>,
    pub(crate) path_rule: PathRule,
    pub(crate) architecture: Option<Architecture>,
    pub(crate) workers: Vec<Unit>,
    /// Devices of the plan that the deployment serves here.
    pub(crate) served: Vec<Served>,
    /// The container that moves limits between the workers of its machine; `None` if there is none, or it is at another
    /// location.
    pub(crate) elastic: Option<Elastic>,
}

/// A worker.
#[derive(Debug)]
pub(crate) struct Unit {
    /// Name in the cluster: that of the plan if it is valid.
    pub(crate) name: String,
    /// Name for containers and files: small letters, digits, dashes.
    pub(crate) short: String,
    pub(crate) worker_type: String,
    pub(crate) price: Option<HourlyPrice>,
    /// Processors of its machine, if known.
    pub(crate) processors: Option<f64>,
    /// Memory of its machine, if known.
    pub(crate) memory: Option<Bytes>,
    /// Accelerators of its machine.
    pub(crate) accelerators: u32,
    /// Index of the first of these on the machine, which other workers may share.
    first_accelerator: u32,
    pub(crate) metrics_port: u16,
    /// Absolute paths that its sources read.
    pub(crate) reads: Vec<String>,
    /// Devices that its sources read, by their paths.
    pub(crate) devices: Vec<String>,
    /// Ports of its sources.
    pub(crate) streams: Streams,
    /// Whether it has a sink.
    pub(crate) writes: bool,
    /// Label value of a worker with elastic limits.
    pub(crate) elastic: Option<String>,
}

impl Unit {
    /// Name of its container.
    pub(crate) fn service(&self) -> String {
        crate::deployment::Deployment::service_of(&self.short)
    }

    /// Name of the secret that it joins with.
    pub(crate) fn join(&self) -> String {
        format!("join-{}", self.short)
    }

    /// Name of the Kubernetes service, and of the policy, of its sources with senders.
    pub(crate) fn streams_service(&self) -> String {
        format!("streams-of-{}", self.short)
    }

    /// Indices of its accelerators on its machine; they are exclusive to it.
    pub(crate) fn accelerator_numbers(&self) -> Vec<String> {
        let first = self.first_accelerator;
        let end = first.saturating_add(self.accelerators.min(MOST_ACCELERATORS));
        (first..end).map(|number| number.to_string()).collect()
    }

    /// Returns the options of `tidemill worker` about the machine.
    pub(crate) fn facts(&self, site: &Site) -> Vec<String> {
        let mut facts = vec!["--name".to_owned(), self.name.clone(), "--tier".into(), site.tier.clone()];
        let mut add = |option: &str, value: String| facts.extend([option.to_owned(), value]);
        if let Some(location) = &site.location {
            add("--location", location.clone());
        }
        add("--type", self.worker_type.clone());
        if let Some(price) = self.price {
            add("--price", price.to_string());
        }
        for path in &site.paths {
            let by = path.interface.as_ref().or(path.address.as_ref());
            let by = by.map_or("", |by| by.as_str());
            let price = path.price.as_ref().map_or_else(String::new, |price| format!(",{}", price.value));
            add("--path", format!("{}={by}{price}", path.id));
        }
        if site.path_rule != PathRule::default() {
            add("--path-rule", site.path_rule.name().into());
        }
        if site.only_dials {
            facts.push("--only-dials".into());
        }
        facts
    }
}

/// Network of the containers.
pub(crate) fn network(request: &Request<'_>) -> NetworkMode {
    match (request.target, request.network) {
        // Pods have a network of their own, in which each has its address.
        (Target::Kubernetes, _) => NetworkMode::Bridge,
        (_, Some(network)) => network,
        (Target::Systemd, None) => NetworkMode::Host,
        (Target::Compose, None) => {
            let is_far = request.infrastructure.is_some_and(|(known, _)| !known.hosts.is_empty());
            if is_far { NetworkMode::Host } else { NetworkMode::Bridge }
        }
    }
}

impl Layout {
    pub(crate) fn of(request: &Request<'_>) -> Result<Self, DeployError> {
        let infrastructure = request.infrastructure.map(|(infrastructure, _)| infrastructure);
        if let Some(infrastructure) = infrastructure {
            fitting::check(request.plan, infrastructure)?;
        }
        let network = network(request);
        let mut sites = sites(request, infrastructure)?;
        let controller = controller::choose(request, infrastructure, &mut sites)?;
        let machines: BTreeSet<Option<&String>> = sites.iter().map(|site| site.host.as_ref()).collect();
        if (request.target, network) == (Target::Compose, NetworkMode::Bridge) && machines.len() > 1 {
            return Err(DeployError::OneBridge { machines: machines.len() });
        }
        if let Some(site) = sites.iter().find(|site| network == NetworkMode::Bridge && !site.paths.is_empty())
        {
            let location = site.location.clone().unwrap_or_else(|| site.tier.clone());
            return Err(DeployError::NoPaths { location });
        }
        printable::check(request, &sites)?;
        name_sites(&mut sites);
        number_accelerators(request.target, &mut sites);
        let address = controller::address(request.target, network, &sites, controller)?;
        let ports = Ports::number(request.first_port, network, &mut sites)?;
        if network == NetworkMode::Bridge {
            // In it all reach each other.
            sites.iter_mut().for_each(|site| site.only_dials = false);
        }
        let workflow = request.plan.plan.workflow.name.clone();
        // Engines of machines are shared by deployments; a namespace and a machine's own services are not.
        let id = request.id.clone().filter(|_| request.target == Target::Compose);
        let end = id.as_ref().map_or_else(String::new, |id| format!("-{id}"));
        let project = format!("tidemill-{}{end}", plain(&workflow));
        served::address(request, network, &project, &mut sites)?;
        if request.target == Target::Compose && request.elastic {
            elastic::assign(request.workflow, network == NetworkMode::Bridge, &project, &mut sites);
        }
        Ok(Self {
            project,
            id,
            workflow,
            image: request.image.clone(),
            network,
            ports,
            sites,
            controller,
            address,
        })
    }

    /// The controller's location.
    pub(crate) fn controller_site(&self) -> &Site {
        &self.sites[self.controller]
    }

    /// All workers with their sites.
    pub(crate) fn units(&self) -> impl Iterator<Item = (&Site, &Unit)> {
        self.sites.iter().flat_map(|site| site.workers.iter().map(move |unit| (site, unit)))
    }

    /// All devices that the deployment serves, with their sites.
    pub(crate) fn served(&self) -> impl Iterator<Item = (&Site, &Served)> {
        self.sites.iter().flat_map(|site| site.served.iter().map(move |served| (site, served)))
    }

    /// Address of the metrics of a worker or a device, which this service has at this port.
    pub(crate) fn metrics_target(&self, site: &Site, service: String, port: u16) -> String {
        let machine = match self.network {
            NetworkMode::Bridge => service,
            NetworkMode::Host => match (&site.reached_at, &site.host) {
                (Some(address), _) => address.clone(),
                // The deploying machine.
                (None, None) => "localhost".to_owned(),
                (None, Some(_)) => site.name.clone(),
            },
        };
        format!("{}:{port}", before_port(&machine))
    }

    /// The controller's address in the form before a port.
    pub(crate) fn address_before_port(&self) -> String {
        before_port(&self.address)
    }

    /// Wildcard address of the controller's machine, of the family by which the others dial it.
    pub(crate) fn everywhere(&self) -> &'static str {
        all_addresses(&self.address)
    }
}

/// Puts IPv6 addresses in brackets.
fn before_port(machine: &str) -> String {
    if machine.contains(':') { format!("[{machine}]") } else { machine.to_owned() }
}

impl Site {
    fn new(tier: &str, location: Option<&str>, infrastructure: Option<&Infrastructure>) -> Self {
        let host = infrastructure.and_then(|infrastructure| infrastructure.host(tier, location));
        Self {
            name: String::new(),
            tier: tier.to_owned(),
            location: location.map(str::to_owned),
            host: host.and_then(|host| host.host.as_ref()).map(|host| host.value.clone()),
            reached_at: host.and_then(|host| host.reached_at()).map(str::to_owned),
            only_dials: host.is_some_and(|host| host.only_dials),
            paths: host.map(|host| host.paths.clone()).unwrap_or_default(),
            path_rule: host.map(|host| host.path_rule).unwrap_or_default(),
            architecture: host.and_then(|host| host.architecture),
            workers: Vec::new(),
            served: Vec::new(),
            elastic: None,
        }
    }

    /// Whether a container here gets accelerators of the machine.
    pub(crate) fn has_accelerators(&self) -> bool {
        self.workers.iter().any(|unit| unit.accelerators > 0)
            || self.served.iter().any(|served| served.accelerator.is_some())
    }
}

/// Returns the index of a site, which is added if it is new.
fn site_of(
    sites: &mut Vec<Site>,
    tier: &str,
    location: Option<&str>,
    infrastructure: Option<&Infrastructure>,
) -> usize {
    let is_it = |site: &Site| site.tier == tier && site.location.as_deref() == location;
    sites.iter().position(is_it).unwrap_or_else(|| {
        sites.push(Site::new(tier, location, infrastructure));
        sites.len() - 1
    })
}

/// The locations of the plan's workers and devices, in the order of the tiers, then of the plan.
fn sites(request: &Request<'_>, infrastructure: Option<&Infrastructure>) -> Result<Vec<Site>, DeployError> {
    let plan = &request.plan.plan;
    let mut sites: Vec<Site> = Vec::new();
    let (mut names, mut shorts) = (Names::default(), Names::default());
    for worker in &plan.workers {
        let index = site_of(&mut sites, &worker.tier, worker.location.as_deref(), infrastructure);
        let name = names.take(of_worker(&worker.id));
        let short = shorts.take(plain(&name));
        let unit = unit(request, infrastructure, worker, name, short);
        sites[index].workers.push(unit);
    }
    served::place(request, infrastructure, &mut sites)?;
    if let Some(infrastructure) = infrastructure {
        let place = |site: &Site| {
            let tier = infrastructure.tiers.iter().position(|tier| tier.id.value == site.tier);
            let location = tier.and_then(|tier| {
                let locations = &infrastructure.tiers[tier].locations;
                locations.iter().position(|known| Some(&known.value) == site.location.as_ref())
            });
            (tier, location)
        };
        sites.sort_by_key(place);
    }
    Ok(sites)
}

fn unit(
    request: &Request<'_>,
    infrastructure: Option<&Infrastructure>,
    worker: &PlanWorker,
    name: String,
    short: String,
) -> Unit {
    let plan = &request.plan.plan;
    let is_device = worker.worker_type == SOURCE_DEVICE;
    let machine = infrastructure.and_then(|infrastructure| fitting::machine(worker, infrastructure));
    let has = |operator: &str| {
        plan.stages.iter().any(|stage| stage.worker == worker.id && stage.operator == operator)
    };
    let (mut devices, mut reads) =
        request.workflow.map(|workflow| paths(workflow, &request.kinds, has)).unwrap_or_default();
    let mut streams =
        request.workflow.map(|workflow| streams::of(workflow, &request.kinds, has)).unwrap_or_default();
    // Sources and services may name the same path.
    let add = |paths: &mut Vec<String>, more: &[&str]| {
        for path in more {
            if !paths.iter().any(|known| known == path) {
                paths.push((*path).to_owned());
            }
        }
    };
    for needs in &request.services {
        add(&mut devices, needs.devices);
        add(&mut reads, needs.files);
        streams.listens.extend(needs.ports);
    }
    streams.listens.sort_unstable();
    streams.listens.dedup();
    let writes = match request.workflow {
        Some(workflow) => workflow.sinks.iter().any(|sink| has(sink.id.as_str())),
        // An operator without consumers is a sink.
        None => plan
            .stages
            .iter()
            .any(|stage| stage.worker == worker.id && !plan.edges.iter().any(|edge| edge.from == stage.id)),
    };
    Unit {
        name,
        short,
        worker_type: worker.worker_type.clone(),
        price: worker.price.or_else(|| machine.map(|machine| machine.price.value)).filter(|_| !is_device),
        processors: machine.and_then(|machine| machine.vcpu.as_ref()).map(|vcpu| vcpu.value),
        memory: machine.and_then(|machine| machine.memory.as_ref()).map(|memory| memory.value),
        accelerators: machine.map_or(0, |machine| machine.accelerators.iter().map(|of| of.count.value).sum()),
        first_accelerator: 0,
        metrics_port: WORKER_METRICS_PORT,
        reads,
        devices,
        streams,
        writes,
        elastic: None,
    }
}

/// Returns the absolute paths in the options of a worker's sources: those of devices, and those of files and folders.
fn paths(workflow: &Workflow, kinds: &KindTable, has: impl Fn(&str) -> bool) -> (Vec<String>, Vec<String>) {
    let sources = workflow.sources.iter().filter(|source| has(source.id.as_str()));
    let mut found: Vec<String> =
        sources.flat_map(|source| devices::read_by(source, kinds)).map(str::to_owned).collect();
    found.retain(|path| path.len() > 1 && path.starts_with('/'));
    found.retain(|path| devices::is_device(path) || !path.starts_with("/dev/"));
    found.sort();
    found.dedup();
    found.into_iter().partition(|path| devices::is_device(path))
}

/// Numbers the accelerators of each machine, so that no two workers share one.
fn number_accelerators(target: Target, sites: &mut [Site]) {
    let mut next: BTreeMap<(Option<String>, Option<String>), u32> = BTreeMap::new();
    for site in sites {
        // With Compose a location without a host is on the deploying machine, whatever its address is.
        let address = site.reached_at.clone().filter(|_| target == Target::Systemd);
        let next = next.entry((site.host.clone(), address)).or_default();
        for unit in &mut site.workers {
            unit.first_accelerator = *next;
            *next = next.saturating_add(unit.accelerators);
        }
        served::give_accelerators(site, next);
    }
}

/// Names sites by the location if that is unique, else with the tier before it.
fn name_sites(sites: &mut [Site]) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let own = |site: &Site| plain(site.location.as_deref().unwrap_or(&site.tier));
    for site in sites.iter() {
        *counts.entry(own(site)).or_default() += 1;
    }
    let mut names = Names::without(RESERVED);
    for site in sites {
        let name = own(site);
        let is_clear = counts[&name] == 1 || site.location.is_none();
        site.name = names.take(if is_clear { name } else { plain(&format!("{}-{name}", site.tier)) });
    }
}
