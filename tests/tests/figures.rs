//! Figures in the documentation equal those in the files of measurements beside the pages.
use crate::repository::root;
use serde_json::Value;

/// A sentence of a page. `{NAME;FIELD;DIGITS}` stands for a figure of the measurement of that name in the file: `median`,
/// `min` or `max`, with this number of decimals. `S ` and `L ` before a name are the smallest and the largest models of the
/// loop.
struct Sentence {
    page: &'static str,
    file: &'static str,
    text: &'static str,
}

const SMALLEST: &str = "scene-features-tiny + speech-small + answerer-small on ort: ";
const LARGEST: &str = "scene-features-huge + speech-large + answerer-large on ort: ";

const SENTENCES: &[Sentence] = &[
    Sentence {
        page: "benchmarks/README.md",
        file: "vqa-loop",
        text: "| smallest (tiny, small, small) | {S loop, 1 core, rate;median;0} pairs/s | {S tidemill, 1 core, rate;median;0} | \
               **{S tidemill / loop, 1 core, rate;median;3}** ({S tidemill / loop, 1 core, rate;min;3} to {S tidemill / loop, 1 core, rate;max;3}) | \
               0.95, **missed** | {S loop, 1 core, peak memory;median;0} and {S tidemill, 1 core, peak memory;median;0} MiB |",
    },
    Sentence {
        page: "benchmarks/README.md",
        file: "vqa-loop",
        text: "| largest (huge, large, large) | {L loop, 1 core, rate;median;1} | {L tidemill, 1 core, rate;median;1} | \
               {L tidemill / loop, 1 core, rate;median;3} ({L tidemill / loop, 1 core, rate;min;3} to {L tidemill / loop, 1 core, rate;max;3}) | \
               0.95, met | {L loop, 1 core, peak memory;median;0} and {L tidemill, 1 core, peak memory;median;0} MiB |",
    },
    Sentence {
        page: "benchmarks/README.md",
        file: "vqa-loop",
        text: "it is {S tidemill / loop, 1 core, rate by processor time;median;3} and {L tidemill / loop, 1 core, rate by processor \
               time;median;3}.",
    },
    Sentence {
        page: "benchmarks/README.md",
        file: "vqa-loop",
        text: "| smallest | {S tidemill, 2 cores, rate;median;0} pairs/s | {S tidemill on 2 cores / loop on 1 core, rate;median;2} \
               ({S tidemill on 2 cores / loop on 1 core, rate;min;2} to {S tidemill on 2 cores / loop on 1 core, rate;max;2}) | 1.3, met | \
               {S loop of 2 threads, 2 cores, rate;median;0} pairs/s | **{S tidemill / loop of 2 threads, 2 cores, rate;median;3}** \
               ({S tidemill / loop of 2 threads, 2 cores, rate;min;3} to {S tidemill / loop of 2 threads, 2 cores, rate;max;3}) | \
               {S tidemill, 2 cores, peak memory;median;0} and {S loop of 2 threads, 2 cores, peak memory;median;0} MiB |",
    },
    Sentence {
        page: "benchmarks/README.md",
        file: "vqa-loop",
        text: "| largest | {L tidemill, 2 cores, rate;median;1} | {L tidemill on 2 cores / loop on 1 core, rate;median;2} \
               ({L tidemill on 2 cores / loop on 1 core, rate;min;2} to {L tidemill on 2 cores / loop on 1 core, rate;max;2}) | 1.3, met | \
               {L loop of 2 threads, 2 cores, rate;median;1} | {L tidemill / loop of 2 threads, 2 cores, rate;median;3} \
               ({L tidemill / loop of 2 threads, 2 cores, rate;min;3} to {L tidemill / loop of 2 threads, 2 cores, rate;max;3}) | \
               {L tidemill, 2 cores, peak memory;median;0} and {L loop of 2 threads, 2 cores, peak memory;median;0} MiB |",
    },
    Sentence {
        page: "benchmarks/README.md",
        file: "vqa-loop",
        text: "rate over that of a loop written by hand | {S tidemill / loop, 1 core, rate;median;2} | 0.95, **missed** |",
    },
    Sentence {
        page: "benchmarks/README.md",
        file: "start-up",
        text: "| a run of a two-line CSV, start to end (release profile, 2026-11-21) | {tidemill run of a two-line CSV, start to end;median;0} ms |",
    },
    Sentence {
        page: "benchmarks/README.md",
        file: "simulation-time",
        text: "200 workers {10000 sources, 200 workers, 60 s, constant arrivals;median;1} s with constant and {10000 sources, 200 workers, 60 s, \
               Poisson arrivals;median;1} s with Poisson arrivals",
    },
];

fn measured(file: &str) -> Value {
    let path = root().join(format!("docs/benchmarks/{file}.json"));
    serde_json::from_str(&std::fs::read_to_string(&path).expect("the file is there")).expect("it is JSON")
}

/// The sentence with the figures of the file.
fn filled(sentence: &Sentence) -> String {
    let file = measured(sentence.file);
    let mut parts = sentence.text.split('{');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (figure, rest) = part.split_once('}').expect("it ends");
        let mut of = figure.split(';');
        let (name, field, digits) = (of.next().expect("a name"), of.next().expect("a field"), of.next());
        let name = match name.split_once(' ') {
            Some(("S", name)) => format!("{SMALLEST}{name}"),
            Some(("L", name)) => format!("{LARGEST}{name}"),
            _ => name.to_owned(),
        };
        let all = file["measurements"].as_array().expect("measurements");
        let found = all.iter().find(|one| one["name"] == name.as_str());
        let value = found.unwrap_or_else(|| panic!("{} has no `{name}`", sentence.file))[field].as_f64();
        let digits = digits.and_then(|digits| digits.parse().ok()).expect("a number of digits");
        text += &format!("{:.digits$}{rest}", value.expect("a number"));
    }
    text
}

/// Replaces line breaks by single spaces.
fn flowing(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn pages_say_what_their_files_have() {
    for sentence in SENTENCES {
        let page =
            std::fs::read_to_string(root().join("docs").join(sentence.page)).expect("the page is there");
        let expected = flowing(&filled(sentence));
        assert!(
            flowing(&page).contains(&expected),
            "docs/{} has not, as {}.json says:\n{expected}",
            sentence.page,
            sentence.file
        );
    }
}

/// The rates of our models in the compared setups.
#[test]
fn the_compared_setups_have_the_rates_of_their_files() {
    let page = std::fs::read_to_string(root().join("docs/planners-compared.md")).expect("the page is there");
    let inputs = measured("setups-rates")["inputs"].to_string();
    let factor = inputs.split("; rates x ").filter_map(|part| part.split(';').next()?.parse::<u32>().ok());
    let factor = factor.max().expect("a factor");
    assert!(flowing(&page).contains(&format!("Rates are {factor} times the published ones")), "{factor}");
}
