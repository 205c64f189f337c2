//! Images of services that differ from `compose.yaml`: a further Compose file, written during an upgrade.
//!
//! It names the deployment's image at that time. If the deployment is rewritten for another one, or the user sets another
//! one, the file is ignored.
use crate::cause::OperateError;
use crate::site::{Place, Site};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

/// Its name, beside `compose.yaml`.
pub(crate) const FILE_NAME: &str = "compose.images.yaml";
/// Prefix of the line with the image of the deployment.
const BESIDE: &str = "# Beside: ";

/// Image by service.
pub(crate) type Images = BTreeMap<String, String>;

fn print(beside: &str, images: &Images) -> String {
    let mut text = format!(
        "# Written by `tidemill deployment upgrade`; `tidemill down` removes it.\n{BESIDE}{beside}\nservices:\n"
    );
    for (service, image) in images {
        // JSON strings are valid YAML.
        text.push_str(&format!("  {service}: {{image: {}}}\n", serde_json::Value::from(image.as_str())));
    }
    text
}

/// Parses the deployment's image, if given, and those of services.
fn parse(text: &str) -> (Option<&str>, Images) {
    let line = |line: &str| {
        let (service, rest) = line.strip_prefix("  ")?.split_once(": {image: ")?;
        Some((service.to_owned(), serde_json::from_str(rest.strip_suffix('}')?).ok()?))
    };
    (text.lines().find_map(|line| line.strip_prefix(BESIDE)), text.lines().filter_map(line).collect())
}

fn text(place: &Place) -> Result<Option<String>, OperateError> {
    let path = place.own_folder.join(FILE_NAME);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(OperateError::File { path, source }),
    }
}

/// Returns the valid images for a location whose deployment has this image; none without a file.
pub(crate) fn read(place: &Place, usual: &str) -> Result<Images, OperateError> {
    let text = text(place)?.unwrap_or_default();
    let (beside, images) = parse(&text);
    Ok(if beside.is_none_or(|beside| beside == usual) { images } else { Images::new() })
}

/// Returns the image of the deployment that an outdated file was written for.
pub(crate) fn outdated(place: &Place, usual: &str) -> Result<Option<String>, OperateError> {
    let text = text(place)?.unwrap_or_default();
    Ok(parse(&text).0.filter(|beside| *beside != usual).map(str::to_owned))
}

/// Writes the file; removes it if there are no images.
pub(crate) fn write(place: &Place, usual: &str, images: &Images) -> Result<(), OperateError> {
    let path = place.own_folder.join(FILE_NAME);
    let done = match images.is_empty() {
        true => match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        },
        false => fs::write(&path, print(usual, images)),
    };
    done.map_err(|source| OperateError::File { path, source })
}

/// Updates the image in `deployment.json` to the one that all containers have by an upgrade, or back to the one in the
/// files of the locations. If they have different ones, an upgrade has not ended, and the image stays. The folder is read
/// again: it may have been written since an upgrade started.
///
/// # Errors
/// A file cannot be read or written.
pub(crate) fn keep(folder: &Path) -> Result<(), OperateError> {
    let site = Site::load(folder)?;
    let (mut all, mut is_upgraded) = (BTreeSet::new(), false);
    for place in site.places() {
        let usual = site.image(place);
        let own = read(place, &usual)?;
        is_upgraded |= !own.is_empty();
        let services = place.location.services.iter().map(|one| own.get(&one.service).unwrap_or(&usual));
        all.extend(services.cloned());
    }
    match all.first().filter(|_| all.len() == 1) {
        _ if !is_upgraded => site.keep_image(None),
        Some(image) => site.keep_image(Some(image)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::tests::written;

    #[test]
    fn what_is_written_is_read() {
        let images: Images = [
            ("controller".to_owned(), "registry:5000/tidemill:2".to_owned()),
            ("worker-a".to_owned(), "t:1".to_owned()),
        ]
        .into();
        assert_eq!(parse(&print("t:0", &images)), (Some("t:0"), images));
        assert_eq!(parse("services:\n  x: [\n"), (None, Images::new()));
    }

    #[test]
    fn images_of_an_upgrade_count_for_the_deployment_that_was_upgraded() {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), None);
        let site = Site::load(folder.path()).unwrap();
        let place = site.controller();
        let images: Images = [("controller".to_owned(), "tidemill:2".to_owned())].into();
        write(place, &site.image(place), &images).unwrap();
        assert_eq!(read(place, &site.image(place)).unwrap(), images);
        assert_eq!(outdated(place, &site.image(place)).unwrap(), None);
        // It is rewritten for another image.
        crate::site::tests::changed(folder.path(), |document| document["image"] = "tidemill:3".into());
        let site = Site::load(folder.path()).unwrap();
        let place = site.controller();
        assert_eq!(read(place, &site.image(place)).unwrap(), Images::new());
        assert_eq!(outdated(place, &site.image(place)).unwrap().as_deref(), Some("tidemill:1"));
        write(place, "", &Images::new()).unwrap();
        assert_eq!(outdated(place, &site.image(place)).unwrap(), None);
    }

    #[test]
    fn the_document_names_the_image_that_all_containers_have() {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), None);
        let document = || fs::read_to_string(folder.path().join("deployment.json")).unwrap();
        let give = |locations: &[&str], image: Option<&str>| {
            let site = Site::load(folder.path()).unwrap();
            let of_them = site.places().iter().filter(|place| locations.contains(&&*place.location.name));
            for place in of_them {
                let services = place.location.services.iter().map(|one| one.service.clone());
                let images: Option<Images> =
                    image.map(|image| services.map(|one| (one, image.to_owned())).collect());
                write(place, &site.image(place), &images.unwrap_or_default()).unwrap();
            }
            keep(folder.path()).unwrap();
            let site = Site::load(folder.path()).unwrap();
            let counts = read(site.controller(), &site.image(site.controller())).unwrap();
            (site.deployment().image.clone(), site.image(site.controller()), !counts.is_empty())
        };
        let named = |image: &str, has_own| (image.to_owned(), "tidemill:1".to_owned(), has_own);
        let before = document();
        assert_eq!(give(&[], None), named("tidemill:1", false));
        assert_eq!(document(), before, "nothing is written where nothing is new");
        assert_eq!(give(&["hub"], Some("tidemill:2")), named("tidemill:1", true), "it has only begun");
        assert_eq!(give(&["edge"], Some("tidemill:2")), named("tidemill:2", true));
        assert!(document().contains("\"format\": 4"), "{}", document());
        // The next one has started, and is reverted.
        assert_eq!(give(&["edge"], Some("tidemill:3")), named("tidemill:2", true));
        assert_eq!(give(&["edge"], Some("tidemill:2")), named("tidemill:2", true));
        // Back to the first one.
        assert_eq!(give(&["edge", "hub"], None), named("tidemill:1", false));
        assert!(document().contains("\"format\": 3") && !document().contains("image_of_files"));
    }
}
