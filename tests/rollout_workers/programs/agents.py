"""A program that obeys its prompt, with only the standard library so that it starts at once.

debates   calls of two roles and of a partner, with a reward for each role
good      two calls, a reward of 0.5        dies     raises after a call
hangs     sleeps after a call               floods   calls without end, whatever the answer
silent    makes no call                     odd      writes no number as its reward
waits FILE SECONDS  two calls; between them the file has grown, or so many seconds have passed
leaves    a child in a session of its own, then as good
once FILE MOOD: the mood while there is no FILE, then good
"""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path


def call(talk: list[dict[str, str]], model: str = "any") -> dict[str, str]:
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": model, "messages": talk}).encode(),
        {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    with urllib.request.urlopen(request) as answer:
        message: dict[str, str] = json.load(answer)["choices"][0]["message"]
    return message


def between_calls(mood: str, rest: list[str]) -> None:
    if mood == "dies":
        raise RuntimeError("the tool broke")
    if mood == "hangs":
        time.sleep(3600)
    if mood == "waits":
        size, until = Path(rest[0]).stat().st_size, time.monotonic() + float(rest[1])
        while Path(rest[0]).stat().st_size == size and time.monotonic() < until:
            time.sleep(0.02)


def debate(prompt: dict[str, str]) -> None:
    """Let the longer answer win; the partner has the last word, which nobody counts."""
    pro, con = (call([prompt], f"policy/{role}")["content"] for role in ("pro", "con"))
    call([prompt, {"role": "assistant", "content": pro}, {"role": "user", "content": con}], "partner")
    won = 1 if len(pro) > len(con) else -1
    reward = {"reward": {"policy/pro": won, "policy/con": -won}}
    Path(os.environ["WHETSTONE_REWARD_FILE"]).write_text(json.dumps(reward))


def main(text: str) -> None:
    mood, *rest = text.split()
    if mood == "once":
        file, mood = Path(rest[0]), rest[1]
        if file.exists():
            mood = "good"
        file.touch()
    assert json.loads(Path(os.environ["WHETSTONE_PROMPT_FILE"]).read_text())["text"] == text
    question = {"role": "user", "content": text}
    if mood == "debates":
        debate(question)
        return
    if mood != "silent":
        answer = call([question])
    between_calls(mood, rest)
    while mood == "floods":
        try:
            call([question])
        except urllib.error.HTTPError as error:
            error.close()
    if mood == "leaves":
        child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
        Path(rest[0]).write_text(str(child.pid))
    if mood != "silent":
        call([question, answer, {"role": "user", "content": "And then?"}])
    reward = '"much"' if mood == "odd" else '{"reward": 0.5, "tools": 2}'
    Path(os.environ["WHETSTONE_REWARD_FILE"]).write_text(reward)
    print("done")


if __name__ == "__main__":
    main(sys.argv[1])
