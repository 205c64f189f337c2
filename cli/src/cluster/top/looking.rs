//! Where figures come from: a controller, or metrics.
use super::scrape::Scrapes;
use crate::arguments::TopArguments;
use crate::cluster::connect;
use serde_json::{Value, json};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use tidemill_app::failure::Failure;
use tidemill_app::run_figures::RunFigures;
use tidemill_cluster::api::RunView;
use tidemill_cluster::client::{Client, ClientError, segment};

/// Result of a look.
pub(super) enum Seen {
    /// A run.
    Run(Box<RunFigures>),
    /// The runs of a cluster.
    Runs(Vec<RunView>),
    /// Nothing, for a reason.
    Trouble(Failure),
}

impl Seen {
    /// A run that has just started: it has no rates yet.
    pub(super) fn lacks_rates(&self) -> bool {
        matches!(self, Self::Run(run) if run.taken.is_some() && run.window_seconds == 0.0 && !run.state.is_over())
    }

    /// For programs.
    pub(super) fn document(&self) -> Value {
        match self {
            Self::Run(figures) => json!({"version": 1, "ok": true, "figures": figures}),
            Self::Runs(runs) => json!({"version": 1, "ok": true, "runs": runs}),
            Self::Trouble(failure) => json!({"version": 1, "ok": false, "error": failure.to_string()}),
        }
    }
}

#[derive(Default)]
struct Chosen {
    run: Option<String>,
    /// Also with a single active run.
    shows_all: bool,
    changes: u64,
}

/// Which run is looked at, which a key changes.
#[derive(Clone)]
pub(super) struct Choice(Arc<(Mutex<Chosen>, Condvar)>);

impl Choice {
    pub(super) fn new(run: Option<String>) -> Self {
        Self(Arc::new((Mutex::new(Chosen { run, ..Chosen::default() }), Condvar::new())))
    }

    fn change(&self, change: impl FnOnce(&mut Chosen)) {
        let mut chosen = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut chosen);
        chosen.changes += 1;
        self.0.1.notify_all();
    }

    pub(super) fn set(&self, run: Option<String>) {
        self.change(|chosen| chosen.run = run);
    }

    pub(super) fn show_all(&self) {
        self.change(|chosen| (chosen.run, chosen.shows_all) = (None, true));
    }

    /// Waits, but not longer than until another run is chosen.
    pub(super) fn wait(&self, most: Duration) {
        let chosen = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = chosen.changes;
        drop(self.0.1.wait_timeout_while(chosen, most, |chosen| chosen.changes == before));
    }

    fn get(&self) -> (Option<String>, bool) {
        let chosen = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        (chosen.run.clone(), chosen.shows_all)
    }
}

/// The source of the figures.
pub(super) enum Place {
    Controller(Box<Client>),
    Metrics(Scrapes),
}

impl Place {
    /// Returns the target of the arguments.
    ///
    /// # Errors
    /// It is not known which controller is meant, or the address is none.
    pub(super) fn of(arguments: &TopArguments) -> anyhow::Result<Self> {
        Ok(match &arguments.metrics {
            Some(address) => Self::Metrics(Scrapes::of(address)?),
            None => Self::Controller(Box::new(connect::client(&arguments.of)?)),
        })
    }

    pub(super) fn look(&self, choice: &Choice) -> Seen {
        let (run, shows_all) = choice.get();
        let seen = match self {
            Self::Metrics(scrapes) => {
                scrapes.look(run.as_deref()).map(|figures| Seen::Run(Box::new(figures)))
            }
            Self::Controller(client) => of_controller(client, run, shows_all),
        };
        seen.unwrap_or_else(Seen::Trouble)
    }
}

fn of_controller(client: &Client, run: Option<String>, shows_all: bool) -> Result<Seen, Failure> {
    let told = |error: ClientError| connect::failure(&error);
    let figures = |name: &str| -> Result<Seen, Failure> {
        let figures: RunFigures = client.get(&format!("/v1/runs/{}/figures", segment(name))).map_err(told)?;
        Ok(Seen::Run(Box::new(figures)))
    };
    if let Some(name) = run {
        return figures(&name);
    }
    let runs: Vec<RunView> = client.get("/v1/runs").map_err(told)?;
    let mut going = runs.iter().filter(|run| !run.state.is_over());
    match (going.next(), going.next()) {
        (Some(only), None) if !shows_all => figures(&only.name),
        _ => Ok(Seen::Runs(runs)),
    }
}
