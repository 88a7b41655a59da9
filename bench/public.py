"""How good is the forecast on other people's curves?  (results/public, `make public`)

    python bench/public.py             # every forecast anew, into results/public/errors.csv
    python bench/public.py --tables    # the tables of the kept errors.csv alone
    python bench/public.py --bend      # the usable forecasts, by whether the bend had been seen

Each curve of results/public/curves.csv is cut at .3 and at .5 of its x. What lies before the cut is
fitted; the mean of the last fifth of the curve (3 points at least) is to be foretold:

    sigmoid   fit.py's default fit; its 90% interval is for a mean of so many noisy points
    naive     the mean of the last three fitted points
    line      least squares of y on log x over the last half of the fitted points after step 0,
              at least three of them; what it foretells is clipped to [0, 1]
    logit     the same for the logit of y, of a y clipped to [.01, .99]: 0 and 1 have none
    followed  what fit.py's first line said until the fifth round: the law, or the last value where
              the verdict says that nothing is better
    middle    of law, last value and line the one between the other two
    tested    what it was to say after it: the law, or the middle where the verdict is that one
    printed   what it says: the law where the verdict is "usable", else the middle

A forecast that cannot be made is an empty cell with its reason, and the row stays; means are over
the curves on which all of them exist. Interval and verdict stand there as they are today, as they
were before the third round, in which the first two were judged (lo_before, ...), as the interval
was from the third to the seventh (lo_third, ...), and with that the verdicts of the third
(verdict_third), of the fourth and fifth (verdict_fifth), of the sixth (verdict_sixth) and of the
seventh (verdict_seventh). A verdict of then that is today's, too, is an empty cell.
"""
import argparse
import contextlib
import csv
import sys
from pathlib import Path

import numpy as np
from scipy.special import expit, logit

sys.path.insert(0, str(Path(__file__).parent.parent))

import fit as law
import fitting.forecast
from fit import BadInput, fit_curve, line_at
from fitting.forecast import LAST_VALUE, RANGE, USABLE, doubts, judge

HERE = Path(__file__).parent.parent / "results" / "public"
CUTS = (0.3, 0.5)
FORECASTS = ("sigmoid", "naive", "line", "logit")
WAYS = (*FORECASTS, "followed")
KINDS = ("evaluations", "training", "robots")
CLIP = 0.01
VERDICTS = (USABLE, RANGE, LAST_VALUE)
ROUNDS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
JUDGED = ("_before", "_before", "_third", "_fifth", "_fifth", "_sixth", "_seventh", "")
CLEAR = {"_before": 0.95, "_third": 0.95, "_fifth": 0.8}     # see draws_verdict
BEFORE = {"LAW_ERROR": 0.3, "RUN_ERROR": 0.0}                # of fit.py, until the third round


# ---------------------------------------------------------------------------------- 1. one curve
def sources_of(*rounds):
    """{run: its row of sources.csv} of these rounds of the collection, from 1 on."""
    with open(HERE / "sources.csv", newline="") as file:
        return {row["run"]: row for row in csv.DictReader(file) if int(row["round"]) in rounds}


def curves():
    """{run: (x, y), each (n,) in order of x}, {run: its row of sources.csv}, of all rounds."""
    sources = sources_of(*range(1, len(ROUNDS) + 1))
    points = {run: [] for run in sources}
    with open(HERE / "curves.csv", newline="") as file:
        for row in csv.DictReader(file):
            points[row["run"]].append((float(row["x"]), float(row["y"])))
    return {run: np.array(sorted(pairs)).T for run, pairs in points.items()}, sources


def collapses(y, fitted, last):
    """Does the run fall for good after the cut? The rule of fit.py's warning, asked of the last
    `last` fitted points and all that follow: the mean of the end is below that of the best stretch
    of this length, by more than .02 and 3 standard errors. (median |difference| = .954 sigma)"""
    means = np.convolve(y[max(fitted - last, 0):], np.ones(last) / last, "valid")
    return bool(means.max() - means[-1] > noise_of(y, last))


