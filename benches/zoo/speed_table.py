"""Writes SPEED.md from SPEED.json: speed_table.py [SPEED.json]. Causes of slow models are in speed_causes.yaml, by hand."""
import json, math, os, re, statistics, sys
import yaml
import speed_inputs

START = 2      # records of the run that stands for the start
HERE = os.path.dirname(os.path.abspath(__file__))


def about(name):
    with open(f'{HERE}/models/{name}/about.json') as file:
        return json.load(file)


def manifest(name):
    """Licence and number of lines."""
    with open(f'{HERE}/manifests/{name}/model.yaml') as file:
        text = file.read()
    lines = sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith('#'))
    return yaml.safe_load(text)['licence'], lines


def agreement():
    """What RESULTS.md says, by name."""
    with open(f'{HERE}/RESULTS.md') as file:
        rows = [[cell.strip() for cell in line.strip().strip('|').split('|')] for line in file if line.startswith('| ')]
    return {row[0]: row[3] for row in rows if len(row) >= 5 and row[3].lower().startswith(('yes', 'no'))}


def kind(name):
    return re.split(r' \(|,', about(name)['kind'])[0]


def reads(name):
    """`tensors` (made beforehand), `table`, or the media that have to be prepared."""
    source = speed_inputs.first(name)[0]
    if speed_inputs.prepared(name):
        return 'tensors'
    by_kind = {'image_directory': 'pictures', 'wav_directory': 'sounds', 'file_directory': 'files', 'csv': 'table'}
    return by_kind.get(source['kind'], 'texts')


def prepares(name):
    return reads(name) not in ('tensors', 'table')


def rate(run):
    return run['records'] / run['seconds']


class Row:
    """Figures of a model on a number of processors; each is median, smallest, largest."""

    def __init__(self, found):
        rounds = found['rounds']
        of = lambda values: (statistics.median(values), min(values), max(values))
        self.tidemill = of([rate(turn['tidemill']) for turn in rounds])
        self.whole = of([turn['tidemill']['records'] / turn['tidemill']['wall'] for turn in rounds])
        self.start = statistics.median(turn['tidemill']['wall'] - turn['tidemill']['seconds'] for turn in rounds)
        self.loop_start = found['loading']['loop']
        self.loop = of([rate(turn['loop']) for turn in rounds])
        self.over_loop = of([rate(turn['tidemill']) / rate(turn['loop']) for turn in rounds])
        written = lambda run: run['records'] / (run['seconds'] + run['writing'])
        self.over_writing = of([rate(turn['tidemill']) / written(turn['loop']) for turn in rounds])
        start = found['start_processor_seconds']
        by_time = lambda run, records, seconds: (run['records'] - records) / max(1e-9, run['processor_seconds'] - seconds)
        self.over_time = of([by_time(turn['tidemill'], START, start) / by_time(turn['loop'], 0, 0) for turn in rounds])
        self.package = self.over_package = None
        if all('package' in turn for turn in rounds):
            self.package = of([rate(turn['package']) for turn in rounds])
            self.over_package = of([rate(turn['tidemill']) / rate(turn['package']) for turn in rounds])
        self.batched = of([rate(turn['batched']) / rate(turn['loop']) for turn in rounds]) if all('batched' in turn for turn in rounds) else None
        self.load = of([turn['load'] for turn in rounds])


def number(value):
    return f'{value:,.0f}'.replace(',', ' ') if value >= 100 else f'{value:.1f}' if value >= 10 else f'{value:.2f}'


def three(value, form=number):
    return '' if value is None else f'{form(value[0])} ({form(value[1])} to {form(value[2])})'


ratio = lambda value: f'{value:.2f}'


def line(name, found):
    """One line for the screen."""
    said = [found['error'][:300]] if 'error' in found else []
    for cores, one in found.get('cores', {}).items():
        row = Row(one)
        said.append(f'{cores}: {three(row.tidemill)} /s, loop {three(row.loop)}, ratio {three(row.over_loop, ratio)}' + (
            f', package {three(row.over_package, ratio)}' if row.package else ''))
    return '; '.join(said) + (f'; rows differ {found["rows_differ"]}' if found.get('rows_differ') else '')


def mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def package_cell(name, found, row):
    if row.over_package:
        return three(row.over_package, ratio)
    return f'none: {found["why_no_package"]}'


