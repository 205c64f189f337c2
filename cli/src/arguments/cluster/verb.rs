//! The verbs of clusters and deployments, in the order of manual pages.
use super::{
    ChangeArguments, ControllerArguments, DeployArguments, DeploymentVerb, DownArguments, DrainArguments,
    ElasticVerb, EventsArguments, HealthArguments, ListArguments, LoginArguments, LogsArguments,
    PeopleArguments, PsArguments, RemoveArguments, ReplanArguments, ResultsArguments, RevokeArguments,
    RunChoice, StatusArguments, SubmitArguments, TokenArguments, TopArguments, UndrainArguments, UpArguments,
    WorkerArguments, WorkersArguments,
};
use clap::Subcommand;

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterVerb {
    /// Run the controller of a cluster: it takes workflows and runs them on its workers.
    Controller(Box<ControllerArguments>),
    /// Join a cluster and run stages of its workflows on this machine.
    Worker(WorkerArguments),
    /// Keep the address of a controller and an access token for the verbs that ask it.
    Login(LoginArguments),
    /// Make a token with which a worker joins.
    Token(TokenArguments),
    /// Send a workflow to a cluster and start a run.
    Submit(SubmitArguments),
    /// List the runs of a cluster.
    List(ListArguments),
    /// Find a better plan for a run: the old spelling of `change`.
    #[command(hide = true)]
    Replan(ReplanArguments),
    /// Show the state of a run of a cluster.
    Status(StatusArguments),
    /// Print the log of a run's processes and of the controller.
    Logs(LogsArguments),
    /// End a run of a cluster.
    #[command(alias = "stop")]
    Cancel(RunChoice),
    /// Change the plan of a run: to the best plan now, or to one that you name.
    Change(ChangeArguments),
    /// Fetch what the sinks of a run of a cluster wrote.
    Results(ResultsArguments),
    /// Remove a run of a cluster that has ended, with its files.
    Remove(RemoveArguments),
    /// List the workers of a cluster.
    Workers(WorkersArguments),
    /// Move the work of a worker to others; it takes no new work.
    Drain(DrainArguments),
    /// Let a drained worker take work again.
    Undrain(UndrainArguments),
    /// Revoke a worker's certificates: it leaves the cluster.
    Revoke(RevokeArguments),
    /// List, add and remove the people of a cluster and their access tokens.
    People(PeopleArguments),
    /// Print what happened in a cluster.
    Events(EventsArguments),
    /// Adapt the limits of containers on this machine to their load.
    Elastic {
        /// What to do.
        #[command(subcommand)]
        verb: ElasticVerb,
    },
    /// Watch a run: rates, times, drops, levels, and the bottleneck.
    Top(TopArguments),
    /// Write the files that deploy a plan, for Compose, Kubernetes or systemd.
    Deploy(DeployArguments),
    /// Check that a controller or an agent works, for health checks.
    Health(HealthArguments),
    /// Start a deployment that `tidemill deploy` wrote, and submit its plan.
    Up(UpArguments),
    /// Remove a deployment: containers, networks, volumes, secrets.
    Down(DownArguments),
    /// Show the state of a deployment's containers and runs.
    Ps(PsArguments),
    /// Print the logs of a deployment's containers, or upgrade them.
    Deployment {
        /// What to do.
        #[command(subcommand)]
        verb: DeploymentVerb,
    },
}
