"""Training a Tokenizer for Free with Private Federated Learning (Bagdasaryan et al., 2022).

    tokenizer <- learned from public text
    private federated learning of a language model M, up to the round of the switch
    switch:   text <- sample(M)                                          [Alg. 1, SAMPLE]
              tokenizer' <- learned from text                            [TRAINTOKENIZER]
              row of a new token <- mean of the rows of its pieces       [REMAP]
    private federated learning goes on, with tokenizer'

The switch reads the model and public numbers alone, so it costs no privacy: the ledger stays as it
is. What it does in detail, and its ablations: `language/switching.py`. `protocol = "continue"` is
Algorithm 1 and Figure 4; "from_scratch" is Table 2, at the end of this file.

Differs from the paper: pieces that occur twice in a token count twice, tokens are encoded by their
symbols as they are (its pseudocode says `decode`, and `=`); output rows, bias and the server
optimizer's slots are carried over too; the output bias can follow the sampled text, and the new
model can be taught with text that the old one writes before users see it (`teach_words`): both read
the old model alone and are as free as the switch.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from lexfed.core.errors import ConfigError
from lexfed.core.params import ALL_SHARED
from lexfed.core.seeds import Seed, derive
from lexfed.federation import (
    Entry,
    Federation,
    Method,
    Requests,
    Rounds,
    ServerProgram,
    ServerState,
    Steps,
    once,
    request,
)
from lexfed.language.heavy_hitters import cost, handlers
from lexfed.language.language_parts import LANGUAGE_MODEL, LanguageParts
from lexfed.language.language_study import SWITCH, LanguageStudy
from lexfed.language.language_task import (
    TOKENIZER,
    language_evaluator,
    language_update,
    tokenizer_of,
    with_tokenizer,
)
from lexfed.language.switching import TokenizerForFree, new_tokenizer, switched, told
from lexfed.language.tokenizer_source import source
from lexfed.learning.private_table import KEEPS_NOTHING
from lexfed.learning.training import updater
from lexfed.learning.training_verbs import EVALUATE_LANGUAGE, TRAIN
from lexfed.privacy.accounting import Ledger, charge
from lexfed.privacy.mechanism import Mechanism
from lexfed.wire import ClientId

INIT = "init"


def tokenizer_for_free(parts: LanguageParts, options: TokenizerForFree) -> Method:
    task, tables = parts.task, parts.tables
    if options.switch and options.switch[-1] >= task.rounds:
        raise ConfigError(
            f"the last switch is after round {options.switch[-1]}, but there are {task.rounds} "
            "rounds"
        )
    soft = options.teach_words and options.teach_targets == "soft"
    if soft and not getattr(task.model, "soft_targets", False):
        raise ConfigError(
            f"tokenizer_for_free.teach_targets = 'soft' needs a model whose gradient minds "
            f"batch.beside and that says so (soft_targets = True): {type(task.model).__name__} "
            "does not; set teach_targets = 'hard'"
        )
    if options.teach_words:
        options.lesson(task.model)  # what is wrong with it shows before the first round
    update = parts.layer(language_update(task), task, KEEPS_NOTHING)
    return Method(
        client={
            TRAIN: updater(
                task.options, ALL_SHARED, KEEPS_NOTHING, update, parts.mechanism, task.device
            ),
            EVALUATE_LANGUAGE: language_evaluator(task),
            **handlers(tables.heavy_hitters, tables.tokenizer),
        },
        server=(table_2 if options.protocol == "from_scratch" else algorithm_1)(parts, options),
        split=ALL_SHARED,
        rounds=task.rounds,
        study=LanguageStudy(
            tables.tokenizer, parts.people, tables.evaluation, options.switch, options.sample_words
        ),
        planned=partial(planned, parts, options),
        ahead=partial(ahead, options),
        happened=happened,
    )


def ahead(options: TokenizerForFree, state: ServerState) -> str | None:
    """A switch that teaches takes minutes, and nobody is asked in them."""
    if not options.teach_words or f"{SWITCH}{state.round}" in state.done:
        return None
    return told(options) if state.round in options.switch else None


def happened(before: ServerState, after: ServerState) -> str | None:
    """A switch, and how large the tokenizers are."""
    known = before.blobs.get(TOKENIZER)
    if known is None or known == after.blobs[TOKENIZER]:
        return None
    old, new = (len(tokenizer_of(state).tokenizer.tokens) for state in (before, after))
    return f"the tokenizer was switched: {old:,} tokens before, {new:,} now"


def planned(parts: LanguageParts, options: TokenizerForFree) -> Ledger:
    """What the first tokenizer will have charged, and the rounds, of each half where there are
    two.
    """
    tables, users, rounds = parts.tables, len(parts.people), parts.task.rounds
    half, group = (users // 2, "half 1") if options.groups > 1 else (users, "")
    found = tables.tokenizer.start == "heavy_hitters"
    ledger: Ledger = (cost(tables.heavy_hitters, half, group),) if found else ()
    if options.groups == 1:
        return parts.plan(ledger, users, rounds)
    begins = options.switch[-1] if options.switch else 0
    ledger = parts.plan(ledger, half, begins, "half 1")
    return parts.plan(ledger, users - half, rounds - begins, "half 2")


def algorithm_1(parts: LanguageParts, options: TokenizerForFree) -> ServerProgram:
    task, first, rounds = parts.task, first_model(parts), private_rounds(parts, len(parts.people))

    def server(federation: Federation, seed: Seed, state: ServerState) -> Steps:
        def switch(s: ServerState) -> ServerState:
            return switched(task, options, s, derive(seed, "switch", s.round))

        state = yield from first(federation, seed, state)
        for place in options.switch:
            state = yield from rounds(federation, state, until=place, seed=seed)
            state = yield from once(state, f"{SWITCH}{place}", switch)
        return (yield from rounds(federation, state, until=task.rounds, seed=seed))

    return server


def first_model(parts: LanguageParts) -> ServerProgram:
    """The tokenizer that training begins with, and a model for it.

    Where users are asked for words, they are paid: with the words in a simulation, whose attempts
    repeat themselves; before anybody is asked in a deployment, where each attempt asks others.
    """
    where = source(parts.tables.tokenizer, parts.tables.heavy_hitters, parts.people)
    ahead = parts.tables.secrets == "system"

    def first(federation: Federation, seed: Seed, state: ServerState) -> Steps:
        if INIT in state.done:
            return state
        bill = where.cost(federation)
        if bill is not None and ahead:
            state = replace(state, ledger=charge(state.ledger, bill), step=state.step + 1)
            yield state

        def init(s: ServerState) -> ServerState:
            tokenizer = where.learn(federation, s, derive(seed, "source"))
            params = parts.task.model.init(len(tokenizer.tokenizer.tokens), derive(seed, "init"))
            ledger = s.ledger if bill is None or ahead else charge(s.ledger, bill)
            begun = s.with_blob(TOKENIZER, tokenizer.to_bytes())
            return replace(begun, params=params, ledger=ledger)

        return (yield from once(state, INIT, init))

    return first


def private_rounds(parts: LanguageParts, users: int, group: str = "") -> Rounds:
    return replace(parts.loop(users, group), requests=requests(parts.mechanism))


def requests(mechanism: Mechanism) -> Callable[[ServerState, Sequence[ClientId], int], Requests]:
    """The model with its tokenizer, and what the mechanism tells."""

    def broadcast(state: ServerState, cohort: Sequence[ClientId], ask: int) -> Requests:
        plain = request(state, ask, **mechanism.tell(state.mechanism_state))
        return dict.fromkeys(cohort, with_tokenizer(plain, state))

    return broadcast


# --- Table 2 --------------------------------------------------------------------------------------


def table_2(parts: LanguageParts, options: TokenizerForFree) -> ServerProgram:
    """The model that is sampled from sees the first half of the users; then a new model with the
    new tokenizer is trained on the second half (without a switch: the second half alone). No user
    is in both halves: each pays for its own.
    """
    task, first = parts.task, first_model(parts)
    rounds = [
        private_rounds(parts, len(parts.people) // 2, group) for group in ("half 1", "half 2")
    ]

    def server(federation: Federation, seed: Seed, state: ServerState) -> Steps:
        middle = len(federation.clients) // 2
        one, two = (
            replace(federation, clients=half)
            for half in (federation.clients[:middle], federation.clients[middle:])
        )

        def afresh(s: ServerState) -> ServerState:
            _, new = new_tokenizer(task, options, s, derive(seed, "switch", s.round))
            params = task.model.init(len(new.tokenizer.tokens), derive(seed, "init"))
            return replace(
                s.with_blob(TOKENIZER, new.to_bytes()),
                params=params,
                opt_state={},
                mechanism_state={},
            )

        state = yield from first(one, seed, state)
        for place in options.switch:
            state = yield from rounds[0](one, state, until=place, seed=derive(seed, "first half"))
            state = yield from once(state, f"{SWITCH}{place}", afresh)
        # the second half's cohorts are those of a run that begins with it: rows of a table are
        # compared with equal luck
        begins = options.switch[-1] if options.switch else 0
        return (yield from rounds[1](two, state, until=task.rounds, seed=seed, first=begins))

    return server


METHOD = Entry("tokenizer_for_free", LANGUAGE_MODEL, tokenizer_for_free, TokenizerForFree)
