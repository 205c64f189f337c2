//! A client that publishes numbers, each until the broker has acknowledged it.
use rumqttc::{AsyncClient, MqttOptions, PublishOptions, QoS};
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

async fn publish(port: u16, stop: &AtomicBool, acknowledged: &Arc<AtomicU64>) -> u64 {
    let mut options = MqttOptions::new("publisher", ("127.0.0.1", port));
    options.set_clean_start(false).set_session_expiry_interval(Some(3600));
    let (client, mut events) = AsyncClient::builder(options).capacity(100).build();
    let events = async {
        loop {
            if events.poll().await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    let numbers = async {
        let mut number = 0u64;
        while !stop.load(Ordering::Acquire) {
            // So many at a time, each again until it is acknowledged.
            let mut missing: Vec<u64> = (number..number + 50).collect();
            number += 50;
            while !missing.is_empty() {
                let mut notices = Vec::new();
                for n in missing.drain(..) {
                    let (topic, payload) = (format!("numbers/{}", n % 10), format!("{{\"n\": {n}}}"));
                    let options = PublishOptions::new(QoS::AtLeastOnce);
                    notices.push((n, client.publish_tracked(topic, payload, options).await.unwrap()));
                }
                for (n, notice) in notices {
                    match notice.wait_async().await {
                        Ok(_) => drop(acknowledged.fetch_add(1, Ordering::AcqRel)),
                        Err(_) => missing.push(n),
                    }
                }
            }
        }
        number
    };
    tokio::select! {
        number = numbers => number,
        () = events => unreachable!("it has no end"),
    }
}
