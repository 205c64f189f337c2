//! Messages between hosts.
use crate::parts::*;
use tidemill_link::link::LinkError;
use tidemill_link::remote::{MessageReader, MessageWriter};

fn messages(kind: &Kind) -> [(MessageWriter, MessageReader); 2] {
    let (one, other) = pair(kind, &control("edge"), &control("hub"));
    [one.into_messages().unwrap(), other.into_messages().unwrap()]
}

#[test]
fn messages_arrive_whole_and_in_order_both_ways() {
    for kind in kinds() {
        let sizes = [0, 1, 5_000_000, 100, 70_000];
        let threads = messages(&kind).map(|(writer, mut reader)| {
            let send = std::thread::spawn(move || {
                for (n, size) in sizes.into_iter().enumerate() {
                    writer.send(&vec![n as u8; size]).unwrap();
                }
                writer
            });
            let receive = std::thread::spawn(move || {
                for (n, size) in sizes.into_iter().enumerate() {
                    assert!(reader.receive().unwrap() == vec![n as u8; size]);
                }
                reader
            });
            (send, receive)
        });
        let kept = threads.map(|(send, receive)| (send.join().unwrap(), receive.join().unwrap()));
        drop(kept);
    }
}

#[test]
fn threads_that_send_at_once_do_not_mix_their_messages() {
    for kind in kinds() {
        let [(writer, _own), (_other, mut reader)] = messages(&kind);
        let senders: Vec<_> = (0..4u8)
            .map(|n| {
                let writer = writer.clone();
                std::thread::spawn(move || (0..20).for_each(|_| writer.send(&vec![n; 100_000]).unwrap()))
            })
            .collect();
        for _ in 0..80 {
            let message = reader.receive().unwrap();
            assert!(message.len() == 100_000 && message.iter().all(|byte| *byte == message[0]));
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    }
}

#[test]
fn closing_wakes_both_readers_after_what_was_sent() {
    for kind in kinds() {
        let [(writer, mut own), (other, mut reader)] = messages(&kind);
        let waits = std::thread::spawn(move || own.receive());
        writer.send(b"last").unwrap();
        writer.close();
        assert!(matches!(waits.join().unwrap(), Err(LinkError::Lost)));
        assert_eq!(reader.receive().unwrap(), b"last");
        assert!(matches!(reader.receive(), Err(LinkError::Lost)));
        assert!(matches!(writer.send(b"more"), Err(LinkError::Lost)));
        drop(other);
    }
}

#[test]
fn a_peer_that_is_gone_is_told() {
    for kind in kinds() {
        let [(writer, mut reader), other] = messages(&kind);
        drop(other);
        assert!(matches!(reader.receive(), Err(LinkError::Lost)));
        while writer.send(&[0; 100_000]).is_ok() {}
    }
}
