"""fitting: the command of fit.py.

    command.py    options, what is printed, numbers as JSON and CSV
    readers.py    logs of this project and of other trainers -> compute and pass rates
    callback.py   the forecast of the end, from within a Hugging Face trainer
    forecast.py   what the end of a run will be, in one line
    compare.py    are two recipes the same? by the paper's rule
    figures.py    the pictures

The law, its fit, its intervals and its predictions are in fit.py, which needs none of this.
"""
