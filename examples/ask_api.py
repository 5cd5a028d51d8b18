"""Ask a language model behind an OpenAI-compatible server all prompts of an exported text task.

    recombine export sraven --scale tiny --format text --num-instances 50 -o sraven-text
    export OPENAI_API_KEY=...
    python examples/ask_api.py sraven-text/prompts.jsonl answers.jsonl --model NAME
    recombine score sraven answers.jsonl --scale tiny

Prompts that are answered already are not asked again, so an interrupted run can be repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import urllib.request
from pathlib import Path


def ask(prompt: str, *, model: str, url: str, max_tokens: int) -> str:
    """The model's reply to one prompt."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompts", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--url", default="https://api.openai.com/v1")
    parser.add_argument("--max-tokens", type=int, default=2_048)
    options = parser.parse_args()
    known = options.answers.read_text().splitlines() if options.answers.exists() else []
    done = {json.loads(line)["row_id"] for line in known}
    with options.answers.open("a") as file:
        for row in map(json.loads, options.prompts.read_text().splitlines()):
            if row["row_id"] not in done:
                text = ask(row["prompt"], model=options.model, url=options.url, max_tokens=options.max_tokens)
                file.write(json.dumps({"row_id": row["row_id"], "response": text}) + "\n")
                file.flush()


if __name__ == "__main__":
    main()
