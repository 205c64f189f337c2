//! The cameras in the options, with their passwords.
use super::Options;
use crate::address::Address;
use crate::limits::wrong;
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use tidemill_operators::kind::EndContext;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics};
use tidemill_spec::span::{Located, Span};
use tidemill_spec::value::{Node, Value};

/// Largest file of a password.
const FILE_LIMIT: u64 = 4096;

/// A camera as it is written, for the schema.
#[derive(JsonSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "read by hand, so that findings are at their places")]
pub(super) enum Written {
    /// Its address.
    Url(String),
    /// Its address, with a user.
    Login(Login),
}

/// A camera with a user.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Login {
    /// `rtsp://HOST/PATH`.
    url: Located<String>,
    /// Its user.
    #[serde(default)]
    user: Option<Located<String>>,
    /// Variable of the environment with its password.
    #[serde(default)]
    password_env: Option<Located<String>>,
    /// File with its password, relative to the workflow file; a line break at its end does not count.
    #[serde(default)]
    password_file: Option<Located<String>>,
}

/// Reads the cameras of the options; passwords only where the context opens the source.
pub(super) fn cameras(
    context: &EndContext<'_>,
    options: &Options,
    errors: &mut Diagnostics,
) -> BTreeMap<String, Address> {
    let mut found = BTreeMap::new();
    let mut add = |name: &str, place: &Span, login: &Login, errors: &mut Diagnostics| match address(
        context, name, login,
    ) {
        Ok(address) => {
            found.insert(name.to_owned(), address);
        }
        Err(error) => {
            errors.push(if error.span.source().is_some() { error } else { error.at(place.clone()) })
        }
    };
    match (&options.cameras, &options.url) {
        (Some(cameras), None) => {
            let beside = [&options.user, &options.password_env, &options.password_file];
            if let Some(stray) = beside.into_iter().flatten().next() {
                let text = "`user`, `password_env` and `password_file` beside `cameras` are of no camera";
                errors.push(
                    wrong(text, "write them within the camera: `gate: {url: ..., user: ...}`").at(stray.span.clone()),
                );
            }
            let Node::Map(entries) = &cameras.node else {
                let text = format!("`cameras` is {}", cameras.kind());
                let help = "write a name and an address for each: `cameras: {gate: rtsp://10.0.0.7/stream1}`";
                errors.push(wrong(text, help).at(cameras.span.clone()));
                return found;
            };
            if entries.is_empty() {
                errors.push(wrong("there is no camera", "write one: `cameras: {gate: rtsp://10.0.0.7/stream1}`").at(cameras.span.clone()));
            }
            for entry in entries {
                match login(&entry.value) {
                    Ok(login) => add(&entry.key.value, &entry.key.span, &login, errors),
                    Err(wrong) => errors.append(wrong),
                }
            }
        }
        (None, Some(url)) => {
            let login = Login {
                url: url.clone(),
                user: options.user.clone(),
                password_env: options.password_env.clone(),
                password_file: options.password_file.clone(),
            };
            add(context.id, &context.id.span, &login, errors);
        }
        _ => errors.push(
            wrong(
                format!("source `{}` needs either `cameras` or `url`", context.id),
                "write `url: rtsp://10.0.0.7/stream1` for one camera, `cameras: {gate: rtsp://10.0.0.7/stream1}` for several",
            )
            .at(context.id.span.clone()),
        ),
    }
    found
}

fn login(value: &Value) -> Result<Login, Diagnostics> {
    match &value.node {
        Node::Text(text) => Ok(Login {
            url: Located::new(text.value.clone(), value.span.clone()),
            user: None,
            password_env: None,
            password_file: None,
        }),
        _ => value.deserialize_into(),
    }
}

/// Parses an address and adds the login. A finding without a place is about the address.
fn address(context: &EndContext<'_>, name: &str, login: &Login) -> Result<Address, Diagnostic> {
    let of = |error: crate::address::AddressError| {
        let (finding, help) = error_and_help(&error.to_string());
        wrong(format!("camera `{name}`: {finding}"), &help)
    };
    let address = Address::parse(&login.url).map_err(of)?;
    let (env, file) = (&login.password_env, &login.password_file);
    let place = [env, file].into_iter().flatten().next().map(|given| given.span.clone());
    let Some(user) = &login.user else {
        return match place {
            None => Ok(address),
            Some(place) => {
                Err(wrong(format!("camera `{name}` has a password and no user"), "write `user` too")
                    .at(place))
            }
        };
    };
    let password = match (env, file) {
        _ if !context.opens() => String::new(),
        (Some(variable), None) => std::env::var(&variable.value).map_err(|_| {
            wrong(
                format!("camera `{name}`: the variable `{variable}` of the environment is not set"),
                "set it where the source is read, or write `password_file`",
            )
            .at(variable.span.clone())
        })?,
        (None, Some(file)) => read(context, file).map_err(|error| {
            Diagnostic::error(
                "E0609",
                format!("camera `{name}`: cannot read the password in `{file}`: {error}"),
            )
            .at(file.span.clone())
            .with_help("write the path of a file with the password alone, relative to the workflow file")
        })?,
        _ => {
            let text = format!("camera `{name}` needs either `password_env` or `password_file`");
            return Err(wrong(text, "write one of them beside `user`").at(user.span.clone()));
        }
    };
    address.with_login(user, &password).map_err(of)
}

fn error_and_help(text: &str) -> (String, String) {
    let (finding, help) = text.split_once(": ").unwrap_or((text, "check it"));
    (finding.to_owned(), help.to_owned())
}

fn read(context: &EndContext<'_>, file: &str) -> std::io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(context.path(file))?.take(FILE_LIMIT).read_to_string(&mut text)?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}
