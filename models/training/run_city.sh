#!/usr/bin/env bash
# Renders the cities, trains the vehicle models and measures them.
#
#   python3 -m venv ENV && ENV/bin/pip install -r requirements.txt
#   PYTHON=ENV/bin/python WORK=/some/empty/folder ./run_city.sh
#
# Can be stopped and started again. The clips of examples/aicity/data are written only when CLIPS=yes.
set -euo pipefail
cd "$(dirname "$0")"
PYTHON=${PYTHON:-python3}
WORK=${WORK:?a folder for rendered cities and checkpoints, 8 GB}
export OMP_NUM_THREADS=1

"$PYTHON" generate_city.py --out "$WORK/city/train" --seed 1000 --cities 26 --cameras 5 --seconds 25 --every 1
"$PYTHON" generate_looks.py --out "$WORK/city/looks" --seed 4000 --groups 22 --rounds 40
"$PYTHON" generate_city.py --out "$WORK/city/validation" --seed 2000 --cities 2 --cameras 4 --seconds 30 --quality 27
if [ "${CLIPS:-no}" = yes ]; then
    "$PYTHON" generate_city.py --out ../../examples/aicity/data --seed 3004 --cameras 4 --seconds 60 --quality 27 --shipped
fi
"$PYTHON" train_detector.py --work "$WORK"
"$PYTHON" train_appearance.py --work "$WORK"
"$PYTHON" evaluate_city.py
