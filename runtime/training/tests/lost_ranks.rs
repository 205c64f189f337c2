//! Ranks that are lost in the middle of a training, and come back: the parameters have the bits of an undisturbed training alone.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;
use tidemill_collective::client::{Group, JoinOptions, ask};
use tidemill_collective::protocol::{Answer, Question};
use tidemill_collective::service::{Collectives, Options as ServiceOptions};
use tidemill_collective::topology::Host;
use tidemill_training::course::{Course, Ending, News, PATIENCE};
use tidemill_training::data::spirals;
use tidemill_training::{Alone, Member, Model, Options, Origin, Ranks, Regrouped, Replicas, Trainer};

const STEPS: u64 = 60;

fn mixture() -> Model {
    Model::Mixture { inputs: 2, hidden: 6, experts: 8, classes: 3, balance: 0.05 }
}

fn perceptron() -> Model {
    Model::Perceptron { sizes: vec![2, 16, 3] }
}

/// The parameters of a training by one rank that has the whole model.
fn undisturbed(model: Model) -> Vec<f64> {
    let mut trainer = Trainer::new(model, Options::default(), spirals(3, 150, 1)).unwrap();
    for _ in 0..STEPS {
        trainer.step(&mut Alone).unwrap();
    }
    trainer.parameters().to_vec()
}

/// A service for groups in a folder of its own.
struct Place {
    folder: tempfile::TempDir,
    _service: Collectives,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let host = Host { name: "a".to_owned(), ..Host::default() };
        let options = ServiceOptions::new(folder.path().join("net.sock"), host);
        Self { folder, _service: Collectives::start(options).unwrap() }
    }

    fn join(&self, rank: u32, size: u32) -> Ranks {
        let options = JoinOptions {
            service: self.folder.path().join("net.sock"),
            deadline: Duration::from_secs(60),
            ..JoinOptions::new("training", rank, size)
        };
        Ranks::new(Group::join(&options).unwrap())
    }

    /// Waits until as many ranks are there, or wait to take part.
    fn until_ranks(&self, count: u32) {
        let socket = self.folder.path().join("net.sock");
        loop {
            let answer = ask(&socket, Question::List, Duration::from_secs(10)).unwrap();
            let Answer::Listing(listing) = answer else { panic!("{answer:?}") };
            if listing.groups[0].ranks.len() == count as usize {
                return;
            }
            std::thread::yield_now();
        }
    }

    fn checkpoint(&self, rank: u32) -> PathBuf {
        self.folder.path().join(format!("checkpoint-{rank}"))
    }
}

/// A training of several ranks as threads.
struct Case {
    model: Model,
    size: u32,
    replicas: Replicas,
    rebalance_every: u64,
    checkpoint_every: u64,
    /// Whether ranks wait for others at [`MEETING`].
    meets: bool,
    /// Rank and step at which it is lost.
    lost: Vec<(u32, u64)>,
}

/// A step at which the other ranks wait until all are there.
const MEETING: u64 = 20;

/// What a rank has seen.
#[derive(Default)]
struct Seen {
    regrouped: Vec<Regrouped>,
    losses: usize,
}

impl Case {
    fn course(&self, checkpoint: &Path) -> Course {
        Course {
            steps: STEPS,
            checkpoint_every: self.checkpoint_every,
            checkpoint: Some(checkpoint.to_owned()),
            rebalance_every: self.rebalance_every,
            survive: self.replicas.survive,
            patience: PATIENCE,
        }
    }

