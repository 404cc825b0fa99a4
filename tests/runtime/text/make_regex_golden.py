"""tests/data/tokenizers/regex.json: how the Hugging Face `tokenizers` library cuts texts by regular expressions, which
Oniguruma reads there and PCRE2 here, and by each behavior of a Split.

    pip install tokenizers && python3 tests/runtime/text/make_regex_golden.py tests/data/tokenizers"""
import json
import os
import sys

from tokenizers import Regex, pre_tokenizers

# Read alike here.
SAME = [
    (r"a$", "a\nba\n"), (r"^b", "a\nba\n"), (r"a$", "a\r\n"), (r"$", "a\nb"), (r"^", "a\nb\n"), (r"(?<=^)a", "a\na"),
    (r"(?m)a.b", "a\nb a.b"), (r"a.b", "a\nb a.b"), (r"(?m:a.)b.", "a\nb\n"), (r"(?-m:a.)", "a\nab"),
    (r"(?m)a$.b", "a\nb"), (r"\Ab", "b\nb"), (r"a\Z", "a\na\n"), (r"a\z", "a\na"), (r"\h+", "ab12 xyz\t "),
    (r"\H+", "ab12 xyz"), (r"[\h]+", "ab1 zq"), (r"[^\h]+", "ab1 zq"), (r"[\H]+", "ab z"),
    (r"\R", "a\r\nb\nc\x85d\u2028e"), (r"\O", "a\nb"), (r"\N+", "ab\nc"), (r"[a-z&&[^aeiou]]+", "hello world"),
    (r"[a-c[x-z]]+", "abcxyz[]-"), (r"[a-z&&b-y&&^c]+", "abcd^"), (r"[^a-z&&b]", "ab1"), (r"[a-c&&b-d]+", "abcd"),
    (r"[[:alpha:]&&[^a]]+", "abc"), (r"[a[^b]]+", "abc"), (r"[^[a]]+", "abc"), (r"[^[^a]]+", "aab"), (r"[a&&b]", "ab&"),
    (r"[\p{L}\p{M}&&[^\p{Han}]]+", "ab漢字cd e\u0301"), (r"[[:alpha:]]+", "abcé12"), (r"[[:^alpha:]]+", "abcé12 "),
    (r"[[:punct:]]+", "a!$+~€b"), (r"\p{Punct}+", "a!$+b"), (r"[[:alnum:]]+", "a²1\u0345b"), (r"[[:upper:]]+", "AⒶ a"),
    (r"[[:space:]]+", " \u00a0\u0085x"), (r"[[:cntrl:]]+", "\x01a"), (r"[[:xdigit:]]+", "afg٣"), (r"[[:digit:]]+", "1٣²"),
    (r"[[:blank:]]+", "a\u3000\u2028b\t"), (r"[[:word:]]+", "a_é-"), (r"[[:ascii:]]+", "aé"), (r"[a\]b]+", "a]b"),
    (r"[]a]+", "]ab"), (r"[^]a]+", "]ab"), (r"[-a]+", "-ab"), (r"[a-]+", "a-b"), (r"[a-c-e]+", "abc-ed"),
    (r"[\^a]+", "^ab"), (r"[a^]+", "a^b"), (r"[.$]+", "..$a"), (r"[\n]+", "\na"), (r"[&]+", "&&a"), (r"[a&b]+", "a&bc"),
    (r"[:alpha:]+", "a:lph1"), (r"[\d-]+", "1-2a"), (r"[\s\S]+", "a\n"), (r"[^\S\n]+", " \n\t"), (r"[\W\d]+", "a1 !"),
    (r"[\x41-\x43]+", "ABCD"), (r"[\u4e00-\u9fff]+", "漢a"), (r"[\x{4e00}-\x{9fff}]+", "漢a"), (r"[\b]", "a\x08b"),
    (r"a{,2}", "aaa a{,2}"), (r"a{,2}?", "baab"), (r"a{2}+", "aaaaa"), (r"a{2}+", "baaab"), (r"a{1,2}+", "aaaaa b"),
    (r"a{2,3}+b", "aaaaaab"), (r"a++b", "aaab"), (r"a?+a", "aa"), (r"a*?b", "aab"), (r"a{2,}?", "aaaa"), (r"a+?", "aa"),
    (r"a{3}{2}", "aaaaaaa"), (r"a+*", "aab"), (r"a*?+", "aab"), (r"(?:ab){2,3}", "ababab"), (r"a{,}", "a{,}a"),
    (r"a{x}", "a{x}a"), (r"a{1,2", "a{1,2"), (r"(?>a+)b", "aab"), (r"\w+", "a_1é٣²‿ⅷ\u200d"), (r"\W+", "a_‿ !"),
    (r"\d+", "1٣²½"), (r"\D+", "a1٣"), (r"\s+", " \t\u00a0\u3000\u180e\u200b\x1c\x85"), (r"\b\w", "ab cd"), (r"\B.", "abc d"),
    (r"\b", "a\u0301b c‿d"), (r"(?i)k", "K\u212Ax"), (r"(?i:'s|'ve|'ll|'re|'m|'d|'t)", "I'S we'VE 'ſ x'LL"),
    (r"(?i)[a-z]+", "ABſK1"), (r"(?i)a(?-i)b", "AB Ab aB"), (r"(?-i:a)", "aA"), (r"(?im)a.", "A\nb"),
    (r"a(?i)b|c", "aB C aC c"), (r"((?i)a|b)c", "Ac Bc ac AC"), (r"a|(?i)b|c", "A B C"), (r"\p{^L}+", "ab12"),
    (r"\P{^L}+", "ab12"), (r"\P{L}+", "ab12"), (r"[\p{^L}]+", "1a"), (r"[^\p{^L}]+", "1a"), (r"\p{Alpha}+", "abé1"),
    (r"\p{alnum}+", "abé1 "), (r"\p{Letter}+", "abé1 "), (r"\p{Lowercase_Letter}+", "abA"), (r"\p{Decimal_Number}+", "1½"),
    (r"\p{Han}+", "漢a々〇"), (r"\p{Hiragana}+", "ひa"), (r"\p{Katakana}+", "カー"), (r"\p{Hangul}+", "한ー"),
    (r"\p{Arabic}+", "ع،"), (r"\p{Common}+", "ー1a"), (r"\p{greek}+", "αa"), (r"\p{Latin}+", "abé漢"), (r"\p{LC}+", "aBǅ漢"),
    (r"\p{Uppercase}+", "ABcⒶ"), (r"\p{Lower}+", "aBª"), (r"\p{L}\p{M}*", "e\u0301a"),
    (r"\p{Word}+", "a_1-"), (r"\p{White_Space}+", "a \u2003b"), (r"\p{Blank}+", "a \tb"), (r"\p{XDigit}+", "fg٣"),
    (r"\p{ L u }+", "AbC"), (r"\p{Sc}+", "$€a"), (r"\p{Cn}", "\u0378a"), (r"\p{Emoji_Presentation}+", "😀a"),
    (r"(?<=a|bc)d", "ad bcd"), (r"(?<!a)b", "ab bb"), (r"(?=a)a", "ba"), (r"\s+(?!\S)|\s+", "a   b  "), (r"(?#c)a", "ab"),
    (r"(?<n>a)b", "abab"), (r"x*", "abc"), (r"x*", "axxb"), (r"(?=b)", "abab"), (r"()", "ab"), (r"|a", "ba"), (r"a||b", "ab"),
    (r"\x{e9}", "éa"), (r"\u00e9", "éa"), (r"\x41", "AB"), (r"\012", "\na"), (r"\0", "\0a"), (r"\e", "\x1ba"), (r"\a", "\x07a"),
    (r"\v", "\x0ba\n"), (r"\f", "\x0ca"), (r"\t", "\ta"), (r"\/\-\_\#\ ", "/-_# "), (r"\<a\>", "<a>"), (r"]", "a]"),
    (r"\w+", "a\u24b6\u00b2\u09f4b"), (r"[\w]+", "a\u24b6\u00b2\u09f4b"), (r"[^\W]+", "a\u24b6\u00b2\u09f4b"),
    (r"[[:word:]]+", "a\u24b6\u00b2\u09f4b"), (r"\p{Word}+", "a\u24b6\u00b2\u09f4b"), (r"\b", "a\u00b2\u09f4b\u24b6"),
    (r"(?i)[^\p{L}]", "1\u0345a"), (r"(?i)[^a-y]+", "AZK\u212ak"), (r"\N{2}", "abc\nd"), (r"\N{U+41}", "aU{U+41}\n"),
    (r"a}", "a}"), ("a\nb", "a\nb"), (r"(?:a|ab)(?:c|bcd)", "abcd"), (r"[^\n]+", "a\nb"), (r"[0-9\p{Lu}]+", "A1b"),
]

