"""What the page's Markdown becomes: part of serve_page.py."""
import json

# Markdown, and the HTML of the nodes that it becomes.
CASES = [
    ("plain *em* **strong** ***both*** ~~gone~~ a_b_c 2*3*4",
     "<p>plain <em>em</em> <strong>strong</strong> <strong><em>both</em></strong> <del>gone</del> a_b_c "
     "2<em>3</em>4</p>"),
    ("# One\n### Three ###\ntext", "<h1>One</h1><h3>Three</h3><p>text</p>"),
    ("a\nb  \nc\\\nd", "<p>a\nb<br>c<br>d</p>"),
    ("`a*b*` ``x ` y`` \\*no\\* `open", "<p><code>a*b*</code> <code>x ` y</code> *no* `open</p>"),
    ("```py\nif x < 1:\n\n    *y*\n```\nafter",
     '<pre tabindex="0"><code>if x &lt; 1:\n\n    *y*</code></pre><p>after</p>'),
    ("~~~\nnot closed", '<pre tabindex="0"><code>not closed</code></pre>'),
    ("- a\n- b\n  - c\n  - d\n- e", "<ul><li>a</li><li>b<ul><li>c</li><li>d</li></ul></li><li>e</li></ul>"),
    ("3. x\n4. y\n   more\n\nend", '<ol start="3"><li>x</li><li>y\nmore</li></ol><p>end</p>'),
    ("1. x\n  - y\n2. z", '<ol start="1"><li>x<ul><li>y</li></ul></li><li>z</li></ol>'),
    ("* a\n\n* b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"),
    ("> q\n> - l\n\n---\n***", "<blockquote><p>q</p><ul><li>l</li></ul></blockquote><hr><hr>"),
    ("| a | b |\n|---|:-:|\n| 1 | `2` |\n| x \\| y | |",
     "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td><code>2</code></td></tr>"
     "<tr><td>x | y</td><td></td></tr></tbody></table>"),
    # HTML is text.
    ("<b>x</b> <img src=x onerror=alert(1)>\n<script>alert(1)</script>",
     "<p>&lt;b&gt;x&lt;/b&gt; &lt;img src=x onerror=alert(1)&gt;\n&lt;script&gt;alert(1)&lt;/script&gt;</p>"),
    # Links open http, https and mailto alone; pictures are not fetched.
    ("[a](javascript:alert(1)) [b](data:text/html,x) [c](/x) [d](vbscript:x) <javascript:x>",
     "<p><span>a</span> <span>b</span> <span>c</span> <span>d</span> &lt;javascript:x&gt;</p>"),
    ("[a](https://a.org/x_(y) \"t\") ![p](https://b.org/p.png) https://c.org/d_e_f. [x",
     '<p><a href="https://a.org/x_(y)" target="_blank" rel="noopener noreferrer">a</a> '
     '<a href="https://b.org/p.png" target="_blank" rel="noopener noreferrer">p</a> '
     '<a href="https://c.org/d_e_f" target="_blank" rel="noopener noreferrer">https://c.org/d_e_f</a>. [x</p>'),
    ("[ [a](https://a.org) [b]",
     '<p>[ <a href="https://a.org" target="_blank" rel="noopener noreferrer">a</a> [b]</p>'),
    ("", ""),
]
# Whatever a model writes is shown, and soon.
HARD = ["> " * 3000 + "x", "- " * 3000 + "x", "x" + "*" * 20000, "[" * 5000 + "](" * 5000, "`" + "``` ` " * 3000,
        "**a " * 5000, "|a" * 2500 + "\n" + "|-" * 2500, "<" * 20000, "https://" * 3000, "_a" * 10000]


def check_markdown(page):
    for markdown, expected in CASES:
        got = page.run(f"""(() => {{ const place = document.createElement("div");
                           showMarkdown(place, {json.dumps(markdown)}); return place.innerHTML; }})()""")
        assert got == expected, f"{markdown!r} became\n  {got}\ninstead of\n  {expected}"
    for markdown in HARD:
        took = page.run(f"""(() => {{ const place = document.createElement("div"), begun = performance.now();
                            showMarkdown(place, {json.dumps(markdown)});
                            return place.textContent ? performance.now() - begun : -1; }})()""")
        assert 0 <= took < 2000, f"{markdown[:20]!r}... took {took} ms"
    # A text that grows ends as the whole one, and what was shown before keeps its nodes.
    whole = "\n\n".join(markdown for markdown, _ in CASES if not markdown.startswith("~~~"))
    assert page.run(f"""(() => {{
      const whole = {json.dumps(whole)}, grown = document.createElement("div"), once = document.createElement("div");
      for (let end = 0; end < whole.length; end += 7) showMarkdown(grown, whole.slice(0, end));
      const first = grown.firstChild;
      showMarkdown(grown, whole);
      showMarkdown(once, whole);
      return grown.innerHTML === once.innerHTML && grown.firstChild === first && once.children.length > 15;
    }})()""")
