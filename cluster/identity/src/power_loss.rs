//! Whenever the process is killed or the power goes, the folder holds what was promised, and nothing that was half done.
//!
//! The operations on files of the life of an authority are recorded; before each of them the power goes, and each change of
//! names that was not synced by then is there or not.
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::authority::{Authority, Issued, JoinRequest, JoinTokenOptions, Lifetimes};
use crate::error::IdentityError;
use crate::files::{Files, parent};
use crate::fingerprint::Fingerprint;
use crate::new_key::NewKey;
use crate::refusal::Refusal;
use crate::timestamp::Timestamp;
use crate::token::{AccessToken, JoinToken};

/// A change of names that is not on the disk yet.
#[derive(Clone)]
enum Change {
    Link(PathBuf, usize),
    Rename(PathBuf, PathBuf, usize),
    Unlink(PathBuf),
}

type Names = BTreeMap<PathBuf, usize>;

impl Change {
    fn folder(&self) -> PathBuf {
        match self {
            Self::Link(path, _) | Self::Rename(_, path, _) | Self::Unlink(path) => parent(path),
        }
    }

    fn apply(&self, names: &mut Names) {
        match self {
            Self::Link(path, file) => drop(names.insert(path.clone(), *file)),
            Self::Rename(from, to, file) => {
                names.remove(from);
                names.insert(to.clone(), *file);
            }
            Self::Unlink(path) => drop(names.remove(path)),
        }
    }
}

/// A file system that remembers which names are on its disk. A folder is a file without bytes.
#[derive(Clone, Default)]
struct Machine {
    files: Vec<Vec<u8>>,
    names: Names,
    on_disk: Names,
    changes: Vec<Change>,
}

impl Machine {
    fn change(&mut self, change: Change) {
        change.apply(&mut self.names);
        self.changes.push(change);
    }

    /// All that may be there after a loss of power; the last one is what a killed process leaves.
    fn after_power_loss(&self) -> Vec<Self> {
        assert!(self.changes.len() < 12, "{} changes wait for the disk", self.changes.len());
        let after = |chosen: usize| {
            let mut names = self.on_disk.clone();
            for (index, change) in self.changes.iter().enumerate() {
                if chosen >> index & 1 == 1 {
                    change.apply(&mut names);
                }
            }
            let all = names.clone();
            names.retain(|path, _| parent(path) == Path::new("/") || all.contains_key(&parent(path)));
            Self { files: self.files.clone(), on_disk: names.clone(), names, changes: Vec::new() }
        };
        (0..1 << self.changes.len()).map(after).collect()
    }
}

/// Promises that must hold after a restart.
#[derive(Clone, Default)]
struct Promises {
    authority: Option<Fingerprint>,
    admin: Option<Arc<AccessToken>>,
    token: Option<Arc<JoinToken>>,
    issued: Option<Issued>,
    revoked: bool,
}

#[derive(Default)]
struct Recording {
    machine: Machine,
    promises: Promises,
    history: Vec<(Machine, Promises)>,
    operations: usize,
    /// The operation of this number fails, as if the disk were full.
    fails: Option<usize>,
    failed: bool,
    /// A program that does not wait for names, to see that the test would notice.
    forgets_names: bool,
}

#[derive(Clone, Default)]
struct Recorded(Arc<Mutex<Recording>>);

impl Recorded {
    fn lock(&self) -> MutexGuard<'_, Recording> {
        self.0.lock().expect("no test panics with it")
    }

    fn on(machine: Machine) -> Self {
        Self(Arc::new(Mutex::new(Recording { machine, ..Recording::default() })))
    }

    fn operation(&self) -> io::Result<MutexGuard<'_, Recording>> {
        let mut it = self.lock();
        let number = it.operations;
        it.operations += 1;
        let now = (it.machine.clone(), it.promises.clone());
        it.history.push(now);
        if it.fails == Some(number) {
            it.failed = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(it)
    }
}

impl Files for Recorded {
    fn create_folder(&mut self, path: &Path) -> io::Result<()> {
        let mut it = self.operation()?;
        if !it.machine.names.contains_key(path) {
            it.machine.files.push(Vec::new());
            let file = it.machine.files.len() - 1;
            it.machine.change(Change::Link(path.to_owned(), file));
        }
        Ok(())
    }

