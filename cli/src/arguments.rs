//! The command line.
mod profile;

pub(crate) use profile::{FitArguments, PredictArguments, ProfileArguments, ProfileVerb};
mod planning;

pub(crate) use planning::{
    ExplainArguments, FleetSetting, Front, GoalChoice, LatencyChoice, LevelSetting, Losses, PlanArguments,
    PlanOutput, PlanVerb, PlannerChoice, PlanningArguments, ReturnTrafficChoice, SolverChoice,
};

#[cfg(feature = "cluster")]
mod cluster;

#[cfg(feature = "cluster")]
pub(crate) use cluster::{
    AddPersonArguments, AggChoice, AggProcessArguments, AggVerb, AttachArguments, AttachPolicyArguments,
    BenchAggArguments, BenchGroupArguments, ChangeArguments, ClusterVerb, CollectiveVerb,
    ControllerArguments, ControllerChoice, DeployArguments, DeploymentLogsArguments, DeploymentVerb,
    DetachPolicyArguments, DownArguments, DrainArguments, DrainPathArguments, ElasticRestoreArguments,
    ElasticShowArguments, ElasticVerb, EventsArguments, ExplainAggArguments, GroupArguments,
    GroupServiceChoice, GroupStrategyArguments, HealthArguments, HintsArguments, KindsArguments,
    ListAggArguments, ListArguments, ListEdgesArguments, ListPathsArguments, ListPeopleArguments,
    ListPoliciesArguments, LoginArguments, LogsArguments, MigrateArguments, NetBenchVerb, NetVerb,
    NetworkChoice, NextPlan, NumbersChoice, PathsVerb, PeopleArguments, PeopleVerb, PlanApplyArguments,
    PolicyVerb, PsArguments, RemoveAggArguments, RemoveArguments, RemovePersonArguments, ReplanArguments,
    ReplanChoice, ResultsArguments, RevokeArguments, RuleChoice, RunChoice, ServeAggArguments,
    ServeNetArguments, ServiceChoice, SetPolicyArguments, SortColumn, StatusArguments, StubArguments,
    SubmitArguments, TargetChoice, TestPathsArguments, TokenArguments, TopArguments, UndrainArguments,
    UpArguments, UpdateChoice, UpgradeArguments, UpgradeNetArguments, WatchEdgesArguments, WorkerArguments,
    WorkersArguments, note_old_spelling, note_plan_apply,
};

mod device;
mod requirements;

pub(crate) use requirements::RequirementsArguments;

mod groups;
mod job;

#[cfg(feature = "cluster")]
pub(crate) use job::{
    FetchJobArguments, JobChoice, JobLogsArguments, QueueArguments, RemoveJobsArguments, SubmitJobArguments,
};
pub(crate) use job::{JobVerb, SimulateJobsArguments};

pub(crate) use device::{
    AUTO as AUTO_BACKEND, DeviceCertificateArguments, DeviceChoice, DeviceLimitsArguments,
    DeviceProcessArguments, DeviceProxyArguments, DeviceVerb, DrainDeviceArguments,
    EMULATED as EMULATED_BACKEND, ListDevicesArguments, ServeDeviceArguments, WatchDevicesArguments,
};
pub(crate) use groups::{command, described_command};

mod models;

pub(crate) use models::{CompileArguments, ModelsVerb, TryArguments};

mod run;

pub(crate) use run::RunArguments;

mod simulation;

mod source;
mod state;

pub(crate) use source::{FeedArguments, FeedsOf, SourceVerb};
pub(crate) use state::{StateDiffArguments, StateResetArguments, StateShowArguments, StateVerb};
pub(crate) use tap::{PictureForm, TapArguments};
pub(crate) use test::TestArguments;
#[cfg(feature = "cluster")]
pub(crate) use train::TrainArguments;

mod tap;
mod test;
mod traces;
#[cfg(feature = "cluster")]
mod train;

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
  tidemill init my-project                 create a project that runs as it is
  tidemill run workflow.yaml               run it; report rate, latency and accuracy")]
pub(crate) struct Arguments {
    /// The verb.
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
    /// Format of the log.
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
    /// Print only errors on stderr.
    #[arg(long, short, global = true, help_heading = "General options")]
    pub(crate) quiet: bool,
}

