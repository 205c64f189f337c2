//! Environment variables and secrets.
use tidemill_spec::secret::Secret;
use tidemill_spec::span::SourceFile;
use tidemill_spec::value::Value;
use tidemill_spec::{variables, yaml};

fn lookup(name: &str) -> Option<String> {
    match name {
        "PASSWORD" => Some("hunter2".to_string()),
        "EMPTY" => Some(String::new()),
        _ => None,
    }
}

fn filled(text: &str) -> Result<Value, tidemill_spec::diagnostic::Diagnostics> {
    let mut value = yaml::parse(&SourceFile::new("a.yaml", text))?;
    variables::fill_in(&mut value, &lookup)?;
    Ok(value)
}

#[test]
fn variables_are_filled_in() {
    for (text, expected) in [
        ("${PASSWORD}", "hunter2"),
        ("a-${PASSWORD}-${PASSWORD}", "a-hunter2-hunter2"),
        ("${NOT_SET:-b}", "b"),
        ("${NOT_SET:-}", ""),
        ("${EMPTY:-b}", "b"),
        ("x${EMPTY}y", "xy"),
        ("$${PASSWORD}", "${PASSWORD}"),
        ("$PASSWORD $$ $", "$PASSWORD $$ $"),
    ] {
        let value = filled(&format!("a: \"{text}\"\n")).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(value.get("a").and_then(Value::as_str), Some(expected), "{text}");
    }
}

#[test]
fn wrong_references_are_all_reported() {
    let found = filled(
        "a: ${NOT_SET}\nb: ${1X}\nc: ${\nd: {id: \"${PASSWORD}\", inputs: [\"${PASSWORD}\"]}\n${K}: x\n",
    );
    let found = found.expect_err("six mistakes");
    let codes: Vec<&str> = found.iter().map(|d| d.code).collect();
    assert_eq!(codes, ["E0110", "E0111", "E0111", "E0112", "E0112", "E0112"], "{found}");
}

#[test]
fn options_may_use_any_key() {
    let value =
        filled("options: {name: \"${PASSWORD}\", from: [\"${PASSWORD}\"]}\n").expect("free in options");
    assert_eq!(value.get("options").and_then(|o| o.get("name")).and_then(Value::as_str), Some("hunter2"));
}

/// The value of a variable is used, but neither printed, nor logged, nor shown in errors.
#[test]
fn filled_in_values_stay_out_of_sight() {
    let value = filled("options: {password: \"${PASSWORD}\"}\n").expect("is set");
    let json = serde_json::to_string(&value).expect("prints");
    let yaml = yaml::print(&value).expect("prints");
    for text in [json, yaml, format!("{value:?}")] {
        assert!(text.contains("${PASSWORD}") && !text.contains("hunter2"), "{text}");
    }
    let errors =
        value.get("options").map(|o| o.deserialize_into::<std::collections::BTreeMap<String, u32>>());
    let errors = errors.expect("has options").expect_err("no number");
    assert!(!errors.render(false).contains("hunter2"), "{errors}");
    assert!(!format!("{errors:?}").contains("hunter2"), "{errors:?}");
}

#[test]
fn secrets() {
    let folder = tempfile::tempdir().expect("there is a folder for temporary files");
    std::fs::write(folder.path().join("password"), "hunter2\n").expect("can be written");
    let read = |text: &str| filled(text).and_then(|value| value.deserialize_into::<Secret>());
    for text in ["secret_file: password", "${PASSWORD}"] {
        let secret = read(text).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(secret.reveal(folder.path()).expect("can be read"), "hunter2");
        let shown = format!("{secret} {secret:?} {}", serde_json::to_string(&secret).expect("prints"));
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    let missing = read("secret_file: nothing").unwrap_or_else(|errors| panic!("{errors}"));
    assert!(missing.reveal(folder.path()).is_err());
    let number = read("12345").expect_err("a number");
    assert_eq!(number.iter().map(|d| d.code).collect::<Vec<_>>(), ["E0116"]);
    assert!(!number.iter().any(|d| d.message.contains("12345")), "{number}");
    assert!(read("sekret_file: a").is_err());
}
