//! The `tidemill` command as a library: a program of your own registers its parts and calls [`main`].
//!
//! ```no_run
//! // tidemill_operators::register_source(MySource), tidemill_link::transport::register(MyTransport), ...
//! tidemill::main()
//! ```
//!
//! `examples/extension` registers a source, an operator, a sink, a transport, an executor, a backend and a host service.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
mod account;
mod answer;
mod arguments;
mod cluster;
mod deploy;
mod deployment;
mod doctor;
mod drawing;
mod elastic;
mod exit;
mod explain;
mod fetch;
mod graph;
mod health;
mod html_table;
mod init;
mod interrupt;
mod manual;
mod models;
mod outline;
mod plan;
mod profile;
mod progress;
mod report;
mod run;
mod schema;
mod simulate;
mod state;
mod status_line;
mod table;
mod templates;
mod terminal;
mod validate;
mod version;
mod visible;

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
    let matches = arguments::command().try_get_matches().unwrap_or_else(|told| leave(without_verb(&told)));
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|told| leave(without_verb(&told)));
    tidemill_engine::quiet_engine_panics();
    let terminal = Terminal::new(arguments.color, arguments.quiet);
    terminal::start_log(arguments.log_level, arguments.log_format, &terminal);
    arguments::note_old_spelling(&arguments.verb, &terminal);
    let result = match arguments.verb {
        Verb::Validate(arguments) => validate::validate(&arguments, &terminal),
        Verb::Run(arguments) => run::run(&arguments, &terminal),
        Verb::Plan(arguments) => plan::plan(&arguments, &terminal),
        Verb::Explain(arguments) => explain::explain(&arguments, &terminal),
        Verb::Simulate(arguments) => simulate::simulate(&arguments, &terminal),
        Verb::Graph(arguments) => graph::graph(&arguments),
        Verb::Schema(arguments) => schema::print(&arguments),
        Verb::Models { verb } => models::models(&verb, &terminal),
        Verb::State { verb } => state::state(&verb, &terminal),
        Verb::Controller(arguments) => cluster::controller(&arguments, &terminal),
        Verb::Worker(arguments) => cluster::worker(&arguments, &terminal),
        Verb::Login(arguments) => cluster::login(&arguments, &terminal),
        Verb::Token(arguments) => cluster::token(&arguments, &terminal),
        Verb::Submit(arguments) => cluster::submit(&arguments, &terminal),
        Verb::List(arguments) => cluster::list(&arguments),
        Verb::Replan(arguments) => cluster::replan(&arguments, &terminal),
        Verb::Status(arguments) => cluster::status(&arguments),
        Verb::Logs(arguments) => cluster::logs(&arguments),
        Verb::Cancel(arguments) => cluster::cancel(&arguments, &terminal),
        Verb::Change(arguments) => cluster::change(&arguments, &terminal),
        Verb::Results(arguments) => cluster::results(&arguments, &terminal),
        Verb::Remove(arguments) => cluster::remove(&arguments, &terminal),
        Verb::Revoke(arguments) => cluster::revoke(&arguments, &terminal),
        Verb::People(arguments) => cluster::people(&arguments, &terminal),
        Verb::Workers(arguments) => cluster::workers(&arguments, &terminal),
        Verb::Drain(arguments) => cluster::drain(&arguments, &terminal),
        Verb::Undrain(arguments) => cluster::undrain(&arguments, &terminal),
        Verb::Events(arguments) => cluster::events(&arguments),
        Verb::Elastic { verb } => elastic::elastic(&verb, &terminal),
        Verb::Top(arguments) => cluster::top(&arguments, &terminal),
        Verb::Deploy(arguments) => deploy::deploy(&arguments, &terminal),
        Verb::Health(arguments) => health::health(&arguments),
        Verb::Up(arguments) => deployment::up(&arguments, &terminal),
        Verb::Down(arguments) => deployment::down(&arguments, &terminal),
        Verb::Ps(arguments) => deployment::ps(&arguments, &terminal),
        Verb::Deployment { verb } => deployment::deployment(&verb, &terminal),
        Verb::Version(arguments) => version::version(&arguments),
        Verb::Init(arguments) => init::init(&arguments),
        Verb::Profile(arguments) => profile::profile(&arguments, &terminal),
        Verb::ProfileWorker => profile::worker(),
        Verb::WorkerProcess => run::processes::worker(),
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
