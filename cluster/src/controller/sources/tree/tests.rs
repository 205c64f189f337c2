use super::*;
use crate::clock::instant;

/// Workers of racks in a simulation in which each link carries one part of a file per tick to each who takes from it.
struct Fleet {
    /// Rack and parts that are there, by worker.
    workers: BTreeMap<String, (String, u64)>,
    sources: BTreeMap<String, Origin>,
    gives_parts: bool,
    roll_outs: RollOuts,
    begin: Instant,
    tick: u64,
    /// Most takers of one worker at a time.
    most_taken: usize,
}

/// Parts of the file.
const PARTS: u64 = 10;

impl Fleet {
    fn new(racks: &[(&str, usize)], gives_parts: bool) -> Self {
        let mut workers = BTreeMap::new();
        for (rack, count) in racks {
            for number in 0..*count {
                workers.insert(format!("{rack}{number:02}"), ((*rack).to_owned(), 0));
            }
        }
        let (roll_outs, begin) = (RollOuts::default(), instant());
        Self { workers, sources: BTreeMap::new(), gives_parts, roll_outs, begin, tick: 0, most_taken: 0 }
    }

    fn now(&self) -> Instant {
        self.begin + Duration::from_millis(200 * self.tick)
    }

    fn ask(&mut self, name: &str, failed: &[&str]) -> Choice {
        let candidates: Vec<Candidate<'_>> = self
            .workers
            .iter()
            .filter(|(other, _)| *other != name && !failed.contains(&other.as_str()))
            .map(|(other, (rack, parts))| Candidate {
                name: other,
                rack: rack.clone(),
                is_complete: *parts == PARTS,
                gives_parts: self.gives_parts,
            })
            .collect();
        let rack = self.workers[name].0.clone();
        let asker = Asker { worker: name, rack: &rack, digest: "d", has_store: false };
        let now = self.begin + Duration::from_millis(200 * self.tick);
        let choice = self.roll_outs.choose(&asker, &candidates, |_| None, now);
        match &choice {
            Choice::From(origin) => drop(self.sources.insert(name.to_owned(), origin.clone())),
            Choice::Wait => drop(self.sources.remove(name)),
        }
        choice
    }

    /// All who have no source ask; then each gets a part, where its source is ahead of it.
    fn step(&mut self) {
        let names: Vec<String> = self.workers.keys().cloned().collect();
        for name in &names {
            if self.workers[name].1 < PARTS && !self.sources.contains_key(name) {
                self.ask(name, &[]);
            }
        }
        let before: BTreeMap<String, u64> =
            self.workers.iter().map(|(name, (_, parts))| (name.clone(), *parts)).collect();
        for (name, origin) in &self.sources {
            let ahead = match origin {
                Origin::Worker(from) => before.get(from).copied().unwrap_or_default(),
                _ => PARTS,
            };
            if let Some((_, parts)) = self.workers.get_mut(name) {
                *parts += u64::from(ahead > *parts);
            }
        }
        for name in &names {
            let is_from = |origin: &&Origin| **origin == Origin::Worker(name.clone());
            self.most_taken = self.most_taken.max(self.sources.values().filter(is_from).count());
        }
        let workers = &self.workers;
        self.sources.retain(|name, _| workers[name].1 < PARTS);
        self.tick += 1;
        let now = self.now();
        let workers = &self.workers;
        let holds = |name: &str, _: &str| workers.get(name).is_none_or(|(_, parts)| *parts == PARTS);
        self.roll_outs.tidy(holds, |name| workers.contains_key(name), now);
    }

    fn is_over(&self) -> bool {
        self.workers.values().all(|(_, parts)| *parts == PARTS)
    }

    fn copies(&self) -> usize {
        self.roll_outs.0["d"].copies
    }
}

