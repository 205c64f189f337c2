use super::*;
use tidemill_app::run_figures::{
    CostFigures, DeviceFigures, LinkFigures, RunState, SinkFigures, SourceFigures,
};

fn stage(name: &str, busy: f64, queue: f64) -> StageFigures {
    let times = |p50_ms: f64| Times { count: 9, p50_ms, p99_ms: p50_ms * 3.0 };
    StageFigures {
        stage: name.to_owned(),
        operator: name.to_owned(),
        variant: None,
        worker: "edge".to_owned(),
        cluster_worker: Some("a-worker-with-a-long-name".to_owned()),
        in_per_second: 39.98,
        out_per_second: 123_456.0,
        records_in: 1,
        records_out: 1,
        queue: times(queue),
        compute: times(12.34),
        transfer: times(123.4),
        on_device: None,
        busy: Some(busy),
        waiting: 1234,
        drops: [("late".to_owned(), 3)].into(),
        dead_letters: [("decode".to_owned(), 4)].into(),
        restarts: 0,
        state_bytes: 0,
    }
}

pub(in crate::cluster::top) fn figures() -> RunFigures {
    let times = Times { count: 3, p50_ms: 84.0, p99_ms: 184.0 };
    let link = |from: &str, to: &str, to_worker: &str| LinkFigures {
        from: from.to_owned(),
        to: to.to_owned(),
        input: 0,
        from_worker: "edge".to_owned(),
        to_worker: to_worker.to_owned(),
        records: 5,
        bytes: 5,
        per_second: 40.0,
        bytes_per_second: 2_500_000.0,
        transfer: times,
        waiting: 0,
        drops: Default::default(),
    };
    RunFigures {
        paths: Vec::new(),
        feeds: std::collections::BTreeMap::new(),
        losses: Vec::new(),
        run: "night-shift".to_owned(),
        workflow: "vqa".to_owned(),
        state: RunState::Running,
        taken: None,
        seconds: 125.0,
        window_seconds: 5.0,
        plan_version: 1,
        emitted: 5000,
        arrived: 4990,
        dead_letters: 4,
        restarts: 1,
        limit: Some("speech".to_owned()),
        stages: vec![
            stage("images", 0.1, 1.0),
            stage("speech", 0.97, 56.7),
            stage("answer-questions-of-visitors", 0.3, 99_999.0),
        ],
        sources: vec![SourceFigures {
            source: "images".to_owned(),
            stage: "images".to_owned(),
            state: SourceState::Behind,
            wanted_per_second: Some(40.0),
            per_second: 20.0,
            behind_seconds: 12.0,
        }],
        sinks: vec![SinkFigures {
            sink: "answers".to_owned(),
            promise: "exactly once".to_owned(),
            records: 4990,
            per_second: 39.8,
            latency: times,
            accuracy_percent: Some(93.5),
            scored: 4990,
        }],
        links: vec![link("images", "speech", "edge"), link("speech", "answer", "cloud")],
        workers: Vec::new(),
        levels: vec![LevelFigures {
            level: "latency".to_owned(),
            wanted: 100.0,
            percentile: Some(99.0),
            measured: Some(184.0),
            is_missed: Some(true),
            windows: 120,
            windows_missed: 7,
        }],
        cost: CostFigures { predicted: Some(0.006), now: Some(0.0061), compute: None, network: None },
    }
}

fn text(look: &mut Look, width: usize, height: usize) -> Vec<String> {
    let seen = Seen::Run(Box::new(figures()));
    lines(Some(&seen), look, width, height).into_iter().map(|line| line.text).collect()
}

