"""What is asked (problems.py, sources.py), and whether an answer is right (verifier.py, for which
answers.py reads the text, own_reward.py asks a function of the user's, and sandbox.py runs
programs).

scalerl.py calls load_problems and the verifier, and nothing else in here. On a first reading this
folder may be ignored: a problem is a question with a gold answer, and a reward is +1 or -1.
"""

from tasks.problems import Problem, Problems, check_files, load_problems, load_task
from tasks.verifier import TaskError, Verifier, verify