def noise_of(y, last):
    """What two means of `last` points each must differ by: .02 and 3 standard errors."""
    return max(0.02, 3 * np.median(np.abs(np.diff(y))) / 0.954 * np.sqrt(2 / last))


def has_trend(y):
    """The rule of the collection: stretches of a fifth of the points, 3 at least; is the highest
    mean above the lowest by more than the noise?"""
    last = max(3, y.size // 5)
    means = np.convolve(y, np.ones(last) / last, "valid")
    return bool(means.max() - means.min() > noise_of(y, last))


def after_step_0(x, y):
    """The points that have a logarithm. Raises BadInput: fewer than two."""
    x, y = x[x > 0], y[x > 0]
    if np.unique(x).size < 2:
        raise BadInput("a line needs two points after step 0")
    return x, y


def logit_line(x, y, at):
    """The line in log x of the logit of y -> y at `at`."""
    x, y = after_step_0(x, y)
    half = max(3, x.size // 2)
    y = logit(np.clip(y[-half:], CLIP, 1 - CLIP))
    return expit(np.polyval(np.polyfit(np.log(x[-half:]), y, 1), np.log(at)))


def draws_verdict(fit, end, told, clear):
    """The verdict of the first five rounds: usable if more than this share of the interval's draws
    end on one side of the last value; what else it asked is asked today, by `judge`, which has
    `told`."""
    if told["verdict"] == LAST_VALUE:
        return LAST_VALUE
    ends = fit.futures(end, noise=True).mean(1)
    on_both = np.quantile(ends, 1 - clear) <= told["naive"] <= np.quantile(ends, clear)
    return RANGE if on_both or told["hi"] - told["lo"] > fitting.forecast.WIDEST else USABLE


def cut_line_verdict(told):
    """The verdict of the sixth round: its line was cut to [0, 1]. told: of `judge`."""
    if told["verdict"] == LAST_VALUE:
        return LAST_VALUE
    far = abs(told["law"] - told["line"]) >= abs(told["law"] - told["naive"])
    return RANGE if far or told["hi"] - told["lo"] > fitting.forecast.WIDEST else USABLE


class Moved(law.Fit):
    """A Fit with the interval of the third to the seventh round: whatever lies beyond the data was
    moved by one draw from N(0, .02), however far it lies."""

    def futures(self, C, noise=False):
        C = np.asarray(C, float)
        if self.no_interval:
            return np.empty((0, C.size))
        now = self.paths(self.C[-1:])
        of_law, of_run = np.random.default_rng(1).normal(0, 1, (2, *now.shape))
        errors = law.LAW_ERROR * of_law * (self.paths(C) - now) + law.RUN_ERROR * of_run
        return np.clip(self.paths(C, noise) + np.where(C > self.C[-1], errors, 0), 0, 1)


def moved(fit):
    return Moved(**vars(fit))


@contextlib.contextmanager
def before():
    """In here the intervals are those of before the third round."""
    now = {name: vars(law)[name] for name in BEFORE}
    try:
        vars(law).update(BEFORE)
        yield
    finally:
        vars(law).update(now)


def forecast(x, y, cut):
    """-> one row, a dict: forecasts minus what was measured, and the interval."""
    early, last = x <= cut * x[-1], max(3, x.size // 5)
    measured, end = y[-last:].mean(), x[-last:]
    row = dict(points=x.size, fitted=int(early.sum()), last=last, measured=measured,
               lo="", hi="", reason="", verdict=LAST_VALUE, lo_before="", hi_before="",
               lo_third="", hi_third="", verdict_before="", verdict_third="", verdict_fifth="",
               verdict_sixth="", verdict_seventh="")

    def sigmoid():
        fit = fit_curve(x, y, c_max=cut * x[-1])
        then, now = moved(fit), judge(fit, end)
        third = judge(then, end)
        with before():
            earlier = judge(then, end)
            verdicts = {"_before": draws_verdict(then, end, earlier, CLEAR["_before"])}
        for when in ("_third", "_fifth"):
            verdicts[when] = draws_verdict(then, end, third, CLEAR[when])
        verdicts |= {"_sixth": cut_line_verdict(third), "_seventh": third["verdict"]}
        row["verdict"] = now["verdict"]
        row.update({"verdict" + when: verdict for when, verdict in verdicts.items()
                    if verdict != now["verdict"]})
        for when, told in (("", now), ("_third", third), ("_before", earlier)):
            if not fit.no_interval:
                row.update({"lo" + when: told["lo"], "hi" + when: told["hi"]})
        row["reason"] = fit.no_interval and f"no interval: {fit.no_interval}"
        return fit.curve(end)

    ways = dict(sigmoid=sigmoid, naive=lambda: y[early][-3:],
                line=lambda: np.clip(line_at(*after_step_0(x[early], y[early]), end), 0, 1),
                logit=lambda: logit_line(x[early], y[early], end))
    for name in FORECASTS:
        try:
            row[name] = ways[name]().mean() - measured
        except BadInput as error:
            row[name], row["reason"] = "", f"{row['reason']} {name}: {error}".strip()
    row["collapse"] = int(collapses(y, row["fitted"], last))
    return {name: round(float(cell), 4) if isinstance(cell, float) else cell
            for name, cell in row.items()}


# ----------------------------------------------------------------------------------- 2. tables
def table_row(name, cut, rows):
    """Markdown: n, mean and median |error| of each forecast, intervals that hold, collapses."""
    rows = [row for row in rows if row["cut"] == cut]
    whole = [row for row in rows if all(row[way] != "" for way in FORECASTS)]
    errors = np.abs([[row[way] for row in whole] for way in WAYS])               # (5, n)
    if not whole:
        errors = np.full((len(WAYS), 1), np.nan)
    inside = [row["lo"] <= row["measured"] <= row["hi"] for row in rows if row["lo"] != ""]
    n = str(len(rows)) if len(whole) == len(rows) else f"{len(whole)} of {len(rows)}"
    cells = [name, f"{cut:g}"[1:], n,
             *(f"{each.mean():.3f}"[1:] for each in errors),
             *(f"{np.median(each):.3f}"[1:] for each in errors),
             f"{sum(inside)} of {len(inside)}", f"{sum(row['collapse'] for row in rows):g}"]
    return "| " + " | ".join(cells) + " |"


def halves():
    """{run: "choosing" or "test"} of the first round: repositories in the order of their names,
    every other one."""
    sources = sources_of(1)
    names = sorted({row["repository"] for row in sources.values()})
    return {run: ("choosing", "test")[names.index(row["repository"]) % 2]
            for run, row in sources.items()}


def lines(parts):
    """A table of {name: rows}, the half first."""
    head = ("| curves | cut | n | " + " | ".join(WAYS) + " | median: " + " | ".join(WAYS)
            + " | hold | fall |\n|---" + "|--:" * 14 + "|\n")
    return head + "\n".join(table_row(name, cut, parts[name]) for cut in CUTS[::-1]
                            for name in parts if any(row["cut"] == cut for row in parts[name]))


def tables(rows):
    """Three tables of the first round: by kind; by step 0, and by what nobody knows at the cut,
    the fall; by the half of the repositories that the rules were chosen on, or tested on, and by
    the verdict."""
    kinds = {kind: [row for row in rows if row["kind"] == kind] for kind in KINDS} | {"all": rows}
    where = {"fall": [row for row in rows if row["collapse"]]}
    for step_0, name in (("yes", "step 0 measured"), ("no", "no step 0")):
        where[name] = [row for row in rows if row["step_0"] == step_0]
        where[f"{name}, no fall"] = [row for row in where[name] if not row["collapse"]]
    half, judged = halves(), {}
    for name in ("choosing", "test"):
        part = [row for row in rows if half[row["run"]] == name]
        judged[f"{name} half, no fall"] = [row for row in part if not row["collapse"]]
        judged |= {f"{name} half: {word}": [row for row in part if row["verdict"] == word]
                   for word in VERDICTS}
    return [lines(part) for part in (kinds, where, judged)]


def beside(*rounds):
    """A table of several rounds, one below the other. rounds: the rows of each."""
    parts = [by_way(rows) for rows in rounds]
    return lines({f"{name}, {number} round": part[name]
                  for name in parts[0] for number, part in zip(ROUNDS, parts)})


def by_way(rows):
    """{name: those of the rows}: by kind, by the fall, by the verdict."""
    ways = {"evaluations": lambda row: row["kind"] == "evaluations",
            "training": lambda row: row["kind"] == "training",
            "all": lambda row: True,
            "fall": lambda row: row["collapse"],
            "no fall": lambda row: not row["collapse"],
            "step 0 measured, no fall": lambda row: row["step_0"] == "yes" and not row["collapse"]}
    ways |= {word: lambda row, word=word: row["verdict"] == word for word in VERDICTS}
    return {name: [row for row in rows if way(row)] for name, way in ways.items()}


def kept(number=1, judged=None):
    """The rows of errors.csv of a round: numbers where there are numbers, "" for an empty cell.
    judged: "_before", with interval and verdict of before the third round, "_third" to "_seventh",
    "" with today's; None: as after the seventh round, and a later one with today's."""
    text = ("run", "kind", "step_0", "reason")
    judged = judged if judged is not None else "_seventh" if number <= 7 else ""
    ends = judged if judged in ("", "_before") else "_third"
    sources = sources_of(number)
    with open(HERE / "errors.csv", newline="") as file:
        rows = [{name: cell if name in text or "verdict" in name or not cell else float(cell)
                 for name, cell in row.items()} for row in csv.DictReader(file)
                if row["run"] in sources]
    for row in rows:
        row["verdict"] = row["verdict" + judged] or row["verdict"]
        row |= {"lo": row["lo" + ends], "hi": row["hi" + ends]}
        three = sorted(row[way] for way in ("sigmoid", "naive", "line") if row[way] != "")
        row["middle"] = three[1] if len(three) == 3 else ""
        last = row["verdict"] == LAST_VALUE
        row |= {"followed": row["naive" if last else "sigmoid"],
                "tested": row["middle" if last else "sigmoid"],
                "printed": row["sigmoid" if row["verdict"] == USABLE else "middle"]}
    return rows


def holding(rows):
    """The intervals that hold, of those that exist, and their median width."""
    rows = [row for row in rows if row["lo"] != ""]
    width = np.median([row["hi"] - row["lo"] for row in rows]) if rows else np.nan
    return (f"{sum(row['lo'] <= row['measured'] <= row['hi'] for row in rows)} of {len(rows)}",
            f"{width:.3f}"[1:])


def called_usable(number, cut, judged=None):
    """-> the rows called usable, and the number of all rows."""
    rows = [row for row in kept(number, judged) if row["cut"] == cut]
    return [row for row in rows if row["verdict"] == USABLE], len(rows)


def wider_intervals():
    """The table of the third round: without a fall, what holds and how wide it is, then which are
    called usable and what holds of these; before, and in that round."""
    told = ["| curves | cut | hold, before | width | then | width | usable, before | of them hold "
            "| then | of them hold |", "|---" + "|--:" * 9 + "|"]
    for number, name in enumerate(ROUNDS[:3], 1):
        for cut in CUTS[::-1]:
            cells = []
            for judged in ("_before", "_third"):
                rows = [row for row in kept(number, judged) if row["cut"] == cut]
                usable = [row for row in rows if row["verdict"] == USABLE]
                cells.append((holding([row for row in rows if not row["collapse"]]),
                              (f"{len(usable)} of {len(rows)}", holding(usable)[0].split()[0])))
            told.append(f"| {name} round | {cut:g} | ".replace("| 0.", "| .") + " | ".join(
                [*cells[0][0], *cells[1][0], *cells[0][1], *cells[1][1]]) + " |")
    return "\n".join(told)


def usable_by_rule(old, new, parts):
    """The table of the later rounds: by an older and a newer rule (as in `kept`), which are
    called usable, how many of their intervals hold, median errors of law and last value. parts:
    {name: numbers of rounds}"""
    names = {"_third": "third round", "_fifth": "fifth round", "_sixth": "sixth round",
             "_seventh": "seventh round"}
    told = ["| curves | cut " + "".join(f"| usable, {names[rule]} | hold | law | last value "
                                        for rule in (old, new)) + "|", "|---" + "|--:" * 9 + "|"]
    for name, numbers in parts.items():
        for cut in CUTS[::-1]:
            cells = []
            for judged in (old, new):
                groups = [called_usable(number, cut, judged) for number in numbers]
                rows, n = sum((some for some, _ in groups), []), sum(n for _, n in groups)
                errors = [f"{np.median(np.abs([row[way] for row in rows])):.3f}"[1:] if rows else ""
                          for way in ("sigmoid", "naive")]
                cells += [f"{len(rows)} of {n}", holding(rows)[0].split()[0], *errors]
            told.append(f"| {name} | {cut:g} | ".replace("| 0.", "| .") + " | ".join(cells) + " |")
    return "\n".join(told)


FIFTH = {"sigmoid": "the law", "naive": "the last value", "line": "the line in log x",
         "followed": "printed until then", "tested": "printed in the test",
         "printed": "printed now", "middle": "the middle everywhere"}
SIXTH = {name: FIFTH[name] for name in ("sigmoid", "naive", "line")} | {
    "printed": "what is printed", "middle": "the middle everywhere"}


def forecasts_beside(names, judged, parts):
    """The table of the fifth round and later ones: mean and median absolute error of these
    forecasts {way: name}, and on how many curves each is nearer than the last value, or farther.
    judged: the rule of the verdict, as in `kept`; parts: {name: numbers of rounds}"""
    told = ["| curves | cut | n | forecast | mean | median | nearer than the last value in "
            "| farther in |", "|---|--:|--:|---" + "|--:" * 4 + "|"]
    for part, numbers in parts.items():
        for cut in CUTS[::-1]:
            rows = [row for number in numbers for row in kept(number, judged)
                    if row["cut"] == cut and all(row[way] != "" for way in FORECASTS)]
            last = np.abs([row["naive"] for row in rows])
            for way, name in names.items():
                errors = np.abs([row[way] for row in rows])
                beside = ["", ""] if way == "naive" else [
                    str((errors < last - 1e-9).sum()), str((errors > last + 1e-9).sum())]
                told.append(" | ".join([
                    f"| {part}", f"{cut:g}"[1:], str(len(rows)), name, f"{errors.mean():.3f}"[1:],
                    f"{np.median(errors):.3f}"[1:], *beside]) + " |")
    return "\n".join(told)


def error_by_distance():
    """The table of the eighth round: without a fall, what holds and how wide it is, with the error
    of the run that the third to the seventh round had, and with today's."""
    told = ["| curves | cut | hold, until the seventh round | width | hold, today | width |",
            "|---" + "|--:" * 5 + "|"]
    for name, numbers in (("the first seven rounds", range(1, 8)), ("the eighth round", (8,))):
        for cut in CUTS[::-1]:
            cells = [cell for judged in ("_seventh", "") for cell in holding(
                [row for number in numbers for row in kept(number, judged)
                 if row["cut"] == cut and not row["collapse"]])]
            told.append(f"| {name} | {cut:g} | ".replace("| 0.", "| .") + " | ".join(cells) + " |")
    return "\n".join(told)


def overview():
    """A row for each round: mean absolute errors of the law, of the last value and of what is
    printed today; intervals without a fall, and the verdict, by the rules of the round itself."""
    told = ["| round | curves | from the half: law | last value | printed | intervals | usable, of "
            "them hold | from 30%: law | last value | printed | intervals |", "|---" + "|--:" * 10
            + "|"]
    for number, (name, judged) in enumerate(zip(ROUNDS, JUDGED), 1):
        cells = []
        for cut in CUTS[::-1]:
            today = [row for row in kept(number, "") if row["cut"] == cut and row["middle"] != ""]
            cells += [f"{np.mean([abs(row[way]) for row in today]):.3f}"[1:]
                      for way in ("sigmoid", "naive", "printed")]
            cells.append(holding([row for row in kept(number, judged)
                                  if row["cut"] == cut and not row["collapse"]])[0])
        usable, n = called_usable(number, CUTS[-1], judged)
        cells.insert(4, f"{len(usable)}, {holding(usable)[0].split()[0]}")
        told.append(f"| {name} | {n} | " + " | ".join(cells) + " |")
    return "\n".join(told)


def by_the_bend():
    """The table of docs/fit.md: today's usable forecasts by whether `doubts` says that the bend has
    hardly been seen. Asked after all rounds, of the curves on which the verdict was chosen."""
    told = ["| the bend, from the | n | the curve | last value | line in log C | the curve's mean "
            "error with its sign | intervals that hold |", "|---" + "|--:" * 6 + "|"]
    data, parts = curves()[0], {}
    for row in (row for number in range(1, 9) for row in kept(number, "")):
        if row["verdict"] == USABLE:
            x, y = data[row["run"]]
            fit = fit_curve(x, y, c_max=row["cut"] * x[-1], bootstrap=1)    # no interval: no doubt
            seen = not any(why.startswith("the bend") for why in doubts(fit))
            parts.setdefault((-row["cut"], not seen), []).append(row)
    for (cut, unseen), rows in sorted(parts.items()):
        cells = [f"{np.median(np.abs([row[way] for row in rows])):.3f}"[1:]
                 for way in ("sigmoid", "naive", "line")]
        sign = f"{np.mean([row['sigmoid'] for row in rows]):+.3f}".replace("0.", ".")
        told.append(f"| {'hardly seen' if unseen else 'seen'}, {'half' if cut == -.5 else '30%'} | "
                    + " | ".join([str(len(rows)), *cells, sign, holding(rows)[0]]) + " |")
    return "\n".join(told)


def later_tables():
    """Those of the pages of the fourth round and later ones."""
    first, every = {"the first three rounds": (1, 2, 3)}, (1, 2, 3, 4, 5)
    return [usable_by_rule("_third", "_fifth", first | {
                "the fourth round": (4,), "the fifth round": (5,), "both": (4, 5)}),
            lines(by_way(kept(4, "_fifth"))),
            forecasts_beside(FIFTH, "_fifth", {
                "the first four rounds": (1, 2, 3, 4), "the fifth round": (5,), "all": every}),
            lines(by_way(kept(5, "_fifth"))),
            usable_by_rule("_fifth", "_sixth", {
                "the first five rounds": every, "the sixth round": (6,)}),
            forecasts_beside(SIXTH, "_sixth", {"the sixth round": (6,), "all six": (*every, 6)}),
            lines(by_way(kept(6, "_sixth"))),
            usable_by_rule("_sixth", "_seventh", {
                "the first six rounds": (*every, 6), "the seventh round": (7,)}),
            forecasts_beside(SIXTH, "_seventh", {
                "the seventh round": (7,), "all seven": range(1, 8)}),
            lines(by_way(kept(7))),
            error_by_distance(),
            forecasts_beside(SIXTH, "", {"the eighth round": (8,), "all eight": range(1, 9)}),
            lines(by_way(kept(8)))]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--tables", action="store_true", help="print those of the kept errors.csv")
    p.add_argument("--bend", action="store_true", help="print the table by the bend alone")
    args = p.parse_args()
    if args.bend:
        return print(by_the_bend())
    if not args.tables:
        data, sources = curves()
        rows = [dict(run=run, kind=sources[run]["kind"], step_0=sources[run]["step_0"], cut=cut)
                | forecast(*data[run], cut) for run in data for cut in CUTS]
        with open(HERE / "errors.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    print("Mean absolute errors of the forecasts, then medians; 90% intervals that hold what "
          "was measured,\nof those that exist; runs that fall for good after the cut.\n")
    first, second = kept(1, "_before"), kept(2, "_before")
    print("\n\n".join([overview(), *tables(first), beside(first, second), wider_intervals(),
                       lines(by_way(kept(3, "_third"))), *later_tables()]))


if __name__ == "__main__":
    main()
