//! Teams of several hosts in one thread, with socket pairs between them.
use super::*;
use crate::memory::{Plain, Shared};
use crate::schedule::tests::{REDUCTIONS, expected, operation, strategy, value};
use crate::strategy::Windows;
use crate::wire::Socket;
use proptest::prelude::{Just, ProptestConfig, any, prop_assert_eq, prop_oneof, proptest};
use rustix::net::sockopt::set_socket_send_buffer_size;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use tidemill_random::Random;
use tidemill_shm::region::SharedRegion;

type Wires = BTreeMap<WireName, Box<dyn Wire>>;

/// Returns the wires of each host, by pairs of sockets that hold few bytes.
fn wires(strategy: &Strategy, hosts: &[Vec<u32>]) -> Vec<Wires> {
    let mut wires: Vec<Wires> = hosts.iter().map(|_| Wires::new()).collect();
    for (number, host) in hosts.iter().enumerate() {
        for name in Team::needed(strategy, host).into_iter().filter(|name| host.contains(&name.from)) {
            let (one, other) = UnixStream::pair().unwrap();
            set_socket_send_buffer_size(&one, 4096).unwrap();
            let receiver = hosts.iter().position(|host| host.contains(&name.to)).unwrap();
            wires[number].insert(name.clone(), Box::new(Socket::new(one)));
            wires[receiver].insert(name, Box::new(Socket::new(other)));
        }
    }
    wires
}

fn teams(strategy: &Strategy, hosts: &[Vec<u32>]) -> Vec<Team> {
    let make =
        |(host, wires): (&Vec<u32>, Wires)| Team::new(strategy.clone(), host, wires, host_clock()).unwrap();
    hosts.iter().zip(wires(strategy, hosts)).map(make).collect()
}

/// Advances teams in random order until all are done. None of them moves many times in a row: a deadlock.
fn run(teams: &mut [Team], random: &mut Random) -> Result<(), Failed> {
    let (mut idle, mut moved) = (0, Vec::new());
    let mut done = vec![false; teams.len()];
    while !done.iter().all(|done| *done) {
        let next = random.below(teams.len());
        done[next] |= teams[next].advance()? == Progress::Done;
        let figures = |team: &Team| {
            let counters = &team.counters;
            (counters.sent.clone(), counters.received.clone(), counters.within)
        };
        let now: Vec<_> = teams.iter().map(figures).collect();
        idle = if now == moved { idle + 1 } else { 0 };
        moved = now;
        assert!(idle < 100 * teams.len(), "a deadlock");
    }
    Ok(())
}

fn numbered(number: u64, operation: Operation, length: u64) -> Numbered {
    Numbered::new(number, operation, Element::I32, length)
}

const SUM: Operation = Operation::AllReduce { reduction: Reduction::Sum };

fn plain(bytes: usize) -> Arc<dyn Memory> {
    Arc::new(Plain::new(vec![1; bytes]))
}

