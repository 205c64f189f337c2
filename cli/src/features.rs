//! The features of this build, and the verbs of those that it lacks.
//!
//! Modules of a feature are named in `lib.rs`, `arguments.rs` and the libraries; `*_absent.rs` beside them stand in for what others call.
use crate::answer;
use crate::arguments::ColorChoice;
use crate::exit::{self, Exit};
use crate::terminal::Terminal;
use clap::{Arg, ArgMatches, Command, value_parser};
use std::ffi::OsString;
use tidemill_app::failure::{Failure, Kind};

/// A part of the program that a build may leave out.
#[derive(Debug)]
pub(crate) struct Feature {
    /// Name for `cargo build --features`.
    pub(crate) name: &'static str,
    /// Whether this build has it.
    pub(crate) is_here: bool,
    /// Content, for users.
    pub(crate) content: &'static str,
    /// Its verbs, with their aliases.
    verbs: &'static [&'static str],
}

/// Clusters and deployments.
pub(crate) const CLUSTER: &Feature = &Feature {
    name: "cluster",
    is_here: cfg!(feature = "cluster"),
    content: "clusters and deployments",
    verbs: &[
        "agg",
        "cancel",
        "change",
        "controller",
        "deploy",
        "deployment",
        "down",
        "drain",
        "elastic",
        "events",
        "health",
        "list",
        "login",
        "logs",
        "net",
        "people",
        "ps",
        "remove",
        "replan",
        "results",
        "revoke",
        "status",
        "stop",
        "submit",
        "task-process",
        "token",
        "top",
        "train",
        "undrain",
        "up",
        "worker",
        "workers",
    ],
};

/// All features, by name.
pub(crate) const FEATURES: [&Feature; 6] = [
    CLUSTER,
    &Feature {
        name: "formats",
        is_here: cfg!(feature = "formats"),
        content: "Parquet files, and input compressed with zstd",
        verbs: &[],
    },
    &Feature {
        name: "metrics",
        is_here: cfg!(feature = "metrics"),
        content: "the port for Prometheus metrics",
        verbs: &[],
    },
    &Feature {
        name: "otlp",
        is_here: cfg!(feature = "otlp"),
        content: "traces for an OpenTelemetry collector",
        verbs: &[],
    },
    &Feature {
        name: "storage-s3",
        is_here: cfg!(feature = "storage-s3"),
        content: "states in buckets",
        verbs: &[],
    },
    &Feature {
        name: "streams",
        is_here: cfg!(feature = "streams"),
        content: "MQTT brokers, tables of PostgreSQL, HTTP, websockets",
        verbs: &[],
    },
];

/// The features that this build lacks.
pub(crate) fn missing() -> Vec<&'static Feature> {
    FEATURES.into_iter().filter(|feature| !feature.is_here).collect()
}

/// Returns the names of features as a list.
pub(crate) fn names(features: &[&Feature]) -> String {
    let names: Vec<&str> = features.iter().map(|feature| feature.name).collect();
    names.join(", ")
}

/// The command that builds all features.
pub(crate) const BUILD_ALL: &str = "cargo build -p tidemill";

/// Returns the error of something that needs a feature which this build lacks.
pub(crate) fn lacks(what: &str, feature: &Feature) -> Failure {
    let text = format!("`tidemill {what}` is not in this build: it lacks {}", feature.content);
    Failure::new(Kind::Unavailable, text).with_help(format!(
        "build it with `{BUILD_ALL} --features {}`; `tidemill version` lists the features of a build",
        feature.name
    ))
}

/// Adds the verbs of missing features as hidden ones that take any words, so that they are recognised.
pub(crate) fn with_stand_ins(command: Command, missing: &[&'static Feature]) -> Command {
    let verbs = missing.iter().flat_map(|feature| feature.verbs);
    command.subcommands(verbs.map(|verb| {
        let words = Arg::new(WORDS)
            .num_args(1..)
            .trailing_var_arg(true)
            .allow_hyphen_values(true)
            .value_parser(value_parser!(OsString));
        Command::new(*verb).hide(true).disable_help_flag(true).disable_version_flag(true).arg(words)
    }))
}

/// The words after a verb that this build lacks.
const WORDS: &str = "words";

/// Refuses a verb that this build lacks.
pub(crate) fn refused(matches: &ArgMatches) -> Option<Exit> {
    let (error, in_json) = refusal(matches, &missing())?;
    let error = anyhow::Error::from(error);
    if in_json {
        exit::write_json(&error, &mut answer::out());
    }
    Some(exit::explain(&error, &Terminal::new(ColorChoice::Auto, false)))
}

/// Returns the error of a verb of a missing feature, and whether its answer is to be JSON.
fn refusal(matches: &ArgMatches, missing: &[&'static Feature]) -> Option<(Failure, bool)> {
    let (verb, of_verb) = matches.subcommand()?;
    let feature = missing.iter().find(|feature| feature.verbs.contains(&verb))?;
    let words = of_verb.get_many::<OsString>(WORDS).into_iter().flatten();
    let words: Vec<&str> = words.filter_map(|word| word.to_str()).collect();
    Some((lacks(verb, feature), wants_json_by(&words)))
}

/// Whether words of an unparsed command line have `--output json`.
fn wants_json_by(words: &[&str]) -> bool {
    words.windows(2).any(|pair| matches!(pair, ["--output" | "-o", "json"]))
        || words.iter().any(|word| matches!(*word, "--output=json" | "-o=json" | "-ojson"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &str) -> Option<(Failure, bool)> {
        let command = with_stand_ins(Command::new("tidemill"), &[CLUSTER]);
        command.clone().debug_assert();
        refusal(&command.get_matches_from(words.split(' ')), &[CLUSTER])
    }

    #[test]
    fn a_verb_of_a_missing_feature_is_refused_with_the_fix() {
        let (failure, in_json) = asked("tidemill controller --state cluster --name hub.example").unwrap();
        assert_eq!(failure.kind(), Kind::Unavailable);
        assert_eq!(
            failure.to_string(),
            "`tidemill controller` is not in this build: it lacks clusters and deployments"
        );
        assert!(failure.help().unwrap().contains("`cargo build -p tidemill --features cluster`"));
        assert!(!in_json);
        for words in ["tidemill stop vqa", "tidemill top --help", "tidemill up -q", "tidemill ps"] {
            assert!(asked(words).is_some_and(|(_, in_json)| !in_json), "{words}");
        }
        for words in
            ["tidemill status vqa -o json", "tidemill list --output json", "tidemill ps --output=json"]
        {
            assert!(asked(words).is_some_and(|(_, in_json)| in_json), "{words}");
        }
    }

    #[test]
    fn features_are_listed_by_name_with_the_verbs_by_name() {
        assert!(FEATURES.is_sorted_by_key(|feature| feature.name));
        assert!(FEATURES.iter().all(|feature| feature.verbs.is_sorted()));
        assert_eq!(names(&FEATURES), "cluster, formats, metrics, otlp, storage-s3, streams");
    }

    #[cfg(feature = "cluster")]
    #[test]
    fn the_verbs_of_clusters_are_those_that_a_build_without_them_refuses() {
        use clap::Subcommand;
        let command = crate::arguments::ClusterVerb::augment_subcommands(Command::new("tidemill"));
        let verbs = command.get_subcommands();
        let mut names: Vec<&str> =
            verbs.flat_map(|verb| verb.get_all_aliases().chain([verb.get_name()])).collect();
        names.push("train"); // A verb of its own: it needs the groups of the transport service, and no controller.
        names.sort_unstable();
        assert_eq!(names, CLUSTER.verbs);
    }
}
