//! Completions and manual pages match the command line.
use crate::command::tidemill;

#[test]
fn completions_for_every_shell_know_the_verbs() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = tidemill(&["completions", shell]).expect(0).stdout;
        for word in ["validate", "doctor", "require-slo"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    tidemill(&["completions", "csh"]).expect(2);
}

#[test]
fn the_bash_script_completes_verbs() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("tidemill.bash");
    std::fs::write(&script, tidemill(&["completions", "bash"]).expect(0).stdout).unwrap();
    let asked = "source \"$0\"; COMP_WORDS=(tidemill val); COMP_CWORD=1; _tidemill tidemill val tidemill; \
                 echo \"${COMPREPLY[@]}\"";
    let output = std::process::Command::new("bash").args(["-c", asked]).arg(&script).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "validate", "{output:?}");
}

#[test]
fn there_is_a_manual_page_for_each_verb() {
    let page = tidemill(&["man"]).expect(0).stdout;
    assert!(page.contains(".TH tidemill 1") && page.contains("SYNOPSIS"), "{page}");
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    tidemill(&["man", "--out", pages.to_str().unwrap()]).expect(0);
    for name in ["tidemill", "tidemill-run", "tidemill-models-verify", "tidemill-doctor"] {
        let text = std::fs::read_to_string(pages.join(format!("{name}.1"))).unwrap();
        assert!(text.contains("SYNOPSIS"), "{name}: {text}");
        let synopsis = text.split(".SH ").find(|part| part.starts_with("SYNOPSIS")).unwrap();
        assert!(!synopsis.contains("  ") && !synopsis.contains("[\\fB"), "{name}: {synopsis}");
    }
    let run = std::fs::read_to_string(pages.join("tidemill-run.1")).unwrap();
    assert!(run.contains("\\fBtidemill run\\fR [OPTIONS] <"), "{run}");
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let printed = tidemill(&["man", "--out", file.to_str().unwrap()]).expect(69).stderr;
    assert!(printed.contains("file is not a folder") && printed.contains("name another folder"), "{printed}");
}
