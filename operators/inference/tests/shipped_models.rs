//! The shipped models answer the sample questions, which shows that the steps here match those of their training.
use std::path::{Path, PathBuf};
use tidemill_inference::backend;
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::model::Model;
use tidemill_inference::steps::{Cell, OutputColumn};
use tidemill_inference::tensor::TensorData;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn model(name: &str) -> Model {
    let manifest = repository().join("models/vqa").join(format!("{name}.yaml"));
    let blueprint = Blueprint::read(&manifest).unwrap_or_else(|errors| panic!("{name}: {}", errors[0]));
    Model::load(blueprint, backend::backend("rten", &repository()).unwrap().as_ref()).unwrap()
}

fn run(model: &mut Model, cells: &[Cell<'_>]) -> OutputColumn {
    let row = model.prepare(cells).unwrap();
    let raw = model.run(&[row]).unwrap();
    model.finish(raw).remove(0)
}

fn text(column: OutputColumn) -> String {
    let OutputColumn::Text(mut texts) = column else { panic!("a text was expected") };
    texts.remove(0)
}

/// `key,recognised,answer` of `models/testdata/vqa_expected.csv`: results of the Python evaluation of the sample with the
/// three largest models.
fn expected() -> Vec<[String; 3]> {
    let text = std::fs::read_to_string(repository().join("models/testdata/vqa_expected.csv")).unwrap();
    let rows = text.lines().skip(1).map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
    rows.map(|row| row.try_into().unwrap()).collect()
}

/// Every `step`th question of the sample: the largest models take a fifth of a second each.
fn are_answered_as_by_the_evaluation(step: usize) {
    let data = repository().join("examples/vqa/data");
    let truth = std::fs::read_to_string(data.join("truth.csv")).unwrap();
    let (mut features, mut speech, mut answerer) =
        (model("scene-features-huge"), model("speech-large"), model("answerer-large"));
    let (mut heard, mut answered, mut right, mut right_there) = (0, 0, 0, 0);
    let expected = expected();
    assert_eq!((expected.len(), truth.lines().count()), (200, 201));
    let mut asked = 0;
    for (line, [key, recognised, answer]) in truth.lines().skip(1).zip(&expected).step_by(step) {
        asked += 1;
        let image = std::fs::read(data.join(format!("images/{key}.jpg"))).unwrap();
        let sound = std::fs::read(data.join(format!("questions/{key}.wav"))).unwrap();
        let OutputColumn::Tensor(TensorData::Float32(vector)) = run(&mut features, &[Cell::Bytes(&image)])
        else {
            panic!("features are float32")
        };
        let words = text(run(&mut speech, &[Cell::Bytes(&sound)]));
        let given = text(run(&mut answerer, &[Cell::Float32(&vector), Cell::Text(&words)]));
        heard += usize::from(words == *recognised);
        answered += usize::from(given == *answer);
        let said = line.rsplit(',').next().unwrap();
        assert!(line.starts_with(key.as_str()), "{line} and {key}");
        right += usize::from(given == said);
        right_there += usize::from(answer == said);
    }
    println!(
        "as expected: {heard} texts and {answered} answers of {asked}; right: {right}, there {right_there}"
    );
    // Another decoder rounds pixels differently, which may change a close decision.
    assert!(
        heard + 1 >= asked && answered + 2 >= asked,
        "{heard} texts and {answered} answers of {asked} as expected"
    );
    assert!(right.abs_diff(right_there) <= 2, "{right} right answers, {right_there} in the evaluation");
}

#[test]
fn some_questions_are_heard_and_answered_as_by_the_evaluation() {
    are_answered_as_by_the_evaluation(20);
}

#[test]
#[ignore = "long: make test-long"]
fn sample_questions_are_heard_and_answered_as_by_the_evaluation() {
    are_answered_as_by_the_evaluation(2);
}