def write(kept):
    """Writes SPEED.md."""
    from speed_reasons import why_not
    models = {name: found for name, found in kept['models'].items() if 'cores' in found}
    failed = {name: found['error'] for name, found in kept['models'].items() if 'error' in found}
    for name, found in models.items():
        found['why_no_package'] = why_not(name) or (found.get('package') or 'not installed')[:120]
    rows = {name: {cores: Row(one) for cores, one in found['cores'].items()} for name, found in models.items()}
    for one in rows.values():
        for cores, row in one.items():
            row.over_best = row.tidemill[0] / max(other.loop[0] for number_, other in one.items() if number_ <= cores)
    all_cores = sorted({cores for one in rows.values() for cores in one})
    facts, agrees = kept['facts'], agreement()
    causes = {}
    if os.path.exists(f'{HERE}/speed_causes.yaml'):
        with open(f'{HERE}/speed_causes.yaml') as file:
            causes = yaml.safe_load(file) or {}
    out = ['# Speed of third-party models', '']
    third = [name for name in models if about(name).get('package')]
    out += [f'{len(third)} models of {len({kind(name) for name in third})} kinds from packages, the same inputs for Tidemill, a Python loop and the call of the package.', '']
    out += ['| | ' + ' | '.join(f'{cores} core' + ('s' if cores != '1' else '') for cores in all_cores) + ' |', '|---' * (len(all_cores) + 1) + '|']

    def summary(label, figure):
        out.append(f'| {label} | ' + ' | '.join(figure([(name, rows[name][cores]) for name in rows if cores in rows[name]]) for cores in all_cores) + ' |')
    named = lambda test: lambda found: str(sum(1 for name, row in found if test(name, row)))
    of_mean = lambda test: lambda found: f'{mean([row.over_loop[0] for name, row in found if test(name)]):.2f} (of {sum(1 for name, _ in found if test(name))})'
    summary('models slower than the loop (median ratio below 1)', named(lambda name, row: row.over_loop[0] < 1))
    summary('of these, slower in each round', named(lambda name, row: row.over_loop[2] < 1))
    summary('models slower than the loop on these cores or fewer, whichever is faster', named(lambda name, row: row.over_best < 1))
    summary('ratio to the loop, geometric mean, models that read pictures, sounds, files, texts', of_mean(prepares))
    summary('the same to the loop on these cores or fewer, whichever is faster', lambda found: f'{mean([row.over_best for name, row in found if prepares(name)]):.2f}')
    summary('of these, at least 1.5', named(lambda name, row: prepares(name) and row.over_loop[0] >= 1.5))
    summary('ratio to the loop, geometric mean, tables', of_mean(lambda name: reads(name) == 'table'))
    summary('ratio to the loop, geometric mean, prepared tensors', of_mean(lambda name: reads(name) == 'tensors'))
    summary('ratio of records per second of processor time to the loop, geometric mean, all models', lambda found: f'{mean([row.over_time[0] for _, row in found]):.2f} (of {len(found)})')
    summary('models with fewer records per second of processor time than the loop', named(lambda name, row: row.over_time[0] < 1))
    summary('ratio to the package, geometric mean', lambda found: f'{mean([row.over_package[0] for _, row in found if row.over_package]):.2f} (of {sum(1 for _, row in found if row.over_package)})')
    out += ['', '## Conditions', '']
    packages = ', '.join(f'{name} {version}' for name, version in facts['packages'].items())
    loads = [turn['load'] for found in models.values() for one in found['cores'].values() for turn in one['rounds']]
    out += [f'- {facts["processor"]}, {facts["processors"]} processors; {facts["tidemill"]}; Python {facts["python"]}, {packages}; {facts["date"]}.']
    out += [f'- Other programs ran on the machine: load average at the start {facts["load"][0]:.1f}; before single rounds median {statistics.median(loads):.1f}, {min(loads):.1f} to {max(loads):.1f} (1 of it is the measurement itself).'] if loads else []
    rounds = {len(one['rounds']) for found in models.values() for one in found['cores'].values()}
    spans = [turn[who]['seconds'] for found in models.values() for one in found['cores'].values() for turn in one['rounds'] for who in ('tidemill', 'loop')]
    out += [f'- The contestants took turns, {" or ".join(map(str, sorted(rounds)))} rounds; a figure is the median of the rounds, then the smallest and largest. A ratio is that of two neighbours. A run took {statistics.median(spans):.1f} s ({min(spans):.1f} to {max(spans):.1f}).'] if spans else []
    out += [
        '- Tidemill: `tidemill run workflow.yaml --rate max`, `backend: ort`, all else as by default, so no batches and as many copies of the model as processors; bound to one processor or two; reads files, writes JSON lines. The rate is records by the seconds of the run as its report has them, from the start of the sources to the last row; `whole command` includes the start of the program and loading.',
        '- Loop: reads a file, prepares it with numpy, OpenCV or Pillow as the package does, `session.run` with as many threads as processors, makes the result, keeps it in a list. Loading is left out. It writes nothing; `loop that writes` adds the time of `json.dumps` of its rows.',
        '- `ratio by processor time` compares records per second of processor time of all threads, without that of the start: other programs disturb it less, and several threads gain nothing by it. On two cores it says little: threads of a session that wait for one another use processor time too.',
        '- `ratio to the faster loop`: two threads of a session are slower than one for small models and on a busy machine, so two cores are also compared with the loop on one. The two were measured at different times, so other programs may have made the difference.',
        '- Wall times are rough where the range of a ratio is wide: a run has few records, and for the models measured first other programs had the processors for most of the time.',
        '- Package: its own call, file by file, sessions with as many threads as processors. Its result may have more than the loop\'s.',
        '- All compute with the same library of ONNX Runtime, except the package call of moonshine-voice, which brings its own. Inputs are copies of few different ones, in the file cache.',
        '- `prepared`: the rows have the input tensors, made by the package\'s code before, so that only reading, the model and writing are compared.', '',
    ]
    out += ['## Models', '', '| model | package | licence | kind | reads | lines of the manifest | agrees | ' + ' | '.join(f'ratio to the loop, {cores} | to the package, {cores}' for cores in all_cores) + ' |', '|---' * (7 + 2 * len(all_cores)) + '|']
    order = sorted(models, key=lambda name: (not about(name).get('package'), {'tensors': 2, 'table': 1}.get(reads(name), 0), name))
    for name in order:
        licence, lines = manifest(name)
        told = about(name)
        cells = []
        for cores in all_cores:
            row = rows[name].get(cores)
            slow = ' **slower**' if row and row.over_loop[0] < 1 else ''
            cells += [three(row.over_loop, ratio) + slow, package_cell(name, models[name], row) if cores == all_cores[0] or row.over_package else ''] if row else ['', '']
        out.append(f'| {name} | {told["package"] or "made here"} {told["version"] or ""} | {licence} | {told["kind"]} | {reads(name)} | {lines} | {agrees.get(name, "")} | ' + ' | '.join(cells) + ' |')
    for cores in all_cores:
        out += ['', f'## Records per second, {cores} core' + ('s' if cores != '1' else ''), '', '| model | records | Tidemill | whole command | start and loading | of the loop | loop | package | ratio to a loop that writes | ratio by processor time | ratio to the faster loop |', '|---|---|---|---|---|---|---|---|---|---|---|']
        for name in order:
            row = rows[name].get(cores)
            if row:
                out.append(f'| {name} | {models[name]["records"]} | {three(row.tidemill)} | {number(row.whole[0])} | {row.start:.2f} s | {row.loop_start:.2f} s | {three(row.loop)} | {three(row.package)} | {three(row.over_writing, ratio)} | {three(row.over_time, ratio)} | {row.over_best:.2f} |')
    cause = lambda name, cores: causes.get(name) or ('none found: by processor time it is not slower, and other programs ran' if rows[name][cores].over_time[0] >= 1 else 'not looked into')
    slow = sorted(((row.over_loop[0], name, cores) for name, one in rows.items() for cores, row in one.items() if row.over_loop[0] < 1))
    out += ['', '## Slower than the loop, the worst first', '']
    if slow:
        out += ['| model | cores | ratio to the loop | to a loop that writes | by processor time | cause |', '|---|---|---|---|---|---|']
        out += [f'| {name} | {cores} | {three(rows[name][cores].over_loop, ratio)} | {three(rows[name][cores].over_writing, ratio)} | {three(rows[name][cores].over_time, ratio)} | {cause(name, cores)} |' for _, name, cores in slow]
    else:
        out += ['None.']
    batched = [(name, cores, row) for name in order for cores, row in rows[name].items() if row.batched]
    if batched:
        out += ['', f'## Tables with `batching: {{max_batch: {speed_inputs.BATCH}}}`', '', 'All other figures are those of the default, one record at a time.', '', '| model | cores | ratio to the loop |', '|---|---|---|']
        out += [f'| {name} | {cores} | {three(row.batched, ratio)} |' for name, cores, row in batched]
    behind = sorted(((row.over_package[0], name, cores) for name, one in rows.items() for cores, row in one.items() if row.over_package and row.over_package[0] < 1))
    if behind:
        out += ['', '## Slower than the package', '', '| model | cores | ratio to the package |', '|---|---|---|']
        out += [f'| {name} | {cores} | {three(rows[name][cores].over_package, ratio)} |' for _, name, cores in behind]
    if failed:
        out += ['', '## Not measured', '', '| model | reason |', '|---|---|']
        out += [f'| {name} | {" ".join(error.split())[:400]} |'.replace('\n', ' ') for name, error in failed.items()]
    with open(f'{HERE}/SPEED.md', 'w') as file:
        file.write('\n'.join(out) + '\n')


if __name__ == '__main__':
    with open(sys.argv[1] if sys.argv[1:] else f'{HERE}/SPEED.json') as file:
        write(json.load(file))
