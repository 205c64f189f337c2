//! Aggregators that add up the gradients of a training: the choice, and the steps.
use super::preparation::{Prepared, folder_of};
use super::rank::Place;
use crate::aggregation::ADDED;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidemill_aggregation::comparison::{Exchange, Means};
use tidemill_aggregation_service::client::{ClientError, Joining};
use tidemill_aggregation_service::master::{Question, ask};
use tidemill_aggregation_service::trained::{NUMBERS_OF_TENSOR, Trained, specs};
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::{duration, milliseconds};
use tidemill_net::usual_socket;
use tidemill_spec::job::aggregation::By;
use tidemill_spec::units::Bandwidth;
use tidemill_training::course::{Course, Ending, News};
use tidemill_training::exchange::ExchangeError;
use tidemill_training::{Error, Member, Origin, Parts, Regrouped};

/// Variable with the socket of the aggregators, where the ranks of one machine have another one for their group.
pub(super) const SOCKET: &str = "TIDEMILL_AGGREGATION_NET";
/// Variable at a rank that was started again: it takes part where the others wait, without their group.
pub(super) const AGAIN: &str = "TIDEMILL_RANK_AGAIN";
/// Time in which a lost aggregator has to be replaced.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a gradient's number.
const BYTES: usize = 8;

/// Who adds up the gradients, and why.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Choice {
    /// The job at the aggregators; none: the ranks add up the gradients themselves.
    pub(super) job: Option<String>,
    /// The comparison; none: there was no choice.
    pub(super) reason: Option<String>,
}

impl Choice {
    /// Returns it in words; none: there was no choice.
    pub(super) fn words(&self) -> Option<String> {
        let reason = self.reason.as_ref()?;
        Some(match &self.job {
            Some(job) => format!("aggregators add up the gradients, as job {job}: {reason}"),
            None => format!("the ranks add up the gradients: {reason}"),
        })
    }
}

/// The socket of the transport service of the aggregators.
pub(super) fn socket() -> PathBuf {
    let given = std::env::var_os(SOCKET).filter(|path| !path.is_empty());
    given.map_or_else(usual_socket, PathBuf::from)
}

/// Checks that the aggregators of this machine are reached, if the training needs them.
pub(super) fn check(prepared: &Prepared) -> Result<(), Failure> {
    let own = &prepared.spec.aggregation;
    if own.by != By::Shared || own.at.is_some() {
        return Ok(());
    }
    let asked = ask(&socket(), Question::Report { job: None });
    asked.map(drop).map_err(|status| {
        Failure::new(Kind::Unavailable, format!("no aggregators are reached: {}", status.message))
            .at(own.span.clone())
            .with_help("start them by `tidemill agg serve`, or write `aggregation: auto`")
    })
}

/// Chooses, with all ranks: the first one compares.
pub(super) fn choose(
    prepared: &Prepared,
    place: &Place,
    ranks: &mut impl Parts,
    folder: &Path,
) -> anyhow::Result<Choice> {
    let by = prepared.spec.aggregation.by;
    if by == By::Ranks {
        return Ok(Choice::default());
    }
    let compared = (place.group.rank == 0).then(|| compare(prepared));
    let mut shares = [i64::from(compared.as_ref().is_some_and(|(is_quicker, _)| *is_quicker))];
    // A rank that comes again comes to aggregators.
    let is_shared = by == By::Shared || place.is_again || {
        ranks.sum(&mut shares).map_err(|error| Failure::new(Kind::Unavailable, error.to_string()))?;
        shares[0] > 0
    };
    let job = if is_shared { Some(name(prepared, folder)?) } else { None };
    Ok(Choice { job, reason: compared.map(|(_, reason)| reason) })
}

/// Whether aggregators are expected to be quicker than an all-reduce, and why.
fn compare(prepared: &Prepared) -> (bool, String) {
    let own = &prepared.spec.aggregation;
    let aggregators = match &own.at {
        Some(_) => 1,
        None => match ask(&socket(), Question::Report { job: None }) {
            Ok(report) => report.aggregators.len().max(1),
            Err(status) => return (false, format!("no aggregators are reached ({})", status.message)),
        },
    };
    let parameters = prepared.model.parameters();
    let (bytes, workers) = ((BYTES * parameters) as f64, f64::from(prepared.ranks));
    let exchange = Exchange {
        bytes,
        tensors: u32::try_from(specs(parameters, &prepared.options, NUMBERS_OF_TENSOR).len())
            .unwrap_or(u32::MAX),
        workers: prepared.ranks,
        worker_rate: own.rate(),
        aggregators: u32::try_from(aggregators).unwrap_or(u32::MAX),
        aggregator_rate: own.rate(),
        work: Duration::from_secs_f64(bytes * workers / ADDED),
        latency: own.latency(),
    };
    let shown = |time: Duration| milliseconds(time.as_secs_f64() * 1e3);
    let is_quicker = exchange.quicker() == Means::Aggregators;
    let advice = match own.by == By::Shared && !is_quicker {
        true => "; `aggregation: auto` chooses the all-reduce",
        false => "",
    };
    let text = format!(
        "{} for the exchange of each step by aggregators and {} by an all-reduce, with links of {} and {}: {}{advice}",
        shown(exchange.aggregation()),
        shown(exchange.all_reduce()),
        Bandwidth((8.0 * own.rate()) as u64),
        duration(own.latency().as_nanos() as f64),
        exchange.reason()
    );
    (is_quicker, text)
}

