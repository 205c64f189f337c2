//! Help texts are complete.
use crate::command::tidemill;

#[test]
fn every_verb_has_help_with_examples() {
    for verb in [
        &[][..],
        &["validate"],
        &["run"],
        &["plan"],
        &["plan", "diff"],
        &["explain"],
        &["requirements"],
        &["simulate"],
        &["job", "submit"],
        &["job", "queue"],
        &["job", "logs"],
        &["job", "fetch"],
        &["job", "simulate"],
        &["graph"],
        &["profile"],
        &["profile", "show"],
        &["profile", "diff"],
        &["profile", "merge"],
        &["schema"],
        &["models"],
        &["models", "ls"],
        &["models", "verify"],
        &["models", "inspect"],
        &["models", "try"],
        &["models", "compile"],
        &["version"],
        &["init"],
        &["doctor"],
        &["completions"],
        &["man"],
        &["top"],
        &["train"],
        &["up"],
        &["down"],
        &["ps"],
        &["deployment"],
        &["deployment", "logs"],
        &["deployment", "upgrade"],
        &["device", "serve"],
        &["device", "ls"],
        &["device", "top"],
        &["device", "limits"],
        &["device", "drain"],
        &["net", "ls"],
        &["net", "top"],
        &["net", "policy", "ls"],
        &["net", "policy", "attach"],
        &["net", "policy", "set"],
        &["net", "policy", "detach"],
        &["net", "policy", "kinds"],
        &["elastic"],
        &["elastic", "attach"],
        &["elastic", "show"],
        &["elastic", "restore"],
    ] {
        let outcome = tidemill(&[verb, &["--help"]].concat()).expect(0);
        assert!(outcome.stdout.contains("Examples:\n  tidemill "), "{verb:?}: {}", outcome.stdout);
        assert!(outcome.stdout.contains("--quiet"), "{verb:?}: {}", outcome.stdout);
        assert!(outcome.stderr.is_empty());
    }
}

#[test]
fn the_version_names_the_backends() {
    let document = tidemill(&["version", "--output", "json"]).expect(0).json();
    assert_eq!(document["version"], env!("CARGO_PKG_VERSION"));
    assert!(document["backends"]["rten"].is_string(), "{document}");
    let text = tidemill(&["version"]).expect(0).stdout;
    assert!(text.starts_with("tidemill ") && text.contains("backend ort: "), "{text}");
}

#[test]
fn the_version_names_the_features_of_the_build() {
    let document = tidemill(&["version", "--output", "json"]).expect(0).json();
    assert_eq!(document["features"]["cluster"], true, "{document}");
    assert_eq!(document["features"].as_object().map(serde_json::Map::len), Some(6), "{document}");
    let text = tidemill(&["version"]).expect(0).stdout;
    assert!(text.contains("\nfeature cluster: clusters and deployments\n"), "{text}");
}
