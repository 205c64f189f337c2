//! Properties of every policy over random traces: gangs are whole, slots are conserved, no two jobs preempt each other without progress,
//! decisions are a function of the events, and a finite knob ends every wait.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_jobs::cluster::equal_machines;
use tidemill_jobs::simulator::{Change, Input, TracedJob, simulate};
use tidemill_jobs::{
    Action, Cause, Decision, Event, History, Job, Machine, PackLimit, Phase, Queue, Reason, Resources,
    Service, Settings, Time, policy,
};

fn job(id: usize, tasks: u32, submitted: u64, is_preemptible: bool, skew: Option<f64>) -> Job {
    let job = Job::new(format!("j{id}"), tasks, Resources::of_slots(1), Time::of_seconds(submitted));
    Job { is_preemptible, skew, ..job }
}

fn traced() -> impl Strategy<Value = Vec<TracedJob>> {
    let one = (1u32..9, 0u64..300, 1u64..400, prop::bool::weighted(0.8), prop::option::of(0.0f64..1.0));
    prop::collection::vec(one, 1..25).prop_map(|all| {
        let traced = |(id, (tasks, submitted, seconds, is_preemptible, skew))| {
            let work = Time::of_seconds(seconds);
            let job = Job { duration: Some(work), ..job(id, tasks, submitted, is_preemptible, skew) };
            TracedJob { job, work, checkpoint: Time::of_seconds(3), resume: Time::of_seconds(5) }
        };
        all.into_iter().enumerate().map(traced).collect()
    })
}

fn settings() -> impl Strategy<Value = Settings> {
    let thresholds = prop_oneof![Just(vec![]), Just(vec![100.0]), Just(vec![50.0, 400.0])];
    let names = 0..policy::ALL.len();
    let knob = prop_oneof![Just(None), (0.5f64..8.0).prop_map(Some)];
    (names, thresholds, knob, 0u64..40, prop::bool::ANY).prop_map(
        |(index, thresholds, promote_knob, least, is_auto)| Settings {
            policy: policy::ALL[index].name().to_owned(),
            thresholds: thresholds.into_iter().map(Service::of_slot_seconds).collect(),
            interval: Time::of_seconds(10),
            promote_knob,
            least_run: Time::of_seconds(least),
            pack_limit: if is_auto { PackLimit::Auto } else { PackLimit::Fixed(0.2) },
            ..Settings::default()
        },
    )
}

/// A queue with what each job holds, as a machine sees it, and a check of every decision.
struct Watched {
    queue: Queue,
    capacity: BTreeMap<String, u64>,
    /// Job, by machine.
    held: BTreeMap<String, BTreeMap<String, u64>>,
    jobs: BTreeMap<String, Job>,
    /// Service when the job started last.
    started: BTreeMap<String, Service>,
    overtakes: BTreeSet<(String, String)>,
    ended: usize,
}

impl Watched {
    fn new(settings: Settings, machines: Vec<Machine>, history: History) -> Self {
        let capacity = machines.iter().map(|one| (one.name.clone(), one.capacity.slots)).collect();
        Self {
            queue: Queue::with_history(settings, machines, history).unwrap(),
            capacity,
            held: BTreeMap::new(),
            jobs: BTreeMap::new(),
            started: BTreeMap::new(),
            overtakes: BTreeSet::new(),
            ended: 0,
        }
    }

    fn apply(&mut self, now: Time, event: Event) -> Vec<Decision> {
        match &event {
            Event::Submitted { job } => {
                self.jobs.insert(job.id.clone(), job.clone());
            }
            Event::Ended { job } => {
                self.held.remove(job);
                self.ended += 1;
            }
            Event::Released { job, .. } | Event::Lost { job } => {
                self.held.remove(job);
            }
            Event::Capacity { machine, capacity, .. } => {
                self.capacity.insert(machine.clone(), capacity.slots);
            }
            _ => {}
        }
        // State that went through storage decides the same.
        let mut restored: Queue = serde_json::from_str(&serde_json::to_string(&self.queue).unwrap()).unwrap();
        let again = restored.apply(now, event.clone()).unwrap();
        let decisions = self.queue.apply(now, event).unwrap();
        assert_eq!(again, decisions);
        assert_eq!(restored, self.queue);
        let wake = self.queue.next_wake();
        assert!(wake.is_none_or(|wake| wake > self.queue.now()), "{wake:?}");
        for decision in &decisions {
            self.check(decision);
        }
        decisions
    }

