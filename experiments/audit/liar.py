"""Organisations that bring a dictionary to an agreement: how many words that one honest
organisation alone holds are they told?

    LEXFED_DATA=... python experiments/audit/liar.py [--seeds 0 1] [--data rotten_tomatoes text8]

Ten organisations share out Rotten Tomatoes evenly, or text8 by topic (6,000 windows). The liars
forget their own texts and propose the most frequent public words that these did not have, all of
them loudly. `told` is the share of the words of one honest organisation alone (that no other one's
text has, the liars' own included) that stand in the list; `covers` is how much of the honest text
the list covers. "What it may" is the default limit on what one may propose. Two liars where two
holders are enough get all that they propose into the list, and would have to tell real words from
their own by coarse counts. The figures go into liar.results.json beside this file, and are printed
as a Markdown table.
"""

import argparse
import json
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lexfed.agreement.organisation import handlers
from lexfed.agreement.protocol import VOCABULARY, Agreement, agree, refused_of
from lexfed.agreement.word_list import from_bytes
from lexfed.core.seeds import derive, root
from lexfed.corpus import population
from lexfed.corpus.population import Client, Data
from lexfed.corpus.text import Corpus
from lexfed.federation import ClientState, Federation, Replies, Requests, ServerState, plain
from lexfed.vocabulary import scan
from lexfed.vocabulary.tables import vectors
from lexfed.wire import ClientId, Verb, echoing

DATA = {
    "rotten_tomatoes": Data(name="rotten_tomatoes", clients=10, partition="iid"),
    "text8": Data(name="text8", clients=10, partition="source", limit=6000),
}
# liars, and how the others protect themselves
RULES: dict[str, tuple[int, dict[str, Any]]] = {
    "1 liar, 2 holders, counts of all": (1, {"rest": 0.0}),
    "1 liar, 2 holders (default)": (1, {}),
    "2 liars, 2 holders (default)": (2, {}),
    "1 liar, 3 holders": (1, {"holders": 3}),
    "2 liars, 3 holders": (2, {"holders": 3}),
}
WORDS = (1000, 10_000, 100_000)
TIMES = 12  # that a liar says a word: more than the limit of occurrences
FIGURES = ("told", "words", "covers")


def organisations(name: str, seed: int) -> list[Client]:
    people = population.build(DATA[name], derive(root(seed), "data"))
    return [people.client(number) for number in range(len(people))]


def lying(client: Client, dictionary: Sequence[str]) -> Client:
    texts = pa.array([" ".join(dictionary)] * TIMES)
    return replace(client, train=Corpus(np.arange(TIMES), texts))


def agreed(clients: Sequence[Client], options: Agreement, seed: int) -> ServerState:
    states: dict[ClientId, ClientState] = {}

    def ask(verb: Verb, requests: Requests) -> Replies:
        for client, message in requests.items():
            state = states.get(client, ClientState())
            reply, states[client] = handlers(options)[verb](message, clients[client], state)
            if reply is not None:
                yield client, echoing(message, reply)

    federation = Federation(range(len(clients)), ask, plain(ask))
    return agree(federation, ServerState(), options, root(seed))


def rows(name: str, seed: int, public: Sequence[str]) -> Iterator[dict[str, Any]]:
    clients = organisations(name, seed)
    own = [dict(scan.count(client.train)) for client in clients]
    held = Counter(word for counts in own for word in counts)
    for rule, (liars, options) in RULES.items():
        known = set().union(*own[:liars])
        guesses = [word for word in public if word not in known]
        alone = {word for counts in own[liars:] for word in counts if held[word] == 1}
        text = sum((Counter(counts) for counts in own[liars:]), Counter[str]())
        for most, stuffing in [(0, math.inf), *((n, math.inf) for n in WORDS), (0, 2.0)]:
            n = most if stuffing > 2 else int(2 * statistics.median(map(len, own[liars:])))
            minds = [lying(client, guesses[:n]) for client in clients[:liars]]
            state = agreed(
                [*(minds if n else clients[:liars]), *clients[liars:]],
                Agreement(stuffing=stuffing, **options),
                seed,
            )
            got = set(from_bytes(state.blobs[VOCABULARY]).tokens)
            covers = sum(text[word] for word in got) / sum(text.values())
            yield {
                "data": name, "rule": rule, "limit": stuffing == 2, "proposed": n, "seed": seed,
                "told": len(got & alone) / len(alone), "alone": len(alone), "words": len(got),
                "covers": covers, "cut": refused_of(state).words,
            }  # fmt: skip


def table(found: list[dict[str, Any]]) -> str:
    lines = ["| data | rule | each liar proposes | told | words in the list | covers |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    keys = ("data", "rule", "limit")
    for key in dict.fromkeys((*(row[k] for k in keys), _size(row)) for row in found):
        own = [row for row in found if (*(row[k] for k in keys), _size(row)) == key]
        told, words, covers = (statistics.mean(row[figure] for row in own) for figure in FIGURES)
        lines.append(
            f"| {key[0]} | {key[1]} | {key[3]} | {100 * told:.1f} % | {words:,.0f} | "
            f"{100 * covers:.1f} % |"
        )
    return "\n".join(lines)


def _size(row: dict[str, Any]) -> str:
    if row["limit"]:
        return "what it may"
    return f"{row['proposed']:,}" if row["proposed"] else "nobody lies"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=list(DATA))
    parser.add_argument("--public", default="glove_6b_100d_top100k.npz")
    chosen = parser.parse_args()
    public = vectors.load(chosen.public).words
    found = [
        row for name in chosen.data for seed in chosen.seeds for row in rows(name, seed, public)
    ]
    Path(__file__).with_suffix(".results.json").write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
