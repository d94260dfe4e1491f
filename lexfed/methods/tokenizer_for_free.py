"""Training a Tokenizer for Free with Private Federated Learning (Bagdasaryan et al., 2022).

    tokenizer <- learned from public text
    private federated learning of a language model M, up to the round of the switch
    switch:   text <- sample(M)                                          [Alg. 1, SAMPLE]
              tokenizer' <- learned from text                            [TRAINTOKENIZER]
              row of a new token <- mean of the rows of its pieces       [REMAP]
    private federated learning goes on, with tokenizer'

The switch reads the model and public numbers alone, so it costs no privacy: the ledger stays as it is. Two protocols:
`continue` is Algorithm 1 and Figure 4; `from_scratch` is Table 2: the model that is sampled from sees the first half of the
users, then a new model with the new tokenizer is trained on the second half (without a switch: the second half alone).

Differs from the paper: pieces that occur twice in a token count twice, tokens are encoded by their symbols as they are
(its pseudocode says `decode`, and `=`); output rows, bias and the server optimizer's slots are carried over too; the output
bias can follow the sampled text, and the model can be trained on that text before users see it (`heal`): both read the
sample alone and are as free as the switch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from lexfed.errors import ConfigError
from lexfed.federation import Federation, Method, Requests, Rounds, ServerState, Steps, once, request
from lexfed.methods.language import TOKENIZER, LanguageTask, language_evaluator, language_update
from lexfed.methods.training import Local, nothing_private, trainer
from lexfed.models.language import BIAS, TOKEN_ROWS, expected_tokens, sample
from lexfed.params import ALL_SHARED, Params
from lexfed.privacy.mechanism import Mechanism
from lexfed.seeds import Seed, derive
from lexfed.vocabulary import learned, remap, trained
from lexfed.vocabulary.learned import Learned
from lexfed.vocabulary.trained import Kind
from lexfed.wire import ClientId, Message

Source = Callable[[Federation, ServerState, Seed], tuple[Learned, ServerState]]  # where the first tokenizer comes from


@dataclass(frozen=True)
class TokenizerForFree:
    """The `[tokenizer_for_free]` table."""

    switch: tuple[int, ...] = ()  # after these rounds; none: the first tokenizer stays
    protocol: Literal["continue", "from_scratch"] = "continue"
    sample_words: int = 300_000
    sample_length: int = 100  # tokens of a sampled text at most
    temperature: float = 1.0
    kind: Kind | None = None  # of the new tokenizer; default: as the old one's
    rows: Literal["mean", "random"] = "mean"  # of tokens that are new; random: for comparison
    # of the output: of a token's pieces; as often as the sample has it; or moved until the model expects it that often
    bias: Literal["mean", "unigrams", "calibrated"] = "calibrated"
    slots: Literal["remap", "reset"] = "remap"  # of the server's optimizer
    heal: int = 0  # epochs on the sampled text before users see the model again
    heal_lr: float = 2.0

    def __post_init__(self) -> None:
        if list(self.switch) != sorted(set(self.switch)) or any(place < 1 for place in self.switch):
            raise ConfigError("tokenizer_for_free.switch lists rounds from 1 on, each once, in order")
        if self.protocol == "from_scratch" and len(self.switch) > 1:
            raise ConfigError(
                "tokenizer_for_free.protocol = 'from_scratch' has one switch at most: users are parted in two halves"
            )
        if min(self.sample_words, self.sample_length) < 1 or not self.temperature > 0:
            raise ConfigError("tokenizer_for_free.sample_words, sample_length and temperature must be above 0")
        if self.heal < 0 or not self.heal_lr > 0:
            raise ConfigError("tokenizer_for_free.heal must be at least 0 and heal_lr above 0")


def tokenizer_for_free(
    task: LanguageTask, options: TokenizerForFree, loop: Rounds, mechanism: Mechanism, source: Source
) -> Method:
    if options.switch and options.switch[-1] >= task.rounds:
        raise ConfigError(f"the last switch is after round {options.switch[-1]}, but there are {task.rounds} rounds")

    def server(federation: Federation, seed: Seed, state: ServerState) -> Steps:
        halves, rounds = _halves(federation, options), replace(loop, requests=_requests(mechanism))

        def init(s: ServerState) -> ServerState:
            first, s = source(halves[0], s, derive(seed, "source"))
            params = task.model.init(len(first.tokenizer.tokens), derive(seed, "init"))
            return replace(s, params=params, vocabulary=first.to_bytes())

        def switch(s: ServerState) -> ServerState:
            return switched(task, options, s, derive(seed, "switch", s.round), derive(seed, "init"))

        state = yield from once(state, "init", init)
        first = derive(seed, "first half") if options.protocol == "from_scratch" else seed
        for place in options.switch:
            state = yield from replace(rounds, group=_group(options, 0))(halves[0], state, until=place, seed=first)
            state = yield from once(state, f"switch@{place}", switch)
        # the second half's cohorts are those of a run that begins with it: rows of a table are compared with equal luck
        since = options.switch[-1] if options.switch and options.protocol == "from_scratch" else 0
        last = replace(rounds, group=_group(options, 1), since=since)
        return (yield from last(halves[1], state, until=task.rounds, seed=seed))

    return Method(
        client={
            "train": trainer(task.options, ALL_SHARED, nothing_private, language_update(task), mechanism),
            "evaluate": language_evaluator(task),
        },
        server=server,
        split=ALL_SHARED,
        rounds=task.rounds,
        milestone=lambda state: state.round in options.switch,
    )


def switched(task: LanguageTask, options: TokenizerForFree, state: ServerState, seed: Seed, init: Seed) -> ServerState:
    """UPDATE of Algorithm 1: a function of the model, its tokenizer and public options, of nothing else."""
    old = learned.from_bytes(state.vocabulary)
    text = list(sampled_text(task, options, state.params, old, derive(seed, "sample")))
    new = learned.learn(text, options.kind or old.tokenizer.kind, len(old.tokenizer.tokens), "sampled")
    after = replace(state, vocabulary=new.to_bytes())
    if options.protocol == "from_scratch":
        params = task.model.init(len(new.tokenizer.tokens), init)
        return replace(after, params=params, opt_state={}, mechanism_state={})
    pieces = remap.pieces(new.tokenizer, old.tokenizer)
    names = [name for name in TOKEN_ROWS if name in state.params]  # tied models have no output rows of their own
    params = dict(remap.remap_params(state.params, names, pieces))
    if options.rows == "random":
        fresh = task.model.init(len(pieces), derive(seed, "rows"))
        changed = torch.tensor([len(parts) != 1 for parts in pieces])
        params |= {name: _where(changed, fresh[name], params[name]) for name in names}
    if options.bias == "unigrams":
        params[BIAS] = _follow(params[BIAS], remap.unigram_bias(new.tokenizer, text))
    sequences = [new.tokenizer.sequence(words) for words in text]
    if options.bias == "calibrated":
        params[BIAS] = _calibrated(task, params, sequences[:CALIBRATION])
    if options.heal:
        params = dict(task.fit(params, sequences, Local(options.heal_lr, options.heal), derive(seed, "heal")).params)
    slots = remap.remap_slots(state.opt_state, names, pieces) if options.slots == "remap" else {}
    return replace(after, params=params, opt_state=slots)


def sampled_text(
    task: LanguageTask, options: TokenizerForFree, params: Params, old: Learned, seed: Seed
) -> Iterator[list[str]]:
    """Texts that the model writes, in words, until there are enough of them."""
    tokenizer, words, part = old.tokenizer, 0, 0
    while words < options.sample_words:
        drawn = sample(
            task.model,
            params,
            count_tokens=options.sample_words - words,  # a token is a word at most: there may have to be another part
            length=options.sample_length,
            bos=tokenizer.bos,
            eos=tokenizer.eos,
            temperature=options.temperature,
            seed=derive(seed, part),
        )
        part += 1
        for ids in drawn:
            text = trained.words(tokenizer.decode(ids), task.texts.lowercase)
            words += max(len(text), 1)  # a model that writes nothing must not keep us for ever
            if text:
                yield text


def _follow(bias: torch.Tensor, unigrams: torch.Tensor) -> torch.Tensor:
    """The unigrams' logarithms, at the level of the bias that was: only differences count, but drift would not be nice."""
    return unigrams + (bias.mean() - unigrams.mean())


