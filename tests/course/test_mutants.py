"""The mutants fit the code, the tests kill them, and a dealt bug does not give itself away."""

import ast
import json
import re
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

from course import mutants
from course.mutants import BadInput, Mutant

ALL = mutants.load()
SILENT = [name for name, mutant in ALL.items() if mutant.silent]
# What the course promises, in the words of mutants.toml.
PROMISED = """padded_length last_micro_batch_logged one_sided_fp32_head ratio_not_detached
    one_version_a_sample std_over_filtered_groups prompts_interleaved
    logprobs_at_another_temperature cap_from_below cache_block_of_an_older_version
    evaluation_in_compute end_token_masked
    retired_asked_again_in_the_epoch R0_forgotten""".split()


@pytest.mark.parametrize("mutant", ALL.values(), ids=lambda mutant: mutant.name)
def test_a_patch_fits_exactly_once_leaves_python_and_names_tests_that_are_there(mutant):
    text = (ROOT / mutant.file).read_text()
    assert text.count(mutant.old) == 1, "the code has changed: mend mutants.toml"
    changed = text.replace(mutant.old, mutant.new)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
    assert max(map(len, changed.splitlines())) <= 100           # or its width would give it away
    assert mutant.tests and len(mutant.story) > 40
    for test in mutant.tests:
        file, function = test.split("::")
        assert f"\ndef {function}(" in (ROOT / file).read_text(), test


def test_there_are_forty_bugs_in_every_part_and_all_that_are_promised():
    assert len(ALL) >= 40 and set(PROMISED) <= set(ALL) and len(SILENT) == 10
    files = {mutant.file for mutant in ALL.values()}
    assert {"loss.py", "sampler.py", "scalerl.py", "fit.py", "engines/packed.py",
            "engines/head.py", "engines/kv_cache.py"} <= files
    assert any(file.startswith("tasks/") for file in files)


def test_the_table_has_a_row_for_every_mutant_and_none_is_left_alive():
    text = (ROOT / "course" / "mutants.md").read_text()
    assert re.findall(r"^\| (\w+)(?: \(silent\))? \| `", text, re.M) == list(ALL)
    assert f"{len(ALL)} real bugs" in text and f"one at a time: {len(ALL)} are killed" in text
    for mutant in ALL.values():
        row = next(line for line in text.splitlines() if line.startswith(f"| {mutant.name} "))
        assert row.endswith(f"| {', '.join(t.split('::')[1] for t in mutant.tests)} |")


def files_of(folder):
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")
            if path.is_file()}


def test_a_deal_repeats_itself_and_does_not_hold_its_answer(tmp_path):
    """Not by a word, not by the logs, not by the time of the file that was changed. Exactly one
    file is another than the project's; the tests and the course would tell: they are not there."""
    for folder in "ab":
        mutants.deal(7, tmp_path / folder)
    name = mutants.bug_of(7)
    first, second = (files_of(tmp_path / folder) for folder in "ab")
    assert {path: file.read_bytes() for path, file in first.items()} == {
        path: file.read_bytes() for path, file in second.items()}
    added = {"TASK.md", "logs/healthy/metrics.jsonl", "logs/mystery/metrics.jsonl"}
    assert added < set(first)
    changed = [path for path in set(first) - added
               if first[path].read_bytes() != (ROOT / path).read_bytes()]
    assert changed == [ALL[name].file]
    assert first[changed[0]].stat().st_mtime_ns == (ROOT / changed[0]).stat().st_mtime_ns
    assert not {Path(path).parts[0] for path in first} & {"tests", "course", ".git", "results"}
    for path, file in first.items():
        text = file.read_bytes().decode(errors="replace")
        assert not any(bug.name in text or bug.story in text for bug in ALL.values()
                       if bug.silent), path
    assert first["logs/mystery/metrics.jsonl"].read_bytes() == (
        ROOT / "course" / "silent" / f"{name}.jsonl").read_bytes()
    with pytest.raises(BadInput, match="is there already: name another folder"):
        mutants.deal(7, tmp_path / "a")


def test_of_an_instructors_folder_git_alone_says_what_is_dealt_out(tmp_path, monkeypatch):
    """Marks and lists of the class lie beside the project, under any name."""
    project = tmp_path / "project"
    for name in ("loss.py", "docs/page.md", "results/all.csv", "tests/test_x.py", ".ci/run"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(name)
    monkeypatch.setattr(mutants, "ROOT", project)
    with pytest.raises(BadInput, match="git must tell"):
        mutants.copy_project(tmp_path / "none")
    subprocess.run("git init -q && git add -A", shell=True, check=True, cwd=project)
    (project / "marks").mkdir()
    (project / "marks" / "anna.txt").write_text("bad")
    (project / "class_list.csv").write_text("anna")
    mutants.copy_project(tmp_path / "dealt", leave_out=("tests",))
    found = [path for path in (tmp_path / "dealt").rglob("*") if path.is_file()]
    assert sorted(str(path.relative_to(tmp_path / "dealt")) for path in found) == [
        "docs/page.md", "loss.py"]


def test_every_silent_bug_is_dealt_out_by_some_seed():
    assert {mutants.bug_of(seed) for seed in range(40)} == set(SILENT)


# ---------------------------------------------------------------------------------------------
# The logs of the silent bugs: each shows what its story says, and the run went to its end


def rows(name):
    path = ROOT / "course" / "silent" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()][1:]


def column(name, key):
    return [row[key] for row in rows(name) if key in row]


def changed_columns(name):
    pairs = list(zip(rows("healthy"), rows(name)))
    return {key for ours, theirs in pairs for key in ours | theirs
            if ours.get(key) != theirs.get(key)}


