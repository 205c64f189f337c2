//! Commands for Compose.
use super::{INDENT, submission};
use crate::layout::{ELASTIC, Layout, SERVICE, Site};
use crate::request::{NetworkMode, Request};
use crate::{STATE_FOLDER, USER};

pub(super) fn text(layout: &Layout, request: &Request<'_>) -> String {
    let all = "## All at once\n\n    tidemill up .\n\nstarts everything in this order, here or over ssh, and `tidemill down .` \
               removes it. By hand, step by step:\n\n";
    let steps = [
        image(layout),
        network(layout),
        controller(layout),
        joining(layout),
        workers(layout),
        run(layout, request),
    ];
    let steps: String =
        (1..).zip(steps).map(|(number, step)| format!("{number}. {}\n\n", step.trim_end())).collect();
    format!(
        "{all}{steps}{}A container that dies restarts. To end a location: `down` in place of `up --detach`; with \
         `--volumes` its state goes too.\n\n",
        elastic(layout)
    )
}

/// Describes the elastic agent, and its rights.
fn elastic(layout: &Layout) -> String {
    let names: Vec<&str> =
        layout.sites.iter().filter(|site| site.elastic.is_some()).map(|site| site.name.as_str()).collect();
    if names.is_empty() {
        return String::new();
    }
    format!(
        "The workflow wants limits that follow the load: the container `{ELASTIC}` ({}) moves processors \
         and memory between the workers of its machine. For that it has the socket of the engine and the \
         control groups of the machine, which equals the rights of root, but no network and no part of the \
         workflow; the workers have neither. To avoid this, deploy with `--no-elastic`: then the limits \
         stay fixed.\n\n",
        names.join(", ")
    )
}

/// The Compose command for a site, in its folder.
fn compose(layout: &Layout, site: &Site) -> String {
    let gpus = match site.has_accelerators() {
        true => " --file compose.yaml --file compose.gpu.yaml",
        false => "",
    };
    format!("docker compose --project-name {}-{}{gpus}", layout.project, site.name)
}

fn place(site: &Site) -> String {
    match &site.host {
        Some(host) => format!("On {host}, in a copy of the folder `{}`", site.name),
        None => format!("In the folder `{}`", site.name),
    }
}

fn image(layout: &Layout) -> String {
    format!("The image `{}` has to be on every machine.", layout.image)
}

fn network(layout: &Layout) -> String {
    match layout.network {
        NetworkMode::Bridge => format!(
            "The network that all locations use:\n\n{INDENT}docker network create {}\n",
            crate::compose::network_words(layout)
        ),
        NetworkMode::Host => format!(
            "Every machine has to reach `{}`, ports {} and {}, and of two workers that exchange records one has to reach \
             the other, at any port.{}",
            layout.address,
            layout.ports.people,
            layout.ports.processes,
            match layout.served().next() {
                Some(_) => " Workers have to reach the devices at the addresses in the table.",
                None => "",
            }
        ),
    }
}

fn controller(layout: &Layout) -> String {
    let site = layout.controller_site();
    format!("The controller. {}:\n\n{INDENT}{} up --detach {SERVICE}\n", place(site), compose(layout, site))
}

fn joining(layout: &Layout) -> String {
    let asked = compose(layout, layout.controller_site());
    let mut text = format!(
        "The join files, one for each worker{}. Create them there, then copy them to the folders `secrets` of their locations; the user {USER} \
         of the containers must be able to read them:\n\n",
        if layout.served().next().is_some() { " and each device" } else { "" }
    );
    for (site, unit) in layout.units() {
        text += &format!(
            "{INDENT}{asked} exec -T {SERVICE} tidemill token --name {} --controller-state {STATE_FOLDER} --for-join-file > \
             ../{}/secrets/{}\n",
            unit.name,
            site.name,
            unit.join()
        );
    }
    for (site, served) in layout.served() {
        text += &format!(
            "{INDENT}{asked} exec -T {SERVICE} tidemill token --name {} --controller-state {STATE_FOLDER} --for-join-file > \
             ../{}/secrets/{}\n",
            served.name,
            site.name,
            served.join()
        );
    }
    text
}

fn workers(layout: &Layout) -> String {
    let mut text = match layout.served().next() {
        Some(_) => "The workers and the devices; the run ends if a device is not there when it begins.\n\n"
            .to_owned(),
        None => "The workers.\n\n".to_owned(),
    };
    let is_used = |site: &&Site| !(site.workers.is_empty() && site.served.is_empty());
    for site in layout.sites.iter().filter(is_used) {
        text += &format!("   {}:\n\n{INDENT}{} up --detach\n\n", place(site), compose(layout, site));
    }
    text.trim_end_matches('\n').to_owned() + "\n"
}

fn run(layout: &Layout, request: &Request<'_>) -> String {
    let at = match layout.network {
        NetworkMode::Bridge => "localhost".to_owned(),
        NetworkMode::Host => layout.address_before_port(),
    };
    let port = layout.ports.published;
    format!(
        "The run. A token for you comes from\n\n{INDENT}{} exec -T {SERVICE} tidemill people add YOU --role operator \
         --controller-state {STATE_FOLDER} > token\n\n   and the FINGERPRINT is in the first line of each join file:\n\n\
         {INDENT}tidemill login tidemill://{at}:{port}/FINGERPRINT --token-file token\n{INDENT}tidemill workers\n{INDENT}{}",
        compose(layout, layout.controller_site()),
        submission(request)
    )
}
