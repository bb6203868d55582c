"""A signal first ends the streams and then reaches whoever handled it before."""

import asyncio
import signal

from app.api.app import when_asked_to_end


def test_streams_end_and_the_old_handler_still_hears() -> None:
    heard: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("server"))

    async def run() -> None:
        acted = asyncio.Event()

        def act() -> None:
            heard.append("streams")
            acted.set()

        with when_asked_to_end(act, asyncio.get_running_loop()):
            signal.raise_signal(signal.SIGTERM)
            await asyncio.wait_for(acted.wait(), 5)
        signal.raise_signal(signal.SIGTERM)

    try:
        asyncio.run(run())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == ["server", "streams", "server"]
