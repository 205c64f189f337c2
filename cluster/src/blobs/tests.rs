use super::*;

/// The bytes of a blob from an offset on, and its size.
fn rest(blobs: &Blobs, digest: &str, offset: u64) -> (Vec<u8>, u64) {
    let (mut file, size) = blobs.open_at(digest, offset).unwrap().unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    (bytes, size)
}

#[test]
fn many_files_are_kept_at_once_or_none_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Blobs::open(folder.path()).unwrap();
    let (one, two) = (digest(b"one"), digest(b"two"));
    let wrong = [(one.clone(), &b"one"[..]), (two.clone(), &b"three"[..])];
    assert!(matches!(blobs.put_all(&wrong), Err(BlobError::Different { .. })));
    assert!(!blobs.has(&one), "nothing of a parcel that is damaged");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    let right = [(one.clone(), &b"one"[..]), (two.clone(), &b"two"[..]), (one.clone(), &b"one"[..])];
    blobs.put_all(&right).unwrap();
    assert_eq!(rest(&blobs, &two, 0), (b"two".to_vec(), 3));
    assert_eq!((blobs.has(&one), blobs.bytes()), (true, 6));
    let outside = [("../one".to_owned(), &b"one"[..])];
    assert!(matches!(blobs.put_all(&outside), Err(BlobError::Name(_))));
}

#[test]
fn only_what_a_digest_names_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Blobs::open(folder.path()).unwrap();
    let name = digest(b"a wave");
    assert!(matches!(blobs.put(&name, &b"a storm"[..]), Err(BlobError::Different { .. })));
    assert!(!blobs.has(&name) && fs::read_dir(folder.path()).unwrap().next().is_none());
    blobs.put(&name, &b"a wave"[..]).unwrap();
    assert_eq!(rest(&blobs, &name, 2), (b"wave".to_vec(), 6));
    assert!(matches!(blobs.put("../x", &b""[..]), Err(BlobError::Name(_))));
}

#[test]
fn a_bundle_stays_in_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Blobs::open(&folder.path().join("blobs")).unwrap();
    let name = digest(b"x");
    blobs.put(&name, &b"x"[..]).unwrap();
    let bundle = |path: &str| Bundle {
        workflow: path.to_owned(),
        files: vec![BundleFile { path: path.to_owned(), digest: name.clone(), bytes: 1 }],
        ..Bundle::default()
    };
    let out = folder.path().join("out");
    for path in ["../x", "/etc/x", "", "a/../../x"] {
        assert!(matches!(blobs.lay_out(&bundle(path), &out), Err(BlobError::Path(_))), "{path}");
    }
    blobs.lay_out(&bundle("a/b.yaml"), &out).unwrap();
    assert_eq!(fs::read(out.join("a/b.yaml")).unwrap(), b"x");
    assert_eq!(workflow_in(&out, &bundle("a/b.yaml")).unwrap(), out.join("a/b.yaml"));
    assert!(matches!(workflow_in(&out, &bundle("../x")), Err(BlobError::Path(_))));
    for workflow in ["../../admin.token", "/etc/x", "", "a", "a/./b.yaml"] {
        let other = Bundle { workflow: workflow.to_owned(), ..bundle("a/b.yaml") };
        assert!(matches!(workflow_in(&out, &other), Err(BlobError::Workflow(_))), "{workflow}");
    }
}

/// Equal lengths, other bytes: by another bundle, and by a change of the file, before and after a restart.
#[test]
fn a_file_of_the_same_length_is_not_the_same_file() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Blobs::open(&folder.path().join("blobs")).unwrap();
    let out = folder.path().join("out");
    let bundle = |content: &[u8]| {
        let name = digest(content);
        blobs.put(&name, content).unwrap();
        let file = BundleFile { path: "x".into(), digest: name, bytes: content.len() as u64 };
        Bundle { workflow: "x".into(), files: vec![file], ..Bundle::default() }
    };
    let (first, second) = (bundle(b"1111"), bundle(b"2222"));
    let found = || fs::read(out.join("x")).unwrap();
    blobs.lay_out(&first, &out).unwrap();
    blobs.lay_out(&second, &out).unwrap();
    assert_eq!(found(), b"2222");
    let changed = |content: &[u8]| {
        // In place, and as editors do it.
        fs::write(out.join("x"), content).unwrap();
        blobs.lay_out(&second, &out).unwrap();
        assert_eq!(found(), b"2222");
        fs::write(out.join("y"), content).unwrap();
        fs::rename(out.join("y"), out.join("x")).unwrap();
        blobs.lay_out(&second, &out).unwrap();
        assert_eq!(found(), b"2222");
    };
    changed(b"3333");
    fs::remove_file(out.join(RECORD)).unwrap();
    changed(b"4444");
    fs::write(out.join(RECORD), "{").unwrap();
    changed(b"5555");
    let times = fs::metadata(out.join("x")).unwrap().modified().unwrap();
    fs::write(out.join("x"), b"6666").unwrap();
    File::options().write(true).open(out.join("x")).unwrap().set_modified(times).unwrap();
    blobs.lay_out(&second, &out).unwrap();
    assert_eq!(found(), b"2222", "with the time of the file that it replaces");
}