#[test]
fn everything_fits_into_eighty_columns() {
    let all = text(&mut Look::new(SortColumn::Plan), 80, usize::MAX);
    assert!(all.iter().all(|line| line.chars().count() <= 80), "{all:#?}");
    let all = all.join("\n");
    for part in [
        "night-shift (vqa) is running, 2 min 5 s",
        "sources 5 000 (20.0 /s)  sinks 4 990 (39.8 /s)  dead letters 4  restarts 1",
        "cost 0.0061 $/h now, 0.0060 $/h predicted",
        "speech on a-worker-with-a-long-name limits: busy 97 %",
        "latency p99 MISSED: 184 ms, below 100 ms, missed in 7 of 120 windows",
        "speech -> answer",
        "2.4 MiB/s",
        "behind",
        "12.0 s",
    ] {
        assert!(all.contains(part), "{part} is not in\n{all}");
    }
    assert!(!all.contains("images -> speech"), "it stays on its worker");
}

#[test]
fn a_model_on_a_device_has_a_line_with_the_parts_of_its_time() {
    let times = |p50_ms: f64| Times { count: 9, p50_ms, p99_ms: p50_ms * 3.0 };
    let mut figures = figures();
    figures.stages[1].on_device = Some(DeviceFigures {
        device: "device:hub/gpu".to_owned(),
        client: times(0.4),
        network: times(21.3),
        queue: times(1.5),
        compute: times(12.0),
        round_trips_per_batch: Some(1.5),
        sent_bytes_per_second: 24_084_480.0,
        received_bytes_per_second: 1_047_552.0,
        sessions_lost: 2,
    });
    let seen = Seen::Run(Box::new(figures));
    let line = |look: &mut Look, width: usize| {
        let all = lines(Some(&seen), look, width, usize::MAX);
        assert!(all.iter().all(|line| line.text.chars().count() <= width), "{width}");
        let at = all.iter().position(|line| line.text.starts_with("on a device")).unwrap();
        [all[at].text.clone(), all[at + 1].text.clone()]
    };
    let mut look = Look::new(SortColumn::Plan);
    assert_eq!(
        line(&mut look, 80),
        [
            "on a device         client network   queue compute trips   sent/s   back/s lost",
            "speech device:hub…  0.40ms  21.3ms  1.50ms  12.0ms   1.5   23 MiB 1023 KiB    2",
        ]
    );
    look.press(Key::Letter('p'));
    let [_, wide] = line(&mut look, 120);
    assert!(wide.starts_with("speech device:hub/gpu ") && wide.contains("63.9ms"), "{wide}");
}

#[test]
fn stages_are_sorted_by_the_column_that_is_asked_for() {
    let first = |look: &mut Look| {
        let all = text(look, 80, usize::MAX);
        let at = all.iter().position(|line| line.starts_with("stage ")).unwrap();
        all[at + 1].split_whitespace().next().unwrap().to_owned()
    };
    let mut look = Look::new(SortColumn::Plan);
    assert_eq!(first(&mut look), "images");
    look.sort = SortColumn::Busy;
    assert_eq!(first(&mut look), "speech");
    look.sort = SortColumn::Queue;
    assert_eq!(first(&mut look), "answer-quest…");
    look.press(Key::Letter('r'));
    assert_eq!(first(&mut look), "images");
    look.press(Key::Letter('s'));
    assert_eq!(look.sort, SortColumn::Compute);
    look.press(Key::Letter('S'));
    assert_eq!(look.sort, SortColumn::Queue);
}

#[test]
fn a_screen_has_as_many_lines_as_there_are_and_stages_move() {
    for height in [12, 24, 50] {
        let all = text(&mut Look::new(SortColumn::Plan), 80, height);
        assert_eq!(all.len(), height);
        assert!(all[height - 1].contains("q ends"), "{all:?}");
    }
    let mut look = Look::new(SortColumn::Plan);
    look.press(Key::PageDown);
    text(&mut look, 80, 24);
    assert_eq!(look.at, 0, "there is room for all");
}

#[test]
fn times_are_medians_or_percentiles() {
    let mut look = Look::new(SortColumn::Plan);
    assert!(text(&mut look, 80, usize::MAX).join("\n").contains("56.7ms"));
    look.press(Key::Letter('p'));
    assert!(text(&mut look, 80, usize::MAX).join("\n").contains("170ms"));
}
