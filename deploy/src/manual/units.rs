//! Commands for systemd.
use super::{INDENT, submission};
use crate::RESULTS_FOLDER;
use crate::layout::{Layout, Ports};
use crate::request::Request;
use crate::systemd::{PROGRAM, SECRETS, controller_unit, results, worker_unit};

/// The controller's folder on its machine.
const STATE: &str = "/var/lib/tidemill/controller";

pub(super) fn text(layout: &Layout, request: &Request<'_>) -> String {
    let Ports { people, processes, .. } = layout.ports;
    let (controller, site) = (controller_unit(), layout.controller_site());
    let start = |folder: &str, unit: &str| {
        format!(
            "{INDENT}cp {folder}/{unit}.service /etc/systemd/system/\n{INDENT}systemctl daemon-reload\n\
             {INDENT}systemctl enable --now {unit}\n"
        )
    };
    let mut joins = String::new();
    let mut workers = String::new();
    for (site, unit) in layout.units() {
        let (name, join) = (&unit.name, unit.join());
        joins += &format!(
            "{INDENT}tidemill token --name {name} --controller-state {STATE} --for-join-file > {join}\n"
        );
        workers += &format!(
            "   {name}, on the machine of {}, with its file at `{SECRETS}/{join}`:\n\n{}\n",
            site.name,
            start(&site.name, &worker_unit(unit))
        );
        if unit.writes {
            workers += &format!(
                "   What its sinks write beneath `{RESULTS_FOLDER}` is in `/var/lib/{}` of that machine; \
                 they cannot write to other absolute paths.\n\n",
                results(unit)
            );
        }
    }
    format!(
        "## By hand\n\nNeeds systemd 250 or later, and root. On every machine the program has to be at `{PROGRAM}`.\n\n\
         1. The controller, on the machine of {}, which the others reach at `{}`, ports {people} and {processes}:\n\n{}\n\
         2. The join files, one for each worker, created there; only root needs to read them:\n\n{joins}\n\
         3. The workers.\n\n{workers}\
         4. The run. The FINGERPRINT is in the first line of each join file:\n\n\
         {INDENT}tidemill people add YOU --role operator --controller-state {STATE} > token\n\
         {INDENT}tidemill login tidemill://{}:{people}/FINGERPRINT --token-file token\n\
         {INDENT}{}\n",
        site.name,
        layout.address,
        start(&site.name, &controller),
        layout.address_before_port(),
        submission(request)
    )
}
