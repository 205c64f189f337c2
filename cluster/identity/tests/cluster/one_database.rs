//! A register that several controllers share, outside of their folders.
use std::fs;
use std::sync::{Arc, Mutex};
use tidemill_identity::{Authority, IdentityError, Lifetimes, Registry, StoreError, Timestamp};

#[derive(Clone, Default)]
struct Shared {
    bytes: Arc<Mutex<Option<Vec<u8>>>>,
    is_refused: Arc<Mutex<bool>>,
}

impl Registry for Shared {
    fn place(&self) -> String {
        "a shelf".to_owned()
    }

    fn read(&mut self) -> Result<Option<Vec<u8>>, String> {
        Ok(self.bytes.lock().unwrap().clone())
    }

    fn replace(&mut self, bytes: &[u8]) -> Result<(), String> {
        if *self.is_refused.lock().unwrap() {
            return Err("another controller leads".to_owned());
        }
        *self.bytes.lock().unwrap() = Some(bytes.to_owned());
        Ok(())
    }
}

fn now() -> Timestamp {
    Timestamp::from_unix(1_795_435_200)
}

#[test]
fn two_controllers_with_one_key_share_a_register() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (a, b) = (a.path().join("a"), b.path().join("b"));
    let shared = Shared::default();
    let open = |folder| {
        Authority::open_or_create_shared(folder, Box::new(shared.clone()), Lifetimes::default(), now())
    };
    assert!(Authority::stand_by(&b, Lifetimes::default(), &["b"], now()).unwrap().is_none());
    let first = open(&a).unwrap();
    let admin = first.first_admin(now(), |_| Ok(())).unwrap().unwrap();
    assert!(!a.join("register.json").exists());
    // Without the key it is another controller's cluster.
    let error = open(&b).err().unwrap();
    assert!(matches!(&error, IdentityError::Store(StoreError::NoKey { .. })), "{error}");
    assert!(error.to_string().contains("copy `identities/authority.pem`"), "{error}");
    fs::copy(Authority::shared_key(&a), Authority::shared_key(&b)).unwrap();
    // Who stands by has a certificate, and writes nothing.
    let before = shared.bytes.lock().unwrap().clone();
    let (certificates, fingerprint) =
        Authority::stand_by(&b, Lifetimes::default(), &["b"], now()).unwrap().unwrap();
    assert!(fingerprint == first.fingerprint() && !certificates.chain_pem.is_empty());
    assert_eq!(*shared.bytes.lock().unwrap(), before);
    drop(first);
    let second = open(&b).unwrap();
    assert!(second.authenticate(&admin.reveal(), now()).is_ok());
    assert_eq!(second.first_admin(now(), |_| Ok(())).unwrap().map(|_| ()), None, "it is given once");
    // A change that cannot be kept does not count.
    *shared.is_refused.lock().unwrap() = true;
    let refused = second.revoke_person("admin", "", "admin", now());
    assert!(refused.is_err() && second.people().len() == 1);
    let refused = second.add_person("Ada", tidemill_identity::Role::Viewer, None, now()).err().unwrap();
    assert!(refused.to_string().contains("another controller leads"), "{refused}");
    assert_eq!(second.people().len(), 1);
}

/// A machine that takes connections and says nothing, as one whose processes stand still does.
#[test]
fn a_controller_that_says_nothing_is_left_in_time() {
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::time::Duration;
    use tidemill_http::{Call, CallError, Caller, Place, Repeat};
    use tidemill_identity::{TLS_NAME, fingerprint_config};
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = silent.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::open_or_create(&folder.path().join("a"), Lifetimes::default(), now()).unwrap();
    let time = Arc::new(rustls::time_provider::DefaultTimeProvider);
    let config = Arc::new(fingerprint_config(authority.fingerprint(), time).unwrap());
    let place = Place::Tls { address: place, config, name: TLS_NAME.into() };
    let caller = Arc::new(Caller::new(place).connecting_within(Duration::from_millis(200)));
    let call = Call::get("/v1/runs");
    // Long before the answer would be given up.
    let message = caller.send(&call, Duration::from_secs(3600), Repeat::Refused).unwrap_err();
    assert!(matches!(message, CallError::Unreachable { .. }), "{message}");
}
