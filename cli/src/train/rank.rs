//! One rank of a training: in a task of a job, or as a child of `tidemill train`.
use super::aggregation;
use super::event::{Agreement, Event, survival};
use super::preparation::{Prepared, folder_of};
use super::report::{Past, Report};
use crate::answer;
use crate::arguments::{OutputForm, TrainArguments};
use crate::exit::Exit;
use crate::interrupt::Interrupt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::figures::grouped;
use tidemill_collective::client::{Group, JoinOptions};
use tidemill_engine::clock::{Clock, WallClock};
use tidemill_training::course::{Course, Ending, News, PATIENCE};
use tidemill_training::{Alone, Error, Member, Parts, Ranks};

/// The file with the state, in the folder for checkpoints.
const STATE: &str = "training";
/// The file that makes the files beside it a checkpoint. It has the share of the work that is done.
const READY: &str = "READY";
/// The file that says that the work is not done.
const RESUME: &str = "RESUME";
/// Time in which all ranks must have joined. One that was started again waits until the others let it take part.
const JOINING: Duration = Duration::from_secs(600);
/// Time between two events about steps.
const STEP_EVERY: f64 = 0.25;
/// The same where people read them.
const LINE_EVERY: f64 = 5.0;

/// The place of a rank among the others, as its environment says.
pub(super) struct Place {
    pub(super) group: JoinOptions,
    checkpoint: Option<PathBuf>,
    /// It was started again: the others wait for it at aggregators.
    pub(super) is_again: bool,
}

impl Place {
    /// Reads it; none: this process is no rank.
    pub(super) fn of_environment() -> anyhow::Result<Option<Self>> {
        let given = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        if given("TIDEMILL_RANK").is_none() {
            return Ok(None);
        }
        let group = JoinOptions::of_environment().map_err(|error| {
            Failure::new(Kind::Usage, error.to_string())
                .with_help("start `tidemill train` without TIDEMILL_RANK: it starts the ranks itself")
        })?;
        let group = JoinOptions { deadline: JOINING, ..group };
        let checkpoint = given("TIDEMILL_CHECKPOINT").map(PathBuf::from);
        Ok(Some(Self { group, checkpoint, is_again: given(aggregation::AGAIN).is_some() }))
    }
}

/// Is a rank until the end of the training.
pub(super) fn rank(arguments: &TrainArguments, prepared: &Prepared, place: &Place) -> anyhow::Result<Exit> {
    let interrupt = Interrupt::listen()?;
    let mut member = prepared.member(&folder_of(&arguments.file))?;
    if place.group.size == 1 || place.is_again {
        interrupt.is_watched();
        return trained(arguments, prepared, place, &mut member, &mut Alone, &interrupt);
    }
    let group =
        Group::join(&place.group).map_err(|error| Failure::new(Kind::Unavailable, error.to_string()))?;
    interrupt.is_watched();
    trained(arguments, prepared, place, &mut member, &mut Ranks::new(group), &interrupt)
}

/// Notes of a rank about the course.
struct Notes<'a> {
    prepared: &'a Prepared,
    place: &'a Place,
    form: OutputForm,
    clock: WallClock,
    /// Loss and number of the steps since the last event, and its time.
    loss: (f64, u64, f64),
    /// Steps of this start, and of all.
    steps: u64,
    step: u64,
    survival: Vec<f64>,
    /// Ranks that have agreed last.
    members: Vec<u32>,
    /// Time of a loss after which they have not agreed yet.
    lost_at: Option<f64>,
    /// The first error of standard output or of the folder for checkpoints.
    failure: Option<io::Error>,
}

impl Notes<'_> {
    fn now(&self) -> f64 {
        self.clock.now() as f64 / 1e9
    }

    fn say(&mut self, event: &Event) {
        let mut out = answer::out();
        let said = match self.form {
            OutputForm::Json => event.write_json(&mut out),
            OutputForm::Table => match event.words() {
                Some(words) => writeln!(out, "{words}").and_then(|()| out.flush()),
                None => Ok(()),
            },
        };
        if let Err(error) = said {
            self.failure.get_or_insert(error);
        }
    }

    /// Returns where the training is, for people who look at a job.
    fn words(&self, step: u64) -> String {
        let mut words = format!("step {} of {}", grouped(step), grouped(self.prepared.steps));
        if !self.survival.is_empty() {
            words += &format!("; {}", survival(&self.survival));
        }
        words
    }

    fn take(&mut self, news: &News, is_first: bool) {
        match news {
            News::Regrouped(regrouped) => {
                self.step = regrouped.step;
                let lost = (self.place.group.size as usize).saturating_sub(regrouped.members.len());
                self.survival = regrouped.survival(self.prepared.replicas.survive.saturating_sub(lost));
                let took = self.lost_at.take().map(|at| self.now() - at);
                let agreement = Agreement::new(regrouped, &self.members, self.survival.clone(), took);
                self.members.clone_from(&regrouped.members);
                if is_first {
                    self.say(&Event::Regrouped(agreement));
                }
            }
            News::Step { step, loss } => {
                (self.steps, self.step) = (self.steps + 1, *step);
                self.loss = (self.loss.0 + loss, self.loss.1 + 1, self.loss.2);
                let every = if self.form == OutputForm::Json { STEP_EVERY } else { LINE_EVERY };
                let (now, is_last) = (self.now(), *step == self.prepared.steps);
                if !(is_last || now - self.loss.2 >= every) {
                    return;
                }
                let (sum, count, before) = self.loss;
                self.loss = (0.0, 0, now);
                if is_first {
                    let examples = count as f64 * self.prepared.options.batch as f64;
                    self.say(&Event::Step {
                        step: *step,
                        steps: self.prepared.steps,
                        loss: sum / count as f64,
                        examples_per_second: examples / (now - before).max(1e-9),
                    });
                }
            }
            News::Saving => {
                if let Some(folder) = &self.place.checkpoint
                    && let Err(error) = unready(folder)
                {
                    self.failure.get_or_insert(error);
                }
            }
            News::Saved { step } => {
                let share = *step as f64 / self.prepared.steps.max(1) as f64;
                let words = self.words(*step);
                if let Some(folder) = &self.place.checkpoint
                    && let Err(error) = ready(folder, share, &words)
                {
                    self.failure.get_or_insert(error);
                }
                if is_first {
                    self.say(&Event::Saved { step: *step });
                }
            }
            // Each rank may see it differently.
            News::Lost { why } => {
                self.members.clear();
                self.lost_at = self.lost_at.or(Some(self.now()));
                self.say(&Event::Lost { why: why.clone() });
            }
        }
    }
}

