use super::*;

const FIRST: &str = "
tidemill_operator_records_total{workflow=\"w\",operator=\"s\",stage=\"s\",worker=\"local\",direction=\"in\"} 0
tidemill_operator_records_total{workflow=\"w\",operator=\"s\",stage=\"s\",worker=\"local\",direction=\"out\"} 100
tidemill_operator_records_total{workflow=\"w\",operator=\"m\",stage=\"m\",worker=\"local\",variant=\"big\",direction=\"in\"} 100
tidemill_operator_records_total{workflow=\"w\",operator=\"m\",stage=\"m\",worker=\"local\",variant=\"big\",direction=\"out\"} 90
tidemill_operator_batches_total{workflow=\"w\",operator=\"m\",stage=\"m\",worker=\"local\",variant=\"big\"} 90
tidemill_operator_compute_seconds_count{workflow=\"w\",stage=\"m\"} 90
tidemill_operator_compute_seconds_sum{workflow=\"w\",stage=\"m\"} 0.9
tidemill_operator_computing_seconds_total{workflow=\"w\",stage=\"m\"} 0.5
tidemill_operator_compute_seconds_bucket{workflow=\"w\",stage=\"m\",le=\"0.01\"} 90
tidemill_operator_compute_seconds_bucket{workflow=\"w\",stage=\"m\",le=\"0.1\"} 90
tidemill_operator_compute_seconds_bucket{workflow=\"w\",stage=\"m\",le=\"+Inf\"} 90
tidemill_source_ended{workflow=\"w\",stage=\"s\"} 0
tidemill_source_wanted_records_per_second{workflow=\"w\",stage=\"s\"} 50
tidemill_source_behind_seconds{workflow=\"w\",stage=\"s\"} 0
tidemill_slo_wanted{workflow=\"w\",slo=\"latency\",percentile=\"p99\"} 0.2
tidemill_slo_windows_total{workflow=\"w\",slo=\"latency\"} 4
tidemill_slo_violations_total{workflow=\"w\",slo=\"latency\"} 1
tidemill_run_seconds{workflow=\"w\"} 4
";

fn figures(second: &str) -> RunFigures {
    let (earlier, now) = (Table(parse(FIRST)), Table(parse(second)));
    Of::new(("w", ""), &now, Some(&earlier), 2.0).figures()
}

#[test]
fn rates_and_times_are_of_what_came_between_two_looks() {
    let second = FIRST
        .replace("direction=\"out\"} 100", "direction=\"out\"} 180")
        .replace("direction=\"out\"} 90", "direction=\"out\"} 130")
        .replace("variant=\"big\"} 90", "variant=\"big\"} 130")
        .replace("_count{workflow=\"w\",stage=\"m\"} 90", "_count{workflow=\"w\",stage=\"m\"} 130")
        .replace("stage=\"m\"} 0.9", "stage=\"m\"} 2.9")
        .replace("stage=\"m\"} 0.5", "stage=\"m\"} 2.1")
        .replace("le=\"0.1\"} 90", "le=\"0.1\"} 130")
        .replace("le=\"+Inf\"} 90", "le=\"+Inf\"} 130")
        .replace("slo=\"latency\"} 4", "slo=\"latency\"} 6");
    let figures = figures(&second);
    assert_eq!((figures.emitted, figures.stages.len()), (180, 2));
    assert_eq!(figures.sources[0].per_second, 40.0);
    assert_eq!(figures.sources[0].state, SourceState::Running);
    let model = &figures.stages[1];
    assert_eq!((model.out_per_second, model.compute.count), (20.0, 40));
    // A batch counts once, however many records had to wait for it.
    assert!((model.busy.unwrap() - 0.8).abs() < 1e-9, "{model:?}");
    assert!(model.compute.p50_ms > 10.0 && model.compute.p50_ms < 100.0, "{model:?}");
    assert_eq!(figures.limit.as_deref(), Some("m"));
    assert_eq!((figures.levels[0].wanted, figures.levels[0].is_missed), (200.0, Some(false)));
    assert_eq!((figures.levels[0].windows, figures.levels[0].windows_missed), (6, 1));
}

/// In 2 s on the clock, half a second of the run.
#[test]
fn rates_of_a_stretched_run_are_of_its_own_time() {
    let slot = |seconds: f64| {
        format!(
            "tidemill_slot_processor_seconds_total{{workflow=\"w\",slot=\"local\",stages=\"s\"}} {seconds}\n"
        )
    };
    let earlier = format!("{FIRST}{}", slot(1.0));
    let now = earlier
        .replace("direction=\"out\"} 100", "direction=\"out\"} 120")
        .replace("tidemill_run_seconds{workflow=\"w\"} 4", "tidemill_run_seconds{workflow=\"w\"} 4.5")
        .replace(&slot(1.0), &slot(2.0));
    let (earlier, now) = (Table(parse(&earlier)), Table(parse(&now)));
    let figures = Of::new(("w", ""), &now, Some(&earlier), 2.0).figures();
    assert_eq!((figures.seconds, figures.window_seconds), (4.5, 0.5));
    assert_eq!(figures.sources[0].per_second, 40.0);
    // Processor time is none of the run's.
    assert_eq!(figures.stages[0].busy, Some(0.5));
}

#[test]
fn a_source_that_gives_nothing_is_silent() {
    assert_eq!(figures(FIRST).sources[0].state, SourceState::Silent);
    let ended = FIRST.replace(
        "tidemill_source_ended{workflow=\"w\",stage=\"s\"} 0",
        "tidemill_source_ended{workflow=\"w\",stage=\"s\"} 1",
    );
    assert_eq!(figures(&ended).sources[0].state, SourceState::Ended);
}

#[test]
fn quantiles_lie_in_their_bucket() {
    let buckets = [(0.1, 10.0), (0.2, 30.0), (f64::INFINITY, 40.0)];
    assert_eq!(quantile(&buckets, 0.25), Some(0.1));
    assert!((quantile(&buckets, 0.5).unwrap() - 0.15).abs() < 1e-12);
    assert_eq!(quantile(&buckets, 0.99), Some(0.2));
    assert_eq!((quantile(&[], 0.5), quantile(&[(0.1, 0.0), (f64::INFINITY, 0.0)], 0.5)), (None, None));
}

#[test]
fn addresses_are_taken_with_and_without_their_ends() {
    for text in
        ["http://127.0.0.1:9464", "127.0.0.1:9464", "http://127.0.0.1:9464/metrics", "http://127.0.0.1:9464/"]
    {
        assert_eq!(Scrapes::of(text).unwrap().place, "127.0.0.1:9464", "{text}");
    }
    for text in ["https://127.0.0.1:9464", "127.0.0.1", "http://:1", "a:b"] {
        assert!(Scrapes::of(text).is_err(), "{text}");
    }
}
