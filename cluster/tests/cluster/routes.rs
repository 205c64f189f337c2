//! The document of the API and the server that answers: the same methods at the same paths.
use crate::place::Place;
use serde_json::Value;
use std::time::Duration;
use tidemill_cluster::controller::openapi_document;
use tidemill_http::{Call, Caller, Place as At, Repeat};
use tidemill_identity::{TLS_NAME, fingerprint_config};

#[test]
fn the_server_has_the_methods_of_the_document_and_no_others() {
    let place = Place::new();
    let served: Value = place.admin.get("/v1/openapi.json").unwrap();
    assert_eq!(served, openapi_document());
    let time = std::sync::Arc::new(rustls::time_provider::DefaultTimeProvider);
    let config = std::sync::Arc::new(fingerprint_config(place.address.fingerprint(), time).unwrap());
    let at = At::Tls { address: place.address.host_and_port(), config, name: TLS_NAME.into() };
    let caller = std::sync::Arc::new(Caller::new(at));
    let mut asked = 0;
    for (path, methods) in served["paths"].as_object().unwrap() {
        let filled = path
            .replace("{digest}", &"0".repeat(64))
            .replace("{number}", "1")
            .replace("{name}", "nobody")
            .replace("{sink}", "none")
            .replace("{path}", "lte")
            .replace("{job}", "none-1")
            .replace("{rank}", "0")
            .replace("{incarnation}", "1");
        assert!(!filled.contains('{'), "{path}");
        for method in ["GET", "PUT", "POST", "DELETE"] {
            // No credentials: the server rejects the request.
            let call = Call { method, ..Call::get(&filled) };
            let status = caller.send(&call, Duration::from_secs(20), Repeat::Allowed).unwrap().status;
            let is_described = methods.get(method.to_lowercase()).is_some();
            assert_eq!(status != 405, is_described, "{method} {path}: {status}");
            let is_open = path == "/v1/openapi.json" && method == "GET";
            assert_eq!((200..300).contains(&status), is_open, "{method} {path}: {status}");
            asked += u32::from(is_described);
        }
    }
    assert!(asked > 25, "{asked} operations");
}
