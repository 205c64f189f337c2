//! `tidemill job`: work that ends, in the queue of a cluster.
#[cfg(feature = "cluster")]
mod fetch;
#[cfg(feature = "cluster")]
mod naming;
#[cfg(feature = "cluster")]
mod queue;
#[cfg(feature = "cluster")]
mod remove;
mod simulate;
#[cfg(feature = "cluster")]
mod submit;

use crate::arguments::JobVerb;
use crate::exit::Exit;
use crate::terminal::Terminal;

/// Executes a verb.
pub(crate) fn job(verb: &JobVerb, terminal: &Terminal) -> anyhow::Result<Exit> {
    match verb {
        #[cfg(feature = "cluster")]
        JobVerb::Submit(arguments) => submit::submit(arguments, terminal),
        #[cfg(feature = "cluster")]
        JobVerb::Queue(arguments) => queue::list(arguments),
        #[cfg(feature = "cluster")]
        JobVerb::Status(arguments) => queue::status(arguments),
        #[cfg(feature = "cluster")]
        JobVerb::Logs(arguments) => queue::logs(arguments),
        #[cfg(feature = "cluster")]
        JobVerb::Cancel(arguments) => queue::cancel(arguments, terminal),
        #[cfg(feature = "cluster")]
        JobVerb::Remove(arguments) => remove::remove(arguments, terminal),
        #[cfg(feature = "cluster")]
        JobVerb::Explain(arguments) => queue::explain(arguments),
        #[cfg(feature = "cluster")]
        JobVerb::Fetch(arguments) => fetch::fetch(arguments, terminal),
        JobVerb::Simulate(arguments) => simulate::simulate(arguments, terminal),
    }
}
