"""What is asked, questions with gold answers, and whether an answer is right. A run calls
load_problems and the verifier alone: on a first reading this folder may be ignored."""
from tasks.problems import Problem, Problems, check_files, load_problems, load_splits, load_task
from tasks.verifier import TaskError, Verifier, verify
