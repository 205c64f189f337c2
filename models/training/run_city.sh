#!/usr/bin/env bash
# Renders the cities, trains the vehicle models and measures them.
#
#   python3 -m venv ENV && ENV/bin/pip install -r requirements.txt
#   PYTHON=ENV/bin/python WORK=/some/empty/folder ./run_city.sh
#
# DEVICE=cuda trains on a GPU, JOBS=N renders and prepares batches with so many processes: with 16 and an H200 it is 13 minutes, on one
# processor many hours. Can be stopped and started again. The clips of examples/aicity/data are written only when CLIPS=yes.
set -euo pipefail
cd "$(dirname "$0")"
PYTHON=${PYTHON:-python3}
WORK=${WORK:?a folder for rendered cities and checkpoints, 12 GB}
DEVICE=${DEVICE:-cpu}
JOBS=${JOBS:-1}
export OMP_NUM_THREADS=1

"$PYTHON" generate_city.py --out "$WORK/city/train" --seed 1000 --cities 80 --cameras 5 --seconds 25 --every 1 --jobs "$JOBS"
"$PYTHON" generate_looks.py --out "$WORK/city/looks" --seed 4000 --groups 30 --rounds 40 --jobs "$JOBS"
"$PYTHON" generate_city.py --out "$WORK/city/validation" --seed 2000 --cities 2 --cameras 4 --seconds 30 --quality 27 --jobs "$JOBS"
if [ "${CLIPS:-no}" = yes ]; then
    "$PYTHON" generate_city.py --out ../../examples/aicity/data --seed 3004 --cameras 4 --seconds 60 --quality 27 --shipped
fi
"$PYTHON" train_detector.py --work "$WORK" --device "$DEVICE" --jobs "$((JOBS - 1))"
"$PYTHON" train_appearance.py --work "$WORK" --device "$DEVICE" --jobs "$((JOBS - 1))"
"$PYTHON" evaluate_city.py
