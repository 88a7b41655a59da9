"""The course: learn ScaleRL by writing its parts. README.md is the way in, a page an exercise;
exercises.toml lists the functions that a student writes; checks/ are the public checks. Called by
`make student` (student.py), `make check EX=3`, `make grade` (grade.py, experiment.py), `make
mutants` (mutants.py). hidden/, guide.md and the mutants are the instructor's, and no student's tree
has them. The project imports nothing of this folder: whoever only reads the method may ignore it.
"""
