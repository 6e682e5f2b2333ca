"""The official ``openai`` client against ``octavo serve``: ``python examples/openai_client.py [URL]``."""

import sys

from openai import OpenAI


def main() -> None:
    """Asks the first model of the server one question and prints the answer as it streams in."""
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    # The client insists on a key; a server that asks for none ignores it.
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        max_tokens=64,
        temperature=0.0,
        stream=True,
    )
    for chunk in stream:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
