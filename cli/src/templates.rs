//! The projects of `tidemill init`. Everything is part of the program, so that it works anywhere.
use crate::arguments::SchemaFile;
use crate::arguments::Template;
use crate::schema;
use std::borrow::Cow;

/// One file of a new project.
#[derive(Debug, Clone)]
pub(crate) struct ProjectFile {
    /// Path within the project, with `/`.
    pub(crate) path: String,
    /// Its content.
    pub(crate) content: Cow<'static, [u8]>,
}

impl ProjectFile {
    fn new(path: impl Into<String>, content: impl Into<Cow<'static, [u8]>>) -> Self {
        Self { path: path.into(), content: content.into() }
    }
}

// The models of the template `vqa`: the smallest of their families in models/vqa. Change them here only.
macro_rules! scene_model {
    () => {
        "scene-features-tiny"
    };
}
macro_rules! answer_model {
    () => {
        "answerer-small"
    };
}

macro_rules! model {
    ($name:expr) => {
        (
            $name,
            include_str!(concat!("../../models/vqa/", $name, ".yaml")),
            include_bytes!(concat!("../../models/vqa/", $name, ".onnx")),
        )
    };
}

macro_rules! images {
    ($($key:literal),*) => {
        [$(($key, include_bytes!(concat!("../../examples/vqa/data/images/", $key, ".jpg")))),*]
    };
}

/// Name, manifest, model file.
const MODELS: [(&str, &str, &[u8]); 2] = [model!(scene_model!()), model!(answer_model!())];
/// Key and picture.
const IMAGES: [(&str, &[u8]); 10] = images!(
    "000000", "000001", "000002", "000003", "000004", "000005", "000006", "000007", "000008", "000009"
);
/// All questions of examples/vqa: key, question, answer.
const TRUTH: &str = include_str!("../../examples/vqa/data/truth.csv");
const READINGS: &str = include_str!("../../examples/quickstart/readings.csv");
const QUICKSTART: &str = include_str!("../templates/quickstart/workflow.yaml");
const VQA: &str = include_str!("../templates/vqa/workflow.yaml");
const TESTS: &str = "workflow.test.yaml";
/// The description of a project; an existing one is kept.
pub(crate) const README: &str = "README.md";

/// Returns the files of a new project, in the order of their listing.
pub(crate) fn files(template: Template) -> Vec<ProjectFile> {
    let mut files = match template {
        Template::Quickstart => quickstart(),
        Template::Vqa => vqa(),
    };
    // Editors use these to check and complete the files; `tidemill schema` prints them for a newer version.
    let schemas = match template {
        Template::Quickstart => &[SchemaFile::Workflow, SchemaFile::Test][..],
        Template::Vqa => &[SchemaFile::Workflow, SchemaFile::Test, SchemaFile::Model],
    };
    for kind in schemas {
        let path = format!(".tidemill/{}.schema.json", kind.name());
        files.push(ProjectFile::new(path, schema::text(*kind).into_bytes()));
    }
    let readme = match template {
        Template::Quickstart => include_str!("../templates/quickstart/README.md"),
        Template::Vqa => include_str!("../templates/vqa/README.md"),
    };
    files.push(ProjectFile::new(README, readme.as_bytes()));
    files.push(ProjectFile::new(".gitignore", &b"out/\n"[..]));
    files
}

fn quickstart() -> Vec<ProjectFile> {
    vec![
        ProjectFile::new("workflow.yaml", QUICKSTART.as_bytes()),
        ProjectFile::new(TESTS, include_str!("../templates/quickstart/workflow.test.yaml").as_bytes()),
        ProjectFile::new("readings.csv", READINGS.as_bytes()),
    ]
}

fn vqa() -> Vec<ProjectFile> {
    let workflow = VQA.replace("SCENE_MODEL", scene_model!()).replace("ANSWER_MODEL", answer_model!());
    let mut files = vec![
        ProjectFile::new("workflow.yaml", workflow.into_bytes()),
        ProjectFile::new(TESTS, include_str!("../templates/vqa/workflow.test.yaml").as_bytes()),
    ];
    let (mut questions, mut truth) = ("key,question\n".to_owned(), "key,answer\n".to_owned());
    for (key, image) in IMAGES {
        files.push(ProjectFile::new(format!("data/images/{key}.jpg"), image));
        // The questions are plain words: no field is quoted (a test checks that).
        let row = TRUTH.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(',')?.rsplit_once(','));
        if let Some((question, answer)) = row {
            questions.push_str(&format!("{key},{question}\n"));
            truth.push_str(&format!("{key},{answer}\n"));
        }
    }
    files.push(ProjectFile::new("data/questions.csv", questions.into_bytes()));
    files.push(ProjectFile::new("data/truth.csv", truth.into_bytes()));
    for (name, manifest, model) in MODELS {
        let manifest = manifest.replace("../../spec/schemas/", "../.tidemill/");
        files.push(ProjectFile::new(format!("models/{name}.yaml"), manifest.into_bytes()));
        files.push(ProjectFile::new(format!("models/{name}.onnx"), model));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_picture_has_a_question_and_an_answer() {
        let files = files(Template::Vqa);
        let text = |path: &str| {
            let file = files.iter().find(|file| file.path == path).unwrap();
            String::from_utf8(file.content.to_vec()).unwrap()
        };
        for (table, header) in [("data/questions.csv", "key,question"), ("data/truth.csv", "key,answer")] {
            let table = text(table);
            assert_eq!(table.lines().next(), Some(header));
            assert_eq!(table.lines().count(), 11);
            assert!(
                table.lines().all(|line| line.matches(',').count() == 1 && !line.contains('"')),
                "{table}"
            );
        }
        let workflow = text("workflow.yaml");
        assert!(!workflow.contains("_MODEL"), "{workflow}");
        for (name, ..) in MODELS {
            assert!(workflow.contains(&format!("models/{name}.yaml")));
            assert!(
                text(&format!("models/{name}.yaml"))
                    .starts_with("# yaml-language-server: $schema=../.tidemill/model.schema.json\n")
            );
        }
    }

    #[test]
    fn paths_are_plain_and_no_two_are_the_same() {
        for template in [Template::Quickstart, Template::Vqa] {
            let mut paths: Vec<String> = files(template).into_iter().map(|file| file.path).collect();
            assert!(paths.iter().all(|path| !path.starts_with('/') && !path.contains("..")), "{paths:?}");
            let count = paths.len();
            paths.sort();
            paths.dedup();
            assert_eq!(paths.len(), count);
        }
    }
}
