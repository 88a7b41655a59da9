"""tour.py: run tour.ipynb and store what its cells print and draw in it (`python -m course.tour`).

No Jupyter is needed: the cells run one after another in this process. To be called again when the
page or what it shows has changed; tests/course/test_tour.py runs the cells without storing them.
"""
import ast
import base64
import contextlib
import io
import json
import os
import sys
from pathlib import Path

PAGE = Path(__file__).with_name("tour.ipynb")
DPI = 72                    # nine pictures in 300 kB


def run(source, names):
    """Run a cell -> its outputs in the form of a notebook."""
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure
    tree, said = ast.parse(source), io.StringIO()
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(said):
        exec(compile(tree, "cell", "exec"), names)
        shown = last and eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    figures = [plt.figure(number) for number in plt.get_fignums()]
    figures += [shown] if isinstance(shown, Figure) and shown not in figures else []
    outputs = [dict(output_type="stream", name="stdout", text=said.getvalue().splitlines(True))]
    for figure in figures:
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=DPI, metadata={"Software": None})
        outputs.append(dict(output_type="display_data", metadata={}, data={
            "image/png": base64.b64encode(picture.getvalue()).decode() + "\n",
            "text/plain": ["<Figure>"]}))
    plt.close("all")
    return outputs[not said.getvalue():]


def main():
    import matplotlib
    matplotlib.use("Agg")
    os.environ["OMP_NUM_THREADS"] = "1"
    page, names = json.loads(PAGE.read_text()), {}
    os.chdir(PAGE.parent)
    code = [cell for cell in page["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, 1):
        cell["outputs"], cell["execution_count"] = run("".join(cell["source"]), names), number
        print(f"cell {number} of {len(code)}", file=sys.stderr)
    text = json.dumps(page, indent=1, ensure_ascii=False)
    for place, name in ((str(Path(names["folder"].path).resolve().parents[1]), "/tmp/tour"),
                        (str(names["ROOT"]), "scalerl")):
        text = text.replace(place, name)            # of one machine, and different in each run
    PAGE.write_text(text + "\n")


if __name__ == "__main__":
    main()
