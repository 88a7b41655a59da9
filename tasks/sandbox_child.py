"""Inside the sandbox: sandbox.py starts this file, one process a test.

It reads its request from a file, sets limits, gives up its rights, empties the file to report that,
and runs the program in this very process: a second start of Python would double the cost of a short
test. Hence few imports. Without the report it was the sandbox that failed, and not the program.
"""

import builtins
import ctypes
import marshal
import os
import resource
import signal
import struct
import sys

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38  # <linux/prctl.h>
LIBC = ctypes.CDLL(None, use_errno=True)
# The names that LeetCode's problems take for granted: LiveCodeBench imports the contents of these
# modules, then the modules. builtins near the end: math's pow is not Python's, nor io's open.
PRELUDE = ("string re datetime collections heapq bisect copy math random statistics itertools "
           "functools operator io sys json builtins typing").split()  # fmt: skip


def main():
    # bubblewrap has its own way to end this process with the caller; `unsafe` has only this.
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with open(int(sys.argv[1]), "r+b") as request:
        limits, steps, program, name, arguments = marshal.load(request)
        # Soft and hard at once: past the CPU time comes SIGKILL, which cannot be caught.
        for what, amount in limits.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{what}"), (amount, amount))
        filter_system_calls(steps)
        request.truncate(0)  # before the program, which can then neither give nor take back this
    sys.argv[:] = ["solution.py"]
    builtins.exit = builtins.quit = sys.exit  # `site`, which we skip (-S), would make them
    code = compile(program, "solution.py", "exec")
    if name:
        call(code, name, arguments)
    else:
        exec(code, {"__name__": "__main__"})


def call(code, name, arguments):
    """Writes the function's value as JSON; what it prints goes nowhere."""
    import json

    result = os.dup(1)
    os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
    sys.setrecursionlimit(50_000)  # LiveCodeBench's
    namespace = {"__name__": "solution"}
    for form in ("from {} import *", "import {}"):
        for module in PRELUDE:
            exec(form.format(module), namespace)
    exec(code, namespace)
    function = namespace.get(name) or getattr(namespace["Solution"](), name)
    os.write(result, json.dumps(function(*arguments)).encode())


def filter_system_calls(steps):
    """From now on every system call passes this filter, as sandbox.system_call_filter made it."""
    steps = ctypes.create_string_buffer(steps, len(steps))
    program = struct.pack("HP", len(steps) // 8, ctypes.addressof(steps))
    if LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or LIBC.prctl(PR_SET_SECCOMP, 2, program, 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel takes no filter of system calls (seccomp)")


if __name__ == "__main__":
    main()
