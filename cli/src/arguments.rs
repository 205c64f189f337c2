//! The command line.
mod profile;

pub(crate) use profile::{FitArguments, PredictArguments, ProfileArguments, ProfileVerb};
mod planning;

pub(crate) use planning::{
    ExplainArguments, FleetSetting, Front, GoalChoice, LatencyChoice, LevelSetting, PlanArguments,
    PlanOutput, PlanVerb, PlannerChoice, PlanningArguments, ReturnTrafficChoice, SolverChoice,
};

#[cfg(feature = "cluster")]
mod cluster;

#[cfg(feature = "cluster")]
pub(crate) use cluster::{
    AddPersonArguments, AttachArguments, ChangeArguments, ClusterVerb, ControllerArguments, ControllerChoice,
    DeployArguments, DeploymentLogsArguments, DeploymentVerb, DownArguments, DrainArguments,
    ElasticRestoreArguments, ElasticShowArguments, ElasticVerb, EventsArguments, HealthArguments,
    ListArguments, ListPeopleArguments, LoginArguments, LogsArguments, NetworkChoice, NextPlan,
    PeopleArguments, PeopleVerb, PlanApplyArguments, PsArguments, RemoveArguments, RemovePersonArguments,
    ReplanArguments, ReplanChoice, ResultsArguments, RevokeArguments, RuleChoice, RunChoice, SortColumn,
    StatusArguments, SubmitArguments, TargetChoice, TokenArguments, TopArguments, UndrainArguments,
    UpArguments, UpgradeArguments, WorkerArguments, WorkersArguments, note_old_spelling, note_plan_apply,
};

mod groups;

pub(crate) use groups::{command, described_command};

mod models;

pub(crate) use models::ModelsVerb;

mod run;

pub(crate) use run::RunArguments;

mod simulation;

mod state;

pub(crate) use state::{StateDiffArguments, StateResetArguments, StateShowArguments, StateVerb};

mod traces;

pub(crate) use simulation::{ArrivalsChoice, SimulateArguments, SimulationOutput};

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgMatches, Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use tidemill_app::state::place::StatePlace;
use tidemill_spec::units::TimeSpan;

/// Runs machine-learning workflows, written in YAML, as continuous dataflows.
#[derive(Debug, Parser)]
#[command(name = "tidemill", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Examples:
  tidemill init my-project                 start a project that runs as it is
  tidemill run workflow.yaml               run it and report rate, latency and accuracy")]
pub(crate) struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: Verb,
    /// Least important messages to log on stderr.
    #[arg(
        long,
        global = true,
        help_heading = "General options",
        value_name = "LEVEL",
        default_value = "warn",
        env = "TIDEMILL_LOG_LEVEL"
    )]
    pub(crate) log_level: LogLevel,
    /// Form of the log.
    #[arg(
        long,
        global = true,
        help_heading = "General options",
        value_name = "FORMAT",
        default_value = "text",
        env = "TIDEMILL_LOG_FORMAT"
    )]
    pub(crate) log_format: LogFormat,
    /// Colour on stderr; `auto` is off without a terminal and when NO_COLOR is set.
    #[arg(
        long,
        global = true,
        help_heading = "General options",
        value_name = "WHEN",
        default_value = "auto"
    )]
    pub(crate) color: ColorChoice,
    /// Say nothing on stderr but errors.
    #[arg(long, short, global = true, help_heading = "General options")]
    pub(crate) quiet: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Check files; nothing is read from sources, nothing is written.
    Validate(ValidateArguments),
    /// Run a workflow in this process.
    Run(RunArguments),
    /// Measure the operators of a workflow, or show what was measured.
    Profile(ProfileArguments),
    /// Measure one operator for `profile`, which starts this.
    #[command(hide = true)]
    ProfileWorker,
    /// Run one worker of a plan for `run --processes`, which starts this.
    #[command(hide = true)]
    WorkerProcess,
    /// Plan a workflow: variants, machines and routes at the least cost.
    Plan(PlanArguments),
    /// Explain a plan, and what other service levels would cost.
    Explain(ExplainArguments),
    /// Simulate hours of a plan in seconds: rates, latencies, queues, cost.
    Simulate(SimulateArguments),
    /// Draw a workflow, or a plan for it.
    Graph(GraphArguments),
    /// Print the JSON Schema of a kind of file.
    Schema(SchemaArguments),
    /// List, fetch, check and inspect models.
    Models {
        /// What to do.
        #[command(subcommand)]
        verb: ModelsVerb,
    },
    /// Show the state of a run (`run --state`), compare it with a workflow, or reset it.
    State {
        /// What to do.
        #[command(subcommand)]
        verb: StateVerb,
    },
    /// The verbs of clusters and deployments.
    #[cfg(feature = "cluster")]
    #[command(flatten)]
    Cluster(ClusterVerb),
    /// Print the versions of this program and of its inference backends, and the features of this build.
    Version(VersionArguments),
    /// Start a project that runs as it is.
    Init(InitArguments),
    /// Check this machine: what Tidemill uses, what is missing, and how to fix it.
    Doctor(DoctorArguments),
    /// Print a script that completes `tidemill` commands in a shell.
    Completions(CompletionsArguments),
    /// Print the manual page, or write those of all verbs to a folder.
    Man(ManArguments),
}

