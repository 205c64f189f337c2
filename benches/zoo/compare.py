"""Compares results of another program with expected.json.

    python3 compare.py NAME results.jsonl [FIELD=KEY ...]

Each line of results.jsonl is an object with `input` (the path under inputs/, or the text or row, as in expected.json; or else the
lines are in the order of expected.json) and fields. FIELD is a field there, KEY the path in `result` (dots for depth). Without
pairs, fields of the same name are compared. Prints, for each field, how many are equal and the largest difference. Lists of boxes
[left, top, width, height] or [left, top, right, bottom] are compared as they stand, in the order of both files.
"""
import json, math, sys
name, path, *pairs = sys.argv[1:]
E = json.load(open(f'{__file__.rsplit("/", 1)[0] if "/" in __file__ else "."}/models/{name}/expected.json'))['results']
L = [json.loads(l) for l in open(path) if l.strip()]
by = {json.dumps(l['input'], ensure_ascii=False): l for l in L if 'input' in l}
def get(r, k):
    for p in k.split('.'): r = r[int(p)] if isinstance(r, list) else r[p]
    return r
def diff(a, b):
    if isinstance(a, bool) or isinstance(b, bool) or isinstance(a, str) or isinstance(b, str) or a is None or b is None: return 0 if a == b else math.inf
    if isinstance(a, dict): return max([diff(a[k], b[k]) for k in a], default=0) if isinstance(b, dict) and a.keys() == b.keys() else math.inf
    if isinstance(a, list): return max([diff(x, y) for x, y in zip(a, b)], default=0) if isinstance(b, list) and len(a) == len(b) else math.inf
    return abs(a - b) if isinstance(b, (int, float)) else math.inf
bad = 0
for f, k in ([p.split('=') for p in pairs] or [(k, k) for k in E[0]['result'] if k in L[0]]):
    same, worst, missing = 0, 0.0, 0
    for i, e in enumerate(E):
        l = by.get(json.dumps(e['input'], ensure_ascii=False)) if by else (L[i] if i < len(L) else None)
        if l is None: missing += 1; continue
        d = diff(get(e['result'], k), get(l, f)); same += d == 0; worst = max(worst, d)
        if d == math.inf: print(f'  {e["input"]}: expected {str(get(e["result"], k))[:100]}, found {str(get(l, f))[:100]}')
    bad += missing + (worst == math.inf); print(f'{name} {f}: {same} of {len(E)} equal, largest difference {worst:.3g}, missing {missing}')
sys.exit(bool(bad))
