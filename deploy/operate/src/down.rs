//! Removes a deployment: containers, networks, volumes and secrets.
use crate::cause::{Cause, OperateError};
use crate::compose::Compose;
use crate::control::Control;
use crate::engine::Engine;
use crate::equipment::causes;
use crate::images::{self, Images};
use crate::leftovers;
use crate::machine::Machine;
use crate::sending;
use crate::site::{Former, Place, Site};
use serde::Serialize;
use std::fs;
use std::io;

/// Result of removing a deployment.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Down {
    /// Containers, networks and volumes that were removed.
    pub removed: Vec<String>,
    /// Kept volumes.
    pub kept: Vec<String>,
    /// Possible remains on unreachable machines of earlier plans, with instructions to remove them.
    pub left: Vec<String>,
    /// Problems that prevented the rest.
    #[serde(skip)]
    pub wrong: Vec<Cause>,
}

/// Removes everything of a deployment, including earlier plans. With `keep_state` its volumes, tokens and the files on
/// other machines stay, so that `up` continues from there. A failure on one machine does not stop the removal on others.
///
/// # Errors
/// An interruption; a file here cannot be removed.
pub fn down(site: &Site, keep_state: bool, control: Control<'_>) -> Result<Down, OperateError> {
    let mut wrong = Vec::new();
    let mut done = Down::default();
    if keep_state {
        // Stop it before its workers: otherwise it would reassign their work, and keep that assignment for the next start.
        let service = &site.deployment().controller.service;
        by_compose(site.controller(), &["stop", "--timeout", "10", service], control)?;
    }
    // The controller's location is last: ending workers report to it.
    let controller = site.controller().location.name.clone();
    let (last, first): (Vec<&Place>, Vec<&Place>) =
        site.places().iter().partition(|place| place.location.name == controller);
    let removal = Removal { site, keep_state, control };
    // A machine of an earlier plan may be gone for good: it does not stop the removal, and its location stays known.
    let mut away: Vec<&Machine> = Vec::new();
    for former in site.former() {
        if away.contains(&&former.machine) {
            done.left.push(left_behind(former, keep_state));
            continue;
        }
        let mut remove = || {
            removal.project(&former.machine, &former.project, None, &mut done)?;
            match former.folder.as_ref().filter(|_| !keep_state) {
                Some(folder) => sending::remove_folder(&former.machine, folder, control),
                None => Ok(()),
            }
        };
        let is_needed = site.places().iter().any(|place| place.machine == former.machine);
        match remove() {
            Err(error) if error.is_unreached() && !is_needed => {
                (control.tell)(&error.to_string());
                done.left.push(left_behind(former, keep_state));
                away.push(&former.machine);
            }
            other => {
                causes(other, &mut wrong)?;
            }
        }
    }
    for place in first.into_iter().chain(last) {
        let mut remove = || {
            removal.project(&place.machine, &place.location.project, Some(place), &mut done)?;
            if keep_state { Ok(()) } else { sending::remove_folder(&place.machine, &place.folder, control) }
        };
        causes(remove(), &mut wrong)?;
    }
    for machine in leftovers::machines(site).into_iter().filter(|machine| !away.contains(machine)) {
        causes(removal.rest(machine, &mut done), &mut wrong)?;
    }
    if let Some(name) = site.shared_network() {
        let place = site.controller();
        causes(Engine::of(&place.machine, control).remove_network(name), &mut wrong)?;
    }
    if wrong.is_empty() && !keep_state {
        forget(site)?;
    }
    wrong.dedup();
    Ok(Down { wrong, ..done })
}

/// Settings of a removal.
#[derive(Clone, Copy)]
struct Removal<'a> {
    site: &'a Site,
    keep_state: bool,
    control: Control<'a>,
}

