//! A client that publishes numbers, each until the broker has acknowledged it.
use rumqttc::{AsyncClient, Event, Incoming, MqttOptions, PublishOptions, QoS};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Publishes `{"n": 0}`, `{"n": 1}` ... to `numbers/N`, with N the last digit, until it is stopped.
pub(crate) struct Publisher {
    stop: Arc<AtomicBool>,
    pub(crate) acknowledged: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<u64>,
}

impl Publisher {
    pub(crate) fn start(port: u16) -> Self {
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (told, counted) = (Arc::clone(&stop), Arc::clone(&acknowledged));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(publish(port, &told, &counted))
        });
        Self { stop, acknowledged, thread }
    }

    /// Stops; returns the number of messages, all of them acknowledged.
    pub(crate) fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap()
    }
}

async fn publish(port: u16, stop: &AtomicBool, acknowledged: &AtomicU64) -> u64 {
    let mut options = MqttOptions::new("publisher", ("127.0.0.1", port));
    options.set_clean_start(false).set_session_expiry_interval(Some(3600));
    let (client, mut events) = AsyncClient::builder(options).capacity(10).build();
    let mut number = 0u64;
    loop {
        let is_done = stop.load(Ordering::Acquire);
        if is_done && acknowledged.load(Ordering::Acquire) >= number {
            return number;
        }
        let may_send = !is_done && number < acknowledged.load(Ordering::Acquire) + 50;
        if may_send {
            let topic = format!("numbers/{}", number % 10);
            let payload = format!("{{\"n\": {number}}}");
            if client.try_publish(topic, payload, PublishOptions::new(QoS::AtLeastOnce)).is_ok() {
                number += 1;
            }
        }
        match tokio::time::timeout(Duration::from_millis(100), events.poll()).await {
            Ok(Ok(Event::Incoming(Incoming::PubAck(_)))) => {
                acknowledged.fetch_add(1, Ordering::AcqRel);
            }
            Ok(Ok(_)) | Err(_) => {}
            Ok(Err(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}
