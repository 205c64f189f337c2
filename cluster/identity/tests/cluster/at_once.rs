//! Two at the same time.
use std::sync::Barrier;

use tidemill_identity::*;

use crate::parts::*;

/// Runs `count` at once.
fn at_once<T: Send>(count: usize, act: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let barrier = Barrier::new(count);
    std::thread::scope(|scope| {
        let run = |index| {
            barrier.wait();
            act(index)
        };
        let threads: Vec<_> = (0..count).map(|index| scope.spawn(move || run(index))).collect();
        threads.into_iter().map(|thread| thread.join().expect("does not panic")).collect()
    })
}

#[test]
fn one_token_lets_one_worker_in_however_many_come_at_once() {
    let mut cluster = Cluster::new();
    for _ in 0..20 {
        let token = cluster.token(&JoinTokenOptions::default(), NOON);
        let keys: Vec<_> = (0..8).map(|_| NewKey::generate().unwrap()).collect();
        let results = at_once(8, |index| cluster.authority().redeem(&join(&token, &keys[index]), NOON));
        let (good, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        assert_eq!((good.len(), refused.len()), (1, 7));
        for error in refused {
            assert!(matches!(refusal(error), Refusal::TokenUsed { .. }));
        }
    }
    assert_eq!(cluster.authority().certificates().len(), 20);
    cluster.reopen();
    assert_eq!(cluster.authority().certificates().len(), 20);
    assert!(cluster.authority().join_tokens().iter().all(|token| token.uses.len() == 1));
}

#[test]
fn the_same_worker_that_asks_twice_at_once_gets_one_certificate() {
    let cluster = Cluster::new();
    let token = cluster.token(&JoinTokenOptions::default(), NOON);
    let key = NewKey::generate().unwrap();
    let results = at_once(8, |_| cluster.authority().redeem(&join(&token, &key), NOON).unwrap());
    assert!(results.iter().all(|issued| *issued == results[0]));
    assert_eq!(cluster.authority().certificates().len(), 1);
}

#[test]
fn two_processes_do_not_make_two_authorities() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("authority");
    // The second one gets an error that the folder is in use, or finds the authority of the first one.
    let results = at_once(8, |_| {
        let opened = Authority::open_or_create(&path, lifetimes(), NOON);
        opened.map(|authority| authority.fingerprint())
    });
    let good: Vec<_> = results.iter().filter_map(|result| result.as_ref().ok()).collect();
    assert!(!good.is_empty() && good.iter().all(|fingerprint| *fingerprint == good[0]));
    for error in results.iter().filter_map(|result| result.as_ref().err()) {
        assert!(matches!(error, IdentityError::Store(StoreError::Locked { .. })), "{error}");
    }
    let authority = Authority::open(&path, lifetimes(), NOON).unwrap();
    assert_eq!(authority.fingerprint(), *good[0]);
    let second = Authority::open(&path, lifetimes(), NOON).unwrap_err().to_string();
    assert!(second.contains(&format!("is in use by process {}", std::process::id())), "{second}");
}

#[test]
fn what_is_missing_or_damaged_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("authority");
    let open = || Authority::open(&path, lifetimes(), NOON).map(|authority| authority.fingerprint());
    let short = Lifetimes { worker: std::time::Duration::ZERO, ..lifetimes() };
    let short = Authority::open_or_create(&path, short, NOON).unwrap_err().to_string();
    assert_eq!(short, "the certificate of a worker cannot be valid for 0ns: the least is 10s");
    let absent = open().unwrap_err().to_string();
    assert!(absent.contains("there is no authority in") && !path.exists(), "{absent}");
    let authority = Authority::open_or_create(&path, lifetimes(), NOON).unwrap();
    authority.first_admin(NOON, |_| Ok(())).unwrap();
    let fingerprint = authority.fingerprint();
    drop(authority);
    let (key, register) = (path.join("authority.pem"), path.join("register.json"));
    let (key_bytes, register_bytes) = (std::fs::read(&key).unwrap(), std::fs::read(&register).unwrap());
    let other = Cluster::new();
    let other_key = std::fs::read(other.folder.path().join("authority.pem")).unwrap();
    let key_text = String::from_utf8(key_bytes.clone()).unwrap();
    let half = &key_bytes[..key_bytes.len() / 2];
    let begin = key_text.find("-----BEGIN PRIVATE KEY-----").unwrap();
    let other_text = String::from_utf8(other_key.clone()).unwrap();
    let mixed =
        format!("{}{}", &key_text[..begin], &other_text[other_text.find("-----BEGIN PRIVATE").unwrap()..]);
    let cases: [(&std::path::Path, Option<&[u8]>, &str); 8] = [
        (&key, Some(half), "authority.pem is damaged"),
        (&key, Some(b""), "there is no certificate in it"),
        (&key, Some(b"\xff\xff"), "it is not text"),
        (&key, Some(mixed.as_bytes()), "its key does not match its certificate"),
        (&key, Some(&other_key), "it belongs to the authority"),
        (&register, Some(&register_bytes[1..]), "its bytes differ from those that were written"),
        (&register, Some(b""), "it is truncated"),
        (&register, None, "it is missing, with its lists of revoked certificates and used tokens"),
    ];
    for (file, bytes, word) in cases {
        match bytes {
            Some(bytes) => std::fs::write(file, bytes).unwrap(),
            None => std::fs::remove_file(file).unwrap(),
        }
        let error = open().unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("restore a copy"), "{word}: {error}");
        std::fs::write(&key, &key_bytes).unwrap();
        std::fs::remove_file(&register).ok();
        std::fs::write(&register, &register_bytes).unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&register, private).unwrap();
    }
    assert_eq!(open().unwrap(), fingerprint);
    // A register without its key is not taken for a folder in which nothing is yet.
    std::fs::remove_file(&key).unwrap();
    let error = Authority::open_or_create(&path, lifetimes(), NOON).unwrap_err().to_string();
    assert!(error.contains("the key of the authority is missing"), "{error}");
}
