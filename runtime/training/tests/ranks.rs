//! Trainings by ranks of a group, over a service of this process.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use std::time::Duration;
use tidemill_collective::client::{Group, JoinOptions};
use tidemill_collective::service::{Collectives, Options as ServiceOptions};
use tidemill_collective::topology::Host;
use tidemill_training::data::spirals;
use tidemill_training::{Alone, Error, Exchange, Model, Options, Ranks, Trainer};

const STEPS: usize = 30;

fn trainer(rate: f64) -> Trainer {
    let model = Model::Mixture { inputs: 2, hidden: 6, experts: 4, classes: 3, balance: 0.05 };
    Trainer::new(model, Options { rate, ..Options::default() }, spirals(3, 150, 1)).unwrap()
}

fn losses(trainer: &mut Trainer, exchange: &mut impl Exchange, steps: usize) -> Vec<u64> {
    (0..steps).map(|_| trainer.step(exchange).unwrap().to_bits()).collect()
}

fn with_ranks<T: Send>(size: u32, act: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("net.sock");
    let host = Host { name: "a".to_owned(), ..Host::default() };
    let service = Collectives::start(ServiceOptions::new(socket.clone(), host)).unwrap();
    let results = std::thread::scope(|scope| {
        let start = |rank| {
            let options = JoinOptions {
                service: socket.clone(),
                deadline: Duration::from_secs(60),
                ..JoinOptions::new("training", rank, size)
            };
            let act = &act;
            scope.spawn(move || act(Ranks::new(Group::join(&options).unwrap())))
        };
        let threads: Vec<_> = (0..size).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    drop(service);
    results
}

/// The bits of all losses and parameters do not depend on the number of ranks.
#[test]
fn two_and_four_ranks_train_the_same_model() {
    let mut alone = trainer(0.1);
    let expected = losses(&mut alone, &mut Alone, STEPS);
    for size in [2, 4] {
        for (own, found) in with_ranks(size, |mut ranks| {
            let mut trainer = trainer(0.1);
            let losses = losses(&mut trainer, &mut ranks, STEPS);
            (trainer, losses)
        }) {
            assert_eq!(found, expected, "{size} ranks");
            assert_eq!(own.parameters(), alone.parameters());
        }
    }
}

/// A training of two ranks is continued by four.
#[test]
fn a_checkpoint_can_be_continued_by_more_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("training");
    let expected = losses(&mut trainer(0.1), &mut Alone, STEPS);
    with_ranks(2, |mut ranks| {
        let mut trainer = trainer(0.1);
        losses(&mut trainer, &mut ranks, 11);
        if ranks.share().0 == 0 {
            trainer.save(&path).unwrap();
        }
    });
    for found in with_ranks(4, |mut ranks| {
        let mut trainer = trainer(0.1);
        trainer.load(&path).unwrap();
        losses(&mut trainer, &mut ranks, STEPS - 11)
    }) {
        assert_eq!(found, expected[11..]);
    }
}

/// A gradient that is no number at one rank ends the training at all of them, at the same step.
#[test]
fn all_ranks_see_that_a_training_diverges() {
    let ends = with_ranks(2, |mut ranks| {
        let mut trainer = trainer(1e9);
        (0..50).find_map(|_| trainer.step(&mut ranks).err()).map(|error| match error {
            Error::Diverged { step, .. } => step,
            other => panic!("{other}"),
        })
    });
    assert!(ends[0].is_some());
    assert_eq!(ends[0], ends[1]);
}
