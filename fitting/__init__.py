"""the command of fit.py."""
