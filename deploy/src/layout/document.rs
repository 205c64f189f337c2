//! The description for programs.
use super::{ELASTIC, Layout, SERVICE, Served, Site, Unit};
use crate::STATE_FOLDER;
use crate::deployment::{
    ControllerPlace, DeployedDevice, DeployedFiles, DeployedLocation, DeployedService, Deployment, FORMAT,
    FormerLocation, Network, ServiceRole,
};
use crate::request::{INFRASTRUCTURE, NetworkMode, PLAN, Request};
use tidemill_spec::infrastructure::Architecture;

impl Layout {
    pub(crate) fn document(&self, request: &Request<'_>) -> Deployment {
        let network = match self.network {
            NetworkMode::Bridge => Network::Bridge { name: self.project.clone() },
            NetworkMode::Host => Network::Host,
        };
        Deployment {
            format: FORMAT,
            workflow: self.workflow.clone(),
            id: self.id.clone(),
            project: self.project.clone(),
            image: self.image.clone(),
            image_of_files: None,
            network,
            controller: ControllerPlace {
                location: self.controller_site().name.clone(),
                service: SERVICE.to_owned(),
                port: self.ports.people,
                hosts_port: self.ports.processes,
                address: self.address.clone(),
                published: (self.network == NetworkMode::Bridge).then_some(self.ports.published),
                folder: STATE_FOLDER.to_owned(),
            },
            former: self.former(request),
            locations: (0..).zip(&self.sites).map(|(index, site)| self.location(index, site)).collect(),
            files: DeployedFiles {
                workflow: request.workflow_path.clone(),
                infrastructure: request.infrastructure.map(|_| INFRASTRUCTURE.to_owned()),
                plan: PLAN.to_owned(),
                profiles: request.profiles.clone(),
            },
        }
    }

    /// Returns earlier locations that the present plan lacks.
    fn former(&self, request: &Request<'_>) -> Vec<FormerLocation> {
        let is_now = |former: &FormerLocation| {
            let is_it = |site: &Site| {
                format!("{}-{}", self.project, site.name) == former.project && site.host == former.host
            };
            self.sites.iter().any(is_it)
        };
        let mut former: Vec<FormerLocation> = Vec::new();
        for one in request.former.iter().filter(|one| !is_now(one)) {
            let is_known =
                |other: &FormerLocation| (&other.project, &other.host) == (&one.project, &one.host);
            if !former.iter().any(is_known) {
                former.push(one.clone());
            }
        }
        former
    }

    fn location(&self, index: usize, site: &Site) -> DeployedLocation {
        let controller = (index == self.controller).then(|| DeployedService {
            service: SERVICE.to_owned(),
            role: ServiceRole::Controller,
            worker: None,
            join: None,
            metrics_port: Some(self.ports.metrics),
            sources: Vec::new(),
            device: None,
        });
        let elastic = site.elastic.is_some().then(|| DeployedService {
            service: ELASTIC.to_owned(),
            role: ServiceRole::Elastic,
            worker: None,
            join: None,
            metrics_port: None,
            sources: Vec::new(),
            device: None,
        });
        DeployedLocation {
            name: site.name.clone(),
            tier: site.tier.clone(),
            folder: site.name.clone(),
            project: format!("{}-{}", self.project, site.name),
            host: site.host.clone(),
            architecture: site.architecture.map(Architecture::name).map(str::to_owned),
            has_gpu_overlay: site.has_accelerators(),
            services: controller
                .into_iter()
                .chain(site.workers.iter().map(service))
                .chain(site.served.iter().map(device))
                .chain(elastic)
                .collect(),
        }
    }
}

fn service(unit: &Unit) -> DeployedService {
    DeployedService {
        service: unit.service(),
        role: ServiceRole::Worker,
        worker: Some(unit.name.clone()),
        join: Some(format!("secrets/{}", unit.join())),
        metrics_port: Some(unit.metrics_port),
        sources: unit.streams.addresses.clone(),
        device: None,
    }
}

fn device(served: &Served) -> DeployedService {
    DeployedService {
        service: served.service(),
        role: ServiceRole::Device,
        worker: None,
        join: Some(format!("secrets/{}", served.join())),
        metrics_port: Some(served.metrics_port),
        sources: vec![served.listens.clone()],
        device: Some(DeployedDevice {
            id: served.id.clone(),
            name: served.name.clone(),
            address: served.address.clone(),
        }),
    }
}
