"""Runs the models of the zoo in Python's onnxruntime with the pre- and post-processing of their packages.

    venv/bin/python reference.py [NAME...]        writes models/NAME/{about,expected}.json and first.npz

Each model is a builder in ref_*.py. It gives the inputs, `prep` (input to feeds), `post` (outputs to a result), or, for models
with a state, a loop or several files, `process` (input to result, feeds, outputs of the first run).
"""
import glob, hashlib, json, os, shutil, sys, time, statistics
import numpy as np, onnx, onnxruntime as ort
HERE = os.path.dirname(os.path.abspath(__file__)); os.chdir(HERE)
ort.set_default_logger_severity(3)
MODELS = {}
NOTE = {
    'openwakeword': {'licence_note': 'METADATA: code Apache-2.0; "all of the included pre-trained models" CC BY-NC-SA 4.0 (not for commerce)'},
    'nudenet': {'licence_note': 'METADATA says MIT, the LICENSE files in the wheel are the AGPL-3.0, the ONNX metadata says AGPL-3.0 (Ultralytics)'},
    'luscinia': {'licence_note': 'AGPL-3.0-or-later'},
    'rapidocr': {'licence_note': 'MODEL_LICENSES.md in the wheel: models Apache-2.0, rights of PaddleOCR'},
    'moonshine-voice': {'licence_note': 'METADATA: English models MIT, other languages not'},
    'rten-onnx': {'licence_note': 'Cargo.toml: MIT OR Apache-2.0; test data of the crate', 'package_kind': 'crate of crates.io, package_sha256 is that of the .crate', 'package_sha256': '1f5e1b53db6b98229a00ea28d0868c5d8078e4f8e891ae5e15bc519f526d9b43'},
}

def src(pkg):
    name, ver = pkg.split('==')
    d = [p for p in glob.glob('src/*') if os.path.basename(p).lower().startswith(name.replace('-', '_').lower() + '-' + ver)]
    return d[0]

def use(pkg):
    p = os.path.join(HERE, src(pkg))
    if p not in sys.path: sys.path.insert(0, p)

def session(path):
    o = ort.SessionOptions(); o.intra_op_num_threads = 1; o.inter_op_num_threads = 1
    if path.endswith('.gz'):
        import gzip; path = gzip.open(path).read()
    return ort.InferenceSession(path, o, providers=['CPUExecutionProvider'])

def model(name, pkg, file, **about):
    def deco(f):
        MODELS[name] = (f, pkg, file, about); return f
    return deco

def clean(x, digits=6):
    if isinstance(x, dict): return {str(k): clean(v, digits) for k, v in x.items()}
    if isinstance(x, (list, tuple)): return [clean(v, digits) for v in x]
    if isinstance(x, np.ndarray): return clean(x.tolist(), digits)
    if isinstance(x, (np.floating, float)): return float(f'{float(x):.{digits + 1}g}')
    if isinstance(x, np.integer): return int(x)
    if isinstance(x, np.bool_): return bool(x)
    return x

def tensor(a):
    a = np.asarray(a); d = {'dtype': str(a.dtype), 'shape': list(a.shape)}
    if a.size and a.dtype.kind in 'fiub':
        f = a.astype(np.float64)
        d.update(mean=f.mean(), std=f.std(), min=f.min(), max=f.max(), first8=a.ravel()[:8], sha256=hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest())
    return clean(d, 8)

def embedding(v):
    v = np.asarray(v, np.float32).ravel(); return {'length': v.size, 'first8': v[:8], 'norm': float(np.linalg.norm(v.astype(np.float64))), 'mean': float(v.mean())}

def ms(f, item):
    f(item); t = []
    begin = time.perf_counter()
    while len(t) < 5 and (time.perf_counter() - begin < 0.7 or not t):
        a = time.perf_counter(); f(item); t.append((time.perf_counter() - a) * 1000)
    return min(t)

def licence(pkg):
    base = src(pkg); out = {}
    meta = glob.glob(f'{base}/*.dist-info/METADATA')
    if meta:
        L = [l.strip() for l in open(meta[0], encoding='utf-8', errors='replace') if l.startswith(('License:', 'License-Expression:', 'Classifier: License'))]
        out['metadata'] = L[:3]
    if not meta and os.path.exists(f'{base}/Cargo.toml'): out['metadata'] = [l.strip().replace(' = ', ': ') for l in open(f'{base}/Cargo.toml') if l.startswith('license')]
    texts = [p for p in glob.glob(f'{base}/**/*LICEN*', recursive=True) + glob.glob(f'{base}/**/NOTICE*', recursive=True) if os.path.isfile(p)]
    out['files'] = {os.path.relpath(p, base): ' '.join(open(p, errors='replace').read(400).split())[:110] for p in texts}
    return out

