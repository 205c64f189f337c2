//! Users of a cluster, and removed workers; through the built binary.
use crate::cluster::Cluster;
use std::os::unix::fs::PermissionsExt;

#[test]
fn people_come_and_go_and_do_what_their_roles_say() {
    let cluster = Cluster::start(&[]);
    let file = cluster.place.argument("ada.token");
    let made = cluster
        .ask(&["people", "add", "Ada", "--role", "viewer", "--days", "30", "--write-token", &file])
        .expect(0);
    let token = std::fs::read_to_string(&file).unwrap();
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{mode:o}");
    assert!(made.stdout.is_empty() && !made.stderr.contains(token.trim()), "{made:?}");
    let ask = |arguments: &[&str]| cluster.ask_as(token.trim(), arguments);
    ask(&["list"]).expect(0);
    // A viewer may only look.
    for arguments in [
        &["people", "add", "Eve", "--role", "admin"][..],
        &["people"],
        &["people", "remove", "admin"],
        &["token"],
        &["revoke", "edge"],
        &["cancel", "night"],
        &["remove", "night"],
        &["drain", "edge"],
    ] {
        let output = ask(arguments).expect(78).stderr;
        assert!(
            output.contains("Ada may not") && output.contains("this access token has the role viewer"),
            "{output}"
        );
    }
    let (workflow, plan) = (cluster.place.argument("workflow.yaml"), cluster.place.argument("plan.yaml"));
    for more in [&["--plan", &plan][..], &["--one-worker"]] {
        let output = ask(&[&["submit", &workflow], more].concat()).expect(78).stderr;
        assert!(output.contains("Ada may not") && output.contains("the role viewer"), "{output}");
    }
    assert_eq!(cluster.ask(&["list", "--output", "json"]).expect(0).json()["runs"], serde_json::json!([]));
    let file = cluster.place.argument("eve.token");
    ask(&["people", "add", "Eve", "--role", "viewer", "--write-token", &file]).expect(78);
    assert!(!cluster.place.path("eve.token").exists(), "a file without a token is left");

    let people = || cluster.ask(&["people", "list", "--output", "json"]).expect(0).json()["people"].clone();
    assert_eq!(people().as_array().unwrap().len(), 2);
    assert!(!people().to_string().contains(token.trim()), "tokens are told once");
    let output = cluster.ask(&["people"]).expect(0).stdout;
    assert!(output.contains("Ada") && output.contains("viewer") && output.contains("admin"), "{output}");
    // An existing file is not replaced, and no token is made for it.
    cluster.place.write("there", "mine");
    let there = cluster.place.argument("there");
    let output =
        cluster.ask(&["people", "add", "Bob", "--role", "admin", "--write-token", &there]).expect(78);
    assert!(output.stderr.contains("that does not exist yet"), "{}", output.stderr);
    assert_eq!((cluster.place.read("there").as_str(), people().as_array().unwrap().len()), ("mine", 2));
    let output = cluster.ask(&["people", "add", "Bob", "--role", "root"]).expect(2).stderr;
    assert!(output.contains("write viewer, operator or admin"), "{output}");
    cluster.ask(&["people", "add", "Bob", "--role", "viewer", "--days", "0"]).expect(78);

    // A newly added operator works at once, also with a space in the name.
    let token_of_bob = cluster.ask(&["people", "add", "Bob Ray", "--role", "operator"]).expect(0).stdout;
    let output = cluster.ask_as(token_of_bob.trim(), &["cancel", "night"]).expect(66).stderr;
    assert!(output.contains("there is no run `night`"), "{output}");
    cluster.ask(&["people", "remove", "Bob Ray"]).expect(0);
    cluster.ask(&["people", "remove", "Ada"]).expect(0);
    for token in [token.trim(), token_of_bob.trim()] {
        let output = cluster.ask_as(token, &["list"]).expect(78).stderr;
        assert!(output.contains("revoked"), "{output}");
    }
    assert_eq!(people().as_array().unwrap().len(), 1);
    let all = cluster.ask(&["people", "--all"]).expect(0).stdout;
    assert!(all.contains("Ada") && all.contains("by admin"), "{all}");
    let output = cluster.ask(&["people", "remove", "admin"]).expect(78).stderr;
    assert!(output.contains("last access token of an admin"), "{output}");
    cluster.ask(&["people", "remove", "Nobody"]).expect(66);
    let output = cluster.ask(&["events"]).expect(0).stdout;
    assert!(output.contains("admin creates an access token for Ada with the role viewer"), "{output}");
    assert!(!output.contains(token.trim()), "{output}");
}

#[test]
fn a_worker_that_is_revoked_ends_and_stays_away() {
    let mut cluster = Cluster::start(&["edge", "hub"]);
    let output = cluster.ask(&["revoke", "edge"]).expect(0).stderr;
    assert!(output.contains("worker edge has left the cluster"), "{output}");
    let (_, mut agent) = cluster.workers.remove(0);
    let status = agent.wait().unwrap();
    assert_eq!(status.code(), Some(78), "it gets the answer, and ends");
    let workers = cluster.ask(&["workers"]).expect(0).stdout;
    assert!(!workers.contains("edge") && workers.contains("hub"), "{workers}");
    // Its certificate is rejected, also after a restart.
    cluster.start_worker("edge");
    let (_, mut agent) = cluster.workers.pop().unwrap();
    assert_eq!(agent.wait().unwrap().code(), Some(78));
    let output = cluster.ask(&["revoke", "nobody"]).expect(66).stderr;
    assert!(output.contains("there is no worker `nobody`"), "{output}");
}
