//! The document of the API: committed, served, and sufficient for a generated client.
use crate::cluster::Cluster;
use crate::command::root;
use crate::processes::place;
use std::process::Command;

/// A client generated from the document alone, with the standard library: calls every `get`, and checks the answers against
/// the schemas.
const CLIENT: &str = r##"
import json, re, ssl, sys, urllib.error, urllib.request
address, authority, token = sys.argv[1], sys.argv[2], sys.argv[3]
names = json.loads(sys.argv[4])
context = ssl.create_default_context(cafile=authority)
base = "https://" + re.match(r"tidemill://([^/]+)/", address).group(1)

def ask(path, token):
    request = urllib.request.Request(base + path)
    if token:
        request.add_header("Authorization", "Bearer " + token)
    with urllib.request.urlopen(request, context=context, timeout=30) as answer:
        return answer.read()

document = json.loads(ask("/v1/openapi.json", None))

def follow(schema):
    while "$ref" in schema:
        target = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        schema = target
    return schema

KINDS = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
         "null": type(None)}

def check(value, schema, at):
    if schema is True:
        return
    schema = follow(schema)
    for kind in ("anyOf", "oneOf"):
        if kind in schema:
            errors = []
            for one in schema[kind]:
                try:
                    return check(value, one, at)
                except AssertionError as error:
                    errors.append(str(error))
            raise AssertionError("; ".join(errors))
    if "const" in schema:
        assert value == schema["const"], (at, value)
    if "enum" in schema:
        assert value in schema["enum"], (at, value)
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds:
        assert any(isinstance(value, KINDS[kind]) for kind in kinds), (at, kinds, value)
    if isinstance(value, dict):
        for name in schema.get("required", []):
            assert name in value, (at, name)
        known = schema.get("properties", {})
        for name, field in value.items():
            if name in known:
                check(field, known[name], at + "." + name)
            elif isinstance(schema.get("additionalProperties"), dict):
                check(field, schema["additionalProperties"], at + "." + name)
            else:
                assert not known, (at, name, "is not in the document")
    if isinstance(value, list):
        for number, item in enumerate(value):
            prefix = schema.get("prefixItems", [])
            one = prefix[number] if number < len(prefix) else schema.get("items", {})
            if isinstance(one, dict):
                check(item, one, f"{at}[{number}]")

called = 0
for path, methods in document["paths"].items():
    operation = methods.get("get")
    # This cluster has no job; cluster_jobs.rs asks for jobs.
    if operation is None or "{job}" in path:
        continue
    filled = path
    for parameter in operation["parameters"]:
        if parameter["in"] == "path":
            named = "worker" if path.startswith("/v1/workers/") else parameter["name"]
            filled = filled.replace("{" + parameter["name"] + "}", names[named])
    called += 1
    try:
        body = ask(filled, token)
    except urllib.error.HTTPError as error:
        # Workers without types and prices make no infrastructure: that is refused, and why is in the document, too.
        assert error.code == 422 and path == "/v1/infrastructure", (path, error.code)
        check(json.loads(error.read()), document["components"]["schemas"]["Refused"], path)
        continue
    content = operation["responses"]["200"]["content"]
    if "application/json" in content:
        check(json.loads(body), content["application/json"]["schema"], path)
    else:
        assert body, path
    if operation["security"]:
        try:
            ask(filled, None)
            raise SystemExit(path + " answers somebody who shows nothing")
        except urllib.error.HTTPError as error:
            assert error.code in (401, 403), (path, error.code)
            check(json.loads(error.read()), document["components"]["schemas"]["Refused"], path)
print(called)
"##;

#[test]
fn the_committed_document_is_the_one_that_is_served() {
    let path = root().join("docs/reference/openapi.json");
    let text = format!("{:#}\n", tidemill_cluster::controller::openapi_document());
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == text, "{} is out of date: run the test with UPDATE_REFERENCE=1", path.display());
}

#[test]
fn a_client_that_is_made_from_the_document_asks_everything() {
    let cluster = Cluster::start_in(place(), &["edge", "hub", "cloud"]);
    cluster.submit().expect(0);
    cluster.until("it is complete", |cluster| cluster.run()["state"] == "complete");
    let workflow = std::fs::read(cluster.place.path("workflow.yaml")).unwrap();
    let names = serde_json::json!({
        "name": "spread",
        "worker": "edge",
        "sink": "pairs",
        "digest": tidemill_cluster::blobs::digest(&workflow),
    });
    let token = std::fs::read_to_string(cluster.place.path("controller/admin.token")).unwrap();
    // The certificate alone, without the key after it.
    let authority = cluster.place.read("controller/identities/authority.pem");
    let (_, certificate) = authority.split_once("-----BEGIN CERTIFICATE-----").unwrap();
    let (certificate, _) = certificate.split_once("-----END CERTIFICATE-----").unwrap();
    let certificate = format!("-----BEGIN CERTIFICATE-----{certificate}-----END CERTIFICATE-----\n");
    cluster.place.write("authority.pem", certificate);
    let output = Command::new("python3")
        .args(["-c", CLIENT, &cluster.address])
        .arg(cluster.place.path("authority.pem"))
        .args([token.trim(), &names.to_string()])
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
    let called: u32 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
    assert!(called >= 12, "{called}");
}
