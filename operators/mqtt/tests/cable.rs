//! A cable between a client and a broker that can be cut: all its connections end at once, with whatever is in them.
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

type Ends = Arc<Mutex<Vec<TcpStream>>>;

pub(crate) struct Cable {
    ends: Ends,
    pub(crate) port: u16,
}

impl Cable {
    /// A cable to a port of this machine.
    pub(crate) fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap().port();
        let ends = Ends::default();
        let kept = Arc::clone(&ends);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let mut ends = kept.lock().unwrap();
                for stream in [&client, &server] {
                    ends.push(stream.try_clone().unwrap());
                }
                drop(ends);
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || copy(from, to));
                std::thread::spawn(move || copy(server, client));
            }
        });
        Self { ends, port: own }
    }

    /// Cuts it when there is a connection; returns 1 if that ended one.
    pub(crate) fn cut(&self) -> usize {
        while self.ends.lock().unwrap().is_empty() {
            std::thread::yield_now();
        }
        let ends = std::mem::take(&mut *self.ends.lock().unwrap());
        // The other end of a connection may follow by itself.
        let ended = ends.iter().filter(|end| end.shutdown(Shutdown::Both).is_ok()).count();
        usize::from(ended > 0)
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}
