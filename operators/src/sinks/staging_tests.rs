use super::*;
use crate::sinks::csv::Csv;
use crate::sinks::test::bind;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn exactly_what_was_committed(steps in prop::collection::vec((0u8..6, 0usize..20), 1..20)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/out.txt");
        let mut staging = Staging::create(&path, true).unwrap();
        let (mut committed, mut staged) = (Vec::new(), Vec::new());
        for (step, n) in steps {
            match step {
                0 => {
                    staging.commit().unwrap();
                    committed.append(&mut staged);
                }
                1 => {
                    staging.rollback().unwrap();
                    staged.clear();
                }
                2 => {
                    // Exceeds the memory limit.
                    let large = vec![b'x'; MEMORY_LIMIT + n];
                    staging.buffer().extend_from_slice(&large);
                    staging.spill().unwrap();
                    staged.extend(large);
                }
                _ => {
                    staging.buffer().extend_from_slice(&vec![b'a' + n as u8; n]);
                    staging.spill().unwrap();
                    staged.extend(vec![b'a' + n as u8; n]);
                }
            }
            prop_assert!(std::fs::read(&path).unwrap() == committed);
            let found = File::open(&path).and_then(|file| Ending::of(&file, committed.len() as u64)).unwrap();
            prop_assert!(staging.ending == found);
        }
        staging.close().unwrap();
        prop_assert!(std::fs::read(&path).unwrap() == committed);
        prop_assert_eq!(std::fs::read_dir(folder.path().join("new")).unwrap().count(), 1, "no temporaries");
    }
}

#[test]
fn errors_name_the_file_and_the_fix() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.txt");
    std::fs::write(&path, "old").unwrap();
    let error = Staging::create(&path, false).err().unwrap();
    assert!(error.message.contains("out.txt") && error.message.contains("overwrite: true"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    let error = Staging::create(folder.path(), true).err().unwrap();
    assert!(error.message.contains("folder"), "{error}");
    let error = Staging::create(&path.join("below"), true).err().unwrap();
    assert!(error.message.contains("choose another path"), "{error}");
}

/// A run killed before its first checkpoint has written its header at most, and the same command starts it again.
#[test]
fn a_file_in_which_nothing_is_does_not_have_to_be_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.csv");
    for content in ["", "key,", "key,n\n"] {
        std::fs::write(&path, content).unwrap();
        let mut staging = Staging::begin(&path, false, b"key,n\n").unwrap();
        staging.buffer().extend_from_slice(b"key,n\n");
        staging.commit().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"key,n\n");
    }
    for content in ["key,n\na,1\n", "n,key\n", "k\n"] {
        std::fs::write(&path, content).unwrap();
        let error = Staging::begin(&path, false, b"key,n\n").err().unwrap();
        assert!(error.message.contains("overwrite: true"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), content.as_bytes());
    }
    assert!(Staging::create(Path::new("/dev/null"), false).is_err());
    let bound = bind(&Csv, folder.path(), "path: new.csv\noverwrite: false").unwrap();
    drop((bound.make)().unwrap());
    drop((bound.make)().unwrap());
}

#[test]
fn a_second_run_leaves_the_file_of_the_first_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.txt");
    let mut first = Staging::create(&path, true).unwrap();
    first.buffer().extend_from_slice(b"row");
    first.commit().unwrap();
    let error = Staging::create(&path, true).err().unwrap();
    assert!(error.message.contains("is being written by"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"row");
    first.close().unwrap();
    drop(Staging::create(&path, true).unwrap());
    assert_eq!(std::fs::read(&path).unwrap(), b"");
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_told_and_the_next_commit_does_not_repeat_anything() {
    let mut staging = Staging::create(Path::new("/dev/full"), true).unwrap();
    staging.buffer().extend_from_slice(b"row");
    let error = staging.commit().unwrap_err();
    assert!(error.message.contains("/dev/full") && error.message.contains("free some space"), "{error}");
    staging.rollback().unwrap();
    staging.commit().unwrap();
}

/// The system may have dropped the data and forgotten the failure.
#[test]
#[cfg(target_os = "linux")]
fn after_a_sync_that_failed_none_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.txt");
    let target = File::create(&path).unwrap();
    let device = OpenOptions::new().write(true).open("/dev/null").unwrap();
    let mut disk = Disk::default();
    let error = disk.sync(&path, &device, 1).unwrap_err();
    assert!(error.message.contains("out.txt"), "{error}");
    assert_eq!(disk.sync(&path, &target, 1).unwrap_err().message, error.message);
    let mut disk = Disk::default();
    disk.sync(&path, &target, 1).unwrap();
    disk.sync(&path, &device, 1).expect("that is synced already");
    disk.sync(&path, &device, 2).unwrap_err();
}

#[test]
fn rows_are_committed_while_others_are_flushed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.txt");
    let mut staging = Staging::create(&path, true).unwrap();
    staging.buffer().extend_from_slice(b"one");
    staging.commit().unwrap();
    let (token, flush) = (staging.token().unwrap().unwrap(), staging.flush().unwrap());
    let disk = Arc::clone(&staging.disk);
    let flushing = disk.lock().unwrap();
    let flushed = std::thread::spawn(flush);
    staging.buffer().extend_from_slice(b"two");
    staging.commit().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"onetwo");
    drop(flushing);
    flushed.join().unwrap().unwrap();
    assert_eq!(disk.lock().unwrap().synced, Some(3));
    drop(staging);
    Staging::resume(&path, &token).unwrap().close().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"one");
}

/// Another run has written the file meanwhile, to at least its length.
#[test]
fn a_file_with_other_rows_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.txt");
    for rows in [3_usize, 3000] {
        let mut staging = Staging::create(&path, true).unwrap();
        staging.buffer().extend_from_slice(&b"row\n".repeat(rows));
        staging.commit().unwrap();
        let token = staging.token().unwrap().unwrap();
        staging.close().unwrap();
        drop(staging);
        Staging::check(&path, &token).unwrap();
        Staging::resume(&path, &token).unwrap().close().unwrap();

        let others = b"ROW\n".repeat(rows + 1);
        std::fs::write(&path, &others).unwrap();
        let message = Staging::check(&path, &token).unwrap_err().message;
        assert!(message.contains("another program has changed") && message.ends_with(LOST_HELP), "{message}");
        assert_eq!(Staging::resume(&path, &token).err().unwrap().message, message);
        assert!(std::fs::read(&path).unwrap() == others, "it is left alone");

        let of_before = serde_json::to_vec(&serde_json::json!({"length": rows * 4})).unwrap();
        Staging::check(&path, &of_before).unwrap();
    }
}

#[test]
fn a_killed_run_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut staging = Staging::create(&folder.path().join("out.txt"), true).unwrap();
    staging.buffer().extend_from_slice(&vec![b'x'; MEMORY_LIMIT]);
    staging.spill().unwrap();
    assert!(staging.buffer().is_empty(), "it is on the disk");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    staging.commit().unwrap();
    assert_eq!(std::fs::metadata(folder.path().join("out.txt")).unwrap().len(), MEMORY_LIMIT as u64);
}
