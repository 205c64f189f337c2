//! The verbs of clusters and deployments, in the order of manual pages.
use super::{
    AggVerb, ChangeArguments, ControllerArguments, DeployArguments, DeploymentVerb, DownArguments,
    DrainArguments, ElasticVerb, EventsArguments, HealthArguments, ListArguments, LoginArguments,
    LogsArguments, NetVerb, PeopleArguments, PsArguments, RemoveArguments, ReplanArguments, ResultsArguments,
    RevokeArguments, RunChoice, StatusArguments, SubmitArguments, TokenArguments, TopArguments,
    UndrainArguments, UpArguments, WorkerArguments, WorkersArguments,
};
use clap::Subcommand;

/// A verb of clusters and deployments.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterVerb {
    /// Run the controller of a cluster: it accepts workflows and runs them on its workers.
    Controller(Box<ControllerArguments>),
    /// Join a cluster and run stages of its workflows on this machine.
    Worker(WorkerArguments),
    /// Run a task of a job for `worker`, which starts this.
    #[command(hide = true)]
    TaskProcess,
    /// Save the address of a controller and an access token for later commands.
    Login(LoginArguments),
    /// Create a join token for a worker.
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
    /// Change the plan of a run: to the best plan now, or to a plan in a file.
    Change(ChangeArguments),
    /// Fetch the output of the sinks of a run of a cluster.
    Results(ResultsArguments),
    /// Remove an ended run of a cluster and its files.
    Remove(RemoveArguments),
    /// List the workers of a cluster.
    Workers(WorkersArguments),
    /// Move the work of a worker to other workers; it accepts no new work.
    Drain(DrainArguments),
    /// Let a drained worker accept work again.
    Undrain(UndrainArguments),
    /// Show edges that run and attach policies to them; show, drain and test the paths between machines.
    Net {
        /// The verb.
        #[command(subcommand)]
        verb: NetVerb,
    },
    /// Revoke the certificates of a worker: it leaves the cluster.
    Revoke(RevokeArguments),
    /// List, add and remove the people of a cluster and their access tokens.
    People(PeopleArguments),
    /// Print the events of a cluster.
    Events(EventsArguments),
    /// Serve aggregators, which add up the gradients of training jobs; list jobs, move tensors.
    Agg {
        /// The verb.
        #[command(subcommand)]
        verb: AggVerb,
    },
    /// Adapt the limits of containers on this machine to their load.
    Elastic {
        /// The verb.
        #[command(subcommand)]
        verb: ElasticVerb,
    },
    /// Watch a run: rates, times, drops, levels, and the bottleneck.
    Top(TopArguments),
    /// Write the files that deploy a plan, for Compose, Kubernetes or systemd.
    Deploy(DeployArguments),
    /// Check that a controller, an agent or a device works, for health checks of containers.
    Health(HealthArguments),
    /// Start a deployment that `tidemill deploy` wrote, and submit its plan.
    Up(UpArguments),
    /// Remove a deployment: containers, networks, volumes, secrets.
    Down(DownArguments),
    /// Show the state of a deployment's containers and runs.
    Ps(PsArguments),
    /// Print the logs of a deployment's containers, or upgrade them.
    Deployment {
        /// The verb.
        #[command(subcommand)]
        verb: DeploymentVerb,
    },
}
