//! The `tidemill` command: one binary, one verb a task.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]
mod arguments;
mod choice;
mod default_plan;
mod doctor;
mod drawing;
mod emulate;
mod exit;
mod explain;
mod fetch;
mod figures;
mod graph;
mod init;
mod interrupt;
mod letters;
mod levels;
mod machine;
mod manual;
mod markup;
mod metrics;
mod models;
mod open_files;
mod outline;
mod output_file;
mod plan;
mod planning;
mod preparation;
mod profile;
mod progress;
mod report;
mod run;
mod schema;
mod simulate;
mod skeleton;
mod slo;
mod slo_watch;
mod status_line;
mod table;
mod templates;
mod terminal;
mod validate;
mod version;

use arguments::{Arguments, Verb};
use clap::Parser;
use exit::Exit;
use std::io::Write;
use terminal::Terminal;

fn main() -> ! {
    // A usage error leaves with 2, `--help` with 0.
    let arguments = Arguments::parse();
    let terminal = Terminal::new(arguments.color, arguments.quiet);
    terminal::start_log(arguments.log_level, arguments.log_format, &terminal);
    let result = match arguments.verb {
        Verb::Validate(arguments) => validate::validate(&arguments, &terminal),
        Verb::Run(arguments) => run::run(&arguments, &terminal),
        Verb::Plan(arguments) => plan::plan(&arguments, &terminal),
        Verb::Explain(arguments) => explain::explain(&arguments, &terminal),
        Verb::Simulate(arguments) => simulate::simulate(&arguments, &terminal),
        Verb::Graph(arguments) => graph::graph(&arguments),
        Verb::Schema(arguments) => schema::print(&arguments),
        Verb::Models { verb } => models::models(&verb, &terminal),
        Verb::Version(arguments) => version::version(&arguments),
        Verb::Init(arguments) => init::init(&arguments),
        Verb::Profile(arguments) => profile::profile(&arguments, &terminal),
        Verb::ProfileWorker => profile::worker(),
        Verb::Doctor(arguments) => doctor::doctor(&arguments, &terminal),
        Verb::Completions(arguments) => manual::completions(&arguments),
        Verb::Man(arguments) => manual::manual(&arguments),
    };
    let exit = result.unwrap_or_else(|error| exit::explain(&error, &terminal));
    // Verbs that can be interrupted have flushed what they say; a sink's thread may still hold stdout then.
    if exit != Exit::Interrupted {
        // Whoever closed stdout does not want the rest.
        let _ = std::io::stdout().flush();
    }
    leave(exit)
}

/// Leaves at once, without the destructors of libraries: after an interrupt a thread may still compute in ONNX Runtime,
/// which would take away what it computes with and log an error.
fn leave(exit: Exit) -> ! {
    signal_hook::low_level::exit(i32::from(exit.code()))
}
