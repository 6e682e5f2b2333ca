"""A tool that the model may call, with the official ``openai`` client: ``python examples/tool_calls.py [URL]``."""

import json
import sys
from typing import Any

from openai import OpenAI

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "The sum of two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}


def main() -> None:
    """Makes the model call the tool once, gives it the result, and prints its answer."""
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    # The client insists on a key; a server that asks for none ignores it.
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    messages: list[Any] = [{"role": "user", "content": "What is 17 plus 25?"}]
    # A small model may not think of calling; required makes it, and holds the arguments to the schema.
    for choice in ("required", "none"):
        answer = client.chat.completions.create(
            model=model, messages=messages, tools=[TOOL], tool_choice=choice, temperature=0.0, max_tokens=128
        )
        message = answer.choices[0].message
        messages.append(message)
        for call in message.tool_calls or []:
            if call.type == "function" and answer.choices[0].finish_reason == "tool_calls":
                numbers = json.loads(call.function.arguments)
                print(f"{call.function.name}({numbers['a']}, {numbers['b']})")
                result = str(numbers["a"] + numbers["b"])
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    print(messages[-1].content)


if __name__ == "__main__":
    main()
