//! The course of a job: what its tasks report, and what becomes of it. Functions of its facts, without clock and network.
//!
//! A task belongs to one start, with a number. Each start is stored before a worker gets it, and a new one begins only when the worker of the
//! one before has said that the task has ended, its agent was started again, or its lease has ended: no task runs twice at once.
use crate::api::{Checkpoint, JobResult, JobState, TaskEnd, TaskOrder, TaskStage, TaskStatus};
use crate::facts::{JobFacts, TaskFacts, TaskStep, Verdict};

/// Starts of a job that may fail one after another.
const MOST_FAILED_STARTS: u32 = 3;

/// Ends of tasks by themselves that may follow a new checkpoint, the first one with it.
const MOST_IDLE_ENDS: u32 = 3;

/// Reason for the end of a job that does not get further.
const IDLE: &str = "; it left RESUME three times without having been asked to stop, and without a new checkpoint: leave RESUME \
    only after the signal, or change what the checkpoint contains";

/// A job has no tasks on workers any more: the queue has to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It waits for machines again.
    Released,
    /// It is over.
    Complete,
    Failed(String),
    Cancelled(String),
}

impl JobFacts {
    /// Begins a start on these workers, one for each task.
    pub(crate) fn begin(&mut self, workers: &[String]) {
        for (task, worker) in self.tasks.iter_mut().zip(workers).filter(|(task, _)| !task.is_done) {
            task.worker = Some(worker.clone());
            task.incarnation += 1;
            (task.step, task.session, task.port, task.is_lost) = (TaskStep::Preparing, None, 0, false);
        }
        self.verdict = None;
        self.enter(JobState::Starting, None);
    }

    /// Has all tasks end, for this verdict; the first one counts, unless the next one is final.
    pub(crate) fn stop(&mut self, verdict: Verdict, within_milliseconds: u64) -> Option<Settled> {
        let is_final = |verdict: &Verdict| !matches!(verdict, Verdict::Again(_));
        if self.verdict.as_ref().is_none_or(|known| !is_final(known) && is_final(&verdict)) {
            self.enter(JobState::Stopping, Some(verdict.text().to_owned()));
            self.verdict = Some(verdict);
        }
        self.stop_within_milliseconds = match self.state {
            JobState::Stopping => self.stop_within_milliseconds.min(within_milliseconds),
            _ => within_milliseconds,
        };
        for task in &mut self.tasks {
            task.step = match task.step {
                TaskStep::Preparing | TaskStep::Ready | TaskStep::Running => TaskStep::Stopping,
                other => other,
            };
        }
        self.settle()
    }

    pub(crate) fn enter(&mut self, state: JobState, because: Option<String>) {
        if self.state != state {
            self.since = tidemill_app::machine::now();
            if state == JobState::Stopping {
                self.stop_within_milliseconds = u64::MAX;
            }
        }
        (self.state, self.because) = (state, because);
    }

    /// Takes what a worker reports of one of its tasks. Nothing but the present start counts.
    pub(crate) fn heard(&mut self, worker: &str, session: u64, status: &TaskStatus) -> Option<Settled> {
        let rank = status.rank;
        let within = self.submission.checkpoint_within_milliseconds;
        let task = self.tasks.get_mut(usize::try_from(rank).ok()?)?;
        let is_current = task.incarnation == status.incarnation && task.worker.as_deref() == Some(worker);
        if !is_current || task.step == TaskStep::Idle {
            return None;
        }
        task.session = Some(session);
        let is_newer = |new: &&Checkpoint| task.checkpoint.as_ref().is_none_or(|old| new.number > old.number);
        if let Some(checkpoint) = status.checkpoint.as_ref().filter(is_newer) {
            // A task that changes nothing gets no further.
            let has_progressed = task.checkpoint.as_ref().is_none_or(|old| {
                (&old.files, &old.folders, old.progress)
                    != (&checkpoint.files, &checkpoint.folders, checkpoint.progress)
            });
            if has_progressed {
                self.idle_ends = 0;
            }
            task.checkpoint = Some(checkpoint.clone());
            self.failed_starts = 0;
        }
        match &status.stage {
            TaskStage::Preparing => None,
            TaskStage::Ready { port } => {
                if task.step == TaskStep::Preparing {
                    (task.step, task.port) = (TaskStep::Ready, *port);
                    self.go();
                }
                None
            }
            TaskStage::Running => None,
            TaskStage::Saving => {
                task.step = TaskStep::Saving;
                None
            }
            TaskStage::Ended { end } => {
                task.step = TaskStep::Idle;
                match end {
                    TaskEnd::Done { results } => {
                        task.is_done = true;
                        let results = results.iter().map(|file| JobResult { rank, file: file.clone() });
                        self.results.extend(results);
                        self.failed_starts = 0;
                        self.settle()
                    }
                    TaskEnd::Released { why, is_unasked } => {
                        let why = format!("task {rank} on worker {worker} has stopped: {why}");
                        // Other tasks that are asked to stop because of it do not count.
                        self.idle_ends += u32::from(*is_unasked && self.verdict.is_none());
                        match self.idle_ends > MOST_IDLE_ENDS {
                            true => self.stop(Verdict::Failed(format!("{why}{IDLE}")), 0),
                            false => self.stop(Verdict::Again(why), within),
                        }
                    }
                    TaskEnd::Failed { why } => {
                        let why = format!("task {rank} on worker {worker} has failed: {why}");
                        match self.survives(&[rank as usize]) {
                            true => {
                                self.note(format!("{why}; the others continue without it"));
                                self.settle()
                            }
                            false => self.stop(Verdict::Failed(why), 0),
                        }
                    }
                    TaskEnd::NotStarted { why } => {
                        self.failed_starts += 1;
                        let why = format!("task {rank} cannot start on worker {worker}: {why}");
                        match self.failed_starts >= MOST_FAILED_STARTS {
                            true => self.stop(Verdict::Failed(why), 0),
                            false => self.stop(Verdict::Again(why), 0),
                        }
                    }
                }
            }
        }
    }