# Refused here, each by name: what the error has to hold.
REFUSED = [
    (r"a\Kb", "\\K"), (r"\X", "\\X"), (r"[\R]", "\\R"), (r"\Ga", "\\G"), (r"(?~ab)", "(?~"), (r"(a)\1", "\\1"),
    (r"(?<n>a)\g<n>", "\\g"), (r"(?<n>a)\k<n>", "\\k"), (r"\y", "\\y"), (r"(?x) a b", "(?x"), (r"(?W)\w", "(?W"),
    (r"(?s)a.b", "(?s"), (r"(?P<n>a)", "(?P"), (r"(?|a|b)", "(?|"), (r"(?(1)a|b)", "(?("), (r"(*FAIL)", "(*"), (r"\Q.\E", "\\Q"),
    (r"\C", "\\C"), (r"\pL", "\\p"), (r"\cA", "\\c"), (r"\U0001F600", "\\U"), (r"\o{101}", "\\o"), (r"\j", "\\j"),
    (r"a{2}?", "{n}?"), (r"a{2,1}", "n > m"), (r"(?i)straße", "(?i)"), (r"(?i)st", "(?i)"), (r"(?i)ss", "(?i)"),
    (r"(?i)ff", "(?i)"), (r"(?i:é)", "(?i)"), (r"(?i)\p{Lu}", "(?i)"), (r"(?i)[\p{Ll}]", "(?i)"), (r"(?i)[[:upper:]]", "[:upper:]"),
    (r"[\w-x]+", "range"), (r"[a-\d]+", "\\d in a class"), (r"[[a]-c]+", "range"), (r"[z-a]", "range"), (r"[a--b]", "range"),
    (r"[\p{L}--\p{Lu}]+", "range"), (r"\p{InBasicLatin}", "InBasicLatin"), (r"\p{Script=Han}", "Script=Han"), (r"\p{Graph}", "Graph"),
    (r"\p{Old_Italic}", "Old_Italic"), (r"[[:graph:]]", "[:graph:]"), (r"[[:foo:]]", "[:foo:]"), (r"[[.a.]", "]"), (r"[]", "empty"),
    (r"[a&&]", "empty"), (r"\xe9", "\\x"), (r"\x{41 42}", "\\x"), (r"*a", "quantifier"), (r"(a", "group"), (r"a)", "group"),
    (r"(?i)[\u00df]", "(?i)"), (r"(?i)[a-\u00df]", "(?i)"), (r"(?i)[[^a]]", "(?i)"), (r"(?i)[a&&b]", "(?i)"), (r"(?i)[\P{L}]", "(?i)"),
    (r"(?i)s\x73", "(?i)"), (r"(?i)[\p{Greek}]", "(?i)"), (r"(?i)[\p{M}]", "(?i)"), (r"(?i)\p{ASCII}", "(?i)"),
    (r"a\\"[:-1], "backslash"),
]

