"""service.py: a submission, answering questions inside of the sandbox (values.py is outside).

It reads a line from its input, {"call": name, "args": {...}}, calls that function of calls.py, and
writes a line, {"value": ...} or {"error": one sentence}. Nothing here is trusted: the submission
runs in this very process and may change all of it. What it cannot reach is the truth.

The files of the exercises are loaded a statement at a time. One that raises is named with its
number, and our statement of that name takes its place: other exercises go on.
"""
import __future__
import ast
import base64
import importlib.util
import json
import linecache
import mmap
import os
import re
import resource
import shutil
import signal
import socket
import sys
import traceback

TREE = "/tmp/tree"
STATEMENT_S = 10                # of CPU time, of a statement at the top level of a file
problems = []                   # statements that did not run: "loss.py, line 3: NameError: ..."


def definition(tree, name):
    """(the body that holds it, its place there, or None) of "f" or "Class.f"."""
    body = tree.body
    *classes, leaf = name.split(".")
    for part in classes:
        found = [node for node in body if isinstance(node, ast.ClassDef) and node.name == part]
        if not found:
            return None, None
        body = found[-1].body
    places = [i for i, node in enumerate(body) if getattr(node, "name", None) == leaf]
    return body, (places[-1] if places else None)


def with_ours(theirs, ours, names):
    """Put our definitions of these functions, other exercises', into the student's file."""
    for name in names:
        source, place = definition(ours, name)
        target, at = definition(theirs, name)
        if target is None:
            continue                    # the class is missing: ours takes its place later
        node = source[place]
        for each in ast.walk(node):     # a line of ours has no number in their file
            if hasattr(each, "lineno"):
                each.lineno = each.end_lineno = target[at].lineno if at is not None else 1
                each.col_offset = each.end_col_offset = 0
        target[slice(at, at + 1) if at is not None else slice(len(target), None)] = [node]


def mended(text, path):
    """The syntax tree of a student's file. What is no Python is cut out, a function or a statement
    at a time, and said: the rest of the file is graded."""
    lines = text.split("\n")
    for _ in range(30):
        try:
            return ast.parse("\n".join(lines) + "\n")
        except (SyntaxError, ValueError) as error:
            number = min(max(getattr(error, "lineno", 1) or 1, 1), len(lines))
            said = f"{path}, line {number}: SyntaxError: {getattr(error, 'msg', error)}"
        problems.append(said)
        indent = len(lines[number - 1]) - len(lines[number - 1].lstrip())
        first, name = number - 1, ""
        for i in range(number - 1, -1, -1):             # the function around it, if there is one
            found = re.match(r"( *)(?:async +)?def +(\w+)", lines[i])
            if found and (len(found[1]) < indent or i == number - 1):
                first, indent, name = i, len(found[1]), found[2]
                break
            if lines[i].strip() and not lines[i].startswith((" ", "\t", ")", "]", "}")):
                first, indent = i, 0
                break
        last = number
        while last < len(lines) and (not lines[last].strip() or lines[last][:indent + 1].isspace()
                                     or lines[last].lstrip().startswith((")", "]", "}"))):
            last += 1
        stub = f"def {name}(*args, **kwargs): raise SyntaxError({said!r})" if name else "pass"
        lines[first:last] = [" " * indent + stub] + [""] * (last - first - 1)
    return ast.parse("")


def names_of(node):
    """The names that a statement defines."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    found = {node.name} if hasattr(node, "name") else set()
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        found |= {each.id for each in ast.walk(node)
                  if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return found


def told(error, first="", line=0):
    """An error in one sentence, with the last line of the student's files that it came through."""
    where = (f"{first}, line {line}" if first else "")
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename in SUBMISSION["sources"] or frame.filename in SUBMISSION["extra"]:
            where = f"{frame.filename}, line {frame.lineno}"
    try:
        text = str(error)[:300]
    except BaseException:
        text = ""
    return f"{where}: {type(error).__name__}: {text}".removeprefix(": ")


