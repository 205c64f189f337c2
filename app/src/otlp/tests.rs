//! Sent spans, and dropped ones while the collector is away.
use super::*;
use serde_json::Value;
use tidemill_engine::Happening;

fn span(number: u64) -> Span {
    Span {
        trace: [(number % 250) as u8 + 1; 16],
        id: number + 1,
        parent: (number % 2 == 1).then_some(number),
        what: if number % 2 == 1 { Happening::Transfer } else { Happening::Source },
        operator: "detect".into(),
        from: (number % 2 == 1).then(|| "cameras".into()),
        stage: "detect-edge".into(),
        worker: format!("w{}", number % 2),
        begin: 1_700_000_000_000_000_000 + number as i64,
        end: 1_700_000_000_000_000_100,
        batch: 8,
        sequence: number,
    }
}

#[derive(Clone, Default)]
struct Given(Arc<Mutex<(Vec<Value>, Vec<Posted>)>>);

impl Post for Given {
    fn post(&mut self, body: Vec<u8>) -> Posted {
        let mut given = locked(&self.0);
        given.0.push(serde_json::from_slice(&body).unwrap());
        given.1.pop().unwrap_or(Posted::Taken)
    }
}

fn sender(answers: Vec<Posted>) -> (Sender, Given) {
    let given = Given(Arc::new(Mutex::new((Vec::new(), answers))));
    let post = Box::new(given.clone());
    (Sender { post, waiting: VecDeque::new(), lost: 0, pause: 0, again_at: 0, is_away: false }, given)
}

fn wait_for(sender: &mut Sender, spans: std::ops::Range<u64>) {
    sender.waiting.extend(spans.map(|number| Waiting {
        run: "r".into(),
        workflow: "f".into(),
        span: span(number),
    }));
}

#[test]
fn spans_are_as_the_specification_says() {
    let (one, two) = (span(0), span(1));
    let found = document([("night", "vqa", &one), ("night", "vqa", &two)].into_iter());
    let resources = found["resourceSpans"].as_array().unwrap();
    assert_eq!(resources.len(), 2, "one for each worker: {found}");
    let second = &resources[1]["scopeSpans"][0]["spans"][0];
    assert_eq!(second["traceId"], "02".repeat(16));
    assert_eq!(
        (&second["spanId"], &second["parentSpanId"]),
        (&"0000000000000002".into(), &"0000000000000001".into())
    );
    assert_eq!(second["startTimeUnixNano"], "1700000000000000001");
    assert_eq!(second["name"], "transfer cameras -> detect");
    let first = &resources[0]["scopeSpans"][0]["spans"][0];
    assert_eq!((&first["name"], first.get("parentSpanId")), (&"source detect".into(), None));
    let attributes = resources[0]["resource"]["attributes"].to_string();
    assert!(attributes.contains("tidemill") && attributes.contains("night/w0"), "{attributes}");
}

#[test]
fn a_collector_that_is_away_is_asked_less_and_less_and_nothing_grows() {
    let away = || Posted::Away("nobody".into());
    let (mut sender, given) = sender(vec![away(), away(), away()]);
    wait_for(&mut sender, 0..10);
    let second = 1_000_000_000;
    assert!(
        !sender.send(&Shared::default(), 0, false) && !sender.send(&Shared::default(), second / 2, false),
        "not at once again"
    );
    assert_eq!(locked(&given.0).0.len(), 1);
    assert!(
        !sender.send(&Shared::default(), second, false)
            && !sender.send(&Shared::default(), 2 * second, false)
    );
    assert_eq!(locked(&given.0).0.len(), 2);
    for _ in 0..3 {
        wait_for(&mut sender, 0..MOST_WAITING as u64);
        sender.take(&Shared::default());
        assert_eq!(sender.waiting.len(), MOST_WAITING);
    }
    assert!(sender.lost > MOST_WAITING as u64);
    assert!(!sender.send(&Shared::default(), 3 * second, false), "the third time it is away too");
    assert!(sender.send(&Shared::default(), 100 * second, false) && sender.waiting.is_empty());
    assert!(locked(&given.0).0.iter().all(|one| one.to_string().matches("traceId").count() <= MOST_SENT));
}

#[test]
fn what_is_refused_is_not_sent_again() {
    let (mut sender, given) = sender(vec![Posted::Refused("no".into())]);
    wait_for(&mut sender, 0..MOST_SENT as u64 + 3);
    assert!(sender.send(&Shared::default(), 0, false));
    assert_eq!((sender.lost, locked(&given.0).0.len()), (MOST_SENT as u64, 2));
}

#[test]
fn endpoints_and_headers_are_checked() {
    let of = |endpoint: &str, headers| OtlpOptions::new(endpoint, headers);
    assert_eq!(of("http://a:4318", None).unwrap().endpoint, "http://a:4318/v1/traces");
    assert_eq!(of("http://a:4318/", None).unwrap().endpoint, "http://a:4318/v1/traces");
    assert_eq!(of("https://a/otlp/v1/traces", None).unwrap().endpoint, "https://a/otlp/v1/traces");
    for wrong in ["a:4318", "ftp://a", "http://", ""] {
        assert!(of(wrong, None).is_err(), "{wrong}");
    }
    let headers = of("http://a", Some("api-key=s=ecret, x = y")).unwrap().headers;
    assert_eq!(headers, [("api-key".to_owned(), "s=ecret".to_owned()), ("x".to_owned(), "y".to_owned())]);
    let error = of("http://a", Some("secret")).unwrap_err().to_string();
    assert!(!error.contains("`secret`"), "{error}");
}

#[cfg(feature = "otlp")]
#[test]
fn nobody_there_is_told_and_is_no_failure() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let options = OtlpOptions::new(&format!("http://{free}"), None).unwrap();
    let answer = post::Http::new(&options).unwrap().post(b"{}".to_vec());
    assert!(matches!(&answer, Posted::Away(why) if !why.is_empty()), "{answer:?}");
}