BEHAVIORS = ["isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"]
CUTS = [({"Regex": r"-+"}, "-a--b-c-"), ({"Regex": r"-"}, "a--b---"), ({"String": "-"}, "--a-b"), ({"Regex": r"(?=b)"}, "abab"),
        ({"Regex": r"x*"}, "axxb"), ({"String": "ab"}, "ababc"), ({"Regex": r"\w+|[^\w\s]+"}, "one, two  3"), ({"Regex": r"a"}, ""),
        ({"Regex": r"\s"}, "  a  b")]


def cut(pattern, text, behavior="isolated", invert=False):
    pattern = Regex(pattern["Regex"]) if "Regex" in pattern else pattern["String"]
    return [piece for piece, _ in pre_tokenizers.Split(pattern, behavior, invert).pre_tokenize_str(text)]


def main(folder):
    rows = [{"pattern": p, "text": t, "pieces": cut({"Regex": p}, t)} for p, t in SAME]
    rules = []
    for pattern, text in CUTS:
        for behavior in BEHAVIORS:
            for invert in (False, True):
                rules.append({"pattern": pattern, "text": text, "behavior": behavior, "invert": invert,
                              "pieces": cut(pattern, text, behavior, invert)})
    for behavior in BEHAVIORS:
        for text in ("a!!b,c $x", "..a"):
            pieces = [piece for piece, _ in pre_tokenizers.Punctuation(behavior).pre_tokenize_str(text)]
            rules.append({"punctuation": True, "text": text, "behavior": behavior, "invert": False, "pieces": pieces})
    refused = [{"pattern": p, "names": name} for p, name in REFUSED]
    out = {"same": rows, "refused": refused, "rules": rules}
    with open(os.path.join(folder, "regex.json"), "w") as file:
        json.dump(out, file, ensure_ascii=True, indent=0)


main(sys.argv[1])
