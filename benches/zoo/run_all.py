"""Runs `models verify`, `run` and the comparison for the models named (default: all); writes runs/results.json and RESULTS.md."""
import sys, os, json, subprocess, re, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
Z = os.path.dirname(os.path.abspath(__file__)); M = f'{Z}/manifests'; R = f'{Z}/runs/results.json'
ENV = {**os.environ, 'TIDEMILL_ONNXRUNTIME': os.environ['TIDEMILL_ONNXRUNTIME']}
def cmd(a, d, t=240):
    try: p = subprocess.run(a, cwd=d, env=ENV, capture_output=True, text=True, timeout=t); return p.returncode, p.stdout + p.stderr
    except subprocess.TimeoutExpired as e: return 124, f'more than {t} s: ' + (e.stdout or b'').decode()[-300:]
def shorten(t): return re.sub(r'\s+', ' ', re.sub(r'\x1b\[[0-9;]*m', '', t)).strip()
def one(n):
    d = f'{M}/{n}'; a = time.time()
    rc, v = cmd([f'{Z}/tidemill', 'models', 'verify', 'model.yaml'], d)
    open(f'{Z}/runs/{n}.verify.txt', 'w').write(v)
    os.makedirs(f'{d}/out', exist_ok=True)
    for f in os.listdir(f'{d}/out'): os.remove(f'{d}/out/{f}')
    rr, r = cmd([f'{Z}/tidemill', 'run', 'workflow.yaml'], d, 400)
    open(f'{Z}/runs/{n}.run.txt', 'w').write(r)
    if rr: ok, text = False, 'run: ' + shorten(next((r[m.start():] for m in re.finditer(r'error', r)), r[-500:]))[:600]
    else:
        import check; ok, text = check.check(n)
    m = re.findall(r'((?:ort|rten) [^,\n]*)', v) if rc == 0 else []
    b = ', '.join(m) if m else ('fails: ' + shorten(v)[:500])
    lines = sum(1 for l in open(f'{d}/model.yaml') if l.strip() and not l.strip().startswith('#'))
    dead = re.findall(r'(\d+) dead letter', r)
    return dict(ok=bool(ok), text=text, verify=b, verify_rc=rc, run_rc=rr, lines=lines, seconds=round(time.time() - a, 1))
def write(res):
    import reference, check
    kinds = {n: json.load(open(f'{Z}/models/{n}/about.json')) for n in res}
    third = [n for n in res if kinds[n].get('package')]
    ok3 = [n for n in third if res[n]['ok']]; okm = [n for n in res if n not in third and res[n]['ok']]
    k = lambda n: re.split(r' \(|,', kinds[n]['kind'])[0].split(' (')[0]
    t = f'# Manifests for the zoo: results\n\n{len(third)} manifests for third-party models, {len(ok3)} agree ({len({k(n) for n in ok3})} kinds); {len(okm)} of {len(res) - len(third)} exports made here agree.\n\n`prepared` = the input tensors come from a JSONL file made with the package\'s code (runs/prepare.py), because a manifest cannot cut windows.\n\n| name | kind | lines | agrees | numbers | backends that verify |\n|---|---|---|---|---|---|\n'
    for n in sorted(res, key=lambda n: (n not in third, not res[n]['ok'], n)):
        r = res[n]; prep = 'runs/tensors' in open(f'{M}/{n}/workflow.yaml').read() and 'tensor<' in open(f'{M}/{n}/workflow.yaml').read()
        t += f"| {n} | {kinds[n]['kind']} | {r['lines']} | {'yes' if r['ok'] else 'NO'}{' (prepared)' if prep else ''} | {r['text']} | {r['verify']} |\n".replace('\n |', ' |')
    extra = f'{Z}/runs/why_not.md'
    if os.path.exists(extra): t += '\n' + open(extra).read()
    open(f'{Z}/RESULTS.md', 'w').write(t)
if __name__ == '__main__':
    res = json.load(open(R)) if os.path.exists(R) else {}
    for n in sys.argv[1:] or sorted(os.listdir(M)):
        res[n] = one(n); r = res[n]; print(n, 'OK' if r['ok'] else 'NO', r['seconds'], r['text'][:300], '|', r['verify'][:200], flush=True)
        json.dump(res, open(R, 'w'), indent=1); write(res)