/// Verbs of the command line.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Check workflows, plans, infrastructures, manifests and profiles; run nothing.
    Validate(ValidateArguments),
    /// Run a workflow in this process.
    Run(RunArguments),
    /// Test workflows: give them inputs, compare the rows that come out.
    Test(TestArguments),
    /// Measure the operators of a workflow, or show measurements.
    Profile(ProfileArguments),
    /// Measure one operator for `profile`, which starts this.
    #[command(hide = true)]
    ProfileWorker(DeviceCertificateArguments),
    /// Run one worker of a plan for `run --processes`, which starts this.
    #[command(hide = true)]
    WorkerProcess(DeviceCertificateArguments),
    /// Be the transport service of this machine for `net serve`, which starts this.
    #[command(hide = true)]
    NetProcess,
    /// Be the device proxy of a model whose plan says `device: proxy`: the executor starts this.
    #[command(hide = true)]
    DeviceProxy(DeviceProxyArguments),
    /// Serve a session for `device serve`, which starts this.
    #[command(hide = true)]
    DeviceProcess(DeviceProcessArguments),
    /// Plan a workflow: variants, machines and routes at the least cost.
    Plan(PlanArguments),
    /// Explain a plan and the cost of other service levels.
    Explain(ExplainArguments),
    /// Find the links over which the devices of models may be remote, for a budget of time.
    Requirements(RequirementsArguments),
    /// Simulate hours of a plan in seconds: rates, latencies, queues, cost.
    Simulate(SimulateArguments),
    /// Draw a workflow, or a plan for it.
    Graph(GraphArguments),
    /// Print the JSON Schema of a kind of file.
    Schema(SchemaArguments),
    /// List, fetch, check, inspect and try models.
    Models {
        /// The verb.
        #[command(subcommand)]
        verb: ModelsVerb,
    },
    /// Show, add, remove, pause and resume the cameras and other feeds of running workflows.
    Source {
        /// The verb.
        #[command(subcommand)]
        verb: SourceVerb,
    },
    /// Serve this machine's accelerator to stages elsewhere; list, limit and drain its sessions.
    Device {
        /// The verb.
        #[command(subcommand)]
        verb: DeviceVerb,
    },
    /// Show the records that pass a source or an operator of a running workflow, pictures too.
    Tap(TapArguments),
    /// Show the state of a run (`run --state`), compare it with a workflow, or reset it.
    State {
        /// The verb.
        #[command(subcommand)]
        verb: StateVerb,
    },
    /// Queue work that ends, list it, and fetch its results.
    Job {
        /// The verb.
        #[command(subcommand)]
        verb: JobVerb,
    },
    /// Train a model with several processes; the training survives the loss of some.
    #[cfg(feature = "cluster")]
    Train(TrainArguments),
    /// The verbs of clusters and deployments.
    #[cfg(feature = "cluster")]
    #[command(flatten)]
    Cluster(ClusterVerb),
    /// Print the versions of this program and of its inference backends, and the features of this build.
    Version(VersionArguments),
    /// Create a project that runs as it is.
    Init(InitArguments),
    /// Check this machine: list what Tidemill uses, what is missing, and how to fix it.
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

