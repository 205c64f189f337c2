"""Trains small models of tables and texts with the libraries that people use, exports them to ONNX with the usual
converters, and writes what the libraries predict.

    pip install pandas scikit-learn==1.9.1 lightgbm==4.7.0 xgboost-cpu==3.2.0 skl2onnx==1.20.0 onnxmltools==1.16.0
    python make.py

rows.json       40 rows of a made-up table of flats: area (float), rooms (int), built (int, with gaps), heating (text,
                with gaps), balcony (truth value), note (text). They were not trained on.
expected.json   for each model the labels and probabilities (or values) that the library predicts for these rows;
                a row is null where the model cannot have it, because a value is missing.
NAME.onnx       the export. NAME.yaml is its manifest; the script corrects its sha256.

The predictions of the library are compared with those of ONNX Runtime here, too: the converters compute with 32 bits.
"""
import hashlib
import json
import re
from pathlib import Path

import lightgbm
import numpy as np
import onnx
import onnxmltools
import onnxruntime
import pandas
import xgboost
from onnxmltools.convert.common.data_types import FloatTensorType as Floats
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

HERE = Path(__file__).parent
HEATING = ["gas", "oil", "pump", "wood"]
GOOD = "bright quiet sunny renovated spacious garden view".split()
BAD = "dark noisy damp small old broken street".split()
FILL = "flat with kitchen and bath near station the a very".split()


def table(count, seed):
    """Rows of the table and a price class by rules with some noise."""
    rng = np.random.default_rng(seed)
    rows, labels, texts = [], [], []
    for _ in range(count):
        area, rooms = round(float(rng.uniform(20, 180)), 1), int(rng.integers(1, 7))
        built = None if rng.random() < 0.15 else int(rng.integers(1900, 2025))
        heating = None if rng.random() < 0.1 else str(rng.choice(HEATING))
        good = bool(rng.random() < 0.5)
        words = [str(w) for w in rng.choice(FILL, 4)] + [str(w) for w in rng.choice(GOOD if good else BAD, 3)]
        rng.shuffle(words)
        rows.append({"area": area, "rooms": rooms, "built": built, "heating": heating,
                     "balcony": bool(rng.random() < 0.4), "note": " ".join(words)})
        score = area / 60 + (0 if built is None else (built - 1960) / 60) + (heating == "pump") + rng.normal(0, .3)
        labels.append(0 if score < 1 else 1 if score < 2.4 else 2)
        texts.append("good" if good else "bad")
    return rows, np.array(labels), np.array(texts)


def numbers(rows, columns):
    def value(row, column):
        return np.nan if row[column] is None else float(row[column])
    return np.array([[value(row, column) for column in columns] for row in rows], dtype=np.float32)


def names(rows):
    return np.array([["none" if row["heating"] is None else row["heating"]] for row in rows])


def save(name, model, feed, outputs, rows):
    """Writes the model and what it predicts; returns its outputs by ONNX Runtime as rows."""
    for entry in model.opset_import[::-1]:  # some converters name a domain twice
        if [other.domain for other in model.opset_import].count(entry.domain) > 1:
            model.opset_import.remove(entry)
    model.producer_version, model.doc_string, model.graph.name = "", "", name  # else it has a random name
    onnx.checker.check_model(model)
    path = HERE / f"{name}.onnx"
    path.write_bytes(model.SerializeToString())
    manifest = HERE / f"{name}.yaml"
    if manifest.exists():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        manifest.write_text(re.sub(r"sha256: \w+", f"sha256: {digest}", manifest.read_text(), count=1))
    session = onnxruntime.InferenceSession(str(path))
    found = session.run(None, feed)
    print(name, path.stat().st_size, "bytes", [f"{e.domain or 'ai.onnx'} {e.version}" for e in model.opset_import])
    for port in [*session.get_inputs(), "->", *session.get_outputs()]:
        print("   ", port if isinstance(port, str) else (port.name, port.type, port.shape))
    for got, wanted in zip(found, outputs):
        if isinstance(got, list):
            got = np.array([list(row.values()) for row in got])
        if wanted.dtype.kind in "US":
            assert (np.asarray(got).reshape(wanted.shape) == wanted).all()
        else:
            difference = np.abs(np.asarray(got, float).reshape(wanted.shape) - wanted).max()
            print("    largest difference to the library", difference)
            assert difference < 2e-6, difference
    return [[value.tolist() for value in row] for row in zip(*outputs)]


