//! The variables of a task: a few of the agent, those of the job, and those that say which task it is.
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Name of the variable with the folder for checkpoints. All processes of a task have it, by which they are found.
pub(super) const CHECKPOINT: &str = "TIDEMILL_CHECKPOINT";

/// Variables of the agent that tasks have, too: of the system, and where programs of ours find libraries and files.
const PASSED: [&str; 20] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "LD_LIBRARY_PATH",
    "GPU_DEVICE_ORDINAL",
    "TIDEMILL_ONNXRUNTIME",
    "TIDEMILL_HIGHS",
    "TIDEMILL_AVCODEC",
    "TIDEMILL_FFMPEG",
    "TIDEMILL_PYTHON",
    "TIDEMILL_TVM",
    "TIDEMILL_CACHE",
    "TIDEMILL_LOG_LEVEL",
];

/// Beginnings of the names of others: the language, certificates, and devices.
const PASSED_PREFIXES: [&str; 7] = ["LC_", "SSL_CERT_", "CUDA_", "NVIDIA_", "HIP_", "ROCR_", "ZE_"];

fn is_passed(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| {
        PASSED.contains(&name) || PASSED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    })
}

/// Returns the variables of the agent that its tasks have, too. All others may be secrets of the machine.
pub(super) fn passed(
    all: impl IntoIterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = (OsString, OsString)> {
    all.into_iter().filter(|(name, _)| is_passed(name))
}

/// A task, as its program has to know it.
pub(super) struct Known<'a> {
    pub(super) job: &'a str,
    pub(super) rank: u32,
    /// Number of tasks.
    pub(super) size: u32,
    /// Number of the start.
    pub(super) incarnation: u64,
    pub(super) worker: &'a str,
    pub(super) checkpoint: &'a Path,
    /// `HOST:PORT` for the first task.
    pub(super) first: &'a str,
    /// Socket of the transport service of the machine; none: it has no service.
    pub(super) net: Option<&'a Path>,
}

impl Known<'_> {
    /// The name of the group of all tasks: another one after each start, because a group of before may still be ending.
    fn group(&self) -> String {
        format!("{}-{}", self.job, self.incarnation)
    }

    /// Variables of the task, with those of the job.
    pub(super) fn variables(&self, of_job: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let (rank, size) = (self.rank.to_string(), self.size.to_string());
        let text = |path: &Path| path.display().to_string();
        let (host, port) = self.first.rsplit_once(':').unwrap_or((self.first, ""));
        let of_pytorch = [
            ("RANK", rank.clone()),
            ("WORLD_SIZE", size.clone()),
            ("MASTER_ADDR", host.trim_matches(['[', ']']).to_owned()),
            ("MASTER_PORT", port.to_owned()),
        ];
        let own = [
            ("TIDEMILL_JOB", self.job.to_owned()),
            ("TIDEMILL_RANK", rank),
            ("TIDEMILL_SIZE", size),
            ("TIDEMILL_GROUP", self.group()),
            ("TIDEMILL_INCARNATION", self.incarnation.to_string()),
            (CHECKPOINT, text(self.checkpoint)),
            ("TIDEMILL_FIRST", self.first.to_owned()),
            ("TIDEMILL_WORKER", self.worker.to_owned()),
        ];
        let net = self.net.map(|net| ("TIDEMILL_NET", text(net)));
        let named = |(name, value): (&str, String)| (name.to_owned(), value);
        let mut all: BTreeMap<String, String> = of_pytorch.into_iter().map(named).collect();
        all.extend(of_job.clone());
        all.extend(own.into_iter().chain(net).map(named));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_has_few_variables_of_the_agent_and_no_secrets() {
        let names = [
            "PATH",
            "LC_ALL",
            "CUDA_VISIBLE_DEVICES",
            "SSL_CERT_FILE",
            "TIDEMILL_JOIN_TOKEN",
            "TIDEMILL_TOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "PGPASSWORD",
        ];
        let all = names.map(|name| (OsString::from(name), OsString::from("x")));
        let found: Vec<OsString> = passed(all).map(|(name, _)| name).collect();
        assert_eq!(found, ["PATH", "LC_ALL", "CUDA_VISIBLE_DEVICES", "SSL_CERT_FILE"]);
    }

    #[test]
    fn a_task_knows_its_group_and_a_job_cannot_say_otherwise() {
        let known = Known {
            job: "train-7",
            rank: 1,
            size: 2,
            incarnation: 3,
            worker: "hub",
            checkpoint: Path::new("/w/jobs/train-7-1-3/checkpoint"),
            first: "[fd00::1]:4000",
            net: Some(Path::new("/w/services/net/net.sock")),
        };
        let of_job = [("TIDEMILL_RANK", "9"), ("RANK", "8"), ("EPOCHS", "20")];
        let of_job = of_job.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let found = known.variables(&of_job);
        for (name, value) in [
            ("TIDEMILL_RANK", "1"),
            ("TIDEMILL_SIZE", "2"),
            ("TIDEMILL_GROUP", "train-7-3"),
            ("TIDEMILL_NET", "/w/services/net/net.sock"),
            ("RANK", "8"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "fd00::1"),
            ("MASTER_PORT", "4000"),
            ("EPOCHS", "20"),
        ] {
            assert_eq!(found.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert_eq!(Known { net: None, ..known }.variables(&of_job).get("TIDEMILL_NET"), None);
    }
}
