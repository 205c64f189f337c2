//! The controller's page in a real browser, used as by a person: keyboard, displayed text, screenshots.
use crate::cluster::Cluster;
use crate::command::are_there;
use base64::Engine;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A headless browser, and the program that drives it.
struct Browser {
    driver: Child,
    place: String,
    session: String,
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            let _ = self.try_ask("DELETE", &format!("/session/{}", self.session), &Value::Null);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

impl Browser {
    fn start() -> Self {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver is there: apt-get install chromium chromium-driver");
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines.by_ref().find_map(|line| {
            let line = line.unwrap();
            let (_, port) = line.split_once("started successfully on port ")?;
            Some(port.trim_end_matches('.').to_owned())
        });
        std::thread::spawn(move || lines.for_each(drop));
        let mut browser =
            Self { driver, place: format!("127.0.0.1:{}", port.expect("a port")), session: String::new() };
        let options = json!({"capabilities": {"alwaysMatch": {
            "acceptInsecureCerts": true,
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,900"]},
        }}});
        let session = browser.ask("POST", "/session", &options);
        browser.session = session["sessionId"].as_str().unwrap().to_owned();
        browser
    }

    fn try_ask(&self, method: &str, path: &str, body: &Value) -> std::io::Result<Value> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut stream = TcpStream::connect(&self.place)?;
        stream.set_read_timeout(Some(Duration::from_secs(40)))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.place,
            body.len()
        )?;
        let mut reader = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().map_err(std::io::Error::other)?;
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut answer = vec![0; length];
        reader.read_exact(&mut answer)?;
        let value: Value = serde_json::from_slice(&answer)?;
        Ok(value["value"].clone())
    }

    #[track_caller]
    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let value = self.try_ask(method, path, body).unwrap();
        assert!(value["error"].is_null(), "{path}: {value}");
        value
    }

    #[track_caller]
    fn post(&self, what: &str, body: &Value) -> Value {
        self.ask("POST", &format!("/session/{}/{what}", self.session), body)
    }

    #[track_caller]
    fn script(&self, script: &str) -> Value {
        self.post("execute/sync", &json!({"script": script, "args": []}))
    }

    /// Text of a part of the page.
    #[track_caller]
    fn text(&self, id: &str) -> String {
        let text = self.script(&format!("return document.getElementById('{id}').innerText"));
        text.as_str().unwrap_or_default().to_owned()
    }

    #[track_caller]
    fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..300 {
            if is_so(self) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let page = self.script("return document.body.innerText");
        panic!("{what}: not within half a minute:\n{}", page.as_str().unwrap_or_default());
    }

    /// Presses keys, one after the other, wherever the focus is.
    #[track_caller]
    fn press(&self, keys: &str) {
        let actions: Vec<Value> = keys
            .chars()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key.to_string()})))
            .collect();
        self.post("actions", &json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}));
    }

    /// Presses Tab until an element with this text or id has the focus.
    #[track_caller]
    fn tab_to(&self, name: &str) {
        for _ in 0..80 {
            let script = "const at = document.activeElement; return [at.id, at.getAttribute('aria-label') ?? '', at.textContent.trim()]";
            let found = self.script(script);
            if found.as_array().unwrap().iter().any(|one| one == name) {
                return;
            }
            self.press(TAB);
        }
        panic!("the keyboard does not reach {name}");
    }

    fn media(&self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        let command = json!({"cmd": "Emulation.setEmulatedMedia", "params": {"features": features}});
        self.post("goog/cdp/execute", &command);
    }

    fn size(&self, width: u32, height: u32) {
        let parameters =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        let command = json!({"cmd": "Emulation.setDeviceMetricsOverride", "params": parameters});
        self.post("goog/cdp/execute", &command);
    }

    /// Takes a screenshot if requested by `TIDEMILL_SCREENSHOTS=FOLDER`.
    fn picture(&self, name: &str) {
        let picture = self.ask("GET", &format!("/session/{}/screenshot", self.session), &Value::Null);
        let bytes = base64::prelude::BASE64_STANDARD.decode(picture.as_str().unwrap()).unwrap();
        assert!(bytes.len() > 5_000, "{name} shows nothing");
        if let Some(folder) = std::env::var_os("TIDEMILL_SCREENSHOTS") {
            std::fs::write(std::path::Path::new(&folder).join(format!("{name}.png")), bytes).unwrap();
        }
    }

    /// Nothing is wider than the screen.
    #[track_caller]
    fn fits(&self, name: &str) {
        let widths = self
            .script("return [document.documentElement.scrollWidth, document.documentElement.clientWidth]");
        assert!(widths[0].as_u64() <= widths[1].as_u64(), "{name}: {widths}");
    }

    /// Errors of the browser.
    fn complaints(&self) -> Vec<String> {
        let log = self.post("se/log", &json!({"type": "browser"}));
        let lines = log.as_array().unwrap().iter();
        lines.map(|line| line["message"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

const TAB: &str = "\u{e004}";
const ENTER: &str = "\u{e007}";

#[test]
#[ignore = "long: make test-long"]
fn a_run_is_watched_and_cancelled_with_the_keyboard() {
    if !are_there(&["chromedriver", "chromium"], "chromium chromium-driver") {
        return;
    }
    let cluster = Cluster::start(&["edge", "hub", "cloud"]);
    // It would take two minutes.
    cluster.slow_down(20);
    let levels = "slo: {rate: 1500/s, latency: {percentile: p99, below: 2s}}\nrun:";
    let workflow = cluster.place.read("workflow.yaml");
    cluster.place.write("workflow.yaml", workflow.replace("run:", levels));
    let plan = cluster.place.read("plan.yaml");
    cluster
        .place
        .write("plan.yaml", plan.replace("worker_type: small}", "worker_type: small, price: 0.05 $/h}"));
    cluster.submit().expect(0);
    cluster.until_arrived(50);
    let browser = Browser::start();
    let (address, _) = cluster.address.trim_start_matches("tidemill://").split_once('/').unwrap();
    browser.post("url", &json!({"url": format!("https://{address}/")}));
    let policy = browser.post(
        "execute/async",
        &json!({"script": "fetch('/').then(r => arguments[0](r.headers.get('content-security-policy')))", "args": []}),
    );
    assert!(policy.as_str().unwrap().contains("default-src 'none'"), "{policy}");

    // A wrong token gives an error, a right one logs in.
    browser.until("the form is there", |browser| browser.text("login").contains("Access token"));
    browser.picture("login");
    browser.press("nonsense");
    browser.press(ENTER);
    browser.until("the token is refused", |browser| !browser.text("token-wrong").is_empty());
    browser.script("document.getElementById('token').value = ''; document.getElementById('token').focus()");
    browser.press(&cluster.admin());
    browser.press(ENTER);
    browser.until("the cluster is shown", |browser| {
        browser.text("workers").contains("hub") && browser.text("runs").contains("spread")
    });
    assert_eq!(browser.text("who"), "admin, admin");
    for (scheme, width, height) in
        [("light", 1280, 900), ("dark", 1280, 900), ("light", 390, 844), ("dark", 390, 844)]
    {
        browser.media(scheme);
        browser.size(width, height);
        std::thread::sleep(Duration::from_millis(300));
        browser.fits("the overview");
        browser.picture(&format!("overview-{scheme}-{width}"));
    }
    browser.size(1280, 900);
    browser.until("the ways between workers are measured", |browser| {
        let text = browser.text("ways");
        text.contains("probe") && text.contains("bit/s") && text.contains("ms")
    });

    // To the run and its figures, by the keyboard alone.
    browser.tab_to("spread");
    browser.press(ENTER);
    browser.until("the run is shown", |browser| {
        browser.text("stages").contains("pair")
            && browser.text("levels").contains("latency")
            && browser.text("sinks").contains("exactly once")
    });
    browser.until("rates are measured", |browser| {
        browser.text("run-tiles").contains("/s now") && browser.text("levels").contains("MISSED")
    });
    std::thread::sleep(Duration::from_secs(4));
    let nodes = browser
        .script("return [...document.querySelectorAll('#plan .node .name')].map(node => node.textContent)");
    assert_eq!(nodes.as_array().unwrap().len(), 7, "{nodes}");
    let lanes = browser
        .script("return [...document.querySelectorAll('#plan .lane .worker')].map(node => node.textContent)");
    assert_eq!(lanes, json!(["edge", "hub", "cloud"]));
    for (scheme, width, height) in
        [("light", 1280, 1500), ("dark", 1280, 1500), ("light", 390, 1600), ("dark", 390, 1600)]
    {
        browser.media(scheme);
        browser.size(width, height);
        std::thread::sleep(Duration::from_millis(1300));
        browser.fits("the run");
        browser.picture(&format!("run-{scheme}-{width}"));
    }
    browser.size(1280, 900);

    // Cancelling asks first; Escape leaves it as it is.
    browser.tab_to("cancel");
    browser.press(ENTER);
    browser.until("it asks", |browser| browser.text("confirm-title") == "Cancel spread?");
    browser.picture("confirm");
    browser.press("\u{e00c}");
    assert_eq!(cluster.run()["state"], "running");
    browser.tab_to("cancel");
    browser.press(ENTER);
    browser.tab_to("confirm-yes");
    browser.press(ENTER);
    cluster.until("it is cancelled", |cluster| cluster.run()["state"] == "cancelled");
    browser.until("the page says so", |browser| browser.text("run-state").contains("cancelled"));

    // Draining, and back.
    browser.script("location.hash = '#/'");
    browser.until("the cluster is shown", |browser| browser.text("workers").contains("hub"));
    browser.tab_to("Drain hub");
    browser.press(ENTER);
    browser.tab_to("confirm-yes");
    browser.press(ENTER);
    browser.until("hub is drained", |browser| browser.text("workers").contains("drained"));

    // Logging out removes the token.
    browser.tab_to("leave");
    browser.press(ENTER);
    browser.until("the form is back", |browser| browser.text("login").contains("Access token"));
    assert_eq!(browser.script("return sessionStorage.length"), json!(0));
    let complaints: Vec<String> = browser
        .complaints()
        .into_iter()
        .filter(|line| !line.contains("/v1/me - Failed") && !line.contains("/replan"))
        .collect();
    assert_eq!(complaints, Vec::<String>::new());
}

/// The browser with the page of a cluster, logged in with this token.
fn logged_in(cluster: &Cluster, token: &str) -> Browser {
    let browser = Browser::start();
    let (address, _) = cluster.address.trim_start_matches("tidemill://").split_once('/').unwrap();
    browser.post("url", &json!({"url": format!("https://{address}/")}));
    browser.until("the form is there", |browser| browser.text("login").contains("Access token"));
    browser.press(token);
    browser.press(ENTER);
    browser.until("the cluster is shown", |browser| !browser.text("who").is_empty());
    browser
}

/// A proposed plan is shown with its changes, and followed when accepted.
#[test]
#[ignore = "long: make test-long"]
fn a_proposed_plan_is_applied_with_the_keyboard() {
    if !are_there(&["chromedriver", "chromium"], "chromium chromium-driver") {
        return;
    }
    let cluster = Cluster::start(&["edge", "hub", "cloud"]);
    cluster.slow_down(20);
    cluster.submit().expect(0);
    cluster.until_arrived(50);
    let plan = cluster.place.read("plan.yaml");
    cluster.place.write(
        "other.yaml",
        plan.replace("{id: some, operator: some, worker: edge}", "{id: some, operator: some, worker: hub}"),
    );
    cluster
        .ask(&["change", "spread", "--dry-run", "--plan", &cluster.place.argument("other.yaml")])
        .expect(0);
    let browser = logged_in(&cluster, &cluster.admin());
    browser.script("location.hash = '#/runs/spread'");
    browser.until("the plan is shown", |browser| {
        let text = browser.text("proposal");
        text.contains("admin has a plan") && text.contains("some") && text.contains("hub")
    });
    browser.tab_to("apply");
    browser.picture("proposal");
    browser.press(ENTER);
    browser.until("it asks", |browser| browser.text("confirm-title").starts_with("Apply the proposed plan"));
    browser.tab_to("confirm-yes");
    browser.press(ENTER);
    cluster.until("the plan is followed", |cluster| cluster.run()["plan_version"] == 2);
    browser.until("the page shows it", |browser| browser.text("run-tiles").contains("plan 2"));
    browser.until("it is proposed no more", |browser| {
        browser.script("return document.getElementById('proposal').hidden") == json!(true)
    });
    assert_eq!(browser.text("trouble"), "");
    cluster.ask(&["cancel", "spread"]).expect(0);
}

/// Pictures are shown; the content of records, file names and messages is always text. The viewer's role suffices.
#[test]
fn records_are_shown_and_are_never_markup() {
    if !are_there(&["chromedriver", "chromium"], "chromium chromium-driver") {
        return;
    }
    let place = crate::command::Place::empty("shown");
    place.write(
        "workflow.yaml",
        "version: 1\nname: shown\nsources:\n  - {id: images, kind: image_directory, rate: 2/s, repeat: true, options: {path: images}}\n\
         sinks:\n  - {id: rows, kind: jsonl, input: images, options: {path: out/rows.jsonl}}\n",
    );
    // One pixel.
    let pixel =
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let pixel = base64::prelude::BASE64_STANDARD.decode(pixel).unwrap();
    let evil = "<img src=x onerror='document.title=`taken`'>&quot;";
    for n in 0..4 {
        place.write(&format!("images/{n}{evil}.png"), &pixel);
    }
    let mut cluster = Cluster::without_workers(place, &[]);
    cluster.start_worker("edge");
    cluster.until_joined(1);
    cluster.ask(&["submit", &cluster.place.argument("workflow.yaml"), "--one-worker"]).expect(0);
    let people =
        cluster.ask(&["people", "add", "Ada", "--role", "viewer", "--output", "json"]).expect(0).json();
    let browser = logged_in(&cluster, people["person"]["token"].as_str().unwrap());
    browser.script("location.hash = '#/runs/shown'");
    let shown = "return [...document.querySelectorAll('#samples img')].map(one => [one.complete, one.naturalWidth, one.src.slice(0, 22)])";
    browser.until("a picture is shown", |browser| {
        browser.script(shown)[0] == json!([true, 1, "data:image/png;base64,"])
    });
    browser.until("its name is text", |browser| browser.text("samples").contains("<img src=x onerror="));
    browser.picture("samples");
    assert_eq!(
        browser.script("return document.querySelectorAll('#samples img[onerror], #samples script').length"),
        json!(0)
    );
    assert_eq!(browser.script("return document.title"), "shown – Tidemill");
    assert_eq!(
        browser.script("return document.getElementById('cancel').hidden"),
        true,
        "a viewer only looks"
    );
    browser
        .until("the log says what happens", |browser| browser.text("log").contains("starts with the stages"));
    assert_eq!(browser.complaints(), Vec::<String>::new());
    cluster.ask(&["cancel", "shown"]).expect(0);
}
