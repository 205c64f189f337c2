"""Trains the small tokenizers of the tests and writes what the reference library makes of texts with them.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3
    python make.py

The texts to learn from are in this file; the reference is Hugging Face's `tokenizers` for Python. Its
trainers break ties by chance, so each run makes other tokenizers, and writes their numbers with them.

texts.json       texts to encode. `[text, n]` is a text repeated n times.
NAME.json        a tokenizer.
NAME.ids.json    for each text its first 24 tokens, special ones included, of the text cut to 24 tokens;
                 the number of all tokens; and the sum of (position + 1) * (id + 1) of all tokens, modulo
                 2**32; and the text that all tokens are decoded to, if it is another than the text.
"""
import json
import random
import re
from pathlib import Path

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

HERE = Path(__file__).parent
MOST = 24

PROSE = """
The machine reads pictures, sounds and texts from many places. Each record becomes a tensor, the tensor goes
through a model, and the result becomes a column of the table. A record that cannot be read is a dead letter.
When the rate of the records rises, a machine of the cloud takes a part of them; when it falls, it gives the
part back. Twelve cameras look at the street: cars, buses, bicycles and people pass from left to right, and
their numbers are counted at 5 minutes' intervals. It's what we've wanted, isn't it? They'll say: "don't!"
Die Maschine liest Bilder, Töne und Texte. Grüße aus Köln, schöne Straßen, über Öl und Käse. Der Preis war
12,50 € statt 9,99 €. Le garçon a mangé une pomme à l'hôtel près de la forêt; ça coûte très cher. El niño
pequeño comió una manzana en España. Привет, мир! Как дела сегодня? Погода хорошая. 今日は天気がいいですね。
東京から大阪まで新幹線で行きます。我们今天去公园看花。机器学习很有意思。안녕하세요 세계. 오늘 날씨가 좋습니다. مرحبا
بالعالم كيف حالك اليوم. שלום עולם. नमस्ते दुनिया। สวัสดีชาวโลก 😀 🎉 👍 ❤️ 👨‍👩‍👧‍👦 🇩🇪 1234567890 3.14159 2026-11-30
user@example.org https://example.org/path?query=1&other=2#part def main(): return [x ** 2 for x in range(10)]
"""

FIXED = [
    "", " ", "  ", "\t", "\n", "\r\n", "   \t \n  ", "a", "A", "é", "e\u0301", "ﬁn", "Ⅷ", "①②③", "x²", "½",
    "The machine reads pictures.", "the machine reads PICTURES", "It's what we've wanted, isn't it?",
    "They'll say: \"don't!\"", "I'M HERE'S", "  leading", "trailing  ", "two  blanks   three", "a\u00a0b",
    "a\u3000b", "a\u200bb", "tab\tand\nline", "CamelCaseWord", "snake_case_word", "kebab-case-word",
    "1234567890", "3.14159", "1,234,567.89", "12:34:56", "2026-11-30", "+49 (0) 123 / 456", "50%", "$5.00",
    "€9,99", "user@example.org", "https://example.org/a/b?c=d&e=f#g", "C:\\Windows\\System32", "/usr/bin/env",
    "def f(x):\n    return x ** 2\n", "<html><body>text</body></html>", "{\"key\": [1, 2, null]}",
    "!!!", "???", "...", "…", "—–-", "“quotes” ‘single’", "«guillemets»", "a,b;c:d.e", "#hash @at",
    "Grüße aus Köln", "GROẞE STRASSE", "straße", "garçon à l'hôtel", "El niño pequeño", "Ĳsselmeer", "İstanbul",
    "ıI", "Привет, мир!", "Ёлка й Й", "Γειά σου Κόσμε", "今日は天気がいいですね。", "東京タワー", "カタカナ", "ｶﾀｶﾅ",
    "ＦＵＬＬ　ＷＩＤＴＨ", "我们今天去公园看花", "中文English混合text", "안녕하세요 세계", "각", "\u1100\u1161\u11a8",
    "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया", "क्षि", "สวัสดีชาวโลก", "ខ្មែរ", "தமிழ்", "ქართული", "አማርኛ",
    "😀", "😀😃😄", "👍🏽", "👨‍👩‍👧‍👦", "🇩🇪🇫🇷", "❤️", "❤", "text😀text", "a 🎉 b", "\U0001f9d1\u200d\U0001f680",
    "\u0000", "a\u0000b", "\ufffd", "\ufeffbom", "\u202eabc\u202c", "\u0301", "\u200d", "\ue000", "\U0010ffff",
    "Z\u0335\u0321a\u0334\u0322l\u0337g\u0338o", "a" * 99, "a" * 100, "a" * 101, "a" * 250, "ab" * 60,
    "[CLS]", "[SEP] text [PAD]", "[UNK]", "[MASK]", "the [MASK] reads", "[mask]", "<s>", "</s> text", "<pad>",
    "<unk>", "<mask>", "the <mask> reads", "  <mask>  ", "<|endoftext|>", "a<|endoftext|>b", "▁", "▁the", "a▁b",
    "##s", "##", "Ġthe", "Ċ", "'", "''s", "\u2019s", "don\u2019t", "\u017f", "ﬀ", "℀", "㍿", "\u1e9b\u0323",
    "\u00c5 \u212b", "\u2126", "\u2028line\u2029", "\u0085", "\x1c\x1d\x1e\x1f", "\x7f", "\x0b\x0c",
]
REPEATED = [
    ("a", 3000), (" ", 20000), ("a ", 2000), ("the machine reads ", 300), ("😀", 1000), ("日", 3000),
    ("\n", 3000), ("\t ", 2000), ("!", 3000), ("1", 3000), ("é", 2000), ("e\u0301", 2000),
    ("Grüße aus Köln ", 200), ("\u0301", 3000), ("a\u0301\u0323", 1000), ("  word", 1000), ("\r\n", 2000),
    ("[SEP]", 200), ("<mask> ", 200), ("x1", 2000),
]


