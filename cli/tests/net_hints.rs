//! `tidemill net hints`: the links of machines, and options that are wrong.
use crate::command::command;
use crate::net_groups::Served;
use serde_json::Value;
use std::time::Duration;

/// Looks until something is so, at most for a minute.
#[track_caller]
fn until(served: &Served, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..3_000 {
        let hints = served.json(&["hints"]).map(|all| all["hints"].clone());
        if let Some(hints) = hints.filter(&is_so) {
            return hints;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{what}")
}

#[test]
fn links_are_shown_with_their_rates_and_where_those_come_from() {
    let rates = ["--rack", "site", "--rate", "1Gbps", "--rack-rate", "up=20Mbps,down=100Mbps"];
    let hub = Served::start("hub", &rates);
    let hints = until(&hub, "its links are known", |hints| {
        hints["links"].as_array().is_some_and(|links| links.len() == 4)
            && !hints["racks"][0]["age_ms"].is_null()
    });
    let total = |host: Option<&str>, way: &str| {
        let links = hints["links"].as_array().unwrap();
        let is_meant = |link: &&Value| link["host"].as_str() == host && link["way"] == way;
        let link = links.iter().find(is_meant).unwrap();
        assert_eq!((&link["total_from"], &link["rack"]), (&Value::from("stated"), &Value::from("site")));
        link["total"].as_f64().unwrap()
    };
    assert_eq!((total(Some("hub"), "up"), total(Some("hub"), "down")), (125e6, 125e6));
    assert_eq!((total(None, "up"), total(None, "down")), (2.5e6, 12.5e6));
    assert_eq!(hints["racks"][0]["leader"], "hub");
    let (code, shown, stderr) = hub.tidemill(&["hints", "--flows", "3"]);
    assert_eq!(code, Some(0), "{stderr}");
    for words in ["(to other racks)", "20.0 Mbps", "1.00 Gbps", "stated", "3 more flows", "TCP sockets"] {
        assert!(shown.contains(words), "{words} in {shown}");
    }
    let (code, _, stderr) = hub.tidemill(&["hints", "training"]);
    assert_ne!(code, Some(0));
    assert!(stderr.contains("no group training"), "{stderr}");
}

#[test]
fn wrong_options_are_explained() {
    for (option, value, words) in [
        ("--hint-period", "10ms", "less than 50ms"),
        ("--rate", "up=1Gbps", "up=20Mbps,down=100Mbps"),
        ("--rack-addresses", "10.0.0.0/33", "no prefix of addresses"),
    ] {
        let output = command(&["net", "serve", option, value]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(words), "{words} in {stderr}");
    }
}
