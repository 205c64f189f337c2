//! Commands for Kubernetes.
use super::{INDENT, submission};
use crate::kubernetes::{LOCATION_LABEL, TIER_LABEL};
use crate::layout::{Layout, SERVICE};
use crate::request::Request;
use crate::{PORT, STATE_FOLDER};

pub(super) fn text(layout: &Layout, request: &Request<'_>) -> String {
    let namespace = &layout.project;
    let mut labels = String::new();
    for site in &layout.sites {
        let location =
            site.location.as_ref().map_or_else(String::new, |name| format!(" {LOCATION_LABEL}={name}"));
        labels += &format!("{INDENT}kubectl label node NODE {TIER_LABEL}={}{location}\n", site.tier);
    }
    let mut secrets = String::new();
    for (_, unit) in layout.units() {
        let (name, join) = (&unit.name, unit.join());
        secrets += &format!(
            "{INDENT}kubectl --namespace {namespace} exec {SERVICE}-0 -- tidemill token --name {name} --controller-state {STATE_FOLDER} \
             --for-join-file > join\n{INDENT}kubectl --namespace {namespace} create secret generic {join} --from-file=join\n"
        );
    }
    let mut streams = String::new();
    for (_, unit) in layout.units() {
        for port in &unit.streams.listens {
            let service = unit.streams_service();
            streams += &format!("{INDENT}{service}.{namespace}.svc:{port}\n");
        }
    }
    if !streams.is_empty() {
        streams = format!(
            "\nRecords of streams are sent to these addresses of the cluster. Senders outside of it want a service of yours, of the type \
             LoadBalancer, with the same selector:\n\n{streams}"
        );
    }
    format!(
        "## By hand\n\n\
         1. The image `{}` has to be where the nodes find it.\n\
         2. Nodes are chosen by labels:\n\n{labels}\n\
         3. Everything; workers wait for their secrets:\n\n\
         {INDENT}kubectl apply --filename kubernetes/\n\
         {INDENT}kubectl --namespace {namespace} rollout status statefulset/{SERVICE}\n\n\
         4. A secret for each worker; the file is not needed afterwards:\n\n{secrets}\n\
         5. The run, through a port of this machine. The FINGERPRINT is in the first line of each join file:\n\n\
         {INDENT}kubectl --namespace {namespace} exec {SERVICE}-0 -- tidemill people add YOU --role operator --controller-state \
         {STATE_FOLDER} > token\n\
         {INDENT}kubectl --namespace {namespace} port-forward service/{SERVICE} {PORT}\n\
         {INDENT}tidemill login tidemill://localhost:{PORT}/FINGERPRINT --token-file token\n\
         {INDENT}{}\n{streams}",
        layout.image,
        submission(request)
    )
}
