"""Models of tables: shipped ones, and exports made here of popular libraries."""
import csv, json, glob, os, numpy as np
from reference import model, src, use, session
SF = 'surfaces-onnx-files==0.0.1'

def surf(n, file):
    @model(f'surfaces-{n}', SF, f'surfaces_onnx_files/{file}.onnx', beside=[f'surfaces_onnx_files/{file.split(".")[0]}.onnx.meta.json'], kind='table: regression (an MLP that stands for a function)' if 'validity' not in n else 'table: classification (scikit-learn, ai.onnx.ml)', pre='4 numbers in the order of param_names of meta.json, texts encoded by param_encodings; float32 [1,4]', post='`variable` [1,1]' if 'validity' not in n else '`label` int64 [1], `probabilities` [1,2]', needs='a tensor from columns of a table, texts mapped to numbers' + ('; output without a second dimension' if 'validity' in n else ''))
    def f(s):
        meta = json.load(open(f'{src(SF)}/surfaces_onnx_files/{file.split(".")[0]}.onnx.meta.json')); rng = np.random.default_rng(5); rows = []
        for i in range(12):
            r = {}
            for k in meta['param_names']: r[k] = str(rng.choice(list(meta['param_encodings'][k]))) if k in meta['param_encodings'] else int(rng.integers(2, 20))
            rows.append(r)
        os.makedirs('inputs/tables', exist_ok=True)
        with open(f'inputs/tables/surfaces-{n}.csv', 'w', newline='') as g: w = csv.DictWriter(g, list(rows[0])); w.writeheader(); w.writerows(rows)
        def prep(r): return {'input': np.array([[meta['param_encodings'][k][v] if k in meta['param_encodings'] else v for k, v in r.items()]], np.float32)}
        def post(o, r): return {x.name: np.asarray(v)[0] for x, v in zip(s.get_outputs(), o)}
        return rows, prep, post
surf('gradient-boosting', 'gradient_boosting_regressor'); surf('knn-classifier', 'k_neighbors_classifier'); surf('knn-regressor', 'k_neighbors_regressor'); surf('knn-validity', 'k_neighbors_classifier.validity')

@model('luscinia-stress', 'luscinia==1.0.0', 'luscinia/data/P3_0017_full.onnx.gz', beside=['luscinia/data/manifest.json'], kind='table: classification (LightGBM, 132 numbers made from a word)', pre='132 numbers of a word and its part of speech by the package\'s featurizer (own code); float32 [1,132]', post='first output: label int64 [1] = index of the stressed vowel; second: see outputs', needs='tensor from columns; the features come from Python code, so only the table of numbers is for Tidemill (inputs/tables/luscinia.csv)')
def _(s):
    use('luscinia==1.0.0'); import luscinia; from luscinia.featurizer import featurize
    items = json.load(open('inputs/texts/ukrainian.json')); names = json.load(open(f'{src("luscinia==1.0.0")}/luscinia/data/manifest.json'))['feature_names']
    os.makedirs('inputs/tables', exist_ok=True)
    with open('inputs/tables/luscinia.csv', 'w', newline='') as g: w = csv.writer(g); w.writerow(['word'] + names); [w.writerow([a] + [repr(float(v)) for v in featurize(a, b)]) for a, b in items]
    P = luscinia.LusciniaPredictor(model_path='models/luscinia-stress/P3_0017_full.onnx')
    def prep(i): return {s.get_inputs()[0].name: np.array([featurize(*i)], np.float32)}
    def post(o, i): q = o[1]; q = q[0] if isinstance(q, list) else np.asarray(q)[0]; return {'label': int(o[0][0]), 'probabilities': q}
    def extra(i, r): assert P.predict(*i) == r['label']
    return items, prep, post, extra

