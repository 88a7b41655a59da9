"""slides.py: the lecture of slides.md as one HTML file (`make slides` -> build/slides.html).

A slide begins at a line `---`; what stands below a line `???` is for the speaker, and shown with n.
Keys: arrows, space, Home, End, n; print to PDF from the browser, a slide a page. Pictures are put
into the file, so that it can be mailed and opened without a network.
"""
import argparse
import base64
import html
import re
import sys
from pathlib import Path

from markdown_it import MarkdownIt

SOURCE = Path(__file__).with_name("slides.md")
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>
body {{ margin: 0; font: 1.5rem/1.35 Georgia, serif; color: #222; background: #fff }}
section {{ display: none; box-sizing: border-box; height: 100vh; padding: 4vh 7vw; overflow: auto }}
section.on {{ display: block }} h1, h2 {{ font: bold 1.5em/1.2 sans-serif; margin: 0 0 .7em }}
code, pre {{ font: .85em/1.4 monospace; background: #f3f3f3 }} pre {{ padding: .6em 1em }}
table {{ border-collapse: collapse }} td, th {{ padding: .2em .8em; border-bottom: 1px solid #bbb }}
img {{ max-width: 100%; max-height: 56vh }} small {{ position: fixed; right: 1em; bottom: .6em }}
aside {{ display: none; font-size: .75em; border-top: 1px solid #bbb; color: #555 }}
body.notes aside {{ display: block }}
@media print {{ section {{ display: block; page-break-after: always }} small {{ position: static }}
@page {{ size: landscape }} }}
</style>{slides}<script>
let at = Number(location.hash.slice(1)) || 1, all = document.querySelectorAll("section");
function show(n) {{ at = Math.max(1, Math.min(all.length, n)); location.hash = at;
  all.forEach((s, i) => s.classList.toggle("on", i + 1 === at)); }}
addEventListener("keydown", e => {{
  if (["ArrowRight", "ArrowDown", "PageDown", " "].includes(e.key)) show(at + 1);
  else if (["ArrowLeft", "ArrowUp", "PageUp"].includes(e.key)) show(at - 1);
  else if (e.key === "Home") show(1); else if (e.key === "End") show(all.length);
  else if (e.key === "n") document.body.classList.toggle("notes"); }});
show(at);</script></html>
"""


def with_pictures(text, folder):
    """The HTML with its pictures in it. Raises ValueError where one is missing."""
    def inside(found):
        path = folder / html.unescape(found[1])
        if not path.is_file():
            raise ValueError(f"the picture {path} is missing")
        return f'src="data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"'
    return re.sub(r'src="([^":]+)"', inside, text)


def made(source, folder):
    """The text of slides.md -> the page."""
    render, slides = MarkdownIt().enable("table").render, []
    parts = re.split(r"^---$", source, flags=re.M)
    for number, part in enumerate(parts, 1):
        seen, _, notes = part.partition("\n???\n")
        slides.append(f"<section>{render(seen)}" + f"<aside>{render(notes)}</aside>" * bool(notes)
                      + f"<small>{number} / {len(parts)}</small></section>")
    title = re.search(r"^# (.+)", source, re.M)[1]
    return with_pictures(PAGE.format(title=html.escape(title), slides="\n".join(slides)), folder)


def main(argv=None):
    p = argparse.ArgumentParser(prog="slides.py", description=__doc__.split("\n")[0])
    p.add_argument("--out", type=Path, default=Path("build/slides.html"))
    args = p.parse_args(argv)
    try:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(made(SOURCE.read_text(), SOURCE.parent))
    except (OSError, ValueError) as error:
        print(f"slides.py: {error}", file=sys.stderr)
        return 2
    print(args.out)


if __name__ == "__main__":
    sys.exit(main())
