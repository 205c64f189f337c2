//! Figures that a run on this machine serves beside its metrics.
use std::sync::Arc;
use std::time::Duration;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::run_figures::RunFigures;
use tidemill_http::{Answer, Call, Caller, Place, Repeat};

/// Time limit of an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// An address of figures.
pub(super) struct Scrapes {
    place: String,
    caller: Arc<Caller>,
}

impl Scrapes {
    /// Figures at `http://HOST:PORT`, with or without `/metrics`.
    ///
    /// # Errors
    /// It is no such address.
    pub(super) fn of(address: &str) -> Result<Self, Failure> {
        let wrong = |why: &str| {
            Failure::new(Kind::Usage, format!("`{address}` {why}"))
                .with_help("write the address of `tidemill run --metrics`, such as `http://127.0.0.1:9464`")
        };
        if address.starts_with("https://") {
            return Err(wrong("is served with TLS: `tidemill top RUN` asks a controller"));
        }
        let place = address.strip_prefix("http://").unwrap_or(address);
        let place = place.trim_end_matches('/');
        let place = place.strip_suffix("/metrics").unwrap_or(place);
        match place.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                let caller = Arc::new(Caller::new(Place::Tcp(place.to_owned())));
                Ok(Self { place: place.to_owned(), caller })
            }
            _ => Err(wrong("is not an address of metrics")),
        }
    }

    /// Returns the figures of a run: the one of this name, or the only one there.
    ///
    /// # Errors
    /// There is no answer, or no such run.
    pub(super) fn look(&self, run: Option<&str>) -> Result<RunFigures, Failure> {
        let all = self.get().map_err(|error| {
            let text = format!("cannot read http://{}/figures: {error}", self.place);
            Failure::new(Kind::Unavailable, text).with_help("check whether the run is still active")
        })?;
        self.chosen(all, run)
    }

    fn chosen(&self, all: Vec<RunFigures>, run: Option<&str>) -> Result<RunFigures, Failure> {
        if run.is_none() && all.len() > 1 {
            let names: Vec<&str> = all.iter().map(|figures| figures.run.as_str()).collect();
            let text = format!("that address serves several runs: {}", names.join(", "));
            return Err(Failure::new(Kind::Usage, text)
                .with_help("name one of them: `tidemill top RUN --metrics ...`"));
        }
        let chosen = all.into_iter().find(|figures| run.is_none_or(|run| figures.run == run));
        chosen.ok_or_else(|| {
            let which = run.map_or_else(|| "any run".to_owned(), |run| format!("run `{run}`"));
            Failure::new(Kind::Unavailable, format!("{} serves no metrics of {which}", self.place))
        })
    }

    fn get(&self) -> Result<Vec<RunFigures>, String> {
        let answer = self.caller.send(&Call::get("/figures"), PATIENCE, Repeat::Allowed);
        match answer.map_err(|error| error.to_string())? {
            Answer { status: 200, body } => serde_json::from_slice(&body).map_err(|error| error.to_string()),
            Answer { status, .. } => Err(format!("it answers {status}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::top::view::tests::figures;

    #[test]
    fn addresses_are_taken_with_and_without_their_ends() {
        for text in [
            "http://127.0.0.1:9464",
            "127.0.0.1:9464",
            "http://127.0.0.1:9464/metrics",
            "http://127.0.0.1:9464/",
        ] {
            assert_eq!(Scrapes::of(text).unwrap().place, "127.0.0.1:9464", "{text}");
        }
        for text in ["https://127.0.0.1:9464", "127.0.0.1", "http://:1", "a:b"] {
            assert!(Scrapes::of(text).is_err(), "{text}");
        }
    }

    #[test]
    fn one_of_several_runs_is_named() {
        let place = Scrapes::of("127.0.0.1:1").unwrap();
        let named = |name: &str| RunFigures { run: name.to_owned(), ..figures() };
        let both = || vec![named("a"), named("b")];
        assert_eq!(place.chosen(both(), Some("b")).unwrap().run, "b");
        assert_eq!(place.chosen(vec![named("")], None).unwrap().run, "");
        let errors =
            [place.chosen(both(), None), place.chosen(both(), Some("c")), place.chosen(vec![], None)];
        let errors = errors.map(|found| found.unwrap_err().to_string());
        assert!(errors[0].contains("a, b") && errors[1].contains("`c`"), "{errors:?}");
        assert!(errors[2].contains("any run"), "{errors:?}");
    }
}