impl Removal<'_> {
    /// Removes a Compose project on a machine, unless it belongs to another deployment.
    fn project(
        &self,
        machine: &Machine,
        project: &str,
        place: Option<&Place>,
        done: &mut Down,
    ) -> Result<(), OperateError> {
        let engine = Engine::of(machine, self.control);
        let of_others = engine.of_others(project, self.site.id())?;
        if !of_others.is_empty() {
            return Err(Cause::OtherDeployment { machine: machine.name(), what: of_others }.into());
        }
        let before = engine.left(project, true)?;
        if let Some(place) = place.filter(|_| before.iter().any(|one| one.starts_with("container "))) {
            // Compose stops containers in order, within the grace periods of their files. The remains are removed by their
            // labels, also if Compose is missing.
            by_compose(place, &["down", "--remove-orphans", "--timeout", "10"], self.control)?;
        }
        let removed = engine.remove_left(project, !self.keep_state);
        // Reports the removed parts also after a problem.
        let after = engine.left(project, true)?;
        done.removed.extend(before.into_iter().filter(|one| !after.contains(one)));
        done.kept.extend(after.into_iter().filter(|one| one.starts_with("volume ") && self.keep_state));
        removed
    }

    /// Removes projects of this deployment that no known plan has.
    fn rest(&self, machine: &Machine, done: &mut Down) -> Result<(), OperateError> {
        let Some(id) = self.site.id() else { return Ok(()) };
        let found = Engine::of(machine, self.control).projects_of(id)?;
        for project in found.into_iter().filter(|project| self.site.is_own(project)) {
            let mut more = Down::default();
            let result = self.project(machine, &project, None, &mut more);
            done.removed.extend(more.removed);
            done.kept
                .extend(more.kept.into_iter().filter(|one| !done.kept.contains(one)).collect::<Vec<_>>());
            result?;
        }
        Ok(())
    }
}

/// Describes possible remains at a former location, and their removal.
fn left_behind(former: &Former, keep_state: bool) -> String {
    let filter = format!("--filter label=com.docker.compose.project={}", former.project);
    let mut commands =
        vec![format!("docker ps --all --quiet {filter} | xargs --no-run-if-empty docker rm --force")];
    if !keep_state {
        commands
            .push(format!("docker volume ls --quiet {filter} | xargs --no-run-if-empty docker volume rm"));
        commands.extend(former.folder.iter().map(|folder| format!("rm -r ~/{folder}")));
    }
    format!(
        "containers of an earlier plan ({}) can still run on {}; on that machine this removes them: {}",
        former.name,
        former.machine.name(),
        commands.join("; ")
    )
}

/// Stops containers of a location by Compose; later steps report its failures.
fn by_compose(place: &Place, more: &[&str], control: Control<'_>) -> Result<(), OperateError> {
    let run = || {
        let compose = Compose::find(&place.machine, control)?;
        let words = compose.words(&place.location.project, &["compose.yaml"], more);
        compose.run(&place.machine, &place.folder, &words, control)
    };
    match run() {
        Err(OperateError::Interrupted) => Err(OperateError::Interrupted),
        _ => Ok(()),
    }
}

/// Removes files that `up` and `upgrade` wrote into the folder of the deployment.
fn forget(site: &Site) -> Result<(), OperateError> {
    let mut paths = vec![site.admin_token(), site.upgrade_record()];
    for place in site.places() {
        images::write(place, "", &Images::new())?;
        let joins = place.location.services.iter().filter_map(|service| service.join.as_ref());
        paths.extend(joins.map(|join| place.own_folder.join(join)));
    }
    for path in paths {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(OperateError::File { path, source: error });
            }
            _ => {}
        }
    }
    images::keep(site.folder())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::{NOBODY, scripted};
    use crate::site::tests::{changed, written};

    /// An engine whose containers and volumes are lines of files: `NAME|PROJECT|ID`.
    const DOCKER: &str = r#"
case "$1 $2" in
 "ps --all") kind=containers ;;
 "volume ls") kind=volumes ;;
 "rm --force") [ ! -e stuck ] || { echo "device or resource busy" >&2; exit 1; }; for one in "$@"; do sed -i "/^$one|/d" containers; done; exit ;;
 "volume rm") for one in "$@"; do sed -i "/^$one|/d" volumes; done; exit ;;
 "network inspect") echo "Error: No such network: x" >&2; exit 1 ;;
 *) exit 0 ;;