#[test]
fn a_file_enters_each_rack_once_and_all_have_it_after_about_one_copy() {
    let mut fleet = Fleet::new(&[("a", 10), ("b", 10)], true);
    while !fleet.is_over() {
        fleet.step();
    }
    assert_eq!(fleet.copies(), 2, "one for each rack");
    assert_eq!(fleet.most_taken, 1, "each sends it once");
    assert!(fleet.tick <= PARTS + 10, "ten parts, and a part for each worker of the chain: {}", fleet.tick);
    let end = fleet.now();
    assert!(fleet.roll_outs.finished(|_, _| true, end).is_empty(), "another one may ask yet");
    let finished = fleet.roll_outs.finished(|_, _| true, end + QUIET);
    assert_eq!(finished[0].1.took(), end - fleet.begin);
    assert_eq!((finished.len(), finished[0].1.workers.len(), finished[0].1.racks.len()), (1, 20, 2));
    assert!(fleet.roll_outs.0.is_empty());
}

/// Agents of versions that give only whole files: the controller sends one copy, and a tree of whole files grows.
#[test]
fn workers_that_give_only_whole_files_wait_for_the_first_one_of_their_rack() {
    let mut fleet = Fleet::new(&[("a", 20)], false);
    while !fleet.is_over() {
        fleet.step();
    }
    assert_eq!((fleet.copies(), fleet.most_taken), (1, MOST_TAKERS));
    assert!(fleet.tick <= 5 * PARTS, "as a tree grows, not one after the other: {}", fleet.tick);
}

#[test]
fn a_worker_that_asks_for_the_next_file_gives_the_one_before() {
    let mut fleet = Fleet::new(&[("a", 2)], true);
    assert_eq!(fleet.ask("a00", &[]), Choice::From(Origin::Controller));
    let next = Asker { worker: "a00", rack: "a", digest: "next", has_store: false };
    assert_eq!(fleet.roll_outs.choose(&next, &[], |_| None, fleet.begin), Choice::From(Origin::Controller));
    // No heartbeat has said so.
    assert_eq!(fleet.ask("a01", &[]), Choice::From(Origin::Worker("a00".into())));
    assert_eq!(fleet.copies(), 1);
}

#[test]
fn a_third_rack_has_a_file_from_another_one_while_it_arrives_there() {
    let mut fleet = Fleet::new(&[("a", 1), ("b", 1), ("c", 1)], true);
    assert_eq!(fleet.ask("a00", &[]), Choice::From(Origin::Controller));
    assert_eq!(fleet.ask("b00", &[]), Choice::From(Origin::Controller));
    assert_eq!(fleet.ask("c00", &[]), Choice::From(Origin::Worker("a00".into())), "two copies at a time");
}

/// The worker through which the file comes to its rack dies: who took from it asks again, and the ones after it notice nothing.
#[test]
fn a_chain_whose_head_dies_goes_on_from_its_second_one() {
    let mut fleet = Fleet::new(&[("a", 5)], true);
    (0..6).for_each(|_| fleet.step());
    assert_eq!(fleet.sources["a01"], Origin::Worker("a00".into()));
    assert_eq!(fleet.ask("a01", &["a00"]), Choice::From(Origin::Controller), "all others wait for it");
    assert_eq!(fleet.sources["a02"], Origin::Worker("a01".into()), "it notices nothing");
    // Not known to be lost yet: who comes now may be sent there, and asks again.
    fleet.workers.remove("a00");
    fleet.sources.remove("a00");
    fleet.step();
    fleet.workers.insert("a00".into(), ("a".into(), 0));
    let Choice::From(Origin::Worker(tail)) = fleet.ask("a00", &[]) else { panic!("it is back") };
    assert_eq!(tail, "a04");
    while !fleet.is_over() {
        fleet.step();
    }
    assert_eq!(fleet.copies(), 2);
    fleet.roll_outs.tidy(|_, _| true, |name| name != "a02", fleet.now());
    assert_eq!(fleet.roll_outs.0["d"].workers.len(), 4, "who is lost does not count");
}

