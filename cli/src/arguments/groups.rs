//! Groups of verbs in `tidemill --help`, because clap has no groups of subcommands.
use super::Arguments;
use crate::features::{self, Feature};
use clap::{Command, CommandFactory};
use std::fmt::Write;

/// A line of the list: verbs, and a text for all of them; empty: the text of the single verb.
type Row = (&'static [&'static str], &'static str);

const GROUPS: [(&str, &[Row]); 5] = [
    (
        "Workflow",
        &[
            (&["init"], ""),
            (
                &["validate", "test"],
                "Check files and run nothing; run the tests of workflows and compare their rows",
            ),
            (
                &["graph", "schema"],
                "Draw a workflow, or a plan for it; print the JSON Schema of a kind of file",
            ),
            (&["models"], ""),
        ],
    ),
    (
        "Plan",
        &[
            (&["profile"], ""),
            (&["plan"], ""),
            (&["explain"], ""),
            (
                &["simulate", "requirements"],
                "Simulate hours of a plan in seconds; find the links over which devices may be remote",
            ),
        ],
    ),
    (
        "Run and watch",
        &[
            (&["run"], ""),
            (
                &["top", "tap", "source"],
                "Watch a run: rates, drops; show its records and pictures; list and change cameras",
            ),
            (&["state"], ""),
        ],
    ),
    (
        "Cluster",
        &[
            (&["controller"], ""),
            (&["worker"], ""),
            (&["login", "token", "people"], "Set up access for this machine, workers and people"),
            (&["submit"], ""),
            (&["list", "status"], "List the runs of a cluster; show the state of one"),
            (&["change"], ""),
            (
                &["logs", "events", "net"],
                "Print logs of a run, events of the cluster; show edges and paths, attach policies",
            ),
            (
                &["job", "train"],
                "Queue work that ends, and fetch its results; train a model with several processes",
            ),
            (&["results", "cancel", "remove"], "Copy the results of a run; end it; remove it and its files"),
            (
                &["workers", "drain", "undrain", "revoke"],
                "List workers; move their work; revoke their certificates",
            ),
        ],
    ),
    (
        "Deploy and machine",
        &[
            (&["deploy"], ""),
            (
                &["up", "down", "ps", "deployment"],
                "Start, remove and show a deployment; print its logs, upgrade it",
            ),
            (&["agg"], "Serve aggregators for training jobs; list jobs, move tensors"),
            (&["elastic"], ""),
            (&["device"], "Serve this machine's accelerator to stages elsewhere; list, limit and drain it"),
            (&["health", "doctor"], "Check the health of a deployment, and what this machine has"),
            (&["completions", "man", "version"], "Print shell completions, manual pages, versions"),
        ],
    ),
];

/// Exit codes, for the manual page.
const EXIT_CODES: &str = "Exit codes: 0 ok; 1 the answer is \"no\"; 2 wrong arguments; 65 a state, a source or an output
differs from what was written; 66 a named file or object is missing; 69 something outside of Tidemill failed, such as a disk or
a network; 70 a defect or the panic of an operator; 78 a file is wrong; 130 interrupted.";

/// Returns the command line with its verbs in groups.
pub(crate) fn command() -> Command {
    let command = Arguments::command();
    let missing = features::missing();
    let verbs = listed(&command, &missing);
    features::with_stand_ins(command, &missing).help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} tidemill VERB [OPTIONS]\n\n{verbs}\n\
         General options: --quiet, --color, --log-level, --log-format; `tidemill VERB --help` explains all options of a verb.\n\n\
         {{after-help}}"
    ))
}

/// Returns the command line for manual pages, with the exit codes.
pub(crate) fn described_command() -> Command {
    let command = command();
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    command.after_long_help(format!("{examples}\n\n{EXIT_CODES}"))
}

/// Lists the verbs of each group with their texts, and the features that the build lacks.
fn listed(command: &Command, missing: &[&Feature]) -> String {
    let names = |row: &Row| row.0.join(", ");
    let width = GROUPS.iter().flat_map(|(_, rows)| *rows).map(|row| names(row).len()).max().unwrap_or(0);
    let heading = command.get_styles().get_header();
    let mut text = String::new();
    for (title, rows) in GROUPS {
        let is_here = |row: &&Row| command.find_subcommand(row.0[0]).is_some();
        let rows: Vec<&Row> = rows.iter().filter(is_here).collect();
        if rows.is_empty() {
            continue;
        }
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{heading}{title}:{heading:#}");
        for row in rows {
            let verb = command.find_subcommand(row.0[0]).and_then(Command::get_about);
            let about = if row.1.is_empty() { verb.map(ToString::to_string) } else { Some(row.1.to_owned()) };
            let _ = writeln!(text, "  {:width$}  {}", names(row), about.unwrap_or_default());
        }
    }
    if !missing.is_empty() {
        let names = features::names(missing);
        let _ = writeln!(
            text,
            "{heading}Not in this build:{heading:#} {names}; `tidemill version` explains them"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_verb_stands_in_one_group() {
        let command = Arguments::command();
        let mut listed: Vec<&str> =
            GROUPS.iter().flat_map(|(_, rows)| rows.iter()).flat_map(|row| row.0).copied().collect();
        let mut all: Vec<&str> =
            command.get_subcommands().filter(|verb| !verb.is_hide_set()).map(Command::get_name).collect();
        listed.sort_unstable();
        all.sort_unstable();
        assert_eq!(listed, all);
    }

    #[test]
    fn the_list_can_be_overseen() {
        let help = command().render_long_help().to_string();
        assert!(help.lines().count() <= 45, "{} lines:\n{help}", help.lines().count());
        assert!(help.lines().all(|line| line.len() <= 120), "{help}");
        assert!(help.contains("Run and watch:\n  run "), "{help}");
    }

    #[test]
    fn a_build_without_a_feature_lists_what_it_has() {
        let command = Command::new("tidemill").subcommand(Command::new("run").about("Run a workflow."));
        let text = listed(&command, &[features::CLUSTER]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("  run ") && lines[1].ends_with(" Run a workflow."), "{text}");
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[2].contains("Not in this build:") && lines[2].contains(" cluster; "), "{text}");
    }

    #[test]
    fn the_manual_has_the_exit_codes() {
        assert!(described_command().render_long_help().to_string().contains("Exit codes: 0 ok"));
    }
}
