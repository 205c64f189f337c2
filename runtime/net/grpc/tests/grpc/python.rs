//! The gRPC of Python as a stock client and a stock server, by `tests/python/stock.py`; without it these tests are skipped.

use std::process::{Command, Stdio};

use tidemill_grpc::{Limits, Peer};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::mpsc;

use crate::peers::calls_as_a_stock_client;
use crate::shop::{PATIENCE, event, served};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/stock.py");

/// Runs the script; none if this machine has no gRPC for Python.
fn stock(arguments: &[&str]) -> Option<Process> {
    let python = std::env::var_os("TIDEMILL_PYTHON").unwrap_or("python3".into());
    let asked = Command::new(&python).args(["-c", "import grpc"]).stderr(Stdio::null()).status();
    if !asked.is_ok_and(|status| status.success()) {
        println!(
            "skipped: {} has no grpc; `pip install grpcio`, and TIDEMILL_PYTHON names another",
            python.display()
        );
        return None;
    }
    let mut child = Command::new(python)
        .arg(SCRIPT)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output =
        tokio::net::unix::pipe::Receiver::from_owned_fd(child.stdout.take().unwrap().into()).unwrap();
    let (sender, lines) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut output = BufReader::new(output).lines();
        while let Ok(Some(line)) = output.next_line().await {
            let _ = sender.send(line);
        }
    });
    Some(Process { child, lines })
}

struct Process {
    child: std::process::Child,
    lines: mpsc::UnboundedReceiver<String>,
}

impl Process {
    async fn line(&mut self) -> String {
        tokio::time::timeout(PATIENCE, self.lines.recv())
            .await
            .unwrap()
            .expect("the script says what it does")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_in_python_gets_what_the_service_says() {
    let mut server = served(Limits::default()).await;
    let address = server.uri.trim_start_matches("http://").to_owned();
    let Some(mut client) = stock(&["client", &address]) else { return };
    assert_eq!(client.line().await, "cancels");
    event(&mut server.events, "dropped cancelled").await;
    let passed = client.line().await;
    assert!(passed.starts_with("passed "), "{passed}");
    println!("{passed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_in_python_answers() {
    let Some(mut server) = stock(&["server"]) else { return };
    let port = server.line().await;
    let peer = Peer::connect(&format!("http://127.0.0.1:{}", port.strip_prefix("port ").unwrap())).unwrap();
    calls_as_a_stock_client(&peer, &mut server.lines).await;
}
