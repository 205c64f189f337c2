//! A process that is killed (SIGKILL) while it works: what it said to have done is done.
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use tidemill_identity::*;

use crate::parts::*;

const FOLDER: &str = "TIDEMILL_IDENTITY_KILLED_FOLDER";

/// The work of the process that is killed. It reports each step after it is done.
#[test]
#[ignore = "started by what_was_said_is_so_after_a_kill"]
fn the_process_that_is_killed() {
    let folder = std::env::var_os(FOLDER).expect("the folder is named");
    let authority = Authority::open_or_create(folder.as_ref(), lifetimes(), NOON).unwrap();
    println!("@authority {}", authority.fingerprint());
    if let Some(token) = authority.first_admin(NOON, |_| Ok(())).unwrap() {
        println!("@admin {}", *token.reveal());
    }
    loop {
        let token = authority.create_join_token(&JoinTokenOptions::default(), "Ada", NOON).unwrap();
        println!("@token {}", *token.reveal());
        let issued = authority.redeem(&join(&token, &NewKey::generate().unwrap()), NOON).unwrap();
        let worker = issued.identity.worker().unwrap().clone();
        println!("@used {} {worker}", *token.reveal());
        if worker.as_str().ends_with(['1', '4', '7']) {
            authority.revoke_worker(&worker, "lost", "Ada", NOON).unwrap();
            println!("@revoked {worker}");
        }
    }
}

#[test]
fn what_was_said_is_so_after_a_kill() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path().join("authority");
    let mut fingerprint = None;
    let mut admin = None;
    let (mut tokens, mut revoked) = (BTreeMap::new(), Vec::new());
    for round in 0..8 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["kills::the_process_that_is_killed", "--exact", "--ignored", "--nocapture"])
            .env(FOLDER, &folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = 0;
        for line in lines.map_while(Result::ok) {
            let mut words = line.split_whitespace().skip_while(|word| !word.starts_with('@'));
            let Some(what) = words.next() else { continue };
            // A line that is cut off was not said.
            match (what, words.next(), words.next()) {
                ("@authority", Some(text), _) if text.len() == 64 => {
                    let found: Fingerprint = text.parse().unwrap();
                    assert_eq!(*fingerprint.get_or_insert(found), found);
                }
                ("@admin", Some(text), _) if text.parse::<AccessToken>().is_ok() => {
                    assert!(admin.replace(text.to_owned()).is_none(), "a second first admin");
                }
                ("@token", Some(text), _) if text.parse::<JoinToken>().is_ok() => {
                    tokens.insert(text.to_owned(), false);
                }
                ("@used", Some(text), Some(_)) if text.parse::<JoinToken>().is_ok() => {
                    tokens.insert(text.to_owned(), true);
                }
                ("@revoked", Some(worker), _) => revoked.push(worker.to_owned()),
                _ => {}
            }
            said += 1;
            if said == 3 + round * 3 {
                child.kill().unwrap();
            }
        }
        let status = child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "it was killed");
        let authority = Authority::open(&folder, lifetimes(), NOON).unwrap();
        assert_eq!(Some(authority.fingerprint()), fingerprint);
        assert!(!folder.join("register.json.new").exists());
        if let Some(admin) = &admin {
            assert!(authority.authenticate(admin, NOON).is_ok());
        }
        for (token, used) in &tokens {
            let token: JoinToken = token.parse().unwrap();
            let record = authority.join_tokens().into_iter().find(|record| record.id == token.id()).unwrap();
            // One that was not reported as used may have been in transit.
            assert!(record.uses.len() == 1 || !*used);
            if *used {
                let thief = join(&token, &NewKey::generate().unwrap());
                assert!(matches!(refusal(authority.redeem(&thief, NOON)), Refusal::TokenUsed { .. }));
            }
        }
        let certificates = authority.certificates();
        for worker in &revoked {
            let is_it = |record: &&CertificateRecord| {
                record.identity.worker().is_some_and(|it| it.as_str() == worker)
            };
            assert!(certificates.iter().find(is_it).unwrap().revoked.is_some(), "{worker}");
        }
    }
    assert!(admin.is_some() && !revoked.is_empty());
    assert!(tokens.values().filter(|used| **used).count() > 10);
}