    /// Runs a rank until its end, or until it is lost: none.
    fn rank(&self, place: &Place, rank: u32, dies_at: Option<u64>) -> (Option<Ending>, Seen) {
        let examples = spirals(3, 150, 1);
        let mut member =
            Member::new(self.model.clone(), Options::default(), self.replicas, examples).unwrap();
        let mut seen = Seen::default();
        let mut ranks = place.join(rank, self.size);
        let dies = Mutex::new(false);
        let ending = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            self.course(&place.checkpoint(rank))
                .run(&mut member, &mut ranks, &|| false, &mut |news, _| match news {
                    News::Step { step, .. } if dies_at == Some(*step) => {
                        *dies.lock().unwrap() = true;
                        // The stack of this rank ends here, and with it its membership.
                        std::panic::resume_unwind(Box::new(()));
                    }
                    News::Step { step, .. } if self.meets && *step == MEETING => place.until_ranks(self.size),
                    News::Regrouped(regrouped) => seen.regrouped.push(regrouped.clone()),
                    News::Lost { .. } => seen.losses += 1,
                    _ => {}
                })
                .unwrap()
        }));
        assert_eq!(ending.is_err(), dies.into_inner().unwrap_or(true), "rank {rank} fails");
        (ending.ok(), seen)
    }

    fn run(&self) -> Vec<(Option<Ending>, Seen)> {
        let place = Place::new();
        std::thread::scope(|scope| {
            let start = |rank| {
                let (place, dies_at) = (&place, self.lost.iter().find(|(of, _)| *of == rank));
                let dies_at = dies_at.map(|(_, step)| *step);
                scope.spawn(move || self.rank(place, rank, dies_at))
            };
            let threads: Vec<_> = (0..self.size).map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }
}

fn done(ending: &Option<Ending>) -> &[f64] {
    match ending {
        Some(Ending::Done { parameters }) => parameters,
        other => panic!("{other:?}"),
    }
}

#[test]
fn experts_on_ranks_train_the_same_model() {
    let expected = undisturbed(mixture());
    for (size, slots) in [(1, 8), (2, 4), (3, 6)] {
        let replicas = Replicas { slots, survive: 0 };
        let case = Case {
            model: mixture(),
            size,
            replicas,
            rebalance_every: 20,
            checkpoint_every: 0,
            meets: false,
            lost: Vec::new(),
        };
        for (ending, seen) in case.run() {
            assert_eq!(done(&ending), expected, "{size} ranks");
            assert_eq!(seen.losses, 0);
            let first = &seen.regrouped[0];
            assert_eq!(first.origin, Origin::Beginning);
            assert!(first.experts.iter().all(|held| held.len() <= slots), "{:?}", first.experts);
            // The loads are not even: experts get other places.
            assert!(size == 1 || seen.regrouped.len() == 3, "{:?}", seen.regrouped);
        }
    }
}

/// Two of four ranks are lost, one after another. Each expert keeps a replica, and nothing is computed again.
#[test]
fn a_mixture_continues_without_two_of_its_ranks() {
    let case = Case {
        model: mixture(),
        size: 4,
        replicas: Replicas { slots: 6, survive: 2 },
        rebalance_every: 25,
        checkpoint_every: 0,
        meets: false,
        lost: vec![(1, 13), (2, 37)],
    };
    let all = case.run();
    let expected = undisturbed(mixture());
    for rank in [0, 3] {
        let (ending, seen) = &all[rank];
        assert_eq!(done(ending), expected);
        assert_eq!(seen.losses, 2);
        assert!(seen.regrouped.iter().all(|of| of.lost.is_empty()), "{:?}", seen.regrouped);
        let after: Vec<_> = seen.regrouped.iter().filter(|of| of.origin == Origin::Ranks).collect();
        assert!(after.iter().any(|of| of.members == [0, 2, 3] && of.moved > 0), "{after:?}");
        assert!(after.iter().any(|of| of.members == [0, 3]), "{after:?}");
        // All eight experts were on three ranks at least.
        let odds = &seen.regrouped[0].odds;
        assert_eq!((odds[1].chance(), odds[2].chance()), (1.0, 1.0));
    }
    assert!(all[1].0.is_none() && all[2].0.is_none(), "they were lost");
}

/// Without replicas a lost rank takes experts with it: the last checkpoint counts, and all say which experts they lacked.
#[test]
fn experts_without_replica_come_from_the_checkpoint() {
    let case = Case {
        model: mixture(),
        size: 3,
        // Nine slots for eight experts.
        replicas: Replicas { slots: 3, survive: 1 },
        rebalance_every: 0,
        checkpoint_every: 10,
        meets: false,
        lost: vec![(1, 27)],
    };
    let all = case.run();
    let expected = undisturbed(mixture());
    for rank in [0, 2] {
        let (ending, seen) = &all[rank];
        assert_eq!(done(ending), expected);
        let after = seen.regrouped.last().unwrap();
        assert_eq!((after.origin, after.step), (Origin::Checkpoint, 20));
        assert!(!after.lost.is_empty(), "{after:?}");
    }
}

#[test]
fn a_perceptron_needs_no_checkpoint() {
    let case = Case {
        model: perceptron(),
        size: 3,
        replicas: Replicas { slots: 1, survive: 2 },
        rebalance_every: 0,
        checkpoint_every: 0,
        meets: false,
        lost: vec![(0, 20), (2, 41)],
    };
    let all = case.run();
    let (ending, seen) = &all[1];
    assert_eq!(done(ending), undisturbed(perceptron()));
    assert_eq!(seen.losses, 2);
    assert!(seen.regrouped.iter().skip(1).all(|of| of.origin == Origin::Ranks && of.moved == 0));
}

/// A rank that was started again joins at the next step at which experts get new places.
#[test]
fn a_lost_rank_comes_back() {
    for model in [mixture(), perceptron()] {
        let case = Case {
            model: model.clone(),
            size: 3,
            replicas: Replicas { slots: 6, survive: 1 },
            rebalance_every: 1,
            checkpoint_every: 0,
            meets: true,
            lost: vec![(1, 10)],
        };
        let place = Place::new();
        let expected = undisturbed(model);
        std::thread::scope(|scope| {
            let (case, place) = (&case, &place);
            let others: Vec<_> = [0, 2].map(|rank| scope.spawn(move || case.rank(place, rank, None))).into();
            let (lost, _) = case.rank(place, 1, Some(10));
            assert!(lost.is_none());
            let (ending, seen) = case.rank(place, 1, None);
            let begun = &seen.regrouped[0];
            assert_eq!((begun.origin, begun.members.as_slice()), (Origin::Ranks, &[0, 1, 2][..]));
            assert!(begun.step >= 9, "{begun:?}");
            assert_eq!(done(&ending), expected);
            for other in others {
                let (ending, seen) = other.join().unwrap();
                assert_eq!(done(&ending), expected);
                assert!(seen.losses >= 1 && seen.regrouped.last().unwrap().members == [0, 1, 2]);
            }
        });
    }
}

/// More ranks are lost than the training survives: those that are left keep what they have, and it can continue from there.
#[test]
fn too_few_ranks_leave_a_checkpoint() {
    let case = |lost: Vec<(u32, u64)>| Case {
        model: mixture(),
        size: 2,
        replicas: Replicas { slots: 8, survive: 0 },
        rebalance_every: 0,
        checkpoint_every: 0,
        meets: false,
        lost,
    };
    let place = Place::new();
    let first = case(vec![]);
    std::thread::scope(|scope| {
        let lost = scope.spawn(|| first.rank(&place, 1, Some(30)));
        let (ending, seen) = first.rank(&place, 0, None);
        assert!(lost.join().unwrap().0.is_none());
        assert_eq!(ending, Some(Ending::TooFew { lost: 1 }));
        assert_eq!((seen.losses, seen.regrouped.len()), (1, 1));
    });
    let expected = undisturbed(mixture());
    std::thread::scope(|scope| {
        let other = scope.spawn(|| first.rank(&place, 1, None));
        let (ending, seen) = first.rank(&place, 0, None);
        assert_eq!(seen.regrouped[0].origin, Origin::Checkpoint);
        assert!(seen.regrouped[0].step >= 29);
        assert_eq!(done(&ending), expected);
        assert_eq!(done(&other.join().unwrap().0), expected);
    });
}

/// One rank wishes for the end: all write the checkpoint of the same step, and another number of ranks continues.
#[test]
fn a_wish_ends_all_ranks_at_the_same_step() {
    let place = Place::new();
    let case = Case {
        model: mixture(),
        size: 2,
        replicas: Replicas { slots: 4, survive: 0 },
        rebalance_every: 0,
        checkpoint_every: 0,
        meets: false,
        lost: vec![],
    };
    std::thread::scope(|scope| {
        let run = |rank: u32, wishes: bool| {
            let mut member =
                Member::new(case.model.clone(), Options::default(), case.replicas, spirals(3, 150, 1))
                    .unwrap();
            let course = case.course(&place.checkpoint(rank));
            let mut ranks = place.join(rank, 2);
            course.run(&mut member, &mut ranks, &|| wishes, &mut |_, _| {}).unwrap()
        };
        let other = scope.spawn(move || run(1, false));
        assert_eq!(run(0, true), Ending::Asked);
        assert_eq!(other.join().unwrap(), Ending::Asked);
    });
    let bytes = |rank| std::fs::read(place.checkpoint(rank)).unwrap();
    assert_eq!(bytes(0), bytes(1));
    let alone = Case { size: 1, replicas: Replicas { slots: 8, survive: 0 }, ..case };
    let (ending, seen) = alone.rank(&place, 0, None);
    assert_eq!((seen.regrouped[0].origin, seen.regrouped[0].step), (Origin::Checkpoint, 1));
    assert_eq!(done(&ending), undisturbed(mixture()));
}
