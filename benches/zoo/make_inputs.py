"""Makes the inputs of the zoo: pictures from scikit-image's data, drawn text, speech of a package and of espeak-ng, tones."""
import glob, json, os, random, subprocess
import numpy as np, cv2
from PIL import Image, ImageDraw, ImageFont
HERE = os.path.dirname(os.path.abspath(__file__)); os.chdir(HERE)
SK = glob.glob('src/scikit_image*/skimage/data')[0]
def out(p):
    p = 'inputs/' + p; os.makedirs(os.path.dirname(p), exist_ok=True); return p
# photos, mostly not square
def im(n):
    g = Image.open(f'{SK}/{n}').convert('RGB'); g.info.clear(); return g
a = im('astronaut.png')
PH = {
 'astronaut-512x512': a,
 'astronaut-wide-512x240': a.crop((0, 0, 512, 240)),
 'astronaut-tall-240x512': a.crop((110, 0, 350, 512)),
 'astronaut-face-200x160': a.crop((125, 20, 325, 180)),
 'coffee-600x400': im('coffee.png'), 'chelsea-451x300': im('chelsea.png'),
 'rocket-640x427': im('rocket.jpg'), 'motorcycle-741x500': im('motorcycle_left.png'),
 'horse-400x328': im('horse.png'), 'brick-512x200': im('brick.png').crop((0, 0, 512, 200)),
 'two-people-700x320': None,
}
w = Image.new('RGB', (700, 320), (90, 110, 130)); w.paste(a.crop((60, 0, 380, 320)), (0, 0)); w.paste(a.crop((60, 0, 380, 320)).transpose(Image.FLIP_LEFT_RIGHT), (380, 0))
PH['two-people-700x320'] = w
for k, v in PH.items(): v.save(out(f'photos/{k}.png'))
# lines of text, in both directions of the page
D = '/usr/share/fonts/truetype/'
LINES = [('dejavu/DejaVuSans.ttf', 32, 'black', 'white', 'Tidemill reads lines of text'),
 ('dejavu/DejaVuSerif.ttf', 28, 'black', 'white', 'The quick brown fox jumps over'),
 ('dejavu/DejaVuSans.ttf', 24, 'navy', 'beige', 'Platform 9 departs at 14:35'),
 ('dejavu/DejaVuSansMono.ttf', 30, 'white', 'black', 'ERROR 404: not found'),
 ('dejavu/DejaVuSerif-Bold.ttf', 40, 'darkred', 'white', 'Invoice No. 2026-1187'),
 ('dejavu/DejaVuSansMono-Bold.ttf', 20, 'black', 'lightgray', 'serial: A7F3-09B2-CC41'),
 ('dejavu/DejaVuSans-Bold.ttf', 60, 'yellow', 'blue', 'EXIT'),
 ('dejavu/DejaVuSans-Oblique.ttf', 26, 'black', 'white', 'total 1,284.50 EUR (incl. 19% VAT)')]
def line(font, size, ink, paper, text, pad=6):
    f = ImageFont.truetype(D + font, size); l, t, r, b = f.getbbox(text)
    g = Image.new('RGB', (r + 2 * pad, b - t + 2 * pad), paper); ImageDraw.Draw(g).text((pad, pad - t), text, ink, f); return g
truth = {}
for i, L in enumerate(LINES):
    g = line(*L); g.save(out(f'lines/{i}.png')); g.rotate(180).save(out(f'lines-turned/{i}.png')); truth[f'lines/{i}.png'] = L[4]