def varied():
    """The texts: fixed ones, mixtures of words and of characters by chance, repeated ones."""
    rng = random.Random(7)
    words = PROSE.split()
    letters = "".join(sorted(set(PROSE))) + "ΩжǅŉßİıſﬀÅ\u0307\u0308\u0345\u200c\u2060\u00ad"
    texts = list(FIXED)
    while len(texts) < 190:
        texts.append(" ".join(rng.choices(words, k=rng.randint(2, 20))))
        texts.append("".join(rng.choices(letters, k=rng.randint(3, 30))))
        texts.append("".join(chr(rng.choice([rng.randrange(32, 0xd800), rng.randrange(0xe000, 0x30000)]))
                             for _ in range(rng.randint(3, 12))))
    return texts + [list(repeated) for repeated in REPEATED]


def lines():
    return [line for line in PROSE.strip().split("\n")] * 3


def wordpiece():
    """As BERT, uncased: padded to the right with [PAD], the file with a truncation and a padding of its own."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(
        lines(), trainers.WordPieceTrainer(vocab_size=700, special_tokens=special, show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")])
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]", length=8)
    return tokenizer


def byte_bpe():
    """As GPT-2: bytes, no special tokens around a text; truncated and padded on the left, as for generation."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.train_from_iterator(lines(), trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    end = tokenizer.token_to_id("<|endoftext|>")
    tokenizer.enable_truncation(1000, direction="left")
    tokenizer.enable_padding(pad_id=end, pad_token="<|endoftext|>", direction="left")
    return tokenizer


def unigram():
    """As XLM-RoBERTa: SentencePiece's table of characters, pieces with their scores; no padding in the file."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Precompiled(characters()), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer.train_from_iterator(lines(), trainers.UnigramTrainer(
        vocab_size=600, special_tokens=special, unk_token="<unk>", show_progress=False))
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=False, special=True)])
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", tokenizer.token_to_id("</s>")), ("<s>", tokenizer.token_to_id("<s>")))
    return tokenizer


def characters():
    """A small table of SentencePiece's form: full-width letters, ligatures and blanks to plain ones."""
    import io
    import tempfile

    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as proto
    rules = {chr(0xff01 + i): chr(0x21 + i) for i in range(94)}
    rules |= {"\u3000": " ", "\u00a0": " ", "\t": " ", "\n": " ", "\r": " ", "ﬁ": "fi", "ﬀ": "ff", "½": "1/2",
              "e\u0301": "é", "①": "1", "\u200b": "", "㍿": "株式会社"}
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as table:
        for old, new in rules.items():
            table.write("\t".join(" ".join(f"{ord(c):X}" for c in text) for text in (old, new)) + "\n")
        table.flush()
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines()), model_writer=model, vocab_size=300, minloglevel=2,
            normalization_rule_tsv=table.name)
    parsed = proto.ModelProto()
    parsed.ParseFromString(model.getvalue())
    return parsed.normalizer_spec.precompiled_charsmap


def summed(ids):
    return sum((at + 1) * (number + 1) for at, number in enumerate(ids)) % 2 ** 32


def reference(tokenizer, texts):
    """What the library makes of the texts."""
    rows = []
    direction = (tokenizer.truncation or {}).get("direction", "right")
    for text in texts:
        text = text[0] * text[1] if isinstance(text, list) else text
        tokenizer.no_padding()
        tokenizer.no_truncation()
        whole = tokenizer.encode(text).ids
        said = tokenizer.decode(whole)
        tokenizer.enable_truncation(MOST, direction=direction)
        row = [tokenizer.encode(text).ids, len(whole), summed(whole)]
        if said != text and len(text) < 1000:
            row.append(said)
        rows.append(row)
    return rows


def write(name, value):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # A lone escape keeps the file readable: control characters and those without a letter stay escaped.
    text = re.sub(r"[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060\ufeff\ue000-\uf8ff]",
                  lambda found: f"\\u{ord(found[0]):04x}", text)
    (HERE / name).write_text(text.replace("],[", "],\n[") + "\n", encoding="utf-8")


if __name__ == "__main__":
    texts = varied()
    write("texts.json", texts)
    for name, make in [("wordpiece", wordpiece), ("byte_bpe", byte_bpe), ("unigram", unigram)]:
        tokenizer = make()
        (HERE / f"{name}.json").write_text(tokenizer.to_str() + "\n", encoding="utf-8")
        write(f"{name}.ids.json", reference(tokenizer, texts))
