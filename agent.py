"""agent.py: `accelerate launch`, but it ends as the first of its ranks did that failed.

A rank says in one sentence why it ends, and by its exit status what kind of end it was. accelerate
would let a page of traceback follow, and make every status a 1. launch.py starts the ranks by it.

    python agent.py --multi_gpu --num_processes 2 ... scalerl.py --model M ...

Ours. A file of its own, because it stays there as long as the run: it should cost little memory.
"""

import sys

from accelerate.commands.launch import main
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

if __name__ == "__main__":
    try:
        main()
    except ChildFailedError as error:
        status = error.get_first_failure()[1].exitcode
        sys.exit(status if status > 0 else 128 - status)        # as a shell says "by a signal"
    except SignalException as error:                            # the launcher ends its ranks
        sys.exit(128 + error.sigval)
