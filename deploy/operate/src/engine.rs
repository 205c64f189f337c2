//! The container engine of a machine, used through its own program.
use crate::cause::{Cause, OperateError};
use crate::control::Control;
use crate::diagnosis::diagnose;
use crate::machine::{Call, Machine, is_missing};
use crate::process::ProgramOutput;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;
use tidemill_deploy::deployment::ID_LABEL;

/// Timeout of longer operations.
const WORK: Duration = Duration::from_secs(180);
const COMPOSE_PROJECT: &str = "com.docker.compose.project";
const COMPOSE_SERVICE: &str = "com.docker.compose.service";

/// The engine of a machine.
#[derive(Clone, Copy)]
pub(crate) struct Engine<'a> {
    machine: &'a Machine,
    control: Control<'a>,
}

/// Facts about an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EngineFacts {
    pub(crate) version: String,
    /// Name of the architecture in images: `amd64`, `arm64`.
    pub(crate) architecture: String,
    /// Folder of images and volumes.
    pub(crate) folder: String,
    /// Whether it passes NVIDIA accelerators to containers.
    pub(crate) has_gpu: bool,
}

/// Facts about an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageFacts {
    /// Digest of its content; its names may move to another image.
    pub(crate) id: String,
    /// Its architecture; empty if unknown.
    pub(crate) architecture: String,
    /// Size on disk.
    pub(crate) bytes: u64,
}

/// A container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Container {
    pub(crate) id: String,
    pub(crate) service: String,
    /// Name used at its creation.
    pub(crate) image: String,
    /// See [`ImageFacts::id`].
    pub(crate) image_id: String,
    /// `running`, `exited`, `restarting`, `created`, `paused`, `dead`.
    pub(crate) status: String,
    /// `healthy`, `unhealthy`, `starting`; `None` without a health check.
    pub(crate) health: Option<String>,
    /// Last output of the health check.
    pub(crate) health_log: String,
    pub(crate) exit_code: i64,
    pub(crate) was_out_of_memory: bool,
    pub(crate) restarts: u64,
    /// Start time, RFC 3339.
    pub(crate) started: String,
    /// Process id of its first process on its machine; 0 if it does not run.
    pub(crate) pid: i64,
}

impl Container {
    /// Whether it is running.
    pub(crate) fn runs(&self) -> bool {
        self.status == "running"
    }
}

