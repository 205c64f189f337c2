//! The verbs of clusters and deployments: those that are part of a cluster, and those that ask its controller.
mod asking;
mod changing;
mod connect;
pub(crate) mod feeds;
pub(crate) mod join_file;
mod leading;
mod logs;
mod net;
mod net_metrics;
mod net_serve;
mod net_stub;
mod people;
mod plans;
mod removing;
mod results;
mod serving;
mod submitting;
mod top;

pub(crate) use asking::{ask, json};
pub(crate) use connect::{client, failure};
pub(crate) use submitting::{begin, send};

use crate::arguments::{ClusterVerb, PlanApplyArguments, note_old_spelling, note_plan_apply};
use crate::exit::Exit;
use crate::terminal::Terminal;
use crate::{aggregation, deploy, deployment, elastic, health};

/// Executes a verb.
pub(crate) fn verb(verb: &ClusterVerb, terminal: &Terminal) -> anyhow::Result<Exit> {
    note_old_spelling(verb, terminal);
    match verb {
        ClusterVerb::Controller(arguments) => serving::controller(arguments, terminal),
        ClusterVerb::Worker(arguments) => serving::worker(arguments, terminal),
        ClusterVerb::TaskProcess => serving::task(),
        ClusterVerb::Login(arguments) => connect::login(arguments, terminal),
        ClusterVerb::Token(arguments) => asking::token(arguments, terminal),
        ClusterVerb::Submit(arguments) => submitting::submit(arguments, terminal),
        ClusterVerb::List(arguments) => asking::list(arguments),
        ClusterVerb::Replan(arguments) => plans::replan(arguments, terminal),
        ClusterVerb::Status(arguments) => asking::status(arguments),
        ClusterVerb::Logs(arguments) => logs::logs(arguments),
        ClusterVerb::Cancel(arguments) => removing::cancel(arguments, terminal),
        ClusterVerb::Change(arguments) => changing::change(arguments, terminal),
        ClusterVerb::Results(arguments) => results::results(arguments, terminal),
        ClusterVerb::Remove(arguments) => removing::remove(arguments, terminal),
        ClusterVerb::Revoke(arguments) => people::revoke(arguments, terminal),
        ClusterVerb::People(arguments) => people::people(arguments, terminal),
        ClusterVerb::Workers(arguments) => asking::workers(arguments, terminal),
        ClusterVerb::Drain(arguments) => asking::drain(arguments, terminal),
        ClusterVerb::Undrain(arguments) => asking::undrain(arguments, terminal),
        ClusterVerb::Net { verb } => net::net(verb, terminal),
        ClusterVerb::Events(arguments) => asking::events(arguments),
        ClusterVerb::Agg { verb } => aggregation::agg(verb, terminal),
        ClusterVerb::Elastic { verb } => elastic::elastic(verb, terminal),
        ClusterVerb::Top(arguments) => top::top(arguments, terminal),
        ClusterVerb::Deploy(arguments) => deploy::deploy(arguments, terminal),
        ClusterVerb::Health(arguments) => health::health(arguments),
        ClusterVerb::Up(arguments) => deployment::up(arguments, terminal),
        ClusterVerb::Down(arguments) => deployment::down(arguments, terminal),
        ClusterVerb::Ps(arguments) => deployment::ps(arguments, terminal),
        ClusterVerb::Deployment { verb } => deployment::deployment(verb, terminal),
    }
}

/// `tidemill plan apply`, an old spelling of `tidemill change`.
pub(crate) fn apply(arguments: &PlanApplyArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    note_plan_apply(terminal);
    plans::replan(&arguments.as_replan(), terminal)
}
