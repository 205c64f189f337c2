//! The files that a workflow needs, found by what the kinds of its parts and the manifests of its models say that they read.
use crate::api::{Bundle, BundleFile};
use crate::blobs::{BlobError, digest_of_file};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use tidemill_app::preparation::kinds;
use tidemill_app::sent::normal;
use tidemill_spec::kinds::KindTable;
use tidemill_spec::manifest::Manifest;
use tidemill_spec::variables::{self, Lookup};

/// The reason why files cannot be gathered.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] BlobError),
    /// Not YAML.
    #[error("{path}: {reason}")]
    Yaml {
        /// The file.
        path: PathBuf,
        /// The error.
        reason: String,
    },
    /// The system refuses.
    #[error("{path}: {source}")]
    System {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// A bundle and where its files are here, by digest.
pub struct Gathered {
    /// The bundle to send.
    pub bundle: Bundle,
    /// Files by digest.
    pub files: BTreeMap<String, PathBuf>,
    /// The folder that the paths of the bundle begin in.
    pub root: PathBuf,
}

/// Gathers the files of a workflow that exist here: those that its sources, operators and sinks read by the options that their kinds
/// declare, its models with the files that their manifests name, and its ground truths. Relative paths begin at the file that has them.
/// An absolute path means a file of the worker and is left alone. Variables that the workflow names come with it, as the
/// environment of this process has them.
///
/// # Errors
/// A file cannot be read.
pub fn gather(workflow: &Path) -> Result<Gathered, BundleError> {
    gather_with(workflow, &variables::environment)
}

fn gather_with(workflow: &Path, lookup: Lookup<'_>) -> Result<Gathered, BundleError> {
    let workflow = std::path::absolute(workflow)
        .map_err(|source| BundleError::System { path: workflow.to_owned(), source })?;
    let workflow = normal(&workflow);
    let named = variables_with(&workflow, lookup)?;
    let filled = |text: &str| {
        let filled = variables::filled(text, &|name| named.get(name).cloned());
        filled.unwrap_or_else(|_| text.to_owned()) // an error in it is reported where the workflow is read
    };
    let value = parsed(&workflow)?;
    let mut found = BTreeSet::from([workflow.clone()]);
    for text in read_by(&value, kinds()) {
        found.extend(files_at(&workflow, &filled(text))?);
    }
    for text in texts_of(&value, &["operators", "variants"]) {
        let manifests = files_at(&workflow, &filled(text))?;
        for manifest in &manifests {
            // Errors in a manifest are reported where the model is loaded.
            for file in Manifest::load(manifest).iter().flat_map(Manifest::files) {
                found.extend(files_at(manifest, file)?);
            }
        }
        found.extend(manifests);
    }
    let root = common(&found);
    let mut gathered = Gathered { bundle: Bundle::default(), files: BTreeMap::new(), root: root.clone() };
    gathered.bundle.workflow = relative(&root, &workflow);
    gathered.bundle.variables = named;
    for path in &found {
        let (digest, bytes) = digest_of_file(path)?;
        gathered.bundle.files.push(BundleFile { path: relative(&root, path), digest: digest.clone(), bytes });
        gathered.files.insert(digest, path.clone());
    }
    Ok(gathered)
}

/// The variables that a workflow or an infrastructure names, as the environment of this process has them.
///
/// # Errors
/// The file cannot be read.
pub fn variables_of(path: &Path) -> Result<BTreeMap<String, String>, BundleError> {
    variables_with(path, &variables::environment)
}

fn variables_with(path: &Path, lookup: Lookup<'_>) -> Result<BTreeMap<String, String>, BundleError> {
    let value = parsed(path)?;
    let mut texts = Vec::new();
    strings(&value, &mut texts);
    let named = RefCell::new(BTreeMap::new());
    let noted = |name: &str| {
        let value = lookup(name)?;
        named.borrow_mut().insert(name.to_owned(), value.clone());
        Some(value)
    };
    for text in texts {
        let _ = variables::filled(text, &noted); // what is wrong with it is told where the file is read
    }
    Ok(named.into_inner())
}

fn parsed(path: &Path) -> Result<serde_json::Value, BundleError> {
    let text =
        fs::read_to_string(path).map_err(|source| BundleError::System { path: path.to_owned(), source })?;
    tidemill_spec::yaml::to_json(&text).map_err(|reason| BundleError::Yaml { path: path.to_owned(), reason })
}

/// Texts of a workflow that name files which its parts read, models aside.
fn read_by<'a>(workflow: &'a serde_json::Value, kinds: &KindTable) -> Vec<&'a str> {
    let mut texts = texts_of(workflow, &["sinks", "ground_truth", "path"]);
    for role in ["sources", "operators", "sinks"] {
        for part in workflow.get(role).and_then(serde_json::Value::as_array).into_iter().flatten() {
            let kind = part.get("kind").and_then(serde_json::Value::as_str).unwrap_or_default();
            let reads = match role {
                "sources" => kinds.source(kind).reads,
                "operators" => kinds.operator(kind).reads,
                _ => kinds.sink(kind).reads,
            };
            let options = part.get("options");
            let named = reads.iter().filter_map(|option| options?.get(option));
            named.for_each(|value| strings(value, &mut texts));
        }
    }
    texts
}

