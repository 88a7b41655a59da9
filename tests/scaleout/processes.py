"""Helpers for tests of processes: wait for something, and see a whole tree of them end."""

import time

import psutil

LIMIT_S = 60                                # nothing here takes longer; a hang fails


def until(true, what, limit_s=LIMIT_S):
    deadline = time.monotonic() + limit_s
    while not (result := true()):
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.02)
    return result


def tree(process):
    """All that runs below it, with it. A process keeps its identity here even if its pid is used
    again later."""
    try:
        root = psutil.Process(process.pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def ended(process):
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:            # it has ended between the two questions
        return True


def gone(processes):
    return all(map(ended, processes))
