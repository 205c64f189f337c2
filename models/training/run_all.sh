#!/bin/sh
# Regenerates the data, the models, the sample data and RESULTS.md.
#
#   python3 -m venv ENV && ENV/bin/pip install -r requirements.txt   (and espeak-ng, 1.51)
#   PYTHON=ENV/bin/python WORK=/some/empty/folder ./run_all.sh
#
# Can be stopped and started again; STEPS chooses some of: data train sample fetched results. `fetched` runs the models
# that `tidemill models fetch` has brought, if any; `results` then tells of them too.
set -eu
cd "$(dirname "$0")"
PYTHON=${PYTHON:-python3}
WORK=${WORK:?a folder for generated data and checkpoints, 8 GB}
STEPS=${STEPS:-data train sample fetched results}
JOBS=${JOBS:-2}
SAMPLE=../../examples/vqa/data
export OMP_NUM_THREADS=1

generate() { # folder count seed voices [option]
    [ -f "$1/truth.csv" ] || "$PYTHON" generate.py --jobs "$JOBS" --out "$1" --count "$2" \
        --seed "$3" --voices "$4" ${5:+"$5"}
}

for step in $STEPS; do
    case $step in
    data)
        generate "$WORK/train" 12000 1 train --annotations
        generate "$WORK/tune" 2000 2 tune --annotations
        generate "$WORK/validation" 2400 5 validation --annotations
        ;;
    train)
        "$PYTHON" frontend.py --out ../testdata/logmel_reference.json
        # Two at a time: the largest image model takes about as long as all others together.
        (
            "$PYTHON" train_features.py --work "$WORK" --only huge
            "$PYTHON" quantize.py --work "$WORK" --model scene-features-huge
        ) &
        largest=$!
        for size in tiny small medium large; do
            "$PYTHON" train_features.py --work "$WORK" --only "$size"
        done
        "$PYTHON" train_speech.py --work "$WORK"
        wait "$largest"
        "$PYTHON" train_answerer.py --work "$WORK" --only small &
        small=$!
        "$PYTHON" train_answerer.py --work "$WORK" --only large
        wait "$small"
        ;;
    sample)
        generate "$SAMPLE" 200 4 validation
        ;;
    fetched)
        "$PYTHON" ../third_party/fetched_outputs.py --data "$WORK/validation" \
            --outputs "$WORK/outputs/validation"
        ;;
    results)
        also=
        for manifest in ../third_party/*.yaml; do
            name=$(basename "$manifest" .yaml)
            if [ -f "$WORK/outputs/validation/$name.npy" ] || [ -f "$WORK/outputs/validation/$name.jsonl" ]; then
                also="$also $manifest"
            fi
        done
        # shellcheck disable=SC2086 # names without blanks, none or several
        "$PYTHON" evaluate.py ${also:+--also $also} --data "$WORK/validation" --outputs "$WORK/outputs/validation" \
            --set-metrics --time --results ../vqa/results.json > "$WORK/validation.md"
        "$PYTHON" evaluate.py --data "$SAMPLE" --outputs "$WORK/outputs/sample" \
            --expected ../testdata/vqa_expected.csv > "$WORK/sample.md"
        sed -e "/^@validation@$/{r $WORK/validation.md
d}" -e "/^@sample@$/{r $WORK/sample.md
d}" results.template.md > ../vqa/RESULTS.md
        ;;
    *)
        echo "unknown step $step" >&2
        exit 2
        ;;
    esac
done
