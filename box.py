"""Inside the box: sandbox.py starts this file in namespaces of its own, as a process of one test.

It reads a program from standard input, builds a root file system with nothing to find, sets the
limits, gives up every right, says so in a file, and runs the program in this very process. Two
starts of Python cost twice as much, which is also why this file imports so little: json alone would
be a third of the time of a short test. Failures are tracebacks on standard error and an exit code
that is not 0; without that word it was the box that failed, not the program.
"""

import ctypes
import os
import resource
import struct
import sys

# <sys/mount.h>, <linux/prctl.h>, <linux/capability.h>
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
MS_BIND, MS_MOVE, MS_REC = 4096, 8192, 16384
PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 22, 24, 38
CAPABILITY_VERSION_3 = 0x20080522

LIBC = ctypes.CDLL(None, use_errno=True)


def inside():
    """Reads the header, locks the door, runs the program."""
    header = read_exactly(int(read_exactly(12))).decode()
    numbers, steps, name, arguments, program = header.split("\n", 4)
    ready, unsafe, stranger, *limits = map(int, numbers.split())
    cpu_s, memory_bytes, processes, file_bytes = limits
    if not unsafe:
        build_root()
    for what, amount in (
        (resource.RLIMIT_CPU, cpu_s),  # hard: SIGKILL; a first process ignores SIGXCPU
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (amount, amount))
    if not unsafe:
        drop_rights(stranger)
    filter_system_calls(bytes.fromhex(steps))
    os.write(ready, b"!")
    os.close(ready)  # before the program: it cannot say that its box failed, nor that it did not
    sys.argv[:] = ["solution.py"]
    code = compile(program, "solution.py", "exec")
    if name:
        call(code, name, arguments)
    else:
        exec(code, {"__name__": "__main__"})


def read_exactly(size):
    """Bytes from the file behind standard input, not one more: the rest is the program's."""
    data = b""
    while len(data) < size:
        data += os.read(0, size - len(data))
    return data


def call(code, name, arguments):
    """Writes the function's value as JSON, as its arguments are; what it prints goes nowhere.

    The names that LeetCode's problems take for granted are there, as LiveCodeBench has them.
    """
    import json

    arguments = json.loads(arguments)  # before the program runs, which may change json
    result = os.dup(1)
    os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
    namespace = {"__name__": "solution"}
    exec("from typing import *\nfrom collections import *\nfrom math import *\n"
         "from functools import *\nfrom itertools import *\nfrom heapq import *\n"
         "from bisect import *\nimport math, collections, itertools, heapq, bisect, functools\n"
         "import string, re, random, sys", namespace)  # fmt: skip
    exec(code, namespace)
    function = namespace.get(name) or getattr(namespace["Solution"](), name)
    os.write(result, json.dumps(function(*arguments)).encode())


def build_root():
    """A root with Python's library and nothing else, in memory; the old one is out of reach.

    The working folder becomes the root. Mount points are made under the same names as outside, so
    that the paths which this interpreter has already looked up stay true.
    """
    root = os.getcwd()
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=16m,nr_inodes=1000,mode=755")
    library = os.path.join(sys.base_prefix, "lib")
    for path in dict.fromkeys(("/usr/lib", "/usr/lib64", "/lib", "/lib64", library, "/dev/null")):
        inner = root + path
        if os.path.lexists(inner) or not os.path.exists(path):
            continue
        os.makedirs(os.path.dirname(inner), exist_ok=True)
        if os.path.islink(path):
            os.symlink(os.readlink(path), inner)
            continue
        if os.path.isdir(path):
            os.mkdir(inner)
        else:
            os.close(os.open(inner, os.O_CREAT))
        mount(path, inner, None, MS_BIND | MS_REC)
        if path != "/dev/null":
            mount(None, inner, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.mkdir(root + "/tmp")
    os.chmod(root + "/tmp", 0o1777)
    os.chdir(root)
    mount(root, "/", None, MS_MOVE)
    os.chroot(".")
    os.chdir("/tmp")


def mount(source, target, kind, flags, data=None):
    encoded = [None if x is None else x.encode() for x in (source, target, kind, data)]
    source, target, kind, data = encoded
    if LIBC.mount(source, target, kind, ctypes.c_ulong(flags), data):
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} on {target}: {os.strerror(number)}")


def drop_rights(stranger):
    """No capability, now or after exec; and the user id `stranger`, if it is not 0."""
    for capability in range(64):
        LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails above the kernel's last one
    if stranger:
        os.setgroups([])
        os.setgid(stranger)
        os.setuid(stranger)
    header, nothing = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if LIBC.capset(header, nothing):
        raise OSError(ctypes.get_errno(), "capabilities could not be dropped")


def filter_system_calls(steps):
    """From now on every system call passes this filter, as sandbox.system_call_filter made it."""
    steps = ctypes.create_string_buffer(steps, len(steps))
    program = struct.pack("HP", len(steps) // 8, ctypes.addressof(steps))
    if LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or LIBC.prctl(PR_SET_SECCOMP, 2, program, 0, 0):
        raise OSError(ctypes.get_errno(), "the kernel takes no filter of system calls (seccomp)")


if __name__ == "__main__":
    inside()
