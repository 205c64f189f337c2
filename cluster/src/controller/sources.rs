//! Chooses the source of a file for each worker: the controller serves a few workers, and they serve the others, which spares the
//! controller's uplink.
use super::answering::{Answer, No, blocking, worker};
use super::{Shared, locked};
use crate::api::{OBJECT_STORE, Source, SourceRequest};
use crate::clock::instant;
use axum::Json;
use axum::extract::{ConnectInfo, Path, State};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_http::server::Peer;

/// Copies of a file that the controller sends at the same time.
const MOST_COPIES: usize = 2;
/// Workers that have files from one worker at the same time.
const MOST_TAKERS: usize = 2;
/// Time after which a silent taker has given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause before a worker asks again.
const PAUSE: Duration = Duration::from_millis(200);

/// A worker that is fetching a file.
struct Taker {
    worker: String,
    /// None: from the controller.
    from: Option<String>,
    heard: Instant,
}

/// Takers of files, by digest.
#[derive(Default)]
pub(crate) struct Takers(BTreeMap<String, Vec<Taker>>);

/// A worker that holds a file and can be dialled.
struct Holder {
    name: String,
    place: String,
}

impl Takers {
    /// Chooses the source for a worker. `holders` have the file; `alive` are the live workers.
    fn choose(
        &mut self,
        digest: &str,
        worker: &str,
        holders: &[Holder],
        done: &BTreeSet<String>,
        alive: &BTreeSet<String>,
        now: Instant,
    ) -> Source {
        for takers in self.0.values_mut() {
            // A worker that asks for the next file has the previous one.
            let has_it = |one: &Taker| one.worker == worker;
            takers.retain(|one| {
                !has_it(one) && now.duration_since(one.heard) < PATIENCE && alive.contains(&one.worker)
            });
        }
        let of_this = self.0.entry(digest.to_owned()).or_default();
        of_this.retain(|one| !done.contains(&one.worker));
        // A worker that fetches many files in a row counts once.
        let busy = |name: &str| {
            let others = self.0.values().flatten().filter(|one| one.worker != worker);
            let there = others.filter(|one| one.from.as_deref() == Some(name));
            there.map(|one| one.worker.as_str()).collect::<BTreeSet<_>>().len()
        };
        let free = holders.iter().map(|holder| (busy(&holder.name), &holder.name, holder));
        let free = free.filter(|(busy, ..)| *busy < MOST_TAKERS).min_by_key(|(busy, name, _)| (*busy, *name));
        let (from, source) = match free {
            Some((.., holder)) => (Some(holder.name.clone()), Source::Worker { place: holder.place.clone() }),
            None => {
                let copies =
                    self.0.get(digest).into_iter().flatten().filter(|one| one.from.is_none()).count();
                if !holders.is_empty() || copies >= MOST_COPIES {
                    self.0.retain(|_, takers| !takers.is_empty());
                    return Source::Wait { milliseconds: PAUSE.as_millis().try_into().unwrap_or(u64::MAX) };
                }
                (None, Source::Controller)
            }
        };
        let taker = Taker { worker: worker.to_owned(), from, heard: now };
        self.0.entry(digest.to_owned()).or_default().push(taker);
        self.0.retain(|_, takers| !takers.is_empty());
        source
    }

    /// Drops takers that hold their file now.
    fn forget(&mut self, holds: impl Fn(&str, &str) -> bool) {
        for (digest, takers) in &mut self.0 {
            takers.retain(|one| !holds(&one.worker, digest));
        }
        self.0.retain(|_, takers| !takers.is_empty());
    }

    fn heard(&mut self, digest: &str, worker: &str, now: Instant) {
        let takers = self.0.get_mut(digest).into_iter().flatten();
        takers.filter(|one| one.worker == worker).for_each(|one| one.heard = now);
    }
}

impl Shared {
    fn source(&self, digest: &str, name: &str, failed: &[String]) -> Source {
        let (mut holders, mut done, mut alive) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        let workers = locked(&self.workers);
        for (holder, live) in workers.iter().filter(|(_, live)| live.is_alive) {
            alive.insert(holder.clone());
            if !live.held.contains(digest) {
                continue;
            }
            done.insert(holder.clone());
            let place = live.heartbeat.health.as_ref().and_then(|health| health.files_at.clone());
            if let Some(place) = place.filter(|place| holder != name && !failed.contains(place)) {
                holders.push(Holder { name: holder.clone(), place });
            }
        }
        let mut takers = locked(&self.takers);
        takers.forget(|worker, digest| workers.get(worker).is_some_and(|live| live.held.contains(digest)));
        drop(workers);
        let chosen = takers.choose(digest, name, &holders, &done, &alive, instant());
        drop(takers);
        // The store serves many at once, without the controller's uplink.
        let is_open = !failed.iter().any(|place| place == OBJECT_STORE);
        match &chosen {
            Source::Controller | Source::Wait { .. } if is_open => {
                self.blobs.link(digest).map_or(chosen, |link| Source::Store { link })
            }
            _ => chosen,
        }
    }

