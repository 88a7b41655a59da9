"""A run's folder: what it says of the run, how it goes on after a kill, and who else is told."""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT

from artifacts import checkpoint, run_folder
from artifacts.resume import problems_hash
from artifacts.run_folder import Progress, RunFolder
from artifacts.settings import LAUNCHED, make_config, read_toml
from command.main import main
from config import Config, ConfigError
from tasks.problems import load_splits
from tasks.sources import make_problem


class Alone:
    rank, size = 0, 1

    def all(self, value):
        return [value]


def save(folder, step):
    """A checkpoint of this step in a RunFolder."""
    checkpoint.save(folder.checkpoints / f"step_{step}", torch.nn.Linear(3, 1),
                    SimpleNamespace(state={}), Alone(),
                    {"step": step, "logs": folder.log_sizes()})


def damage(folder):
    """One bit of a file in it."""
    path = next(folder.glob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def read(folder, name="metrics.jsonl"):
    return [json.loads(line) for line in (folder.path / name).read_text().splitlines()]


@pytest.fixture
def make(tmp_path, monkeypatch):
    """A new RunFolder, made; closed in the end."""
    monkeypatch.chdir(tmp_path)
    made = []

    def make(name="r", **settings):
        folder = RunFolder(Config(model="m", name=name, **settings))
        folder.make("cpu")
        made.append(folder)
        return folder
    yield make
    for folder in made:
        folder.close()


def again(folder):
    """The same run, after the process that had it has ended."""
    folder.close()
    return RunFolder(folder.config)


# ---------------------------------------------------------------------------------------------
# A new run


def test_a_folder_holds_what_is_needed_to_know_what_was_run(make):
    folder = make(task_options={"size": 7}, lr=3e-5)
    assert make_config(read_toml(folder.path / "config.toml")) == folder.config
    for name in ("scalerl.py", "artifacts/run_folder.py", "tasks/verifier.py"):
        assert (folder.path / "source" / name).read_text() == (ROOT / name).read_text()
    versions = json.loads((folder.path / "versions.json").read_text())
    assert versions["torch"] in (torch.__version__, torch.__version__.partition("+")[0])
    assert versions["math-verify"]
    assert versions["device"] == f"CPU, {torch.get_num_threads()} threads"
    assert folder.checkpoints.is_dir()


def test_the_files_of_own_rewards_are_kept_and_two_of_one_name_both(make, tmp_path, monkeypatch):
    """Without its reward nobody knows what a run was about; the file is changed for the next."""
    files = {}
    for place in ("ours", "theirs"):
        path = tmp_path / place / "my_task.py"
        path.parent.mkdir()
        path.write_text(f"# of {place}")
        files[path] = path.read_text()
    (tmp_path / ".#loss.py").symlink_to("nobody@nowhere.1")     # Emacs' lock: it ended the run
    monkeypatch.setattr(run_folder, "CODE", tmp_path)
    folder = make(task="ours/my_task.py + toy", eval_tasks=str(tmp_path / "theirs" / "my_task.py"))
    for path in files:
        path.write_text("# changed after the run began")
    for path, text in files.items():
        kept = folder.path / "source" / "own" / path.resolve().relative_to(path.anchor)
        assert kept.read_text() == text


def test_a_run_is_there_as_soon_as_its_settings_are_and_not_before(make, monkeypatch):
    """A process killed while it makes the folder leaves one that may be made again."""
    def killed(*_):
        raise KeyboardInterrupt
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run_folder, "to_toml", killed)
        make("k")
    assert (Path("runs/k") / "versions.json").exists()
    make("k2")
    RunFolder(Config(model="m", name="k")).make("cpu")
    assert RunFolder(Config(model="m", name="k")).begun
    assert not RunFolder(Config(model="m", name="new")).begun and not Path("runs/new").exists()