/// Says that the files of a folder are a checkpoint.
fn ready(folder: &Path, share: f64, words: &str) -> io::Result<()> {
    fs::write(folder.join(READY), format!("{share:.4}\n{words}\n"))
}

/// Says that they change.
fn unready(folder: &Path) -> io::Result<()> {
    match fs::remove_file(folder.join(READY)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn trained(
    arguments: &TrainArguments,
    prepared: &Prepared,
    place: &Place,
    member: &mut Member,
    ranks: &mut impl Parts,
    interrupt: &Interrupt,
) -> anyhow::Result<Exit> {
    if let Some(folder) = &place.checkpoint {
        let failed = |error| Failure::new(Kind::Unavailable, format!("{}: {error}", folder.display()));
        fs::create_dir_all(folder).map_err(failed)?;
    }
    let course = Course {
        steps: prepared.steps,
        checkpoint_every: prepared.spec.checkpoint_every,
        checkpoint: place.checkpoint.as_ref().map(|folder| folder.join(STATE)),
        rebalance_every: prepared.spec.rebalance_every,
        survive: prepared.replicas.survive,
        patience: PATIENCE,
    };
    let mut notes = Notes {
        prepared,
        place,
        form: arguments.output,
        clock: WallClock::default(),
        loss: (0.0, 0, 0.0),
        steps: 0,
        step: 0,
        survival: Vec::new(),
        members: Vec::new(),
        lost_at: None,
        failure: None,
    };
    let choice = aggregation::choose(prepared, place, ranks, &folder_of(&arguments.file))?;
    let joining = choice.job.clone().map(|job| aggregation::joining(prepared, place, job, &arguments.file));
    if place.group.rank == 0 && !place.is_again && choice.reason.is_some() {
        notes.say(&Event::Chosen(choice.clone()));
    }
    let wishes = || interrupt.is_wanted();
    let mut news = |news: &News, is_first| notes.take(news, is_first);
    let (ending, is_first) = match joining.transpose()? {
        Some(joining) => {
            let group = (&mut *member, &mut *ranks);
            let ending =
                aggregation::run(prepared, &course, joining, place.is_again, group, &wishes, &mut news);
            (ending, place.group.rank == 0)
        }
        None => (course.run(member, ranks, &wishes, &mut news), ranks.share().0 == 0),
    };
    let ending = ending.map_err(|error| {
        let kind = match &error {
            Error::Exchange(_) | Error::File { .. } => Kind::Unavailable,
            Error::Checkpoint { .. } => Kind::Data,
            _ => Kind::Configuration,
        };
        Failure::new(kind, error.to_string())
    })?;
    if let Some(error) = notes.failure.take() {
        return Err(Failure::new(Kind::Unavailable, error.to_string()).into());
    }
    let (is_kept, step) = (place.checkpoint.is_some(), notes.step);
    match ending {
        Ending::Done { parameters } => {
            if is_first {
                let past = Past {
                    lost_ranks: (ranks.size() as usize).saturating_sub(ranks.members().len()),
                    aggregation: choice,
                    survival: notes.survival.clone(),
                    seconds: notes.now(),
                    steps: notes.steps,
                };
                let before = prepared.initial(&folder_of(&arguments.file))?;
                let mut report = Report::of(prepared, &parameters, before.as_deref(), past);
                let out = arguments.out.clone().unwrap_or_else(|| PathBuf::from("."));
                report.write(prepared, &parameters, &out, &arguments.file)?;
                notes.say(&Event::Done(Box::new(report)));
            }
            return Ok(Exit::Success);
        }
        Ending::Asked if is_first => notes.say(&Event::Asked { step, is_kept }),
        Ending::TooFew { lost } if is_first => notes.say(&Event::TooFew { lost, step, is_kept }),
        Ending::Apart { why } => notes.say(&Event::Apart { why }),
        Ending::Asked | Ending::TooFew { .. } => {}
    }
    // The work is not done: a job continues later from the checkpoint.
    let Some(folder) = &place.checkpoint else { return Ok(Exit::Interrupted) };
    fs::write(folder.join(RESUME), "")
        .map_err(|error| Failure::new(Kind::Unavailable, format!("{}: {error}", folder.display())))?;
    Ok(Exit::Success)
}
