"""Inside the sandbox: sandbox.py starts this file, one process a test.

It reads a program from standard input, sets limits, gives up its rights, reports that in a file,
and runs the program in this very process: a second start of Python would double the cost of a short
test. Hence few imports. Without the report it was the sandbox that failed, and not the program.
"""

import builtins
import ctypes
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
    # Not one byte more than the header: the rest of standard input is the program's.
    size, header = int(os.read(0, 12)), b""
    while len(header) < size:
        header += os.read(0, size - len(header))
    numbers, steps, name, arguments, program = header.decode().split("\n", 4)
    ready, stranger, cpu_s, memory_bytes, processes, file_bytes = map(int, numbers.split())
    # bubblewrap has its own way to end this process with the caller; `unsafe` has only this.
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # Soft and hard at once: past the CPU time comes SIGKILL, which cannot be caught.
    for what, amount in {"CPU": cpu_s, "AS": memory_bytes, "NPROC": processes,
                         "FSIZE": file_bytes, "NOFILE": 64, "CORE": 0}.items():  # fmt: skip
        resource.setrlimit(getattr(resource, f"RLIMIT_{what}"), (amount, amount))
    if stranger:  # from root: the two capabilities that were left for this go with it
        os.setgroups([])
        os.setgid(stranger)
        os.setuid(stranger)
    filter_system_calls(bytes.fromhex(steps))
    os.write(ready, b"!")
    os.close(ready)  # before the program, which can then neither give nor take back this report
    sys.argv[:] = ["solution.py"]
    builtins.exit = builtins.quit = sys.exit  # `site`, which we skip (-S), would make them
    code = compile(program, "solution.py", "exec")
    if name:
        call(code, name, arguments)
    else:
        exec(code, {"__name__": "__main__"})


def call(code, name, arguments):
    """Writes the function's value as JSON, as its arguments are; what it prints goes nowhere."""
    import json

    arguments = json.loads(arguments)  # before the program runs, which may change json
    result = os.dup(1)
    os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
    sys.setrecursionlimit(50_000)  # LiveCodeBench's
    namespace = {"__name__": "solution"}
    for module in PRELUDE:
        exec(f"from {module} import *", namespace)
    for module in PRELUDE:
        exec(f"import {module}", namespace)
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
