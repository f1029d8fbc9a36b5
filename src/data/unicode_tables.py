#!/usr/bin/env python3
"""Writes unicode_tables.cpp: where the Unicode data of the `tokenizers` package differs from Unicode 14.

Regular expressions there use Oniguruma (Unicode 16), normalisation an older table, the rest Rust's own (17).
The differences are found by asking the package itself about every code point. Needs a Python whose unicodedata
is Unicode 14 (3.11) and the package `tokenizers`:  python unicode_tables.py > unicode_tables.cpp
"""
import sys
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CATEGORIES = "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp Cc Cf Co".split()

# Scripts are not in unicodedata; these are what Unicode 15 and 16 added to them.
SCRIPTS = {
    "Han": [*range(0x2B739, 0x2B73A), *range(0x2EBF0, 0x2EE5E), *range(0x31350, 0x323B0)],
    "Hiragana": [0x1B132], "Katakana": [0x1B155], "Hangul": [],
}


def ranges(code_points):
    found = []
    for c in sorted(code_points):
        if found and found[-1][1] == c - 1:
            found[-1][1] = c
        else:
            found.append([c, c])
    return found


def matches(pattern):
    removed = pre_tokenizers.Split(Regex(pattern), "removed")
    return {c for c in CODE_POINTS if not removed.pre_tokenize_str(chr(c))}


def property_additions():
    table = {}
    for name in CATEGORIES:
        known = {c for c in CODE_POINTS if unicodedata.category(chr(c)).startswith(name)}
        found = matches(r"\p{%s}" % name)
        # U+1171E went from Mn to Mc; nothing else ever left a category.
        if known - found - {0x1171E}:
            sys.exit(f"{name} lost {ranges(known - found)}")
        table[name] = found - known
    return table


def numeric():
    digits = pre_tokenizers.Digits(True)
    return {c for c in CODE_POINTS if len(digits.pre_tokenize_str("a" + chr(c))) == 2}


def word():
    tokenizer = Tokenizer(models.BPE({"x": 0}, []))
    tokenizer.add_tokens([AddedToken("qqq", single_word=True, normalized=False)])
    texts = [chr(c) + "qqq" for c in CODE_POINTS]
    return {c for c, e in zip(CODE_POINTS, tokenizer.encode_batch(texts)) if len(e.ids) == 0 or 1 not in e.ids}


def lowercase():
    lower = normalizers.Lowercase()
    return {c: ord(lower.normalize_str(chr(c))) for c in CODE_POINTS
            if c != 0x130 and lower.normalize_str(chr(c)) != chr(c).lower()}


def unknown_to_normalizers():
    forms = {f: getattr(normalizers, f)() for f in ("NFC", "NFD", "NFKC", "NFKD")}
    unknown = set()
    for c in CODE_POINTS:
        s = chr(c)
        for name, normalizer in forms.items():
            if normalizer.normalize_str(s) != unicodedata.normalize(name, s):
                unknown.add(c)
        parts = unicodedata.normalize("NFD", s)
        if parts != s and forms["NFC"].normalize_str(parts) != unicodedata.normalize("NFC", s):
            unknown.update(map(ord, parts))
        marks = "a\u0345" + s
        wanted = unicodedata.normalize("NFD", marks)
        if 0 < unicodedata.combining(s) < 240 and forms["NFD"].normalize_str(marks) != wanted:
            unknown.add(c)
    assigned_later = matches(r"\P{Cn}") - {c for c in CODE_POINTS if unicodedata.category(chr(c)) != "Cn"}
    return unknown | assigned_later


def print_rows(declaration, pairs):
    cells = [f"{{0x{a:X}, 0x{b:X}}}," for a, b in pairs]
    print(declaration + " = {")
    for row in range(0, len(cells), 5):
        print("    " + " ".join(cells[row:row + 5]))
    print("};\n")


def print_ranges(name, code_points):
    print_rows(f"constexpr CodePointRange {name}[]", ranges(code_points))


def main():
    if unicodedata.unidata_version != "14.0.0":
        sys.exit(f"unicodedata is {unicodedata.unidata_version}, this script needs 14.0.0 (Python 3.11)")
    print("// Written by unicode_tables.py from the package tokenizers " + tokenizers.__version__ + "; do not edit.")
    print("// clang-format off")
    print('#include "data/unicode_tables.hpp"\n\nnamespace ranktune::data::tokenizing {\nnamespace {\n')
    print_ranges("kNumeric", numeric())
    print_ranges("kWord", word())
    print_ranges("kUnknownToNormalizers", unknown_to_normalizers())
    additions = property_additions() | SCRIPTS
    for name, code_points in additions.items():
        if code_points:
            print_ranges("kAdded" + name, code_points)
    print("constexpr PropertyAdditions kAdditions[] = {")
    for name, code_points in additions.items():
        print(f'    {{"{name}", {"kAdded" + name if code_points else "{}"}}},')
    print("};\n")
    print_rows("constexpr std::pair<char32_t, char32_t> kLower[]", sorted(lowercase().items()))
    print("}  // namespace\n")
    print("std::span<const CodePointRange> numeric_ranges() { return kNumeric; }")
    print("std::span<const CodePointRange> word_ranges() { return kWord; }")
    print("std::span<const CodePointRange> ranges_unknown_to_normalizers() { return kUnknownToNormalizers; }")
    print("std::span<const PropertyAdditions> property_additions() { return kAdditions; }")
    print("std::span<const std::pair<char32_t, char32_t>> later_lowercase() { return kLower; }\n")
    print("}  // namespace ranktune::data::tokenizing")


main()
