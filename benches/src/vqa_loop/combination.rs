//! Selects the compared models of a workflow: all smallest and all largest.
use anyhow::{anyhow, ensure};
use std::path::{Path, PathBuf};
use tidemill_spec::manifest::{InputType, Manifest};
use tidemill_spec::workflow::Workflow;

/// Returns the manifests of an image model, a speech model and an answerer, for up to two sizes. Skips models that are
/// not here, write their text token by token or do not run on all `backends`.
pub(super) fn of_workflow(workflow: &Path, backends: &[String]) -> anyhow::Result<Vec<[PathBuf; 3]>> {
    let workflow = Workflow::load(workflow).map_err(|found| anyhow!("{}", found.render(false)))?;
    let mut families: [Vec<(u64, PathBuf)>; 3] = Default::default();
    for written in workflow.operators.iter().flat_map(|operator| &operator.variants) {
        let path = workflow.resolve(&written.value);
        let Ok(manifest) = Manifest::load(&path) else { continue };
        let runs = |backend: &String| manifest.backends.iter().any(|allowed| allowed.to_string() == *backend);
        if manifest.repeat.is_some()
            || manifest.decoder.is_some()
            || manifest.generate.is_some()
            || !backends.iter().all(runs)
        {
            continue;
        }
        let kind = match manifest.inputs.first().map(|input| input.input_type) {
            Some(InputType::Image) => 0,
            Some(InputType::Audio) => 1,
            _ => 2,
        };
        families[kind].push((manifest.flops.unwrap_or(0), path));
    }
    for (family, what) in families.iter_mut().zip(["image model", "speech model", "answerer"]) {
        ensure!(!family.is_empty(), "the workflow names no {what} that runs on {}", backends.join(" and "));
        family.sort();
    }
    let ends = |family: &Vec<(u64, PathBuf)>| [family[0].1.clone(), family[family.len() - 1].1.clone()];
    let [images, speech, answerers] = families.each_ref().map(ends);
    let mut sizes: Vec<_> =
        (0..2).map(|size| [&images, &speech, &answerers].map(|family| family[size].clone())).collect();
    sizes.dedup();
    Ok(sizes)
}
