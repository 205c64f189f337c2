//! The `tidemill` command as a library: a program of your own registers its parts and calls [`main`].
//!
//! ```no_run
//! // tidemill_operators::register_source(MySource), tidemill_link::transport::register(MyTransport), ...
//! tidemill::main()
//! ```
//!
//! `examples/extension` registers a source, an operator, a sink, a transport, an executor, a backend and a host service.
#![cfg_attr(not(feature = "cluster"), allow(dead_code, reason = "the verbs of clusters use it"))]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
mod account;
mod advice;
#[cfg(feature = "cluster")]
mod aggregation;
mod answer;
mod arguments;
#[cfg(feature = "cluster")]
mod cluster;
#[cfg(feature = "cluster")]
mod deploy;
#[cfg(feature = "cluster")]
mod deployment;
mod device;
mod doctor;
mod drawing;
#[cfg(feature = "cluster")]
mod elastic;
mod exit;
mod explain;
mod features;
mod fetch;
mod graph;
#[cfg(feature = "cluster")]
mod health;
mod html_table;
mod init;
mod interrupt;
mod job;
mod manual;
mod models;
#[cfg(feature = "cluster")]
mod net;
mod outline;
mod plan;
mod profile;
mod progress;
mod report;
mod requirements;
mod run;
mod schema;
mod screen;
mod simulate;
mod source;
mod state;
mod status_line;
mod table;
mod tap;
mod templates;
mod terminal;
mod test;
#[cfg(feature = "cluster")]
mod train;
mod validate;
mod version;
mod visible;
mod watching;

use arguments::{Arguments, ColorChoice, Verb};
use clap::FromArgMatches;
use exit::Exit;
use std::io::{IsTerminal, Write};
use terminal::Terminal;

/// Runs the command with the arguments of this process, and ends the process with the command's exit code.
///
/// Call it first in `main`, after the calls that register parts: the command starts this program again for worker processes and
/// profiling, and each of them must register the same parts.
pub fn main() -> ! {
    // Before the arguments, which may name its back ends.
    tidemill_remote::executor::install();
    let matches = arguments::command().try_get_matches().unwrap_or_else(|told| {
        let words: Vec<String> =
            std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        leave(without_verb(&advice::advised(told, &arguments::command(), &words)))
    });
    if let Some(exit) = features::refused(&matches) {
        leave(answer::end(exit, &Terminal::new(ColorChoice::Auto, false)));
    }
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|told| leave(without_verb(&told)));
    tidemill_engine::quiet_engine_panics();
    let terminal = Terminal::new(arguments.color, arguments.quiet);
    terminal::start_log(arguments.log_level, arguments.log_format, &terminal);
    let result = match arguments.verb {
        Verb::Validate(arguments) => validate::validate(&arguments, &terminal),
        Verb::Run(arguments) => run::run(&arguments, &terminal),
        Verb::Test(arguments) => test::test(&arguments, &terminal),
        Verb::Plan(arguments) => plan::plan(&arguments, &terminal),
        Verb::Explain(arguments) => explain::explain(&arguments, &terminal),
        Verb::Requirements(arguments) => requirements::requirements(&arguments, &terminal),
        Verb::Simulate(arguments) => simulate::simulate(&arguments, &terminal),
        Verb::Graph(arguments) => graph::graph(&arguments),
        Verb::Schema(arguments) => schema::print(&arguments),
        Verb::Models { verb } => models::models(&verb, &terminal),
        Verb::Source { verb } => source::source(&verb, &terminal),
        Verb::Device { verb } => device::device(&verb, &terminal),
        Verb::Tap(arguments) => tap::tap(&arguments, &terminal),
        Verb::State { verb } => state::state(&verb, &terminal),
        Verb::Job { verb } => job::job(&verb, &terminal),
        #[cfg(feature = "cluster")]
        Verb::Train(arguments) => train::train(&arguments, &terminal),
        #[cfg(feature = "cluster")]
        Verb::Cluster(verb) => cluster::verb(&verb, &terminal),
        Verb::Version(arguments) => version::version(&arguments),
        Verb::Init(arguments) => init::init(&arguments),
        Verb::Profile(arguments) => profile::profile(&arguments, &terminal),
        Verb::ProfileWorker(arguments) => profile::worker(&arguments),
        Verb::WorkerProcess(arguments) => run::processes::worker(&arguments),
        Verb::NetProcess => run::processes::net(),
        Verb::DeviceProxy(arguments) => device::proxy(&arguments),
        Verb::DeviceProcess(arguments) => device::process(&arguments),
        Verb::Doctor(arguments) => doctor::doctor(&arguments, &terminal),
        Verb::Completions(arguments) => manual::completions(&arguments),
        Verb::Man(arguments) => manual::manual(&arguments),
    };
    let exit = result.unwrap_or_else(|error| {
        if arguments::wants_json(&matches) {
            exit::write_json(&error, &mut answer::out());
        }
        exit::explain(&error, &terminal)
    });
    leave(answer::end(exit, &terminal))
}

/// Wrong usage, or what `--help` and `--version` ask for.
fn without_verb(told: &clap::Error) -> Exit {
    if told.use_stderr() || std::io::stdout().is_terminal() {
        // Coloured on a terminal. A closed stderr cannot be reported.
        let _ = told.print();
        return if told.use_stderr() { Exit::Usage } else { Exit::Success };
    }
    let _ = write!(answer::out(), "{}", told.render());
    answer::end(Exit::Success, &Terminal::new(ColorChoice::Auto, false))
}

/// Leaves at once, without the destructors of libraries: after an interrupt a thread may still compute in ONNX Runtime,
/// which would take away what it computes with and log an error.
fn leave(exit: Exit) -> ! {
    signal_hook::low_level::exit(i32::from(exit.code()))
}