    fn check(&mut self, decision: &Decision) {
        let job = &self.jobs[&decision.job];
        assert!(!decision.reason.to_string().is_empty());
        match &decision.action {
            Action::Start { shares, .. } => {
                let tasks: u32 = shares.iter().map(|share| share.tasks).sum();
                assert_eq!(tasks, job.tasks, "a gang is whole");
                assert!(!self.held.contains_key(&decision.job), "it holds nothing yet");
                let held =
                    shares.iter().map(|share| (share.machine.clone(), u64::from(share.tasks))).collect();
                self.held.insert(decision.job.clone(), held);
                // Slots are conserved, those of jobs that are leaving included.
                for share in shares {
                    let used: u64 = self.held.values().filter_map(|held| held.get(&share.machine)).sum();
                    assert!(used <= self.capacity[&share.machine], "{} is full", share.machine);
                }
            }
            Action::Preempt { deadline } => {
                assert!(self.held.contains_key(&decision.job), "it holds machines");
                assert!(*deadline >= self.queue.now());
                let Reason::Overtaken { by, .. } = &decision.reason else {
                    return assert!(matches!(decision.reason, Reason::CapacityTaken { .. }));
                };
                assert!(job.is_preemptible && by != &decision.job);
                let service = self.queue.account(&decision.job).unwrap().service;
                assert!(
                    service > self.started[&decision.job],
                    "{} made progress since it started",
                    decision.job
                );
                self.overtakes.insert((by.clone(), decision.job.clone()));
            }
        }
    }
}

