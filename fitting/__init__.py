"""The command of fit.py: readers, verdicts, comparison, pictures. fit.py needs none of them."""