json.dump(truth, open(out('lines/truth.json'), 'w'), indent=1)
# pages
random.seed(7)
WORDS = 'the flow of records through a mill turns with every tide and each stage adds its share to the price of a result'.split()
def page(w, h, title, paras, size=18, two=False, table=False):
    g = Image.new('RGB', (w, h), 'white'); d = ImageDraw.Draw(g)
    f = ImageFont.truetype(D + 'dejavu/DejaVuSerif.ttf', size); F = ImageFont.truetype(D + 'dejavu/DejaVuSans-Bold.ttf', size * 2)
    d.text((40, 30), title, 'black', F); y0 = 40 + size * 3; cols = [(40, w - 40)] if not two else [(40, w // 2 - 15), (w // 2 + 15, w - 40)]
    for c, (x0, x1) in enumerate(cols):
        y = y0
        for _ in range(paras):
            for _ in range(6):
                s = ''
                while True:
                    n = (s + ' ' + random.choice(WORDS)).strip()
                    if d.textlength(n, f) > x1 - x0: break
                    s = n
                if y > h - 60: break
                d.text((x0, y), s, 'black', f); y += int(size * 1.4)
            y += size
        if c == len(cols) - 1:
            if table:
                for r in range(5):
                    for k in range(4):
                        X, Y = x0 + k * (x1 - x0) // 4, y + r * 34
                        if Y + 34 < h - 20:
                            d.rectangle((X, Y, X + (x1 - x0) // 4, Y + 34), outline='black', width=2); d.text((X + 8, Y + 6), f'{random.randint(10, 999)}.{r}{k}', 'black', f)
            elif y < h - 240:
                ph = im('coffee.png').resize(((x1 - x0) * 2 // 3, (x1 - x0) * 4 // 9)); g.paste(ph, (x0, y)); d.text((x0, y + ph.size[1] + 8), 'Figure 1: a cup of coffee', 'black', f)
    return g
P = {'report-800x1100': page(800, 1100, 'Tides and mills', 3), 'two-columns-900x1200': page(900, 1200, 'On streaming', 4, 16, True),
 'table-800x900': page(800, 900, 'Prices', 2, 18, False, True), 'wide-1000x600': page(1000, 600, 'A short note', 2, 20, False, False),
 'scan-384x191': im('page.png'), 'handwritten-448x172': im('text.png')}
for k, v in P.items(): v.convert('RGB').save(out(f'pages/{k}.png'))
b = P['report-800x1100']
for n, r in ((90, Image.ROTATE_90), (180, Image.ROTATE_180), (270, Image.ROTATE_270)): b.transpose(r).save(out(f'pages-turned/report-{n}.png'))
P['wide-1000x600'].transpose(Image.ROTATE_90).save(out('pages-turned/wide-90.png')); b.save(out('pages-turned/report-0.png')); P['table-800x900'].transpose(Image.ROTATE_180).save(out('pages-turned/table-180.png'))
# captchas (drawn), and pictures with characters to click
random.seed(11); rng = np.random.default_rng(11); t = {}
for i in range(12):
    s = ''.join(random.choice('ABCDEFGHKMNPRSTUVWXYZ23456789') for _ in range(4)); W = [160, 160, 150, 200][i % 4]; H = [60, 60, 52, 75][i % 4]
    g = Image.fromarray((rng.integers(200, 255, (H, W, 3))).astype(np.uint8)); d = ImageDraw.Draw(g)
    for k, c in enumerate(s):
        f = ImageFont.truetype(D + random.choice(['dejavu/DejaVuSans-Bold.ttf', 'dejavu/DejaVuSerif-Bold.ttf', 'dejavu/DejaVuSans.ttf']), random.randint(H // 2, H * 2 // 3))
        m = Image.new('L', (H, H), 0); ImageDraw.Draw(m).text((4, 2), c, 255, f); m = m.rotate(random.randint(-18, 18)); g.paste(tuple(random.randint(0, 110) for _ in range(3)), (6 + k * W // 4 - 2, random.randint(0, 4)), m)
    for _ in range(3): d.line([(random.randint(0, W), random.randint(0, H)) for _ in range(2)], tuple(random.randint(60, 160) for _ in range(3)), 1)
    g.save(out(f'captchas/{i:02}.png')); t[f'captchas/{i:02}.png'] = s
json.dump(t, open(out('captchas/truth.json'), 'w'), indent=1)
t = {}
for i, (src, W, H) in enumerate([('coffee.png', 350, 350), ('chelsea.png', 344, 384), ('rocket.jpg', 480, 270), ('brick.png', 300, 420), ('motorcycle_left.png', 416, 416), ('astronaut.png', 500, 200)]):
    g = im(src).resize((W, H), Image.BICUBIC); d = ImageDraw.Draw(g); B = []
    for k in range(3 + i % 2):
        f = ImageFont.truetype(D + 'dejavu/DejaVuSans-Bold.ttf', random.randint(40, 60)); c = random.choice('RKWMQZBG'); x, y = 15 + k * (W - 70) // (3 + i % 2), random.randint(5, H - 80)
        d.text((x, y), c, tuple(random.choice([(255, 40, 40), (255, 255, 0), (40, 60, 255), (255, 255, 255)])), f, stroke_width=2, stroke_fill='black'); B.append(list(d.textbbox((x, y), c, f, stroke_width=2)))
    g.save(out(f'clicks/{i}.png')); t[f'clicks/{i}.png'] = B
json.dump(t, open(out('clicks/truth.json'), 'w'), indent=1)
# digits: scikit-learn's digits (8x8) enlarged, and drawn ones, white on black, with room around
from sklearn.datasets import load_digits
dg = load_digits()
for k in range(10):
    i = [j for j, v in enumerate(dg.target) if v == k][3]
    g = Image.fromarray((dg.images[i] * 15.9).astype(np.uint8)).resize((20, 20), Image.BICUBIC); c = Image.new('L', (28, 28), 0); c.paste(g, (4, 4)); c.save(out(f'digits/{k}-scanned.png'))
    c = Image.new('L', (56, 56), 0); f = ImageFont.truetype(D + 'dejavu/DejaVuSans.ttf', 44); l, tt_, r, b_ = f.getbbox(str(k)); ImageDraw.Draw(c).text((28 - (l + r) // 2, 28 - (tt_ + b_) // 2), str(k), 255, f)
    if k % 2: c.save(out(f'digits/{k}-drawn.png'))
# sounds
import soundfile as sf, soxr
A = glob.glob('src/moonshine*/moonshine_voice/assets')[0]
def wav(p, x, sr): sf.write(out(p), np.clip(x, -1, 1 - 1 / 32768), sr, subtype='PCM_16')
def load(n):
    x, sr = sf.read(f'{A}/{n}', dtype='float32'); x = x.mean(1) if x.ndim > 1 else x; return soxr.resample(x, sr, 16000) if sr != 16000 else x
tc, bk = load('two_cities.wav'), load('beckett.wav')
for i in range(4): wav(f'speech/two-cities-{i}.wav', tc[int(i * 8.5 * 16000):int((i * 8.5 + 6) * 16000)], 16000)
wav('speech/beckett.wav', bk, 16000)
n = rng.normal(0, 0.02, 16000 * 5); n[16000:16000 * 3] += tc[16000 * 2:16000 * 4]; wav('speech/noise-speech-noise.wav', n, 16000)
wav('speech/silence.wav', np.zeros(32000), 16000)
SAY = ['hey jarvis what time is it', 'alexa turn on the lights', 'hey mycroft play some music', 'hey rhasspy open the door', 'set a ten minute timer', 'what is the weather today', 'the tide is coming in']
for i, s in enumerate(SAY):
    for v, name in (('en-us', 'us'), ('en-gb', 'gb')) + ((('en-gb-scotland', 'scotland'),) if 'mycroft' in s else ()):
        subprocess.run(['espeak-ng', '-v', v, '-s', '140', '-w', 'z.wav', s], check=True); x, sr = sf.read('z.wav', dtype='float32')
        x = np.concatenate([np.zeros(48000), soxr.resample(x, sr, 16000) * 0.7, np.zeros(16000)]); wav(f"words/{s.replace(' ', '-')}-{name}.wav", x, 16000)
subprocess.run(['espeak-ng', '-v', 'en-gb-scotland', '-s', '140', '-p', '30', '-w', 'z.wav', 'hey mycroft'], check=True); x, sr = sf.read('z.wav', dtype='float32')      # the one voice of espeak-ng that this model hears
wav('words/hey-mycroft-scotland.wav', np.concatenate([np.zeros(48000), soxr.resample(x, sr, 16000) * 0.7, np.zeros(16000)]), 16000)
for i in range(3): y = tc[int((i * 8.5 + 17) * 16000):][:16000 * 5]; wav(f'mixtures/{i}.wav', 0.7 * y + 0.35 * bk[16000 * i:][:len(y)], 16000)
SR = 22050
def tone(midi, sec, decay=3.0):
    tt = np.arange(int(sec * SR)) / SR; f = 440 * 2 ** ((midi - 69) / 12); return sum(np.sin(2 * np.pi * f * h * tt) / h ** 1.5 for h in range(1, 7)) * np.exp(-decay * tt) * 0.25 * np.minimum(1, tt / 0.005)
def song(notes, total):
    y = np.zeros(int(total * SR))
    for s, m, d in notes: x = tone(m, d); i = int(s * SR); y[i:i + len(x)] += x[:len(y) - i]
    return y
S = {'scale': ([(i * 0.4, m, 0.4) for i, m in enumerate([60, 62, 64, 65, 67, 69, 71, 72])], 3.5), 'chords': ([(i * 0.9, m, 0.9) for i, c in enumerate([(60, 64, 67), (65, 69, 72), (67, 71, 74)]) for m in c], 3.0),
 'bass': ([(i * 0.5, m, 0.5) for i, m in enumerate([36, 43, 41, 36, 40])], 2.7), 'high': ([(i * 0.25, m, 0.25) for i, m in enumerate([84, 88, 91, 96, 91, 88, 84])], 2.0), 'melody': ([(0, 69, .5), (.5, 72, .5), (1, 76, 1), (2.1, 74, .4), (2.6, 71, .9)], 4.0)}
for k, (n_, tot) in S.items(): wav(f'music/{k}.wav', song(n_, tot), SR); json.dump([[s, m, d] for s, m, d in n_], open(out(f'music/{k}.truth.json'), 'w'))
# texts
T = {'english': ['How many cars are in the picture?', 'Is there a bus?', 'A man is eating food.', 'The new movie is awesome and I recommend it.', 'Ship the order to 221B Baker Street, London.', "Don't panic: naive cafe prices rose by 3.5% (again)!", 'tidemill', 'Streaming joins keep state; windows bound it. ' * 12],
 'words': ['Natural', 'language', 'processing', 'proccesing', 'tidemill', 'a', 'stream-line', 'Wolfeschlegelsteinhausen'],
 'thai': ['ทดสอบการตัดคำ', 'เราชอบกินข้าวผัดและดื่มน้ำส้ม', 'รถไฟออกเวลา 14.35 น. จากกรุงเทพ', 'สวัสดีครับ hello โลก', 'ภาษาไทยไม่มีการเว้นวรรคระหว่างคำ', 'ก'],
 'arabic': ['بسم الله الرحمن الرحيم', 'ذهب الولد إلى المدرسة', 'السلام عليكم ورحمة الله', 'كتب الطالب الدرس في الدفتر.', 'القاهرة عاصمة مصر 2026', 'أكل القط السمكة وشرب الماء'],
 'ukrainian': [['університет', 'X'], ['виходити', 'VERB'], ['мама', 'NOUN'], ['тато', 'NOUN'], ['програмування', 'NOUN'], ['зелений', 'ADJ'], ['швидко', 'ADV'], ['комп\u2019ютер', 'NOUN'], ['переписувати', 'VERB'], ['ліс', 'NOUN']]}
os.makedirs('inputs/texts', exist_ok=True)
for k, v in T.items(): json.dump(v, open(out(f'texts/{k}.json'), 'w'), ensure_ascii=False, indent=1)
# files of many kinds
os.makedirs('inputs/files', exist_ok=True)
R = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../../')
FILES = {'code.rs': open(R + 'operators/src/sources/lines.rs', 'rb').read(), 'script.py': open('reference.py', 'rb').read(), 'manifest.yaml': open(R + 'models/third_party/yolov4-tiny-416.yaml', 'rb').read(),
 'readme.md': open(R + 'README.md', 'rb').read(), 'data.csv': ('id,name,price\n' + ''.join(f'{i},item{i},{i * 1.25}\n' for i in range(60))).encode(), 'data.json': json.dumps([{'a': i, 'b': [i, i + 1]} for i in range(40)]).encode(), 'photo.png': open('inputs/photos/coffee-600x400.png', 'rb').read(),
 'speech.wav': open('inputs/speech/beckett.wav', 'rb').read(), 'page.html': b'<!DOCTYPE html>\n<html><head><title>T</title></head><body>' + b'<p>Hello <b>tide</b></p>\n' * 30 + b'</body></html>\n', 'query.sql': b'SELECT id, sum(price) AS total FROM orders WHERE day > 3 GROUP BY id ORDER BY total DESC;\n' * 8,
 'short.txt': b'   \n\n  Just a few words in a file with blanks around.  \n\n   ', 'model.onnx': open(glob.glob('src/basic_pitch*/basic_pitch/saved_models/icassp_2022/nmp.onnx')[0], 'rb').read()}
for k, v in FILES.items(): open(out('files/' + k), 'wb').write(v)
print(sum(len(f) for _, _, f in os.walk('inputs')), 'files')
