"""Layers on handlers: who has little text keeps it to itself; uploads are counted, and how often
one was held back.
"""

from lexfed.corpus.population import Client
from lexfed.federation import Answer, ClientState, Handler, Layer
from lexfed.learning.holding_back import HELD, UPLOADS, counted, silence
from lexfed.privacy.mechanism import Mechanism
from lexfed.vocabulary.word import count_words
from lexfed.wire import Message, Verb


def minimum_text(least: int, mechanism: Mechanism) -> Layer:
    """Who has fewer than `least` distinct words neither trains nor sends, and keeps what it had."""

    def layer(verb: Verb, handler: Handler) -> Handler:
        def handle(message: Message, client: Client, state: ClientState) -> Answer:
            if len(count_words(client.train)) >= least:
                return handler(message, client, state)
            return silence(mechanism, message, client), counted(HELD, 1, state, state)

        return handle if verb.kind == "update" else handler

    return layer


def counting(verb: Verb, handler: Handler) -> Handler:
    """The client counts how often it was asked for an upload, and its counts outlive what a handler
    forgets.
    """

    def handle(message: Message, client: Client, state: ClientState) -> Answer:
        reply, after = handler(message, client, state)
        after = after if HELD in after.blobs else counted(HELD, 0, state, after)
        return reply, counted(UPLOADS, int(verb.kind == "update"), state, after)

    return handler if verb.kind == "figures" else handle
