//! Static files of the browser page. They contain nothing of the cluster: the page queries the controller with its user's access token.
use super::Shared;
use axum::Router;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use std::sync::Arc;

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

/// Path, kind, content.
const FILES: &[(&str, &str, &str)] = &[
    ("/", HTML, include_str!("../page/index.html")),
    ("/page/page.css", STYLE, include_str!("../page/page.css")),
    ("/page/icon.svg", PICTURE, include_str!("../page/icon.svg")),
    ("/page/main.js", SCRIPT, include_str!("../page/main.js")),
    ("/page/ask.js", SCRIPT, include_str!("../page/ask.js")),
    ("/page/show.js", SCRIPT, include_str!("../page/show.js")),
    ("/page/overview.js", SCRIPT, include_str!("../page/overview.js")),
    ("/page/run.js", SCRIPT, include_str!("../page/run.js")),
    ("/page/plan.js", SCRIPT, include_str!("../page/plan.js")),
    ("/page/samples.js", SCRIPT, include_str!("../page/samples.js")),
];

/// The page may load these files, query this controller, and show pictures and play sounds from it: no foreign scripts, and no embedding in
/// foreign frames.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src data:; connect-src 'self'; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

/// Routes to the files.
pub(super) fn files() -> Router<Arc<Shared>> {
    let files = FILES.iter().fold(Router::new(), |router, (path, kind, content)| {
        let headers = [
            (header::CONTENT_TYPE, *kind),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            (header::CACHE_CONTROL, "no-cache"),
        ];
        let answer = move || {
            let headers = headers.clone();
            async move { (headers, *content).into_response() }
        };
        router.route(path, get(answer))
    });
    files.route("/authority.pem", get(authority))
}

/// The certificate of the authority, for programs that read certificates: who loads it compares its fingerprint with the one in the
/// controller's address.
async fn authority(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/x-pem-file")], shared.authority.certificate_pem().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names in quotes after a word.
    fn named<'a>(content: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
        content.split(before).skip(1).filter_map(|rest| rest.split('"').next())
    }

    #[test]
    fn the_page_names_only_files_that_are_served_here() {
        let known: Vec<&str> = FILES.iter().map(|(path, ..)| *path).collect();
        let mut found = 0;
        for (path, _, content) in FILES {
            let of_html =
                named(content, "href=\"/").chain(named(content, "src=\"/")).map(|name| format!("/{name}"));
            let of_scripts = named(content, "from \"./").map(|name| format!("/page/{name}"));
            for name in of_html.chain(of_scripts) {
                assert!(known.contains(&name.as_str()), "{path} names {name}");
                found += 1;
            }
            // The name of a language is no address.
            let content = content.replace("http://www.w3.org/2000/svg", "");
            assert!(!content.contains("://"), "{path} names somebody else");
        }
        assert!(found >= FILES.len() - 1, "{found} names were found");
    }

    #[test]
    fn nothing_is_set_as_markup() {
        for (path, _, content) in FILES {
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                " style=",
                " onclick=",
            ] {
                assert!(!content.contains(word), "{path} has {word}");
            }
        }
    }
}
