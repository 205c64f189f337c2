//! A discrete-event simulator of the queue: jobs of a trace under a policy, in virtual time. Preemptions cost what they cost in a cluster:
//! a job holds its machines while it writes its checkpoint, and again, without computing, while it resumes.
use crate::account::Account;
use crate::{
    Action, Cause, Decision, Event, History, Job, Machine, Queue, QueueError, Resources, Service, Settings,
    SettingsError, Time,
};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Events between two reports of the progress.
const REPORT_EVERY: u64 = 256;
/// Wakes without a decision after which a simulation that has no other event cannot end.
const IDLE_WAKES: u32 = 100_000;

/// A job of a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct TracedJob {
    /// The job. Its duration is what policies know; see [`TracedJob::work`].
    pub job: Job,
    /// Running time without interruptions.
    pub work: Time,
    /// Time to write a checkpoint when it is preempted.
    pub checkpoint: Time,
    /// Time to load it when it starts again.
    pub resume: Time,
}

/// A change of a machine's capacity during a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Time of the change.
    pub at: Time,
    /// Name of the machine.
    pub machine: String,
    /// Resources for jobs from then on.
    pub capacity: Resources,
    /// Time within which jobs above that must have left.
    pub within: Time,
}

/// Everything that decides a simulation.
#[derive(Debug, Clone)]
pub struct Input {
    /// The jobs.
    pub jobs: Vec<TracedJob>,
    /// The machines.
    pub machines: Vec<Machine>,
    /// Changes of machines, in any order.
    pub changes: Vec<Change>,
    /// Policy and its settings.
    pub settings: Settings,
    /// Services of past jobs.
    pub history: History,
}

impl Input {
    /// Creates an input without changes. The history is the services of the jobs themselves: the best that a policy could know.
    pub fn new(jobs: Vec<TracedJob>, machines: Vec<Machine>, settings: Settings) -> Self {
        let weight = |job: &Job| settings.rates.weight(&job.demand, job.tasks);
        let history = History::of(jobs.iter().map(|traced| Service::of(weight(&traced.job), traced.work)));
        Self { jobs, machines, changes: Vec::new(), settings, history }
    }
}

/// A job after a simulation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SimulatedJob {
    /// Id of the job.
    pub job: String,
    /// Time of the submission.
    pub submitted: Time,
    /// Time of the first start.
    pub first_start: Option<Time>,
    /// Time of the completion; none: the simulation was interrupted before.
    pub ended: Option<Time>,
    /// Waiting without machines.
    pub waited: Time,
    /// Held machines without computing.
    pub overhead: Time,
    /// Service that it got.
    pub service: Service,
    /// Number of times that it was preempted.
    pub preemptions: u32,
    /// Number of times that it was promoted.
    pub promotions: u32,
}

/// Result of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Name of the policy.
    pub policy: String,
    /// The jobs in the order of the input.
    pub jobs: Vec<SimulatedJob>,
    /// Thousandths of a slot of all machines at the start.
    pub capacity: u64,
    /// Number of events.
    pub events: u64,
    /// Whether the caller interrupted it.
    pub is_interrupted: bool,
}

/// How far a simulation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Virtual time.
    pub now: Time,
    /// Jobs that completed.
    pub completed: usize,
    /// All jobs.
    pub jobs: usize,
    /// Events until now.
    pub events: u64,
}

/// A simulation that cannot be carried out.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SimulationError {
    /// A wrong setting.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The trace has a job twice, or a job without tasks.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// A gang that all machines together cannot hold.
    #[error("the job `{job}` needs {tasks} tasks of {demand} at once; the machines hold {most}")]
    TooWide {
        /// Id of the job.
        job: String,
        /// Its tasks.
        tasks: u32,
        /// Demand of each.
        demand: String,
        /// Tasks that fit.
        most: u64,
    },
    /// Machines that left do not return, and a job waits for them.
    #[error("the job `{0}` waits for ever: the changes of the machines leave too little")]
    Stuck(String),
}