    /// A worker still fetches a file from here.
    pub(super) fn gives(&self, digest: &str, name: &str) {
        locked(&self.takers).heard(digest, name, instant());
    }
}

pub(super) async fn source(
    State(shared): State<Arc<Shared>>,
    Path(digest): Path<String>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(request): Json<SourceRequest>,
) -> Answer<Source> {
    blocking(&shared, move |shared| {
        let (name, _) = worker(shared, &peer)?;
        Ok::<_, No>(Json(shared.source(&digest, &name, &request.failed)))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two files that were served but not yet reported would delay all others.
    #[test]
    fn many_small_files_come_one_after_the_other() {
        let (mut takers, now) = (Takers::default(), instant());
        let alive = BTreeSet::from(["edge".to_owned(), "hub".to_owned()]);
        let holders = [Holder { name: "hub".into(), place: "hub:1".into() }];
        for number in 0..50 {
            let source =
                takers.choose(&format!("file {number}"), "edge", &holders, &BTreeSet::new(), &alive, now);
            assert!(matches!(source, Source::Worker { .. }), "file {number}: {source:?}");
        }
    }

    /// Twenty workers start at once and need a second for a copy: two copies come from the controller, and each worker serves at most two
    /// at a time.
    #[test]
    fn a_roll_out_to_twenty_takes_two_copies_from_the_controller() {
        let names: BTreeSet<String> = (0..20).map(|number| format!("w{number:02}")).collect();
        let (mut takers, begin) = (Takers::default(), instant());
        let (mut done, mut having) = (BTreeSet::new(), BTreeMap::<String, (u64, Source)>::new());
        let mut copies = 0;
        for tick in 0..100 {
            let now = begin + Duration::from_millis(200 * tick);
            let (ready, still): (BTreeMap<_, _>, BTreeMap<_, _>) =
                having.into_iter().partition(|(_, (since, _))| tick - since >= 5);
            having = still;
            done.extend(ready.into_keys());
            for name in names.iter().filter(|name| !done.contains(*name)) {
                if having.contains_key(name) {
                    continue;
                }
                let holders: Vec<Holder> = done
                    .iter()
                    .map(|name| Holder { name: name.clone(), place: format!("{name}:1") })
                    .collect();
                match takers.choose("d", name, &holders, &done, &names, now) {
                    Source::Wait { .. } => {}
                    source => {
                        copies += u32::from(source == Source::Controller);
                        having.insert(name.clone(), (tick, source));
                    }
                }
            }
            for place in having.values().map(|(_, source)| source).filter(|one| **one != Source::Controller) {
                assert!(having.values().filter(|(_, source)| source == place).count() <= MOST_TAKERS);
            }
            if done.len() == names.len() {
                assert!(tick <= 25, "as a tree grows, not one after the other: {tick}");
                break;
            }
        }
        assert_eq!((copies, done.len()), (2, 20));
    }

    #[test]
    fn who_gives_up_or_is_lost_makes_room() {
        let (mut takers, now) = (Takers::default(), instant());
        let all = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let (alive, nobody) = (all(&["a", "b", "c"]), BTreeSet::new());
        let mut ask = |worker: &str, alive: &BTreeSet<String>, now| {
            takers.choose("d", worker, &[], &nobody, alive, now)
        };
        assert_eq!(ask("a", &alive, now), Source::Controller);
        assert_eq!(ask("a", &alive, now), Source::Controller, "it asks again");
        assert_eq!(ask("b", &alive, now), Source::Controller);
        assert!(matches!(ask("c", &alive, now), Source::Wait { .. }));
        assert_eq!(ask("c", &all(&["b", "c"]), now), Source::Controller, "a is lost");
        assert!(matches!(ask("a", &alive, now), Source::Wait { .. }));
        assert_eq!(ask("a", &alive, now + PATIENCE), Source::Controller, "the others say nothing");
    }

    /// A worker fetches hundreds of small files from another one, without waiting for earlier ones.
    #[test]
    fn many_files_from_one_worker_are_had_one_after_the_other() {
        let (mut takers, now) = (Takers::default(), instant());
        let alive: BTreeSet<String> = ["giver", "taker", "late"].map(str::to_owned).into();
        let holder = || vec![Holder { name: "giver".into(), place: "giver:1".into() }];
        let done = BTreeSet::from(["giver".to_owned()]);
        for number in 0..100 {
            let found = takers.choose(&format!("{number}"), "taker", &holder(), &done, &alive, now);
            assert!(matches!(found, Source::Worker { .. }), "file {number}");
        }
        takers.forget(|worker, _| worker == "taker");
        assert!(takers.0.is_empty(), "it holds all of them");
    }
}
