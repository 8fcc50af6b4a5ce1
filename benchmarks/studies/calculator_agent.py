"""An agent with a calculator and the stock `openai` client; only two files refer to Whetstone.

It solves "3 plus 4 minus 2" step by step. At each step the model names a tool, and the agent compares the
tool's result with the right one. The reward is the share of right results, so only tool calls earn it.
"""

import json
import operator
import os

from openai import OpenAI

TOOLS = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul}
MEANT = {"plus": "add", "minus": "subtract", "times": "multiply"}


def main() -> None:
    with open(os.environ["WHETSTONE_PROMPT_FILE"]) as file:
        first, *rest = json.load(file)["text"].split()
    client, value, num_right, talk = OpenAI(), int(first), 0, []
    for operation, number in zip(rest[::2], map(int, rest[1::2]), strict=True):
        talk.append({"role": "user", "content": f"{value} {operation} {number}"})
        answer = client.chat.completions.create(model="policy", messages=talk).choices[0].message
        talk.append({"role": "assistant", "content": answer.content})
        tool = TOOLS.get((answer.content or "").strip())
        right = TOOLS[MEANT[operation]](value, number)
        num_right += tool is not None and tool(value, number) == right
        value = right
    with open(os.environ["WHETSTONE_REWARD_FILE"], "w") as file:
        json.dump(num_right / len(rest[::2]), file)


if __name__ == "__main__":
    main()
