//! Images of services that are others than in `compose.yaml`: a further Compose file, written while a deployment is upgraded.
//!
//! It names the image that the deployment had then. Where the deployment is written anew for another one, or the user says
//! another one, the file counts no more.
use crate::cause::OperateError;
use crate::site::Place;
use std::collections::BTreeMap;
use std::fs;
use std::io;

/// Its name, beside `compose.yaml`.
pub(crate) const FILE_NAME: &str = "compose.images.yaml";
/// Begins the line with the image of the deployment.
const BESIDE: &str = "# Beside: ";

/// By service, its image.
pub(crate) type Images = BTreeMap<String, String>;

fn print(beside: &str, images: &Images) -> String {
    let mut text = format!(
        "# Written by `tidemill deployment upgrade`; `tidemill down` removes it.\n{BESIDE}{beside}\nservices:\n"
    );
    for (service, image) in images {
        // JSON's way to write a text is one of YAML's.
        text.push_str(&format!("  {service}: {{image: {}}}\n", serde_json::Value::from(image.as_str())));
    }
    text
}

/// The image that the deployment had, where it says so, and those of services.
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

/// What counts for a place whose deployment has this image; nothing where nothing is written.
pub(crate) fn read(place: &Place, usual: &str) -> Result<Images, OperateError> {
    let text = text(place)?.unwrap_or_default();
    let (beside, images) = parse(&text);
    Ok(if beside.is_none_or(|beside| beside == usual) { images } else { Images::new() })
}

/// The image of the deployment that a file was written for which counts no more.
pub(crate) fn outdated(place: &Place, usual: &str) -> Result<Option<String>, OperateError> {
    let text = text(place)?.unwrap_or_default();
    Ok(parse(&text).0.filter(|beside| *beside != usual).map(str::to_owned))
}

/// Writes it; nothing to write removes the file.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::{Site, tests::written};

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
        // It is written anew for another image.
        crate::site::tests::changed(folder.path(), |document| document["image"] = "tidemill:3".into());
        let site = Site::load(folder.path()).unwrap();
        let place = site.controller();
        assert_eq!(read(place, &site.image(place)).unwrap(), Images::new());
        assert_eq!(outdated(place, &site.image(place)).unwrap().as_deref(), Some("tidemill:1"));
        write(place, "", &Images::new()).unwrap();
        assert_eq!(outdated(place, &site.image(place)).unwrap(), None);
    }
}
