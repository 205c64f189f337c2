//! Files in a bucket, against a server of this process.

use crate::server::{Mood, Server};
use std::io::Read;
use std::time::Duration;
use tidemill_bucket::{Files, Settings, read_link};

const MINUTE: Duration = Duration::from_secs(60);

fn files(server: &Server) -> Files {
    let settings: Settings =
        server.variables().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Files::open(&"s3://abc/of/models".parse().unwrap(), &settings).unwrap()
}

fn content(mut from: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn what_is_put_is_listed_and_read_by_a_link() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let files = files(&server);
    assert!(files.list().unwrap().is_empty() && files.get("small").unwrap().is_none());
    // The second one in parts, with an incomplete last one.
    for (name, bytes) in [("small", 1000), ("large", (33 << 20) + 7)] {
        let path = folder.path().join(name);
        let all: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        std::fs::write(&path, &all).unwrap();
        files.put(name, &path).unwrap();
        assert!(server.object(&format!("of/models/{name}")).is_some_and(|there| there == all));
        let link = files.link(name, MINUTE).unwrap();
        assert!(link.contains("X-Amz-Signature=") && link.contains("X-Amz-Expires=60"));
        assert!(content(read_link(&link).unwrap()) == all);
        assert!(content(files.get(name).unwrap().unwrap()) == all);
    }
    let mut listed: Vec<_> = files.list().unwrap().into_iter().map(|file| (file.name, file.bytes)).collect();
    listed.sort();
    assert_eq!(listed, [("large".to_owned(), (33 << 20) + 7), ("small".to_owned(), 1000)]);
    server.put("of/models/below/other", b"of somebody else");
    assert_eq!(files.list().unwrap().len(), 2);
    server.remove("of/models/below/other");
    files.remove("large").unwrap();
    files.remove("large").unwrap();
    assert_eq!(server.names(), ["of/models/small"]);
}

#[test]
fn a_link_that_leads_nowhere_is_told_without_its_signature() {
    let server = Server::start();
    let files = files(&server);
    let link = files.link("gone", MINUTE).unwrap();
    let missing = read_link(&link).err().unwrap();
    assert!(
        missing.kind() == std::io::ErrorKind::NotFound && missing.to_string().contains("404"),
        "{missing}"
    );
    server.set(Mood::Denies);
    let denied = read_link(&link).err().unwrap().to_string();
    assert!(denied.contains("403"), "{denied}");
    let nobody = "http://127.0.0.1:1/abc/gone?X-Amz-Signature=of-test";
    let nobody = read_link(nobody).err().unwrap().to_string();
    assert!(nobody.contains("refused") && !nobody.contains("of-test"), "{nobody}");
}
