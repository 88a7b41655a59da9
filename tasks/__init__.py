"""What is asked, and whether an answer is right. scalerl.py calls load_problems and the verifier,
and nothing else in here: on a first reading this folder may be ignored. A problem is a question
with a gold answer, and a reward is +1 or -1."""

from tasks.problems import Problem, Problems, check_files, load_problems, load_task
from tasks.verifier import TaskError, Verifier, verify
