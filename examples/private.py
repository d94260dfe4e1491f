"""FedeVocab beside FedAvg: what does it cost to keep every word at home, and what does the server
read?
"""

from pathlib import Path

import lexfed

QUICK = Path(__file__).parent.parent / "experiments" / "quick"
small = {"data.limit": 2000, "rounds": 4, "evaluation.limit": 300, "evaluation.every": 0}

for method in ("fedavg", "fedevocab"):
    run = lexfed.run(QUICK / "private.toml", settings={**small, "method": method}, quiet=True)
    figures = run.summary
    print(
        f"{method}: accuracy {figures['global_accuracy']:.3f}, {figures['bytes_up'] / 1e6:.1f} MB "
        "sent up"
    )

few = {
    "audit.sentences": [2],
    "audit.clients": 2,
    "audit.defences": ["none"],
    "audit.candidates": 2000,
}
found = lexfed.audit(QUICK / "audit.toml", attacks=["rows", "span"], settings=few)
print(found.rows)
