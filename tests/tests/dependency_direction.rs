//! Dependencies point down only; read from `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use crate::repository::root;

const ALL: &[&str] = &[
    "tidemill-random",
    "tidemill-machine",
    "tidemill-drawing",
    "tidemill-avcodec",
    "tidemill-media",
    "tidemill-tracking",
    "tidemill-incremental",
    "tidemill-spec",
    "tidemill-highs",
    "tidemill-optimizer",
    "tidemill-problems",
    "tidemill-simulator",
    "tidemill-replay",
    "tidemill-flows",
    "tidemill-operators",
    "tidemill-inference",
    "tidemill-live",
    "tidemill-mqtt",
    "tidemill-python",
    "tidemill-disk",
    "tidemill-journal",
    "tidemill-dataset",
    "tidemill-shm",
    "tidemill-link",
    "tidemill-session",
    "tidemill-device",
    "tidemill-collective",
    "tidemill-collective-c",
    "tidemill-hints",
    "tidemill-schema",
    "tidemill-stub",
    "tidemill-rpc",
    "tidemill-grpc",
    "tidemill-net",
    "tidemill-engine",
    "tidemill-remote",
    "tidemill-state",
    "tidemill-bucket",
    "tidemill-postgres",
    "tidemill-postgres-sink",
    "tidemill-http",
    "tidemill-web",
    "tidemill-service",
    "tidemill-identity",
    "tidemill-jobs",
    "tidemill-profiler",
    "tidemill-app",
    "tidemill-elastic",
    "tidemill-cluster",
    "tidemill-deploy",
    "tidemill-deploy-operate",
    "tidemill-fuzzing",
    "tidemill",
];