    fn write_synced(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        // A part of it is there when the process ends in between, or the disk is full.
        let mut file = None;
        for part in [&[][..], &bytes[..bytes.len() / 2], bytes] {
            let mut it = self.operation()?;
            let index = file.unwrap_or(it.machine.files.len());
            if file.replace(index).is_none() {
                it.machine.files.push(Vec::new());
                it.machine.change(Change::Link(path.to_owned(), index));
            }
            it.machine.files[index] = part.to_vec();
        }
        Ok(())
    }

    fn sync_folder(&mut self, path: &Path) -> io::Result<()> {
        let mut it = self.operation()?;
        if it.forgets_names {
            return Ok(());
        }
        let Machine { changes, on_disk, .. } = &mut it.machine;
        changes.retain(|change| {
            let is_here = change.folder() == path;
            if is_here {
                change.apply(on_disk);
            }
            !is_here
        });
        Ok(())
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let mut it = self.operation()?;
        let file = *it.machine.names.get(from).ok_or(io::ErrorKind::NotFound)?;
        it.machine.change(Change::Rename(from.to_owned(), to.to_owned(), file));
        Ok(())
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        let mut it = self.operation()?;
        if !it.machine.names.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        it.machine.change(Change::Unlink(path.to_owned()));
        Ok(())
    }

    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        let it = self.lock();
        Ok(it.machine.names.get(path).map(|file| it.machine.files[*file].clone()))
    }
}

const NOON: Timestamp = Timestamp::from_unix(1_795_435_200);

fn open(files: &Recorded) -> Result<Authority, IdentityError> {
    Authority::on(Box::new(files.clone()), Lifetimes::default(), NOON)
}

fn chain(issued: &Issued) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(issued.chain_pem.as_bytes()).collect::<Result<_, _>>().expect("PEM")
}

fn join(token: &JoinToken, key: &NewKey) -> JoinRequest {
    JoinRequest {
        token: token.reveal().to_string(),
        request_pem: key.request_pem().to_owned(),
        name: Some("edge-1".parse().expect("a name")),
        location: None,
        tier: None,
    }
}

/// Acts, and once more if it failed: one operation fails at most. A failure leaves no half of a file.
fn twice<T>(files: &Recorded, mut act: impl FnMut() -> Result<T, IdentityError>) -> T {
    let first = act();
    let is_half = |name: &&PathBuf| name.to_string_lossy().ends_with(".new");
    assert_eq!(files.lock().machine.names.keys().find(is_half), None);
    first.or_else(|_| act()).expect("one fault at most")
}

/// Makes an authority, lets a worker in, and revokes its certificate.
fn life(files: &Recorded, key: &NewKey) {
    let authority = twice(files, || open(files));
    let promise = |change: &dyn Fn(&mut Promises)| change(&mut files.lock().promises);
    promise(&|it| it.authority = Some(authority.fingerprint()));
    let admin = Arc::new(twice(files, || authority.first_admin(NOON, |_| Ok(()))).expect("the first time"));
    promise(&|it| it.admin = Some(Arc::clone(&admin)));
    let options = JoinTokenOptions::default();
    let token = Arc::new(twice(files, || authority.create_join_token(&options, "admin", NOON)));
    promise(&|it| it.token = Some(Arc::clone(&token)));
    let issued = twice(files, || authority.redeem(&join(&token, key), NOON));
    promise(&|it| it.issued = Some(issued.clone()));
    let name = "edge-1".parse().expect("a name");
    twice(files, || authority.revoke_worker(&name, "lost", "admin", NOON));
    promise(&|it| it.revoked = true);
    // A last operation, so that the history has what was promised last.
    files.operation().map(drop).unwrap_or_default();
}

