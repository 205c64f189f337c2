//! Id of a deployment: drawn once, and kept in its folder.
use std::path::Path;
use tidemill_app::failure::{Failure, Kind};
use tidemill_deploy::deployment::{Deployment, FILE_NAME};

/// Length of a drawn id.
const LENGTH: usize = 8;
/// Largest length of a chosen id.
const LONGEST: usize = 16;

/// Returns the deployment in a folder.
pub(super) fn before(folder: &Path) -> Result<Option<Deployment>, Failure> {
    let path = folder.join(FILE_NAME);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(_) if !folder.is_dir() => return Ok(None), // told when it is written
        Err(error) => return Err(wrong(&path, &error.to_string())),
    };
    let before: Deployment =
        serde_json::from_slice(&bytes).map_err(|error| wrong(&path, &error.to_string()))?;
    match before.id {
        Some(_) => Ok(Some(before)),
        None => Err(wrong(&path, "its containers have the names of an older version")),
    }
}

fn wrong(path: &Path, text: &str) -> Failure {
    let folder = path.parent().unwrap_or(path).display();
    Failure::new(Kind::Configuration, format!("{}: {text}", path.display())).with_help(format!(
        "remove that deployment from its machines with `tidemill down {folder}`; then remove the file, and deploy again"
    ))
}

/// Returns the requested id, else the existing one, else a new one.
pub(super) fn choose(wanted: Option<&str>, before: Option<&Deployment>) -> Result<String, Failure> {
    let of_before = before.and_then(|before| before.id.as_deref());
    match (wanted, of_before) {
        (Some(wanted), Some(before)) if wanted != before => Err(Failure::new(
            Kind::Configuration,
            format!("the deployment in this folder is {before:?}, but `--id` names {wanted:?}"),
        )
        .with_help(
            "write into another folder, or remove this deployment (`tidemill down`) and its folder first",
        )),
        (Some(wanted), _) => Ok(wanted.to_owned()),
        (None, Some(before)) => Ok(before.to_owned()),
        (None, None) => {
            drawn().map_err(|error| Failure::new(Kind::Unavailable, format!("/dev/urandom: {error}")))
        }
    }
}

fn drawn() -> std::io::Result<String> {
    let mut number = tidemill_app::processes::secret_number()?;
    let letter = |_| {
        let letter = char::from(b'a' + (number % 26) as u8);
        number /= 26;
        letter
    };
    Ok((0..LENGTH).map(letter).collect())
}

/// Parses `--id`.
pub(crate) fn parse(text: &str) -> Result<String, String> {
    let follows = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_one = text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(follows);
    match is_one && text.len() <= LONGEST {
        true => Ok(text.to_owned()),
        false => Err(format!("write up to {LONGEST} lower-case letters and digits, starting with a letter")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_names_of_their_own() {
        let (one, other) = (drawn().unwrap(), drawn().unwrap());
        assert!(one != other && parse(&one).is_ok(), "{one} {other}");
        assert_eq!(choose(Some("live"), None).unwrap(), "live");
        for wrong in ["", "1a", "Live", "a-b", "abcdefghijklmnopq"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