/// Every package of the workspace with those of ours that it may depend on. A new package gets a line here, and a new edge
/// a reason in docs/decisions/.
const ALLOWED: &[(&str, &[&str])] = &[
    ("tidemill-random", &[]),
    ("tidemill-machine", &[]),
    ("tidemill-drawing", &[]),
    ("tidemill-avcodec", &[]),
    ("tidemill-media", &[]),
    ("tidemill-tracking", &[]),
    ("tidemill-incremental", &[]),
    ("tidemill-spec", &[]),
    ("tidemill-highs", &[]),
    ("tidemill-optimizer", &["tidemill-random", "tidemill-spec", "tidemill-highs"]),
    ("tidemill-problems", &["tidemill-random", "tidemill-optimizer"]),
    ("tidemill-simulator", &["tidemill-random", "tidemill-spec", "tidemill-optimizer"]),
    ("tidemill-replay", &[]),
    ("tidemill-flows", &[]),
    ("tidemill-replicas", &["tidemill-random"]),
    ("tidemill-aggregation", &["tidemill-random"]),
    ("tidemill-hints", &[]),
    ("tidemill-disk", &["tidemill-random"]),
    ("tidemill-journal", &["tidemill-disk"]),
    ("tidemill-dataset", &["tidemill-disk"]),
    (
        "tidemill-operators",
        &[
            "tidemill-avcodec",
            "tidemill-dataset",
            "tidemill-disk",
            "tidemill-incremental",
            "tidemill-journal",
            "tidemill-machine",
            "tidemill-media",
            "tidemill-spec",
            "tidemill-tracking",
        ],
    ),
    ("tidemill-inference", &["tidemill-machine", "tidemill-media", "tidemill-spec", "tidemill-operators"]),
    (
        "tidemill-live",
        &[
            "tidemill-journal",
            "tidemill-machine",
            "tidemill-media",
            "tidemill-operators",
            "tidemill-random",
            "tidemill-spec",
        ],
    ),
    ("tidemill-mqtt", &["tidemill-journal", "tidemill-operators", "tidemill-spec"]),
    ("tidemill-python", &["tidemill-machine", "tidemill-spec", "tidemill-operators"]),
    ("tidemill-shm", &[]),
    ("tidemill-link", &["tidemill-shm", "tidemill-spec"]),
    ("tidemill-session", &["tidemill-link"]),
    ("tidemill-device", &["tidemill-link", "tidemill-shm"]),
    ("tidemill-schema", &[]),
    ("tidemill-stub", &["tidemill-schema"]),
    ("tidemill-rpc", &["tidemill-schema", "tidemill-shm"]),
    (
        "tidemill-collective",
        &["tidemill-flows", "tidemill-hints", "tidemill-link", "tidemill-rpc", "tidemill-shm"],
    ),
    ("tidemill-collective-c", &["tidemill-collective"]),
    (
        "tidemill-training",
        &[
            "tidemill-collective",
            "tidemill-dataset",
            "tidemill-disk",
            "tidemill-random",
            "tidemill-replicas",
            "tidemill-spec",
        ],
    ),
    (
        "tidemill-aggregation-service",
        &["tidemill-aggregation", "tidemill-disk", "tidemill-rpc", "tidemill-stub", "tidemill-training"],
    ),
    ("tidemill-grpc", &[]),
    (
        "tidemill-net",
        &[
            "tidemill-grpc",
            "tidemill-link",
            "tidemill-operators",
            "tidemill-rpc",
            "tidemill-schema",
            "tidemill-shm",
            "tidemill-spec",
        ],
    ),
    (
        "tidemill-engine",
        &["tidemill-link", "tidemill-machine", "tidemill-net", "tidemill-spec", "tidemill-operators"],
    ),
    ("tidemill-state", &[]),
    ("tidemill-bucket", &["tidemill-spec", "tidemill-state"]),
    ("tidemill-postgres", &[]),
    ("tidemill-http", &[]),
    ("tidemill-postgres-sink", &["tidemill-operators", "tidemill-postgres", "tidemill-spec"]),
    ("tidemill-web", &["tidemill-http", "tidemill-operators", "tidemill-spec"]),
    ("tidemill-identity", &["tidemill-link"]),
    ("tidemill-jobs", &["tidemill-random", "tidemill-spec"]),
    ("tidemill-service", &["tidemill-link"]),
    ("tidemill-deploy", &["tidemill-service", "tidemill-spec"]),
    ("tidemill-profiler", &["tidemill-machine", "tidemill-spec", "tidemill-operators", "tidemill-engine"]),
    (
        "tidemill-remote",
        &[
            "tidemill-device",
            "tidemill-engine",
            "tidemill-grpc",
            "tidemill-http",
            "tidemill-inference",
            "tidemill-link",
            "tidemill-machine",
            "tidemill-operators",
            "tidemill-spec",
        ],
    ),
    (
        "tidemill-app",
        &[
            "tidemill-machine",
            "tidemill-spec",
            "tidemill-optimizer",
            "tidemill-simulator",
            "tidemill-replay",
            "tidemill-operators",
            "tidemill-inference",
            "tidemill-live",
            "tidemill-mqtt",
            "tidemill-postgres-sink",
            "tidemill-web",
            "tidemill-python",
            "tidemill-engine",
            "tidemill-http",
            "tidemill-collective",
            "tidemill-net",
            "tidemill-stub",
            "tidemill-session",
            "tidemill-state",
            "tidemill-bucket",
            "tidemill-profiler",
        ],
    ),
    ("tidemill-elastic", &["tidemill-http", "tidemill-machine"]),
    (
        "tidemill-cluster",
        &[
            "tidemill-app",
            "tidemill-bucket",
            "tidemill-elastic",
            "tidemill-engine",
            "tidemill-hints",
            "tidemill-http",
            "tidemill-identity",
            "tidemill-jobs",
            "tidemill-link",
            "tidemill-machine",
            "tidemill-optimizer",
            "tidemill-postgres",
            "tidemill-service",
            "tidemill-net",
            "tidemill-stub",
            "tidemill-session",
            "tidemill-spec",
            "tidemill-state",
        ],
    ),
    ("tidemill-deploy-operate", &["tidemill-cluster", "tidemill-deploy", "tidemill-identity"]),
    (
        "tidemill",
        &[
            "tidemill-aggregation",
            "tidemill-aggregation-service",
            "tidemill-app",
            "tidemill-cluster",
            "tidemill-deploy",
            "tidemill-deploy-operate",
            "tidemill-elastic",
            "tidemill-http",
            "tidemill-identity",
            "tidemill-jobs",
            "tidemill-machine",
            "tidemill-drawing",
            "tidemill-service",
            "tidemill-collective",
            "tidemill-net",
            "tidemill-stub",
            "tidemill-device",
            "tidemill-remote",
            "tidemill-session",
            "tidemill-spec",
            "tidemill-optimizer",
            "tidemill-simulator",
            "tidemill-replay",
            "tidemill-operators",
            "tidemill-inference",
            "tidemill-engine",
            "tidemill-state",
            "tidemill-training",
            "tidemill-profiler",
        ],
    ),
    (
        "tidemill-fuzzing",
        &[
            "tidemill-bucket",
            "tidemill-cluster",
            "tidemill-collective",
            "tidemill-deploy",
            "tidemill-deploy-operate",
            "tidemill-elastic",
            "tidemill-engine",
            "tidemill-hints",
            "tidemill-identity",
            "tidemill-journal",
            "tidemill-link",
            "tidemill-machine",
            "tidemill-operators",
            "tidemill-random",
            "tidemill-spec",
            "tidemill-state",
        ],
    ),
    ("tidemill-extension", ALL),                             // a user's program
    ("tidemill-prices", &["tidemill-rpc", "tidemill-stub"]), // a user's program
    ("tidemill-every-nth", &[]), // a user's library, for any host that has the interface
    ("tidemill-benches", ALL),
    ("tidemill-tests", ALL),
];