/// Checks that a machine keeps its promises, and that a worker whose request was interrupted comes in now.
fn check(machine: Machine, promises: &Promises, key: &NewKey) -> Result<(), String> {
    let files = Recorded::on(machine);
    let authority = open(&files).map_err(|error| format!("cannot be opened: {error}"))?;
    if promises.authority.is_some_and(|promised| promised != authority.fingerprint()) {
        return Err("another authority".to_owned());
    }
    if let Some(admin) = &promises.admin {
        authority.authenticate(&admin.reveal(), NOON).map_err(|refusal| refusal.to_string())?;
    }
    let Some(token) = &promises.token else { return Ok(()) };
    let again = authority.redeem(&join(token, key), NOON);
    match (&promises.issued, again) {
        (None, Ok(_)) => {}
        (Some(issued), Ok(again)) if *issued == again && !promises.revoked => {}
        // It was being revoked, or was.
        (Some(_), Err(error)) if matches!(error.refusal(), Some(Refusal::TokenUsed { .. })) => {}
        (_, other) => return Err(format!("the same request again: {other:?}")),
    }
    let (certificates, tokens) = (authority.certificates(), authority.join_tokens());
    if (certificates.len(), tokens.len(), tokens[0].uses.len()) != (1, 1, 1) {
        return Err(format!("{} certificates, {} uses", certificates.len(), tokens[0].uses.len()));
    }
    let thief = NewKey::generate().map_err(|error| error.to_string())?;
    if authority.redeem(&join(token, &thief), NOON).is_ok() {
        return Err("the token is used twice".to_owned());
    }
    let Some(issued) = &promises.issued else { return Ok(()) };
    match authority.verify(&chain(issued), NOON) {
        Ok(peer) if promises.revoked => Err(format!("{peer:?} was revoked")),
        Err(Refusal::CertificateRevoked { .. })
            if authority.revoked().contains(certificates[0].serial.as_bytes()) =>
        {
            Ok(())
        }
        Ok(_) => Ok(()),
        Err(refusal) => Err(refusal.to_string()),
    }
}

#[test]
fn what_was_promised_is_there_after_a_loss_of_power_at_any_point() {
    let (files, key) = (Recorded::default(), NewKey::generate().unwrap());
    life(&files, &key);
    let history = std::mem::take(&mut files.lock().history);
    assert!(history.len() > 30, "{} operations", history.len());
    let mut states = 0;
    for (number, (machine, promises)) in history.iter().enumerate() {
        for machine in machine.after_power_loss() {
            states += 1;
            let checked = check(machine, promises, &key);
            assert_eq!(checked, Ok(()), "before operation {number}");
        }
    }
    assert!(states > 60, "{states} states");
    assert!(history.last().unwrap().1.revoked);
}

/// State that a process finds after another one was killed outlasts a loss of power, too: it may have been seen by
/// then.
#[test]
fn what_was_seen_after_a_kill_stays() {
    let (files, key) = (Recorded::default(), NewKey::generate().unwrap());
    life(&files, &key);
    let history = std::mem::take(&mut files.lock().history);
    let mut unsynced = 0;
    for (number, (machine, _)) in history.into_iter().enumerate() {
        unsynced += usize::from(!machine.changes.is_empty());
        let files = Recorded::on(machine);
        let see = |authority: &Authority| {
            (authority.fingerprint(), authority.certificates(), authority.join_tokens(), authority.people())
        };
        let seen = see(&open(&files).unwrap());
        let after = files.lock().machine.after_power_loss();
        for machine in after {
            let found = see(&open(&Recorded::on(machine)).unwrap());
            assert!(found == seen, "killed before operation {number}");
        }
    }
    assert!(unsynced > 10, "{unsynced}");
}

/// A disk that is full once fails one call, and what is called again works.
#[test]
fn one_operation_that_fails_costs_one_call() {
    let key = NewKey::generate().unwrap();
    let whole = Recorded::default();
    life(&whole, &key);
    let operations = whole.lock().operations;
    for number in 0..operations - 1 {
        let files = Recorded::default();
        files.lock().fails = Some(number);
        life(&files, &key);
        let (machine, promises) = files.lock().history.last().cloned().unwrap();
        assert!(promises.revoked);
        for machine in machine.after_power_loss() {
            assert_eq!(check(machine, &promises, &key), Ok(()), "operation {number} failed");
        }
        let it = files.lock();
        assert!(it.failed);
    }
}

#[test]
fn a_program_that_forgets_the_disk_is_noticed() {
    let (files, key) = (Recorded::default(), NewKey::generate().unwrap());
    files.lock().forgets_names = true;
    let authority = open(&files).unwrap();
    files.lock().promises.authority = Some(authority.fingerprint());
    let machine = files.lock().machine.clone();
    let promises = files.lock().promises.clone();
    let lost =
        machine.after_power_loss().into_iter().filter(|after| check(after.clone(), &promises, &key).is_err());
    assert!(lost.count() > 0);
}
