"""FedAvg that says, when its server's program begins, what the process has spent until then.

For `lexfed run` as it is: a configuration names it (`method = "start_clock:METHOD"`).
"""

import json
import sys
import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from lexfed.methods.fedavg import METHOD as FEDAVG


def timed(parts: Any, options: Any) -> Any:
    method = FEDAVG.build(parts, options)

    def server(federation: Any, secret: Any, state: Any) -> Generator[Any, None, Any]:
        said = {"cpu_s": time.process_time(), "modules": sorted(sys.modules)}
        print(json.dumps(said), flush=True)
        program = method.server(federation, secret, state)
        yield next(program)  # the first model
        first = next(program)
        print(json.dumps({"first_round_cpu_s": time.process_time()}), flush=True)
        yield first
        return (yield from program)

    return replace(method, server=server)


METHOD = replace(FEDAVG, build=timed)
