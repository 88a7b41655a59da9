"""Inside the sandbox: sandbox.py starts this file, one process a test.

It reads its request from a file, sets limits, gives up its rights, empties the file to report that,
and runs the program in this very process: a second start would double the cost of a short test."""
import builtins
import ctypes
import json
import marshal
import os
import resource
import signal
import struct
import sys

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 22, 24, 38
LIBC = ctypes.CDLL(None, use_errno=True)
# What LeetCode's problems take for granted: LiveCodeBench imports the contents of these modules,
# then the modules. builtins near the end: math's pow is not Python's.
PRELUDE = ("string re datetime collections heapq bisect copy math random statistics itertools "
           "functools operator io sys json builtins typing").split()  # fmt: skip


def main():
    give_up_capabilities()
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # bubblewrap has its own way
    with open(int(sys.argv[1]), "r+b") as request:
        limits, steps, program, name, arguments, readable = marshal.load(request)
        # Soft and hard at once: past the CPU time comes SIGKILL, which cannot be caught.
        for what, amount in limits.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{what}"), (amount, amount))
        if readable:
            close_files(readable)
        filter_system_calls(steps)
        request.truncate(0)  # before the program, which can then neither give nor take back this
    sys.argv[:] = ["solution.py"]
    builtins.exit = builtins.quit = sys.exit  # `site`, which we skip (-S), would make them
    code = compile(program, "solution.py", "exec")
    sys.setrecursionlimit(50_000)  # LiveCodeBench's
    sys.set_int_max_str_digits(0)
    # They stand among the builtins: so the namespace has only what the program itself sets.
    prelude = dict(vars(builtins))
    exec("\n".join(f"from {module} import *" for module in PRELUDE), prelude)
    exec(f"import {', '.join(PRELUDE)}", prelude)
    prelude["open"] = lambda file, *how, **options: open(  # in here is no /dev/stdin
        os.dup(0) if file == "/dev/stdin" else file, *how, **options)
    namespace = {"__name__": "solution" if name else "__main__", "__builtins__": prelude}
    if name:  # the output is the function's value as JSON; what it prints goes nowhere
        result = os.dup(1)
        os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
        sys.modules["solution"] = sys  # any: dataclasses looks its classes' module up
    exec(code, namespace)
    if name:
        solution = namespace["Solution"]() if "Solution" in namespace else None
        function = getattr(solution, name, None) or namespace[name]
        os.write(result, json.dumps(function(*arguments)).encode())


def give_up_capabilities():
    """Root's rights, for good: without namespaces root could mount, or set the clock."""
    for capability in range(64):
        LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    if LIBC.capset(struct.pack("Ii", 0x20080522, 0), bytes(24)):
        raise OSError(ctypes.get_errno(), "the capabilities cannot be given up")


def close_files(readable):
    """From now on no file is opened but those below `readable`, to be read, and /dev/null
    (Landlock). The masks and numbers are those of <linux/landlock.h>."""
    version = LIBC.syscall(444, None, 0, 1)  # landlock_create_ruleset
    if version < 1:
        raise OSError(ctypes.get_errno(), "the kernel has no Landlock")
    # Every right that this version knows is taken; files, TCP ports; signals and abstract sockets.
    rights = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1
    taken = struct.pack("QQQ", rights, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    rules = LIBC.syscall(444, taken, len(taken), 0)
    for path, right in (*((path, 4 | 8) for path in readable), ("/dev/null", 2 | 4)):
        if os.path.exists(path):
            file = os.open(path, os.O_PATH)
            if LIBC.syscall(445, rules, 1, struct.pack("=Qi", right, file), 0):
                raise OSError(ctypes.get_errno(), f"Landlock does not take {path}")
            os.close(file)
    LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if rules < 0 or LIBC.syscall(446, rules, 0):
        raise OSError(ctypes.get_errno(), "Landlock takes no rules")
    os.close(rules)


def filter_system_calls(steps):
    """From now on every system call passes this filter, as sandbox.system_call_filter made it."""
    steps = ctypes.create_string_buffer(steps, len(steps))
    program = struct.pack("HP", len(steps) // 8, ctypes.addressof(steps))
    if LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or LIBC.prctl(PR_SET_SECCOMP, 2, program, 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel takes no filter of system calls (seccomp)")


if __name__ == "__main__":
    main()