/// Acts on all decisions, with choices from a list of numbers for the rest: what happens next, and to whom.
fn exercise(watched: &mut Watched, jobs: &[TracedJob], choices: &[u16]) {
    let mut now = Time::ZERO;
    let mut next = jobs.iter().map(|traced| traced.job.clone());
    for choice in choices {
        now = now + Time(u64::from(*choice % 97) * 250);
        let pick = |phase: Phase, queue: &Queue| {
            let all: Vec<String> =
                queue.accounts().filter(|one| one.phase == phase).map(|one| one.job.id.clone()).collect();
            all.get(*choice as usize / 7 % all.len().max(1)).cloned()
        };
        let queue = &watched.queue;
        let event = match choice % 7 {
            0 => next.next().map(|job| Event::Submitted { job: Job { submitted: now, ..job } }),
            1 => pick(Phase::Starting, queue).map(|job| Event::Started { job }),
            2 => pick(Phase::Running, queue).map(|job| Event::Ended { job }),
            3 => pick(Phase::Releasing, queue).map(|job| Event::Released { job, is_kept: choice % 2 == 0 }),
            4 => pick(Phase::Running, queue).filter(|_| choice % 5 == 0).map(|job| Event::Lost { job }),
            5 => Some(Event::Capacity {
                machine: format!("m{}", choice % 3),
                capacity: Resources::of_slots(u64::from(choice / 3 % 5)),
                within: Time::of_seconds(2),
                cause: Cause::Streams,
            }),
            _ => queue.next_wake().map(|wake| {
                now = now.max(wake);
                Event::Tick
            }),
        };
        let event = event.unwrap_or(Event::Tick);
        let started = match &event {
            Event::Started { job } => Some(job.clone()),
            _ => None,
        };
        watched.apply(now, event);
        if let Some(job) = started {
            let service = watched.queue.account(&job).unwrap().service;
            watched.started.insert(job, service);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn gangs_are_whole_slots_conserved_and_preemptions_follow_progress(
        settings in settings(),
        jobs in traced(),
        choices in prop::collection::vec(any::<u16>(), 1..250),
    ) {
        let history = History::of(jobs.iter().map(|traced| Service::of(1000, traced.work)));
        let mut watched = Watched::new(settings, equal_machines(3, 4), history);
        exercise(&mut watched, &jobs, &choices);
    }

    #[test]
    fn every_job_ends_and_equal_inputs_give_equal_outcomes(
        settings in settings(),
        jobs in traced(),
        changes in prop::collection::vec((0u64..500, 0usize..3, 0u64..5), 0..6),
    ) {
        let mut input = Input::new(jobs, equal_machines(3, 4), settings);
        let change = |(at, machine, slots): (u64, usize, u64)| Change {
            at: Time::of_seconds(at),
            machine: format!("m{machine}"),
            capacity: Resources::of_slots(slots),
            within: Time::of_seconds(1),
        };
        input.changes = changes.into_iter().map(change).collect();
        // At the end all machines are there again.
        input.changes.extend((0..3).map(|machine| change((501, machine, 4))));
        let outcome = simulate(&input, &mut |_| true).unwrap();
        prop_assert_eq!(&outcome, &simulate(&input, &mut |_| true).unwrap());
        let measures = outcome.measures();
        prop_assert_eq!(measures.completed, input.jobs.len());
        for (job, traced) in outcome.jobs.iter().zip(&input.jobs) {
            let completion = job.ended.unwrap() - job.submitted;
            let service = Service::of(u64::from(traced.job.tasks) * 1000, traced.work);
            prop_assert!(job.service == service, "{} got {} instead of {service}", job.job, job.service);
            prop_assert_eq!(completion, traced.work + job.waited + job.overhead);
        }
    }
}

/// Narrow jobs arrive for ever, one each 10 s for 40 s, on four slots; a wide one is between them. Returns its wait, none if it never starts.
fn wait_of_the_wide_job(policy: &str, promote_knob: Option<f64>, is_preemptible: bool) -> Option<Time> {
    let end = 20_000;
    let settings = Settings {
        policy: policy.into(),
        thresholds: vec![Service::of_slot_seconds(100.0)],
        promote_knob,
        least_run: Time::of_seconds(20),
        ..Settings::default()
    };
    let narrow = (0..end / 10).map(|index: u64| (format!("n{index}"), 1, index * 10, 40));
    let all = narrow.chain([("wide".to_owned(), 4, 1005, 600)]).map(|(id, tasks, submitted, seconds)| {
        let work = Time::of_seconds(seconds);
        let job = Job::new(id, tasks, Resources::of_slots(1), Time::of_seconds(submitted));
        let job = Job { duration: Some(work), is_preemptible: is_preemptible || tasks > 1, ..job };
        TracedJob { job, work, checkpoint: Time::of_seconds(1), resume: Time::of_seconds(1) }
    });
    let input = Input::new(all.collect(), equal_machines(1, 4), settings);
    let outcome = simulate(&input, &mut |_| true).unwrap();
    let wide = outcome.jobs.iter().find(|job| job.job == "wide")?;
    let wait = wide.first_start? - wide.submitted;
    (wait < Time::of_seconds(end - 1005)).then_some(wait)
}

#[test]
fn a_wide_job_starves_without_a_knob_and_does_not_with_one() {
    for policy in policy::ALL {
        for is_preemptible in [true, false] {
            let (name, starves) = (policy.name(), wait_of_the_wide_job(policy.name(), None, is_preemptible));
            if name == "fifo" {
                assert!(starves.is_some(), "fifo blocks the narrow ones");
                continue;
            }
            assert_eq!(starves, None, "{name}: the narrow jobs keep it from starting for ever");
            // It is promoted after 100 s, what a narrow job needs to leave the first queue, and starts when those that run are done or
            // are preempted.
            let wait = wait_of_the_wide_job(name, Some(1.0), is_preemptible);
            assert!(
                wait.is_some_and(|wait| wait <= Time::of_seconds(300)),
                "{name}, {is_preemptible}: {wait:?}"
            );
        }
    }
}

#[test]
fn streams_get_their_machine_back_within_the_stated_time() {
    let settings = Settings::default();
    let mut watched = Watched::new(settings, equal_machines(2, 4), History::default());
    let submit =
        |id, tasks, is_preemptible| Event::Submitted { job: job(id, tasks, 0, is_preemptible, Some(1.0)) };
    // Packed: j0 fills one machine, j1 and j2 share the other.
    for (id, tasks, is_preemptible) in [(0, 4, true), (1, 2, false), (2, 2, true)] {
        watched.apply(Time::ZERO, submit(id, tasks, is_preemptible));
        watched.apply(Time::ZERO, Event::Started { job: format!("j{id}") });
    }
    let now = Time::of_seconds(90);
    let machine = watched.queue.account("j1").unwrap().shares[0].machine.clone();
    let take = |slots| Event::Capacity {
        machine: machine.clone(),
        capacity: Resources::of_slots(slots),
        within: Time::of_seconds(10),
        cause: Cause::Streams,
    };
    let decisions = watched.apply(now, take(3));
    assert_eq!(decisions.len(), 1, "the preemptible one leaves first, as late as that is in rank");
    assert_eq!(
        (decisions[0].job.as_str(), &decisions[0].action),
        ("j2", &Action::Preempt { deadline: Time::of_seconds(100) })
    );
    assert!(decisions[0].reason.to_string().contains("has less for jobs now"));
    // Nothing else is preempted to make room for the one that had to leave: it comes after those that run.
    assert!(
        watched.apply(Time::of_seconds(92), Event::Released { job: "j2".into(), is_kept: true }).is_empty()
    );
    let decisions = watched.apply(Time::of_seconds(95), take(0));
    assert_eq!(decisions[0].job, "j1", "capacity that is taken back stops any job");
    // The whole machine returns.
    watched.apply(Time::of_seconds(96), Event::Released { job: "j1".into(), is_kept: false });
    let decisions = watched.apply(Time::of_seconds(200), take(4));
    let resumed: Vec<_> = decisions.iter().map(|decision| decision.job.as_str()).collect();
    assert_eq!(resumed, ["j1", "j2"]);
    assert!(
        decisions.iter().all(|decision| matches!(decision.action, Action::Start { is_resumed: true, .. }))
    );
}

/// Its jobs stay until they are lost, and no other starts there.
#[test]
fn a_silent_machine_keeps_its_jobs_and_gets_none() {
    let settings = Settings { least_run: Time::ZERO, policy: "srtf".into(), ..Settings::default() };
    let mut queue = Queue::new(settings, equal_machines(2, 2)).unwrap();
    let timed = |id, tasks, seconds| {
        let job = job(id, tasks, 0, true, None);
        Event::Submitted { job: Job { duration: Some(Time::of_seconds(seconds)), ..job } }
    };
    queue.apply(Time::ZERO, timed(0, 2, 100)).unwrap();
    queue.apply(Time::ZERO, Event::Started { job: "j0".into() }).unwrap();
    let machine = queue.account("j0").unwrap().shares[0].machine.clone();
    let silent = Event::Silent { machine: machine.clone() };
    assert!(queue.apply(Time::of_seconds(5), silent).unwrap().is_empty());
    assert_eq!(queue.account("j0").unwrap().phase, Phase::Running);
    // A job of a better rank does not take machines that do not report.
    let decisions = queue.apply(Time::of_seconds(6), timed(1, 2, 10)).unwrap();
    assert!(
        matches!(&decisions[..], [Decision { action: Action::Start { shares, .. }, .. }] if shares[0].machine != machine)
    );
    queue.apply(Time::of_seconds(6), Event::Started { job: "j1".into() }).unwrap();
    let decisions = queue.apply(Time::of_seconds(7), timed(2, 3, 1)).unwrap();
    assert!(decisions.is_empty(), "{decisions:?}");
    let reason = queue.account("j2").unwrap().reason.to_string();
    assert!(reason.contains("without other jobs 2 would fit"), "{reason}");
    // It is heard again: nothing was lost, and its machine counts again.
    let again = Event::Capacity {
        machine: machine.clone(),
        capacity: Resources::of_slots(2),
        within: Time::of_seconds(2),
        cause: Cause::Streams,
    };
    let mut heard = queue.clone();
    let decisions = heard.apply(Time::of_seconds(8), again).unwrap();
    assert!(decisions.iter().any(|decision| decision.job == "j0"), "{decisions:?}");
    // Its lease ends: its job waits elsewhere, and a machine without jobs is forgotten.
    queue.apply(Time::of_seconds(40), Event::Lost { job: "j0".into() }).unwrap();
    queue.apply(Time::of_seconds(40), Event::Silent { machine: machine.clone() }).unwrap();
    assert!(queue.machines().all(|one| one.name != machine));
}

#[test]
fn a_lost_job_falls_back_to_its_checkpoint() {
    let settings = Settings { policy: "srtf".into(), ..Settings::default() };
    let mut queue = Queue::new(settings, equal_machines(1, 1)).unwrap();
    let submitted = Job { duration: Some(Time::of_seconds(100)), ..job(0, 1, 0, true, None) };
    queue.apply(Time::ZERO, Event::Submitted { job: submitted }).unwrap();
    let at = |id: &str| id.to_owned();
    queue.apply(Time::ZERO, Event::Started { job: at("j0") }).unwrap();
    queue.apply(Time::of_seconds(30), Event::Checkpointed { job: at("j0") }).unwrap();
    let decisions = queue.apply(Time::of_seconds(50), Event::Lost { job: at("j0") }).unwrap();
    assert!(matches!(decisions[0].action, Action::Start { is_resumed: true, .. }));
    let account = queue.account("j0").unwrap();
    assert_eq!(
        (account.remaining(), account.service),
        (Some(Time::of_seconds(70)), Service::of_slot_seconds(50.0))
    );
    let error =
        queue.apply(Time::of_seconds(51), Event::Released { job: at("j0"), is_kept: true }).unwrap_err();
    assert_eq!(error.to_string(), "the job `j0` is starting: it cannot be released");
    assert!(queue.apply(Time::of_seconds(51), Event::Ended { job: at("j7") }).is_err());
}

/// A job that continues without a lost task keeps its other machine when the machine of that task is gone.
#[test]
fn a_job_that_has_shrunk_is_not_preempted_for_what_it_lost() {
    let mut queue = Queue::new(Settings::default(), equal_machines(2, 1)).unwrap();
    queue.apply(Time::ZERO, Event::Submitted { job: job(0, 2, 0, true, None) }).unwrap();
    queue.apply(Time::ZERO, Event::Started { job: "j0".into() }).unwrap();
    let machines: Vec<String> = {
        let shares = &queue.account("j0").unwrap().shares;
        shares.iter().map(|share| share.machine.clone()).collect()
    };
    assert_eq!(machines.len(), 2);
    let shrunk = Event::Shrunk { job: "j0".into(), machine: machines[0].clone(), tasks: 1 };
    assert!(queue.apply(Time::of_seconds(10), shrunk).unwrap().is_empty());
    let gone = Event::Capacity {
        machine: machines[0].clone(),
        capacity: Resources::default(),
        within: Time::of_seconds(10),
        cause: tidemill_jobs::Cause::default(),
    };
    assert!(queue.apply(Time::of_seconds(11), gone).unwrap().is_empty(), "it is not preempted");
    // Two slots for ten seconds, and one after that.
    queue.apply(Time::of_seconds(30), Event::Tick).unwrap();
    let account = queue.account("j0").unwrap();
    assert_eq!((account.phase, account.service), (Phase::Running, Service::of_slot_seconds(40.0)));
}