def test_a_run_that_starts_over_is_kept_under_another_name(make, capsys):
    """--fresh may be one word too many. A run that is being trained stays where it is."""
    for time in (1, 2):
        folder = make(lr=time / 8)
        logged(folder, range(3))
        save(folder, 2)
        with pytest.raises(ConfigError, match="^runs/r: another process is training it$"):
            RunFolder(folder.config).set_aside()
        folder.close()
        RunFolder(folder.config).set_aside()
        old = Path(f"runs/r-old-{time}")
        assert capsys.readouterr().out == f"runs/r starts over; what it was is now {old}.\n"
        assert make_config(read_toml(old / "config.toml")).lr == time / 8
        assert checkpoint.read_state(old / "checkpoints" / "step_2")["step"] == 2
        assert not RunFolder(folder.config).begun


def test_a_run_is_not_set_aside_for_a_task_whose_file_is_missing(make, capsys):
    """A typo in the new command moved the finished run away, and then refused."""
    folder = make()
    logged(folder, range(3))
    folder.close()
    words = ["--model", "m", "--name", "r", "--fresh", "--task"]
    for task in ("nowhere.jsonl", "nowhere.py", "toy+nowhere.csv"):
        assert main([*words, task]) == 2
        assert "nowhere" in capsys.readouterr().err
        assert RunFolder(folder.config).begun and [*Path("runs").iterdir()] == [folder.path]


@pytest.mark.parametrize("words, said", [
    ("--think-max 12288", "the model has 256"),
    ("--heldout-prompts 100000", "heldout_prompts = 100000"),
    ("--engine auto --servers 1 --vllm-url http://127.0.0.1:1", "give one of the two")])
def test_a_run_is_not_set_aside_by_a_start_that_is_refused_later(words, said, micro, make, capsys):
    """For model or problems, or by the launcher. The old command would begin a new run then."""
    folder = make()
    logged(folder, range(3))
    folder.close()
    assert main(["--model", str(micro), "--name", "r", "--fresh", "--engine", "transformers",
                 "--interrupt-phrase", "", *"--think-min 9 --think-max 17 --answer-tokens 4 "
                 "--prompt-tokens 64 --heldout-prompts 8".split(), *words.split()]) == 2
    assert said in capsys.readouterr().err
    assert RunFolder(folder.config).begun and [*Path("runs").iterdir()] == [folder.path]


def test_servers_that_run_keep_the_file_of_their_addresses_when_the_run_starts_over(make):
    """Trainers with --fresh waited half an hour for the file that they had moved away."""
    folder = make()
    (folder.path / "servers_10.0.0.2.txt").write_text("http://10.0.0.2:8000\n")
    folder.close()
    RunFolder(folder.config).set_aside()
    assert [*Path("runs/r").iterdir()] == [Path("runs/r/servers_10.0.0.2.txt")]


def test_a_finished_run_says_so_until_it_is_to_take_more_steps(make):
    folder = make(steps=7)
    assert folder.done() == ""
    (folder.path / "done").write_text("7 Done: 7 steps.")
    assert folder.done() == ("runs/r is finished. Done: 7 steps. The same command with --steps N, "
                             "N above 7, trains on; --fresh starts over.")
    assert RunFolder(Config(model="m", name="r", steps=8)).done() == ""
    retired = "Done after 5 steps: every prompt has retired (pass rate >= 0.9)."
    (folder.path / "done").write_text(f"7 {retired}")        # more steps would find no prompt
    for steps in (7, 8):
        assert RunFolder(Config(model="m", name="r", steps=steps)).done() == (
            f"runs/r is finished. {retired} --fresh starts over.")
    (folder.path / "done").write_text("")                   # killed while it was written
    assert folder.done() == ""