/// Something that will happen. Ends come before submissions of the same moment, so that machines are free for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    End { job: usize, start: u32 },
    Released { job: usize },
    Started { job: usize, start: u32 },
    Change { change: usize },
    Submission { job: usize },
}

/// Facts about a job that the queue does not have.
#[derive(Debug, Clone, Copy)]
struct Course {
    /// Work that is left.
    left: Time,
    /// Start of the present computation.
    since: Option<Time>,
    starts: u32,
    ended: Option<Time>,
}

/// Simulates all jobs until they are complete. `watch` gets the progress now and then and returns false to interrupt.
///
/// # Errors
/// Wrong settings, a wrong trace, or a job that can never start.
pub fn simulate(input: &Input, watch: &mut dyn FnMut(Progress) -> bool) -> Result<Outcome, SimulationError> {
    Simulation::new(input)?.run(watch)
}

struct Simulation<'a> {
    input: &'a Input,
    queue: Queue,
    indices: BTreeMap<&'a str, usize>,
    happenings: BinaryHeap<Reverse<(Time, Happening)>>,
    courses: Vec<Course>,
    /// Accounts of complete jobs, which the queue drops.
    closed: Vec<Option<Account>>,
    events: u64,
    completed: usize,
}

impl<'a> Simulation<'a> {
    fn new(input: &'a Input) -> Result<Self, SimulationError> {
        let queue = Queue::with_history(
            input.settings.clone(),
            input.machines.iter().cloned(),
            input.history.clone(),
        )?;
        let mut indices = BTreeMap::new();
        let mut happenings = BinaryHeap::new();
        for (index, traced) in input.jobs.iter().enumerate() {
            let job = &traced.job;
            if indices.insert(job.id.as_str(), index).is_some() {
                return Err(QueueError::Duplicate(job.id.clone()).into());
            }
            let most = input
                .machines
                .iter()
                .fold(0u64, |sum, one| sum.saturating_add(one.capacity.tasks(&job.demand)));
            if most < u64::from(job.tasks) {
                let (job, tasks, demand) = (job.id.clone(), job.tasks, job.demand.to_string());
                return Err(SimulationError::TooWide { job, tasks, demand, most });
            }
            happenings.push(Reverse((job.submitted, Happening::Submission { job: index })));
        }
        let changes = input.changes.iter().enumerate();
        happenings
            .extend(changes.map(|(index, change)| Reverse((change.at, Happening::Change { change: index }))));
        let course = |traced: &TracedJob| Course { left: traced.work, since: None, starts: 0, ended: None };
        let courses = input.jobs.iter().map(course).collect();
        let closed = vec![None; input.jobs.len()];
        Ok(Self { input, queue, indices, happenings, courses, closed, events: 0, completed: 0 })
    }

    fn run(mut self, watch: &mut dyn FnMut(Progress) -> bool) -> Result<Outcome, SimulationError> {
        let mut is_interrupted = false;
        let mut idle = 0;
        let mut reported = 0;
        while self.completed < self.input.jobs.len() {
            let next = self.happenings.peek().map(|Reverse((time, _))| *time);
            let wake = self.queue.next_wake();
            let Some(now) = [next, wake].into_iter().flatten().min() else {
                return Err(self.stuck());
            };
            idle = if next.is_some() { 0 } else { idle + 1 };
            if idle > IDLE_WAKES {
                return Err(self.stuck());
            }
            let decisions = self.step(now)?;
            self.carry_out(now, decisions);
            if self.events / REPORT_EVERY > reported {
                reported = self.events / REPORT_EVERY;
                let (completed, jobs, events) = (self.completed, self.input.jobs.len(), self.events);
                if !watch(Progress { now, completed, jobs, events }) {
                    is_interrupted = true;
                    break;
                }
            }
        }
        Ok(self.outcome(is_interrupted))
    }

    fn stuck(&self) -> SimulationError {
        let waiting = self.queue.accounts().next().map(|account| account.job.id.clone());
        SimulationError::Stuck(waiting.unwrap_or_default())
    }