Overwrites no file. Works without a network and outside the repository.")]
pub(crate) struct InitArguments {
    /// Folder of the project; created if it does not exist.
    #[arg(default_value = ".", value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Project to start from.
    #[arg(long, short, value_name = "NAME", default_value = "quickstart")]
    pub(crate) template: Template,
    /// Format of the output on stdout.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// `tidemill doctor`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill doctor
  tidemill doctor --fix              also fetch ONNX Runtime, HiGHS, ffmpeg and its libraries (needs network, bash, python3)
  tidemill doctor --cluster          the cluster of the last `tidemill login`
  tidemill doctor --output json

Each line is ok, a note (something works less well, or only one feature needs it) or a problem. Exit code 1
if there is a problem.")]
pub(crate) struct DoctorArguments {
    /// Fetch the missing ones of ONNX Runtime (for models), HiGHS (for planning), and ffmpeg and its libraries (for videos).
    #[arg(long)]
    pub(crate) fix: bool,
    /// Check a cluster instead: its controller, its workers, and whether the workers reach each other.
    #[arg(long, conflicts_with = "fix")]
    pub(crate) cluster: bool,
    #[cfg(feature = "cluster")]
    #[command(flatten)]
    pub(crate) of: ControllerChoice,
    /// Format of the output on stdout.
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
    /// Shell to complete commands in.
    pub(crate) shell: clap_complete::Shell,
}

/// `tidemill man`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill man | man -l -
  tidemill man --out ~/.local/share/man/man1    then `man tidemill-run`, for example")]
pub(crate) struct ManArguments {
    /// Write one page per verb into this folder, instead of printing one page.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// `tidemill validate`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill validate workflow.yaml
  tidemill validate examples/*/*.yaml      several files of any kind
  tidemill validate workflow.yaml plan.yaml    checks the plan against its workflow
  tidemill validate workflow.yaml --output json
  tidemill validate workflow.yaml --without-files     its pictures and models are on other machines

The keys of a file show whether it is a workflow, plan, infrastructure, model manifest, profile, job or file of tests. Exit
code 78 if any file is wrong.")]
pub(crate) struct ValidateArguments {
    /// Files to check: workflows, plans, infrastructures, model manifests, profiles, jobs, tests.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Read no data and no models, for a workflow whose files are on other machines. Checks the workflow itself and the
    /// manifests on this machine, and lists what it cannot check.
    #[arg(long)]
    pub(crate) without_files: bool,
    /// Format of the output on stdout.
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
    /// Workflow to draw.
    #[arg(value_name = "WORKFLOW")]
    pub(crate) workflow: PathBuf,
    /// Draw this plan for the workflow.
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// Format of the drawing.
    #[arg(long, value_name = "FORMAT", default_value = "ascii")]
    pub(crate) format: GraphFormat,
}

/// `tidemill schema`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill schema > workflow.schema.json
  tidemill schema model > model.schema.json

Editors use the schema if this is the first line of a file: # yaml-language-server: $schema=workflow.schema.json")]
pub(crate) struct SchemaArguments {
    /// Kind of file to describe.
    #[arg(default_value = "workflow")]
    pub(crate) file: SchemaFile,
}

/// `tidemill version`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidemill version
  tidemill version --output json")]
pub(crate) struct VersionArguments {
    /// Format of the output.
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    pub(crate) output: OutputForm,
}

/// Format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputForm {
    /// Tables for people.
    Table,
    /// JSON for programs.
    Json,
}

/// Format of a drawing.
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
    /// Tests of workflows.
    Test,
    /// Jobs.
    Job,
}

impl SchemaFile {
    /// Returns the name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            SchemaFile::Workflow => "workflow",
            SchemaFile::Infrastructure => "infrastructure",
            SchemaFile::Plan => "plan",
            SchemaFile::Model => "model",
            SchemaFile::Profile => "profile",
            SchemaFile::Test => "test",
            SchemaFile::Job => "job",
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

/// Condition for colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    /// Colour on a terminal.
    Auto,
    /// Always colour.
    Always,
    /// No colour.
    Never,
}

/// Format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Importance of log messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    /// Nothing.
    Off,
    /// Failures.
    Error,
    /// Failures and warnings.
    Warn,
    /// Events too.
    Info,
    /// Details too.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// Returns the filter of the log. Libraries log less than this program does.
    pub(crate) fn as_filter(self) -> &'static str {
        match self {
            LogLevel::Off => "off",
            LogLevel::Error => "error",
            LogLevel::Warn => "warn,ort=error,retina=error",
            LogLevel::Info => "info,ort=warn,retina=error",
            // Requests to a bucket contain keys, answers of a camera addresses: their libraries never log details.
            LogLevel::Debug => {
                "debug,ort=info,h2=info,hyper=info,hyper_util=info,reqwest=info,retina=error,rustls=info"
            }
            LogLevel::Trace => {
                "trace,h2=info,hyper=info,hyper_util=info,reqwest=info,retina=error,rustls=info"
            }
        }
    }
}

/// Whether the verb prints JSON: then errors are JSON too.
pub(crate) fn wants_json(matches: &ArgMatches) -> bool {
    let here = matches.try_get_raw("output").ok().flatten();
    here.into_iter().flatten().any(|form| form == "json")
        || matches.subcommand().is_some_and(|(_, deeper)| wants_json(deeper))
}

/// Options that take values with a sign would take a following option for theirs.
fn is_value(text: &str) -> Result<(), String> {
    match text.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| !c.is_ascii_digit())) {
        true => Err("this is an option; the value before it is missing".to_owned()),
        false => Ok(()),
    }
}

/// Parses a folder or an address of a bucket.
fn state_place() -> impl TypedValueParser<Value = StatePlace> {
    OsStringValueParser::new().try_map(StatePlace::new)
}

fn parse_time(text: &str) -> Result<Duration, String> {
    let time = parse_wait(text)?;
    if time.is_zero() {
        return Err("the time is 0; write a time such as `10s`".to_owned());
    }
    Ok(time)
}

/// A time that may be 0.
fn parse_wait(text: &str) -> Result<Duration, String> {
    is_value(text)?;
    let span: TimeSpan = text.parse().map_err(|error: tidemill_spec::units::UnitError| explained(&error))?;
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
            // Two blanks separate the command from its explanation; after a bar or an angle bracket the shell continues.
            let words = words_of(example.split("  ").next().unwrap_or_default());
            let parsed = Arguments::try_parse_from(words);
            assert!(parsed.is_ok(), "{example}: {}", parsed.err().unwrap());
        }
    }

    /// Splits a command as a shell does, up to a bar, an ampersand or an angle bracket.
    fn words_of(command: &str) -> Vec<String> {
        let (mut words, mut is_quoted) = (vec![String::new()], false);
        for letter in command.chars() {
            match letter {
                '\'' => is_quoted = !is_quoted,
                '|' | '>' | '&' if !is_quoted => break,
                letter if letter.is_whitespace() && !is_quoted => words.push(String::new()),
                letter => words.last_mut().unwrap().push(letter),
            }
        }
        words.retain(|word| !word.is_empty());
        words
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
