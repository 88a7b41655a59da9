"""What is asked, and whether an answer is right.

problems.py   the problems of a run and their prompts: called once, at the start
sources.py    where they come from: generators, files, the hub
verifier.py   +1 or -1 for a completion, called after every step; answers.py: reads the answer
generated.py  Reasoning Gym's own rules; sandbox.py, sandbox_child.py: programs and unit tests

scalerl.py calls load_problems and the verifier, and nothing else in here. On a first reading this
folder may be ignored: a problem is a question with a gold answer, and a reward is +1 or -1.
"""

from tasks.problems import Problem, Problems, load_problems, load_task
from tasks.verifier import TaskError, Verifier, verify

__all__ = ["Problem", "Problems", "TaskError", "Verifier", "load_problems", "load_task", "verify"]