class Files:
    """Imports the files of the exercises, as the student wrote them."""

    def find_spec(self, name, path=None, target=None):
        file = name.replace(".", "/") + ".py"
        if file in SUBMISSION["sources"]:
            return importlib.util.spec_from_loader(name, self, origin=file)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        file = module.__spec__.origin
        with open(f"{TREE}/{file}") as f:
            ours = ast.parse(f.read())
        text = SUBMISSION["sources"][file]
        # What inspect shows, and what torch.jit.script reads, is their text and not ours.
        for shown in (file, f"{TREE}/{file}"):
            linecache.cache[shown] = len(text), None, text.splitlines(keepends=True), shown
        theirs = mended(text, file)
        with_ours(theirs, ours, SUBMISSION["others"].get(file, ()))
        by_name = {name: node for node in ours.body for name in names_of(node)}
        flags = 0
        for node in theirs.body:
            if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                for alias in node.names:
                    flags |= getattr(__future__, alias.name).compiler_flag
        module.__file__ = f"{TREE}/{file}"

        def run(node):
            code = compile(ast.Module([node], []), file, "exec", flags, dont_inherit=True)
            signal.setitimer(signal.ITIMER_PROF, STATEMENT_S)
            try:
                exec(code, module.__dict__)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
        for node in theirs.body:
            try:
                run(node)
            except BaseException as error:
                problems.append(told(error, file, node.lineno))
                for name in names_of(node) & {*by_name}:
                    run(by_name[name])
        for name, node in by_name.items():
            if name not in module.__dict__:
                run(node)


def limit_memory(more):
    """From now on no more address space than there is, and `more` bytes. How much there is we find
    by trying: the sandbox has no /proc."""
    low, high = 0, 1 << 47
    while high - low > 1 << 20:
        middle = (low + high) // 2
        resource.setrlimit(resource.RLIMIT_AS, (middle, resource.RLIM_INFINITY))
        try:
            mmap.mmap(-1, 4096).close()
            high = middle
        except (OSError, MemoryError):
            low = middle
    resource.setrlimit(resource.RLIMIT_AS, (high + more, high + more))


def too_long(*_):
    raise TimeoutError(f"this statement takes longer than {STATEMENT_S} s")


def wait_and_fork(control):
    """The libraries, once; then a child for each exercise, one at a time."""
    import numpy                                        # noqa: F401
    import scipy.optimize                               # noqa: F401
    import torch
    try:
        import accelerate                               # noqa: F401
        from transformers import (AutoModelForCausalLM, AutoTokenizer, DynamicCache,  # noqa: F401
                                  LlamaConfig, LlamaForCausalLM)
    except Exception:
        pass                                            # exercises that need none of it go on
    torch.set_num_threads(1)
    control.send(b"ready")
    while True:
        said, pipes, *_ = socket.recv_fds(control, 100, 2)
        if said == b"fork":
            child = os.fork()
            if not child:
                control.close()
                answer_questions(*pipes)
                os._exit(0)
            for each in pipes:
                os.close(each)
            control.send(b"forked")
        elif said == b"end":
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            for each in os.scandir("/tmp"):             # the next one finds nothing of this one
                if each.is_dir(follow_symlinks=False):
                    shutil.rmtree(each)
                else:
                    os.unlink(each)
            control.send(b"ended")
        else:
            return


def answer_questions(read, write):
    """A child: it lays its own walls, and only then takes in what a student wrote."""
    questions, answers = os.fdopen(read, "rb"), os.fdopen(write, "wb")
    import calls
    import wire
    encode, decode = wire.encode, wire.decode
    for name in ("calls", "wire"):                      # these names are free for students
        del sys.modules[name]
    sys.path.remove("/grader")
    SUBMISSION.update(json.loads(questions.readline()))
    for path, text in [*SUBMISSION.pop("tree").items(), *SUBMISSION["extra"].items()]:
        try:
            os.makedirs(os.path.dirname(f"{TREE}/{path}"), exist_ok=True)
            with open(f"{TREE}/{path}", "w") as file:
                file.write(text)
        except (OSError, ValueError) as error:          # there is room for 64 MB
            problems.append(f"{path} cannot be written: {error}")
    sys.modules["__main__"].filter_system_calls(base64.b64decode(SUBMISSION.pop("steps")))
    signal.signal(signal.SIGPROF, too_long)
    limit_memory(SUBMISSION["memory"])
    nothing = os.open("/dev/null", os.O_RDWR)
    for stream in (0, 1, 2):                            # what a student prints goes nowhere
        os.dup2(nothing, stream)
    sys.meta_path.insert(0, Files())
    sys.path.insert(0, TREE)
    answers.write(b'{"value": "ready"}\n')
    answers.flush()
    for line in questions:
        try:
            asked = decode(line)
            call = getattr(calls, asked["call"])
            answer = encode(dict(value=call(**asked["args"]), problems=problems))
        except BaseException as error:
            answer = encode(dict(error=told(error), problems=problems))
        answers.write(answer)
        answers.flush()


SUBMISSION = {}
wait_and_fork(socket.socket(fileno=CONTROL))            # noqa: F821  values.PROGRAM sets it