    /// All tasks run once all can.
    fn go(&mut self) {
        let is_ready = |step| matches!(step, TaskStep::Ready);
        if self.state == JobState::Starting
            && self.tasks.iter().all(|task| task.is_done || is_ready(task.step))
        {
            self.tasks.iter_mut().filter(|task| !task.is_done).for_each(|task| task.step = TaskStep::Running);
            self.enter(JobState::Running, None);
        }
    }

    /// The tasks on a worker have ended without a word, all or those of an earlier process of its agent.
    pub(crate) fn lost(&mut self, worker: &str, why: &str, session: Option<u64>) -> Option<Settled> {
        let mut gone = Vec::new();
        for (rank, task) in self.tasks.iter_mut().enumerate() {
            let is_earlier = session.is_none() || task.session.is_some_and(|known| Some(known) != session);
            let is_there = task.worker.as_deref() == Some(worker) && task.step != TaskStep::Idle;
            if is_there && is_earlier {
                task.step = TaskStep::Idle;
                gone.push(rank);
            }
        }
        if !gone.is_empty() && self.survives(&gone) {
            let ranks: Vec<String> = gone.iter().map(usize::to_string).collect();
            self.note(format!("task {} is lost: {why}; the others continue without it", ranks.join(", ")));
            return self.settle();
        }
        let within = self.submission.checkpoint_within_milliseconds;
        (!gone.is_empty()).then(|| self.stop(Verdict::Again(why.to_owned()), within)).flatten()
    }

    /// Marks tasks that have ended as lost, where the job runs and survives that: as many as it says may be lost, and one is left.
    fn survives(&mut self, gone: &[usize]) -> bool {
        let of_now = self.tasks.iter().filter(|task| task.is_lost).count();
        let is_left =
            |task: &TaskFacts| task.is_done || matches!(task.step, TaskStep::Running | TaskStep::Saving);
        let survives = self.state == JobState::Running
            && of_now + gone.len() <= self.submission.survive as usize
            && self.tasks.iter().any(is_left);
        if survives {
            gone.iter().filter_map(|rank| self.tasks.get_mut(*rank).map(|task| task.is_lost = true)).count();
        }
        survives
    }

    /// Becomes what its verdict says, once no task is on a worker.
    fn settle(&mut self) -> Option<Settled> {
        if self.state.is_over() || self.tasks.iter().any(|task| task.step != TaskStep::Idle) {
            return None;
        }
        let is_over = |task: &TaskFacts| task.is_done || task.is_lost;
        let is_complete = self.tasks.iter().all(is_over) && self.tasks.iter().any(|task| task.is_done);
        if is_complete && !matches!(self.verdict, Some(Verdict::Failed(_))) {
            self.enter(JobState::Complete, None);
            return Some(Settled::Complete);
        }
        match self.verdict.take()? {
            Verdict::Again(why) => {
                self.enter(JobState::Waiting, Some(why));
                Some(Settled::Released)
            }
            Verdict::Failed(why) => {
                self.enter(JobState::Failed, Some(why.clone()));
                Some(Settled::Failed(why))
            }
            Verdict::Cancelled(why) => {
                self.enter(JobState::Cancelled, Some(why.clone()));
                Some(Settled::Cancelled(why))
            }
        }
    }