def test_the_addresses_of_the_launchers_own_servers_are_not_kept(make, monkeypatch):
    """They end with this run, and others listen on their ports by then. The user's own are, also
    when the launcher has started nothing but trainers."""
    monkeypatch.setenv(LAUNCHED, "http://127.0.0.1:1")
    own = make("own", vllm_url="http://127.0.0.1:1")
    monkeypatch.setenv(LAUNCHED, "")
    users = make("users", vllm_url="http://127.0.0.1:1")
    monkeypatch.delenv(LAUNCHED)
    others = make("others", vllm_url="http://127.0.0.1:1")
    assert [make_config(read_toml(folder.path / "config.toml")).vllm_url
            for folder in (own, users, others)] == ["", *["http://127.0.0.1:1"] * 2]
    assert own.config.vllm_url == "http://127.0.0.1:1"


def test_a_checkout_is_known_by_its_commit_and_what_is_none_says_nothing(tmp_path, monkeypatch):
    """A copy of the code inside another repository must not be given that one's commit."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", tmp_path]
    copy = tmp_path / "copy"
    copy.mkdir()
    (tmp_path / "loss.py").write_text("1")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"], ["tag", "v1"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    for code, changed, found in ((tmp_path, "1", head), (copy, "1", ""),
                                 (tmp_path, "2", f"{head}-dirty")):
        (tmp_path / "loss.py").write_text(changed)
        monkeypatch.setattr(run_folder, "CODE", code)
        assert run_folder.commit() == found
    monkeypatch.setenv("PATH", "")
    assert run_folder.commit() == ""


def test_two_processes_never_train_one_run(make):
    folder = make()
    log = '{"step": 1}\n{"step": 2}\n'
    (folder.path / "metrics.jsonl").write_text(log)
    other = RunFolder(folder.config)
    with pytest.raises(ConfigError, match="^runs/r: another process is training it$"):
        other.rewind()
    assert (folder.path / "metrics.jsonl").read_text() == log
    folder.close()                                          # the lock ends with its process
    other.rewind()
    with open(folder.path / ".lock", "w") as third, pytest.raises(BlockingIOError):
        fcntl.flock(third, fcntl.LOCK_EX | fcntl.LOCK_NB)
    other.close()


@pytest.mark.parametrize("trouble", ["full", "read-only"])
def test_a_disk_that_is_full_or_read_only_for_a_moment_is_waited_for(trouble, make, monkeypatch,
                                                                     capsys):
    """And told once. One that stays so is left to the write, which says what is wrong."""
    folder, looks = make(), []

    def look(*_):
        looks.append(1)
        return trouble == "full" if len(looks) < 4 else trouble != "full"
    monkeypatch.setattr(run_folder.time, "sleep", lambda s: None)
    if trouble == "full":
        monkeypatch.setattr(run_folder.shutil, "disk_usage", lambda _: SimpleNamespace(
            free=0 if look() else 1e9))
    else:
        monkeypatch.setattr(run_folder.os, "access", look)
    folder.append("metrics.jsonl", {"step": 1})
    assert len(looks) == 4 and capsys.readouterr().err.count("waiting for a disk") == 1
    looks[:] = []
    monkeypatch.setattr(run_folder, "LOOKS", 3)
    for step in (2, 3):                                     # nobody waits twice in vain
        folder.append("metrics.jsonl", {"step": step})
        assert len(looks) == 3 and len(read(folder)) == step


def test_a_model_waits_for_as_much_room_as_it_takes(make, monkeypatch):
    """A disk that others fill mostly has a few KB left."""
    folder, weights, asked = make(), torch.nn.Linear(1000, 1000), []
    monkeypatch.setattr(folder, "wait_for_disk", asked.append)
    monkeypatch.setattr(run_folder.checkpoint, "save_model", lambda *_: None)
    folder.save_model(SimpleNamespace(model=weights, tokenizer=None, weights=lambda: ()), "model")
    assert asked[0] > 4 * 1_001_000


def test_a_file_system_without_locks_is_a_warning(make, monkeypatch, capsys):
    def flock(*_):
        raise OSError(38, "Function not implemented")
    monkeypatch.setattr(run_folder.fcntl, "flock", flock)
    assert make().begun
    assert "runs/r: no locks here (Function not implemented)" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------
# A run that goes on


def logged(folder, steps, evaluated=()):
    """Lines of these steps in the logs, and of these evaluations."""
    for step in steps:
        for name in ("metrics", "samples", "groups"):
            folder.append(f"{name}.jsonl", {"step": step, "of": name})
    for step in evaluated:
        folder.append("evals.jsonl", {"step": step})


def test_the_logs_of_a_resumed_run_end_with_its_checkpoint(make):
    """The step of the checkpoint stays, and the one that was being written is gone. An evaluation
    that was not done when the checkpoint was written is done again: once."""
    folder = make()
    logged(folder, range(4), (0, 3))
    save(folder, 3)
    logged(folder, range(4, 7))
    save(folder, 6)
    logged(folder, [7], [6])
    with open(folder.path / "metrics.jsonl", "a") as file:
        file.write('{"step": 8, "pa')
    (folder.path / "bad_step.jsonl").write_text("kept")
    folder = again(folder)
    path, state = folder.rewind()
    assert path == folder.checkpoints / "step_6" and state["step"] == 6
    for name in ("metrics", "samples", "groups"):
        assert read(folder, f"{name}.jsonl") == [{"step": i, "of": name} for i in range(7)]
    assert [line["step"] for line in read(folder, "evals.jsonl")] == [0, 3]
    assert (folder.path / "bad_step.jsonl").read_text() == "kept"
    folder.close()


def test_a_run_is_not_resumed_to_fewer_steps_than_it_has_taken(make):
    """It would be called done, and its config.toml would say so for good."""
    folder = make(steps=5)
    logged(folder, range(7), (0,))
    save(folder, 6)
    folder = again(folder)
    with pytest.raises(ConfigError, match="steps = 5: runs/r is at step 6 already"):
        folder.rewind()
    assert len(read(folder, "metrics.jsonl")) == 7
    folder.close()


@pytest.mark.parametrize("changed", ["a training question", "a held-out answer", "one more",
                                     "a template", ""])
def test_a_run_whose_problems_or_gold_answers_have_changed_is_not_resumed(make, changed):
    """Else one curve has two test sets, or a prompt two rewards, and nothing says so."""
    def run_on(*problems, prompts={"a": (1, 2)}):                                   # noqa: B006
        train, held, *more = (make_problem("mine", *pair) for pair in problems)
        return SimpleNamespace(problems=SimpleNamespace(
            train={train.id: train}, heldout={p.id: p for p in (held, *more)}, prompts=prompts))
    before = [("What is 1 + 2?", "3"), ("What is 4 + 5?", "9")]
    after = {"a training question": [("What is 1 + 3?", "4"), before[1]],
             "a held-out answer": [before[0], ("What is 4 + 5?", "10")],
             "one more": [*before, ("What is 6 + 8?", "14")]}.get(changed, before)
    folder = make(task="mine.jsonl")
    checkpoint.save(folder.checkpoints / "step_1", torch.nn.Linear(3, 1), SimpleNamespace(state={}),
                    Alone(), {"step": 1, "logs": {}, "problems": problems_hash(run_on(*before))})
    prompts = {"a": (1, 2, 3) if changed == "a template" else (1, 2)}
    (folder.path / "evals.jsonl").write_text('{"step": 1}\n')      # logged after the checkpoint
    found, run = again(folder), run_on(*after, prompts=prompts)
    run.trainer = SimpleNamespace(load=lambda path: 1 / 0)
    with pytest.raises(ConfigError if changed else ZeroDivisionError,
                       match="^task = 'mine.jsonl': problems, answers or prompts of runs/r have"
                       if changed else None):
        found.restore(run)
    assert (folder.path / "evals.jsonl").read_text() == ('{"step": 1}\n' if changed else "")
    found.close()


def test_a_task_file_that_has_moved_is_the_same_problem(tmp_path):
    """Another mount, another node: its path is part of what judges it, and no part of the hash."""
    def hashed(folder, n):
        path = tmp_path / folder / "mine.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"problems = [{{'question': 'Write a word.', 'n': {n}}}]\n"
                        "def reward(problem, text): return 1\n")
        problems, = load_splits(str(path), heldout=0)[:1]
        return problems_hash(SimpleNamespace(problems=SimpleNamespace(
            train={p.id: p for p in problems}, heldout={}, prompts={})))
    assert hashed("a", 5) == hashed("b", 5) != hashed("c", 6)


def test_a_preflight_that_was_killed_leaves_no_checkpoint_behind(make):
    folder = make()
    (folder.checkpoints / "preflight").mkdir()
    found = again(folder)
    found.rewind()
    assert not (folder.checkpoints / "preflight").exists()
    found.close()


def test_without_a_checkpoint_a_run_begins_again(make):
    folder = make()
    logged(folder, range(3), (0,))
    folder = again(folder)
    assert folder.resume_hint() == "the same command goes on from the first step"
    assert RunFolder(folder.config, fresh=True).resume_hint() == (
        "the same command, without --fresh, goes on from the first step")
    assert folder.rewind() == (None, None)
    assert all((folder.path / f"{name}.jsonl").read_text() == ""
               for name in ("metrics", "samples", "groups", "evals"))
    folder.close()


@pytest.mark.parametrize("left", ['{"step": 0}\n', '{"step": 0}\n{"st', '{"step": 0}\n{"step": 1}'])
def test_a_log_that_a_power_cut_has_shortened_keeps_its_whole_lines(left, make, capsys):
    """And the run says so. The next line was glued to half a one, which nobody can read."""
    folder = make()
    logged(folder, range(3))
    save(folder, 2)
    (folder.path / "metrics.jsonl").write_text(left)
    folder = again(folder)
    folder.rewind()
    folder.append("metrics.jsonl", {"step": 3})
    assert read(folder) == [{"step": 0}, {"step": 3}]
    assert "warning: runs/r/metrics.jsonl has lost its last lines" in capsys.readouterr().err
    folder.close()


def test_a_log_that_is_gone_is_told(make, capsys):
    folder = make()
    logged(folder, range(3))
    save(folder, 2)
    (folder.path / "metrics.jsonl").unlink()
    folder = again(folder)
    folder.rewind()
    assert "warning: runs/r/metrics.jsonl is gone; it begins again" in capsys.readouterr().err
    folder.close()


def test_from_a_damaged_checkpoint_a_run_falls_back_to_the_one_before(make, capsys):
    """In a sentence; the damaged one is kept under another name. With none left, nothing is
    changed, and nobody trains from the first step by mistake."""
    folder = make()
    logged(folder, range(4))
    save(folder, 3)
    logged(folder, range(4, 9))
    save(folder, 6)
    damage(folder.checkpoints / "step_6")
    folder = again(folder)
    assert folder.rewind()[0].name == "step_3" and len(read(folder)) == 4
    assert capsys.readouterr().err == (
        "warning: runs/r/checkpoints/step_6/model.safetensors does not match its checksum; it is "
        "now runs/r/checkpoints/damaged_step_6\n")
    assert {path.name for path in folder.checkpoints.iterdir()} == {"step_3", "damaged_step_6"}
    damage(folder.checkpoints / "step_3")
    folder = again(folder)
    with pytest.raises(ConfigError, match="step_3/model.safetensors does not match its checksum, "
                       "and runs/r has no other checkpoint; --fresh starts over"):
        folder.rewind()
    assert len(read(folder)) == 4 and (folder.checkpoints / "step_3").exists()
    folder.close()


@pytest.mark.parametrize("left", ["an empty folder", "the best", "nothing"])
def test_a_run_whose_checkpoints_were_deleted_keeps_its_logs_and_is_refused(make, left):
    """A finished run has an empty folder then, or none; one that was killed early has none yet, and
    at most one evaluation."""
    folder = make()
    logged(folder, range(4), [0, 2] if left == "the best" else [])
    save(folder, 3)
    shutil.rmtree(folder.checkpoints)
    if left == "an empty folder":
        folder.checkpoints.mkdir()
        (folder.path / "done").write_text("3 Done: 3 steps.")
    if left == "the best":
        (folder.checkpoints / "best").mkdir(parents=True)
    folder = again(folder)
    with pytest.raises(ConfigError, match="runs/r/checkpoints is empty or gone, and runs/r has no "
                       "other checkpoint; --fresh starts over"):
        folder.rewind()
    assert len(read(folder)) == 4
    folder.close()


def test_what_a_kill_left_half_done_is_put_right_before_it_is_read(make):
    folder = make()
    save(folder, 3)
    save(folder, 6)
    (folder.checkpoints / "step_6").rename(folder.checkpoints / ".step_9.tmp")
    (folder.checkpoints / ".step_9.tmp" / "checksums.json").unlink()
    for parent, name in ((folder.checkpoints, "best"), (folder.path, "model")):
        (parent / f".{name}.tmp").mkdir()
        (parent / f".{name}.tmp" / "checksums.json").write_text("{}")
    folder = again(folder)
    assert folder.rewind()[0].name == "step_3"
    assert {path.name for path in folder.checkpoints.iterdir()} == {"step_3", "best"}
    assert (folder.path / "model").exists()
    folder.close()


def test_the_last_two_checkpoints_are_kept_and_the_best(make, monkeypatch):
    """And none is written again where nothing has happened since."""
    folder, written = make(), []
    monkeypatch.setattr(run_folder, "state_of", lambda run: {})
    shutil.copytree(folder.path / "source", folder.checkpoints / "best")
    trainer = SimpleNamespace(save=lambda path, **_: (save(folder, run.step), written.append(path)))
    team = SimpleNamespace(saving=contextlib.nullcontext)
    for step, evaluated in ((8, 8), (9, 8), (10, 8), (10, 8), (10, 10), (11, 10)):
        run = SimpleNamespace(step=step, evaluated=evaluated, trainer=trainer, team=team,
                              generated=0, sampler=SimpleNamespace(),
                              pacer=SimpleNamespace(admitted=step))
        folder.save(run)
    assert [path.name for path in written] == ["step_8", "step_9", "step_10", "step_10", "step_11"]
    assert {path.name for path in folder.checkpoints.iterdir()} == {"step_10", "step_11", "best"}
    assert folder.resume_hint() == "the same command goes on from runs/r/checkpoints/step_11"


# ---------------------------------------------------------------------------------------------
# The progress line


RECORD = {"step": 7, "pass_rate": 0.4321, "completions/mean_length": 31.26,
          "completions/interrupted_frac": 0.25, "lag/mean": 1.26, "lag/max": 3,
          "ratio/mean": 1.0012, "ess": 0.987, "entropy": 0.4, "optimizer_step": True,
          "curriculum/active": 1999,
          "time/step_s": 0.5}


def test_in_a_file_the_first_every_tenth_and_the_last_step_have_a_line(capsys):
    """A log of 600 lines hides its evaluations."""
    with Progress(24) as progress:
        for step in range(1, 25):
            progress.show(RECORD | {"step": step})
        progress.show(RECORD | {"step": 20, "optimizer_step": False, "ratio/mean": None})
    lines = capsys.readouterr().out.splitlines()
    assert [line[:10] for line in lines] == ["step    1/", "step   10/", "step   20/", "step   24/",
                                             "step   20/"]
    assert lines[1] == ("step   10/24  pass 0.432  len 31.3  interrupted 0.25  lag 1.3/3  "
                        "ratio 1.001  ess 0.99  ent 0.40  left 1999  0.50s")
    assert lines[4] == ("step   20/24  pass 0.432  len 31.3  interrupted 0.25  lag 1.3/3  "
                        "no group to learn from: no optimizer step  left 1999  0.50s")


@pytest.mark.parametrize("bar", [False, True])
@pytest.mark.parametrize("lines", [False, True])
def test_every_tenth_step_has_a_line_unless_all_goes_to_a_terminal(bar, lines, monkeypatch, capsys):
    """`scalerl.py > log` in a terminal: the bar on it, and in the log more than evaluations."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: bar)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: not lines)
    with Progress(24) as progress:
        for step in range(1, 25):
            progress.show(RECORD | {"step": step})
    shown = capsys.readouterr()
    told = [int(line.split()[1].partition("/")[0]) for line in shown.out.splitlines()]
    assert told == ([1, 10, 20, 24] if lines or not bar else [])
    assert ("24/24" in shown.err) == bar