#[test]
fn measured_links_decide_who_sends_to_whom() {
    let (mut roll_outs, now) = (RollOuts::default(), instant());
    let candidate = |name: &'static str, rack: &str, is_complete| Candidate {
        name,
        rack: rack.to_owned(),
        is_complete,
        gives_parts: true,
    };
    let all = [
        candidate("slow", "a", true),
        candidate("fast", "a", true),
        candidate("far", "b", true),
        candidate("near", "c", true),
    ];
    let rates = BTreeMap::from([("slow", 1e6), ("fast", 1e8), ("far", 1e6), ("near", 5e6)]);
    let rate = |from: &str| rates.get(from).copied();
    let mut ask = |worker, rack, workers: &[Candidate<'_>]| {
        roll_outs.choose(&Asker { worker, rack, digest: "d", has_store: false }, workers, rate, now)
    };
    let from = |name: &str| Choice::From(Origin::Worker(name.to_owned()));
    assert_eq!(ask("x", "a", &all), from("fast"));
    assert_eq!(ask("y", "a", &all), from("fast"), "half of it is more");
    assert_eq!(ask("z", "a", &all), from("slow"), "two take from the other one");
    assert_eq!(ask("u", "d", &all[2..]), from("near"), "of other racks the one with the better link");
}

/// Two files that were served but not yet reported would delay all others.
#[test]
fn many_small_files_come_one_after_the_other() {
    let (mut roll_outs, now) = (RollOuts::default(), instant());
    let hub = [Candidate { name: "hub", rack: String::new(), is_complete: true, gives_parts: true }];
    for number in 0..100 {
        let digest = format!("file {number}");
        let asker = Asker { worker: "edge", rack: "", digest: &digest, has_store: false };
        let choice = roll_outs.choose(&asker, &hub, |_| None, now);
        assert_eq!(choice, Choice::From(Origin::Worker("hub".into())), "file {number}");
    }
    roll_outs.tidy(|_, _| true, |_| true, now);
    assert!(roll_outs.finished(|_, _| true, now).is_empty());
    assert_eq!(roll_outs.finished(|_, _| true, now + QUIET).len(), 100);
}

#[test]
fn who_gives_up_or_is_lost_makes_room() {
    let (mut roll_outs, begin) = (RollOuts::default(), instant());
    let mut ask = |worker: &str, alive: &[&str], now| {
        roll_outs.tidy(|_, _| false, |name| alive.contains(&name), now);
        let asker = Asker { worker, rack: worker, digest: "d", has_store: false };
        roll_outs.choose(&asker, &[], |_| None, now)
    };
    let controller = Choice::From(Origin::Controller);
    let all = ["a", "b", "c"];
    assert_eq!(ask("a", &all, begin), controller);
    assert_eq!(ask("a", &all, begin), controller, "it asks again");
    assert_eq!(ask("b", &all, begin), controller);
    assert_eq!(ask("c", &all, begin), Choice::Wait);
    assert_eq!(ask("c", &["b", "c"], begin), controller, "a is lost");
    assert_eq!(ask("a", &all, begin), Choice::Wait);
    assert_eq!(ask("a", &all, begin + PATIENCE), controller, "the others say nothing");
}

/// A controller that was started again learns from workers who takes from whom.
#[test]
fn workers_say_what_they_fetch_and_from_whom() {
    let (mut roll_outs, now) = (RollOuts::default(), instant());
    let says =
        |bytes, from: Option<&str>| Fetching { digest: "d".into(), bytes, from: from.map(str::to_owned) };
    let name = |place: &str| (place == "head:1").then(|| "head".to_owned());
    roll_outs.told(("head", "a"), &[says(7, None)], name, now);
    // Whose place that is was not heard yet.
    roll_outs.told(("second", "a"), &[says(5, Some("head:1"))], |_| None, now);
    assert!(roll_outs.0["d"].taker("second").is_none());
    roll_outs.told(("second", "a"), &[says(5, Some("head:1"))], name, now);
    let found = roll_outs.0["d"].taker("second").unwrap();
    assert_eq!((&found.from, found.bytes), (&Origin::Worker("head".into()), 5));
    // Its source is gone; the second one comes from it.
    let second = [Candidate { name: "second", rack: "a".into(), is_complete: false, gives_parts: true }];
    let asker = Asker { worker: "head", rack: "a", digest: "d", has_store: false };
    assert_eq!(roll_outs.choose(&asker, &second, |_| None, now), Choice::From(Origin::Controller));
    roll_outs.told(("second", "a"), &[], name, now);
    assert!(roll_outs.0["d"].taker("second").is_none(), "it has given up, or has it");
    assert!(roll_outs.0["d"].taker("head").is_some());
}
