//! Two users of one host.
use crate::ends::{Place, policy};
use serde_json::json;
use std::os::unix::process::CommandExt;
use std::process::Command;
use tidemill_net::protocol::{Answer, Request};
use tidemill_net::{Client, ClientError};

/// Set for the part of a test that another user runs.
const AS_OTHER: &str = "TIDEMILL_TEST_SOCKET";
const OTHER: u32 = 12_345;

#[test]
fn a_user_sees_and_changes_only_what_is_its_own() {
    if let Some(socket) = std::env::var_os(AS_OTHER) {
        return other(std::path::Path::new(&socket));
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: only root can be two users");
        return;
    }
    let place = Place::new();
    let sender = crate::ends::End::register(&place.socket(), tidemill_link::remote::Role::Sender, Vec::new());
    let _sender = sender.expect("it registers");
    place.attach("of-root", "none", json!({})).expect("it fits");
    // The folder of the socket must let the other user in.
    open(place.folder());
    // Its folders may be closed to the other user, so the program lies beside the socket.
    let program = place.folder().join("test");
    std::fs::copy(std::env::current_exe().expect("this program"), &program).expect("it is copied");
    let name = "users::a_user_sees_and_changes_only_what_is_its_own";
    let run = Command::new(&program)
        .args([name, "--exact", "--nocapture"])
        .env(AS_OTHER, place.socket())
        .current_dir("/")
        .uid(OTHER)
        .gid(OTHER)
        .output()
        .expect("it runs");
    assert!(
        run.status.success(),
        "{}{}",
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr)
    );
    let ids: Vec<String> = place.listing().policies.iter().map(|policy| policy.spec.id.clone()).collect();
    assert_eq!(ids, ["of-root", "of-other"], "root sees all of them");
    let of_other = &place.listing().policies[1];
    assert_eq!((of_other.by.as_str(), of_other.edges), ("user 12345", 0));
    assert_eq!(place.listing().edges[0].policies, ["of-root"], "it looks at no frame of another user");
}

fn open(folder: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).expect("its own folder");
}

fn other(socket: &std::path::Path) {
    assert_eq!(rustix::process::geteuid().as_raw(), OTHER);
    let mut client = Client::connect(socket, 0).expect("the socket is open to all");
    let Answer::Listing(listing) = client.ask(&Request::List).expect("it answers") else {
        panic!("no listing")
    };
    assert!(listing.edges.is_empty() && listing.policies.is_empty(), "{listing:?}");
    let refused = |answer| match answer {
        Err(ClientError::Refused(reason)) => reason,
        other => panic!("{other:?}"),
    };
    let reason = refused(client.ask(&Request::Detach { id: "of-root".into() }));
    assert!(reason.contains("there is no policy of-root"), "{reason}");
    let reason = refused(client.ask(&Request::Set { id: "of-root".into(), options: json!({}) }));
    assert!(reason.contains("there is no policy of-root"), "{reason}");
    let reason = refused(client.ask(&Request::Upgrade { program: "/bin/true".into() }));
    assert!(reason.contains("only the user of the service"), "{reason}");
    client.ask(&Request::Attach(Box::new(policy("of-other", "none", json!({}))))).expect("its own policy");
}