/// Returns the texts at this path of keys; lists on it are searched item by item.
fn texts_of<'a>(value: &'a serde_json::Value, keys: &[&str]) -> Vec<&'a str> {
    let mut texts = Vec::new();
    match (value, keys) {
        (value, []) => strings(value, &mut texts),
        (serde_json::Value::Array(items), keys) => {
            texts = items.iter().flat_map(|item| texts_of(item, keys)).collect();
        }
        (value, [key, rest @ ..]) => {
            texts = value.get(key).map(|value| texts_of(value, rest)).unwrap_or_default();
        }
    }
    texts
}

/// The file that a text in the file `from` names, or all files of the folder, if it is a relative path to one that is here.
fn files_at(from: &Path, text: &str) -> Result<Vec<PathBuf>, BundleError> {
    let folder = from.parent().unwrap_or(Path::new("/"));
    let mut files = Vec::new();
    if text.is_empty() || Path::new(text).is_absolute() || text.len() > 1024 {
        return Ok(files);
    }
    let path = normal(&folder.join(text));
    match fs::metadata(&path) {
        Ok(found) if found.is_file() => files.push(path),
        Ok(found) if found.is_dir() && path != folder && !folder.starts_with(&path) => {
            all_in(&path, &mut files)?;
        }
        _ => {}
    }
    Ok(files)
}

fn strings<'a>(value: &'a serde_json::Value, into: &mut Vec<&'a str>) {
    match value {
        serde_json::Value::String(text) => into.push(text),
        serde_json::Value::Array(all) => all.iter().for_each(|value| strings(value, into)),
        serde_json::Value::Object(all) => all.values().for_each(|value| strings(value, into)),
        _ => {}
    }
}

fn all_in(folder: &Path, into: &mut Vec<PathBuf>) -> Result<(), BundleError> {
    let system = |source| BundleError::System { path: folder.to_owned(), source };
    for entry in fs::read_dir(folder).map_err(system)? {
        let entry = entry.map_err(system)?;
        let kind = entry.file_type().map_err(system)?;
        if kind.is_dir() {
            all_in(&entry.path(), into)?;
        } else if fs::metadata(entry.path()).is_ok_and(|found| found.is_file()) {
            into.push(entry.path());
        }
    }
    Ok(())
}

/// The folder that all files are in.
fn common(files: &BTreeSet<PathBuf>) -> PathBuf {
    let mut folders = files.iter().filter_map(|file| file.parent());
    let Some(first) = folders.next() else { return PathBuf::from("/") };
    let mut root = first.to_owned();
    for folder in folders {
        while !folder.starts_with(&root) && root.pop() {}
    }
    root
}