fn text(value: &Value, path: &str) -> String {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn container(value: &Value) -> Container {
    let health = value.pointer("/State/Health/Status").and_then(Value::as_str);
    let said = value.pointer("/State/Health/Log").and_then(Value::as_array).and_then(|log| log.last());
    let labels = value.pointer("/Config/Labels");
    let label =
        |name: &str| labels.and_then(|labels| labels.get(name)).and_then(Value::as_str).unwrap_or_default();
    Container {
        id: text(value, "/Id"),
        service: label(COMPOSE_SERVICE).to_owned(),
        image: text(value, "/Config/Image"),
        image_id: text(value, "/Image"),
        status: text(value, "/State/Status"),
        health: health.filter(|health| *health != "none").map(str::to_owned),
        health_log: said.map(|said| text(said, "/Output").trim().to_owned()).unwrap_or_default(),
        exit_code: value.pointer("/State/ExitCode").and_then(Value::as_i64).unwrap_or_default(),
        was_out_of_memory: value.pointer("/State/OOMKilled").and_then(Value::as_bool).unwrap_or_default(),
        restarts: value.pointer("/RestartCount").and_then(Value::as_u64).unwrap_or_default(),
        started: text(value, "/State/StartedAt"),
        pid: value.pointer("/State/Pid").and_then(Value::as_i64).unwrap_or_default(),
    }
}

/// Whether the engine answered that the object does not exist.
fn says_missing(told: &ProgramOutput) -> bool {
    let text = told.stderr.to_lowercase();
    told.code.is_some() && (text.contains("no such") || text.contains(" not found"))
}

/// Converts the kernel's name of an architecture to that of images.
fn architecture(kernel: &str) -> String {
    match kernel {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "armv7l" | "armv6l" => "arm",
        other => other,
    }
    .to_owned()
}

/// Extracts the only file of a tar archive.
fn only_file(archive: &[u8]) -> Option<Vec<u8>> {
    const BLOCK: usize = 512;
    let size = archive.get(124..135)?;
    let size = usize::from_str_radix(std::str::from_utf8(size).ok()?.trim_matches(['\0', ' ']), 8).ok()?;
    archive.get(BLOCK..BLOCK.checked_add(size)?).map(<[u8]>::to_vec)
}

impl<'a> Engine<'a> {
    pub(crate) fn of(machine: &'a Machine, control: Control<'a>) -> Self {
        Self { machine, control }
    }

    fn docker(&self, words: &[&str], patience: Duration) -> Result<ProgramOutput, OperateError> {
        let words: Vec<&str> = std::iter::once("docker").chain(words.iter().copied()).collect();
        let told = self.machine.run(&Call { patience, ..Call::look(&words) }, self.control)?;
        if is_missing(&told) {
            return Err(Cause::NoDocker { machine: self.machine.name() }.into());
        }
        Ok(told)
    }

    /// Runs a command that must succeed.
    fn must(&self, words: &[&str], patience: Duration) -> Result<ProgramOutput, OperateError> {
        let told = self.docker(words, patience)?;
        if told.is_ok() {
            return Ok(told);
        }
        let what = format!("docker {}", words.iter().take(2).copied().collect::<Vec<_>>().join(" "));
        Err(self.failed(&what, &told))
    }

    fn failed(&self, what: &str, told: &ProgramOutput) -> OperateError {
        diagnose(&self.machine.name(), what, &told.complaint()).into()
    }

    fn look(&self, words: &[&str]) -> Result<ProgramOutput, OperateError> {
        self.must(words, Call::look(&[]).patience)
    }

    /// Queries facts about the engine.
    pub(crate) fn facts(&self) -> Result<EngineFacts, OperateError> {
        let told = self.docker(&["info", "--format", "{{json .}}"], Call::look(&[]).patience)?;
        let value: Value = serde_json::from_slice(&told.stdout).unwrap_or_default();
        let complaints =
            value.get("ServerErrors").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        if !told.is_ok() || !complaints.is_empty() || text(&value, "/ServerVersion").is_empty() {
            let said = complaints.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("; ");
            let said = if said.is_empty() { told.complaint() } else { said };
            let machine = self.machine.name();
            return Err(match diagnose(&machine, "docker info", &said) {
                Cause::Other { text, .. } => Cause::NoEngine { machine, text },
                cause => cause,
            }
            .into());
        }
        Ok(EngineFacts {
            version: text(&value, "/ServerVersion"),
            architecture: architecture(&text(&value, "/Architecture")),
            folder: text(&value, "/DockerRootDir"),
            has_gpu: value.pointer("/Runtimes/nvidia").is_some(),
        })
    }

    /// Queries an image; `None` if it does not exist.
    pub(crate) fn image(&self, name: &str) -> Result<Option<ImageFacts>, OperateError> {
        let words = ["image", "inspect", name];
        let told = self.docker(&words, Call::look(&[]).patience)?;
        let values: Vec<Value> = serde_json::from_slice(&told.stdout).unwrap_or_default();
        match values.first().filter(|_| told.is_ok()) {
            Some(value) => Ok(Some(ImageFacts {
                id: text(value, "/Id"),
                architecture: text(value, "/Architecture"),
                bytes: value.pointer("/Size").and_then(Value::as_u64).unwrap_or_default(),
            })),
            None if says_missing(&told) => Ok(None),
            None => Err(self.failed("docker image inspect", &told)),
        }
    }

    /// Returns the containers of a Compose project, in the order of their services' names.
    pub(crate) fn containers(&self, project: &str) -> Result<Vec<Container>, OperateError> {
        let filter = format!("label={COMPOSE_PROJECT}={project}");
        let found = self.look(&["ps", "--all", "--quiet", "--no-trunc", "--filter", &filter])?.text();
        let ids: Vec<&str> = found.split_whitespace().collect();
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        // A container that is removed meanwhile gives an error; the others are listed all the same.
        let told = self.docker(
            &[&["inspect", "--type", "container"], ids.as_slice()].concat(),
            Call::look(&[]).patience,
        )?;
        let values: Vec<Value> = serde_json::from_slice(&told.stdout).unwrap_or_default();
        if !told.is_ok() && !says_missing(&told) {
            return Err(self.failed("docker inspect", &told));
        }
        let mut containers: Vec<Container> = values.iter().map(container).collect();
        containers.sort_by(|a, b| a.service.cmp(&b.service));
        Ok(containers)
    }

    /// Returns the container of a service, if there is one.
    pub(crate) fn container(&self, project: &str, service: &str) -> Result<Option<Container>, OperateError> {
        Ok(self.containers(project)?.into_iter().find(|one| one.service == service))
    }

    /// Returns the container that uses a port of the machine.
    pub(crate) fn owner_of_port(&self, port: u16) -> Result<Option<String>, OperateError> {
        let filter = format!("publish={port}");
        let names = self.look(&["ps", "--filter", &filter, "--format", "{{.Names}}"])?.text();
        Ok(names.lines().next().map(|name| format!("the container {name}")))
    }

    /// Reads a file of a running container; `None` if it does not exist.
    pub(crate) fn file(&self, container: &str, path: &str) -> Result<Option<Vec<u8>>, OperateError> {
        let told = self.docker(&["cp", &format!("{container}:{path}"), "-"], Call::look(&[]).patience)?;
        Ok(if told.is_ok() { only_file(&told.stdout) } else { None })
    }

    /// Returns the last lines of a container's output.
    pub(crate) fn tail(&self, container: &str, lines: u32) -> String {
        let told = self.docker(&["logs", "--tail", &lines.to_string(), container], Call::look(&[]).patience);
        told.map(|told| format!("{}\n{}", told.text(), told.stderr.trim()).trim().to_owned())
            .unwrap_or_default()
    }

    fn has_network(&self, name: &str) -> Result<bool, OperateError> {
        let told = self.docker(&["network", "inspect", name], Call::look(&[]).patience)?;
        match told.is_ok() || says_missing(&told) {
            true => Ok(told.is_ok()),
            false => Err(self.failed("docker network inspect", &told)),
        }
    }

    /// Creates a network of a deployment unless it exists.
    pub(crate) fn make_network(&self, name: &str, id: Option<&str>) -> Result<(), OperateError> {
        if self.has_network(name)? {
            return Ok(());
        }
        let label = format!("{ID_LABEL}={}", id.unwrap_or_default());
        self.must(&["network", "create", "--label", &label, name], WORK).map(drop)
    }

    /// Removes a network if it exists.
    pub(crate) fn remove_network(&self, name: &str) -> Result<(), OperateError> {
        if self.has_network(name)? {
            self.must(&["network", "rm", name], WORK)?;
        }
        Ok(())
    }

    /// Returns containers and volumes with a label: name, and the values of other labels.
    fn labelled(&self, kind: &str, label: &str, wanted: &[&str]) -> Result<Vec<Vec<String>>, OperateError> {
        let (words, name): (&[&str], _) = match kind {
            "container" => (&["ps", "--all"], "{{.Names}}"),
            _ => (&["volume", "ls"], "{{.Name}}"),
        };
        let labels = wanted.iter().map(|label| format!("|{{{{.Label {label:?}}}}}"));
        let format: String = std::iter::once(name.to_owned()).chain(labels).collect();
        let filter = format!("label={label}");
        let found = self.look(&[words, &["--filter", &filter, "--format", &format]].concat())?.text();
        Ok(found.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect())
    }

    /// Describes containers and volumes of a Compose project that belong to another deployment than the one with this id.
    pub(crate) fn of_others(&self, project: &str, id: Option<&str>) -> Result<Vec<String>, OperateError> {
        let mut found = Vec::new();
        for kind in ["container", "volume"] {
            let all = self.labelled(kind, &format!("{COMPOSE_PROJECT}={project}"), &[ID_LABEL])?;
            let is_other =
                |one: &&Vec<String>| one.get(1).map(String::as_str) != Some(id.unwrap_or_default());
            found.extend(
                all.iter().filter(is_other).filter_map(|one| Some(format!("{kind} {}", one.first()?))),
            );
        }
        Ok(found)
    }

    /// Returns the containers of a deployment: name, Compose project, service.
    pub(crate) fn of_deployment(&self, id: &str) -> Result<Vec<[String; 3]>, OperateError> {
        let all =
            self.labelled("container", &format!("{ID_LABEL}={id}"), &[COMPOSE_PROJECT, COMPOSE_SERVICE])?;
        Ok(all.into_iter().filter_map(|one| <[String; 3]>::try_from(one).ok()).collect())
    }

    /// Returns the Compose projects with containers or volumes of a deployment.
    pub(crate) fn projects_of(&self, id: &str) -> Result<BTreeSet<String>, OperateError> {
        let label = format!("{ID_LABEL}={id}");
        let mut projects = BTreeSet::new();
        for kind in ["container", "volume"] {
            let all = self.labelled(kind, &label, &[COMPOSE_PROJECT])?;
            projects.extend(all.into_iter().filter_map(|one| one.into_iter().nth(1)));
        }
        projects.remove("");
        Ok(projects)
    }

    /// Describes the existing containers, volumes and networks of a Compose project.
    pub(crate) fn left(&self, project: &str, with_volumes: bool) -> Result<Vec<String>, OperateError> {
        let filter = format!("label={COMPOSE_PROJECT}={project}");
        let mut left = Vec::new();
        let kinds: &[(&str, &[&str])] = &[
            ("container", &["ps", "--all", "--format", "{{.Names}}"]),
            ("network", &["network", "ls", "--format", "{{.Name}}"]),
            ("volume", &["volume", "ls", "--format", "{{.Name}}"]),
        ];
        for (kind, words) in kinds.iter().filter(|(kind, _)| with_volumes || *kind != "volume") {
            let found = self.look(&[words, &["--filter", filter.as_str()][..]].concat())?.text();
            left.extend(found.lines().map(|name| format!("{kind} {name}")));
        }
        Ok(left)
    }

    /// Removes containers, networks and volumes of a Compose project by their labels, for remains of Compose, or if its
    /// file is gone.
    pub(crate) fn remove_left(&self, project: &str, with_volumes: bool) -> Result<(), OperateError> {
        let left = self.left(project, with_volumes)?;
        let kinds: [(&str, &[&str]); 3] = [
            ("container", &["rm", "--force", "--volumes"]),
            ("network", &["network", "rm"]),
            ("volume", &["volume", "rm"]),
        ];
        for (kind, words) in kinds {
            let names: Vec<&str> =
                left.iter().filter_map(|one| one.strip_prefix(kind)?.strip_prefix(' ')).collect();
            if !names.is_empty() {
                self.must(&[words, names.as_slice()].concat(), WORK)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_container_is_read_from_what_the_engine_says() {
        let value = json!({
            "Id": "abc", "RestartCount": 2, "Config": {"Image": "tidemill:1", "Labels": {COMPOSE_SERVICE: "worker-a"}},
            "State": {"Status": "running", "Pid": 12, "ExitCode": 0, "OOMKilled": false, "StartedAt": "2026-01-01T00:00:00Z",
                      "Health": {"Status": "unhealthy", "Log": [{"Output": "old"}, {"Output": "no answer\n"}]}},
        });
        let found = container(&value);
        assert_eq!((found.service.as_str(), found.restarts, found.pid), ("worker-a", 2, 12));
        assert_eq!((found.health.as_deref(), found.health_log.as_str()), (Some("unhealthy"), "no answer"));
        assert_eq!(container(&json!({})).health, None);
    }

    /// An engine whose `docker` is a script.
    fn scripted(folder: &std::path::Path, script: &str) -> Machine {
        crate::machine::tests::scripted(folder, &[("docker", script)])
    }

    #[test]
    fn what_is_not_there_is_told_from_what_is_not_known() {
        let folder = tempfile::tempdir().unwrap();
        let asked = |script: &str| {
            let machine = scripted(folder.path(), script);
            let engine = Engine::of(&machine, crate::machine::tests::NOBODY);
            (engine.image("tidemill:1"), engine.containers("p"))
        };
        let (image, containers) = asked(
            r#"case "$1" in ps) echo abc ;; *) echo "Error: No such object: abc" >&2; echo "[]"; exit 1 ;; esac"#,
        );
        assert_eq!((image.unwrap(), containers.unwrap().len()), (None, 0));
        let (image, containers) = asked(
            r#"case "$1" in ps) echo abc ;; *) echo "Error response from daemon: i/o timeout" >&2; exit 1 ;; esac"#,
        );
        let (image, containers) = (image.unwrap_err().to_string(), containers.unwrap_err().to_string());
        assert!(image.contains("i/o timeout") && containers.contains("i/o timeout"), "{image} {containers}");
        let (image, _) = asked(r#"echo '[{"Id": "sha256:1", "Architecture": "amd64", "Size": 7}]'"#);
        let facts = ImageFacts { id: "sha256:1".into(), architecture: "amd64".into(), bytes: 7 };
        assert_eq!(image.unwrap(), Some(facts));
    }

    #[test]
    fn a_file_is_taken_out_of_an_archive() {
        let mut archive = vec![0_u8; 512];
        archive[124..135].copy_from_slice(b"00000000005");
        archive.extend(b"hello");
        archive.resize(2048, 0);
        assert_eq!(only_file(&archive).as_deref(), Some(&b"hello"[..]));
        assert_eq!(only_file(b"no archive"), None);
        archive[124..135].copy_from_slice(b"77777777777");
        assert_eq!(only_file(&archive), None);
    }

    #[test]
    fn architectures_are_called_as_images_call_them() {
        assert_eq!([architecture("x86_64"), architecture("aarch64")], ["amd64", "arm64"]);
    }
}
