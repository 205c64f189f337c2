"""Tensors for models whose pre-processing a manifest cannot do, and whole reference outputs: runs/tensors/*.jsonl, runs/ref/NAME.pkl."""
import sys, os, json, pickle
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__))); sys.dont_write_bytecode = True
import numpy as np
import reference as R
import importlib
for m in ('ref_pictures', 'ref_texts', 'ref_sounds', 'ref_tables'): importlib.import_module(m)
OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'runs'); os.makedirs(OUT + '/ref', exist_ok=True); os.makedirs(OUT + '/tensors', exist_ok=True)
class Spy:
    def __init__(s, real): s.real = real; s.calls = []
    def run(s, n, f):
        o = s.real.run(n, f); s.calls.append(({k: np.array(v) for k, v in f.items()}, [np.array(x) if not isinstance(x, list) else x for x in o])); return o
    def __getattr__(s, k): return getattr(s.real, k)
def calls(name):
    p = f'{OUT}/ref/{name}.pkl'
    if os.path.exists(p): return pickle.load(open(p, 'rb'))
    f, pkg, file, about = R.MODELS[name]
    s = Spy(R.session(f'models/{name}/{os.path.basename(file).removesuffix(".gz")}'))
    got = f(s); out = []
    if len(got) >= 3 and callable(got[2]) and got[1].__code__.co_name == 'prep':
        items, prep, post = got[:3]
        for i in items:
            s.calls = []; fd = prep(i); o = s.run(None, fd); out.append((i, s.calls[-1:], R.clean(post(o, i))))
    else:
        items, process = got[:2]
        for i in items: s.calls = []; r = process(i); out.append((i, s.calls, R.clean(r[0] if isinstance(r, tuple) else r)))
    pickle.dump(out, open(p, 'wb')); return out
short = lambda a: [float(str(v)) for v in np.asarray(a, np.float32).ravel()]
def dump(file, rows):
    with open(f'{OUT}/tensors/{file}.jsonl', 'w') as g:
        for r in rows: g.write(json.dumps(r, ensure_ascii=False) + '\n')
def chunks(name, file, key, cols, rowwise=False):
    """cols: column -> feed."""
    rows = []
    for item, cs, _ in calls(name):
        n = 0
        for fd, o in cs:
            b = len(next(iter(fd.values()))) if rowwise else 1
            for k in range(b):
                rows.append({key[0]: item if isinstance(item, str) else json.dumps(item), key[1]: n, **{c: short(fd[f][k] if rowwise else fd[f]) for c, f in cols.items()}}); n += 1
    dump(file, rows); print(file, len(rows))
def moonshine():
    """ONNX Runtime's own format as ONNX, by the repository's converter."""
    sys.path.insert(0, '../../models/third_party'); import moonshine as M
    os.makedirs(OUT + '/moonshine', exist_ok=True)
    for a, b in (('encoder_model', 'encoder'), ('decoder_model_merged', 'decoder')): M.convert(f'models/moonshine-tiny-en/{a}.ort', f'{OUT}/moonshine/{b}.onnx')
if __name__ == '__main__':
    want = sys.argv[1:]
    def on(n): return not want or n in want
    if on('texts'):
        for t, k in (('english', 'text'), ('words', 'word'), ('tickets', 'text'), ('thai', 'text'), ('arabic', 'text')):
            if os.path.exists(f'inputs/texts/{t}.json'): dump(t, [{k: x} for x in json.load(open(f'inputs/texts/{t}.json'))])
        for n in ('minilm-l6-int8', 'paraphrase-minilm-l3', 'chars2vec-en-300'): calls(n)
    if on('silero'):
        chunks('silero-vad', 'silero', ('sound', 'chunk'), {'samples': 'input'}); chunks('oww-silero-vad', 'oww-silero', ('sound', 'chunk'), {'samples': 'input'})
    if on('oww'):
        chunks('oww-embedding', 'oww-embedding', ('sound', 'window'), {'frames': 'input_1'}, True)
        for n in ('hey-jarvis', 'weather', 'timer'):
            c = calls('oww-' + n); k = list(c[0][1][0][0])[0]; rows = c[0][1][0][0][k].shape[1]
            chunks('oww-' + n, f'oww-{rows}', ('sound', 'window'), {'embeddings': k})
    if on('moonshine'): moonshine()
    if on('music'): chunks('basic-pitch', 'basic-pitch', ('sound', 'window'), {'samples': 'serving_default_input_2:0'})
    if on('voice'):
        chunks('voicefilter-embedder', 'voicefilter-embedder', ('sound', 'window'), {'mel': 'mel_window'}, True)
        chunks('voicefilter-mask', 'voicefilter-mask', ('sound', 'step'), {'mel': 'stacked_logmel', 'voice': 'dvec'})
    if on('thai'):
        for n in ('deepcut', 'oskut-deepcut', 'oskut-tl-deepcut-tnhc', 'oskut-tl-deepcut-ws'):
            c = calls(n); k = list(c[0][1][0][0]); chunks(n, n, ('text', 'place'), {'characters': k[0], 'kinds': k[1]}, True)