def cost(name):
    """(FLOPs of the steps after an evaluation, FLOPs of the others), both without the first."""
    total = column(name, "compute/flops")
    steps = [after - before for before, after in zip(total, total[1:])]     # of steps 2, 3, ...
    return [x for i, x in enumerate(steps, 2) if i % 10 == 1], [
        x for i, x in enumerate(steps, 2) if i % 10 != 1]


def mean(values):
    return sum(values) / len(values)


GRADIENT, LAG_0 = "grad_norm", "mismatch/mean_abs_dlogp/lag_0"
SYMPTOMS = {
    "cap_from_below": lambda name: column(name, GRADIENT)[0] > 4 * column("healthy", GRADIENT)[0],
    "last_micro_batch_logged": lambda name: (
        "loss" in changed_columns(name)
        and not {"pass_rate", GRADIENT, "tokens/trained"} & changed_columns(name)),
    "ratio_recomputed": lambda name: (
        {*column(name, "ratio/mean/lag_4")} == {1.0} != {*column("healthy", "ratio/mean/lag_4")}),
    "prompts_interleaved": lambda name: (
        mean(column(name, "pass_rate")[-10:]) < mean(column("healthy", "pass_rate")[-10:]) - 0.1
        and changed_columns(name) >= {GRADIENT}),
    "zero_variance_kept": lambda name: (
        column(name, "prompts/trained") == column(name, "prompts/consumed")
        and max(column(name, "frac_reward_zero_std")) > 0),
    "gradients_pile_up": lambda name: (
        mean(column(name, GRADIENT)[-10:]) > 1.5 * mean(column("healthy", GRADIENT)[-10:])),
    "evaluation_in_compute": lambda name: (
        changed_columns(name) == {"compute/flops", "compute/tokens"}
        and min(a - b for a, b in zip(cost(name)[0], cost("healthy")[0])) > 0
        and cost(name)[1] == pytest.approx(cost("healthy")[1], rel=1e-3)),
    # Nothing is learned otherwise, and the tokens are the same: they are called younger.
    "one_version_a_sample": lambda name: (
        mean(column(name, "lag/mean")) < mean(column("healthy", "lag/mean")) - 0.5
        and not {"pass_rate", GRADIENT, "tokens/trained"} & changed_columns(name)),
    # In step 1 nothing is stale: sampler and trainer differ by rounding, or by a bug.
    "logprobs_at_another_temperature": lambda name: column(name, LAG_0)[0] > 1e-2,
    "one_sided_fp32_head": lambda name: 1e-2 > column(name, LAG_0)[0] > 1e-4}


@pytest.mark.parametrize("name", SILENT)
def test_the_log_of_a_silent_bug_shows_what_its_story_says(name):
    assert [row["step"] for row in rows(name)] == list(range(1, 41))
    assert SYMPTOMS[name](name)
    assert not SYMPTOMS[name]("healthy")


# ---------------------------------------------------------------------------------------------
# The command itself

STD = ALL["std_of_rewards"].tests[0]


@pytest.mark.days(4, turn=3)
def test_a_claim_kills_a_crash_does_not_and_a_harmless_change_survives():
    """Through the command's own function, in real copies with real runs of pytest."""
    of_loss = {"file": "loss.py", "story": "made up for this test", "tests": [STD]}
    made = [
        ALL["group_std"],
        Mutant("harmless", old="    centered = rewards - rewards.mean(1, keepdim=True)",
               new="    centered = -(rewards.mean(1, keepdim=True) - rewards)", **of_loss),
        Mutant("no_import", old="import torch\n", new="import no_such_module\n", **of_loss),
        Mutant("no_name", old="variance = centered.square()", new="variance = cntered.square()",
               **of_loss)]
    said = []
    verdicts = mutants.check(made, said.append)
    assert {name: verdict for name, (verdict, _) in verdicts.items()} == {
        "group_std": "killed", "harmless": "survived", "no_import": "crashed",
        "no_name": "crashed"}
    assert "did not run: pytest ended with" in verdicts["no_import"][1]
    assert "NameError" in verdicts["no_name"][1] and len(said) == 5
    text = mutants.table(made, verdicts)
    assert "4 real bugs" in text and "one at a time: 1 are killed" in text
    assert "| survived: " in text and text.count("| crashed: ") == 2
    old = re.sub(r"last on \S+,", "last on 2020-01-01,", text)
    assert old != text == mutants.table(made, verdicts, old)
    again = mutants.table(made, {"group_std": verdicts["group_std"]}, old)
    assert again == old             # of rows that were not run the day stays
    assert (ROOT / "loss.py").read_text().count("import torch\n") == 1          # the tree is whole


@pytest.mark.days(4, turn=1)
def test_a_test_that_fails_without_any_bug_kills_nothing():
    with pytest.raises(BadInput, match="^tests/test_loss.py::test_of_nothing does not pass on the "
                                       "unchanged project"):
        mutants.check([Mutant("m", "loss.py", "NORMS = ", "NORMS  = ", "a story",
                              ["tests/test_loss.py::test_of_nothing"])], lambda _: None)


def test_a_patch_that_no_longer_fits_is_an_error_in_one_sentence(tmp_path, capsys):
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    for old, times in (("x = 1", 2), ("y", 0)):
        sentence = f"its `old` occurs {times} times in a.py, and must exactly once"
        with pytest.raises(BadInput, match=f"^mutant m: {sentence}: mend mutants.toml$"):
            Mutant("m", "a.py", old, "", "a story", []).apply(tmp_path)
    for words, sentence in ((["nobody"], "no mutant is called nobody"),
                            (["--deal", "1"], "--deal needs --out, the folder to make"),
                            (["--logs", "--model", str(tmp_path)], "is no model")):
        assert mutants.main(words) == 2
        assert sentence in capsys.readouterr().err
