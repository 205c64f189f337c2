//! Transport services learn who introduces the ranks of groups.
use crate::place::{Place, until};

/// A transport service that does nothing: it says that it serves after `first`, and keeps the next line that it reads.
fn service(first: &str, line: &str) -> Vec<String> {
    let ready = r#"{"ready": {"public": null, "groups": "tcp://127.0.0.1:9", "version": "1"}}"#;
    let script = format!(
        "read -r task; {first}; echo '{ready}'; read -r line; echo \"$line\" > {line}; cat > /dev/null"
    );
    ["sh", "-c", &script].map(str::to_owned).to_vec()
}

/// A worker that joins a cluster with groups gets the answer to its first heartbeat while its service starts.
#[test]
fn a_service_that_starts_does_not_miss_who_introduces_ranks() {
    let mut place = Place::new();
    let token = place.join_token(2);
    let path = |name: &str| place.folder.path().join(name).display().to_string();
    let (lines, duties) = ([path("first.line"), path("second.line")], path("second/groups.json"));
    let mut first = place.options("first", &token, &["false"]);
    first.net_command = service(":", &lines[0]);
    place.agent_with(first);
    let introduces = || {
        let events = place.admin.get::<serde_json::Value>("/v1/events").unwrap().to_string();
        events.contains("introduces the ranks of groups")
    };
    until("the first one introduces ranks", introduces);
    let mut second = place.options("second", &token, &["false"]);
    // It is ready only when its agent knows more than it said in the first line.
    second.net_command = service(&format!("while [ ! -e {duties} ]; do sleep 0.01; done"), &lines[1]);
    place.agent_with(second);
    until("the second one learns that", || {
        std::fs::read_to_string(&lines[1]).is_ok_and(|line| line.contains("tcp://127.0.0.1:9"))
    });
}
