//! Files of backends that load another one than `file`.
use super::Manifest;
use super::check::digest;
use crate::backend::runtime;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::span::Located;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The file of a model for one backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Artifact {
    /// Path of the file, in a format that the backend reads; relative as `file` of the manifest.
    pub file: Located<String>,
    /// sha256 of the file, 64 hexadecimal digits.
    #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
    pub sha256: Located<String>,
}

impl Manifest {
    /// Returns the file of a backend that loads another one than `file`: its own, or that of its runtime.
    pub fn artifact(&self, backend: &str) -> Option<&Artifact> {
        self.artifacts.get(backend).or_else(|| self.artifacts.get(runtime(backend)))
    }

    /// Returns whether the model may run on a backend: `backends` names it or its runtime.
    pub fn allows(&self, backend: &str) -> bool {
        self.backends.iter().any(|allowed| allowed.0 == backend || allowed.0 == runtime(backend))
    }

    pub(super) fn check_artifacts(&self, found: &mut Diagnostics) {
        for (backend, artifact) in &self.artifacts {
            digest(&artifact.sha256, found);
            let loads = |other: &str| other == backend || runtime(other) == backend;
            if !self.backends.iter().any(|other| loads(&other.0)) {
                let text =
                    format!("`artifacts` has a file for `{backend}`, which is not one of the backends");
                let help = format!("add it to `backends`, or remove `{backend}` from `artifacts`");
                found.push(Diagnostic::error("E0506", text).at(artifact.file.span.clone()).with_help(help));
            }
            if self.decoder.is_some() {
                let text = "a model with a decoder has the same files for all backends";
                let help = "remove `artifacts`";
                found.push(Diagnostic::error("E0506", text).at(artifact.file.span.clone()).with_help(help));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A manifest with these lines about backends and files.
    fn manifest(lines: &str) -> Result<Manifest, Diagnostics> {
        let text = format!(
            "version: 1\nid: x\ndescription: x\n{lines}\nlicence: MIT\norigin: {{kind: external, note: x}}\n\
             inputs: [{{name: x, column: x, type: tensor, dtype: float32, shape: [batch, 1]}}]\n\
             outputs: [{{name: y, column: z, type: float64, dtype: float32, shape: [batch, 1]}}]\n"
        );
        Manifest::parse(&text, "m.yaml")
    }

    fn file(name: &str) -> String {
        format!("{{file: {name}, sha256: {}}}", "a".repeat(64))
    }

    fn messages(lines: &str) -> Vec<String> {
        let found = manifest(lines).expect_err("a wrong manifest");
        found.iter().map(|error| error.message.clone()).collect()
    }

    #[test]
    fn a_backend_with_a_provider_loads_its_own_file_or_that_of_its_runtime() {
        let (onnx, engine) = (file("x.onnx"), file("x.engine"));
        let lines = format!(
            "backends: [ort:cuda, ort:tensorrt, ort]\nartifacts: {{ort: {onnx}, ort:tensorrt: {engine}}}"
        );
        let manifest = manifest(&lines).expect("each backend has a file, so `file` is left out");
        let name = |backend: &str| manifest.artifact(backend).map(|artifact| artifact.file.value.as_str());
        assert_eq!((name("ort"), name("ort:cuda")), (Some("x.onnx"), Some("x.onnx")));
        assert_eq!((name("ort:tensorrt"), name("rten")), (Some("x.engine"), None));
        let again = Manifest::parse(&manifest.to_yaml().expect("prints"), "again.yaml");
        assert_eq!(again.expect("reads what it printed"), manifest);
    }

    #[test]
    fn any_name_may_have_a_file_but_only_one_that_is_a_backend() {
        let both =
            format!("backends: [torch, tvm]\nartifacts: {{torch: {}, tvm: {}}}", file("x.pt2"), file("x.so"));
        assert_eq!(manifest(&both).expect("two files").files().collect::<Vec<_>>(), ["x.pt2", "x.so"]);
        let runtime = format!("backends: [ort:cuda]\nartifacts: {{ort: {}}}", file("x.onnx"));
        assert!(manifest(&runtime).is_ok(), "ort:cuda loads the file of ort");

        let one = format!("backends: [torch, rten]\nartifacts: {{torch: {}}}", file("x.pt2"));
        assert_eq!(messages(&one), ["missing key `file`", "missing key `sha256`"], "rten has no file");
        let other =
            format!("backends: [ort]\nartifacts: {{ort: {}, ort:cuda: {}}}", file("x.onnx"), file("y.onnx"));
        assert_eq!(
            messages(&other),
            ["`artifacts` has a file for `ort:cuda`, which is not one of the backends"]
        );
        let damaged = "backends: [torch]\nartifacts: {torch: {file: x.pt2, sha256: abc}}";
        assert_eq!(messages(damaged), ["this is not a sha256"]);
    }

    #[test]
    fn a_runtime_stands_for_its_providers_but_not_the_other_way() {
        let text = format!("backends: [ort]\nfile: x\nsha256: {}", "a".repeat(64));
        let manifest = manifest(&text).expect("a manifest");
        assert!(manifest.allows("ort") && manifest.allows("ort:cuda") && !manifest.allows("rten"));
        let text = text.replace("[ort]", "[ort:cuda]");
        let manifest = super::tests::manifest(&text).expect("a manifest");
        assert!(!manifest.allows("ort") && manifest.allows("ort:cuda") && !manifest.allows("ort:openvino"));
    }
}
