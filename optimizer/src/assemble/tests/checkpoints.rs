//! Latency that a plan leaves for the checkpoint after which readers see rows.
use super::*;

/// Sinks of these `kinds` after the answers, with a bound on latency and `every` ticks of 50 ms between checkpoints.
fn published(kinds: &[&str], latency: &str, every: u64) -> Assembly {
    let sink = |kind: &&str| {
        format!("  - {{id: {kind}, kind: {kind}, input: answer, options: {{path: out.{kind}}}}}\n")
    };
    let sinks: String = kinds.iter().map(sink).collect();
    let (before, after) = WORKFLOW.split_once("sinks:").expect("it has sinks");
    let after = after.split_once("slo:").expect("it has levels").1;
    let after = after.replace("below: 800ms", &format!("below: {latency}"));
    let text = format!("{before}sinks:\n{sinks}slo:{after}\nrun: {{checkpoint_every: {every}}}\n");
    Case::new(&text, INFRASTRUCTURE, PROFILE).assembled()
}

/// The join before the sink waits within the ticks of the checkpoint, and every path counts it: 50 ms less.
#[test]
fn paths_leave_time_for_the_checkpoint() {
    let seconds = |assembly: &Assembly| assembly.problem.limits.publication_seconds;
    let is = |assembly: &Assembly, every: u64, wait: f64| {
        assert_eq!(assembly.checkpoint_every, every, "{:?}", assembly.notes);
        assert!((seconds(assembly) - wait).abs() < 1e-9, "{}", seconds(assembly));
    };
    for kinds in [&["jsonl"] as &[_], &["csv"], &["stdout", "jsonl"]] {
        is(&published(kinds, "800ms", 20), 20, 0.0);
        is(&published(kinds, "60ms", 20), 20, 0.0);
    }
    is(&published(&["by_checkpoint"], "800ms", 4), 4, 0.15);
    is(&published(&["stdout", "by_checkpoint"], "800ms", 4), 4, 0.15);
    // Half of the level is left for paths.
    let fewer = published(&["by_checkpoint"], "800ms", 20);
    is(&fewer, 8, 0.35);
    assert!(
        fewer.notes.iter().any(|note| note.contains("every 8 ticks of 50ms instead of 20")),
        "{:?}",
        fewer.notes
    );
    is(&published(&["by_checkpoint"], "60ms", 20), 1, 0.0);
    let end = published(&["parquet"], "800ms", 20);
    is(&end, 20, 0.0);
    assert!(end.notes.iter().any(|note| note.contains("visible when the run ends")), "{:?}", end.notes);
}

#[test]
fn a_plan_has_the_checkpoints_that_it_was_bounded_with() {
    let case = vqa();
    let assembly = case.assembled();
    let (limit, publication) =
        (&assembly.problem.limits.latency[0], assembly.problem.limits.publication_seconds);
    assert_eq!(publication, 0.0, "the join's tick is that of the sink");
    let outcome =
        crate::planners::exact::Exact.plan(&assembly.problem, &SearchLimits::default()).expect("plans");
    let solution = outcome.solution.expect("there is one");
    let plan =
        crate::physical::physical(&case.inputs(), &assembly, &solution, Vec::new()).expect("is a plan");
    assert_eq!(plan.checkpoint_every, assembly.checkpoint_every);
    let paths = crate::summary::paths(&assembly.problem, &solution);
    assert!(
        paths.iter().all(|path| path.publication == publication && path.total() <= limit.seconds + 1e-6),
        "{paths:?}"
    );
    // With this path and the workflow's own checkpoints the level would be violated, and the check reports it.
    let mut slower = assembly.problem.clone();
    slower.limits.publication_seconds = 1.0;
    let found = crate::check::check(&slower, &solution);
    assert!(found.iter().any(|one| matches!(one, crate::check::Violation::Latency { .. })), "{found:?}");
}