def main():
    rows, labels, texts = table(400, 1)
    test, _, _ = table(40, 2)
    expected = {}
    all_columns = ["area", "rooms", "built", "balcony"]
    plain = ["area", "rooms", "balcony"]

    # One tensor of numbers; label and probabilities.
    forest = RandomForestClassifier(8, max_depth=4, random_state=0).fit(numbers(rows, plain), labels)
    x = numbers(test, plain)
    expected["forest"] = save(
        "forest", to_onnx(forest, x[:1], options={"zipmap": False}, target_opset={"": 17, "ai.onnx.ml": 3}),
        {"X": x}, [forest.predict(x), forest.predict_proba(x)], test)
    # The converter's default: label, and for each row a map from label to probability.
    save("forest_zipmap", to_onnx(forest, x[:1], target_opset={"": 17, "ai.onnx.ml": 3}), {"X": x},
         [forest.predict(x)], test)

    # One input for each column, as from a data frame; the labels are texts.
    pipeline = Pipeline([
        ("columns", ColumnTransformer([
            ("numbers", StandardScaler(), [0, 1]),
            ("names", OneHotEncoder(handle_unknown="ignore", sparse_output=False), [2])])),
        ("model", LogisticRegression(max_iter=500))])

    def frame(rows):
        return pandas.DataFrame({"area": numbers(rows, ["area"])[:, 0], "rooms": numbers(rows, ["rooms"])[:, 0],
                                 "heating": names(rows)[:, 0]})
    classes = np.array(["cheap", "fair", "dear"])[labels]
    pipeline.fit(frame(rows), classes)
    inputs = [("area", FloatTensorType([None, 1])), ("rooms", FloatTensorType([None, 1])),
              ("heating", StringTensorType([None, 1]))]
    feed = {"area": numbers(test, ["area"]), "rooms": numbers(test, ["rooms"]), "heating": names(test).astype(object)}
    expected["pipeline"] = save(
        "pipeline", to_onnx(pipeline, initial_types=inputs, options={"zipmap": False},
                            target_opset={"": 17, "ai.onnx.ml": 3}),
        feed, [pipeline.predict(frame(test)), pipeline.predict_proba(frame(test))], test)
    # The manifest of the pipeline has no word for a missing heating.
    expected["pipeline"] = [None if row["heating"] is None else found
                            for row, found in zip(test, expected["pipeline"])]

    # Trees with a branch for missing values; a category as its position.
    def with_position(rows):
        positions = [[np.nan if row["heating"] is None else HEATING.index(row["heating"])] for row in rows]
        return np.hstack([numbers(rows, all_columns), np.array(positions, dtype=np.float32)])
    x = with_position(test)
    boosted = lightgbm.LGBMClassifier(n_estimators=4, num_leaves=6, random_state=0, verbose=-1)
    boosted.fit(with_position(rows), labels)
    expected["lightgbm"] = save(
        "lightgbm", onnxmltools.convert_lightgbm(boosted, initial_types=[("input", Floats([None, 5]))], zipmap=False,
                                                 target_opset=15),
        {"input": x}, [boosted.predict(x), boosted.predict_proba(x)], test)
    boosted = xgboost.XGBClassifier(n_estimators=4, max_depth=3, random_state=0)
    boosted.fit(with_position(rows), labels)
    expected["xgboost"] = save(
        "xgboost", onnxmltools.convert_xgboost(boosted, initial_types=[("input", Floats([None, 5]))], target_opset=15),
        {"input": x}, [boosted.predict(x), boosted.predict_proba(x)], test)

    # One value; categories as one value each.
    def ones(rows):
        zeros = np.array([[float(row["heating"] == name) for name in HEATING] for row in rows], dtype=np.float32)
        built = np.nan_to_num(numbers(rows, ["built"]), nan=1960.0)
        return np.hstack([numbers(rows, ["area"]), built, zeros])
    prices = np.array([row["area"] * 30 + labels[at] * 500 for at, row in enumerate(rows)], dtype=np.float32)
    ridge = Ridge(1.0).fit(ones(rows) / [100, 1000, 1, 1, 1, 1], prices / 1000)
    ridge.coef_ = ridge.coef_ / np.array([100, 1000, 1, 1, 1, 1])
    x = ones(test)
    expected["ridge"] = save("ridge", to_onnx(ridge, x[:1], target_opset={"": 17, "ai.onnx.ml": 3}), {"X": x},
                             [ridge.predict(x).reshape(-1, 1)], test)

    # A text as it is.
    # The pattern is the converter's: with the library's own the export would give other numbers.
    words = Pipeline([("words", TfidfVectorizer(token_pattern="[a-zA-Z0-9_]+", ngram_range=(1, 2), max_features=60)),
                      ("model", LogisticRegression(max_iter=500))])
    words.fit([row["note"] for row in rows], texts)
    notes = [row["note"] for row in test]
    expected["tfidf"] = save(
        "tfidf", to_onnx(words, initial_types=[("text", StringTensorType([None, 1]))],
                         # The converter asks for the locale en_US, which machines without a desktop lack.
                         options={id(words): {"zipmap": False}, TfidfVectorizer: {"locale": "C"}},
                         target_opset={"": 17, "ai.onnx.ml": 3}),
        {"text": np.array(notes, dtype=object).reshape(-1, 1)},
        [words.predict(notes), words.predict_proba(notes)], test)

    def lines(values):
        return ",\n".join(json.dumps(value) for value in values)
    (HERE / "rows.json").write_text(f"[\n{lines(test)}\n]\n")
    models = ",\n".join(f"\"{name}\": [\n{lines(values)}\n]" for name, values in expected.items())
    (HERE / "expected.json").write_text("{\n" + models + "\n}\n")


if __name__ == "__main__":
    main()