    /// Reports all that happens at this moment to the queue.
    fn step(&mut self, now: Time) -> Result<Vec<Decision>, QueueError> {
        let mut events = Vec::new();
        while let Some(Reverse((time, happening))) = self.happenings.peek().copied() {
            if time > now {
                break;
            }
            self.happenings.pop();
            events.extend(self.event(now, happening));
        }
        if events.is_empty() {
            events.push(Event::Tick);
        }
        self.events += events.len() as u64;
        self.queue.apply_all(now, events)
    }

    /// Returns the event; none: a preemption came before it.
    fn event(&mut self, now: Time, happening: Happening) -> Option<Event> {
        let id = |job: usize| self.input.jobs[job].job.id.clone();
        match happening {
            Happening::Submission { job } => Some(Event::Submitted { job: self.input.jobs[job].job.clone() }),
            Happening::Released { job } => Some(Event::Released { job: id(job), is_kept: true }),
            Happening::Change { change } => {
                let Change { machine, capacity, within, .. } = self.input.changes[change].clone();
                Some(Event::Capacity { machine, capacity, within, cause: Cause::Streams })
            }
            Happening::Started { job, start } => {
                let course = &mut self.courses[job];
                if course.starts != start {
                    return None;
                }
                course.since = Some(now);
                let end = now + course.left;
                self.happenings.push(Reverse((end, Happening::End { job, start })));
                Some(Event::Started { job: id(job) })
            }
            Happening::End { job, start } => {
                let course = &mut self.courses[job];
                if course.starts != start || course.since.is_none() {
                    return None;
                }
                course.left = Time::ZERO;
                course.ended = Some(now);
                self.completed += 1;
                let id = id(job);
                let mut account = self.queue.account(&id).cloned();
                if let Some(account) = &mut account {
                    account.count(now);
                }
                self.closed[job] = account;
                Some(Event::Ended { job: id })
            }
        }
    }

    fn carry_out(&mut self, now: Time, decisions: Vec<Decision>) {
        for decision in decisions {
            let Some(job) = self.indices.get(decision.job.as_str()).copied() else { continue };
            let traced = &self.input.jobs[job];
            let course = &mut self.courses[job];
            match decision.action {
                Action::Start { is_resumed, .. } => {
                    course.starts += 1;
                    let cost = if is_resumed { traced.resume } else { Time::ZERO };
                    let start = course.starts;
                    self.happenings.push(Reverse((now + cost, Happening::Started { job, start })));
                }
                Action::Preempt { .. } => {
                    // One that is still starting has nothing new to keep; only capacity that is taken back stops such a job.
                    let ran = course.since.take().map(|since| now - since);
                    course.left = course.left - ran.unwrap_or_default();
                    course.starts += 1;
                    let cost = if ran.is_some() { traced.checkpoint } else { Time::ZERO };
                    self.happenings.push(Reverse((now + cost, Happening::Released { job })));
                }
            }
        }
    }

    fn outcome(self, is_interrupted: bool) -> Outcome {
        let simulated = |(index, traced): (usize, &TracedJob)| {
            let course = &self.courses[index];
            let account = self.closed[index].as_ref().or_else(|| self.queue.account(&traced.job.id));
            SimulatedJob {
                job: traced.job.id.clone(),
                submitted: traced.job.submitted,
                first_start: account.and_then(|account| account.first_start),
                ended: course.ended,
                waited: account.map(|account| account.waited).unwrap_or_default(),
                overhead: account.map(|account| account.overhead).unwrap_or_default(),
                service: account.map(|account| account.service).unwrap_or_default(),
                preemptions: account.map_or(0, |account| account.preemptions),
                promotions: account.map_or(0, |account| account.promotions),
            }
        };
        let rates = &self.input.settings.rates;
        Outcome {
            policy: self.input.settings.policy.clone(),
            jobs: self.input.jobs.iter().enumerate().map(simulated).collect(),
            capacity: self.input.machines.iter().map(|machine| rates.weight(&machine.capacity, 1)).sum(),
            events: self.events,
            is_interrupted,
        }
    }
}