#[test]
fn what_nobody_touched_is_not_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Blobs::open(&folder.path().join("blobs")).unwrap();
    let (name, out) = (digest(b"x"), folder.path().join("out"));
    blobs.put(&name, &b"x"[..]).unwrap();
    let bundle = Bundle {
        workflow: "x".into(),
        files: vec![BundleFile { path: "x".into(), digest: name.clone(), bytes: 1 }],
        ..Bundle::default()
    };
    blobs.lay_out(&bundle, &out).unwrap();
    assert!(Record::read(&out).knows("x", &name, &out.join("x")));
    // The record is trusted while the file is unchanged: here it holds a wrong digest.
    let mut record = Record::read(&out);
    let lie = digest(b"a lie");
    record.keep("x", &lie, Stamp::of(&out.join("x")));
    record.write(&out).unwrap();
    let file = BundleFile { path: "x".into(), digest: lie, bytes: 1 };
    let told = Bundle { workflow: "x".into(), files: vec![file], ..Bundle::default() };
    blobs.lay_out(&told, &out).unwrap();
}

#[test]
fn a_damaged_blob_is_not_laid_out() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Blobs::open(&folder.path().join("blobs")).unwrap();
    let (name, out) = (digest(b"good"), folder.path().join("out"));
    blobs.put(&name, &b"good"[..]).unwrap();
    fs::write(folder.path().join("blobs").join(&name), b"evil").unwrap();
    let file = BundleFile { path: "x".into(), digest: name.clone(), bytes: 4 };
    let bundle = Bundle { workflow: "x".into(), files: vec![file], ..Bundle::default() };
    assert!(matches!(blobs.lay_out(&bundle, &out), Err(BlobError::Different { .. })));
    assert!(!out.join("x").exists() && !blobs.has(&name) && blobs.bytes() == 0);
    let left: Vec<_> = fs::read_dir(&out).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_bound_holds_after_every_file_and_what_is_needed_stays() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Blobs::with_limit(folder.path(), 4).unwrap();
    let put = |bytes: &[u8]| {
        let name = digest(bytes);
        blobs.put(&name, bytes).unwrap();
        name
    };
    let on_disk = || fs::read_dir(folder.path()).unwrap().flatten().count();
    let first = put(b"aa");
    blobs.need(BTreeSet::from([first.clone()]));
    let (second, third) = (put(b"bb"), put(b"cc"));
    assert!(blobs.has(&first) && !blobs.has(&second) && blobs.has(&third));
    assert_eq!((blobs.bytes(), on_disk()), (4, 2));
    assert_eq!(blobs.held(1), std::slice::from_ref(&third));
    // A blob in use stays above the limit, and goes once it is unused.
    blobs.need(BTreeSet::from([first.clone(), third.clone()]));
    let fourth = put(b"dd");
    assert_eq!(blobs.bytes(), 6);
    blobs.need(BTreeSet::from([fourth.clone()]));
    assert!(blobs.bytes() == 4 && blobs.has(&fourth) && on_disk() == 2);
    // Another process finds what is there.
    let again = Blobs::with_limit(folder.path(), 4).unwrap();
    assert_eq!(again.bytes(), 4);
    assert_eq!(again.sweep(&BTreeSet::from([fourth.clone()]), Duration::ZERO), 1);
    assert!(again.has(&fourth) && again.bytes() == 2);
}

/// A client that learns that a file is there does not send it, and submits a moment later.
#[test]
fn what_somebody_was_told_of_is_not_swept_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Blobs::open(folder.path()).unwrap();
    let names = [b"one", b"two"].map(|bytes| {
        let name = digest(bytes);
        blobs.put(&name, &bytes[..]).unwrap();
        let file = File::open(folder.path().join(&name)).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        name
    });
    assert!(blobs.has(&names[0]));
    assert_eq!(blobs.sweep(&BTreeSet::new(), Duration::from_secs(3600)), 1);
    assert!(blobs.has(&names[0]) && !blobs.has(&names[1]));
}
