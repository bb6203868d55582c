"""The pipe between a detached supervisor and the command that started it."""

from __future__ import annotations

import os

from app.demo.home import Message, Teller, listen

PHASE = Message(event="phase", text="database", elapsed_s=0.5)


def test_messages_arrive_in_order_until_the_end() -> None:
    reading, writing = os.pipe()
    teller = Teller(writing)
    failed = Message(event="failed", text="größer", exit_code=5)
    teller.tell(PHASE)
    teller.tell(failed)
    teller.close()
    teller.close()
    assert list(listen(reading)) == [PHASE, failed]


def test_a_reader_that_left_is_no_reason_to_stop() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    teller = Teller(writing)
    teller.tell(PHASE)
    teller.tell(PHASE)
    teller.close()
