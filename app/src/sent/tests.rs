//! Opens and writes files for others, in the folder of a controller with a secret of its own.
use super::*;
use crate::listener::Silent;
use crate::preparation::{PlanFrom, prepare};
use std::fs;

const SECRET: &str = "the secret of the controller";
const WORKFLOW: &str = "version: 1
name: sent
sources:
  - {id: rows, kind: csv, options: {path: ../rows.csv, columns: {k: text}}}
sinks:
  - {id: out, kind: jsonl, input: rows, options: {path: out.jsonl}}
";

struct Place(tempfile::TempDir);

impl Place {
    /// A run whose workflow lies in a folder below.
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        place.write("secret.yaml", SECRET);
        place.write("run/files/rows.csv", "k\n1\n");
        place.write("run/files/flows/workflow.yaml", WORKFLOW);
        place
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn write(&self, file: &str, text: &str) {
        fs::create_dir_all(self.path(file).parent().unwrap()).unwrap();
        fs::write(self.path(file), text).unwrap();
    }

    /// With this instead of that, and these variables.
    fn load_with(&self, from: &str, to: &str, variables: &[(&str, &str)]) -> Result<Workflow, String> {
        self.write("run/files/flows/workflow.yaml", &WORKFLOW.replace(from, to));
        self.load("flows/workflow.yaml", variables)
    }

    fn load(&self, workflow: &str, variables: &[(&str, &str)]) -> Result<Workflow, String> {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let (folder, variables) = (self.path("run/files"), variables.collect());
        let sent = Sent { folder: &folder, workflow, variables: &variables };
        sent.load(&Silent).map_err(|found| found.to_string())
    }

    fn refused(&self, from: &str, to: &str, words: &str) {
        let message = self.load_with(from, to, &[]).unwrap_err();
        assert!(message.contains(words) && !message.contains(SECRET), "{message}");
    }

    /// The model of an operator whose manifest has this file and origin.
    fn model(&self, file: &str, origin: &str) -> Result<choice::Candidate, String> {
        let text = format!(
            "version: 1\nid: m\ndescription: x\nfile: {file}\nsha256: {}\nlicence: MIT\norigin: {origin}\nbackends: [ort]\n\
             inputs: [{{name: x, column: x, type: tensor, dtype: float32, shape: [batch, 4]}}]\n\
             outputs: [{{name: y, column: y, type: tensor, dtype: float32, shape: [batch, 3]}}]\n",
            "a".repeat(64)
        );
        self.write("run/files/models/m.yaml", &text);
        let to = "operators:\n  - {id: see, kind: ml, input: rows, variants: [../models/m.yaml]}\nsinks:";
        let workflow = self.load_with("sinks:", to, &[]).unwrap();
        let (folder, variables) = (self.path("run/files"), BTreeMap::default());
        let sent = Sent { folder: &folder, workflow: "flows/workflow.yaml", variables: &variables };
        let found = sent.candidates(&workflow).map_err(|found| found.to_string())?;
        Ok(found["see"][0].clone())
    }
}