/// `tidemill init`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill init                            the quickstart, into this folder
  tidemill init my-project
  tidemill init pictures --template vqa    questions about pictures, with models and data
  tidemill init my-project --output json

Nothing that is there is overwritten. Works without network and outside the repository.")]
pub(crate) struct InitArguments {
    /// The folder; it is made if it is not there.
    #[arg(default_value = ".", value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// What to start from.
    #[arg(long, short, value_name = "NAME", default_value = "quickstart")]
    pub(crate) template: Template,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill doctor`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill doctor
  tidemill doctor --fix              also fetch ONNX Runtime, HiGHS and ffmpeg into the user's cache (needs network, bash, python3)
  tidemill doctor --cluster          the cluster of the last `tidemill login`
  tidemill doctor --output json

Each line is ok, a note (something works less well, or is needed for one thing only) or a problem. Exit code 1
if there is a problem.")]
pub(crate) struct DoctorArguments {
    /// Fetch what is missing of the libraries ONNX Runtime (models) and HiGHS (planning) and of ffmpeg (videos).
    #[arg(long)]
    pub(crate) fix: bool,
    /// Look at a cluster instead: its controller, its workers, and whether these reach each other.
    #[arg(long, conflicts_with = "fix")]
    pub(crate) cluster: bool,
    #[cfg(feature = "cluster")]
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill completions`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill completions bash > ~/.local/share/bash-completion/completions/tidemill
  tidemill completions zsh > ~/.zfunc/_tidemill        and `fpath+=~/.zfunc` before `compinit` in ~/.zshrc
  tidemill completions fish > ~/.config/fish/completions/tidemill.fish")]
pub(crate) struct CompletionsArguments {
    /// The shell.
    pub(crate) shell: clap_complete::Shell,
}

/// `tidemill man`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill man | man -l -
  tidemill man --out ~/.local/share/man/man1    then `man tidemill-run` and the like")]
pub(crate) struct ManArguments {
    /// Write a page for each verb into this folder instead.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// `tidemill validate`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill validate workflow.yaml
  tidemill validate examples/*/*.yaml      several files of any kind
  tidemill validate workflow.yaml plan.yaml    the plan is checked against the workflow of its name
  tidemill validate workflow.yaml --output json
  tidemill validate workflow.yaml --without-files     its pictures and models lie on other machines

A file is a workflow, plan, infrastructure, model manifest or profile by its keys. Exit code 78 if any is wrong.")]
pub(crate) struct ValidateArguments {
    /// Files to check.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Look at no data and no models: for a workflow whose files lie on other machines. It is checked by what it says itself and by
    /// the manifests that are here, and what is not known then is told.
    #[arg(long)]
    pub(crate) without_files: bool,
    /// Form of the answer on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill graph`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill graph workflow.yaml
  tidemill graph workflow.yaml --plan plan.yaml     stages, workers and links
  tidemill graph workflow.yaml --format svg > workflow.svg
  tidemill graph workflow.yaml --format mermaid     for Markdown")]
pub(crate) struct GraphArguments {
    /// The workflow.
    #[arg(value_name = "WORKFLOW")]
    pub(crate) workflow: PathBuf,
    /// Draw this plan for it.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// Language of the drawing.
    #[arg(long, value_name = "FORMAT", default_value = "ascii")]
    pub(crate) format: GraphFormat,
}

/// `tidemill schema`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill schema > workflow.schema.json
  tidemill schema model > model.schema.json

Editors use it when the first line of a file says: # yaml-language-server: $schema=workflow.schema.json")]
pub(crate) struct SchemaArguments {
    /// Kind of file.
    #[arg(default_value = "workflow")]
    pub(crate) file: SchemaFile,
}

/// `tidemill version`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill version
  tidemill version --output json")]
pub(crate) struct VersionArguments {
    /// Form of the answer.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// Form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputForm {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// Language of a drawing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GraphFormat {
    /// Text for a terminal.
    Ascii,
    /// Mermaid, for Markdown.
    Mermaid,
    /// Graphviz.
    Dot,
    /// A picture for browsers and documents.
    Svg,
}

/// A kind of file with a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchemaFile {
    /// Workflows, with the options of all kinds.
    Workflow,
    /// Infrastructures.
    Infrastructure,
    /// Plans.
    Plan,
    /// Model manifests.
    Model,
    /// Profiles.
    Profile,
}

impl SchemaFile {
    /// As it is written on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            SchemaFile::Workflow => "workflow",
            SchemaFile::Infrastructure => "infrastructure",
            SchemaFile::Plan => "plan",
            SchemaFile::Model => "model",
            SchemaFile::Profile => "profile",
        }
    }
}

/// A project to start from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Template {
    /// Sensor readings from a CSV file, averaged over windows.
    Quickstart,
    /// Questions about ten pictures, answered by two small models and scored.
    Vqa,
}

/// When to use colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    /// On a terminal.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Importance of log messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    /// Nothing.
    Off,
    /// Failures.
    Error,
    /// And what is probably not meant so.
    Warn,
    /// And what happens.
    Info,
    /// And how.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// As the log's filter is written. Libraries below talk about themselves only when all is wanted.
    pub(crate) fn as_filter(self) -> &'static str {
        match self {
            LogLevel::Off => "off",
            LogLevel::Error => "error",
            LogLevel::Warn => "warn,ort=error",
            LogLevel::Info => "info,ort=warn",
            // What goes over the wire to a bucket has keys in it.
            LogLevel::Debug => "debug,ort=info,h2=info,hyper=info,hyper_util=info,reqwest=info,rustls=info",
            LogLevel::Trace => "trace,h2=info,hyper=info,hyper_util=info,reqwest=info,rustls=info",
        }
    }
}

/// Whether the answer of the verb is to be JSON: what goes wrong is told in that form too.
pub(crate) fn wants_json(matches: &ArgMatches) -> bool {
    let here = matches.try_get_raw("output").ok().flatten();
    here.into_iter().flatten().any(|form| form == "json")
        || matches.subcommand().is_some_and(|(_, deeper)| wants_json(deeper))
}

/// Options that take values with a sign would take a following option for theirs.
fn is_value(text: &str) -> Result<(), String> {
    match text.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| !c.is_ascii_digit())) {
        true => Err("this is an option, the value before it is missing".to_owned()),
        false => Ok(()),
    }
}

/// Parses a folder or an address of a bucket.
fn state_place() -> impl TypedValueParser<Value = StatePlace> {
    OsStringValueParser::new().try_map(StatePlace::new)
}

fn parse_time(text: &str) -> Result<Duration, String> {
    is_value(text)?;
    let span: TimeSpan = text.parse().map_err(|error: tidemill_spec::units::UnitError| explained(&error))?;
    if span.0 == 0 {
        return Err("a run of no length; write a time such as `10s`".to_owned());
    }
    Ok(Duration::from_nanos(span.0))
}

fn explained(error: &tidemill_spec::units::UnitError) -> String {
    format!("{error}; {}", error.help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn the_command_line_takes_every_example_of_the_help_texts() {
        fn collect(command: &clap::Command, examples: &mut Vec<String>) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines = help.lines().filter_map(|line| line.strip_prefix("  "));
            examples.extend(lines.filter(|line| line.starts_with("tidemill ")).map(str::to_owned));
            command.get_subcommands().for_each(|verb| collect(verb, examples));
        }
        let mut examples = Vec::new();
        collect(&command(), &mut examples);
        assert!(examples.len() > 30, "{examples:?}");
        for example in examples {
            // Behind two blanks stands what it does; behind a bar or an angle the shell has the word.
            let words = example.split("  ").next().unwrap_or_default();
            let words = words.split(['|', '>']).next().unwrap_or_default();
            let parsed = Arguments::try_parse_from(words.split_whitespace());
            assert!(parsed.is_ok(), "{example}: {}", parsed.err().unwrap());
        }
    }

    #[test]
    fn json_is_seen_at_every_verb_that_has_it() {
        let wants = |text: &str| wants_json(&command().get_matches_from(text.split(' ')));
        assert!(wants("tidemill run w.yaml --output json") && wants("tidemill run w.yaml -o json"));
        assert!(wants("tidemill models ls --output json") && wants("tidemill plan diff a b -o json"));
        assert!(!wants("tidemill run w.yaml") && !wants("tidemill graph w.yaml"));
    }

    #[test]
    fn what_is_negative_is_said_to_be() {
        let said = |words: &[&str]| {
            let words = ["tidemill", "run", "workflow.yaml"].iter().chain(words);
            Arguments::try_parse_from(words).unwrap_err().to_string()
        };
        for words in [["--rate", "-5/s"], ["--for", "-5s"]] {
            let text = said(&words);
            assert!(text.contains("is negative") && !text.contains("use '-- "), "{text}");
        }
        let text = said(&["--records", "-5"]);
        assert!(text.contains("whole number of 0 or more"), "{text}");
        let text = said(&["--rate", "--require-slo"]);
        assert!(text.contains("the value before it is missing"), "{text}");
    }
}
