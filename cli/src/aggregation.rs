//! `tidemill agg`: aggregators of training jobs.
//!
//! | question | module |
//! |---|---|
//! | the master and its aggregators | [`serving`] |
//! | jobs, map, moves | [`asking`] |
//! | aggregators or an all-reduce | [`explaining`] |
//! | a job without data | [`benching`] |
mod asking;
mod benching;
mod explaining;
mod serving;

use crate::arguments::{AggChoice, AggVerb};
use crate::exit::Exit;
use crate::terminal::Terminal;
pub(crate) use explaining::ADDED;
use std::path::PathBuf;
use tidemill_aggregation_service::master::MasterError;
use tidemill_app::failure::{Failure, Kind};
use tidemill_net::usual_socket;

/// Executes a verb.
pub(crate) fn agg(verb: &AggVerb, terminal: &Terminal) -> anyhow::Result<Exit> {
    match verb {
        AggVerb::Serve(arguments) => serving::serve(arguments, terminal),
        AggVerb::Process(arguments) => serving::process(arguments),
        AggVerb::Jobs(arguments) => asking::jobs(arguments),
        AggVerb::Map(arguments) => asking::map(arguments),
        AggVerb::Migrate(arguments) => asking::migrate(arguments, terminal),
        AggVerb::Remove(arguments) => asking::remove(arguments, terminal),
        AggVerb::Explain(arguments) => explaining::explain(arguments),
        AggVerb::Bench(arguments) => benching::bench(arguments, terminal),
    }
}

fn socket_of(choice: &AggChoice) -> std::io::Result<PathBuf> {
    std::path::absolute(choice.socket.clone().unwrap_or_else(usual_socket))
}

fn failure(error: &MasterError) -> Failure {
    let (kind, help) = match error {
        MasterError::Map { .. } => (Kind::Data, None),
        MasterError::Second(_) => (Kind::Unavailable, Some("`tidemill agg map` shows its aggregators")),
        MasterError::Service(_) => (Kind::Usage, Some("write a part such as `--loss-limit 0.1`")),
        _ => (Kind::Unavailable, None),
    };
    let failure = Failure::new(kind, error.to_string());
    match help {
        Some(help) => failure.with_help(help),
        None => failure,
    }
}
