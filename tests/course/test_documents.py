"""What the course's README, guide and syllabus say of other files is so."""

import ast
import csv
import re
import statistics
import tomllib
from collections import defaultdict

import pytest
from conftest import ROOT

COURSE = ROOT / "course"
PAGES = {name: (COURSE / f"{name}.md").read_text() for name in ("README", "guide", "syllabus")}


def exercises():
    return tomllib.loads((COURSE / "exercises.toml").read_text())["exercise"]


def rows(page, first):
    """The cells of the table rows of a page whose first cell matches a pattern, by that cell."""
    found = [[cell.strip() for cell in line.split("|")[1:-1]]
             for line in PAGES[page].splitlines() if line.startswith("|")]
    return {row[0]: row[1:] for row in found if re.fullmatch(first, row[0])}


def rounded(x):
    return f"{x:.3f}".replace("0.", ".")


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file(page):
    links = [link for link in re.findall(r"\]\(([^)#]+)", PAGES[page]) if "://" not in link]
    links += re.findall(r"`((?:results|docs|tests|course)/[\w./-]+)`", PAGES[page])
    assert links
    for link in links:
        assert (COURSE / link).exists() or (ROOT / link).exists(), link


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "course/questions.md"])
def test_every_place_in_the_code_that_a_page_names_is_there(page):
    """"`loss.py::advantages`": a function, a class, or a method of one."""
    places = re.findall(r"`([\w/]+\.py)::([\w.]+)`", (ROOT / page).read_text())
    assert places
    for path, name in places:
        body = ast.parse((ROOT / path).read_text()).body
        for part in name.split("."):
            (found,) = [node for node in body if getattr(node, "name", None) == part]
            body = getattr(found, "body", [])


def test_the_reading_path_names_parts_that_the_files_have():
    """`loss.py` parts 2 to 4: these stand over rulers of the file."""
    path = re.findall(r"^\| [0-9]+ \| (.*?) \|", (ROOT / "README.md").read_text(), re.M)
    named = [(file, part) for cell in path for file in re.findall(r"`(\w+\.py)`", cell)
             for numbers in re.findall(r"parts? ([0-9](?: (?:to|and) [0-9])?)", cell)
             for part in re.findall("[0-9]", numbers)]
    assert len(named) >= 8
    for file, part in named:
        assert re.search(rf"^# -+ {part}\. ", (ROOT / file).read_text(), re.M), (file, part)


def test_there_are_twenty_questions_each_with_an_answer_and_its_place():
    questions = re.split(r"^\d+\. ", (COURSE / "questions.md").read_text(), flags=re.M)[1:]
    assert len(questions) == 20
    for question in questions:
        asked, answer = question.split("<details>")
        answer, places = answer.split("</details>")
        assert "?" in asked and len(answer) > 40 and "::" in places, asked


def test_the_table_has_every_exercise_with_its_page():
    table = rows("README", r"\d+")
    assert [*table] == [str(each["number"]) for each in exercises()]
    for each in exercises():
        assert f"]({each['page']})" in table[str(each["number"])][0]


def test_the_guide_has_every_exercise_with_its_points():
    text = PAGES["guide"].split("**Times of people")[0]
    points = {int(n): int(p) for n, p in re.findall(r"^\| (\d+) \|[^|]*\| (\d+) \|", text, re.M)}
    assert points == {each["number"]: each["points"] for each in exercises()}
    assert sum(each["points"] for each in exercises() if "elective" not in each) == 100
    assert "100 in all" in text


@pytest.mark.parametrize("page", sorted(path.name for path in COURSE.glob("[1-9]*_*.md")))
def test_a_page_ends_with_three_questions_and_says_of_each_claim_how_it_is_known(page):
    text = (COURSE / page).read_text()
    before, questions = text.split("## Three questions\n")
    items = re.split(r"^\d\. ", questions, flags=re.M)[1:]
    assert len(items) == 3
    for item in items:
        asked, answer = item.split("<details><summary>answer</summary>")
        assert "?" in asked and answer.rstrip().endswith("</details>") and len(answer) > 60
    claims = before.split("| claim | known how |\n|---|---|\n")[1].strip().splitlines()
    assert len(claims) >= 3
    for line in claims:
        _, claim, how, _ = line.split("|")
        assert re.match(" (proven|shown|published|open)", how), line

def test_the_demos_figures_are_those_of_the_committed_runs():
    runs = defaultdict(list)
    for row in csv.DictReader(open(ROOT / "results" / "demo" / "errors.csv")):
        if row["cut"] == "0.5":
            runs[row["toy"]].append((int(row["seed"]), float(row["measured"]),
                                     float(row["error"])))
    table = rows("guide", r"8|9|1\d")
    table = {toy: cells for toy, cells in table.items() if len(cells) == 3}
    assert set(table) == set(runs)
    for toy, (seeds, ends, errors) in table.items():
        each = sorted(runs[toy])
        assert seeds == ", ".join(str(seed) for seed, _, _ in each)
        assert [float(x) for x in ends.split(", ")] == pytest.approx(
            [end for _, end, _ in each], abs=0.0006)
        assert [float(x) for x in errors.split(", ")] == pytest.approx(
            [error for *_, error in each], abs=0.0006)
    spread = max(max(end for _, end, _ in each) - min(end for _, end, _ in each)
                 for each in runs.values())
    assert spread < 0.0075 and "within .007 of each other" in PAGES["guide"]


def test_the_stress_figures_and_their_intervals_are_those_of_the_committed_runs():
    """mean ± 2.13 s / √5 over five pairs, the rule of exercise 8."""
    ends = defaultdict(dict)
    for row in csv.DictReader(open(ROOT / "results" / "stress" / "runs.csv")):
        ends[row["recipe"]][row["toy"]] = float(row["end"])
    table = rows("guide", r"`\w+`")
    table = {name.strip("`"): cells for name, cells in table.items() if len(cells) == 6}
    assert set(table) == set(ends)
    for name, (mean, s, least_most, difference, interval, verdict) in table.items():
        values = [*ends[name].values()]
        assert mean == rounded(statistics.fmean(values)) and s == rounded(statistics.stdev(values))
        assert least_most == f"{rounded(min(values))}, {rounded(max(values))}"
        if name == "scalerl":
            continue
        pairs = [end - ends["scalerl"][toy] for toy, end in ends[name].items()]
        middle, half = statistics.fmean(pairs), 2.13 * statistics.stdev(pairs) / 5 ** 0.5
        assert float(difference) == pytest.approx(middle, abs=0.0006)
        low, high = map(float, interval.strip("[]").split(", "))
        assert (low, high) == pytest.approx((middle - half, middle + half), abs=0.0011)
        assert verdict == ("lower" if high < 0 else "higher" if low > 0 else "not decided")