esac
for word in "$@"; do before=$last; last=$word; case "$before" in --filter) filter=$word ;; --format) format=$word ;; esac; done
while IFS='|' read -r name project id; do
 case "$filter" in
  label=com.docker.compose.project=*) [ "${filter##*=}" = "$project" ] || continue ;;
  label=tidemill.deployment=*) [ "${filter##*=}" = "$id" ] || continue ;;
 esac
 case "$format" in
  *compose.project*compose.service*) echo "$name|$project|$name" ;;
  *compose.project*) echo "$name|$project" ;;
  *tidemill.deployment*) echo "$name|$id" ;;
  *) echo "$name" ;;
 esac
done <$kind"#;

    fn engine(folder: &std::path::Path, containers: &str, volumes: &str) -> Machine {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("containers"), containers).unwrap();
        fs::write(folder.join("volumes"), volumes).unwrap();
        scripted(folder, &[("docker", DOCKER), ("docker-compose", "exit 1")])
    }

    fn left(folder: &std::path::Path) -> String {
        ["containers", "volumes"].map(|name| fs::read_to_string(folder.join(name)).unwrap()).concat()
    }

    fn deployed(folder: &std::path::Path) {
        written(folder, Some("ssh://ada@gate"));
        changed(folder, |document| {
            document["format"] = 2.into();
            document["id"] = "live".into();
        });
    }

    #[test]
    fn what_is_of_another_deployment_stays() {
        let folder = tempfile::tempdir().unwrap();
        deployed(folder.path());
        let (edge, hub) = (folder.path().join("at-edge"), folder.path().join("at-hub"));
        let of_others = "a|tidemill-v-edge|staging\nb|other|\n";
        let site = Site::load(folder.path())
            .unwrap()
            .on("edge", &engine(&edge, of_others, "w|tidemill-v-edge|staging\n"))
            .on("hub", &engine(&hub, "c|tidemill-v-hub|live\nd|other|other\n", "v|tidemill-v-hub|live\n"));
        let done = down(&site, false, NOBODY).unwrap();
        assert_eq!(done.removed, ["container c", "volume v"]);
        let [Cause::OtherDeployment { what, .. }] = done.wrong.as_slice() else { panic!("{done:?}") };
        assert_eq!(what.as_slice(), ["container a", "volume w"]);
        assert_eq!(left(&edge), format!("{of_others}w|tidemill-v-edge|staging\n"));
        assert_eq!(left(&hub), "d|other|other\n");
    }

    #[test]
    fn what_earlier_plans_left_is_found_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        deployed(folder.path());
        let here = folder.path().join("here");
        // A worker that left its location, unknown locations, and parts of another workflow with this id.
        let of_others = "worker-z|tidemill-w-hub|live\n";
        let containers = "controller|tidemill-v-hub|live\nworker-former|tidemill-v-hub|live\nworker-x|tidemill-v-attic|live\nworker-y|tidemill-v-older|live\n";
        let volumes = "y|tidemill-v-older|live\n".to_owned() + of_others;
        let machine = engine(&here, &format!("{containers}{of_others}"), &volumes);
        let site = Site::load(folder.path()).unwrap().on("edge", &machine).on("hub", &machine);
        let found = leftovers::find(&site, NOBODY).unwrap();
        let expected =
            ["worker-former", "worker-x", "worker-y"].map(|name| format!("container {name} on ada@gate"));
        assert_eq!(found, expected);
        let done = down(&site, false, NOBODY).unwrap();
        assert!(done.wrong.is_empty(), "{done:?}");
        assert_eq!(left(&here), of_others.repeat(2));
        assert_eq!(leftovers::find(&site, NOBODY).unwrap(), Vec::<String>::new());
    }

    /// A machine of an earlier plan was given away: its remains are reported, and everything else is removed.
    #[test]
    fn a_former_machine_that_is_away_keeps_nobody_from_an_end() {
        let folder = tempfile::tempdir().unwrap();
        deployed(folder.path());
        changed(folder.path(), |document| {
            let former = |name: &str| {
                serde_json::json!({"name": name, "within": "tidemill-v", "folder": name, "project": format!("tidemill-v-{name}"),
                                   "host": "ssh://ada@gone"})
            };
            document["former"] = serde_json::json!([former("attic"), former("loft")]);
        });
        let (here, gone) = (folder.path().join("here"), folder.path().join("gone"));
        let machine = engine(&here, "c|tidemill-v-hub|live\n", "");
        let away = engine(&gone, "worker-x|tidemill-v-attic|live\n", "");
        fs::write(gone.join("unreached"), "").unwrap();
        let site = || Site::load(folder.path()).unwrap().on("edge", &machine).on("hub", &machine);
        let without = || site().formerly_on("attic", &away).formerly_on("loft", &away);
        fs::write(site().admin_token(), "secret").unwrap();
        let done = down(&without(), false, NOBODY).unwrap();
        assert!(done.wrong.is_empty() && done.removed == ["container c"], "{done:?}");
        assert_eq!(done.left.len(), 2, "{done:?}");
        assert!(done.left[0].contains("project=tidemill-v-attic | xargs"), "{done:?}");
        assert!(done.left[0].contains("rm -r ~/.local/share/tidemill/tidemill-v/attic"), "{done:?}");
        assert!(!site().admin_token().exists());
        // It is back: its location was not forgotten.
        fs::remove_file(gone.join("unreached")).unwrap();
        let done = down(&without(), false, NOBODY).unwrap();
        assert!(
            done.wrong.is_empty() && done.left.is_empty() && done.removed == ["container worker-x"],
            "{done:?}"
        );
        // A machine of the present plan is required.
        fs::write(here.join("unreached"), "").unwrap();
        assert!(!down(&without(), false, NOBODY).unwrap().wrong.is_empty());
    }

    /// A controller that runs while its workers end, slowly and one after the other, would record that others have taken
    /// over their work.
    #[test]
    fn where_state_is_kept_the_controller_ends_first() {
        for keep_state in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            deployed(folder.path());
            let here = folder.path().join("here");
            let containers = "w|tidemill-v-edge|live\nc|tidemill-v-hub|live\n";
            fs::create_dir_all(&here).unwrap();
            fs::write(here.join("containers"), containers).unwrap();
            fs::write(here.join("volumes"), "").unwrap();
            let compose = format!(
                "[ \"$1\" = version ] && echo 1.29.2 || echo \"$@\" >>'{}'",
                here.join("calls").display()
            );
            let machine = scripted(&here, &[("docker", DOCKER), ("docker-compose", &compose)]);
            let site = Site::load(folder.path()).unwrap().on("edge", &machine).on("hub", &machine);
            for place in site.places() {
                fs::create_dir_all(here.join(&place.folder)).unwrap();
            }
            down(&site, keep_state, NOBODY).unwrap();
            let calls = fs::read_to_string(here.join("calls")).unwrap();
            let first = calls.lines().next().unwrap();
            assert_eq!(first.ends_with("stop --timeout 10 controller"), keep_state, "{calls}");
            assert_eq!(calls.lines().count(), if keep_state { 3 } else { 2 }, "{calls}");
        }
    }

    #[test]
    fn what_is_gone_is_told_also_where_something_is_in_the_way() {
        let folder = tempfile::tempdir().unwrap();
        deployed(folder.path());
        let (edge, hub) = (folder.path().join("at-edge"), folder.path().join("at-hub"));
        let site = Site::load(folder.path())
            .unwrap()
            .on("edge", &engine(&edge, "a|tidemill-v-edge|live\n", ""))
            .on("hub", &engine(&hub, "c|tidemill-v-hub|live\n", ""));
        fs::write(hub.join("stuck"), "").unwrap();
        fs::write(site.admin_token(), "secret").unwrap();
        let done = down(&site, false, NOBODY).unwrap();
        assert_eq!(done.removed, ["container a"]);
        assert!(done.wrong.iter().any(|cause| cause.to_string().contains("resource busy")), "{done:?}");
        assert!(site.admin_token().exists(), "what is needed to go on was forgotten");
        fs::remove_file(hub.join("stuck")).unwrap();
        let done = down(&site, false, NOBODY).unwrap();
        assert!(done.wrong.is_empty() && done.removed == ["container c"], "{done:?}");
        assert!(!site.admin_token().exists());
    }
}