    /// Order for the worker of a task; `None`: it must not have it.
    pub(crate) fn order(&self, rank: usize, host_of_first: &str) -> Option<TaskOrder> {
        let task = self.tasks.get(rank)?;
        Some(match task.step {
            TaskStep::Idle => return None,
            TaskStep::Preparing | TaskStep::Ready => TaskOrder::Prepare,
            TaskStep::Running => {
                let port = self.tasks.first().map_or(0, |first| first.port);
                TaskOrder::Run { first: format!("{host_of_first}:{port}") }
            }
            TaskStep::Stopping | TaskStep::Saving => TaskOrder::Stop {
                within_milliseconds: self.stop_within_milliseconds,
                why: self.verdict.as_ref().map_or_else(String::new, |verdict| verdict.text().to_owned()),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{BundleFile, JobSubmission};
    use tidemill_spec::job::{JobKind, StopSignal};

    fn job(gang: u32) -> JobFacts {
        let submission = JobSubmission {
            name: "train".into(),
            kind: JobKind::Command,
            command: vec!["true".into()],
            gang,
            cores: 1.0,
            memory_bytes: 1,
            device: None,
            preemptible: true,
            checkpoint_within_milliseconds: 30_000,
            signal: StopSignal::Term,
            environment: Default::default(),
            files: Vec::new(),
            results: Vec::new(),
            survive: 0,
        };
        JobFacts::new(1, "ada", submission)
    }

    fn status(rank: u32, incarnation: u64, stage: TaskStage) -> TaskStatus {
        TaskStatus { job: "train-1".into(), rank, incarnation, stage, checkpoint: None }
    }

    fn ended(rank: u32, incarnation: u64, end: TaskEnd) -> TaskStatus {
        status(rank, incarnation, TaskStage::Ended { end })
    }

    fn released(why: &str) -> TaskEnd {
        TaskEnd::Released { why: why.into(), is_unasked: false }
    }

    fn workers(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn running() -> JobFacts {
        let mut job = job(2);
        job.begin(&workers(&["a", "b"]));
        assert_eq!(job.heard("a", 7, &status(0, 1, TaskStage::Ready { port: 4000 })), None);
        assert_eq!((job.state, job.order(0, "h")), (JobState::Starting, Some(TaskOrder::Prepare)));
        assert_eq!(job.heard("b", 8, &status(1, 1, TaskStage::Ready { port: 5000 })), None);
        assert_eq!(job.order(1, "h"), Some(TaskOrder::Run { first: "h:4000".into() }), "together");
        job
    }

    #[test]
    fn a_gang_runs_when_all_can_and_is_complete_when_all_are() {
        let mut job = running();
        assert_eq!(job.heard("a", 7, &ended(0, 1, TaskEnd::Done { results: Vec::new() })), None);
        assert_eq!((job.state, job.order(0, "h")), (JobState::Running, None));
        let file = BundleFile { path: "out".into(), digest: "d".into(), bytes: 1 };
        let end = TaskEnd::Done { results: vec![file] };
        assert_eq!(job.heard("b", 8, &ended(1, 1, end)), Some(Settled::Complete));
        assert_eq!((job.results.len(), job.results[0].rank), (1, 1));
    }

    #[test]
    fn a_task_that_cannot_start_releases_the_others() {
        let mut job = job(2);
        for attempt in 1..=MOST_FAILED_STARTS {
            let first = u64::from(attempt);
            job.begin(&workers(&["a", "b"]));
            job.heard("a", 7, &status(0, first, TaskStage::Ready { port: 1 }));
            let end = TaskEnd::NotStarted { why: "no such file".into() };
            assert_eq!(job.heard("b", 8, &ended(1, first, end)), None);
            assert!(matches!(job.order(0, "h"), Some(TaskOrder::Stop { within_milliseconds: 0, .. })));
            let settled = job.heard("a", 7, &ended(0, first, released("asked")));
            match attempt < MOST_FAILED_STARTS {
                true => assert_eq!(settled, Some(Settled::Released)),
                false => {
                    assert!(matches!(settled, Some(Settled::Failed(why)) if why.contains("no such file")))
                }
            }
        }
    }

    #[test]
    fn nothing_but_the_present_start_counts() {
        let mut job = running();
        assert_eq!(job.lost("a", "worker a is lost", None), None);
        assert!(matches!(job.order(1, "h"), Some(TaskOrder::Stop { within_milliseconds: 30_000, .. })));
        assert_eq!(job.heard("b", 8, &ended(1, 1, released(""))), Some(Settled::Released));
        job.begin(&workers(&["c", "b"]));
        // The lost worker is back, and says that its task is done.
        assert_eq!(job.heard("a", 7, &ended(0, 1, TaskEnd::Done { results: Vec::new() })), None);
        assert_eq!(job.heard("c", 9, &ended(0, 1, TaskEnd::Done { results: Vec::new() })), None);
        assert!(!job.tasks[0].is_done && job.tasks[0].incarnation == 2);
    }

    #[test]
    fn an_agent_that_was_started_again_has_no_tasks_of_the_one_before() {
        let mut job = running();
        assert_eq!(job.lost("a", "again", Some(7)), None);
        assert_eq!(job.state, JobState::Running, "it is the same process");
        job.lost("a", "again", Some(70));
        assert_eq!(job.state, JobState::Stopping);
    }

    #[test]
    fn a_cancelled_job_stays_cancelled() {
        let mut job = running();
        assert_eq!(job.stop(Verdict::Again("a stream needs worker a".into()), 10_000), None);
        assert_eq!(job.stop(Verdict::Cancelled("ben cancels it".into()), 0), None);
        assert!(matches!(job.order(0, "h"), Some(TaskOrder::Stop { within_milliseconds: 0, .. })));
        job.heard("a", 7, &ended(0, 1, released("")));
        let settled = job.heard("b", 8, &ended(1, 1, released("")));
        assert_eq!(settled, Some(Settled::Cancelled("ben cancels it".into())));
        let mut waiting = job;
        waiting.state = JobState::Waiting;
        assert!(waiting.stop(Verdict::Cancelled("no".into()), 0).is_some(), "nothing is to be ended");
    }

    #[test]
    fn a_job_that_survives_continues_without_a_lost_task() {
        let surviving = || {
            let mut job = running();
            job.submission.survive = 1;
            job
        };
        // A worker is gone.
        let mut job = surviving();
        assert_eq!(job.lost("a", "its lease has ended", None), None);
        assert_eq!((job.state, job.order(0, "h")), (JobState::Running, None));
        assert!(matches!(job.order(1, "h"), Some(TaskOrder::Run { .. })), "the other one runs");
        assert_eq!(
            job.heard("a", 7, &ended(0, 1, TaskEnd::Done { results: Vec::new() })),
            None,
            "it is late"
        );
        let end = TaskEnd::Done { results: Vec::new() };
        assert_eq!(job.heard("b", 8, &ended(1, 1, end)), Some(Settled::Complete));
        // A task was killed, and then the other one.
        let mut job = surviving();
        assert_eq!(job.heard("a", 7, &ended(0, 1, TaskEnd::Failed { why: "signal 9".into() })), None);
        assert!(job.tasks[0].is_lost && job.state == JobState::Running);
        let settled = job.heard("b", 8, &ended(1, 1, TaskEnd::Failed { why: "signal 9".into() }));
        assert!(matches!(settled, Some(Settled::Failed(_))), "{settled:?}");
        // It is preempted later: all tasks start again.
        let mut job = surviving();
        job.lost("a", "its lease has ended", None);
        job.stop(Verdict::Again("a stream needs worker b".into()), 1_000);
        let settled = job.heard("b", 8, &ended(1, 1, released("")));
        assert_eq!(settled, Some(Settled::Released));
        job.begin(&workers(&["b", "c"]));
        assert!(!job.tasks[0].is_lost && job.tasks[0].incarnation == 2);
    }

    #[test]
    fn a_checkpoint_replaces_an_older_one() {
        let mut job = running();
        let with = |number| TaskStatus {
            checkpoint: Some(Checkpoint { number, ..Checkpoint::default() }),
            ..status(0, 1, TaskStage::Running)
        };
        let number = |job: &JobFacts| job.tasks[0].checkpoint.as_ref().unwrap().number;
        job.heard("a", 7, &with(2));
        job.heard("a", 7, &with(1));
        assert_eq!(number(&job), 2);
    }

    #[test]
    fn a_task_that_ends_by_itself_again_and_again_gets_further_or_fails() {
        let mut job = job(1);
        let mut start = 0;
        let mut run = |job: &mut JobFacts, progress: Option<f64>, is_unasked: bool| {
            job.begin(&workers(&["a"]));
            start += 1;
            job.heard("a", 7, &status(0, start, TaskStage::Ready { port: 1 }));
            let checkpoint = Checkpoint { number: start, progress, ..Checkpoint::default() };
            let end = TaskEnd::Released { why: "it wrote a checkpoint".into(), is_unasked };
            let report = TaskStatus { checkpoint: Some(checkpoint), ..ended(0, start, end) };
            job.heard("a", 7, &report)
        };
        for step in 1..6 {
            let settled = run(&mut job, Some(f64::from(step) / 10.0), true);
            assert_eq!(settled, Some(Settled::Released), "it gets further");
        }
        for _ in 0..5 {
            assert_eq!(run(&mut job, Some(0.5), false), Some(Settled::Released), "it was asked");
        }
        assert_eq!(run(&mut job, Some(0.5), true), Some(Settled::Released));
        assert_eq!(run(&mut job, Some(0.5), true), Some(Settled::Released));
        let settled = run(&mut job, Some(0.5), true);
        assert!(
            matches!(&settled, Some(Settled::Failed(why)) if why.contains("RESUME three times")),
            "{settled:?}"
        );
    }

    /// Tasks as they are on workers, whatever the controller knows.
    #[derive(Default)]
    struct World {
        /// Rank, start, worker, and whether it runs its command.
        alive: Vec<(u32, u64, String, bool)>,
    }

    impl World {
        /// Workers follow their orders, at some time.
        fn follow(&mut self, job: &JobFacts) {
            for (rank, task) in job.tasks.iter().enumerate() {
                let (number, start) = (u32::try_from(rank).unwrap(), task.incarnation);
                let is_it = |of: &&mut (u32, u64, String, bool)| (of.0, of.1) == (number, start);
                match (job.order(rank, "h"), self.alive.iter_mut().find(is_it)) {
                    (Some(TaskOrder::Prepare), None) => {
                        self.alive.push((number, start, task.worker.clone().unwrap(), false));
                    }
                    (Some(TaskOrder::Run { .. }), Some(of)) => of.3 = true,
                    _ => {}
                }
            }
        }
    }

    proptest::proptest! {
        /// Reports come late, twice or never: no task has two starts at once, and none is left of a job that is over.
        #[test]
        fn no_task_has_two_starts_at_once(
            survive in 0_u32..3,
            steps in proptest::collection::vec((0_u8..9, 0_usize..8), 1..60),
        ) {
            let mut job = job(3);
            job.submission.survive = survive;
            let mut world = World::default();
            let mut late: Vec<(String, TaskStatus)> = Vec::new();
            for (what, which) in steps {
                let names = ["a", "b", "c", "d"];
                let chosen = (!world.alive.is_empty()).then(|| which % world.alive.len());
                match (what, chosen) {
                    (0, _) if job.state == JobState::Waiting => {
                        let picked: Vec<&str> = (0..3).map(|rank| names[(which + rank) % 4]).collect();
                        job.begin(&workers(&picked));
                    }
                    (1, _) => world.follow(&job),
                    (2 | 3, Some(at)) => {
                        let (rank, start, worker, runs) = world.alive[at].clone();
                        let stage = if runs { TaskStage::Running } else { TaskStage::Ready { port: 1 } };
                        job.heard(&worker, 1, &status(rank, start, stage));
                    }
                    (4 | 5, Some(at)) => {
                        let (rank, start, worker, runs) = world.alive.remove(at);
                        let end = match (runs, which % 3) {
                            (false, _) => TaskEnd::NotStarted { why: String::new() },
                            (_, 0) => TaskEnd::Done { results: Vec::new() },
                            (_, 1) => released(""),
                            _ => TaskEnd::Failed { why: String::new() },
                        };
                        let report = ended(rank, start, end);
                        job.heard(&worker, 1, &report);
                        late.push((worker, report));
                    }
                    (6, _) => {
                        let worker = names[which % 4];
                        world.alive.retain(|of| of.2 != worker);
                        job.lost(worker, "its lease has ended", None);
                    }
                    (7, _) => {
                        job.stop(Verdict::Again("preempted".into()), 1_000);
                    }
                    (8, _) if !late.is_empty() => {
                        let (worker, report) = &late[which % late.len()];
                        job.heard(worker, 1, report);
                    }
                    _ => {}
                }
                for rank in 0..3 {
                    let starts = world.alive.iter().filter(|of| of.0 == rank).count();
                    proptest::prop_assert!(starts <= 1, "task {} has {} starts", rank, starts);
                }
                proptest::prop_assert!(!job.state.is_over() || world.alive.is_empty());
            }
        }
    }
}