# exports made here -------------------------------------------------------------------------------------------------------
def table(name, X, cols, items=14):
    os.makedirs('inputs/tables', exist_ok=True)
    with open(f'inputs/tables/{name}.csv', 'w', newline='') as g: w = csv.writer(g); w.writerow(['key'] + cols); [w.writerow([i] + [v if isinstance(v, str) else repr(float(v)) for v in r]) for i, r in enumerate(X[:items])]
def made(name, kind, train, pre, post_, needs):
    LIB = {}
    def make(path):
        from sklearn import __version__
        on = train(LIB); open(path, 'wb').write(on.SerializeToString() if hasattr(on, 'SerializeToString') else on)
    @model(name, '', 'model.onnx', make=make, kind=kind, pre=pre, post=post_, needs=needs, selfmade=True)
    def f(s):
        if not LIB: train(LIB)
        X = LIB['X']; items = list(range(min(14, len(X))))
        if 'cols' in LIB: table(name, X, LIB['cols'])
        feeds = LIB.get('feeds') or (lambda i: {s.get_inputs()[0].name: np.asarray(X[i:i + 1], np.float32)})
        def prep(i): return feeds(i)
        def post(o, i): return {x.name: (v[0] if isinstance(v, list) else np.asarray(v).reshape(-1) if np.asarray(v).size == 1 else np.asarray(v)[0]) for x, v in zip(s.get_outputs(), o)}
        def extra(i, r): return {'library': LIB['lib'](i)}
        return items, prep, post, extra
def split(d, n=400):
    from sklearn.utils import shuffle
    X, y = shuffle(d.data, d.target, random_state=3); return X[14:], y[14:], X[:14], y[:14]

def rf(zipmap):
    def t(L):
        from sklearn.datasets import load_iris; from sklearn.ensemble import RandomForestClassifier; from skl2onnx import to_onnx
        d = load_iris(); A, a, B, b = split(d); m = RandomForestClassifier(30, random_state=1).fit(A, np.array(d.target_names)[a] if zipmap else a)
        L.update(X=B, cols=[c.replace(' (cm)', '').replace(' ', '_') for c in d.feature_names], lib=lambda i: {'label': m.predict(B[i:i + 1].astype(np.float32))[0] if zipmap else int(m.predict(B[i:i + 1])[0]), 'probabilities': m.predict_proba(B[i:i + 1].astype(np.float32))[0]})
        return to_onnx(m, A[:1].astype(np.float32), options=None if zipmap else {id(m): {'zipmap': False}}, target_opset=17)
    return t
made('sklearn-forest-zipmap', 'table: classification', rf(True), '4 columns float32 [1,4]', 'skl2onnx\'s default: output_label is STRING, output_probability a sequence of maps (ZipMap)', 'tensor from columns; string output; sequence-of-map output (ZipMap)')
made('sklearn-forest', 'table: classification', rf(False), '4 columns float32 [1,4]', 'label int64 [1], probabilities [1,3]', 'tensor from columns; label without a second dimension')
def lgbm(L):
    from sklearn.datasets import load_breast_cancer; import lightgbm as lgb; from onnxmltools import convert_lightgbm; from onnxmltools.convert.common.data_types import FloatTensorType
    d = load_breast_cancer(); A, a, B, b = split(d); m = lgb.LGBMClassifier(n_estimators=60, random_state=1, verbose=-1, n_jobs=1, deterministic=True).fit(A, a)
    L.update(X=B, cols=[c.replace(' ', '_') for c in d.feature_names], lib=lambda i: {'label': int(m.predict(B[i:i + 1])[0]), 'probabilities': m.predict_proba(B[i:i + 1])[0]})
    return convert_lightgbm(m, initial_types=[('input', FloatTensorType([None, 30]))], zipmap=False, target_opset=15)