/// The name of the job at the aggregators: another one for each dataset, beginning and choice of options, because a job that was left there
/// continues.
fn name(prepared: &Prepared, folder: &Path) -> anyhow::Result<String> {
    let options = &prepared.options;
    let mut facts = prepared.initial(folder)?.unwrap_or_else(|| prepared.model.initial(options.seed));
    facts.extend([options.batch as f64, options.rate, options.momentum, options.seed as f64]);
    facts.extend(&prepared.examples.values);
    facts.extend(prepared.examples.labels.iter().map(|label| *label as f64));
    let of_queue = std::env::var("TIDEMILL_JOB").ok().filter(|name| !name.is_empty());
    let job = of_queue.unwrap_or_else(|| prepared.name.clone());
    Ok(format!("{job}-{}", tidemill_training::digest(&facts)))
}

/// Returns the worker that this rank is.
pub(super) fn joining(
    prepared: &Prepared,
    place: &Place,
    job: String,
    file: &Path,
) -> Result<Joining, Failure> {
    let own = &prepared.spec.aggregation;
    let token = own.token.as_ref().map(|token| token.reveal(&folder_of(file))).transpose();
    let token =
        token.map_err(|error| Failure::new(Kind::Configuration, error.to_string()).at(own.span.clone()))?;
    Ok(Joining {
        socket: socket(),
        at: own.at.as_ref().map(|at| at.value.clone()),
        job,
        token: token.unwrap_or_default(),
        worker: place.group.rank,
        workers: place.group.size,
        spread: 1,
        specs: Vec::new(),
        patience: PATIENCE,
    })
}

fn other(error: ClientError) -> Error {
    Error::Exchange(ExchangeError::Other(std::io::Error::other(error)))
}

/// Trains until the end, as [`Course::run`] does, with steps through aggregators. A new job begins with the state on which the ranks agree.
pub(super) fn run(
    prepared: &Prepared,
    course: &Course,
    joining: Joining,
    is_again: bool,
    (member, ranks): (&mut Member, &mut impl Parts),
    wishes: &dyn Fn() -> bool,
    news: &mut dyn FnMut(&News, bool),
) -> Result<Ending, Error> {
    let is_first = joining.worker == 0;
    let mut regrouped = match is_again {
        false => member.regroup(ranks, course.checkpoint.as_deref())?,
        true => Regrouped {
            members: (0..joining.workers).collect(),
            step: 0,
            origin: Origin::Ranks,
            lost: Vec::new(),
            moved: 0,
            odds: Vec::new(),
            experts: vec![Vec::new(); joining.workers as usize],
        },
    };
    let mut trainer = member.trainer()?;
    let joined = Trained::join(&mut trainer, &prepared.options, joining, NUMBERS_OF_TENSOR);
    let mut service = joined.map_err(other)?;
    if trainer.steps() != regrouped.step {
        (regrouped.step, regrouped.origin) = (trainer.steps(), Origin::Ranks);
    }
    let begun = regrouped.step;
    news(&News::Regrouped(regrouped), is_first);
    loop {
        let step = trainer.steps();
        let is_done = step >= course.steps;
        let every = course.checkpoint_every;
        let is_due = every > 0 && step > begun && step.is_multiple_of(every);
        if !is_done
            && (is_due || service.ends())
            && let Some(path) = &course.checkpoint
        {
            service.settle(&mut trainer).map_err(other)?;
            news(&News::Saving, is_first);
            trainer.save(path)?;
            news(&News::Saved { step }, is_first);
        }
        if is_done || service.ends() {
            service.leave().map_err(other)?;
            let parameters = trainer.parameters().to_vec();
            return Ok(if is_done { Ending::Done { parameters } } else { Ending::Asked });
        }
        if wishes() {
            service.wish();
        }
        match trainer.step_through(&mut service) {
            Ok(loss) => news(&News::Step { step: trainer.steps(), loss }, is_first),
            Err(error) => {
                // Other errors leave the job where it is: it continues when its ranks come again.
                if matches!(error, Error::Diverged { .. }) {
                    service.leave().map_err(other)?;
                }
                return Err(error);
            }
        }
    }
}