def test_on_a_terminal_it_is_a_bar_that_goes_on_where_the_run_does(monkeypatch, capsys):
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    with Progress(20, 6) as progress:
        progress.show(RECORD)
        assert progress.n == 7 and progress.total == 20
    shown = capsys.readouterr()
    assert shown.out == "" and "7/20" in shown.err and "interrupted 0.25" in shown.err
    assert os.linesep not in shown.err.rstrip()


def test_an_evaluation_shows_how_far_it_is_on_a_terminal_or_every_ten_minutes(monkeypatch, capsys):
    for terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)          # noqa: B023
        with Progress(16000, unit="sample") as progress:
            progress.update(700)
            shown = capsys.readouterr()
            assert not shown.out and ("sample/s" in shown.err) == terminal
            progress.start_t -= 601                 # ten minutes later
            progress.last_print_t -= 601
            progress.update(700)
        assert "1400/16000" in capsys.readouterr().err


@pytest.fixture
def by_clock(make, monkeypatch):
    """A folder that has just saved, a run that saves into it, the times at which it does, and the
    clock, a list of one, which the test moves."""
    folder, saves, now = make(), [], [1000.0]
    folder.saved_at = now[0]
    monkeypatch.setattr(run_folder.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(run_folder, "state_of", lambda run: {})
    run = SimpleNamespace(
        step=3, evaluated=0, generated=5, pacer=SimpleNamespace(admitted=7),
        sampler=SimpleNamespace(), team=SimpleNamespace(saving=contextlib.nullcontext),
        trainer=SimpleNamespace(save=lambda path, state: saves.append(now[0] - 1000.0)))
    return folder, run, saves, now


def test_a_checkpoint_is_as_old_as_save_minutes_says_before_the_next_one(by_clock):
    """In minutes, and never twice of one state."""
    folder, run, saves, now = by_clock
    for seconds in (60 * 7 - 1, 60 * 7 + 1, 60 * 14, 60 * 14 + 2, 60 * 29):
        now[0] = 1000.0 + seconds
        if seconds != 60 * 29:          # nothing is new then
            run.generated += 1
        folder.save(run, minutes=7)
    assert saves == [60 * 7 + 1, 60 * 14 + 2]


@pytest.mark.parametrize("training, expected", [(120.0, 300.5), (10_000.0, 210.5)])
def test_a_checkpoint_comes_before_a_training_step_that_would_make_the_last_one_too_old(
        training, expected, by_clock):
    """7 minutes, of which the last step's training took two: after five. It never comes more often
    than at half the time, or a run of long steps would do little else."""
    folder, run, saves, now = by_clock
    folder.training_s = training
    while not saves:
        now[0] += 0.5
        run.generated += 1
        folder.save(run, minutes=7)
    assert saves[0] in (expected - 0.5, expected)
