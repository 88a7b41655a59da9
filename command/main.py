"""main.py: the command line of scalerl.py: how a run begins, and how it ends."""
import sys
import warnings

from artifacts import settings
from artifacts.resume import Stopped
from artifacts.run_folder import RunFolder
from artifacts.step_log import describe
from command.make_run import make_run
from command.options import parse
from command.preflight import preflight
from config import ConfigError
from engines import load
from scalerl import Trainer
from scaleout import launch
from scaleout.supervise import Signals, exit_code
from scaleout.team import make_team
from servers.pool import ServerError
from tasks import TaskError, check_files


def main(argv=None, make_trainer=Trainer):
    """Run `python scalerl.py` with these words (None: those of the command line). Returns the exit
    code: 0 done, 1 failure, 2 wrong input, 75 stopped by a scheduler's signal, 130 by Ctrl-C."""
    argv = sys.argv[1:] if argv is None else argv
    run, signals = None, Signals()
    warnings.formatwarning = lambda text, *_: f"warning: {text}\n"      # without a line of source
    try:
        config, flags = parse(argv)
        if flags.report:
            from command.report import write_report     # matplotlib, which training never needs
            with settings.refused():
                print(*write_report(flags.report), sep="\n")
            return 0
        settings.check(config)
        if flags.dry_run:
            check_files(config)
            print(settings.to_toml(config))
            launch.describe(config, argv, flags.serve_only)
            return 0
        check_platform(config, flags.serve_only)
        folder = RunFolder(config, flags.fresh)
        if not (flags.serve_only or flags.fresh) and (sentence := folder.done()):
            print(sentence)
            return 0
        check_files(config)                             # their sentences come before any model
        fresh = flags.fresh and folder.begun and not flags.serve_only
        if fresh and launch.started():                  # a job that is queued again has it again
            raise ConfigError("--fresh: not for ranks that others start; take another --name")
        if flags.serve_only or launch.wanted(config):   # several processes: trainers run this again
            if folder.begun and not flags.serve_only:
                folder.lock()                           # rank 0 would ask after servers have begun
                folder.close()
            return launch.launch(config, argv, flags.serve_only, fresh and folder.set_aside)
        with signals.heeded():
            launch.plan_alone(config)                   # refuses what would fail minutes later
            load.settle_engine(config)                  # vLLM, or transformers alone
            team = make_team(config)                    # the processes that train; mostly one
            # Of several processes only rank 0 returns from `lead`; the others serve its calls.
            run = make_run(config, team.lead(make_trainer(config, team)), folder)
            if fresh:                                   # now that nothing is refused any more
                folder.set_aside()
            if folder.begun:
                print(folder.restore(run))
            else:
                folder.make(run.trainer.device)
            signals.team = team
            print(describe(run))
            print(trained(run, tried=flags.no_preflight or folder.newest() is not None))
            team.close()
        # Stopped is not done: whoever wrote `&& python fit.py` should know.
        return exit_code(team.stop) if team.stop and not folder.done() else 0
    except (ConfigError, TaskError) as error:
        print(f"scalerl.py: {error}", file=sys.stderr)
        return 2
    except (RuntimeError, OSError) as error:        # servers, processes, memory, the disk
        where = f"step {run.step + 1}: {error}; {run.folder.resume_hint()}" if run else error
        print(f"scalerl.py: {where}", file=sys.stderr)
        return 1
    finally:
        if run:
            run.close()
        signals.over()


def check_platform(config, serve_only=""):
    """Off Linux a run is one process: settles `engine`. Raises ConfigError: more is asked for."""
    if sys.platform == "linux":
        return
    if config.engine == "vllm" or config.vllm_url or serve_only or launch.wanted(config) \
            or launch.started():
        raise ConfigError("vLLM, vllm_url and several processes (gpus, servers, trainers) need "
                          'Linux; here use one process with engine = "transformers"')
    config.engine = "transformers"                  # "auto", and a vLLM may be installed


def trained(run, tried=True):
    """Train, after a preflight if there was none. Returns the closing sentence. A run that somebody
    stops, or that has no server left, ends with a checkpoint if an evaluation has ended."""
    try:
        if not tried:
            preflight(run)
        sentence = run.train()
        (run.folder.path / "done").write_text(f"{run.config.steps} {sentence}")
        return sentence
    except (Stopped, ServerError) as why:
        if run.evaluated is not None:
            run.folder.save(run)
        if isinstance(why, Stopped):
            return f"Stopped at step {run.step}; {run.folder.resume_hint()}."
        raise