#[test]
fn what_is_not_of_the_submission_is_not_read() {
    let place = Place::new();
    assert!(place.load("flows/workflow.yaml", &[]).is_ok());
    let outside = "is not one of the sent files";
    let absolute = place.path("secret.yaml").display().to_string();
    for path in ["../../../secret.yaml", "../../secret.yaml", "../nothing/../../secret.yaml"] {
        let words = format!("source `rows`: `{path}` {outside}");
        place.refused("path: ../rows.csv", &format!("path: {path}"), &words);
        let truth = format!("ground_truth: {{path: {path}, key: k, prediction: k, truth: k}}}}");
        place.refused(
            "path: out.jsonl}}",
            &format!("path: out.jsonl}}, {truth}"),
            &format!("ground truth of `out`: `{path}` {outside}"),
        );
        let over = format!("path: out.jsonl, over: {path}}}}}");
        place.refused("path: out.jsonl}}", &over, &format!("sink `out`: `{path}` {outside}"));
    }
    for path in ["../../../secret.yaml", &absolute] {
        let operators =
            format!("operators:\n  - {{id: see, kind: ml, input: rows, variants: ['{path}']}}\nsinks:");
        place.refused("sinks:", &operators, &format!("operator `see`: the manifest `{path}` {outside}"));
    }
    for workflow in ["../../secret.yaml", &absolute] {
        let message = place.load(workflow, &[]).unwrap_err();
        assert!(message.contains(outside) && !message.contains(SECRET), "{message}");
    }
    // Links and pipes are nothing that could be sent.
    std::os::unix::fs::symlink(place.path("secret.yaml"), place.path("run/files/link.csv")).unwrap();
    place.refused("../rows.csv", "../link.csv", outside);
    let pipe = place.path("run/files/pipe.yaml");
    rustix::fs::mknodat(rustix::fs::CWD, pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    place.refused("../rows.csv", "../pipe.yaml", NO_FILE);
    assert!(place.load("pipe.yaml", &[]).unwrap_err().contains(NO_FILE));
}

#[test]
fn what_lies_on_workers_is_not_looked_at() {
    let place = Place::new();
    for path in ["/dev/zero", "'-'", "/no/such/file.csv"] {
        let workflow = place.load_with("../rows.csv", path, &[]).unwrap();
        assert!(!opens(Part::Source(&workflow.sources[0])), "{path}");
    }
    let workflow = place.load_with("path: out.jsonl}}", "path: out.jsonl, over: /dev/zero}}", &[]).unwrap();
    assert!(opens(Part::Source(&workflow.sources[0])) && !opens(Part::Sink(&workflow.sinks[0])));
}

#[test]
fn dead_letters_are_written_in_the_folder_of_the_run() {
    let place = Place::new();
    std::os::unix::fs::symlink(place.0.path(), place.path("run/files/flows/away")).unwrap();
    let with = |path: &str| {
        place.load_with("sinks:", &format!("run: {{dead_letters: '{path}'}}\nsinks:"), &[]).map(drop)
    };
    for path in ["dead.jsonl", "out/dead.jsonl", "./out/./dead.jsonl"] {
        assert_eq!(with(path), Ok(()), "{path}");
    }
    let absolute = place.path("run/files/flows/dead.jsonl").display().to_string();
    for path in
        ["../dead.jsonl", "../../../secret.yaml", "out/../../../x", "..", ".", "/x", "away/x", &absolute]
    {
        let message = with(path).unwrap_err();
        assert!(message.contains("E0606") && message.contains("a relative path without `..`"), "{message}");
    }
    // Runs of before are refused as new ones are.
    let (folder, variables) = (place.path("run/files"), BTreeMap::default());
    let sent = Sent { folder: &folder, workflow: "flows/workflow.yaml", variables: &variables };
    let prepared = || prepare(sent.load(&Silent)?, PlanFrom::Settings(&[]), Scope::Elsewhere(&sent), &Silent);
    assert!(prepared().is_err());
    place.write("run/files/flows/workflow.yaml", WORKFLOW);
    assert!(prepared().is_ok());
    assert_eq!(fs::read_to_string(place.path("secret.yaml")).unwrap(), SECRET);
}

/// `PATH` is a variable that every process has.
#[test]
fn variables_are_those_that_were_sent() {
    let place = Place::new();
    let message = place.load_with("../rows.csv", "'${PATH}.csv'", &[]).unwrap_err();
    assert!(
        message.contains("the variable `PATH` is not set") && message.contains("`tidemill submit` sends"),
        "{message}"
    );
    assert!(!message.contains(&std::env::var("PATH").unwrap()), "{message}");
    let path = |workflow: &Workflow| {
        workflow.sources[0].options.get("path").and_then(Value::as_str).unwrap().to_owned()
    };
    let without = place.load_with("../rows.csv", "'${PATH:-../rows}.csv'", &[]).unwrap();
    let with = place.load_with("../rows.csv", "'${PATH:-../rows}.csv'", &[("PATH", "/data/rows")]).unwrap();
    assert_eq!((path(&without), path(&with)), ("../rows.csv".to_owned(), "/data/rows.csv".to_owned()));
    assert_eq!(without.digest(), with.digest(), "plans are of both");
    // A file that was sent cannot lead out either.
    let message =
        place.load_with("../rows.csv", "'${AWAY}'", &[("AWAY", "../../../secret.yaml")]).unwrap_err();
    assert!(message.contains(OUTSIDE), "{message}");
    place.write("run/planning/infrastructure.yaml", "version: 1\nname: a\ntiers: [{location: '${PATH}'}]\n");
    let (folder, variables) = (place.path("run/files"), BTreeMap::default());
    let sent = Sent { folder: &folder, workflow: "flows/workflow.yaml", variables: &variables };
    let found = sent.infrastructure(&place.path("run/planning/infrastructure.yaml")).unwrap_err();
    assert!(found.to_string().contains("the variable `PATH` is not set"), "{found}");
}

#[test]
fn models_and_libraries_are_looked_for_where_they_may_be() {
    let place = Place::new();
    let (made, fetched) = ("{kind: external, note: x}", "{kind: fetched, package: p, package_version: '1'}");
    for (file, origin) in
        [("../../../secret.yaml", made), ("../../../secret.yaml", fetched), ("../m.onnx", fetched)]
    {
        let message = place.model(file, origin).unwrap_err();
        assert!(message.contains("E0609") && message.contains(OUTSIDE), "{message}");
    }
    let on_workers = place.model(&place.path("secret.yaml").display().to_string(), made).unwrap();
    assert!(on_workers.bytes.is_none() && on_workers.obstacle.is_none() && !on_workers.absent);
    // A library that lies among the files is not loaded: it would be named as one that cannot be used.
    for folder in ["run/files/flows", "run/files"] {
        place.write(&format!("{folder}/.tidemill/lib/libonnxruntime.so"), "no library");
    }
    place.write("run/files/models/m.onnx", "no model");
    let here = place.model("m.onnx", made).unwrap();
    assert_eq!(here.bytes, Some(8));
    assert!(!here.obstacle.iter().any(|why| why.contains("run/files")), "{:?}", here.obstacle);
}
