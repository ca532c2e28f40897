"""The process of one reward model: `python -m reward.models FD OPTIONS`, started by `process`.

It batches dynamically: a forward pass takes the conversations that have arrived, and never waits
for more. The process ends when its socket closes, and with the service.
"""

import logging
import select
import socket
import sys
import traceback
from collections.abc import Sequence

import msgspec

from reward.errors import brief
from reward.frames import Unpacker, pack
from reward.models.batching import next_batch
from reward.models.scorer import Encoded, LoadError, Scorer, load, scores_of
from reward.models.wire import Failed, Loaded, ModelOptions, Question, Scored
from services.runtime.process import die_with_parent

_QUESTIONS = msgspec.msgpack.Decoder(Question)


def main() -> int:
    """Load the model and answer until the socket closes."""
    die_with_parent()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    options = msgspec.json.decode(sys.argv[2], type=ModelOptions)
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        try:
            scorer = load(options)
        except Exception as error:
            if not isinstance(error, LoadError):
                traceback.print_exc()
            connection.sendall(
                pack(Failed(str(error) if isinstance(error, LoadError) else brief(error)))
            )
            return 1
        connection.sendall(pack(Loaded(scorer.labels)))
        try:
            _serve(connection, scorer)
        except ConnectionError:
            return 0
    return 0


def _serve(connection: socket.socket, scorer: Scorer) -> None:
    unpacker = Unpacker()
    waiting: list[tuple[int, Encoded]] = []
    while True:
        bodies: list[bytes] = []
        while select.select([connection], [], [], 0 if waiting or bodies else None)[0]:
            data = connection.recv(1 << 20)
            if not data:
                return
            bodies += unpacker.feed(data)
        waiting += _encoded(connection, scorer, [_QUESTIONS.decode(body) for body in bodies])
        if not waiting:
            continue
        chosen = next_batch(
            [len(conversation.ids) for _, conversation in waiting], scorer.batch_tokens
        )
        batch = [waiting[index] for index in chosen]
        for index in reversed(chosen):
            del waiting[index]
        _answer(connection, scorer, batch)


def _encoded(
    connection: socket.socket, scorer: Scorer, questions: Sequence[Question]
) -> list[tuple[int, Encoded]]:
    """Return the questions as tokens. A conversation that the chat template refuses is answered at
    once."""
    if not questions:
        return []
    try:
        made = scorer.encode([question.messages for question in questions])
    except Exception as error:
        if len(questions) > 1:
            return [
                encoded
                for question in questions
                for encoded in _encoded(connection, scorer, [question])
            ]
        problem = f"the model's tokenizer does not take it: {brief(error)}"
        connection.sendall(pack(Scored(questions[0].ticket, [], problem=problem)))
        return []
    return [(question.ticket, encoded) for question, encoded in zip(questions, made, strict=True)]


def _answer(
    connection: socket.socket, scorer: Scorer, batch: Sequence[tuple[int, Encoded]]
) -> None:
    results = scores_of(scorer, [conversation for _, conversation in batch])
    for (ticket, conversation), scores in zip(batch, results, strict=True):
        if isinstance(scores, str):
            connection.sendall(pack(Scored(ticket, [], conversation.truncated, scores)))
        else:
            connection.sendall(pack(Scored(ticket, scores, conversation.truncated)))


if __name__ == "__main__":
    sys.exit(main())