/// Begins an operation at each team, with buffers of ones.
fn begin(teams: &mut [Team], numbered: Numbered) -> BTreeMap<u32, Arc<Plain>> {
    let mut all = BTreeMap::new();
    for team in teams {
        let bytes = 1i32.to_le_bytes().repeat(numbered.length as usize);
        let buffers: BTreeMap<u32, Arc<Plain>> =
            team.local.iter().map(|rank| (*rank, Arc::new(Plain::new(bytes.clone())))).collect();
        let dynamic = buffers.iter().map(|(rank, buffer)| (*rank, buffer.clone() as _));
        team.begin(numbered, dynamic.collect()).unwrap();
        all.extend(buffers);
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn operations_are_right_on_hosts_with_any_ranks(
        count in 1usize..8, hosts in 1usize..4, channels in 1usize..3, piece in prop_oneof![Just(24u32), Just(1000), Just(30_000)],
        seed in any::<u64>(),
    ) {
        let random = &mut Random::of_seed(seed);
        let strategy = strategy(random, count, channels, piece, 2000);
        let mut ranks = vec![Vec::new(); hosts];
        for rank in &strategy.members {
            ranks[random.below(hosts)].push(*rank);
        }
        let mut teams = teams(&strategy, &ranks);
        // One after the other over the same wires.
        for number in 1..6 {
            let root = strategy.members[random.below(count)];
            let operation = operation(random.below(5), REDUCTIONS[random.below(3)], root);
            let largest = [20, 600, 8000][random.below(3)];
            let length = (random.below(largest) / count * count) as u64;
            let numbered = Numbered::new(number, operation, Element::ALL[random.below(5)], length);
            let values: Vec<Vec<i8>> =
                (0..count).map(|_| (0..length).map(|_| random.below(9) as i8 - 4).collect()).collect();
            let bytes_of = |values: &[i8]| values.iter().flat_map(|one| value(numbered.element, *one)).collect::<Vec<u8>>();
            let mut buffers: BTreeMap<u32, Arc<dyn Memory>> = BTreeMap::new();
            for (rank, values) in strategy.members.iter().zip(&values) {
                let bytes = bytes_of(values);
                let buffer: Arc<dyn Memory> = if random.chance(0.5) {
                    let region = Arc::new(SharedRegion::create(128 << 10).unwrap());
                    Arc::new(Shared::new(region, random.below(50) as u64, bytes.len() as u64).unwrap())
                } else {
                    Arc::new(Plain::new(vec![0; bytes.len()]))
                };
                buffer.write(0, &bytes).unwrap();
                buffers.insert(*rank, buffer);
            }
            for team in &mut teams {
                let own = team.local.iter().map(|rank| (*rank, buffers[rank].clone())).collect();
                team.begin(numbered, own).unwrap();
            }
            prop_assert_eq!(run(&mut teams, random), Ok(()));
            for ((range, values), (rank, buffer)) in expected(&strategy, &numbered, &values).iter().zip(&buffers) {
                let mut bytes = vec![0; buffer.bytes() as usize];
                buffer.read(0, &mut bytes).unwrap();
                let size = numbered.element.bytes();
                let range = range.start * size..range.end * size;
                prop_assert_eq!(&bytes[range.clone()], &bytes_of(values)[range], "rank {}", rank);
            }
        }
        // What one sent another one has received.
        let sent: u64 = teams.iter().flat_map(|team| team.counters.sent.values()).sum();
        let received: u64 = teams.iter().flat_map(|team| team.counters.received.values()).sum();
        prop_assert_eq!(sent, received);
    }
}

#[test]
fn wires_are_those_between_hosts() {
    let mut strategy = Strategy::rank_order(1, vec![0, 1, 2]);
    strategy.channels[0].paths[1] = Some("spine0".to_owned());
    let names = Team::needed(&strategy, &[0, 1]);
    let name =
        |from, to, channel, path: Option<&str>| WireName { from, to, channel, path: path.map(str::to_owned) };
    let rings = [name(1, 2, 0, Some("spine0")), name(2, 0, 0, None)];
    let mesh =
        [name(0, 2, MESH, None), name(1, 2, MESH, None), name(2, 0, MESH, None), name(2, 1, MESH, None)];
    assert_eq!(names, [&rings[..], &mesh].concat());
    assert_eq!(BTreeSet::from_iter(Team::needed(&strategy, &[2])), BTreeSet::from_iter(names.clone()));
    let missing = Team::new(strategy, &[0, 1], Wires::new(), host_clock()).err();
    assert_eq!(missing, Some(NoTeam::Wire(names[0].clone())));
}

#[test]
fn what_cannot_begin_is_refused_and_changes_nothing() {
    let strategy = Strategy::rank_order(1, vec![0, 1]);
    let mut team = teams(&strategy, &[vec![0, 1]]).remove(0);
    let both = |bytes| BTreeMap::from([(0, plain(8)), (1, plain(bytes))]);
    let refused = |team: &mut Team, numbered, buffers| team.begin(numbered, buffers).unwrap_err();
    let buffer = NotBegun::Buffer { rank: 1, bytes: 7, length: 2, element: 4 };
    assert_eq!(refused(&mut team, numbered(1, SUM, 2), both(7)), buffer);
    assert!(matches!(refused(&mut team, numbered(1, SUM, u64::MAX), both(8)), NotBegun::Buffer { .. }));
    let one = BTreeMap::from([(0, plain(8))]);
    assert_eq!(
        refused(&mut team, numbered(1, SUM, 2), one),
        NotBegun::Ranks { found: vec![0], local: vec![0, 1] }
    );
    assert_eq!(
        refused(&mut team, numbered(1, Operation::Broadcast { root: 2 }, 2), both(8)),
        NotBegun::Root(2)
    );
    let parts = NotBegun::Parts { length: 1, members: 2 };
    assert_eq!(refused(&mut team, numbered(1, Operation::AllToAll, 1), both(8)), parts);
    assert_eq!(refused(&mut team, numbered(0, SUM, 2), both(8)), NotBegun::Number { found: 0, last: 0 });
    team.begin(numbered(1, SUM, 2), both(8)).unwrap();
    assert_eq!(refused(&mut team, numbered(2, SUM, 2), both(8)), NotBegun::Busy(1));
    assert_eq!(team.advance(), Ok(Progress::Done));
    assert_eq!(refused(&mut team, numbered(1, SUM, 2), both(8)), NotBegun::Number { found: 1, last: 1 });
}

#[test]
fn a_host_that_is_ahead_waits_in_the_wires() {
    // A broadcast ends at its root when all has left.
    let strategy = Strategy::rank_order(1, vec![0, 1]);
    let mut teams = teams(&strategy, &[vec![0], vec![1]]);
    let broadcast = Operation::Broadcast { root: 0 };
    let bytes: Vec<u8> = 5i32.to_le_bytes().to_vec();
    for number in 1..4 {
        let buffer = BTreeMap::from([(0, Arc::new(Plain::new(bytes.clone())) as _)]);
        teams[0].begin(numbered(number, broadcast, 1), buffer).unwrap();
        assert_eq!(teams[0].advance(), Ok(Progress::Done));
    }
    for number in 1..4 {
        let buffer = Arc::new(Plain::new(vec![0; 4]));
        teams[1].begin(numbered(number, broadcast, 1), BTreeMap::from([(1, buffer.clone() as _)])).unwrap();
        assert_eq!(teams[1].advance(), Ok(Progress::Done));
        assert_eq!(buffer.to_vec(), bytes);
    }
}

#[test]
fn who_is_waited_for_is_known_and_its_death_is_named() {
    let strategy = Strategy::rank_order(1, vec![0, 1, 2]);
    let mut teams = teams(&strategy, &[vec![0], vec![1], vec![2]]);
    for length in [1, 100_000] {
        assert_eq!(begin(&mut teams, numbered(length, SUM, length)).len(), 3);
        if length == 1 {
            run(&mut teams, &mut Random::of_seed(1)).unwrap();
        }
    }
    // 2 does nothing.
    for _ in 0..10 {
        assert_eq!(teams[0].advance(), Ok(Progress::Working));
        assert_eq!(teams[1].advance(), Ok(Progress::Working));
    }
    assert_eq!(teams[0].waits_for(), BTreeSet::from([2]));
    assert!(!teams[0].waits().is_empty());
    assert_eq!(teams[0].wait_at_most(), None);
    teams.truncate(2);
    let failed = teams[0].advance().unwrap_err();
    assert_eq!((failed.rank, failed.reason.contains("ended")), (2, true), "{failed}");
    assert_eq!(teams[0].advance(), Err(failed.clone()), "it stays so");
    let buffer = BTreeMap::from([(0, plain(4))]);
    assert_eq!(teams[0].begin(numbered(200_000, SUM, 1), buffer), Err(NotBegun::Failed(failed)));
    // 1 sends to it.
    assert_eq!(teams[1].advance().unwrap_err().rank, 2);
}

#[test]
fn a_peer_that_is_elsewhere_is_an_error() {
    let failure = |change: &dyn Fn(&mut Team, &mut Numbered)| {
        let strategy = Strategy::rank_order(7, vec![0, 1]);
        let mut teams = teams(&strategy, &[vec![0], vec![1]]);
        let mut other = numbered(1, SUM, 1);
        change(&mut teams[1], &mut other);
        begin(&mut teams[..1], numbered(1, SUM, 1));
        begin(&mut teams[1..], other);
        run(&mut teams, &mut Random::of_seed(3)).unwrap_err()
    };
    let epoch = failure(&|team, _| team.strategy.epoch = 8);
    assert!(epoch.reason.contains("epoch 7") && epoch.reason.contains("epoch 8"), "{epoch}");
    assert!(failure(&|_, other| other.number = 2).reason.contains("operation 2"));
    // It says what the other one calls, also where the bytes would do.
    for change in [
        (|other: &mut Numbered| other.length = 2) as fn(&mut Numbered),
        |other| other.element = Element::F32,
        |other| other.operation = Operation::AllReduce { reduction: Reduction::Max },
    ] {
        let (own, mut other) = (numbered(1, SUM, 1), numbered(1, SUM, 1));
        change(&mut other);
        let failed = failure(&|_, of| change(of));
        let called = if failed.rank == 1 { other } else { own };
        assert_eq!(failed.called, Some(called), "{failed}");
    }
}

#[test]
fn bytes_that_are_no_frame_are_an_error() {
    let strategy = Strategy::rank_order(1, vec![0, 1]);
    let mut wires = wires(&strategy, &[vec![0], vec![1]]);
    for wire in wires[1].iter_mut().filter(|(name, _)| name.from == 1).map(|(_, wire)| wire) {
        assert_eq!(wire.send(&[7; 500]).unwrap(), 500);
    }
    let mut team = Team::new(strategy, &[0], wires.remove(0), host_clock()).unwrap();
    begin(std::slice::from_mut(&mut team), numbered(1, SUM, 200));
    let failed = team.advance().unwrap_err();
    assert_eq!((failed.rank, failed.reason.contains("no frame")), (1, true), "{failed}");
}

#[test]
fn windows_stop_bytes_to_other_hosts_only() {
    let now = Arc::new(Mutex::new(Duration::from_micros(10_000)));
    let clock: Clock = {
        let now = now.clone();
        Arc::new(move || *now.lock().unwrap())
    };
    let mut strategy = Strategy::rank_order(1, vec![0, 1, 2]);
    strategy.windows = Some(Windows { period_us: 1000, open_us: vec![(400, 500)], also: Vec::new() });
    let hosts = [vec![0, 1], vec![2]];
    let mut wires = wires(&strategy, &hosts);
    let mut teams: Vec<Team> = hosts
        .iter()
        .map(|host| Team::new(strategy.clone(), host, wires.remove(0), clock.clone()).unwrap())
        .collect();
    let buffers = begin(&mut teams, numbered(1, SUM, 30_000));
    for team in &mut teams {
        assert_eq!(team.advance(), Ok(Progress::Working));
        assert!(team.counters().sent.is_empty());
        assert_eq!(team.wait_at_most(), Some(Duration::from_micros(400)));
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let ready = rustix::event::poll(&mut team.waits(), Some(&now));
        assert_eq!(ready, Ok(0), "writable sockets would wake it all the time");
    }
    assert!(teams[0].counters().within > 0, "within the host it goes on");
    *now.lock().unwrap() += Duration::from_micros(450);
    run(&mut teams, &mut Random::of_seed(1)).unwrap();
    assert!(teams.iter().all(|team| !team.counters().sent.is_empty() && team.wait_at_most().is_none()));
    assert!(buffers.values().all(|buffer| buffer.to_vec() == 3i32.to_le_bytes().repeat(30_000)));
}

#[test]
fn a_program_that_writes_its_buffer_meanwhile_harms_itself_only() {
    let strategy = Strategy::rank_order(1, vec![0, 1, 2]);
    let mut teams = teams(&strategy, &[vec![0, 1], vec![2]]);
    let region = Arc::new(SharedRegion::create(256 << 10).unwrap());
    let hostile = region.clone();
    let ends = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (ended, began) = (ends.clone(), std::sync::mpsc::channel());
    let writer = std::thread::spawn(move || {
        let mut count = 0u64;
        while !ended.load(std::sync::atomic::Ordering::Relaxed) {
            hostile.copy_in(count * 8 % (200 << 10), &count.to_le_bytes()).unwrap();
            count += 1;
            if count == 1 {
                began.0.send(()).unwrap();
            }
        }
        count
    });
    began.1.recv().unwrap();
    let length = 50_000;
    for number in 1..20 {
        let operation = if number % 2 == 0 { SUM } else { Operation::Broadcast { root: 1 } };
        let shared = Arc::new(Shared::new(region.clone(), 0, length * 4).unwrap());
        let others =
            [1, 2].map(|rank| (rank, Arc::new(Plain::new(2i32.to_le_bytes().repeat(length as usize)))));
        let of = |rank: usize| (others[rank - 1].0, others[rank - 1].1.clone() as _);
        teams[0]
            .begin(numbered(number, operation, length), BTreeMap::from([(0, shared as _), of(1)]))
            .unwrap();
        teams[1].begin(numbered(number, operation, length), BTreeMap::from([of(2)])).unwrap();
        run(&mut teams, &mut Random::of_seed(number)).unwrap();
        if operation != SUM {
            // In the ring 1, 2, 0 its bytes go to nobody.
            assert!(
                others
                    .iter()
                    .all(|(_, buffer)| buffer.to_vec() == 2i32.to_le_bytes().repeat(length as usize))
            );
        }
    }
    ends.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(writer.join().unwrap() > 1, "it wrote");
}

#[test]
fn when_a_host_dies_at_any_moment_the_others_have_the_result_or_name_it() {
    let (mut failed, mut done) = (0, 0);
    for seed in 0..80 {
        let random = &mut Random::of_seed(seed);
        let strategy = strategy(random, 5, 2, 1000, 0);
        let ranks = &strategy.members;
        let mut teams = teams(&strategy, &[ranks[..2].to_vec(), ranks[2..3].to_vec(), ranks[3..].to_vec()]);
        let buffers = begin(&mut teams, numbered(1, SUM, 4000));
        // Within the operation, and mostly after it.
        for _ in 0..random.below([20, 600][seed as usize % 2]) {
            teams[random.below(3)].advance().unwrap();
        }
        let dead = teams.pop().unwrap().local;
        for team in &mut teams {
            // Who waits for one that waits learns it from the service, not here.
            let ended = (0..100).map(|_| team.advance()).find(|progress| *progress != Ok(Progress::Working));
            match ended {
                Some(Err(failure)) => {
                    assert!(dead.contains(&failure.rank), "{failure}, {dead:?} died");
                    failed += 1;
                }
                Some(Ok(_)) => {
                    let sums = 5i32.to_le_bytes().repeat(4000);
                    assert!(team.local.iter().all(|rank| buffers[rank].to_vec() == sums));
                    done += 1;
                }
                None => {}
            }
        }
    }
    assert!(failed > 5 && done > 5, "each came: {failed} {done}");
}

#[test]
fn a_long_operation_lets_its_thread_do_other_things() {
    let mut strategy = Strategy::rank_order(1, vec![0, 1]);
    (strategy.piece, strategy.small) = (8, 0);
    let mut teams = teams(&strategy, &[vec![0, 1]]);
    let buffers = begin(&mut teams, numbered(1, SUM, 100_000));
    let mut calls = 1;
    while teams[0].advance() == Ok(Progress::Working) {
        assert_eq!(teams[0].wait_at_most(), Some(Duration::ZERO), "without waiting");
        calls += 1;
    }
    assert!(calls > 1, "it takes more than one call");
    assert!(buffers.values().all(|buffer| buffer.to_vec() == 2i32.to_le_bytes().repeat(100_000)));
}

#[test]
fn a_gate_holds_bytes_and_times_change_without_other_wires() {
    let mut strategy = Strategy::rank_order(1, vec![0, 1]);
    let mut teams = teams(&strategy, &[vec![0], vec![1]]);
    let sends = Arc::new(std::sync::atomic::AtomicBool::new(true));
    for team in &mut teams {
        let sends = Arc::clone(&sends);
        team.set_gate(Some(Arc::new(move || sends.load(std::sync::atomic::Ordering::Relaxed))));
    }
    let _kept = begin(&mut teams, numbered(1, SUM, 30_000));
    for _ in 0..3 {
        for team in &mut teams {
            assert_eq!(team.advance(), Ok(Progress::Working));
            assert!(team.counters().sent.is_empty() && team.wait_at_most().is_some());
        }
    }
    strategy.epoch = 2;
    strategy.yields = vec!["7/first".into()];
    strategy.same_wires = true;
    assert!(!teams[0].retime(&strategy), "an operation runs");
    sends.store(false, std::sync::atomic::Ordering::Relaxed);
    run(&mut teams, &mut Random::of_seed(1)).unwrap();
    for team in &mut teams {
        assert!(team.counters().held > Duration::ZERO && team.moved() > 0);
        let other = Strategy { piece: 1 << 12, ..strategy.clone() };
        assert!(!team.retime(&other), "pieces are of another size");
        assert!(team.retime(&strategy));
        assert_eq!(team.strategy(), &strategy);
    }
    let buffers = begin(&mut teams, numbered(2, SUM, 5_000));
    run(&mut teams, &mut Random::of_seed(2)).unwrap();
    assert!(buffers.values().all(|buffer| buffer.to_vec() == 2i32.to_le_bytes().repeat(5_000)));
}