def run(name):
    f, pkg, file, about = MODELS[name]; d = f'models/{name}'; os.makedirs(d, exist_ok=True)
    if pkg:
        path = f'{src(pkg)}/{file}'; target = f'{d}/{os.path.basename(file)}'
        if file.endswith('.gz'):
            import gzip; target = target[:-3]; open(target, 'wb').write(gzip.open(path).read())
        elif not os.path.exists(target): shutil.copy(path, target)
    else:
        path = target = f'{d}/{file}'; 
        if not os.path.exists(path): about['make'](path)
    for extra in about.get('beside', []):
        for p in glob.glob(f'{src(pkg)}/{extra}'): shutil.copy(p, d)
    s = session(target); b = f(s)
    extra = b[-1] if callable(b[-1]) and b[-1].__name__ == 'extra' else None      # checks and additions, not timed
    if extra: b = b[:-1]
    if len(b) == 2: items, process = b
    else:
        items, prep, post = b
        def process(item):
            feeds = prep(item); outs = s.run(None, feeds); return post(outs, item), feeds, outs
    res = []; times = []; first = None
    for i, item in enumerate(items):
        r, feeds, outs = process(item)
        if first is None: first = (item, feeds, outs)
        if extra: r = {**r, **(extra(item, r) or {})}
        res.append({'input': item, 'result': clean(r)}); times.append(ms(process, item))
    r2 = clean(process(items[0])[0]); same = all(res[0]['result'][k] == v for k, v in r2.items())
    raw = open(target, 'rb').read(); meta = s.get_modelmeta().custom_metadata_map
    ops = {}
    if target.endswith('.onnx'): m = onnx.load(target, load_external_data=False); ops = {o.domain or 'ai.onnx': o.version for o in m.opset_import}; kinds = sorted({n.op_type for n in m.graph.node})
    else: kinds = []
    val = lambda v: {'name': v.name, 'dtype': v.type.replace('tensor(', '').rstrip(')'), 'shape': v.shape}
    A = {'name': name, 'package': pkg.split('==')[0] if pkg else None, 'version': pkg.split('==')[1] if pkg else None, 'file': file, 'sha256': hashlib.sha256(raw).hexdigest(), 'bytes': len(raw),
         'licence': licence(pkg) if pkg else 'made here', **{k: v for k, v in about.items() if k not in ('make',)},
         'inputs': [val(v) for v in s.get_inputs()], 'outputs': [val(v) for v in s.get_outputs()], 'metadata': {k: (v if len(v) < 2000 else v[:200] + f'... ({len(v)} characters)') for k, v in meta.items()}, 'opset': ops, 'operators': kinds, 'python_ms': clean(statistics.median(times), 3)}
    if pkg:
        w = [p for p in glob.glob('pkgs/*.whl') if os.path.basename(p).lower().startswith((A['package'].replace('-', '_') + '-' + A['version'] + '-').lower())]
        if w: A['package_file'] = os.path.basename(w[0]); A['package_sha256'] = hashlib.sha256(open(w[0], 'rb').read()).hexdigest()
    A['beside_sha256'] = {os.path.basename(p): hashlib.sha256(open(p, 'rb').read()).hexdigest() for p in sorted(glob.glob(f'{d}/*')) if os.path.basename(p) not in ('about.json', 'expected.json', 'first.npz', os.path.basename(target))}
    A.update(NOTE.get(A['package'], {}))
    json.dump(A, open(f'{d}/about.json', 'w'), ensure_ascii=False, indent=1)
    on = [o.name for o in s.get_outputs()]
    outs = first[2]; outs = outs if isinstance(outs, dict) else dict(zip(on, outs))
    E = {'runtime': f'onnxruntime {ort.__version__}, one thread', 'deterministic': same, 'first': {'input': first[0], 'tensors_in': {k: tensor(v) for k, v in first[1].items()}, 'tensors_out': {k: tensor(v) for k, v in outs.items()}}, 'results': res, 'python_ms_each': clean(times, 3)}
    json.dump(E, open(f'{d}/expected.json', 'w'), ensure_ascii=False, indent=1)
    plain = lambda v: (lambda a: a if a.dtype != object else a.astype(str) if all(isinstance(q, str) for q in a.ravel()) else None)(np.asarray(v))      # a sequence of maps is not in the archive
    arrays = {f'in|{k}'.replace('/', '_'): plain(v) for k, v in first[1].items()} | {f'out|{k}'.replace('/', '_'): plain(v) for k, v in outs.items()}
    np.savez_compressed(f'{d}/first.npz', **{k: v for k, v in arrays.items() if v is not None})
    return A, E

if __name__ == '__main__':
    sys.modules['reference'] = sys.modules['__main__']
    import ref_pictures, ref_texts, ref_sounds, ref_tables
    import traceback
    for n in sys.argv[1:] or list(MODELS):
        try: A, E = run(n); print(f"ok   {n:34} {A['python_ms']:9.2f} ms  same={E['deterministic']}  {json.dumps(E['results'][0]['result'], ensure_ascii=False)[:150]}", flush=True)
        except Exception as e: print(f'FAIL {n}: {type(e).__name__}: {str(e)[:300]}', flush=True); 
        if os.environ.get('TB') and sys.exc_info()[0]: traceback.print_exc()
