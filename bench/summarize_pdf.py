"""How long one command takes to summarize a PDF of 300 pages: from the file to the last word, its conversion included.

  python3 bench/summarize_pdf.py HEADRACE MODEL BOOK.txt [--pages 300] [--flags "--device cuda"] > result.json

BOOK: plain text; its first 300 pages of 40 lines are written as a PDF. The command is
`headrace summarize book.pdf -m MODEL --long split`: what does not fit the model's context is summarized in parts.
"""
import argparse, json, os, shlex, sys, tempfile, textwrap, time

from headrace_json import json_of

LINES = 40


def pages_of(text, count):
    lines = [line for paragraph in text.split("\n\n") for line in textwrap.wrap(" ".join(paragraph.split()), 80) + [""]]
    pages = [lines[i:i + LINES] for i in range(0, len(lines), LINES)]
    if len(pages) < count:
        sys.exit(f"summarize_pdf.py: the text has {len(pages)} pages, not {count}")
    return pages[:count]


def pdf_of(pages):
    """A PDF of text alone: a catalog, a font, and for each page an object and its content."""
    numbers = [4 + 2 * i for i in range(len(pages))]
    objects = [b"<</Type/Catalog/Pages 2 0 R>>",
               b"<</Type/Pages/Count %d/Kids[%s]>>" % (len(pages), b" ".join(b"%d 0 R" % n for n in numbers)),
               b"<</Type/Font/Subtype/Type1/BaseFont/Courier/Encoding/WinAnsiEncoding>>"]
    for number, lines in zip(numbers, pages):
        shown = [line.encode("cp1252", "replace").translate(None, b"\r") for line in lines]
        for special in (b"\\", b"(", b")"):
            shown = [line.replace(special, b"\\" + special) for line in shown]
        content = b"BT /F 10 Tf 14 TL 60 780 Td " + b" ".join(b"(" + line + b") Tj T*" for line in shown) + b" ET"
        objects.append(b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Resources<</Font<</F 3 0 R>>>>"
                       b"/Contents %d 0 R>>" % (number + 1))
        objects.append(b"<</Length %d>>stream\n%s\nendstream" % (len(content), content))
    file, places = b"%PDF-1.4\n", []
    for number, text in enumerate(objects, 1):
        places.append(len(file))
        file += b"%d 0 obj%s\nendobj\n" % (number, text)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return file + b"xref\n0 %d\n0000000000 65535 f \n%strailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (
        len(objects) + 1, table, len(objects) + 1, len(file))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("headrace")
    parser.add_argument("model")
    parser.add_argument("book")
    parser.add_argument("--pages", type=int, default=300)
    parser.add_argument("--flags", type=shlex.split, default=[])
    a = parser.parse_args()
    with open(a.book, encoding="utf8") as f:
        pdf = pdf_of(pages_of(f.read(), a.pages))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "book.pdf")
        with open(path, "wb") as f:
            f.write(pdf)
        command = [a.headrace, "summarize", path, "-m", a.model, "--long", "split", "--json", "-q", *a.flags]
        start = time.perf_counter()
        result = json_of(command)
        seconds = time.perf_counter() - start
    parts = result.get("parts", [])
    print(json.dumps({"program": "bench/summarize_pdf.py", "model": os.path.basename(a.model), "flags": a.flags,
                      "pages": a.pages, "pdf_bytes": len(pdf), "seconds": round(seconds, 1), "parts": len(parts),
                      "prompt_tokens": sum(p["prompt_tokens"] for p in parts) or result["prompt_tokens"],
                      "summary": result["text"]}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