fn relative(root: &Path, path: &Path) -> String {
    let path = path.strip_prefix(root).unwrap_or(path);
    path.components().map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_workflow_names_is_gathered_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        let write = |path: &str, text: &str| {
            fs::create_dir_all(at(path).parent().unwrap()).unwrap();
            fs::write(at(path), text).unwrap();
        };
        write(
            "flows/vqa/workflow.yaml",
            "name: labels\n\
             sources: [{id: labels, kind: image_directory, options: {path: data/images}}, {kind: csv, options: {path: /etc/hosts}}]\n\
             operators:\n\
             - {id: models, kind: ml, input: labels, variants: [../../models/a.yaml, ../../models/not-there.yaml]}\n\
             - {id: labels, kind: map, options: {columns: {x: models}}}\n\
             sinks:\n\
             - {kind: jsonl, options: {path: out/answers.jsonl}, ground_truth: {path: truth.csv, key: models}}\n\
             - {kind: video, options: {path: out/drawn.mp4, over: data/drive.mp4}}\n",
        );
        write("flows/vqa/data/images/1.png", "one");
        write("flows/vqa/data/images/more/2.png", "two");
        write("flows/vqa/data/drive.mp4", "frames");
        write("flows/vqa/truth.csv", "truth");
        write("flows/vqa/out/answers.jsonl", "of another run");
        write("flows/vqa/out/drawn.mp4", "of another run");
        // They have the names of operators and columns.
        write("flows/vqa/models/large.onnx", "not named");
        write("flows/vqa/labels", "not named");
        write("flows/other.txt", "not named");
        let digest = "a".repeat(64);
        write(
            "models/a.yaml",
            &format!(
                "version: 1\nid: a\ndescription: x\nfile: a.onnx\nsha256: {digest}\nlicence: MIT\n\
                 origin: {{kind: external, note: x}}\nbackends: [rten]\n\
                 inputs: [{{name: x, column: x, type: tensor, dtype: float32, shape: [batch, 4]}}]\n\
                 outputs: [{{name: y, column: y, type: tensor, dtype: float32, shape: [batch, 3]}}]\n"
            ),
        );
        write("models/a.onnx", "weights");
        let gathered = gather(&at("flows/vqa/workflow.yaml")).unwrap();
        let paths: Vec<&str> = gathered.bundle.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "flows/vqa/data/drive.mp4",
                "flows/vqa/data/images/1.png",
                "flows/vqa/data/images/more/2.png",
                "flows/vqa/truth.csv",
                "flows/vqa/workflow.yaml",
                "models/a.onnx",
                "models/a.yaml",
            ]
        );
        assert_eq!(gathered.bundle.workflow, "flows/vqa/workflow.yaml");
        assert!(gathered.bundle.variables.is_empty());
    }

    /// The bundle is resolved at its sender: no other machine has these variables.
    #[test]
    fn variables_that_a_workflow_names_are_those_of_who_sends_it() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| fs::write(folder.path().join(path), text).unwrap();
        write(
            "workflow.yaml",
            "sources: [{kind: csv, options: {path: '${DATA:-none}.csv'}}, {kind: csv, options: {path: '${ELSEWHERE:-other.csv}'}}]\n\
             # ${COMMENT}\n\
             sinks: [{options: {path: 'out/${SITE}-$${PLAIN}-${NOT_SET:-x}.csv'}, ground_truth: {path: '${EMPTY}truth.csv'}}]\n\
             run: {dead_letters: '${LETTERS}'}\n",
        );
        for file in ["rows.csv", "other.csv", "truth.csv"] {
            write(file, "a\n1\n");
        }
        let lookup = |name: &str| match name {
            "DATA" => Some("rows".to_owned()),
            "ELSEWHERE" => Some("/data/rows.csv".to_owned()),
            "EMPTY" => Some(String::new()),
            "NOT_SET" => None,
            name => Some(name.to_lowercase()),
        };
        let Gathered { bundle, .. } = gather_with(&folder.path().join("workflow.yaml"), &lookup).unwrap();
        let paths: Vec<&str> = bundle.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["rows.csv", "truth.csv", "workflow.yaml"]);
        let expected = [
            ("DATA", "rows"),
            ("ELSEWHERE", "/data/rows.csv"),
            ("EMPTY", ""),
            ("LETTERS", "letters"),
            ("SITE", "site"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(bundle.variables, BTreeMap::from(expected));
    }
}
