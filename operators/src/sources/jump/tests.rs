use crate::api::{Reason, SourceRead};
use crate::sources::csv::Csv;
use crate::sources::test::{bind, check_seeks};
use crate::testing::only;
use proptest::prelude::*;

const DAY: i64 = 86_400;

/// The accepted times, and line, reason and detail of each dead letter, of a CSV file with these times.
fn read(rows: &[String], options: &str) -> (Vec<i64>, Vec<(Reason, String)>) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("t.csv"), format!("at\n{}\n", rows.join("\n"))).unwrap();
    let yaml = format!("path: t.csv\ncolumns: {{at: int64}}\nevent_time: at\ntime_unit: s\n{options}");
    let source = bind(&Csv, folder.path(), &yaml).unwrap();
    check_seeks(&source);
    let mut reader = (source.make)().unwrap();
    let (mut seconds, mut letters) = (Vec::new(), Vec::new());
    while let SourceRead::Rows { times, dead_letters, .. } = reader.read(7, usize::MAX).unwrap() {
        seconds.extend(times.unwrap().into_iter().map(|time| time / 1_000_000));
        letters.extend(dead_letters.into_iter().map(|letter| (letter.reason, letter.detail)));
    }
    (seconds, letters)
}

fn texts(times: &[i64]) -> Vec<String> {
    times.iter().map(i64::to_string).collect()
}

#[test]
fn one_time_far_ahead_is_a_dead_letter() {
    let times = [10, 20, 4_102_444_800, 30, 40];
    let (seconds, letters) = read(&texts(&times), "");
    assert_eq!(seconds, [10, 20, 30, 40]);
    assert_eq!(
        letters,
        [(
            "time_jump".into(),
            "t.csv, line 4: event time `at` is 47481 d ahead of the newest before it, more than `max_jump` (365 d), \
             and the next record is not"
                .to_owned()
        )]
    );
    assert_eq!(read(&texts(&times), "max_jump: none").0, times);
    // Times within the out-of-order bound are no jump.
    assert_eq!(read(&texts(&[10, 110, 20]), "max_jump: 1min\nout_of_order: 2min").0, [10, 110, 20]);
    assert_eq!(read(&texts(&[10, 110, 20]), "max_jump: 1min").0, [10, 20]);
}

#[test]
fn a_gap_that_the_next_good_record_confirms_loses_nothing() {
    let gap = 400 * DAY;
    for times in [vec![0, gap, gap + 1], vec![0, gap], vec![0, gap, 3 * gap, 3 * gap]] {
        assert_eq!(read(&texts(&times), ""), (times, vec![]));
    }
    // The first record is compared with the next one.
    let (seconds, letters) = read(&texts(&[gap, 0, 1]), "");
    assert_eq!((seconds, &*letters[0].0), (vec![0, 1], "time_jump"));
    // Bad records in between are ignored.
    let rows = ["0", "99999999999", "x", "1"].map(str::to_owned);
    let (seconds, letters) = read(&rows, "");
    assert_eq!((seconds, &*letters[0].0, &*letters[1].0), (vec![0, 1], "time_jump", "bad_value"));
    // Another jump, far before the first one, does not confirm it.
    let (seconds, letters) = read(&texts(&[0, 100 * gap, gap, gap + 1]), "");
    assert_eq!((seconds, letters.len()), (vec![0, gap, gap + 1], 1));
}

#[test]
fn wrong_options() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("t.csv"), "at\n").unwrap();
    for (value, message) in [("1", "found a whole number"), ("1 fortnight", "unknown unit")] {
        let yaml = format!("path: t.csv\ncolumns: {{at: int64}}\nevent_time: at\nmax_jump: {value}");
        let error = only(bind(&Csv, folder.path(), &yaml).err().unwrap());
        assert!(error.message.contains(message) && error.line() == Some(4), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn lonely_jumps_go_and_nothing_else(
        steps in prop::collection::vec((0i64..=DAY, prop::sample::select(vec![' ', ' ', 'g', 's', 'b'])), 1..40),
    ) {
        // Days between the normal steps; after a gap the times continue from there, after a spike from before.
        let (mut now, mut rows, mut expected, mut spikes) = (1_000, vec!["1000".to_owned()], vec![1_000], 0);
        for (at, (step, kind)) in steps.iter().enumerate() {
            match kind {
                's' => {
                    rows.push((now + 1_000 * DAY + step).to_string());
                    spikes += 1;
                    // Bad records after it change nothing.
                    rows.extend((0..at % 3).map(|_| "x".to_owned()));
                }
                'g' => {
                    now += 30 * DAY + step;
                    rows.push(now.to_string());
                    expected.push(now);
                }
                'b' => rows.push("x".to_owned()),
                _ => {}
            }
            now += step;
            rows.push(now.to_string());
            expected.push(now);
        }
        let (seconds, letters) = read(&rows, "max_jump: 2d");
        prop_assert_eq!(seconds, expected);
        prop_assert_eq!(letters.iter().filter(|(reason, _)| *reason == "time_jump").count(), spikes);
    }
}
