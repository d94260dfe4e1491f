"""What a server sees where sums are secure: masked uploads, and the sums that were opened.

Both are attacked. A masked upload is read as if it were none: numbers in steps, each in its slot.
A sum is read as if one client had sent it, who has the texts of all.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from lexfed.audits.transcript import Recorded
from lexfed.audits.uploads import Upload, moves, uploads
from lexfed.experiment.assembly import Assembly
from lexfed.federation import Federation, Requests, Sum, tapped
from lexfed.secure import ring
from lexfed.secure.member import inner
from lexfed.secure.secure_options import Secure
from lexfed.secure.secure_sum import Known, secured
from lexfed.secure.secure_verbs import exchanges
from lexfed.wire import ClientId, Message, Verb, below, pack


def verbs(assembly: Assembly) -> list[Verb]:
    """What a wire of this configuration may hold."""
    own = list(assembly.method.client)
    if not assembly.config.secure.sums:
        return own
    return own + [four for verb in own if verb.adds_up for four in exchanges(verb)]


def listened(
    options: Secure, known: Known, federation: Federation, heard: list[Recorded]
) -> Federation:
    """A tap on the exchanges, and on the sums that come of them."""

    def note(verb: Verb, client: ClientId, request: Message, reply: Message) -> None:
        heard.append(Recorded(*_clock(request), client, "down", verb, request))
        heard.append(Recorded(*_clock(request), client, "up", verb, reply))

    sums = secured(tapped(federation, up=note), options, known)

    def total(verb: Verb, requests: Requests) -> Sum:
        result = sums.total(verb, requests)
        if result.members:
            request, who = next(iter(requests.values())), result.members
            reply = Message(pack(result.update))
            heard.append(Recorded(*_clock(request), who[0], "down", verb, request, who))
            heard.append(Recorded(*_clock(request), who[0], "up", verb, reply, who))
        return result

    return replace(sums, total=total)


def views(messages: Sequence[Recorded], assembly: Assembly) -> dict[str | None, list[Upload]]:
    """The uploads of both kinds."""
    sums = list(uploads(one for one in messages if one.cohort))
    seen: dict[str | None, list[Upload]] = {"each masked upload": list(_masked(messages, assembly))}
    for upload in sums:
        seen.setdefault(f"the sum of {len(upload.cohort)} clients", []).append(upload)
    return seen


def _masked(messages: Iterable[Recorded], assembly: Assembly) -> Iterable[Upload]:
    options = assembly.config.secure
    by_masked = {exchanges(verb).masked: verb for verb in assembly.method.client if verb.moves}
    sent = {
        (one.step, one.ask, one.client): one.message
        for one in messages
        if one.direction == "down" and one.verb in by_masked
    }
    asked = {(step, ask): 0 for step, ask, _ in sent}
    for step, ask, _ in sent:
        asked[step, ask] += 1
    for one in messages:
        request = sent.get((one.step, one.ask, one.client))
        if one.direction != "up" or one.verb not in by_masked or request is None:
            continue
        if "masked" not in one.message.arrays:
            continue
        own, verb = inner(request), by_masked[one.verb]
        clients = asked[one.step, one.ask]
        slots = ring.layout(verb, own, clients, options.bits, options.range)
        vector = ring.view(slots, one.message.arrays["masked"].numpy())
        model = below("model", own.arrays)
        delta = moves(ring.decode(slots, vector), model)
        yield Upload(one.round, one.client, model, delta, own.blobs)


def _clock(request: Message) -> tuple[int, int, int]:
    meta = request.meta
    return int(meta["round"]), int(meta["step"]), int(meta["ask"])