made('lightgbm-breast-cancer', 'table: classification', lgbm, '30 columns float32 [1,30]', 'label int64 [1], probabilities [1,2]', 'tensor from 30 columns')
def xgb(L):
    from sklearn.datasets import load_diabetes; import xgboost; from onnxmltools import convert_xgboost; from onnxmltools.convert.common.data_types import FloatTensorType
    d = load_diabetes(); A, a, B, b = split(d); m = xgboost.XGBRegressor(n_estimators=50, max_depth=3, random_state=1, n_jobs=1).fit(A, a)
    L.update(X=B, cols=list(d.feature_names), lib=lambda i: {'prediction': float(m.predict(B[i:i + 1])[0])})
    return convert_xgboost(m, initial_types=[('input', FloatTensorType([None, 10]))], target_opset=15)
made('xgboost-diabetes', 'table: regression', xgb, '10 columns float32 [1,10]', '`variable` [1,1]', 'tensor from columns')
def mixed(L):
    from sklearn.compose import ColumnTransformer; from sklearn.pipeline import Pipeline; from sklearn.preprocessing import OneHotEncoder, StandardScaler; from sklearn.linear_model import LogisticRegression; from skl2onnx import to_onnx; from skl2onnx.common.data_types import FloatTensorType, StringTensorType; import pandas as pd
    rng = np.random.default_rng(2); n = 500; age = rng.integers(18, 80, n).astype(float); fare = np.round(rng.gamma(2, 20, n), 2); port = rng.choice(['Kiel', 'Oslo', 'Riga'], n); cls = rng.choice(['first', 'second'], n)
    y = ((cls == 'first') * 1.2 + (port == 'Oslo') * .8 - age / 60 + fare / 80 + rng.normal(0, .4, n) > .5).astype(int)
    D = pd.DataFrame({'age': age, 'fare': fare, 'port': port, 'class': cls}); m = Pipeline([('c', ColumnTransformer([('n', StandardScaler(), ['age', 'fare']), ('s', OneHotEncoder(handle_unknown='ignore'), ['port', 'class'])])), ('l', LogisticRegression())]).fit(D[14:], y[14:])
    X = D[:14].values.tolist()
    L.update(X=X, cols=list(D.columns), lib=lambda i: {'label': int(m.predict(D[i:i + 1])[0]), 'probabilities': m.predict_proba(D[i:i + 1])[0]}, feeds=lambda i: {'age': np.array([[X[i][0]]], np.float32), 'fare': np.array([[X[i][1]]], np.float32), 'port': np.array([[X[i][2]]], object), 'class': np.array([[X[i][3]]], object)})
    return to_onnx(m, initial_types=[('age', FloatTensorType([None, 1])), ('fare', FloatTensorType([None, 1])), ('port', StringTensorType([None, 1])), ('class', StringTensorType([None, 1]))], options={'zipmap': False}, target_opset=17)
made('sklearn-mixed-columns', 'table: classification', mixed, 'one input per column: age, fare float32 [1,1]; port, class STRING [1,1]', 'label int64 [1], probabilities [1,2]', 'several inputs, each from one column; string inputs')
def tfidf(L):
    from sklearn.pipeline import make_pipeline; from sklearn.feature_extraction.text import TfidfVectorizer; from sklearn.linear_model import LogisticRegression; from skl2onnx import to_onnx; from skl2onnx.common.data_types import StringTensorType
    S = {'billing': ['the invoice amount is wrong', 'please refund the payment', 'my card was charged twice', 'where is my receipt', 'the price on the bill is too high', 'cancel the charge on my account'], 'delivery': ['the parcel has not arrived', 'my package is late', 'track the shipment please', 'the courier left the box outside', 'the delivery address is wrong', 'when will my order ship'], 'technical': ['the app crashes on start', 'i cannot log in', 'the screen stays black', 'update fails with an error', 'the website does not load', 'password reset does not work']}
    X = [t for v in S.values() for t in v]; y = [k for k, v in S.items() for _ in v]; m = make_pipeline(TfidfVectorizer(), LogisticRegression(C=10)).fit(X, y); V = m.steps[0][1]
    T = ['the invoice was charged twice', 'my parcel is late', 'the app does not load', 'refund my card', 'where is the shipment', 'error on log in', 'unknown words only', 'the the the', 'wrong address on the package', 'price', 'black screen after the update', 'The Courier Left', 'reset my password please', 'order receipt']
    L.update(X=T, lib=lambda i: {'label': str(m.predict(T[i:i + 1])[0]), 'probabilities': m.predict_proba(T[i:i + 1])[0]}, feeds=lambda i: {'text': np.array([[T[i]]], object)}); json.dump(T, open('inputs/texts/tickets.json', 'w'), indent=1)
    return to_onnx(m, initial_types=[('text', StringTensorType([None, 1]))], options={id(V): {'locale': 'C'}, id(m): {'zipmap': False}}, target_opset=17)
