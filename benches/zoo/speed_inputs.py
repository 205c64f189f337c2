"""Lays out N inputs of a model and the workflow that reads them, in runs/speed/NAME: the same files for every contestant.

Files are hard links to the inputs of `reference.py`, tables and lines are its rows, repeated. Words are made here, all different,
because the package of chars2vec keeps the vectors of words it has seen.
"""
import csv, json, os, random, shutil
import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
MEDIA = ('image_directory', 'wav_directory', 'file_directory')
BATCH = 64      # of the second workflow of a table


def folder(name):
    return f'{HERE}/runs/speed/{name}'


def of_zoo(name):
    """The workflow of the comparison."""
    with open(f'{HERE}/manifests/{name}/workflow.yaml') as file:
        return yaml.safe_load(file)


def first(name):
    """Source, operator and sink that are measured: the comparison may have several."""
    flow = of_zoo(name)
    return flow['sources'][0], flow['operators'][0], flow['sinks'][0]


def prepared(name):
    """Whether the input tensors were made beforehand, by the package's code."""
    return any(str(kind).startswith('tensor<') for kind in first(name)[0]['options'].get('columns', {}).values())


def words(count):
    """Different words of 3 to 12 letters."""
    draw, seen = random.Random(5), {}
    while len(seen) < count:
        word = ''.join(draw.choice('etaoinshrdlucmfwypvbgk') for _ in range(draw.randint(3, 12)))
        seen[word] = None
    return list(seen)


def rows_of(name, source, count):
    """Lines of a JSONL file; the sounds of each repetition have a name of their own, since models may keep a state by it."""
    if name.startswith('chars2vec'):
        return [json.dumps({'word': word}) for word in words(count)]
    with open(f'{HERE}/manifests/{name}/{source["options"]["path"]}') as file:
        base = [json.loads(line) for line in file]
    lines, plain = [], [json.dumps(row) for row in base]
    for number in range(count):
        row, again = base[number % len(base)], number // len(base)
        if again and 'sound' in row:
            lines.append(json.dumps({**row, 'sound': f'{row["sound"]}#{again}'}))
        else:
            lines.append(plain[number % len(base)])
    return lines


def lay_out(name, count):
    """Makes runs/speed/NAME with `count` inputs; returns the number of different ones."""
    place = folder(name)
    shutil.rmtree(place, ignore_errors=True)
    os.makedirs(place)
    source, operator, sink = first(name)
    options = dict(source['options'])
    if source['kind'] in MEDIA:
        with open(f'{HERE}/models/{name}/expected.json') as file:
            base = [result['input'] for result in json.load(file)['results']]
        os.makedirs(f'{place}/data')
        for number in range(count):
            path = base[number % len(base)]
            os.link(f'{HERE}/inputs/{path}', f'{place}/data/{number:06}{os.path.splitext(path)[1]}')
        options['path'], different = 'data', len(base)
        if 'endings' in options:
            options['endings'] = sorted({os.path.splitext(path)[1][1:] for path in base})
    elif source['kind'] == 'csv':
        with open(f'{HERE}/manifests/{name}/{options["path"]}', newline='') as file:
            head, *base = list(csv.reader(file))
        with open(f'{place}/data.csv', 'w', newline='') as file:
            table = csv.writer(file)
            table.writerow(head)
            table.writerows(base[number % len(base)] for number in range(count))
        options['path'], different = 'data.csv', len(base)
    else:
        lines = rows_of(name, source, count)
        with open(f'{place}/data.jsonl', 'w') as file:
            file.writelines(line + '\n' for line in lines)
        options['path'], different = 'data.jsonl', len(set(lines))
    step = {key: value for key, value in operator.items() if key != 'batching'}
    step.update(variants=[f'../../../manifests/{name}/model.yaml'], backend='ort')
    flow = {
        'version': 1, 'name': of_zoo(name)['name'], 'sources': [{**source, 'options': options}], 'operators': [step],
        'sinks': [{**sink, 'options': {**sink['options'], 'path': 'tidemill.jsonl'}}],
    }
    with open(f'{place}/workflow.yaml', 'w') as file:
        yaml.safe_dump(flow, file, sort_keys=False, allow_unicode=True, width=10000)
    with open(f'{place}/batched.yaml', 'w') as file:
        flow['operators'] = [{**step, 'batching': {'max_batch': BATCH}}]
        yaml.safe_dump(flow, file, sort_keys=False, allow_unicode=True, width=10000)
    charset = f'{HERE}/models/{name}/charset.json'
    if os.path.exists(charset):
        with open(charset) as file, open(f'{HERE}/manifests/{name}/charset.txt', 'w') as text:
            text.write('\n'.join(json.load(file)) + '\n')
    return min(different, count)


def items(name):
    """Inputs in the order in which a loop reads them: paths of files, or the one file with all rows."""
    place = folder(name)
    if os.path.isdir(f'{place}/data'):
        return [f'{place}/data/{file}' for file in sorted(os.listdir(f'{place}/data'))]
    return f'{place}/data.csv' if os.path.exists(f'{place}/data.csv') else f'{place}/data.jsonl'
