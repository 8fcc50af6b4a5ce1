"""Minimal agents of the gateway's benchmark, in a separate process.

The process reads lines `{"address": …, "keys": [one for each agent], "calls": n}` and answers each with the
seconds that all agents took in parallel. Every call contains the agent's earlier answers.
"""

import asyncio
import json
import sys
from time import perf_counter
from urllib.parse import urlsplit


async def talk(host: str, port: int, key: str, number: int, calls: int) -> None:
    """Make one agent's calls over one connection."""
    reader, writer = await asyncio.open_connection(host, port)
    messages = [{"role": "user", "content": f"Agent {number} has a question."}]
    for _ in range(calls):
        body = json.dumps({"model": "any", "messages": messages}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        writer.write(body)
        status = await reader.readline()
        length = 0
        while (line := await reader.readline()) != b"\r\n":
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        answer = json.loads(await reader.readexactly(length))
        if b" 200 " not in status:
            raise RuntimeError(f"got {status!r}: {answer}")
        messages += [answer["choices"][0]["message"], {"role": "user", "content": "And then?"}]
    writer.close()


async def together(address: str, keys: list[str], calls: int) -> None:
    place = urlsplit(address)
    await asyncio.gather(
        *(talk(str(place.hostname), int(place.port or 0), key, n, calls) for n, key in enumerate(keys))
    )


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        started = perf_counter()
        asyncio.run(together(**request))
        print(perf_counter() - started, flush=True)


if __name__ == "__main__":
    main()