/// Tests may use more than the code under test: an engine that runs real models, for instance.
const ALLOWED_IN_TESTS: &[(&str, &[&str])] = &[
    ("tidemill-identity", &["tidemill-http"]),
    // A program's own backend is tested in a running workflow.
    ("tidemill-inference", &["tidemill-engine", "tidemill-tracking"]),
    // Threads of this process are counted.
    // Plans and deployments are made by the facts that the kinds state.
    ("tidemill-optimizer", &["tidemill-operators", "tidemill-problems"]),
    ("tidemill-deploy", &["tidemill-operators"]),
    ("tidemill-simulator", &["tidemill-operators", "tidemill-problems"]),
    ("tidemill-app", &["tidemill-problems", "tidemill-random"]),
    ("tidemill-operators", &["tidemill-random"]),
    ("tidemill-tracking", &["tidemill-random"]),
    ("tidemill-incremental", &["tidemill-random"]),
    ("tidemill-engine", &["tidemill-random"]),
    ("tidemill-link", &["tidemill-random"]),
    ("tidemill-session", &["tidemill-random"]),
    ("tidemill-device", &["tidemill-random", "tidemill-session"]),
    ("tidemill-collective", &["tidemill-random"]),
    ("tidemill-hints", &["tidemill-random"]),
    ("tidemill-flows", &["tidemill-random"]),
    ("tidemill-state", &["tidemill-random"]),
    ("tidemill", &["tidemill-random", "tidemill-problems", "tidemill-grpc", "tidemill-rpc"]),
    // The library is loaded as the service does it.
    ("tidemill-every-nth", &["tidemill-net"]),
];

/// Packages that need a wrapped dependency too, with the reason: (dependency, package).
const BUILT_UPON: &[(&str, &str)] = &[
    ("timely", "tidemill-incremental"), // differential dataflow's workers
    ("microlp", "tidemill-hints"),      // the weights of trees
    ("libloading", "tidemill-net"),     // policies from libraries of others
    ("libloading", "tidemill-avcodec"), // ffmpeg's libraries
];