CALIBRATION = 1_000  # texts: enough for the tokens that matter


def _calibrated(task: LanguageTask, params: Params, sequences: list[list[int]]) -> torch.Tensor:
    """Move the bias until the model expects each token as often as the texts have it: log(counted / expected), thrice.

    One occurrence more of each: a byte that the sample lacks must stay possible, for users who write in other scripts.
    """
    counted = torch.bincount(torch.tensor([t for ids in sequences for t in ids[1:]]), minlength=len(params[BIAS])) + 1
    bias = params[BIAS]
    for _ in range(3):
        expected = expected_tokens(task.model, {**params, BIAS: bias}, sequences) + 1
        bias = bias + torch.log(counted / expected)
    return bias


def _where(changed: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.where(changed.reshape(-1, *[1] * (one.ndim - 1)), one, other)


def _halves(federation: Federation, options: TokenizerForFree) -> tuple[Federation, Federation]:
    if options.protocol == "continue":
        return federation, federation
    middle = len(federation.clients) // 2
    return replace(federation, clients=federation.clients[:middle]), replace(federation, clients=federation.clients[middle:])


def _group(options: TokenizerForFree, half: int) -> str:
    return f"half {half + 1}" if options.protocol == "from_scratch" else ""


def _requests(mechanism: Mechanism) -> Callable[[ServerState, Sequence[ClientId], int], Requests]:
    """The model with its tokenizer, and what the mechanism tells."""

    def requests(state: ServerState, cohort: Sequence[ClientId], ask: int) -> Requests:
        plain = request(state, ask, **mechanism.tell(state.mechanism_state))
        return dict.fromkeys(cohort, with_tokenizer(plain, state))

    return requests


def with_tokenizer(message: Message, state: ServerState) -> Message:
    return replace(message, blobs={TOKENIZER: learned.from_bytes(state.vocabulary).data})