made('sklearn-tfidf', 'text: classification', tfidf, 'STRING [1,1]; exported with locale C: skl2onnx\'s default (en_US.UTF-8) does not load where that locale is not installed', 'label STRING [1], probabilities [1,3]', 'string input from a text column; string output')
def digits(L):
    from sklearn.datasets import load_digits; from sklearn.neural_network import MLPClassifier; from sklearn.pipeline import make_pipeline; from sklearn.preprocessing import StandardScaler; from skl2onnx import to_onnx
    d = load_digits(); A, a, B, b = split(d); m = make_pipeline(StandardScaler(), MLPClassifier((48,), random_state=1, max_iter=200)).fit(A, a)
    L.update(X=B, cols=[f'pixel_{i}' for i in range(64)], lib=lambda i: {'label': int(m.predict(B[i:i + 1])[0]), 'probabilities': m.predict_proba(B[i:i + 1])[0]})
    return to_onnx(m, A[:1].astype(np.float32), options={'zipmap': False}, target_opset=17)
made('sklearn-digits-mlp', 'table: classification of 64 pixels', digits, '64 columns float32 [1,64]', 'label int64 [1], probabilities [1,10]', 'tensor from 64 columns')
def series(L):
    from sklearn.ensemble import GradientBoostingRegressor; from skl2onnx import to_onnx
    rng = np.random.default_rng(4); t = np.arange(900); v = 20 + 5 * np.sin(t / 24 * 2 * np.pi) + 2 * np.sin(t / 168 * 2 * np.pi) + rng.normal(0, .4, 900); W = np.stack([v[i:i + 24] for i in range(876)]).astype(np.float32); y = v[24:]
    m = GradientBoostingRegressor(n_estimators=40, random_state=1).fit(W[:860], y[:860]); B = W[860:]
    L.update(X=B, cols=[f'lag_{24 - i}' for i in range(24)], lib=lambda i: {'prediction': float(m.predict(B[i:i + 1])[0]), 'truth': float(y[860 + i])}); json.dump(clean(v), open('inputs/tables/series.json', 'w'))
    return to_onnx(m, W[:1], target_opset=17)
from reference import clean
made('sklearn-series-24', 'time series: next value of 24', series, 'the last 24 values float32 [1,24] (a sliding window of one column)', '`variable` [1,1]', 'a tensor from a window over records, or from 24 columns')
def outlier(L):
    from sklearn.datasets import load_wine; from sklearn.ensemble import IsolationForest; from skl2onnx import to_onnx
    d = load_wine(); A, a, B, b = split(d); m = IsolationForest(n_estimators=40, random_state=1).fit(A.astype(np.float32))
    B = B.copy(); B[::3] *= 1.8
    L.update(X=B, cols=[c.replace('/', '_') for c in d.feature_names], lib=lambda i: {'label': int(m.predict(B[i:i + 1].astype(np.float32))[0]), 'scores': float(m.decision_function(B[i:i + 1].astype(np.float32))[0])})
    return to_onnx(m, A[:1].astype(np.float32), target_opset={'': 17, 'ai.onnx.ml': 3})
made('sklearn-isolation-forest', 'table: outliers', outlier, '13 columns float32 [1,13]', 'label int64 [1,1] (-1 or 1), scores [1,1]', 'tensor from columns')