/// Dependencies wrapped by one package, so that breaking releases affect no other.
const WRAPPED: &[(&str, &str)] = &[
    ("timely", "tidemill-engine"),
    ("differential-dataflow", "tidemill-incremental"),
    ("ort", "tidemill-inference"),
    ("rten", "tidemill-inference"),
    ("retina", "tidemill-live"),
    ("rumqttc-v5-next", "tidemill-mqtt"),
    ("tungstenite", "tidemill-web"),
    ("serde-saphyr", "tidemill-spec"),
    ("microlp", "tidemill-optimizer"),
    ("libloading", "tidemill-highs"),
    ("cel", "tidemill-operators"),
    ("clap", "tidemill"),
    ("object_store", "tidemill-bucket"),
    ("axum", "tidemill-cluster"),
    ("tokio-rustls", "tidemill-http"),
    ("h2", "tidemill-grpc"),
];

struct Dependency {
    name: String,
    is_for_tests: bool,
}

/// The workspace's packages with the dependencies in their Cargo.toml.
fn packages() -> BTreeMap<String, Vec<Dependency>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata writes JSON");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let list = |value: &Value| value.as_array().expect("a list").clone();
    list(&metadata["packages"])
        .iter()
        .map(|package| {
            let dependencies = list(&package["dependencies"])
                .iter()
                .map(|dependency| Dependency {
                    name: text(&dependency["name"]),
                    is_for_tests: dependency["kind"] == "dev",
                })
                .collect();
            (text(&package["name"]), dependencies)
        })
        .collect()
}

fn allowed(table: &[(&str, &[&str])], package: &str) -> BTreeSet<String> {
    table
        .iter()
        .filter(|(name, _)| *name == package)
        .flat_map(|(_, allowed)| allowed.iter().map(|name| (*name).to_owned()))
        .collect()
}

#[test]
fn packages_depend_only_on_those_below_them() {
    let packages = packages();
    let mut faults = Vec::new();
    for (package, dependencies) in &packages {
        if !ALLOWED.iter().any(|(name, _)| name == package) {
            faults.push(format!("{package} has no line in ALLOWED"));
            continue;
        }
        let below = allowed(ALLOWED, package);
        let in_tests = allowed(ALLOWED_IN_TESTS, package);
        for dependency in dependencies.iter().filter(|dependency| packages.contains_key(&dependency.name)) {
            let name = &dependency.name;
            if !(below.contains(name) || dependency.is_for_tests && in_tests.contains(name)) {
                faults.push(format!("{package} must not depend on {name}"));
            }
        }
    }
    assert!(faults.is_empty(), "dependencies point down only:\n  {}", faults.join("\n  "));
}

#[test]
fn wrapped_dependencies_stay_in_their_package() {
    let mut faults = Vec::new();
    for (package, dependencies) in packages() {
        if ["tidemill-benches", "tidemill-tests"].contains(&package.as_str()) {
            continue; // benches compare with what we wrap
        }
        for dependency in dependencies {
            let owner = WRAPPED.iter().find(|(name, _)| *name == dependency.name).map(|(_, owner)| *owner);
            let may = BUILT_UPON.contains(&(dependency.name.as_str(), package.as_str()));
            if owner.is_some_and(|owner| owner != package) && !may {
                faults.push(format!(
                    "{package} names {}, which {} wraps",
                    dependency.name,
                    owner.unwrap_or_default()
                ));
            }
        }
    }
    assert!(faults.is_empty(), "these dependencies belong to one package:\n  {}", faults.join("\n  "));
}

/// The table itself must not allow a cycle: each line may name only lines above it.
#[test]
fn the_table_of_allowed_edges_points_down() {
    for (index, (package, below)) in ALLOWED.iter().enumerate() {
        for name in *below {
            assert!(
                ALLOWED[..index].iter().any(|(above, _)| above == name),
                "{package} -> {name}: {name} must stand above {package} in ALLOWED"
            );
        }
    }
}
