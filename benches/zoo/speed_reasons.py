"""Why the package of a model is no contestant in speed.py."""
import speed_inputs

WITHOUT = {
    'mnist': 'a test file of a crate, without code', 'mnist-external': 'a test file of a crate, without code',
    'minilm-l6-int8': 'the package has the file only', 'paraphrase-minilm-l3': 'the package has the file only',
    'luscinia-stress': 'it makes the 132 numbers from a word; the rows have them', 'oww-melspectrogram': 'only as a part of its chain of three models',
}


def why_not(name):
    if name in WITHOUT: return WITHOUT[name]
    if name.startswith('surfaces'): return 'the package has the files only'
    if name.startswith('silero'): return 'needs torch'
    if name.startswith('oww'): return 'takes sound and runs a chain of models'
    if speed_inputs.prepared(name): return 'takes the text or sound, not the tensors'
    return None
